use std::ffi::{CStr, c_char};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::thread::Gid;

/// Length of a request packet.
pub(crate) const REQUEST_BYTES: usize = 16;
/// Length of a reply packet.
pub(crate) const REPLY_BYTES: usize = 24;
const HEAD_WORDS: usize = 8;

/// Asks for one command; its spec, stdin, stdout and stderr travel beside it as descriptors.
pub(crate) struct Request {
    /// Names the request in replies.
    pub(crate) id: u64,
    /// Length of the spec in its memory file.
    pub(crate) spec_bytes: u64,
}

impl Request {
    /// As a packet.
    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.spec_bytes.to_ne_bytes());
        bytes
    }

    /// From a packet.
    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        Self { id: word(0), spec_bytes: word(8) }
    }
}

/// How far a child came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was not born, or could not take its descriptors and user.
    Fork,
    /// It could not enter its working directory.
    Directory,
    /// It could not become the program.
    Exec,
}

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Sent by the child itself, as its first act.
    Started {
        /// The request.
        id: u64,
        /// The child.
        pid: i32,
    },
    /// Sent by the launcher once the child is another program, or is gone.
    Done {
        /// The request.
        id: u64,
        /// How far it came.
        stage: Stage,
        /// Why it came no further; 0 = it runs.
        errno: i32,
    },
}

impl Reply {
    /// The child's first act.
    pub(crate) fn started(id: u64, pid: i32) -> Self {
        Self::Started { id, pid }
    }

    /// The launcher's last word on a request.
    pub(crate) fn done(id: u64, stage: Stage, errno: i32) -> Self {
        Self::Done { id, stage, errno }
    }

    /// As a packet.
    pub(crate) fn encode(self) -> [u8; REPLY_BYTES] {
        let (id, words) = match self {
            Self::Started { id, pid } => (id, [0, pid, 0, 0]),
            Self::Done { id, stage, errno } => (id, [1, 0, stage as i32, errno]),
        };
        let mut bytes = [0; REPLY_BYTES];
        bytes[..8].copy_from_slice(&id.to_ne_bytes());
        for (index, word) in words.iter().enumerate() {
            bytes[8 + 4 * index..12 + 4 * index].copy_from_slice(&i32::to_ne_bytes(*word));
        }
        bytes
    }

    /// From a packet.
    pub(crate) fn decode(bytes: &[u8; REPLY_BYTES]) -> Self {
        let id = u64::from_ne_bytes(std::array::from_fn(|index| bytes[index]));
        let word = |at: usize| i32::from_ne_bytes(std::array::from_fn(|index| bytes[8 + 4 * at + index]));
        if word(0) == 0 {
            return Self::Started { id, pid: word(1) };
        }
        let stage = match word(2) {
            0 => Stage::Fork,
            1 => Stage::Directory,
            _ => Stage::Exec,
        };
        Self::Done { id, stage, errno: word(3) }
    }
}

/// A command as pid 1 asks for it; strings hold no NUL.
pub(crate) struct Order<'a> {
    /// User id.
    pub(crate) uid: u32,
    /// Group id.
    pub(crate) gid: u32,
    /// All groups.
    pub(crate) groups: &'a [u32],
    /// Working directory.
    pub(crate) directory: &'a [u8],
    /// Nobody named the directory, so `/` will do where it is missing.
    pub(crate) directory_is_a_wish: bool,
    /// Its stdin is the terminal it is to be controlled by.
    pub(crate) terminal: bool,
    /// Programs to try, in order.
    pub(crate) candidates: &'a [Vec<u8>],
    /// Arguments, the command's name first.
    pub(crate) args: &'a [Vec<u8>],
    /// Environment, `NAME=value`.
    pub(crate) env: &'a [Vec<u8>],
}

impl Order<'_> {
    /// Writes it into a memory file; that has room where a packet has not.
    pub(crate) fn into_memory(self) -> std::io::Result<(OwnedFd, u64)> {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let head: [u32; HEAD_WORDS] = [
            self.uid,
            self.gid,
            u32::from(self.directory_is_a_wish),
            count(self.groups.len()),
            count(self.candidates.len()),
            count(self.args.len()),
            count(self.env.len()),
            u32::from(self.terminal),
        ];
        let mut bytes = Vec::new();
        for word in head.iter().chain(self.groups) {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        let strings = self.candidates.iter().chain(self.args).chain(self.env).map(Vec::as_slice);
        for string in std::iter::once(self.directory).chain(strings) {
            bytes.extend_from_slice(string);
            bytes.push(0);
        }
        let mut memory = File::from(rustix::fs::memfd_create(c"drowse-command", MemfdFlags::CLOEXEC)?);
        memory.write_all(&bytes)?;
        Ok((memory.into(), bytes.len() as u64))
    }
}

/// A command as the launcher holds it.
pub(crate) struct Spec {
    head: [u32; HEAD_WORDS],
    groups: Vec<Gid>,
    strings: Vec<u8>,
    /// Where each string starts.
    starts: Vec<usize>,
}

/// Pointers into a spec, in the shape execve wants.
pub(crate) struct Arrays {
    /// Programs to try.
    pub(crate) candidates: Vec<*const c_char>,
    /// Null-terminated.
    pub(crate) argv: Vec<*const c_char>,
    /// Null-terminated.
    pub(crate) envp: Vec<*const c_char>,
}

impl Spec {
    /// Reads it whole. The offset is left alone, so that another launcher can read it again.
    pub(crate) fn read(memory: &OwnedFd, length: u64) -> rustix::io::Result<Self> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let mut have = 0;
        while have < bytes.len() {
            match rustix::io::pread(memory.as_fd(), &mut bytes[have..], have as u64)? {
                0 => return Err(rustix::io::Errno::PROTO),
                got => have += got,
            }
        }
        Self::parse(&bytes).ok_or(rustix::io::Errno::PROTO)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let word =
            |index: usize| Some(u32::from_ne_bytes(bytes.get(4 * index..4 * index + 4)?.try_into().ok()?));
        let mut head = [0; HEAD_WORDS];
        for (index, slot) in head.iter_mut().enumerate() {
            *slot = word(index)?;
        }
        let group_count = head[3] as usize;
        let groups = (0..group_count).map(|index| word(HEAD_WORDS + index).map(Gid::from_raw));
        let groups = groups.collect::<Option<Vec<_>>>()?;
        let strings = bytes.get(4 * (HEAD_WORDS + group_count)..)?.to_vec();
        let ends = strings.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(index, _)| index + 1);
        let mut starts: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let wanted = 1 + head[4] as usize + head[5] as usize + head[6] as usize;
        (starts.pop() == Some(strings.len()) && starts.len() == wanted).then_some(Self {
            head,
            groups,
            strings,
            starts,
        })
    }

    /// User id.
    pub(crate) fn uid(&self) -> u32 {
        self.head[0]
    }

    /// Group id.
    pub(crate) fn gid(&self) -> u32 {
        self.head[1]
    }

    /// All groups.
    pub(crate) fn groups(&self) -> &[Gid] {
        &self.groups
    }

    /// Whether `/` will do where the directory is missing.
    pub(crate) fn directory_is_a_wish(&self) -> bool {
        self.head[2] != 0
    }

    /// Whether its stdin is the terminal it is to be controlled by.
    pub(crate) fn terminal(&self) -> bool {
        self.head[7] != 0
    }

    /// Working directory.
    pub(crate) fn directory(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.strings).unwrap_or(c"/")
    }

    /// The pointers execve wants; they live as long as the spec.
    pub(crate) fn arrays(&self) -> Arrays {
        let pointers: Vec<*const c_char> =
            self.starts.iter().map(|start| self.strings[*start..].as_ptr().cast()).collect();
        let (candidates, rest) = pointers[1..].split_at(self.head[4] as usize);
        let (args, env) = rest.split_at(self.head[5] as usize);
        let terminated = |list: &[*const c_char]| {
            list.iter().copied().chain(std::iter::once(std::ptr::null())).collect::<Vec<_>>()
        };
        Arrays { candidates: candidates.to_vec(), argv: terminated(args), envp: terminated(env) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_written() {
        let texts = |list: &[&str]| list.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let order = Order {
            uid: 7,
            gid: 8,
            groups: &[8, 9],
            directory: b"/odd \xff dir",
            directory_is_a_wish: true,
            terminal: true,
            candidates: &texts(&["/bin/a", "/usr/bin/a"]),
            args: &texts(&["a", ""]),
            env: &texts(&["X=1"]),
        };
        let (memory, length) = order.into_memory().unwrap();
        let spec = Spec::read(&memory, length).unwrap();
        assert_eq!(
            (spec.uid(), spec.gid(), spec.groups().len(), spec.directory_is_a_wish(), spec.terminal()),
            (7, 8, 2, true, true)
        );
        assert_eq!(spec.directory().to_bytes(), b"/odd \xff dir");
        let arrays = spec.arrays();
        assert_eq!((arrays.candidates.len(), arrays.argv.len(), arrays.envp.len()), (2, 3, 2));
        assert!(Spec::read(&memory, length - 1).is_err());
    }

    #[test]
    fn replies_survive_the_wire() {
        for reply in [Reply::started(u64::MAX, 42), Reply::done(3, Stage::Directory, 2)] {
            assert_eq!(Reply::decode(&reply.encode()), reply);
        }
    }
}
