use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::metadata::{self, Notes};
use crate::users::Names;

/// The protocol's EntryInfo.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    name: String,
    r#type: &'static str,
    path: String,
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "Notes::is_empty")]
    metadata: Notes,
    /// The exact name where `name` could not hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    /// The exact path where `path` could not hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
}

impl Entry {
    /// Describes what is at `path`. A symbolic link is described as what it leads to; a broken one as itself.
    pub(crate) fn describe(path: &Path, names: &Names) -> io::Result<Self> {
        let itself = std::fs::symlink_metadata(path)?;
        let (metadata, target) = if itself.is_symlink() {
            match (std::fs::metadata(path), std::fs::canonicalize(path)) {
                (Ok(metadata), Ok(target)) => (metadata, Some(target)),
                _ => (itself, Some(broken_target(path)?)),
            }
        } else {
            (itself, None)
        };
        let name = path.file_name().unwrap_or(OsStr::new("/"));
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            r#type: file_type(&metadata),
            path: path.to_string_lossy().into_owned(),
            size: metadata.len().to_string(),
            mode: metadata.mode() & 0o777,
            permissions: permissions(metadata.mode()),
            owner: names.owner(metadata.uid()),
            group: names.group(metadata.gid()),
            modified_time: rfc3339(metadata.mtime(), metadata.mtime_nsec()),
            symlink_target: target.map(|target| target.to_string_lossy().into_owned()),
            metadata: if metadata.is_symlink() { Notes::new() } else { metadata::read(path) },
            name_base64: exact(name),
            path_base64: exact(path.as_os_str()),
        })
    }
}

fn exact(text: &OsStr) -> Option<String> {
    text.to_str().is_none().then(|| STANDARD.encode(text.as_bytes()))
}

fn broken_target(path: &Path) -> io::Result<PathBuf> {
    Ok(path.parent().unwrap_or(Path::new("/")).join(std::fs::read_link(path)?))
}

fn file_type(metadata: &Metadata) -> &'static str {
    if metadata.is_file() {
        "FILE_TYPE_FILE"
    } else if metadata.is_dir() {
        "FILE_TYPE_DIRECTORY"
    } else if metadata.is_symlink() {
        "FILE_TYPE_SYMLINK"
    } else {
        "FILE_TYPE_UNSPECIFIED"
    }
}

/// Mode bits as Go prints them.
fn permissions(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => "d",
        libc::S_IFLNK => "L",
        libc::S_IFBLK => "D",
        libc::S_IFIFO => "p",
        libc::S_IFSOCK => "S",
        libc::S_IFCHR => "D",
        _ => "",
    };
    let mut text = kind.to_owned();
    for (bit, letter) in [(libc::S_ISUID, 'u'), (libc::S_ISGID, 'g')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if mode & libc::S_IFMT == libc::S_IFCHR {
        text.push('c');
    }
    if mode & libc::S_ISVTX != 0 {
        text.push('t');
    }
    if text.is_empty() {
        text.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> index) != 0 { letter } else { '-' });
    }
    text
}

/// Seconds since 1970 as the calendar has it, in UTC.
fn rfc3339(seconds: i64, nanoseconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years start in March, so that a leap day is the last of its year; eras are 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if nanoseconds == 0 { format!("{date}Z") } else { format!("{date}.{nanoseconds:09}Z") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339() {
        let cases = [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_399, 5, "2000-02-28T23:59:59.000000005Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (1_709_251_199, 0, "2024-02-29T23:59:59Z"),
            (-1, 0, "1969-12-31T23:59:59Z"),
            (4_102_444_800, 0, "2100-01-01T00:00:00Z"),
        ];
        for (seconds, nanoseconds, text) in cases {
            assert_eq!(rfc3339(seconds, nanoseconds), text);
        }
    }

    #[test]
    fn permissions_are_written_as_go_does() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o010_600, "prw-------"),
        ];
        for (mode, text) in cases {
            assert_eq!(permissions(mode), text);
        }
    }
}
