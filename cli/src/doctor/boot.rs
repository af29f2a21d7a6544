//! A real space, from its making to its end, through the node of this machine.

use drowse_shared::{
    api::{
        exec::ExecResult,
        spaces::{Acquired, Destroyed, SpaceAnswer},
    },
    seams::Env,
    token::Token,
};
use serde_json::json;
use tokio::time::{Duration, Instant};

use super::{facts, judge::Finding};
use crate::{
    client::Client,
    failure::{Failure, Outcome},
    fleet::{self, Fleet, chain},
    output::units::took,
};

const CHECK: &str = "a space";
const MORE: &str = "journalctl -u drowse-node says more; docs/ERRORS.md has every code";

/// Longest wait for the space.
const WAIT: Duration = Duration::from_secs(60);

/// Makes a space, runs a command in it, freezes it, runs another one, and destroys it.
pub(super) async fn boot(env: &Env, state: Option<&camino::Utf8Path>) -> Finding {
    let fleet = match local(state) {
        Ok(fleet) => fleet,
        Err(failure) => {
            let fix = "start it: systemctl start drowse-node, or drowse up; --offline leaves this out";
            return Finding::bad(CHECK, format!("no fleet to try it on: {}", failure.sentence()), fix);
        }
    };
    let client = match Client::new(fleet) {
        Ok(client) => client,
        Err(failure) => return failed(&failure),
    };
    let name = format!("doctor-{:016x}", env.random_u64());
    let lived = live(&client, &name).await;
    // Whatever happened to it, it goes.
    let gone = client.call::<Destroyed>("destroySpace", &json!({ "name": name })).await;
    let left = format!("drowse space rm {name}, once the node answers");
    match (lived, gone) {
        (Ok(told), Ok(_)) => Finding::good(CHECK, told),
        (Err(failure), Ok(_)) => failed(&failure),
        (Ok(_), Err(failure)) => Finding::bad(CHECK, failure.sentence(), left),
        (Err(failure), Err(_)) => Finding::bad(CHECK, failure.sentence(), format!("{MORE}. Then: {left}")),
    }
}

fn failed(failure: &Failure) -> Finding {
    Finding::bad(CHECK, failure.sentence(), MORE)
}

/// The node that was installed here, else the fleet that commands here talk to.
fn local(state: Option<&camino::Utf8Path>) -> Outcome<Fleet> {
    let installed = facts::settings("node").filter(|_| state.is_none());
    let Some(settings) = installed else { return fleet::find(state) };
    let listen = settings.get("DROWSE_NODE_LISTEN").map_or("127.0.0.1:4676", String::as_str);
    let listen = listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
    let value = settings.get("DROWSE_TOKEN").map(String::as_str);
    let file = settings.get("DROWSE_TOKEN_FILE").map(camino::Utf8Path::new);
    let token = Token::load(value, file).map_err(|error| Failure::new(chain(&error)))?;
    Ok(Fleet { endpoint: format!("http://{listen}"), token })
}

async fn live(client: &Client, name: &str) -> Outcome<String> {
    let began = Instant::now();
    let wish = json!({ "name": name, "spec": { "memoryBytes": 256 << 20, "diskBytes": 1 << 30 }, "waitSeconds": 30 });
    let answer = client.answer("acquireSpace", &wish, WAIT).await?;
    if answer.status != reqwest::StatusCode::OK {
        return Err(Failure::new("it was not there within 30 s"));
    }
    let Acquired { space, .. } = answer.read()?;
    let made = began.elapsed();
    say(client, name, "warm").await?;
    let ran = began.elapsed();
    client.call::<SpaceAnswer>("freezeSpace", &json!({ "name": name })).await?;
    let thaws = Instant::now();
    say(client, name, "thawed").await?;
    let node = space.node;
    Ok(format!(
        "made on {node} in {}, first command after {}, frozen, back in {}",
        took(made),
        took(ran),
        took(thaws.elapsed())
    ))
}

async fn say(client: &Client, name: &str, word: &str) -> Outcome<()> {
    let wish = json!({ "name": name, "argv": ["echo", word], "timeoutSeconds": 30 });
    let result: ExecResult = client.answer("execCommand", &wish, WAIT).await?.read()?;
    if result.exit_code == Some(0) && result.stdout.trim() == word {
        return Ok(());
    }
    Err(Failure::new(format!("a command in it ended with {:?}: {}", result.exit_code, result.stderr.trim())))
}
