use drowse_shared::{
    api::spaces::{OneSpace, Space, SpaceAnswer, Spec},
    name::SpaceRef,
    seams::Env,
};
use jiff::Timestamp;

use super::{
    ls::{ago, next_step, state_of},
    policy,
};
use crate::{
    args::Context,
    client::SLACK,
    failure::{Exit, Outcome},
    output::{self, plain, units::bytes},
};

/// Shows one space.
pub(super) async fn run(name: &SpaceRef, context: &Context) -> Outcome<Exit> {
    let answer = match context.client.answer("getSpace", &OneSpace { name: name.clone() }, SLACK).await {
        Ok(answer) => answer,
        Err(failure) => return Err(super::nearest::named(failure, name, &context.client).await),
    };
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let shown: SpaceAnswer = answer.read()?;
    for (head, text) in lines(&shown.space, Env::real().clock.wall()) {
        output::line(&format!("{head:<11} {}", plain(&text)))?;
    }
    Ok(Exit::OK)
}

fn lines(space: &Space, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("name", space.name.to_string()),
        ("id", space.id.to_string()),
        ("state", state_of(space).0),
        ("node", space.node.to_string()),
    ];
    if let Some(awake) = &space.awake {
        lines.push(("awake", format!("{}, since {}", awake.because, ago(awake.since, now))));
        let next = next_step(space, now);
        lines.push(("sleeps", if next.is_empty() { "not by itself".to_owned() } else { next }));
    }
    if let Some(broken) = &space.broken {
        lines.push(("broken", format!("{}: {} ({})", broken.cause, broken.message, ago(broken.since, now))));
    }
    lines.push(("policy", policy::sleeps(&space.policy)));
    lines.push(("ports", policy::ports(&space.policy)));
    lines.push(("spec", spec(&space.spec)));
    lines.push(("template", format!("{} {}", space.template.name, space.template.digest)));
    lines.push(("created", format!("{} ({})", space.created_at, ago(space.created_at, now))));
    lines.push(("last used", format!("{} ({})", space.last_active_at, ago(space.last_active_at, now))));
    for (key, value) in &space.metadata {
        lines.push(("metadata", format!("{key}={value}")));
    }
    lines
}

fn spec(spec: &Spec) -> String {
    format!(
        "{} cpu, {} memory, {} disk, {} processes",
        spec.cpus,
        bytes(spec.memory_bytes),
        bytes(spec.disk_bytes),
        spec.pids
    )
}
