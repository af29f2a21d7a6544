use std::time::Duration;

use drowse_shared::{
    api::{
        Code,
        spaces::{ListSpaces, SpaceList},
    },
    name::SpaceRef,
};

use crate::{client::Client, failure::Failure};

/// Most names that are compared.
const NAMES_MAX: usize = 10_000;
/// Most time spent on a hint.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most names a hint shows.
const SHOWN: usize = 3;

/// Adds the closest names to a failure that says there is no such space.
pub(super) async fn named(failure: Failure, space: &SpaceRef, client: &Client) -> Failure {
    if failure.code() != Some(&Code::SpaceNotFound) {
        return failure;
    }
    let wanted = space.to_string();
    let names = tokio::time::timeout(PATIENCE, names(client)).await.unwrap_or_default();
    failure.says(sentence(&wanted, &closest(&wanted, &names), matches!(space, SpaceRef::Name(_))))
}

/// The one sentence about a name that is not there.
pub(super) fn sentence(wanted: &str, closest: &[&str], may_create: bool) -> String {
    let mut text = format!("no space named {wanted:?}.");
    if !closest.is_empty() {
        text.push_str(&format!(" Closest: {}.", closest.join(", ")));
    }
    if may_create {
        text.push_str(&format!(" `drowse space acquire {}` would create it.", shell_word(wanted)));
    }
    text
}

/// The names of the fleet, or as many as may be compared.
pub(super) async fn names(client: &Client) -> Vec<String> {
    let mut names = Vec::new();
    let mut request = ListSpaces { limit: Some(1000), ..ListSpaces::default() };
    while names.len() < NAMES_MAX {
        let Ok(page) = client.call::<SpaceList>("listSpaces", &request).await else { break };
        names.extend(page.spaces.iter().map(|space| space.name.to_string()));
        match page.next_cursor {
            Some(cursor) => request.cursor = Some(cursor),
            None => break,
        }
    }
    names
}

/// Names that `wanted` is likely a slip of, nearest first.
pub(super) fn closest<'a>(wanted: &str, names: &'a [String]) -> Vec<&'a str> {
    let allowed = (wanted.chars().count() / 3).max(1) + 1;
    let mut near: Vec<(usize, &str)> = names
        .iter()
        .map(|name| (distance(wanted, name), name.as_str()))
        .filter(|(far, name)| *far < wanted.chars().count() && (*far <= allowed || name.starts_with(wanted)))
        .collect();
    near.sort_unstable();
    near.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}

/// How many slips apart two names are: a letter more, less, other, or two swapped.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let other = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (above[j] + 1).min(row[j - 1] + 1).min(above[j - 1] + other);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

/// A name as a shell reads it back.
pub(super) fn shell_word(name: &str) -> String {
    let safe = |c: char| c.is_alphanumeric() || "-_./@:".contains(c);
    if name.chars().all(safe) && !name.starts_with('-') {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted() {
        let cases = [
            ("shpo", "shop", 1),
            ("shop", "shop", 0),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
            ("ü", "u", 1),
        ];
        for (a, b, far) in cases {
            assert_eq!(distance(a, b), far, "{a} {b}");
        }
    }

    #[test]
    fn only_likely_names_are_shown() {
        let names = ["shop", "ship", "build-agent", "x"].map(str::to_owned);
        assert_eq!(closest("shpo", &names), ["shop", "ship"]);
        assert_eq!(closest("build", &names), Vec::<&str>::new());
        assert_eq!(closest("build-agnt", &names), ["build-agent"]);
        assert_eq!(closest("y", &names), Vec::<&str>::new());
    }

    #[test]
    fn the_sentence_names_the_next_step() {
        assert_eq!(
            sentence("shpo", &["shop"], true),
            "no space named \"shpo\". Closest: shop. `drowse space acquire shpo` would create it."
        );
        assert_eq!(
            sentence("it's", &[], true),
            r#"no space named "it's". `drowse space acquire 'it'\''s'` would create it."#
        );
    }
}
