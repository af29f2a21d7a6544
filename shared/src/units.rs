//! Durations and sizes as people write them in settings: `500ms`, `5s`, `10m`, `2h`; `512MiB`, `10GiB`.

use std::time::Duration;

/// Why a text is no duration or size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a duration.
    #[error("{0:?} is not a duration; write it like 500ms, 5s, 10m, 2h or 3d")]
    Duration(String),
    /// Not a size.
    #[error("{0:?} is not a size; write it like 512MiB, 10GiB or a number of bytes")]
    Size(String),
}

/// Reads a duration. A bare number is seconds and may have a fraction.
///
/// # Errors
/// When it is not one, or is negative.
pub fn duration(text: &str) -> Result<Duration, Error> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(Error::Duration(text.to_owned())),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|n| Duration::try_from_secs_f64(n * seconds).ok())
        .ok_or_else(|| Error::Duration(text.to_owned()))
}

/// Reads a size in bytes.
///
/// # Errors
/// When it is not one.
pub fn bytes(text: &str) -> Result<u64, Error> {
    let (number, unit) = split(text);
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        _ => return Err(Error::Size(text.to_owned())),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(|| Error::Size(text.to_owned()))
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_read_as_people_write_them() {
        let durations = [("500ms", 500), ("5", 5000), ("0.2s", 200), ("10m", 600_000), ("2h", 7_200_000)];
        for (text, ms) in durations {
            assert_eq!(duration(text).map(|d| d.as_millis()), Ok(ms), "{text}");
        }
        for bad in ["", "x", "-1s", "5 parsecs", "1e400"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        for (text, size) in [("5", 5), ("512MiB", 512 << 20), ("10 GiB", 10 << 30)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for bad in ["", "-1", "1GB", "99999999TiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
