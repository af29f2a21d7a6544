use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::event::{self, Kind};
use crate::connect::{Code, Error};
use crate::files::upload::{HIDDEN_PREFIX, UPLOAD_NEW_PREFIX, UPLOAD_PREFIX};
use crate::users::Names;

/// Directories one watcher may cover.
const DIRECTORIES_MAX: usize = 65_536;
/// Events that may wait to be fetched, and how long they may be.
const QUEUE_EVENTS_MAX: usize = 65_536;
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Events taken from the kernel in one go, so that a busy tree leaves the file threads to others now and then.
const BATCH_EVENTS_MAX: usize = 16_384;
const BUFFER_BYTES: usize = 32 * 1024;
/// Uploads that may be between leaving their hidden name and taking their own.
const UPLOADS_MAX: usize = 64;

/// What a client wants to see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Also in directories below.
    pub(super) recursive: bool,
    /// With a description of each entry.
    pub(super) with_entry: bool,
}

/// A directory, or all of a tree, under watch by the kernel.
///
/// A new directory is armed first and then scanned: what was put into it before is announced from the scan, what comes
/// later by the kernel, and what both know of is told once.
pub(super) struct Tree {
    inotify: OwnedFd,
    root: PathBuf,
    scope: Scope,
    /// Each watched directory, relative to the root.
    directories: BTreeMap<i32, PathBuf>,
    /// What scans have announced and the kernel may yet announce again.
    announced: BTreeMap<i32, BTreeSet<OsString>>,
    /// Directories that left their place, by the cookie of the move.
    moving: BTreeMap<u32, PathBuf>,
    /// Uploads on the way to their names; whether the name is new.
    uploads: BTreeMap<u32, bool>,
    queue: VecDeque<Box<str>>,
    queued_bytes: usize,
    /// Why nothing more can be told.
    lost: Option<Error>,
}

/// One event of the kernel's.
struct Raw {
    directory: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<OsString>,
}

impl Tree {
    /// Arms `root` and, if asked for, everything below. When this returns, nothing that happens from then on is missed.
    pub(super) fn arm(root: PathBuf, scope: Scope) -> Result<Self, Error> {
        let refuse = |errno: Errno| Error::from_io(&root.display().to_string(), &errno.into());
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(refuse)?;
        let mask = changes() | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let watch = inotify::add_watch(&inotify, &root, mask).map_err(refuse)?;
        let mut tree = Self {
            inotify,
            root,
            scope,
            directories: BTreeMap::from([(watch, PathBuf::new())]),
            announced: BTreeMap::new(),
            moving: BTreeMap::new(),
            uploads: BTreeMap::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            lost: None,
        };
        if scope.recursive {
            for name in tree.directories_in(Path::new("")) {
                tree.arm_below(name, false, &mut None);
            }
        }
        match tree.lost.take() {
            None => Ok(tree),
            Some(_) => {
                let words = format!("{} holds more directories than can be watched", tree.root.display());
                Err(Error::new(Code::ResourceExhausted, words))
            }
        }
    }

    /// The kernel's queue, for waiting until there is something in it.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inotify.try_clone()
    }

    /// Takes over what happened so far. True when there may be more already.
    pub(super) fn gather(&mut self) -> bool {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut names = None;
        let mut seen = 0;
        while self.lost.is_none() && seen < BATCH_EVENTS_MAX {
            let raws = match read(&self.inotify, &mut buffer) {
                Ok(raws) => raws,
                Err(errno) => {
                    self.lose(&format!("the kernel's queue cannot be read: {}", io::Error::from(errno)));
                    return false;
                }
            };
            if raws.is_empty() {
                self.settle();
                return false;
            }
            seen += raws.len();
            for raw in &raws {
                self.take(raw, &mut names);
            }
        }
        self.lost.is_none()
    }

    /// Everything that waits, oldest first; an error once something was lost.
    pub(super) fn fetch(&mut self) -> Result<VecDeque<Box<str>>, Error> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.queued_bytes = 0;
        Ok(std::mem::take(&mut self.queue))
    }

    fn take(&mut self, raw: &Raw, names: &mut Option<Names>) {
        if raw.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.lose("more happened at once than the kernel holds");
            return;
        }
        if raw.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&raw.directory);
            return;
        }
        let Some(directory) = self.directories.get(&raw.directory) else { return };
        let Some(name) = &raw.name else {
            if directory.as_os_str().is_empty() {
                self.tell_about_root(raw.flags, names);
            }
            return;
        };
        let path = directory.join(name);
        if name.as_bytes().starts_with(HIDDEN_PREFIX.as_bytes()) {
            let upload = name.as_bytes().starts_with(UPLOAD_PREFIX.as_bytes());
            if upload && raw.flags.contains(ReadFlags::MOVED_FROM) {
                self.uploads.insert(raw.cookie, name.as_bytes().starts_with(UPLOAD_NEW_PREFIX.as_bytes()));
                while self.uploads.len() > UPLOADS_MAX {
                    self.uploads.pop_first();
                }
            }
            return;
        }
        if raw.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.take_arrival(raw, name, path, names);
            return;
        }
        if raw.flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM)
            && let Some(announced) = self.announced.get_mut(&raw.directory)
        {
            announced.remove(name);
        }
        let kind = if raw.flags.contains(ReadFlags::MODIFY) {
            Kind::Write
        } else if raw.flags.contains(ReadFlags::ATTRIB) {
            Kind::Chmod
        } else if raw.flags.contains(ReadFlags::DELETE) {
            Kind::Remove
        } else if raw.flags.contains(ReadFlags::MOVED_FROM) {
            if self.scope.recursive && raw.flags.contains(ReadFlags::ISDIR) {
                self.moving.insert(raw.cookie, path.clone());
            }
            Kind::Rename
        } else {
            return;
        };
        if matches!(kind, Kind::Write | Kind::Chmod) && self.is_nameless(name, &path) {
            return;
        }
        self.tell(&path, kind, names);
    }

    /// Something came to be in a watched directory, or was moved there.
    fn take_arrival(&mut self, raw: &Raw, name: &OsStr, path: PathBuf, names: &mut Option<Names>) {
        if let Some(new) = self.uploads.remove(&raw.cookie) {
            // One that a scan met already only changes hands here; whichever, its content is new.
            let known = self.announced.get_mut(&raw.directory).is_some_and(|known| known.remove(name));
            let kinds: &[Kind] =
                if new && !known { &[Kind::Create, Kind::Chmod, Kind::Write] } else { &[Kind::Write] };
            for kind in kinds {
                self.tell(&path, *kind, names);
            }
            return;
        }
        if self.announced.get_mut(&raw.directory).is_some_and(|known| known.remove(name)) {
            return;
        }
        self.tell(&path, Kind::Create, names);
        if self.scope.recursive && raw.flags.contains(ReadFlags::ISDIR) {
            match self.moving.remove(&raw.cookie) {
                Some(old) => self.follow_move(&old, &path),
                None => self.arm_below(path, true, names),
            }
        }
    }

    fn tell_about_root(&mut self, flags: ReadFlags, names: &mut Option<Names>) {
        let kinds = [
            (ReadFlags::ATTRIB, Kind::Chmod),
            (ReadFlags::DELETE_SELF, Kind::Remove),
            (ReadFlags::MOVE_SELF, Kind::Rename),
        ];
        for (_, kind) in kinds.into_iter().filter(|(flag, _)| flags.contains(*flag)) {
            self.tell(Path::new("."), kind, names);
        }
    }

    /// A file without a name shows up as `#` and its number, although nothing has that name.
    fn is_nameless(&self, name: &OsStr, path: &Path) -> bool {
        let number = name.as_bytes().strip_prefix(b"#");
        number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
            && std::fs::symlink_metadata(self.root.join(path)).is_err()
    }

    /// The watches of a moved directory stay with it; only their names change.
    fn follow_move(&mut self, old: &Path, new: &Path) {
        for directory in self.directories.values_mut() {
            if let Ok(below) = directory.strip_prefix(old) {
                *directory = if below.as_os_str().is_empty() { new.to_owned() } else { new.join(below) };
            }
        }
    }

    /// Arms a directory and all below; with `announce`, what is in them is told.
    fn arm_below(&mut self, directory: PathBuf, announce: bool, names: &mut Option<Names>) {
        let mut waiting = vec![directory];
        while let Some(directory) = waiting.pop() {
            let flags = changes() | WatchFlags::DONT_FOLLOW;
            let watch = match inotify::add_watch(&self.inotify, self.root.join(&directory), flags) {
                Ok(watch) => watch,
                Err(Errno::NOSPC | Errno::NOMEM) => {
                    self.lose("the kernel has no watch left for a new directory");
                    return;
                }
                // Gone again, another thing by now, or not this user's to read.
                Err(_) => continue,
            };
            self.directories.insert(watch, directory.clone());
            if self.directories.len() > DIRECTORIES_MAX {
                self.lose("there are more directories than can be watched");
                return;
            }
            if !announce {
                waiting.extend(self.directories_in(&directory));
                continue;
            }
            for (name, kind, has_content) in self.entries_in(&directory) {
                let path = directory.join(&name);
                self.announced.entry(watch).or_default().insert(name);
                self.tell(&path, Kind::Create, names);
                if has_content {
                    self.tell(&path, Kind::Write, names);
                }
                if kind.is_dir() {
                    waiting.push(path);
                }
            }
            if self.lost.is_some() {
                return;
            }
        }
    }

    fn entries_in(&self, directory: &Path) -> Vec<(OsString, std::fs::FileType, bool)> {
        let Ok(entries) = std::fs::read_dir(self.root.join(directory)) else { return Vec::new() };
        let visible = entries
            .flatten()
            .filter(|entry| !entry.file_name().as_bytes().starts_with(HIDDEN_PREFIX.as_bytes()));
        let described = visible.filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            let has_content = kind.is_file() && entry.metadata().is_ok_and(|found| found.len() > 0);
            Some((entry.file_name(), kind, has_content))
        });
        described.take(QUEUE_EVENTS_MAX + 1).collect()
    }

    fn directories_in(&self, directory: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.root.join(directory)) else { return Vec::new() };
        let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.map(|entry| directory.join(entry.file_name())).take(DIRECTORIES_MAX + 1).collect()
    }

    /// The kernel's queue ran empty: it will not repeat what scans announced, and what moved away has left the tree.
    fn settle(&mut self) {
        self.announced.clear();
        for old in std::mem::take(&mut self.moving).into_values() {
            let left: Vec<i32> = self
                .directories
                .iter()
                .filter(|(_, directory)| directory.starts_with(&old))
                .map(|(watch, _)| *watch)
                .collect();
            for watch in left {
                self.directories.remove(&watch);
                // Gone already is as good.
                let _gone = inotify::remove_watch(&self.inotify, watch);
            }
        }
    }

    fn tell(&mut self, path: &Path, kind: Kind, names: &mut Option<Names>) {
        if self.lost.is_some() {
            return;
        }
        let entry = self.scope.with_entry.then(|| names.get_or_insert_with(Names::load));
        let event = event::json(&self.root, path, kind, entry.map(|names| &*names));
        // As the kernel does with what follows one another in its own queue.
        if matches!(kind, Kind::Write | Kind::Chmod) && self.queue.back() == Some(&event) {
            return;
        }
        self.queued_bytes += event.len();
        self.queue.push_back(event);
        if self.queue.len() > QUEUE_EVENTS_MAX || self.queued_bytes > QUEUE_BYTES_MAX {
            self.lose("more happened than was fetched");
        }
    }

    fn lose(&mut self, why: &str) {
        let words = format!("events were lost ({why}): watch anew, then list the directory");
        self.lost = Some(Error::new(Code::ResourceExhausted, words));
        self.queue = VecDeque::new();
        self.directories = BTreeMap::new();
    }
}

fn changes() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR
        | WatchFlags::EXCL_UNLINK
}

/// One buffer full of events; empty when there are none.
fn read(inotify: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> rustix::io::Result<Vec<Raw>> {
    let mut reader = Reader::new(inotify, buffer);
    let mut raws = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => raws.push(Raw {
                directory: event.wd(),
                flags: event.events(),
                cookie: event.cookie(),
                name: event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec())),
            }),
            Err(Errno::AGAIN) => return Ok(raws),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if reader.is_buffer_empty() {
            return Ok(raws);
        }
    }
}
