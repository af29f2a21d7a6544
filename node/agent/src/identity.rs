use std::io;
use std::marker::PhantomData;

use rustix::thread::set_thread_groups;

use crate::sys;
use crate::users::User;

/// While it lives, this thread's file access is that of another user. Never held across an await.
///
/// The kernel keeps these credentials per thread, and moving the file system uid away from 0 also drops the
/// capabilities that would override permissions; moving it back restores them.
pub(crate) struct Identity {
    acting: bool,
    /// Credentials belong to the thread that set them.
    not_send: PhantomData<*const ()>,
}

impl Identity {
    /// Acts as `user`. Root needs no change.
    pub(crate) fn enter(user: &User) -> io::Result<Self> {
        Self::enter_ids(user.uid, user.gid, &user.groups)
    }

    /// Acts as a numeric identity.
    pub(crate) fn enter_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<Self> {
        if uid == 0 {
            return Ok(Self { acting: false, not_send: PhantomData });
        }
        let entered = Self { acting: true, not_send: PhantomData };
        let groups: Vec<_> = groups.iter().map(|gid| rustix::thread::Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)?;
        sys::set_fs_identity(uid, gid)?;
        Ok(entered)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        if !self.acting {
            return;
        }
        let restored = sys::set_fs_identity(0, 0).and_then(|()| Ok(set_thread_groups(&[])?));
        if restored.is_err() {
            // A thread with a stranger's credentials must never serve again; without them nothing here works.
            std::process::abort();
        }
    }
}
