//! Naming the first of many: a fleet of a thousand nodes must not make an error of a thousand lines.

use drowse_shared::api::Error;

/// Most that a message names.
const IN_WORDS_MAX: usize = 5;
/// Most that an error's details name.
const IN_DETAILS_MAX: usize = 100;

/// The first few, in words, and how many more there are.
pub(crate) fn several(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().saturating_sub(IN_WORDS_MAX);
    let mut words = all.take(IN_WORDS_MAX).collect::<Vec<_>>().join(between);
    if more > 0 {
        words.push_str(&format!("{between}and {more} more"));
    }
    words
}

/// How many of so many an error's details name.
pub(crate) fn named(all: usize) -> usize {
    all.min(IN_DETAILS_MAX)
}

/// Says how many are not named in the details of an error.
pub(crate) fn and_more(error: Error, all: usize) -> Error {
    match all - named(all) {
        0 => error,
        more => error.with("more", more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::api::Code;

    #[test]
    fn a_few_are_all_named_and_of_many_the_first() {
        let all = |n: usize| (1..=n).map(|n| format!("n{n}")).collect::<Vec<_>>();
        assert_eq!(several(all(1).into_iter(), ", "), "n1");
        assert_eq!(several(all(5).into_iter(), ", "), "n1, n2, n3, n4, n5");
        assert_eq!(several(all(1000).into_iter(), "; "), "n1; n2; n3; n4; n5; and 995 more");
        let error = |n| and_more(Error::new(Code::NoCapacity, "none"), n).details;
        assert_eq!((named(100), error(100).len()), (100, 0));
        assert_eq!((named(101), error(101).get("more").cloned()), (100, Some(1.into())));
    }
}
