use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::connect::{Code, Error};
use crate::users::User;

/// Makes a path absolute and clean: `~` and relative paths start at the user's home, `.` and `..` are resolved by
/// name, as E2B does.
pub(crate) fn absolute(user: &User, path: &[u8]) -> Result<PathBuf, Error> {
    if path.contains(&0) {
        return Err(Error::new(Code::InvalidArgument, "a path must not contain NUL"));
    }
    let home = user.home.as_os_str().as_bytes();
    let (base, rest) = match path {
        [b'/', ..] => (&b""[..], path),
        b"~" => (home, &b""[..]),
        [b'~', b'/', rest @ ..] => (home, rest),
        _ => (home, path),
    };
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in base.split(|byte| *byte == b'/').chain(rest.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut clean = vec![b'/'];
    clean.extend(parts.join(&b'/'));
    Ok(PathBuf::from(OsString::from_vec(clean)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_and_clean() {
        let user = User {
            name: "user".to_owned(),
            uid: 1,
            gid: 1,
            groups: vec![1],
            home: "/home/user".into(),
            shell: String::new(),
        };
        let cases: [(&[u8], &[u8]); 9] = [
            (b"", b"/home/user"),
            (b"~", b"/home/user"),
            (b"~/a", b"/home/user/a"),
            (b"a//b/./c", b"/home/user/a/b/c"),
            (b"../../../x", b"/x"),
            (b"/", b"/"),
            (b"/a/../b/", b"/b"),
            (b"/odd \xff\n", b"/odd \xff\n"),
            (b"~other", b"/home/user/~other"),
        ];
        for (given, wanted) in cases {
            assert_eq!(absolute(&user, given).unwrap().as_os_str().as_bytes(), wanted);
        }
        assert!(absolute(&user, b"/a\0b").is_err());
    }
}
