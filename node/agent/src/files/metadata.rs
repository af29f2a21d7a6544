use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use http::{HeaderMap, StatusCode};
use rustix::fs::XattrFlags;

use super::http::Refusal;

/// Where the file system keeps it, as E2B does.
const NAMESPACE: &str = "user.e2b.";
const HEADER_PREFIX: &str = "x-metadata-";
const KEY_BYTES_MAX: usize = 246;
const BYTES_MAX: usize = 4096;

/// What a client noted about a file.
pub(super) type Notes = BTreeMap<String, String>;

/// From the headers of an upload.
pub(super) fn from_headers(headers: &HeaderMap) -> Result<Notes, Refusal> {
    let bad = |words: String| Refusal::new(StatusCode::BAD_REQUEST, words);
    let mut metadata = Notes::new();
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        let value = headers.get(name).map(http::HeaderValue::as_bytes).unwrap_or_default();
        if !value.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
            return Err(bad(format!("metadata {key:?}: printable ASCII only")));
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(bad(format!("metadata keys have 1 to {KEY_BYTES_MAX} bytes")));
        }
        metadata.insert(key.to_owned(), String::from_utf8_lossy(value).into_owned());
    }
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > BYTES_MAX {
        return Err(bad(format!("metadata exceeds {BYTES_MAX} bytes")));
    }
    Ok(metadata)
}

/// Of the file at `path`, links followed; nothing where it cannot be read.
pub(super) fn read(path: &Path) -> Notes {
    let keys = read_growing(|buffer| rustix::fs::listxattr(path, buffer)).unwrap_or_default();
    let keys = keys.split(|byte| *byte == 0).filter_map(|name| {
        std::str::from_utf8(name).ok()?.strip_prefix(NAMESPACE).filter(|key| !key.is_empty())
    });
    let pairs = keys.filter_map(|key| {
        let name = format!("{NAMESPACE}{key}");
        let value = read_growing(|buffer| rustix::fs::getxattr(path, name.as_str(), buffer)).ok()?;
        Some((key.to_owned(), String::from_utf8_lossy(&value).into_owned()))
    });
    pairs.collect()
}

/// Gives it to a file that has none.
pub(super) fn write(file: &File, metadata: &Notes) -> io::Result<()> {
    for (key, value) in metadata {
        let name = format!("{NAMESPACE}{key}");
        rustix::fs::fsetxattr(file, name.as_str(), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// Takes away from a file what it had.
pub(super) fn clear(file: &File, path: &Path) -> io::Result<()> {
    for key in read(path).into_keys() {
        let name = format!("{NAMESPACE}{key}");
        match rustix::fs::fremovexattr(file, name.as_str()) {
            Ok(()) | Err(rustix::io::Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Asks with a small buffer first: most files have nothing.
fn read_growing(mut ask: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    for size in [512, 64 * 1024] {
        let mut buffer = vec![0; size];
        match ask(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(rustix::io::Errno::RANGE) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(rustix::io::Errno::RANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_become_metadata() {
        let headers = |pairs: &[(&str, &[u8])]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (
                    http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    http::HeaderValue::from_bytes(value).unwrap(),
                )
            });
            from_headers(&pairs.collect())
        };
        let good = headers(&[("X-Metadata-Author", b"me ~"), ("x-other", b"x")]).unwrap();
        assert_eq!(good, Notes::from([("author".to_owned(), "me ~".to_owned())]));
        assert!(headers(&[("x-metadata-a", b"\xff")]).is_err());
        assert!(headers(&[("x-metadata-", b"a")]).is_err());
        assert!(headers(&[(&format!("x-metadata-{}", "k".repeat(247)), b"a")]).is_err());
        assert!(headers(&[("x-metadata-a", &[b'v'; 4096])]).is_err());
        assert!(headers(&[("x-metadata-a", &[b'v'; 4095])]).is_ok());
    }
}
