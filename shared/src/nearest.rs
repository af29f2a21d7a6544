//! What was probably meant, when something was misspelt.

/// Longest text that is compared, in bytes.
const BYTES_MAX: usize = 64;

/// The candidate that is nearest to `asked` without regard to case, if not more than half of it differs.
pub fn nearest<'a>(asked: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if asked.len() > BYTES_MAX {
        return None;
    }
    let asked = asked.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (edits(&asked, &candidate.to_lowercase()), candidate))
        .min()
        .filter(|(edits, candidate)| *edits <= candidate.len() / 2)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be added, dropped or replaced.
pub fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let words = ["acquireSpace", "getSpace", "listSpaces"];
        let cases = [
            ("aquirespace", Some("acquireSpace")),
            ("listSpace", Some("listSpaces")),
            ("", None),
            ("zzzzzzzz", None),
        ];
        for (asked, meant) in cases {
            assert_eq!(nearest(asked, words), meant, "{asked}");
        }
        assert_eq!(nearest(&"a".repeat(65), words), None);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!((edits("shpo", "shop"), edits("", "ab"), edits("ä", "a")), (2, 2, 1));
    }
}
