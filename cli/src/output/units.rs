use std::time::Duration;

/// A size: `14 MB`, `2.1 GB`, in powers of 1024 as the settings read them: `14 MiB`.
pub(crate) fn bytes(size: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = size;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        whole >>= 10;
        unit += 1;
    }
    // At most 2^53 of the unit below are left, and only one digit is shown.
    let share = size as f64 / (1u64 << (10 * unit)) as f64;
    if unit == 0 || share >= 9.95 || share.fract() < 0.05 {
        format!("{share:.0} {}", UNITS[unit])
    } else {
        format!("{share:.1} {}", UNITS[unit])
    }
}

/// A length of time with its two largest units: `2 d 23 h`, `9 m`, `42 s`.
pub(crate) fn span(seconds: u64) -> String {
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let Some(first) = parts.iter().position(|(number, _)| *number > 0) else {
        return "0 s".to_owned();
    };
    let shown = &parts[first..parts.len().min(first + 2)];
    // Seconds beside minutes would tick; nobody plans by them.
    let shown = if shown[0].1 == "m" && shown[0].0 >= 2 { &shown[..1] } else { shown };
    let words: Vec<String> =
        shown.iter().filter(|(n, _)| *n > 0).map(|(number, unit)| format!("{number} {unit}")).collect();
    words.join(" ")
}

/// What something took: `0.4 ms`, `46 ms`, `1.2 s`, `2m 41s`.
pub(crate) fn took(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms if ms < 60_000.0 => format!("{:.1} s", ms / 1000.0),
        _ => format!("{}m {}s", duration.as_secs() / 60, duration.as_secs() % 60),
    }
}

/// A rate.
pub(crate) fn rate(size: u64, duration: Duration) -> String {
    let seconds = duration.as_secs_f64().max(0.001);
    format!("{}/s", bytes((size as f64 / seconds) as u64))
}

/// `1 space`, `3 spaces`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_say_them() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (14 << 20, "14 MiB"),
            (2 << 30, "2 GiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (size, text) in sizes {
            assert_eq!(bytes(size), text);
        }
        let spans =
            [(0, "0 s"), (42, "42 s"), (90, "1 m 30 s"), (570, "9 m"), (3600, "1 h"), (255_600, "2 d 23 h")];
        for (seconds, text) in spans {
            assert_eq!(span(seconds), text);
        }
        let times = [(400, "0.4 ms"), (46_000, "46 ms"), (1_234_000, "1.2 s"), (161_000_000, "2m 41s")];
        for (us, text) in times {
            assert_eq!(took(Duration::from_micros(us)), text);
        }
        assert_eq!((count(1, "space"), count(2, "node")), ("1 space".to_owned(), "2 nodes".to_owned()));
    }
}
