//! Check-ins: every interval this node tells each of its gateways how it is, and takes what they answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use drowse_shared::{
    api::nodes::{CheckIn, CheckedIn, Roster, Standing, WIRE_VERSION},
    http::{HttpClient, client, why},
    watchdog::Pulse,
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use tokio::time::Instant;

use crate::{door::error::chain, ledger, lifecycle::reconcile, node::Node, reading, upgrade};

/// Longest wait for a gateway's answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Largest answer of a gateway: a roster of some thousand nodes fits.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Between the check-ins of a node that serves nobody before a gateway that still listens has handed it the configuration.
const WAITING: Duration = Duration::from_secs(1);
/// Longest step of the loop.
const STEP: Duration = Duration::from_secs(30);

/// What this node says of itself; also the answer of `report`. Roster and configuration are named; the roster is whole only
/// if it is wanted.
pub async fn check_in(node: &Node, whole: bool) -> CheckIn {
    let mut said = CheckIn {
        node_id: node.config.node_id.clone(),
        ledger_id: node.ledger_id,
        boot: node.boot,
        endpoint: node.endpoint.clone(),
        region: node.config.region.clone(),
        build: node.config.build.clone(),
        wire_min: WIRE_VERSION,
        wire_max: WIRE_VERSION,
        interval_ms: u64::try_from(node.config.check_in.as_millis()).unwrap_or(u64::MAX).max(1),
        reading: reading::reading(node).await,
        bundle: node.fleet.bundle_version(),
        bundle_copy: None,
        draining: false,
        roster: None,
        roster_copy: None,
        removed: node.fleet.is_removed(),
        upgrade: Some(node.upgrades.say(&node.env).await),
    };
    bring_roster(node, &mut said, whole);
    said
}

fn bring_roster(node: &Node, said: &mut CheckIn, whole: bool) {
    let kept = node.fleet.roster();
    said.roster = kept.as_ref().map(|kept| kept.version.clone());
    said.roster_copy = kept.filter(|_| whole).map(|kept| kept.roster.clone());
}

/// Takes a roster that a gateway showed. One that has this node removed suspends its spaces.
///
/// # Errors
/// When it cannot be kept.
pub async fn take_roster(node: &Arc<Node>, roster: Roster) -> Result<(), ledger::Error> {
    let was = node.fleet.is_removed();
    node.fleet.take_roster(&node.ledger, roster).await?;
    if !was && node.fleet.is_removed() {
        suspend(node);
    }
    Ok(())
}

fn suspend(node: &Arc<Node>) {
    let worker = node.clone();
    node.env.spawn("suspend", async move { reconcile::suspend(&worker).await });
}

/// Takes what a gateway answered to a check-in that was sent at `sent`.
pub async fn take(node: &Arc<Node>, answer: CheckedIn, sent: Instant) {
    let ledger = &node.ledger;
    if let Some(roster) = answer.roster {
        kept("roster", take_roster(node, roster).await);
    }
    if let Some(bundle) = answer.bundle {
        kept("configuration", node.fleet.take_bundle(ledger, bundle).await);
    }
    match answer.standing {
        Standing::Member => {
            node.fleet.accepted(sent);
            kept("standing", node.fleet.set_removed(ledger, false).await.map(drop));
        }
        Standing::Removed => match node.fleet.set_removed(ledger, true).await {
            Ok(true) => suspend(node),
            Ok(false) => {}
            failed => kept("standing", failed.map(drop)),
        },
        Standing::Waiting => {}
    }
}

fn kept(what: &str, kept: Result<(), ledger::Error>) {
    if let Err(error) = kept {
        tracing::error!(what, error = %chain(&error), "what a gateway answered could not be kept");
    }
}

/// Checks in with one gateway until the daemon ends; not only until it is told to: what it still finishes would be given up
/// if it fell silent. Failures are logged when they change.
pub async fn run(node: Arc<Node>, gateway: String) {
    let client = client::<Full<Bytes>>(&node.env, node.config.limits);
    let interval = node.config.check_in;
    let pulse = node.watchdog.watch("check-in", STEP);
    let mut said = None;
    loop {
        let began = Instant::now();
        let outcome = drowse_shared::select_biased! {
            () = node.shutdown.cutting() => return,
            outcome = once(&node, &client, &gateway, &pulse) => outcome,
        };
        let waits = outcome == Ok(Standing::Waiting) && !node.fleet.is_configured();
        let pause = if waits { interval.min(WAITING) } else { interval };
        if said.as_ref() != Some(&outcome) {
            match &outcome {
                Ok(standing) => tracing::info!(gateway, ?standing, "checked in"),
                Err(why) => {
                    tracing::warn!(gateway, why, "the check-in was not taken; trying every {interval:?}");
                }
            }
            said = Some(outcome);
        }
        pulse.pauses(pause);
        drowse_shared::select_biased! {
            () = node.shutdown.cutting() => return,
            () = tokio::time::sleep_until(began + pause) => {}
        }
    }
}

async fn once(
    node: &Arc<Node>,
    client: &HttpClient<Full<Bytes>>,
    gateway: &str,
    pulse: &Pulse,
) -> Result<Standing, String> {
    let limit = ANSWER_MAX.min(node.config.check_in * 2).max(Duration::from_secs(1));
    pulse.at("measuring this machine");
    let mut said = check_in(node, false).await;
    pulse.about("telling a gateway", &gateway);
    let mut sent = Instant::now();
    let mut answer = send(node, client, gateway, &said, limit).await?;
    let (mut tell, mut brought) = (None, 0);
    let outcome = loop {
        let (roster, bundle, standing) = (answer.want_roster, answer.want_bundle, answer.standing);
        // Said once: whatever comes of the rest.
        tell = tell.or(answer.upgrade.take());
        pulse.about("keeping the answer of a gateway", &gateway);
        take(node, answer, sent).await;
        // What this gateway has not seen is brought to it at once: what another one wants is another matter. It may want the
        // configuration only when it has seen the roster.
        if brought == 2 || !(roster || bundle) {
            break Ok(standing);
        }
        brought += 1;
        bring_roster(node, &mut said, roster);
        said.bundle_copy = node.fleet.bundle().filter(|_| bundle);
        pulse.about("bringing a gateway what it has not seen", &gateway);
        sent = Instant::now();
        answer = match send(node, client, gateway, &said, limit).await {
            Ok(next) => next,
            Err(why) => break Err(why),
        };
    };
    if let Some(tell) = tell {
        upgrade::take(node, gateway, tell);
    }
    outcome
}

async fn send(
    node: &Arc<Node>,
    client: &HttpClient<Full<Bytes>>,
    gateway: &str,
    said: &CheckIn,
    limit: Duration,
) -> Result<CheckedIn, String> {
    let body = serde_json::to_vec(said).map_err(|error| error.to_string())?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{gateway}/checkIn"))
        .header(header::AUTHORIZATION, node.config.token.bearer())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::from(body))
        .map_err(|error| error.to_string())?;
    tokio::time::timeout(limit, async {
        let response = client.request(request).await.map_err(|error| why(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| why(&*error))?
            .to_bytes();
        judge(status, &body)
    })
    .await
    .map_err(|_| format!("no answer within {limit:?}"))?
}

/// What an answer says. A redirect is not followed: it would carry the token to a stranger.
fn judge(status: StatusCode, body: &[u8]) -> Result<CheckedIn, String> {
    if status.is_success() {
        return serde_json::from_slice(body).map_err(|error| format!("its answer cannot be read: {error}"));
    }
    match serde_json::from_slice::<drowse_shared::api::Error>(body) {
        Ok(error) => Err(format!("{}: {}", error.code, error.message)),
        Err(_) => Err(format!("it answered {status}; is this address a gateway?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer_is_said_in_words() {
        let taken = judge(StatusCode::OK, br#"{"standing":"member","wantBundle":true}"#).expect("an answer");
        assert!(taken.want_bundle && taken.standing == Standing::Member);
        let twin = br#"{"code":"node_twin","message":"two ledgers"}"#;
        let cases: [(StatusCode, &[u8], &str); 4] = [
            (StatusCode::CONFLICT, twin, "node_twin: two ledgers"),
            (StatusCode::FOUND, b"", "302"),
            (StatusCode::OK, b"<html>", "cannot be read"),
            (StatusCode::NOT_FOUND, b"nginx", "is this address a gateway?"),
        ];
        for (status, body, says) in cases {
            let why = judge(status, body).expect_err(says);
            assert!(why.contains(says), "{why}");
        }
    }
}
