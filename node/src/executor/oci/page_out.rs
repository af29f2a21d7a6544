//! The memory of what is suspended goes to swap, so that the host has it back while nobody uses it.
//!
//! Nothing here changes what a space is: the kernel brings each page back when it is touched. So this holds no lock of the
//! space, and whoever wakes it waits for nothing; what was under way ends at its next look.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::fd::{AsRawFd, OwnedFd},
};

use camino::Utf8Path;
use drowse_shared::id::SpaceId;
use tokio_util::sync::CancellationToken;

use super::{
    super::Result,
    cgroup::Reclaim,
    disk::failed,
    host::{Host, hold},
};

/// Between two looks whether it is to end.
const PIECE_BYTES: usize = 8 << 20;
const MADV_PAGEOUT: libc::c_int = 21;

/// Whether the kernel has anywhere to put memory.
pub(super) fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| has_room(&table))
}

fn has_room(table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let mut numbers = line.split_whitespace().skip(2).map(|word| word.parse::<u64>().unwrap_or(0));
        matches!((numbers.next(), numbers.next()), (Some(size), Some(used)) if used < size)
    })
}

/// Has the memory of a suspended workload written out; answers by how many bytes it shrank.
pub(super) fn page_out(host: &Host, id: SpaceId, enough: &CancellationToken) -> Result<u64> {
    let dir = host.paths.body(id).dir;
    let at = |what| failed(what, &dir);
    let asleep = || !enough.is_cancelled() && host.cgroups.is_told_to_freeze(id).unwrap_or(false);
    if !has_swap() || !asleep() {
        return Ok(0);
    }
    let before = host.cgroups.work_bytes(id).map_err(at("measure the space"))?;
    match host.cgroups.reclaim(id).map_err(at("find the cgroup"))? {
        Reclaim::Group(mut group) => {
            while asleep() && group.piece(PIECE_BYTES).map_err(at("reclaim memory"))? {}
        }
        Reclaim::EachProcess => {
            for pid in host.cgroups.pids(id, "work").map_err(at("read the cgroup"))? {
                // Held first and found in the cgroup again after: never somebody else's.
                if let Some(held) = hold(pid).map_err(at("hold a process"))?
                    && host.cgroups.pids(id, "work").map_err(at("read the cgroup"))?.contains(&pid)
                {
                    process(pid, &held, &asleep);
                }
            }
        }
    }
    let after = host.cgroups.work_bytes(id).map_err(at("measure the space"))?;
    Ok(before.saturating_sub(after))
}

/// Pages out what is a process's own. What cannot be is skipped: it stays where it is.
fn process(pid: i32, held: &OwnedFd, asleep: &impl Fn() -> bool) {
    let Ok(maps) = File::open(Utf8Path::new("/proc").join(pid.to_string()).join("maps")) else { return };
    let mut maps = Heads(BufReader::new(maps));
    while let Ok(Some(head)) = maps.next() {
        if !asleep() {
            return;
        }
        let Some((start, end)) = own(&head) else { continue };
        let mut from = start;
        while from < end {
            if !asleep() {
                return;
            }
            let length = (end - from).min(PIECE_BYTES);
            if advise(held, from, length).is_err() {
                break;
            }
            from += length;
        }
    }
}

/// Bytes of a line of a table of maps that say what the map is; after them comes a path, which is the space's to choose
/// and to make long.
const HEAD_BYTES: usize = 96;

/// The heads of lines, however long these are.
struct Heads<R>(R);

impl<R: BufRead> Heads<R> {
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        loop {
            let piece = self.0.fill_buf()?;
            if piece.is_empty() {
                break;
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let line = &piece[..end.unwrap_or(piece.len())];
            head.extend(line.iter().take(HEAD_BYTES - head.len()));
            let read = end.map_or(piece.len(), |end| end + 1);
            self.0.consume(read);
            if end.is_some() {
                return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
            }
        }
        Ok((!head.is_empty()).then(|| String::from_utf8_lossy(&head).into_owned()))
    }
}

/// The range of a map that only this process has: what it wrote. Files that are shared with other spaces stay in memory.
fn own(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (range, access, inode, name) = (words.next()?, words.next()?, words.nth(2)?, words.next());
    let ours = access.ends_with('p') && (access.contains('w') || inode == "0");
    if !ours || name.is_some_and(|name| name.starts_with("[v")) {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

fn advise(held: &OwnedFd, start: usize, length: usize) -> io::Result<()> {
    let range = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: length };
    #[expect(unsafe_code, reason = "no library has this call")]
    // SAFETY: the vector lives until the call returns; the range is of another process, and the advice changes no content.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            held.as_raw_fd(),
            &raw const range,
            1usize,
            MADV_PAGEOUT,
            0u32,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_process_wrote_itself_is_paged_out() {
        let cases = [
            ("00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/python3", None),
            (
                "00651000-00652000 rw-p 00051000 08:02 173521 /usr/bin/python3",
                Some((0x0065_1000, 0x0065_2000)),
            ),
            ("00e03000-00e24000 rw-p 00000000 00:00 0 [heap]", Some((0x00e0_3000, 0x00e2_4000))),
            ("7f0000000000-7f0000001000 rw-p 00000000 00:00 0", Some((0x7f00_0000_0000, 0x7f00_0000_1000))),
            ("7f0000001000-7f0000002000 rw-s 00000000 00:05 7 /dev/shm/x", None),
            ("7fff0000-7fff1000 r--p 00000000 00:00 0 [vvar]", None),
            ("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(own(line), expected, "{line}");
        }
    }

    #[test]
    fn a_space_that_gives_its_files_long_names_costs_no_memory() {
        let long = "x".repeat(1 << 20);
        let table = format!(
            "1000-2000 r-xp 0 08:02 7 /{long}\n3000-4000 rw-p 0 00:00 0\n5000-6000 rw-p 0 08:02 9 /{long}"
        );
        let mut heads = Heads(BufReader::new(table.as_bytes()));
        let mut found = Vec::new();
        while let Some(head) = heads.next().expect("readable") {
            assert!(head.len() <= HEAD_BYTES);
            found.push(own(&head));
        }
        assert_eq!(found, [None, Some((0x3000, 0x4000)), Some((0x5000, 0x6000))]);
        let mut not_text = Heads(BufReader::new(&b"1000-2000 rw-p 0 08:02 7 /\xff\n"[..]));
        assert_eq!(not_text.next().expect("readable").as_deref().and_then(own), Some((0x1000, 0x2000)));
    }

    #[test]
    fn swap_that_is_full_is_none() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_room(head));
        assert!(!has_room(&format!("{head}/dev/zram0 partition\t1048572\t1048572\t-2\n")));
        assert!(has_room(&format!("{head}/dev/zram0 partition\t1048572\t1048572\t-2\n/swap file 10 0 -3\n")));
    }
}
