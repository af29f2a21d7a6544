//! Overrides of libc's `getrandom`, `clock_gettime`, `fsync` and `fdatasync`, for threads that asked for it.
//!
//! Libraries draw randomness behind our back: std for the order of its hash maps, hyper's connection pool through
//! them. And SQLite syncs its files, which a simulated machine takes note of instead. On a simulation's thread these
//! calls answer from the seed, from simulated time and from the simulated disk; every other thread of the process
//! reaches the kernel. Only test binaries link this crate.
#![expect(unsafe_code, reason = "symbols that replace libc's can only be defined in unsafe code")]

use std::cell::{Cell, RefCell};

use super::{cache, rng::Rng};

/// The wall clock at the start of every simulation: 2027-01-15T08:00:00Z.
pub(super) const EPOCH_SECONDS: i64 = 1_800_000_000;

thread_local! {
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
    static ELAPSED_NS: Cell<u64> = const { Cell::new(0) };
    static RANDOM: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// From now on this thread draws from `seed` and lives in simulated time.
pub(super) fn enter(seed: u64) {
    RANDOM.set(Some(Rng::new(seed)));
    SIMULATED.set(true);
}

/// Moves this thread's clocks.
pub(super) fn tick(elapsed_ns: u64) {
    ELAPSED_NS.set(elapsed_ns);
}

/// libc's `getrandom`.
///
/// # Safety
/// As for the system call: `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, flags: u32) -> isize {
    if !SIMULATED.get() {
        // SAFETY: the arguments go to the system call as the caller gave them.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    }
    // SAFETY: the caller promises `length` writable bytes at `buffer`.
    let out = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    RANDOM.with_borrow_mut(|random| random.get_or_insert_with(|| Rng::new(0)).fill(out));
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// libc's `clock_gettime`.
///
/// # Safety
/// As for the system call: `out` must be valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, out: *mut libc::timespec) -> i32 {
    if !SIMULATED.get() {
        // SAFETY: the arguments go to the system call as the caller gave them.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) as i32 };
    }
    let elapsed = ELAPSED_NS.get();
    let base = if clock == libc::CLOCK_REALTIME { EPOCH_SECONDS } else { 1 };
    let seconds = base + i64::try_from(elapsed / 1_000_000_000).unwrap_or(0);
    let nanoseconds = i64::try_from(elapsed % 1_000_000_000).unwrap_or(0);
    // SAFETY: the caller promises that `out` may be written.
    unsafe { out.write(libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds }) };
    0
}

/// libc's `fsync`.
///
/// # Safety
/// As for the system call, which asks for nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: i32) -> i32 {
    if SIMULATED.get() && cache::sync(fd) {
        return 0;
    }
    // SAFETY: the argument goes to the system call as the caller gave it.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as i32 }
}

/// libc's `fdatasync`.
///
/// # Safety
/// As for the system call, which asks for nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: i32) -> i32 {
    if SIMULATED.get() && cache::sync(fd) {
        return 0;
    }
    // SAFETY: the argument goes to the system call as the caller gave it.
    unsafe { libc::syscall(libc::SYS_fdatasync, fd) as i32 }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_types,
        clippy::disallowed_methods,
        reason = "what the daemons may not use is what this must tame"
    )]
    use super::*;
    use std::{collections::HashMap, thread, time::SystemTime};

    fn on_a_fresh_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(work).join().expect("the work does not panic")
    }

    fn order() -> Vec<u32> {
        (0..64).map(|n| (n, ())).collect::<HashMap<u32, ()>>().into_keys().collect()
    }

    #[test]
    fn the_override_is_linked_and_reaches_only_threads_that_entered() {
        let seeded = |seed| on_a_fresh_thread(move || (enter(seed), order()).1);
        assert_eq!(seeded(7), seeded(7), "std takes its hash keys from the seed");
        assert_ne!(seeded(7), seeded(8));
        assert_ne!(on_a_fresh_thread(order), on_a_fresh_thread(order), "other threads reach the kernel");

        let simulated = on_a_fresh_thread(|| {
            enter(1);
            tick(2_500_000_000);
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970")
        });
        assert_eq!(simulated.as_millis(), 1_800_000_002_500);
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        assert_ne!(real.as_secs() / 3600, simulated.as_secs() / 3600);
    }
}
