use std::rc::Rc;

use rustix::process::WaitOptions;

use crate::launcher::control::Control;

/// Collects every child that ended or stopped, orphans included. False once there are no children at all.
pub(crate) fn reap(control: &Rc<Control>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => control.child_changed(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
