use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::events;

/// Events that may wait for one watcher; the pipes are not read while it is full.
const WATCHER_QUEUE: usize = 4;
/// Kept output is replayed in pieces of this size.
const REPLAY_PIECE_BYTES: usize = 32 * 1024;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What a watcher is sent.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// More will come.
    Event(Bytes),
    /// The end event and the end of the stream.
    Last(Bytes),
}

/// The tail of one channel.
#[derive(Debug, Default)]
struct Ring {
    bytes: VecDeque<u8>,
    /// How many of the newest bytes no watcher was given.
    undelivered: usize,
    /// Bytes that no watcher was given and that are gone.
    dropped_bytes: u64,
}

impl Ring {
    fn push(&mut self, bytes: &[u8], delivered: bool, limit: usize) {
        if !delivered {
            self.undelivered += bytes.len();
        }
        let skipped = bytes.len().saturating_sub(limit);
        let kept = &bytes[skipped..];
        let evicted = (self.bytes.len() + kept.len()).saturating_sub(limit);
        self.bytes.drain(..evicted.min(self.bytes.len()));
        if self.bytes.capacity() < self.bytes.len() + kept.len() {
            let wanted = (2 * self.bytes.capacity()).clamp(self.bytes.len() + kept.len(), limit);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend(kept);
        let lost = self.undelivered.saturating_sub(self.bytes.len());
        self.undelivered -= lost;
        self.dropped_bytes += lost as u64;
    }

    fn replay(&mut self, channel: Channel, events: &mut VecDeque<Bytes>) {
        let pieces = self.bytes.make_contiguous().chunks(REPLAY_PIECE_BYTES);
        events.extend(pieces.map(|piece| events::data(channel, piece)));
    }
}

struct Watcher {
    id: u64,
    sender: mpsc::Sender<Item>,
}

/// Output of one command: who watches it, and its tail for who comes later.
///
/// With a tag the tail is always kept, so that whoever joins by tag gets it, however often. Without, only what came
/// while nobody watched is kept, and the next watcher takes it.
pub(crate) struct Output {
    tagged: bool,
    stdout: Ring,
    stderr: Ring,
    /// All that ever came, per channel.
    written: Written,
    watchers: Vec<Watcher>,
    next_id: u64,
}

/// How much a command has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Bytes on standard output.
    pub(crate) stdout: u64,
    /// Bytes on standard error.
    pub(crate) stderr: u64,
}

impl Output {
    /// No output yet.
    pub(crate) fn new(tagged: bool) -> Self {
        Self {
            tagged,
            stdout: Ring::default(),
            stderr: Ring::default(),
            written: Written::default(),
            watchers: Vec::new(),
            next_id: 0,
        }
    }

    /// Takes note of a piece of output and tells whom to send it to. Keeps at most `limit` bytes.
    pub(crate) fn note(&mut self, channel: Channel, bytes: &[u8], limit: usize) -> Vec<mpsc::Sender<Item>> {
        let senders = self.senders();
        match channel {
            Channel::Stdout => self.written.stdout += bytes.len() as u64,
            Channel::Stderr => self.written.stderr += bytes.len() as u64,
        }
        if self.tagged || senders.is_empty() {
            self.ring(channel).push(bytes, !senders.is_empty(), limit);
        }
        senders
    }

    /// Everyone who watches now.
    pub(crate) fn senders(&mut self) -> Vec<mpsc::Sender<Item>> {
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        self.watchers.iter().map(|watcher| watcher.sender.clone()).collect()
    }

    /// Adds a watcher; the first of them is given the kept tail.
    pub(crate) fn watch(&mut self) -> (u64, VecDeque<Bytes>, mpsc::Receiver<Item>) {
        let replay = if self.senders().is_empty() { self.replay() } else { VecDeque::new() };
        let (sender, receiver) = mpsc::channel(WATCHER_QUEUE);
        self.next_id += 1;
        self.watchers.push(Watcher { id: self.next_id, sender });
        (self.next_id, replay, receiver)
    }

    /// The kept tail as events, stdout first.
    pub(crate) fn replay(&mut self) -> VecDeque<Bytes> {
        let mut events = VecDeque::new();
        for channel in [Channel::Stdout, Channel::Stderr] {
            let tagged = self.tagged;
            let ring = self.ring(channel);
            ring.replay(channel, &mut events);
            ring.undelivered = 0;
            if !tagged {
                ring.bytes = VecDeque::new();
            }
        }
        events
    }

    /// How much is kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.stdout.bytes.len() + self.stderr.bytes.len()
    }

    /// Lets go of the kept tail and tells how much of it no watcher was given.
    pub(super) fn forget(&mut self) -> u64 {
        let rings = [std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr)];
        rings.iter().map(|ring| ring.undelivered as u64).sum()
    }

    /// Removes a watcher that left.
    pub(crate) fn unwatch(&mut self, id: u64) {
        self.watchers.retain(|watcher| watcher.id != id);
    }

    /// How much ever came.
    pub(crate) fn written(&self) -> Written {
        self.written
    }

    /// Bytes no watcher was given and that are gone.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.stdout.dropped_bytes + self.stderr.dropped_bytes
    }

    fn ring(&mut self, channel: Channel) -> &mut Ring {
        match channel {
            Channel::Stdout => &mut self.stdout,
            Channel::Stderr => &mut self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwatched_output_keeps_its_tail_and_counts_the_rest() {
        let mut output = Output::new(false);
        output.note(Channel::Stdout, b"0123", 6);
        output.note(Channel::Stdout, b"4567", 6);
        assert_eq!(output.dropped_bytes(), 2);
        output.note(Channel::Stderr, b"0123456789", 6);
        assert_eq!(output.dropped_bytes(), 6);
        let (_, replay, _receiver) = output.watch();
        assert_eq!(
            replay,
            [events::data(Channel::Stdout, b"234567"), events::data(Channel::Stderr, b"456789")]
        );
        assert_eq!(output.note(Channel::Stdout, b"x", 6).len(), 1);
        assert!(output.replay().is_empty(), "an untagged tail is handed out once");
    }

    #[test]
    fn a_tagged_tail_is_kept_beside_a_watcher() {
        let mut output = Output::new(true);
        let (id, replay, receiver) = output.watch();
        assert!(replay.is_empty());
        output.note(Channel::Stdout, b"abcdef", 4);
        assert_eq!(output.dropped_bytes(), 0, "the watcher was given all of it");
        drop(receiver);
        output.unwatch(id);
        output.note(Channel::Stdout, b"g", 4);
        for _ in 0..2 {
            assert_eq!(output.watch().1, [events::data(Channel::Stdout, b"defg")]);
        }
        output.note(Channel::Stdout, b"hijklm", 4);
        assert_eq!(output.dropped_bytes(), 2);
    }
}
