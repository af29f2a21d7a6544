use std::time::Duration;

use drowse_shared::{
    api::spaces::{AcquireSpace, Acquired, Metadata, Resumed, SpecPatch, WAIT_SECONDS, Waking},
    name::SpaceRef,
    units,
};
use tokio::time::Instant;

use super::policy::Wishes;
use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{self, units::took},
};

/// Longest wait the fleet accepts.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// `drowse space acquire`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The same name always returns the same space. Wishes that differ from what an existing space already \
                  is are not applied and are named.\n\nExit codes: 0 the space is there, 75 it still wakes when --wait \
                  is over (ask again), 1 failed."
)]
pub(crate) struct Args {
    /// The name; yours to choose
    name: SpaceRef,
    /// The template of a new space
    #[arg(long)]
    template: Option<String>,
    /// Processor time of a new space, in cores
    #[arg(long, value_name = "CORES")]
    cpus: Option<f64>,
    /// Memory of a new space, such as 512MiB
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// Disk of a new space, such as 10GiB. It takes room only as it fills
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    disk: Option<u64>,
    /// Most processes and threads of a new space
    #[arg(long, value_name = "NUMBER")]
    pids: Option<u32>,
    #[command(flatten)]
    policy: Wishes,
    /// A note on a new space; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::exec::pair)]
    meta: Vec<(String, String)>,
    /// How long to wait for it to be there
    #[arg(long, value_name = "DURATION", value_parser = units::duration, default_value = "30s")]
    wait: Duration,
}

/// Acquires.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    if args.wait > WAIT_MAX {
        return Err(Failure::usage(format!("--wait is at most {} s", WAIT_MAX.as_secs())));
    }
    let policy = args.policy.patch()?;
    let spec =
        SpecPatch { cpus: args.cpus, memory_bytes: args.memory, disk_bytes: args.disk, pids: args.pids };
    let request = AcquireSpace {
        name: args.name.clone(),
        template: args.template,
        spec: (spec != SpecPatch::default()).then_some(spec),
        policy,
        metadata: (!args.meta.is_empty()).then(|| args.meta.into_iter().collect::<Metadata>()),
        wait_seconds: (args.wait.as_secs() != WAIT_SECONDS).then_some(args.wait.as_secs()),
    };
    let started = Instant::now();
    let answer = match context.client.answer("acquireSpace", &request, args.wait).await {
        Ok(answer) => answer,
        Err(failure) => return Err(super::nearest::named(failure, &args.name, &context.client).await),
    };
    if context.json {
        output::json(&answer.body)?;
    }
    if answer.status == reqwest::StatusCode::ACCEPTED {
        if !context.json {
            let waking: Waking = answer.read()?;
            let Waking { state, phase, percent } = waking;
            output::line(&format!("{}  {state}: {phase}, {percent} %", args.name))?;
        }
        return Ok(Exit::NOT_YET);
    }
    if !context.json {
        let acquired: Acquired = answer.read()?;
        output::line(&told(&acquired, started.elapsed()))?;
        if !acquired.unchanged.is_empty() {
            eprintln!(
                "note: the space exists; its {} stayed as it was, different from what you asked for",
                acquired.unchanged.join(" and ")
            );
        }
    }
    Ok(Exit::OK)
}

/// What happened, in one line.
pub(crate) fn told(acquired: &Acquired, elapsed: Duration) -> String {
    let space = &acquired.space;
    let how = match (acquired.created, acquired.resumed) {
        (true, _) => "created",
        (false, Some(Resumed::Thawed)) => "thawed",
        (false, Some(Resumed::Restarted)) => "restarted",
        (false, Some(Resumed::Restored)) => "restored",
        (false, None) => space.state.as_str(),
    };
    format!("{}  {how} on {}  {}", space.name, space.node, took(elapsed))
}
