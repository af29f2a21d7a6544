use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::metadata;
use super::upload::HIDDEN_PREFIX;

/// Moves `from` to `to`, making the parents of `to`.
///
/// The root and the home of a space are different file systems, so where a rename cannot do it, a copy beside the
/// destination takes the name at once and the source is removed afterwards.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::symlink_metadata(from)?;
    let parent = to.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
        moved => return moved,
    }
    let beside = parent.join(format!("{HIDDEN_PREFIX}move-{}", crate::sys::random_hex()));
    let placed = copy(from, &beside).and_then(|()| std::fs::rename(&beside, to));
    if placed.is_err() {
        // The failure that matters is the first one.
        let _left = remove(&beside);
    }
    placed.and_then(|()| remove(from))
}

/// Removes whatever is at `path`, a directory with all that is in it. Missing is as good.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(from)?;
    if found.is_symlink() {
        std::os::unix::fs::symlink(std::fs::read_link(from)?, to)?;
    } else if found.is_dir() {
        std::fs::DirBuilder::new().mode(0o700).create(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if found.is_file() {
        std::fs::copy(from, to)?;
        let copied = std::fs::File::options().write(true).open(to)?;
        match metadata::write(&copied, &metadata::read(from)) {
            // A file system that keeps none.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            written => written?,
        }
        copied.set_modified(found.modified()?)?;
    } else {
        let words =
            format!("{} is no file, directory or link; it cannot leave its file system", from.display());
        return Err(io::Error::other(words));
    }
    // Only root may give files away; for everyone else they are his own already.
    let mine = std::fs::symlink_metadata(to)?;
    if (mine.uid(), mine.gid()) != (found.uid(), found.gid()) {
        match std::os::unix::fs::lchown(to, Some(found.uid()), Some(found.gid())) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            changed => changed?,
        }
    }
    if !found.is_symlink() {
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(found.mode() & 0o7777))?;
    }
    Ok(())
}
