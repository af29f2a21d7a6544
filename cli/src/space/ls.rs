use std::collections::BTreeSet;

use drowse_shared::{
    api::spaces::{ListSpaces, Metadata, Space, SpaceList, State},
    seams::Env,
};
use jiff::Timestamp;

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
    #[arg(long, value_name = "STATE", value_parser = state)]
    in_state: Vec<State>,
    /// Only spaces with this note; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::exec::pair)]
    meta: Vec<(String, String)>,
    /// At most this many
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
}

fn state(text: &str) -> Result<State, String> {
    State::read(text).ok_or_else(|| {
        let words: Vec<&str> = State::ALL.iter().map(|state| state.as_str()).collect();
        format!("a state is one of {}", words.join(", "))
    })
}

/// Lists.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let mut request = ListSpaces {
        states: (!args.in_state.is_empty()).then_some(args.in_state),
        metadata: (!args.meta.is_empty()).then(|| args.meta.into_iter().collect::<Metadata>()),
        name_prefix: args.prefix,
        limit: Some(1000),
        cursor: None,
    };
    let most = args.limit.unwrap_or(usize::MAX);
    let mut list = SpaceList { spaces: Vec::new(), next_cursor: None, silent: Vec::new() };
    while list.spaces.len() < most {
        let page: SpaceList = context.client.call("listSpaces", &request).await?;
        list.spaces.extend(page.spaces);
        for silent in page.silent {
            if !list.silent.iter().any(|known| known.node == silent.node) {
                list.silent.push(silent);
            }
        }
        match page.next_cursor {
            Some(cursor) => request.cursor = Some(cursor),
            None => break,
        }
    }
    list.spaces.truncate(most);
    if context.json {
        output::json(&serde_json::json!(list))?;
        return Ok(Exit::OK);
    }
    output::bytes(table(&list.spaces, Env::real().clock.wall()).text().as_bytes())?;
    if output::on_terminal() {
        let nodes: BTreeSet<_> = list.spaces.iter().map(|space| &space.node).collect();
        output::line(&format!("{} on {}", count(list.spaces.len(), "space"), count(nodes.len(), "node")))?;
    }
    for silent in &list.silent {
        eprintln!(
            "warning: {} did not answer ({}); its spaces are missing here, not gone",
            silent.node, silent.reason
        );
    }
    Ok(Exit::OK)
}

fn table(spaces: &[Space], now: Timestamp) -> Table {
    let mut table = Table::new(&["NAME", "STATE", "NODE", "AWAKE BECAUSE", "SLEEPS IN", "LAST USED"]);
    for space in spaces {
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
    table
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

/// The next step down and when: `freeze 9 m`.
pub(super) fn next_step(space: &Space, now: Timestamp) -> String {
    let Some(awake) = &space.awake else { return String::new() };
    let (Some(step), Some(at)) = (awake.next_step, awake.at) else { return String::new() };
    let verb = match step {
        State::Frozen => "freeze",
        State::Stopped => "stop",
        State::Hibernated => "hibernate",
        other => other.as_str(),
    };
    format!("{verb} {}", span(seconds(now, at)))
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
