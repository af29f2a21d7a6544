use memchr::memmem;
use percent_encoding::percent_decode_str;

/// Longest head of one part.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest boundary the standard allows.
const BOUNDARY_BYTES_MAX: usize = 70;

/// A body in parts that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// The content type names no boundary.
    #[error("multipart/form-data without a boundary")]
    NoBoundary,
    /// It ended before the last boundary.
    #[error("the upload ended early")]
    Cut,
    /// The head of a part cannot be understood.
    #[error("a part's head is malformed")]
    Head,
}

/// What is met in such a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// A part begins.
    Part {
        /// Its name in the form.
        name: Option<String>,
        /// Its file name, as it was written.
        file_name: Option<Vec<u8>>,
    },
    /// Some of its content.
    Data(&'a [u8]),
    /// It is complete.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first boundary.
    Preamble,
    /// Right behind a boundary.
    Boundary,
    Head,
    Content,
    /// Behind the last boundary.
    Epilogue,
}

/// Takes a `multipart/form-data` body apart as it comes, holding no more of it than a boundary or a head is long.
pub(super) struct Form {
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    state: State,
}

impl Form {
    /// For a body of this content type.
    pub(super) fn new(content_type: &str) -> Result<Self, Error> {
        let boundary = parameter(content_type, "boundary");
        let boundary = boundary.filter(|text| (1..=BOUNDARY_BYTES_MAX).contains(&text.len()));
        let boundary = boundary.ok_or(Error::NoBoundary)?;
        // The first boundary may open the body; behind this line end it looks like all others.
        let (delimiter, buffer) = ([b"\r\n--", boundary.as_slice()].concat(), b"\r\n".to_vec());
        Ok(Self { delimiter, buffer, state: State::Preamble })
    }

    /// Takes in a piece and tells what it completes.
    pub(super) fn feed<E: From<Error>>(
        &mut self,
        piece: &[u8],
        mut tell: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.buffer.extend_from_slice(piece);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some(taken) = self.step(rest, &mut tell)? {
            rest = &rest[taken..];
        }
        self.buffer = rest.to_vec();
        Ok(())
    }

    /// The body is over; whether it was whole.
    pub(super) fn finish(&self) -> Result<(), Error> {
        if self.state == State::Epilogue { Ok(()) } else { Err(Error::Cut) }
    }

    /// Takes something off the front; `None` when more is needed.
    fn step<E: From<Error>>(
        &mut self,
        rest: &[u8],
        tell: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        match self.state {
            State::Preamble | State::Content => {
                let found = memmem::find(rest, &self.delimiter);
                let free = found.unwrap_or_else(|| rest.len().saturating_sub(self.delimiter.len() - 1));
                let content = self.state == State::Content;
                if content && free > 0 {
                    tell(Event::Data(&rest[..free]))?;
                }
                if found.is_some() {
                    if content {
                        tell(Event::End)?;
                    }
                    self.state = State::Boundary;
                    return Ok(Some(free + self.delimiter.len()));
                }
                Ok(Some(free).filter(|free| *free > 0))
            }
            State::Boundary => {
                let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                match &rest[padding..] {
                    [b'\r', b'\n', ..] => self.state = State::Head,
                    [b'-', b'-', ..] => self.state = State::Epilogue,
                    [] | [b'\r' | b'-'] if padding < HEAD_BYTES_MAX => return Ok(None),
                    _ => return Err(Error::Head.into()),
                }
                // The line end stays: a head without any line is nothing but the empty line that ends it.
                Ok(Some(padding))
            }
            State::Head => {
                let Some(end) = memmem::find(rest, b"\r\n\r\n") else {
                    return if rest.len() > HEAD_BYTES_MAX { Err(Error::Head.into()) } else { Ok(None) };
                };
                let (name, file_name) = disposition(&rest[..end]);
                tell(Event::Part { name, file_name })?;
                self.state = State::Content;
                Ok(Some(end + 4))
            }
            State::Epilogue => Ok(Some(rest.len()).filter(|length| *length > 0)),
        }
    }
}

/// Name and file name of a part, from the lines of its head.
fn disposition(head: &[u8]) -> (Option<String>, Option<Vec<u8>>) {
    let head = String::from_utf8_lossy(head);
    let line = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let mut values = line.filter(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"));
    let Some((_, value)) = values.next() else { return (None, None) };
    let name = parameter(value, "name").map(|name| String::from_utf8_lossy(&name).into_owned());
    let extended = parameter(value, "filename*").and_then(|text| {
        let text = String::from_utf8(text).ok()?;
        let encoded = text.get(..7).filter(|charset| charset.eq_ignore_ascii_case("utf-8''"));
        encoded.map(|_| percent_decode_str(&text[7..]).collect())
    });
    (name, extended.or_else(|| parameter(value, "filename")))
}

/// A parameter of a header's value, quotes and escapes undone.
fn parameter(value: &str, wanted: &str) -> Option<Vec<u8>> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (text, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().as_bytes().to_vec(), &after[end..])
            }
        };
        if name.trim_matches(|c: char| c == ';' || c.is_ascii_whitespace()).eq_ignore_ascii_case(wanted) {
            return Some(text);
        }
        rest = after;
    }
}

/// The text up to the closing quote, and what follows.
fn unquote(quoted: &str) -> Option<(Vec<u8>, &str)> {
    let mut text = Vec::new();
    let mut bytes = quoted.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((text, &quoted[at + 1..])),
            b'\\' if matches!(bytes.peek(), Some((_, b'"' | b'\\'))) => {
                text.extend(bytes.next().map(|b| b.1));
            }
            byte => text.push(byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Part {
        name: Option<String>,
        file_name: Option<Vec<u8>>,
        content: Vec<u8>,
        whole: bool,
    }

    fn read(body: &[u8], cuts: &[usize]) -> Result<Vec<Part>, Error> {
        let mut form = Form::new("multipart/form-data; charset=x; boundary=\"B b\"")?;
        let mut parts: Vec<Part> = Vec::new();
        let mut from = 0;
        for to in cuts.iter().copied().chain([body.len()]) {
            form.feed(&body[from..to], |event| {
                match event {
                    Event::Part { name, file_name } => {
                        parts.push(Part { name, file_name, ..Part::default() });
                    }
                    Event::Data(data) => parts.last_mut().unwrap().content.extend(data),
                    Event::End => parts.last_mut().unwrap().whole = true,
                }
                Ok::<_, Error>(())
            })?;
            from = to;
        }
        form.finish()?;
        Ok(parts)
    }

    fn part(name: &str, file_name: Option<&str>, content: &[u8]) -> Part {
        let file_name = file_name.map(|name| name.as_bytes().to_vec());
        Part { name: Some(name.to_owned()), file_name, content: content.to_vec(), whole: true }
    }

    #[test]
    fn parts_come_whole_however_they_are_cut() {
        let body = b"hello\r\n--B b  \r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a;b/\\\"c\\\".txt\"\r\n\
            Content-Type: text/plain\r\n\r\none\r\n--B\r\n\r\n--B b\r\ncontent-disposition:form-data;name=x\r\n\r\n\r\n--B b\r\n\
            Content-Disposition: form-data; name=\"file\"; filename=plain; filename*=UTF-8''%C3%BC\r\n\r\n\r\n\r\n--B b--\r\nbye";
        let wanted = [
            part("file", Some("/a;b/\"c\".txt"), b"one\r\n--B\r\n"),
            part("x", None, b""),
            part("file", Some("\u{fc}"), b"\r\n"),
        ];
        for cut in 0..=body.len() {
            assert_eq!(read(body, &[cut]).unwrap(), wanted, "cut at {cut}");
        }
        let everywhere: Vec<usize> = (0..body.len()).collect();
        assert_eq!(read(body, &everywhere).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_form_is_refused() {
        assert_eq!(Form::new("multipart/form-data").err(), Some(Error::NoBoundary));
        assert_eq!(Form::new("multipart/form-data; boundary=").err(), Some(Error::NoBoundary));
        assert_eq!(read(b"", &[]), Err(Error::Cut));
        assert_eq!(read(b"--B b\r\n\r\nabc", &[]), Err(Error::Cut));
        assert_eq!(read(b"--B bx\r\n\r\nabc", &[]), Err(Error::Head));
        let long = [b"--B b\r\n".as_slice(), &[b'x'; HEAD_BYTES_MAX + 1]].concat();
        assert_eq!(read(&long, &[]), Err(Error::Head));
        assert_eq!(read(b"--B b--", &[]), Ok(Vec::new()));
    }
}
