use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest passwd or group file that is read.
const DATABASE_BYTES_MAX: u64 = 1024 * 1024;

/// Whoever a command runs as or a file is touched by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// Login name.
    pub(crate) name: String,
    /// User id inside the space.
    pub(crate) uid: u32,
    /// Primary group id.
    pub(crate) gid: u32,
    /// All groups, the primary one first.
    pub(crate) groups: Vec<u32>,
    /// Home directory.
    pub(crate) home: PathBuf,
    /// Login shell.
    pub(crate) shell: String,
}

/// Names of users and groups, as far as `/etc/passwd` and `/etc/group` know them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    passwd: Vec<u8>,
    group: Vec<u8>,
}

impl Names {
    /// Reads both files as they are now; a missing one reads as empty.
    pub(crate) fn load() -> Self {
        Self {
            passwd: read_database("/etc/passwd").unwrap_or_default(),
            group: read_database("/etc/group").unwrap_or_default(),
        }
    }

    /// Finds a user; `None` asks for the space's default user: `user` where it exists, else root.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<User> {
        match name {
            Some(name) => self.user(name).or_else(|| (name == "root").then(root)),
            None => Some(self.user("user").or_else(|| self.user("root")).unwrap_or_else(root)),
        }
    }

    /// Name of a user id, or the number itself.
    pub(crate) fn owner(&self, uid: u32) -> String {
        name_of(&self.passwd, uid)
    }

    /// Name of a group id, or the number itself.
    pub(crate) fn group(&self, gid: u32) -> String {
        name_of(&self.group, gid)
    }

    fn user(&self, name: &str) -> Option<User> {
        let fields = rows(&self.passwd).find(|fields| fields[0] == name.as_bytes() && fields.len() >= 6)?;
        let (uid, gid) = (number(fields[2])?, number(fields[3])?);
        let mut groups = vec![gid];
        for row in rows(&self.group).filter(|row| row.len() >= 4) {
            let member = row[3].split(|byte| *byte == b',').any(|member| member == name.as_bytes());
            if let Some(extra) = number(row[2]).filter(|extra| member && !groups.contains(extra)) {
                groups.push(extra);
            }
        }
        let shell = fields.get(6).map(|shell| String::from_utf8_lossy(shell).into_owned());
        let home = if fields[5].starts_with(b"/") { fields[5] } else { b"/" };
        Some(User {
            name: name.to_owned(),
            uid,
            gid,
            groups,
            home: Path::new(OsStr::from_bytes(home)).to_owned(),
            shell: shell.filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".to_owned()),
        })
    }
}

fn root() -> User {
    let home = if Path::new("/root").is_dir() { "/root" } else { "/" };
    User {
        name: "root".to_owned(),
        uid: 0,
        gid: 0,
        groups: vec![0],
        home: home.into(),
        shell: "/bin/sh".to_owned(),
    }
}

fn rows(database: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    database
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>())
        .filter(|fields| fields.len() >= 3 && !fields[0].is_empty())
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn name_of(database: &[u8], id: u32) -> String {
    rows(database)
        .find(|fields| number(fields[2]) == Some(id))
        .map_or_else(|| id.to_string(), |fields| String::from_utf8_lossy(fields[0]).into_owned())
}

/// Whoever is root inside may have put anything there: a FIFO must not hang pid 1, nor a huge file fill it.
fn read_database(path: &str) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.take(DATABASE_BYTES_MAX).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names {
            passwd: b"root:x:0:0:root:/root:/bin/bash\nbroken line\nuser:x:1000:1000::/home/user:/bin/bash\nodd:x:7:7:::\n"
                .to_vec(),
            group: b"root:x:0:\nsudo:x:27:other,user\nuser:x:1000:\nnear:x:28:users\n".to_vec(),
        }
    }

    #[test]
    fn finds_users_with_their_groups() {
        let user = names().find(None).unwrap();
        assert_eq!(
            (user.name.as_str(), user.uid, user.groups.as_slice()),
            ("user", 1000, [1000, 27].as_slice())
        );
        assert_eq!(user.home, Path::new("/home/user"));
        assert_eq!(names().find(Some("root")).unwrap().uid, 0);
        assert_eq!(names().find(Some("odd")).unwrap().home, Path::new("/"));
        assert_eq!(names().find(Some("odd")).unwrap().shell, "/bin/sh");
        assert!(names().find(Some("nobody-here")).is_none());
    }

    #[test]
    fn falls_back_to_root_and_to_numbers() {
        let none = Names::default();
        assert_eq!(none.find(None).unwrap().uid, 0);
        assert_eq!(none.find(Some("root")).unwrap().uid, 0);
        assert!(none.find(Some("user")).is_none());
        assert_eq!((names().owner(1000), names().owner(4242)), ("user".to_owned(), "4242".to_owned()));
        assert_eq!(names().group(27), "sudo");
    }
}
