//! Many callers at once: crowds who want one thing, and floods of what does not exist. Real binaries over real sockets.
#![expect(clippy::disallowed_methods, reason = "a black-box test has its own tasks and measures real time")]

mod crowd;
mod flood;
