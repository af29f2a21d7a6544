//! Where a request ends, as the standard has it and in no other way. Whatever could be read in two ways, by us in one and by
//! a proxy before us or an app behind us in the other, is refused here, before the server's parser sees it. Pure.

/// Longest line of a head, and of what stands around chunks.
const LINE_BYTES_MAX: usize = super::serve::HEAD_BYTES_MAX;
/// Digits of the largest chunk.
const CHUNK_DIGITS_MAX: usize = 16;

/// Why a request has no one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A line that ends otherwise than in CR LF.
    #[error("every line of a request ends in CR LF, and neither stands anywhere else in it")]
    Line,
    /// A line that never ends.
    #[error("a line of the request is too long")]
    Long,
    /// The first line.
    #[error(
        "a request begins with a method, a target and HTTP/1.1 with one space between; the target is a path, or a URL with \
         http:// or https://"
    )]
    Begin,
    /// A tunnel to anywhere.
    #[error("CONNECT is not served here")]
    Connect,
    /// A header line.
    #[error(
        "a header is a name, a colon right behind it and a value without control characters, all on one line"
    )]
    Field,
    /// No `Host`.
    #[error("the request has no Host header")]
    NoHost,
    /// Several of them.
    #[error("the request has two Host headers; send one")]
    Hosts,
    /// Several lengths.
    #[error("the request has two Content-Length headers; send one")]
    Lengths,
    /// A length that is no number.
    #[error("Content-Length is a number in plain digits")]
    Length,
    /// A transfer coding besides `chunked`, or twice.
    #[error("the only Transfer-Encoding that is read is one `chunked`, in HTTP/1.1")]
    Coding,
    /// Two kinds of length.
    #[error("the request has both Content-Length and Transfer-Encoding; send one of them")]
    Both,
    /// A chunk.
    #[error("a chunk is its size in hexadecimal digits, CR LF, as many bytes, CR LF")]
    Chunk,
    /// A header that comes too late.
    #[error("Host, Content-Length and Transfer-Encoding cannot come behind the body")]
    Trailer,
    /// Bytes behind a request for another protocol.
    #[error("a request for another protocol is answered before anything may follow it")]
    Early,
}

impl Fault {
    /// Whether a failure was caused by one.
    pub fn caused(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            // An I/O error shows not itself but the source of what it holds.
            let held = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let held = held.and_then(|held| held.downcast_ref::<Self>());
            if let Some(fault) = held.or_else(|| error.downcast_ref()) {
                return Some(*fault);
            }
            cause = error.source();
        }
        None
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a request.
    Between,
    Fields,
    /// So much of a body of known length is to come.
    Body(u64),
    ChunkSize,
    /// So much of a chunk is to come.
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// Behind a request for another protocol that is not answered.
    Held,
    /// Another protocol.
    Tunnel,
    /// In a head that is longer than the server reads: it refuses that (431), whatever follows.
    Beyond,
}

/// What the head that is being read has said.
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    is_1_1: bool,
    has_host: bool,
    length: Option<u64>,
    chunked: bool,
    upgrades: bool,
}

/// How far a connection has been read.
#[derive(Debug)]
pub(super) struct Framing {
    state: State,
    head: Head,
    /// The part of a line that came before.
    line: Vec<u8>,
}

impl Framing {
    /// Before the first request.
    pub(super) fn new() -> Self {
        Self { state: State::Between, head: Head::default(), line: Vec::new() }
    }

    /// Reads on.
    ///
    /// # Errors
    /// The fault, and how many of the bytes come before the message or chunk it lies in.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(), (usize, Fault)> {
        let mut sound = 0;
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match self.state {
                State::Tunnel | State::Beyond => return Ok(()),
                State::Held => return Err((sound, Fault::Early)),
                State::Body(left) => at += self.skip(left, rest, State::Body),
                State::Chunk(left) => at += self.skip(left, rest, State::Chunk),
                _ => at += self.line(rest).map_err(|fault| (sound, fault))?,
            }
            // What asks for another protocol counts only once it is known that nothing follows.
            if !self.head.upgrades && !matches!(self.state, State::Fields | State::Trailers) {
                sound = at;
            }
        }
        Ok(())
    }

    /// Whether the rest of a body is to come.
    pub(super) fn is_in_body(&self) -> bool {
        !matches!(self.state, State::Between | State::Fields | State::Held | State::Beyond)
    }

    /// A request for another protocol was answered.
    pub(super) fn settle(&mut self, granted: bool) {
        self.head.upgrades = false;
        if granted {
            self.state = State::Tunnel;
        } else if self.state == State::Held {
            self.state = State::Between;
        }
    }

    /// Passes over bytes that are nobody's but the reader's.
    fn skip(&mut self, left: u64, rest: &[u8], state: fn(u64) -> State) -> usize {
        let here = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
        let left = left - here as u64;
        self.state = state(left);
        match self.state {
            State::Body(0) => self.end(),
            State::Chunk(0) => self.state = State::ChunkEnd,
            _ => {}
        }
        here
    }

    /// Reads a line, or as much of it as is there.
    fn line(&mut self, rest: &[u8]) -> Result<usize, Fault> {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let part = &rest[..end.unwrap_or(rest.len())];
        if self.line.len() + part.len() > LINE_BYTES_MAX {
            if !matches!(self.state, State::Between | State::Fields) {
                return Err(Fault::Long);
            }
            (self.state, self.line) = (State::Beyond, Vec::new());
            return Ok(rest.len());
        }
        if end.is_none() {
            self.line.extend_from_slice(part);
        } else if self.line.is_empty() {
            self.whole(part)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(part);
            self.whole(&line)?;
        }
        Ok(end.map_or(part.len(), |end| end + 1))
    }

    fn whole(&mut self, line: &[u8]) -> Result<(), Fault> {
        let line = line.strip_suffix(b"\r").filter(|line| !line.contains(&b'\r')).ok_or(Fault::Line)?;
        match (self.state, line) {
            // Some clients end a body with a line too many.
            (State::Between, []) => {}
            (State::Between, line) => {
                self.head = Head { is_1_1: begin(line)?, ..Head::default() };
                self.state = State::Fields;
            }
            (State::Fields, []) => self.headed()?,
            (State::Fields, line) => self.head.field(line)?,
            (State::ChunkSize, line) => {
                self.state = match chunk_size(line)? {
                    0 => State::Trailers,
                    size => State::Chunk(size),
                };
            }
            (State::ChunkEnd, []) => self.state = State::ChunkSize,
            (State::Trailers, []) => self.end(),
            (State::Trailers, line) => {
                let mut trailer = Head::default();
                let said = trailer.field(line);
                let framing = trailer.has_host || trailer.length.is_some() || trailer.chunked;
                match said {
                    Err(Fault::Field) => return Err(Fault::Field),
                    Err(_) => return Err(Fault::Trailer),
                    Ok(()) if framing => return Err(Fault::Trailer),
                    Ok(()) => {}
                }
            }
            _ => return Err(Fault::Chunk),
        }
        Ok(())
    }

    /// The head is complete.
    fn headed(&mut self) -> Result<(), Fault> {
        let Head { is_1_1, has_host, length, chunked, .. } = self.head;
        if is_1_1 && !has_host {
            return Err(Fault::NoHost);
        }
        match (length, chunked) {
            (Some(_), true) => return Err(Fault::Both),
            (None, true) if !is_1_1 => return Err(Fault::Coding),
            (None, true) => self.state = State::ChunkSize,
            (Some(left @ 1..), false) => self.state = State::Body(left),
            (None | Some(0), false) => self.end(),
        }
        Ok(())
    }

    /// The request is complete.
    fn end(&mut self) {
        self.state = if self.head.upgrades { State::Held } else { State::Between };
    }
}

impl Head {
    fn field(&mut self, line: &[u8]) -> Result<(), Fault> {
        let colon = line.iter().position(|byte| *byte == b':').ok_or(Fault::Field)?;
        let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
        let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        if !is_token(name) || !value.iter().all(is_text) {
            return Err(Fault::Field);
        }
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            4 if is("host") && std::mem::replace(&mut self.has_host, true) => return Err(Fault::Hosts),
            7 if is("upgrade") => self.upgrades = true,
            14 if is("content-length") => {
                let digits = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
                let length = digits.and_then(|text| text.parse().ok()).ok_or(Fault::Length)?;
                if self.length.replace(length).is_some() {
                    return Err(Fault::Lengths);
                }
            }
            17 if is("transfer-encoding") => {
                let twice = std::mem::replace(&mut self.chunked, true);
                if twice || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Fault::Coding);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the first line of a request says HTTP/1.1 rather than 1.0.
fn begin(line: &[u8]) -> Result<bool, Fault> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Fault::Begin);
    };
    if method == b"CONNECT" {
        return Err(Fault::Connect);
    }
    let starts = |with: &str| {
        target.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let is_target = starts("/") || starts("http://") || starts("https://");
    let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f && *byte != b'#';
    if !is_token(method) || !is_target || !target.iter().all(is_plain) {
        return Err(Fault::Begin);
    }
    match version {
        b"HTTP/1.1" => Ok(true),
        b"HTTP/1.0" => Ok(false),
        _ => Err(Fault::Begin),
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Fault> {
    let end = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    let is_size = (1..=CHUNK_DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let is_plain = extension.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control());
    let text = std::str::from_utf8(digits).ok().filter(|_| is_size && is_plain);
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or(Fault::Chunk)
}

/// A value without the white space around it, of which the standard knows two.
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_token(name: &[u8]) -> bool {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(inside)
}

#[cfg(test)]
mod tests;
