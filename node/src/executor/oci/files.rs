use std::{fs::Permissions, io, os::unix::fs::PermissionsExt};

use camino::Utf8Path;

use super::step::Leave;

/// Makes a directory, or takes the one that is there.
pub(super) fn make_dir(_: &Leave, dir: &Utf8Path, mode: u32) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => std::fs::set_permissions(dir, Permissions::from_mode(mode)),
    }
}

/// Writes a file. Cut, it may be there in part.
pub(super) fn write(_: &Leave, path: &Utf8Path, content: &str) -> io::Result<()> {
    std::fs::write(path, content)
}

/// Removes a file. Nothing there is fine.
pub(super) fn remove_file(_: &Leave, path: &Utf8Path) -> io::Result<()> {
    gone(std::fs::remove_file(path))
}

/// Removes an empty directory. Nothing there is fine; anything mounted or lying there is not.
pub(super) fn remove_dir(_: &Leave, dir: &Utf8Path) -> io::Result<()> {
    gone(std::fs::remove_dir(dir))
}

/// Removes a tree. Nothing there is fine.
pub(super) fn remove_all(_: &Leave, dir: &Utf8Path) -> io::Result<()> {
    gone(std::fs::remove_dir_all(dir))
}

/// Gives a directory another name; says whether there was one.
pub(super) fn rename(_: &Leave, from: &Utf8Path, to: &Utf8Path) -> io::Result<bool> {
    match std::fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
