use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::{
    fs::{CWD, FlockOperation, Mode},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
        unmount,
    },
};

use super::step::Leave;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_AUTOCLEAR: u32 = 4;
const LOOP_MAJOR: u32 = 7;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_NOEXEC: u64 = 8;

/// Kernel's `struct loop_config`, with its `struct loop_info64` spelt out.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: [u64; 3],
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A loop device over an image. Without a mount it vanishes when this is dropped.
pub(super) struct Loop {
    path: Utf8PathBuf,
    _device: File,
}

/// Binds an image to a free loop device.
///
/// The image carries a file lock that the loop device keeps, through its reference to the same open file, until it lets
/// go. So nobody ever mounts an image that is still mounted somewhere, even in a namespace we cannot see.
pub(super) fn attach(_: &Leave, image: &Utf8Path) -> io::Result<Loop> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    // Another process may take the free device first; some other one is free then.
    for _ in 0..256 {
        #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
        // SAFETY: LOOP_CTL_GET_FREE takes no argument and touches no memory of ours.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        let path = Utf8PathBuf::from(format!("/dev/loop{number}"));
        let device = match open_device(&path, number) {
            Ok(device) => device,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => continue,
            Err(error) => return Err(error),
        };
        let mut file_name = [0; 64];
        for (to, from) in file_name.iter_mut().take(63).zip(image.as_str().bytes()) {
            *to = from;
        }
        let config = LoopConfig {
            fd: file.as_raw_fd().unsigned_abs(),
            block_size: 0,
            device: [0; 3],
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt: [0; 2],
            flags: LOOP_AUTOCLEAR,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
            reserved: [0; 8],
        };
        #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
        // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which lives until the call returns.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
        match done {
            0 => return Ok(Loop { path, _device: device }),
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY) => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "every free loop device was taken by somebody else"))
}

/// Opens the node of a loop device; makes it where nothing populates /dev, as in containers.
fn open_device(path: &Utf8Path, number: u32) -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let device = rustix::fs::makedev(LOOP_MAJOR, number);
            let kind = rustix::fs::FileType::BlockDevice;
            match rustix::fs::mknodat(CWD, path.as_str(), kind, Mode::from_raw_mode(0o660), device) {
                Ok(()) | Err(Errno::EXIST) => open(),
                Err(error) => Err(error.into()),
            }
        }
        other => other,
    }
}

/// Whether nothing holds the image: not mounted anywhere, not bound to a loop device.
pub(super) fn is_released(image: &Utf8Path) -> io::Result<bool> {
    match File::open(image) {
        Ok(file) => match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Mounts the file system of a space with its owners mapped to a range.
pub(super) fn ext4(_: &Leave, device: &Loop, target: &Utf8Path, map: BorrowedFd<'_>) -> io::Result<()> {
    let fs = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", device.path.as_str())?;
    // Deleted files give their blocks back to the node's disk.
    fsconfig_set_flag(&fs, "discard")?;
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)?;
    set_attr(mount.as_fd(), MOUNT_ATTR_IDMAP, 0, Some(map))?;
    place(&mount, target)
}

/// Mounts a read-only view of a template with its owners mapped to a range.
pub(super) fn template(
    _: &Leave,
    rootfs: &Utf8Path,
    target: &Utf8Path,
    map: BorrowedFd<'_>,
) -> io::Result<()> {
    let mount = clone_of(rootfs)?;
    set_attr(mount.as_fd(), MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY, 0, Some(map))?;
    place(&mount, target)
}

/// Mounts a read-only view of a host directory. What runs inside may execute from it even where the directory itself
/// is on a file system mounted `noexec`.
pub(super) fn view(_: &Leave, dir: &Utf8Path, target: &Utf8Path) -> io::Result<()> {
    let mount = clone_of(dir)?;
    let set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    set_attr(mount.as_fd(), set, MOUNT_ATTR_NOEXEC, None)?;
    place(&mount, target)
}

/// Whether the file system under `dir` can be mounted with mapped owners.
pub(super) fn can_map(dir: &Utf8Path, map: BorrowedFd<'_>) -> io::Result<()> {
    let mount = clone_of(dir)?;
    set_attr(mount.as_fd(), MOUNT_ATTR_IDMAP, 0, Some(map))
}

/// Mounts the root a space sees.
pub(super) fn overlay(_: &Leave, lower: &Utf8Path, disk: &Utf8Path, target: &Utf8Path) -> io::Result<()> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", "drowse")?;
    fsconfig_set_string(&fs, "lowerdir", lower.as_str())?;
    fsconfig_set_string(&fs, "upperdir", disk.join("root/upper").as_str())?;
    fsconfig_set_string(&fs, "workdir", disk.join("root/work").as_str())?;
    // An image moves between machines, so the layer must not refer to this machine's copy of the template.
    for (option, value) in [("index", "off"), ("metacopy", "off"), ("redirect_dir", "nofollow")] {
        fsconfig_set_string(&fs, option, value)?;
    }
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)?;
    // Overlayfs falls back to read-only without an error when it cannot prepare its work directory.
    if rustix::fs::fstatvfs(&mount)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "overlayfs mounted itself read-only"));
    }
    place(&mount, target)
}

/// Detaches whatever is mounted at `target`, as often as something is.
pub(super) fn detach(_: &Leave, target: &Utf8Path) -> io::Result<()> {
    for _ in 0..64 {
        match unmount(target.as_str(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point, or not there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "mounts keep appearing"))
}

fn clone_of(dir: &Utf8Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, dir.as_str(), flags)?)
}

fn place(mount: &OwnedFd, target: &Utf8Path) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, target.as_str(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn set_attr(mount: BorrowedFd<'_>, set: u64, clear: u64, map: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let userns_fd = map.map_or(0, |map| u64::from(map.as_raw_fd().unsigned_abs()));
    let attr = MountAttr { set, clear, propagation: 0, userns_fd };
    #[expect(unsafe_code, reason = "no safe wrapper for mount_setattr")]
    // SAFETY: the path is an empty C string, and the kernel reads exactly the size given of a structure that lives
    // until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(size_of::<MountAttr>(), 32);
    }
}
