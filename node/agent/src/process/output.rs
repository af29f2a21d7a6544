use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::events;

/// How far the slowest watcher may be behind before the command's pipes are no longer read.
const BEHIND_BYTES_MAX: usize = 64 * 1024;
/// Output is given out in pieces of at most this size.
const EVENT_BYTES_MAX: usize = 32 * 1024;
/// Small writes that follow one another are kept as one piece of up to this size.
const PIECE_BYTES_MERGED: usize = 4 * 1024;

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Both, of a command that has a terminal.
    Pty,
}

const CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Pty];

/// A place in the output as a whole, between two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Cursor {
    piece: u64,
    offset: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Piece {
    /// Pieces of all channels are numbered in the order in which they came.
    number: u64,
    #[serde(with = "base64_bytes")]
    bytes: Vec<u8>,
    /// How much of its beginning is gone.
    gone: usize,
}

impl Piece {
    /// How much of it lies before `cursor`.
    fn before(&self, cursor: Cursor) -> usize {
        match cursor.piece.cmp(&self.number) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => cursor.offset.min(self.bytes.len()),
            std::cmp::Ordering::Greater => self.bytes.len(),
        }
    }

    /// What of it comes at or after `cursor` and is still there.
    fn after(&self, cursor: Cursor) -> &[u8] {
        &self.bytes[self.before(cursor).max(self.gone)..]
    }
}

/// The kept part of one channel.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Log {
    pieces: VecDeque<Piece>,
    kept: usize,
    written: u64,
}

impl Log {
    /// The first piece that holds something at or after `cursor`.
    fn next(&self, cursor: Cursor) -> Option<&Piece> {
        let from = self.pieces.partition_point(|piece| piece.number < cursor.piece);
        self.pieces.range(from..).find(|piece| !piece.after(cursor).is_empty())
    }

    fn bytes_after(&self, cursor: Cursor) -> usize {
        let from = self.pieces.partition_point(|piece| piece.number < cursor.piece);
        self.pieces.range(from..).map(|piece| piece.after(cursor).len()).sum()
    }
}

#[derive(Serialize, Deserialize)]
struct Watcher {
    id: u64,
    cursor: Cursor,
    #[serde(skip)]
    waker: Option<Waker>,
}

/// Output of one command: the part that is kept, and who watches it from where.
///
/// Every watcher has a place in the one log. What a watcher has not been given stays, and the command is held back while
/// one is far behind. Beyond that, a tagged command keeps its tail, so that whoever joins by tag gets it, however often;
/// an untagged one keeps what came while nobody watched, and the next watcher takes it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Output {
    tagged: bool,
    logs: [Log; 3],
    next_piece: u64,
    /// Up to here some watcher was given everything.
    given: Cursor,
    dropped_bytes: u64,
    watchers: Vec<Watcher>,
    next_id: u64,
    /// Told when a watcher took something or left.
    #[serde(skip)]
    pub(super) taken: std::rc::Rc<Notify>,
}

/// How much a command has written, or a place in that, per channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    /// Bytes on standard output.
    pub(crate) stdout: u64,
    /// Bytes on standard error.
    pub(crate) stderr: u64,
    /// Bytes on the terminal.
    pub(crate) pty: u64,
}

impl Output {
    /// No output yet.
    pub(crate) fn new(tagged: bool) -> Self {
        Self {
            tagged,
            logs: std::array::from_fn(|_| Log::default()),
            next_piece: 0,
            given: Cursor::default(),
            dropped_bytes: 0,
            watchers: Vec::new(),
            next_id: 0,
            taken: std::rc::Rc::default(),
        }
    }

    /// Takes in a piece of output. Keeps at most `limit` bytes of the channel, and whatever a watcher still needs.
    pub(crate) fn push(&mut self, channel: Channel, bytes: &[u8], limit: usize) {
        let log = &mut self.logs[channel as usize];
        log.written += bytes.len() as u64;
        log.kept += bytes.len();
        match log.pieces.back_mut() {
            Some(last)
                if last.number + 1 == self.next_piece
                    && last.bytes.len() + bytes.len() <= PIECE_BYTES_MERGED =>
            {
                last.bytes.extend_from_slice(bytes);
            }
            _ => {
                log.pieces.push_back(Piece { number: self.next_piece, bytes: bytes.to_vec(), gone: 0 });
                self.next_piece += 1;
            }
        }
        self.trim(channel, limit);
        self.wake();
    }

    /// Whether more may come: no watcher is far behind.
    pub(crate) fn has_room(&self) -> bool {
        self.slowest().is_none_or(|slowest| {
            self.logs.iter().map(|log| log.bytes_after(slowest)).sum::<usize>() < BEHIND_BYTES_MAX
        })
    }

    /// Everyone who waits is to look again.
    pub(crate) fn wake(&mut self) {
        for watcher in &mut self.watchers {
            if let Some(waker) = watcher.waker.take() {
                waker.wake();
            }
        }
    }

    /// Adds a watcher: from what is kept if nobody else watches or `all` is asked for, else from now on.
    pub(crate) fn watch(&mut self, all: bool) -> u64 {
        let cursor = if all || self.watchers.is_empty() { Cursor::default() } else { self.now() };
        self.next_id += 1;
        self.watchers.push(Watcher { id: self.next_id, cursor, waker: None });
        self.next_id
    }

    /// Where the next byte a watcher is given stands in each channel.
    pub(crate) fn position(&self, watcher: u64) -> Written {
        let cursor = self.watchers.iter().find(|other| other.id == watcher).map(|other| other.cursor);
        let at = |channel: Channel| {
            let log = &self.logs[channel as usize];
            log.written - cursor.map_or(0, |cursor| log.bytes_after(cursor)) as u64
        };
        Written { stdout: at(Channel::Stdout), stderr: at(Channel::Stderr), pty: at(Channel::Pty) }
    }

    /// The next event for a watcher; pending when it has been given all there is.
    pub(crate) fn poll_event(&mut self, watcher: u64, cx: &mut Context<'_>) -> Poll<Bytes> {
        let Some(watcher) = self.watchers.iter_mut().find(|other| other.id == watcher) else {
            return Poll::Pending;
        };
        let found = CHANNELS.iter().filter_map(|channel| {
            self.logs[*channel as usize].next(watcher.cursor).map(|piece| (*channel, piece))
        });
        let Some((channel, piece)) = found.min_by_key(|(_, piece)| piece.number) else {
            watcher.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let from = piece.before(watcher.cursor).max(piece.gone);
        let to = piece.bytes.len().min(from + EVENT_BYTES_MAX);
        let event = events::data(channel, &piece.bytes[from..to]);
        watcher.cursor = Cursor { piece: piece.number, offset: to };
        self.given = self.given.max(watcher.cursor);
        for channel in CHANNELS {
            self.trim(channel, usize::MAX);
        }
        self.taken.notify_waiters();
        Poll::Ready(event)
    }

    /// Removes a watcher that left.
    pub(crate) fn unwatch(&mut self, id: u64) {
        self.watchers.retain(|watcher| watcher.id != id);
        self.taken.notify_waiters();
    }

    /// Of the watchers another agent had, only these came along.
    pub(super) fn keep_watchers(&mut self, ids: &[u64]) {
        self.watchers.retain(|watcher| ids.contains(&watcher.id));
    }

    /// How much is kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.logs.iter().map(|log| log.kept).sum()
    }

    /// Whether somebody watches.
    pub(super) fn is_watched(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Lets go of what is kept and tells how much of it no watcher was given.
    pub(super) fn forget(&mut self) -> u64 {
        let lost: usize = self.logs.iter().map(|log| log.bytes_after(self.given)).sum();
        for log in &mut self.logs {
            log.pieces = VecDeque::new();
            log.kept = 0;
        }
        lost as u64
    }

    /// How much ever came.
    pub(crate) fn written(&self) -> Written {
        let [stdout, stderr, pty] = [&self.logs[0], &self.logs[1], &self.logs[2]].map(|log| log.written);
        Written { stdout, stderr, pty }
    }

    /// Bytes no watcher was given and that are gone.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    fn slowest(&self) -> Option<Cursor> {
        self.watchers.iter().map(|watcher| watcher.cursor).min()
    }

    /// Behind everything there is.
    fn now(&self) -> Cursor {
        let newest = self.logs.iter().filter_map(|log| log.pieces.back()).max_by_key(|piece| piece.number);
        newest.map_or(Cursor { piece: self.next_piece, offset: 0 }, |piece| Cursor {
            piece: piece.number,
            offset: piece.bytes.len(),
        })
    }

    /// Lets the oldest of a channel go, as far as nobody needs it.
    fn trim(&mut self, channel: Channel, limit: usize) {
        let (slowest, given) = (self.slowest(), self.given);
        let log = &mut self.logs[channel as usize];
        while let Some(oldest) = log.pieces.front_mut() {
            let excess = oldest.gone.saturating_add(log.kept.saturating_sub(limit));
            let wanted = if self.tagged { excess } else { excess.max(oldest.before(given)) };
            let free = slowest.map_or(oldest.bytes.len(), |slowest| oldest.before(slowest));
            let gone = wanted.min(free);
            if gone <= oldest.gone {
                break;
            }
            self.dropped_bytes += gone.saturating_sub(oldest.before(given).max(oldest.gone)) as u64;
            log.kept -= gone - oldest.gone;
            oldest.gone = gone;
            if gone < oldest.bytes.len() {
                break;
            }
            log.pieces.pop_front();
        }
    }
}

/// Bytes as text, for states that are JSON.
mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(output: &mut Output, watcher: u64) -> Option<Bytes> {
        match output.poll_event(watcher, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        }
    }

    #[test]
    fn unwatched_output_keeps_its_tail_and_counts_the_rest() {
        let mut output = Output::new(false);
        output.push(Channel::Stdout, b"0123", 6);
        output.push(Channel::Stdout, b"4567", 6);
        assert_eq!(output.dropped_bytes(), 2);
        output.push(Channel::Stderr, b"0123456789", 6);
        assert_eq!(output.dropped_bytes(), 6);
        let first = output.watch(false);
        assert_eq!(output.position(first), Written { stdout: 2, stderr: 4, pty: 0 });
        assert_eq!(take(&mut output, first), Some(events::data(Channel::Stdout, b"234567")));
        assert_eq!(take(&mut output, first), Some(events::data(Channel::Stderr, b"456789")));
        assert_eq!(take(&mut output, first), None);
        output.unwatch(first);
        assert_eq!(output.kept_bytes(), 0, "an untagged tail is handed out once");
        assert_eq!(output.dropped_bytes(), 6);
    }

    #[test]
    fn a_tagged_tail_is_kept_beside_a_watcher() {
        let mut output = Output::new(true);
        let first = output.watch(false);
        output.push(Channel::Stdout, b"abcdef", 4);
        assert_eq!(take(&mut output, first), Some(events::data(Channel::Stdout, b"abcdef")));
        output.unwatch(first);
        output.push(Channel::Stdout, b"g", 4);
        assert_eq!(output.dropped_bytes(), 0, "the watcher was given what is gone");
        for _ in 0..2 {
            let next = output.watch(false);
            assert_eq!(take(&mut output, next), Some(events::data(Channel::Stdout, b"defg")));
            output.unwatch(next);
        }
        output.push(Channel::Stdout, b"hijklm", 4);
        assert_eq!(output.dropped_bytes(), 2);
    }

    #[test]
    fn what_a_watcher_left_behind_waits_for_the_next() {
        let mut output = Output::new(false);
        let first = output.watch(false);
        output.push(Channel::Stdout, &[b'x'; 5000], 4);
        output.push(Channel::Stderr, b"y", 4);
        assert!(take(&mut output, first).is_some());
        output.unwatch(first);
        let second = output.watch(false);
        assert_eq!(take(&mut output, second), Some(events::data(Channel::Stderr, b"y")));
        assert_eq!((take(&mut output, second), output.dropped_bytes()), (None, 0));
    }

    #[test]
    fn the_slowest_watcher_holds_the_command_back_and_loses_nothing() {
        let mut output = Output::new(false);
        let (slow, fast) = (output.watch(false), output.watch(false));
        for number in 0..16_u8 {
            assert!(output.has_room());
            output.push(Channel::Stdout, &[number; 4096], 1);
            assert!(take(&mut output, fast).is_some());
        }
        assert!(!output.has_room());
        let late = output.watch(false);
        assert_eq!(take(&mut output, late), None, "a second watcher starts from now");
        let all = output.watch(true);
        assert_eq!(output.position(all), Written::default());
        for number in 0..16_u8 {
            assert_eq!(take(&mut output, slow), Some(events::data(Channel::Stdout, &[number; 4096])));
        }
        output.unwatch(all);
        assert!(output.has_room());
    }

    #[test]
    fn channels_come_in_the_order_they_were_written() {
        let mut output = Output::new(false);
        let watcher = output.watch(false);
        for (channel, text) in
            [(Channel::Stdout, "a"), (Channel::Stderr, "b"), (Channel::Stdout, "c"), (Channel::Stdout, "d")]
        {
            output.push(channel, text.as_bytes(), 100);
        }
        let events: Vec<_> = std::iter::from_fn(|| take(&mut output, watcher)).collect();
        let wanted = [(Channel::Stdout, "a"), (Channel::Stderr, "b"), (Channel::Stdout, "cd")];
        assert_eq!(events, wanted.map(|(channel, text)| events::data(channel, text.as_bytes())));
    }
}
