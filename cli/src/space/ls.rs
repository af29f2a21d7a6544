use std::collections::BTreeSet;

use clap::builder::PossibleValuesParser;
use drowse_shared::{
    api::spaces::{ListSpaces, Metadata, Order, PAGE_MAX, Sort, Space, SpaceList, State},
    seams::Env,
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    args::Context,
    failure::{Exit, Outcome},
    output::{
        self,
        table::{Table, Tone},
        units::{count, span},
    },
};

/// `drowse space ls`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only spaces whose name begins so
    prefix: Option<String>,
    /// Only spaces in this state; may be given several times
    #[arg(long, value_name = "STATE", value_parser = words(State::ALL.map(State::as_str)))]
    in_state: Vec<String>,
    /// Only spaces with this note; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::exec::pair)]
    meta: Vec<(String, String)>,
    /// What the list is in order of
    #[arg(long, value_name = "SORT", default_value = "name", value_parser = words(Sort::ALL.map(Sort::as_str)))]
    sort: String,
    /// Which end comes first: asc is the smallest or the oldest
    #[arg(long, value_name = "ORDER", default_value = "asc", value_parser = words(Order::ALL.map(Order::as_str)))]
    order: String,
    /// At most this many
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// All of them, page by page
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

fn words<const N: usize>(words: [&'static str; N]) -> PossibleValuesParser {
    PossibleValuesParser::new(words)
}

/// Lists.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let states: Vec<State> = args.in_state.iter().filter_map(|word| State::read(word)).collect();
    let mut request = ListSpaces {
        states: (!states.is_empty()).then_some(states),
        metadata: (!args.meta.is_empty()).then(|| args.meta.into_iter().collect::<Metadata>()),
        name_prefix: args.prefix,
        // What is the default stays unsaid.
        sort: Sort::read(&args.sort).filter(|sort| *sort != Sort::default()),
        order: Order::read(&args.order).filter(|order| *order != Order::default()),
        limit: None,
        cursor: None,
    };
    let mut left = if args.all { u64::MAX } else { args.limit };
    let mut shown = Shown::new(context.json);
    loop {
        request.limit = Some(u32::try_from(left).unwrap_or(PAGE_MAX).min(PAGE_MAX));
        let page: SpaceList = context.client.call("listSpaces", &request).await?;
        left = left.saturating_sub(page.spaces.len() as u64);
        request.cursor = page.next_cursor.clone();
        let read_on = shown.page(page)?;
        if !read_on || request.cursor.is_none() || left == 0 {
            return shown.end();
        }
    }
}

/// What was shown so far.
struct Shown {
    table: Table,
    now: Timestamp,
    spaces: usize,
    nodes: BTreeSet<String>,
    /// Kept whole only where the answer is one JSON value.
    json: Option<Vec<Space>>,
    last: SpaceList,
}

impl Shown {
    fn new(json: bool) -> Self {
        Self {
            table: Table::new(&["NAME", "STATE", "NODE", "AWAKE BECAUSE", "NEXT STEP", "LAST USED"]),
            now: Env::real().clock.wall(),
            spaces: 0,
            nodes: BTreeSet::new(),
            json: json.then(Vec::new),
            last: SpaceList { spaces: Vec::new(), next_cursor: None, silent: Vec::new() },
        }
    }

    /// Shows one page. Answers whether anybody still reads.
    fn page(&mut self, page: SpaceList) -> Outcome<bool> {
        self.spaces += page.spaces.len();
        self.last.next_cursor = page.next_cursor;
        for silent in page.silent {
            if !self.last.silent.iter().any(|known| known.node == silent.node) {
                self.last.silent.push(silent);
            }
        }
        if let Some(all) = &mut self.json {
            all.extend(page.spaces);
            return Ok(true);
        }
        for space in &page.spaces {
            self.nodes.insert(space.node.to_string());
            row(&mut self.table, space, self.now);
        }
        output::page(&self.table.text())
    }

    fn end(mut self) -> Outcome<Exit> {
        if let Some(all) = self.json {
            self.last.spaces = all;
            output::json(&serde_json::json!(self.last))?;
            return Ok(Exit::OK);
        }
        if output::on_terminal() {
            let (spaces, nodes) = (count(self.spaces, "space"), count(self.nodes.len(), "node"));
            output::line(&format!("{spaces} on {nodes}"))?;
        }
        if self.last.next_cursor.is_some() {
            eprintln!("note: more spaces follow these {}; --all lists every one", self.spaces);
        }
        for silent in &self.last.silent {
            eprintln!(
                "warning: {} did not answer ({}); its spaces are missing here, not gone",
                silent.node, silent.reason
            );
        }
        Ok(Exit::OK)
    }
}

fn row(table: &mut Table, space: &Space, now: Timestamp) {
    let (state, tone) = state_of(space);
    let because = match (&space.awake, &space.broken) {
        (_, Some(broken)) => broken.message.clone(),
        (Some(awake), None) => awake.because.clone(),
        (None, None) => String::new(),
    };
    table.row(vec![
        (space.name.to_string(), Tone::Plain),
        (state, tone),
        (space.node.to_string(), Tone::Plain),
        (because, Tone::Plain),
        (next_step(space, now), Tone::Plain),
        (ago(space.last_active_at, now), Tone::Plain),
    ]);
}

/// The state, and how it looks.
pub(super) fn state_of(space: &Space) -> (String, Tone) {
    let tone = match space.state {
        State::Active => Tone::Green,
        State::Broken => Tone::Red,
        _ => Tone::Blue,
    };
    if space.unresponsive {
        return (format!("{} (does not answer)", space.state), Tone::Red);
    }
    (space.state.to_string(), tone)
}

/// The next step down and when: `freeze 9 m`. Empty when there is none by itself.
pub(super) fn next_step(space: &Space, now: Timestamp) -> String {
    let step = match (&space.awake, space.state) {
        (Some(awake), _) => awake.next_step.zip(awake.at),
        // Both count from the last use.
        (None, State::Frozen) => space
            .policy
            .stop_after_seconds
            .and_then(|seconds| i64::try_from(seconds).ok())
            .and_then(|seconds| space.last_active_at.checked_add(SignedDuration::from_secs(seconds)).ok())
            .map(|at| (State::Stopped, at)),
        (None, _) => None,
    };
    let Some((step, at)) = step else { return String::new() };
    let verb = match step {
        State::Frozen => "freeze",
        State::Stopped => "stop",
        State::Hibernated => "hibernate",
        other => other.as_str(),
    };
    match seconds(now, at) {
        0 => format!("{verb} now"),
        left => format!("{verb} {}", span(left)),
    }
}

/// How long ago: `9 m ago`.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    match seconds(then, now) {
        0 => "now".to_owned(),
        past => format!("{} ago", span(past)),
    }
}

/// Seconds from one instant to a later one; 0 when the clocks disagree.
pub(super) fn seconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_second() - from.as_second()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_of_what_is_frozen_is_told_from_what_is_at_hand() {
        let mut space: Space = serde_json::from_value(serde_json::json!({
            "id": "0190f0c2a4b87c3d9e0f112233445566", "name": "a", "state": "frozen", "node": "n", "epoch": 1,
            "createdAt": "2026-01-01T00:00:00Z", "lastActiveAt": "2026-01-01T00:00:00Z",
            "policy": { "freezeAfterSeconds": 60, "stopAfterSeconds": 3600, "hibernateAfterSeconds": null },
            "spec": { "cpus": 1.0, "memoryBytes": 1, "diskBytes": 1, "pids": 1 },
            "template": { "name": "base", "digest": "d" }, "metadata": {}
        }))
        .expect("a space");
        let at = |text: &str| text.parse().expect("a time");
        assert_eq!(next_step(&space, at("2026-01-01T00:10:00Z")), "stop 50 m");
        assert_eq!(next_step(&space, at("2026-01-01T02:00:00Z")), "stop now");
        space.policy.stop_after_seconds = None;
        assert_eq!(next_step(&space, at("2026-01-01T00:10:00Z")), "");
    }
}
