use std::collections::BTreeSet;

use super::{Kind, Line};

/// Most lines of a brief story.
const LINES_MAX: usize = 30;
/// Where a line of a brief story is cut, in characters.
const CHARACTERS_MAX: usize = 180;
/// Causes told before everything else.
const CAUSES_MAX: usize = 12;
/// Failures told of one that came with others.
const FAILURES_MAX: usize = 3;
/// Digits of an id, and how many of them a brief story keeps: the last ones, which differ.
const ID_DIGITS: (usize, usize) = (32, 4);

/// How much a line has to do with the failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// It is the failure.
    Failure,
    /// It may be a cause: a trouble, or what happened to the body in question.
    Cause,
    /// It belongs to it: other news of hosts and links, what clients asked and were told of the space in question.
    Story,
    /// It is about another space.
    Other,
}

/// The story up to its first failure in at most 30 lines: what broke, what clients asked and were told, what became of
/// bodies, and as much as fits of what the daemons said about the space in question. The first line counts what is
/// left out.
pub fn brief(story: &[Line]) -> Vec<String> {
    let Some(first) = story.iter().position(|line| line.kind == Kind::Failed) else { return Vec::new() };
    let with_it =
        story[first..].iter().take_while(|line| line.kind == Kind::Failed).take(FAILURES_MAX).count();
    let story = &story[..first + with_it];
    let people =
        story.iter().filter(|line| line.kind == Kind::Asked).filter_map(|line| word(line, 0)).collect();
    let names = subjects(story, &story[first].text);
    let mut told: Vec<(usize, Weight)> = story
        .iter()
        .enumerate()
        .filter_map(|(at, line)| weigh(line, &names, &people).map(|weight| (at, weight)))
        .collect();
    told = without_prompt_questions(story, &told);
    let wanted = told.len();
    told.sort_by_key(|(at, weight)| (*weight, std::cmp::Reverse(*at)));
    // Too many causes explain nothing: the older ones wait for room like everything else.
    for (_, weight) in told.iter_mut().filter(|(_, weight)| *weight == Weight::Cause).skip(CAUSES_MAX) {
        *weight = Weight::Story;
    }
    told.sort_by_key(|(at, weight)| (*weight, std::cmp::Reverse(*at)));
    let fits = if wanted > LINES_MAX { LINES_MAX - 1 } else { LINES_MAX };
    told.truncate(fits);
    let mut kept: Vec<usize> = told.into_iter().map(|(at, _)| at).collect();
    let left_out = wanted.saturating_sub(kept.len());
    let wires = wires(story, &names, &people);
    kept.extend(
        wires.into_iter().rev().take(LINES_MAX.saturating_sub(kept.len() + usize::from(left_out > 0))),
    );
    kept.sort_unstable();
    let mut lines = Vec::new();
    if left_out > 0 {
        lines.push(format!("         ({left_out} more lines of this kind are in the full story)"));
    }
    lines.extend(kept.into_iter().map(|at| shorten(&story[at])));
    lines
}

/// What is said after size and hash of what was sent.
pub(in crate::sim) fn words(gist: &str) -> &str {
    gist.splitn(3, ' ').nth(2).unwrap_or("")
}

fn word(line: &Line, at: usize) -> Option<&str> {
    line.text.split(' ').nth(at)
}

/// The name of the space that a line of a client or of a body is about.
fn name_of(line: &Line) -> Option<&str> {
    match line.kind {
        // c1 asks g: acquireSpace ada
        Kind::Asked => word(line, 4),
        // c1: acquireSpace ada at g -> …
        Kind::Told => word(line, 2),
        // n1 BODY of ada made: …
        Kind::Body => word(line, 3),
        _ => None,
    }
}

/// The names a failure is about: those it says, else those of the bodies it says, else all.
fn subjects<'a>(story: &'a [Line], failure: &'a str) -> BTreeSet<&'a str> {
    let all: BTreeSet<&str> = story.iter().filter_map(name_of).collect();
    let says: BTreeSet<&str> = failure.split(|c: char| !c.is_alphanumeric()).collect();
    let named: BTreeSet<&str> = all.intersection(&says).copied().collect();
    if !named.is_empty() {
        return named;
    }
    let of_body = |line: &&Line| {
        line.kind == Kind::Body && line.text.rsplit(' ').next().is_some_and(|id| says.contains(id))
    };
    let named: BTreeSet<&str> = story.iter().filter(of_body).filter_map(name_of).collect();
    if named.is_empty() { all } else { named }
}

fn weigh(line: &Line, names: &BTreeSet<&str>, people: &BTreeSet<&str>) -> Option<Weight> {
    match line.kind {
        Kind::Failed => Some(Weight::Failure),
        Kind::Wire | Kind::Log => None,
        Kind::Happens => {
            let who = word(line, 0).unwrap_or("");
            // How every host began is no news.
            let begins = line.text.contains(" STARTS life 1,") || people.contains(who);
            let is_trouble = who == "TROUBLE";
            (!begins).then_some(if is_trouble { Weight::Cause } else { Weight::Story })
        }
        Kind::Asked | Kind::Told | Kind::Body => {
            let name = name_of(line).unwrap_or("");
            // What an operator asks is about nodes, and its body begins like this.
            let is_it = names.contains(name) || name.starts_with('{');
            let weight = if line.kind == Kind::Body { Weight::Cause } else { Weight::Story };
            Some(if is_it { weight } else { Weight::Other })
        }
    }
}

/// A question whose answer is the next line goes without saying.
fn without_prompt_questions(story: &[Line], told: &[(usize, Weight)]) -> Vec<(usize, Weight)> {
    let is_answered = |at: usize, next: Option<&(usize, Weight)>| {
        story[at].kind == Kind::Asked
            && next.is_some_and(|(next, _)| {
                let who = word(&story[at], 0).unwrap_or("");
                story[*next].kind == Kind::Told
                    && story[*next].text.strip_prefix(who).is_some_and(|rest| rest.starts_with(':'))
            })
    };
    let next = told.iter().skip(1).map(Some).chain([None]);
    told.iter().zip(next).filter(|((at, _), next)| !is_answered(*at, *next)).map(|(line, _)| *line).collect()
}

/// What daemons sent each other about these names, and the answers to it, in order.
fn wires(story: &[Line], names: &BTreeSet<&str>, people: &BTreeSet<&str>) -> Vec<usize> {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let mut awaited: BTreeSet<(String, &str)> = BTreeSet::new();
    let mut kept = Vec::new();
    for (at, line) in story.iter().enumerate().filter(|(_, line)| line.kind == Kind::Wire) {
        let mut words = line.text.split(' ');
        let (Some(link), Some(connection), Some("send")) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Some((from, to)) = link.split_once('>') else { continue };
        if people.contains(from) || people.contains(to) {
            continue;
        }
        let answers = awaited.remove(&(link.to_owned(), connection));
        if answers || quoted.iter().any(|name| line.text.contains(name)) {
            kept.push(at);
        }
        if !answers && kept.last() == Some(&at) {
            awaited.insert((format!("{to}>{from}"), connection));
        }
    }
    kept
}

/// A line without what only the full story needs.
fn shorten(line: &Line) -> String {
    let text = match line.text.split_once(" send ") {
        Some((who, gist)) if line.kind == Kind::Wire => format!("{who} {}", words(gist)),
        _ => line.text.clone(),
    };
    let line = Line { text: short_ids(&text), ..line.clone() }.to_string();
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

fn short_ids(text: &str) -> String {
    let (digits, kept) = ID_DIGITS;
    let mut out = String::new();
    let mut run = String::new();
    for c in text.chars().map(Some).chain([None]) {
        match c {
            Some(c) if c.is_ascii_hexdigit() => run.push(c),
            other => {
                if run.len() == digits {
                    out.push('~');
                    out.push_str(&run[digits - kept..]);
                } else {
                    out.push_str(&run);
                }
                run.clear();
                out.extend(other);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at_ms: u64, kind: Kind, text: &str) -> Line {
        Line { at_ms, kind, text: text.to_owned() }
    }

    #[test]
    fn a_brief_story_keeps_the_cause_and_drops_the_rest() {
        let id = "01a318530d7e4588b548289e6253d8e0";
        let mut story = vec![
            line(0, Kind::Happens, "g STARTS life 1, clock off by 3 ms"),
            line(0, Kind::Happens, "TROUBLE of long ago"),
            line(1, Kind::Asked, "c1 asks g: acquireSpace ada"),
            line(2, Kind::Wire, "c1>g c1 send 20B 0216ce05 POST /acquireSpace HTTP/1.1 {\"name\":\"ada\"}"),
            line(3, Kind::Wire, "g>n1 c2 send 20B 0216ce05 POST /lookup HTTP/1.1 {\"space\":\"ada\"}"),
            line(4, Kind::Wire, "n1>g c2 send 20B 0216ce05 HTTP/1.1 200 OK {\"answer\":\"no\"}"),
            line(5, Kind::Body, &format!("n1 BODY of ada made: {id}")),
            line(6, Kind::Told, "c1: acquireSpace ada at g -> 200"),
            line(7, Kind::Asked, "c1 asks g: getSpace ada"),
            line(8, Kind::Log, "n1 INFO: nothing"),
            line(9, Kind::Told, "c1: getSpace ada at g -> 200"),
            line(10, Kind::Happens, "n1 FALLS (Power)"),
            line(11, Kind::Failed, &format!("law 2: {id} is gone")),
            line(12, Kind::Happens, "what comes later"),
        ];
        let told = brief(&story);
        let expected = [
            "       0 TROUBLE of long ago",
            "       1 c1 asks g: acquireSpace ada",
            "       3 g>n1 c2 POST /lookup HTTP/1.1 {\"space\":\"ada\"}",
            "       4 n1>g c2 HTTP/1.1 200 OK {\"answer\":\"no\"}",
            "       5 n1 BODY of ada made: ~d8e0",
            "       6 c1: acquireSpace ada at g -> 200",
            "       9 c1: getSpace ada at g -> 200",
            "      10 n1 FALLS (Power)",
            "      11 FAILED: law 2: ~d8e0 is gone",
        ];
        assert_eq!(told, expected);

        for at in 0..100 {
            story.insert(3, line(at, Kind::Told, "c2: getSpace ada at g -> 404"));
        }
        let told = brief(&story);
        assert_eq!(told.len(), LINES_MAX);
        assert!(told[0].contains("more lines"), "{}", told[0]);
        for line in ["FAILED", "FALLS", "BODY of ada", "TROUBLE of long ago"] {
            assert!(told.iter().any(|told| told.contains(line)), "{line} belongs to it");
        }
        assert_eq!(brief(&story[..50]), [""; 0], "nothing failed");
    }
}
