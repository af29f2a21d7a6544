//! Laws that nobody promised, so that they are broken: what shrinking makes of that.

use super::*;
use crate::sim::{Kind, Line, fleet::scenario};

/// A law over a story: the first line that breaks it.
type Law = fn(&[Line]) -> Option<usize>;

/// Nobody is ever told that a node does not answer.
fn every_node_answers(story: &[Line]) -> Option<usize> {
    story.iter().position(|line| line.kind == Kind::Told && line.text.contains("-> 503 node_"))
}

/// No name ever has a second body, not even after a destroy.
fn a_name_has_one_body_for_ever(story: &[Line]) -> Option<usize> {
    let made = |line: &&Line| line.kind == Kind::Body && line.text.contains(" made: ");
    let mut seen = std::collections::BTreeSet::new();
    story.iter().enumerate().filter(|(_, line)| made(line)).find_map(|(at, line)| {
        let is_new = seen.insert(name(line));
        (!is_new).then_some(at)
    })
}

/// The name that a line about a body, or of what a client was told, is about.
fn name(line: &Line) -> String {
    line.text.split(' ').nth(if line.kind == Kind::Body { 3 } else { 2 }).unwrap_or("").to_owned()
}

/// A run judged by one more law, as if it had ended there.
fn under(law: Law, plan: &Plan) -> Run<()> {
    let mut run = scenario(plan);
    if let Some(at) = law(&run.story) {
        let text = format!("law 99: {}: so says the line above", name(&run.story[at]));
        run.story.truncate(at + 1);
        run.story.push(Line { at_ms: run.story[at].at_ms, kind: Kind::Failed, text: text.clone() });
        run.failures = vec![text];
    }
    run
}

/// The first seed that breaks `law`, shrunk.
fn shrunk(law: Law) -> (Plan, Shrunk) {
    let breaks = |plan: &Plan| under(law, plan).failures.iter().any(|failure| failure.starts_with("law 99"));
    let plan = (1..50).map(Plan::draw).find(breaks).expect("one of fifty seeds breaks it");
    let shrunk = shrink(&plan, |plan| under(law, plan), Budget::default()).expect("it fails");
    (plan, shrunk)
}

fn told(shrunk: &Shrunk) -> String {
    let story = shrunk.story();
    assert!(story.len() <= 30, "a story of {} lines is not read", story.len());
    story.join("\n")
}

#[test]
fn a_failure_that_needs_a_trouble_keeps_that_trouble_and_few_verbs() {
    let (plan, shrunk) = shrunk(every_node_answers);
    let told = told(&shrunk);
    let (troubles, verbs) = (&shrunk.plan.troubles, &shrunk.plan.actions);
    assert_eq!(shrunk.ended_early, None, "{told}");
    assert!((1..=2).contains(&troubles.len()), "{troubles:?} of {}\n{told}", plan.troubles.len());
    assert!((1..=3).contains(&verbs.len()), "{verbs:?} of {}\n{told}", plan.actions.len());
    for cause in ["TROUBLE", "-> 503 node_", "FAILED: law 99"] {
        assert!(told.contains(cause), "{cause} is missing in\n{told}");
    }
}

#[test]
fn a_failure_of_clients_alone_keeps_no_trouble() {
    let (_, shrunk) = shrunk(a_name_has_one_body_for_ever);
    let told = told(&shrunk);
    assert_eq!(shrunk.plan.troubles, [], "{told}");
    assert!(shrunk.plan.actions.len() <= 3, "{:?}\n{told}", shrunk.plan.actions);
    assert_eq!(shrunk.plan.weather, Weather::CALM);
    for cause in ["destroySpace", "removed: ", " made: "] {
        assert!(told.contains(cause), "{cause} is missing in\n{told}");
    }
}

#[test]
fn a_shrunk_plan_fails_the_same_way_from_its_file_and_shrinking_repeats() {
    let (plan, once) = shrunk(a_name_has_one_body_for_ever);
    let read: Plan = serde_json::from_str(&once.plan.json()).expect("what was written is read");
    under(a_name_has_one_body_for_ever, &read).assert_same_story(&once.run);
    let again = shrink(&plan, |plan| under(a_name_has_one_body_for_ever, plan), Budget::default());
    let again = again.expect("it fails");
    assert_eq!((again.plan, again.runs), (once.plan, once.runs));
}

#[test]
fn shrinking_stops_when_its_runs_are_used_up_and_says_so() {
    let plan = (1..50)
        .map(Plan::draw)
        .find(|plan| a_name_has_one_body_for_ever(&scenario(plan).story).is_some())
        .expect("one of fifty seeds makes a name anew");
    let few = Budget { runs: 5, ..Budget::default() };
    let shrunk = shrink(&plan, |plan| under(a_name_has_one_body_for_ever, plan), few).expect("it fails");
    assert_eq!(shrunk.runs, 5);
    assert!(shrunk.ended_early.is_some());
    assert!(shrink(&plan, scenario, few).is_none(), "a plan that breaks nothing has nothing to shrink");
}

#[test]
fn a_law_is_the_same_for_other_names_and_hosts() {
    let one = law("law 1: n1 made body 01a318530d7e4588b548289e6253d8e0 of ada, and n0 has body 2 of it");
    assert_eq!(
        one,
        law("law 1: n2 made body 01a318530d7e4588b548289e6253d8ff of bob, and n1 has body 3 of it")
    );
    assert_eq!(
        law("law 2: getSpace ada was answered 404, and n0 has 01a318530d7e4588b548289e6253d8e0"),
        law("law 2: execCommand eve was answered 404, and n2 has 01a318530d7e4588b548289e6253d8e1")
    );
    assert_ne!(one, law("law 1: n1 reached into body 01a318530d7e4588b548289e6253d8e0, which is not there"));
}
