use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use http::StatusCode;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags};

use super::http::Refusal;
use super::metadata::{self, Notes};

const MODE_DEFAULT: u32 = 0o644;
const LINKS_MAX: usize = 40;
/// Names of things that are not what they will be yet; watchers do not tell of them.
pub(crate) const HIDDEN_PREFIX: &str = ".drowse-";
/// Names of uploads that are complete and about to take the place of another file.
pub(crate) const UPLOAD_PREFIX: &str = ".drowse-upload-";
/// The same, where there was no file: a watcher cannot tell that from the rename.
pub(crate) const UPLOAD_NEW_PREFIX: &str = ".drowse-upload-new-";

/// A file that has no name yet. It takes the target's name only once all of it has arrived: a cut upload leaves the old file
/// as it was, and nothing else.
pub(super) struct Upload {
    /// Where it will be, symbolic links resolved.
    target: PathBuf,
    directory: OwnedFd,
    name: OsString,
    file: File,
    mode: Option<u32>,
    old_mode: Option<u32>,
    size: u64,
    /// Its hidden name, where the file system has no nameless files.
    hidden: Option<OsString>,
}

impl Upload {
    /// Begins one that is to become `path`.
    pub(super) fn begin(path: &Path, mode: Option<u32>) -> Result<Self, Refusal> {
        let target = follow(path).map_err(|error| Refusal::from_io(path, &error))?;
        let refuse = |error: io::Error| Refusal::from_io(&target, &error);
        let old_mode = match std::fs::metadata(&target) {
            Ok(old) if old.is_file() => Some(old.permissions().mode() & 0o777),
            Ok(old) => {
                let what = if old.is_dir() { "is a directory" } else { "is not a regular file" };
                return Err(Refusal::new(StatusCode::BAD_REQUEST, format!("{} {what}", target.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refuse(error)),
        };
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "path names no file"));
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(refuse)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = match rustix::fs::open(parent, flags, Mode::empty()) {
            // A directory one may enter and write but not list.
            Err(rustix::io::Errno::ACCESS) => {
                let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
                rustix::fs::open(parent, flags, Mode::empty())
            }
            opened => opened,
        };
        let directory = directory.map_err(|errno| refuse(errno.into()))?;
        let (file, hidden) = create(&directory).map_err(refuse)?;
        let name = name.to_owned();
        Ok(Self { name, directory, file, mode, old_mode, size: 0, hidden, target })
    }

    /// Takes in some of its content.
    pub(super) fn write(&mut self, content: &[u8]) -> Result<(), Refusal> {
        self.file.write_all(content).map_err(|error| Refusal::from_io(&self.target, &error))?;
        self.size += content.len() as u64;
        Ok(())
    }

    /// It is complete. Tells its size.
    pub(super) fn finish(mut self, metadata: &Notes) -> Result<u64, Refusal> {
        let links = std::fs::metadata(&self.target).map_or(0, |old| old.nlink());
        let kept = if links > 1 { self.replace_content(metadata) } else { self.replace_file(metadata) };
        kept.map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                let words = format!("the file system of {} keeps no metadata", self.target.display());
                Refusal::new(StatusCode::BAD_REQUEST, words)
            }
            _ => Refusal::from_io(&self.target, &error),
        })?;
        Ok(self.size)
    }

    /// The old file has other names, which are to show the new content too. There is room for it before any is changed.
    fn replace_content(&mut self, metadata: &Notes) -> io::Result<()> {
        let mut old = File::options().write(true).open(&self.target)?;
        let (size, flags) = (self.size, FallocateFlags::KEEP_SIZE);
        match if size > 0 { rustix::fs::fallocate(&old, flags, 0, size) } else { Ok(()) } {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(errno) => return Err(errno.into()),
        }
        metadata::clear(&old, &self.target)?;
        metadata::write(&old, metadata)?;
        io::Seek::rewind(&mut self.file)?;
        io::copy(&mut self.file, &mut old)?;
        old.set_len(size)?;
        if let Some(mode) = self.mode {
            rustix::fs::fchmod(&old, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    fn replace_file(&self, metadata: &Notes) -> io::Result<()> {
        let mode = self.mode.or(self.old_mode).unwrap_or(MODE_DEFAULT);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        metadata::write(&self.file, metadata)?;
        let exists = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let hidden = self.hide(exists)?;
        let renamed = self.take_name(&hidden, exists);
        if renamed.is_err() {
            remove(&self.directory, &hidden);
        }
        Ok(renamed?)
    }

    /// Gives the file a hidden name that says whether it is going to replace another.
    fn hide(&self, exists: bool) -> rustix::io::Result<OsString> {
        let wanted = hidden_name(if exists { UPLOAD_PREFIX } else { UPLOAD_NEW_PREFIX });
        match &self.hidden {
            Some(hidden) => rustix::fs::renameat(&self.directory, hidden, &self.directory, &wanted)?,
            None => {
                let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, nameless.as_str(), &self.directory, &wanted, follow)?;
            }
        }
        Ok(wanted)
    }

    fn take_name(&self, hidden: &OsString, exists: bool) -> rustix::io::Result<()> {
        let (from, to) = (&self.directory, &self.directory);
        if !exists {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(from, hidden, to, &self.name, flags) {
                // Somebody made it meanwhile, or the file system cannot tell.
                Err(rustix::io::Errno::EXIST | rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {}
                renamed => return renamed,
            }
        }
        rustix::fs::renameat(from, hidden, to, &self.name)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After a rename the hidden name is gone and this finds nothing.
        if let Some(hidden) = &self.hidden {
            remove(&self.directory, hidden);
        }
    }
}

fn remove(directory: &OwnedFd, name: &OsString) {
    // Missing is as good.
    let _gone = rustix::fs::unlinkat(directory, name, AtFlags::empty());
}

fn create(directory: &OwnedFd) -> io::Result<(File, Option<OsString>)> {
    let private = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags, private) {
        Ok(file) => return Ok((file.into(), None)),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let hidden = hidden_name(UPLOAD_PREFIX);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, &hidden, flags, private)?;
    Ok((file.into(), Some(hidden)))
}

fn hidden_name(prefix: &str) -> OsString {
    format!("{prefix}{}", crate::sys::random_hex()).into()
}

/// Follows symbolic links in the last part, to where writing would write; that may not exist yet.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&path) {
            Ok(link) => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                path = parent.join(link);
            }
            // EINVAL: it is no link.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    debug_assert!(path.as_os_str().as_bytes().starts_with(b"/"), "parents are absolute");
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}
