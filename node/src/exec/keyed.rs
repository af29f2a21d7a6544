use std::{
    collections::{BTreeMap, btree_map::Entry},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{
        Code, Error,
        exec::{ExecCommand, ExecResult, KEPT_OUTPUT_BYTES_MAX, TIMEOUT_SECONDS},
    },
    id::SpaceId,
    name::SpaceRef,
};
use tokio::sync::watch;

use super::{Failed, VERB, once, result, shown, tag};
use crate::{
    agent_client::{
        self,
        process::{KILL, Outcome, join, kill},
    },
    door::error,
    ledger::execs::{Begun, Came, Exec},
    lifecycle::wake,
    node::{Node, not_found},
    space::State,
};

/// How long a command that is not detached goes on after everybody who asked for it has left.
pub const RETURN: Duration = Duration::from_secs(30);
/// Between two looks for keys that are too old.
const EXPIRE: Duration = Duration::from_secs(600);
/// Longest step of that loop.
const STEP: Duration = Duration::from_secs(60);

type Answer = Result<ExecResult, Error>;

/// The commands with a key that this life of the daemon looks after.
#[derive(Debug, Default)]
pub struct Keyed {
    runs: Mutex<BTreeMap<(SpaceId, String), Arc<Run>>>,
}

/// One of them.
#[derive(Debug)]
struct Run {
    /// Digest of what was asked.
    body: String,
    /// How many wait for it.
    callers: watch::Sender<usize>,
    answer: watch::Sender<Option<Answer>>,
}

/// One who waits.
struct Caller(Arc<Run>);

impl Caller {
    fn of(run: &Arc<Run>) -> Self {
        run.callers.send_modify(|callers| *callers += 1);
        Self(run.clone())
    }

    async fn answer(self) -> Answer {
        let mut answer = self.0.answer.subscribe();
        let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        // The run itself holds the sender; it cannot be gone.
        answer.unwrap_or_else(|| {
            Err(Error::new(Code::ShuttingDown, "the daemon ended while it worked on this"))
        })
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.callers.send_modify(|callers| *callers -= 1);
    }
}

/// Looks after a run until it has an answer, and gives one whatever happens to it.
struct Lead {
    node: Arc<Node>,
    run: Arc<Run>,
    space: SpaceId,
    key: String,
}

impl Lead {
    fn give(&self, answer: Answer) {
        // Whoever asks from now on finds it in the ledger.
        self.node.keyed.runs().remove(&(self.space, self.key.clone()));
        self.run.answer.send_replace(Some(answer));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.run.answer.borrow().is_none() {
            self.give(Err(Error::new(
                Code::Internal,
                "the command was lost sight of; ask again with its key",
            )));
        }
    }
}

impl Keyed {
    fn runs(&self) -> MutexGuard<'_, BTreeMap<(SpaceId, String), Arc<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run of a key, and whether it was begun just now: then the caller leads it.
    fn enter(&self, space: SpaceId, key: &str, body: &str) -> (Arc<Run>, bool) {
        match self.runs().entry((space, key.to_owned())) {
            Entry::Occupied(there) => (there.get().clone(), false),
            Entry::Vacant(free) => {
                let run = Run {
                    body: body.to_owned(),
                    callers: watch::Sender::new(0),
                    answer: watch::Sender::new(None),
                };
                (free.insert(Arc::new(run)).clone(), true)
            }
        }
    }
}

/// Runs a command once for its key, or answers what came of it.
///
/// # Errors
/// `idempotency_key_reused`, `exec_unknown`, or why it did not run; then the key is free again.
pub async fn exec(node: &Arc<Node>, wish: ExecCommand) -> Answer {
    if let Some(refusal) = node.fleet.refuses_use() {
        return Err(refusal);
    }
    let space = node.known(&wish.name).await?.id;
    let key = wish.idempotency_key.clone().unwrap_or_default();
    let body = digest(&wish, space)?;
    let (run, first) = node.keyed.enter(space, &key, &body);
    if run.body != body {
        return Err(reused(&key));
    }
    let caller = Caller::of(&run);
    if first {
        let lead = Lead { node: node.clone(), run, space, key: key.clone() };
        node.env.spawn("keyed exec", async move {
            let exec = Exec {
                space,
                key,
                body,
                tag: tag(&lead.node),
                detached: wish.detach,
                encoding: wish.output_encoding,
                timeout_seconds: wish.timeout_seconds.unwrap_or(TIMEOUT_SECONDS),
                shown: shown(&wish),
                started_at: lead.node.env.clock.wall(),
            };
            let answer = follow(&lead, exec, wish).await;
            lead.give(answer);
        });
    }
    caller.answer().await
}

/// What was asked, without the key and however the space was named.
fn digest(wish: &ExecCommand, space: SpaceId) -> Result<String, Error> {
    let wish = ExecCommand { name: SpaceRef::Id(space), idempotency_key: None, ..wish.clone() };
    let text = serde_json::to_vec(&wish).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

fn reused(key: &str) -> Error {
    let message = format!(
        "the idempotency key {key:?} was used in this space for another command; a new command needs a new key"
    );
    Error::new(Code::IdempotencyKeyReused, message)
}

fn unknown(why: &str) -> Error {
    let message =
        format!("{why}; the command may have run: look inside the space, then go on under a new key");
    Error::new(Code::ExecUnknown, message)
}

/// From the intent to the outcome.
async fn follow(lead: &Lead, exec: Exec, wish: ExecCommand) -> Answer {
    let node = &lead.node;
    match node.ledger.begin_exec(exec.clone()).await.map_err(error::ledger)? {
        Begun::New => begin(lead, exec, wish).await,
        Begun::Before(before, _) if before.body != exec.body => Err(reused(&exec.key)),
        Begun::Before(_, Some(Came::Result(result))) => Ok(ExecResult { replayed: true, ..*result }),
        Begun::Before(_, Some(Came::Unknown(why))) => Err(unknown(&why)),
        Begun::Before(before, None) => find_again(lead, before).await,
        Begun::Full => Err(Error::new(
            Code::QueueFull,
            "every idempotency key of this space belongs to a command that still runs",
        )),
        Begun::Gone => Err(not_found(&wish.name)),
    }
}

async fn begin(lead: &Lead, exec: Exec, wish: ExecCommand) -> Answer {
    let node = &lead.node;
    let name = SpaceRef::Id(exec.space);
    let started = watch::Sender::new(false);
    let begun = |_| started.send_modify(|started| *started = true);
    let run = Box::pin(once(node, &name, &wish, &exec.tag, begun));
    match attended(lead, &exec, run, started.subscribe()).await {
        Ok(((outcome, resumed), canceled)) => {
            let result = ExecResult { canceled, resumed, ..result(outcome, exec.encoding, exec.detached) };
            came(node, &exec, Came::Result(Box::new(kept(result.clone())))).await;
            Ok(result)
        }
        Err(Failed::NotRun(why)) => {
            node.ledger.forget_exec(&exec).await.map_err(error::ledger)?;
            Err(why)
        }
        Err(Failed::Unsure(why)) => Err(lost(node, &exec, &why).await),
    }
}

/// An earlier life of this daemon began it: its agent is asked, by its tag.
async fn find_again(lead: &Lead, exec: Exec) -> Answer {
    let node = &lead.node;
    let name = SpaceRef::Id(exec.space);
    let row = node.known(&name).await?;
    match row.state {
        // Frozen with the command in it; or running, and this is use.
        State::Active | State::Frozen => drop(wake::used(node, &name, VERB).await?),
        _ => {
            let why = "the space stopped while the command was under way";
            came(node, &exec, Came::Unknown(why.to_owned())).await;
            return Err(unknown(why));
        }
    }
    rejoin(lead, exec).await
}

async fn rejoin(lead: &Lead, exec: Exec) -> Answer {
    let node = &lead.node;
    let row = node.known(&SpaceRef::Id(exec.space)).await?;
    let place = node.place(exec.space);
    let _guard = node.live.run(exec.space, format!("exec {}", exec.shown), exec.started_at);
    let limit = Duration::from_secs(exec.timeout_seconds) + KILL;
    let started = watch::Sender::new(false);
    let joined = Box::pin(async {
        let begun = |_| started.send_modify(|started| *started = true);
        let alive = || node.touch(&row, VERB);
        join(&place, &exec.tag, exec.detached, limit, begun, alive).await.map_err(Failed::Unsure)
    });
    match attended(lead, &exec, joined, started.subscribe()).await {
        Ok((outcome, canceled)) => {
            let took = node.env.clock.wall().duration_since(exec.started_at);
            let outcome = Outcome { took: Duration::try_from(took).unwrap_or_default(), ..outcome };
            let result = ExecResult { canceled, ..result(outcome, exec.encoding, exec.detached) };
            came(node, &exec, Came::Result(Box::new(kept(result.clone())))).await;
            Ok(result)
        }
        Err(Failed::NotRun(why)) => Err(why),
        Err(Failed::Unsure(why)) => Err(lost(node, &exec, &why).await),
    }
}

/// Follows a command to its end. When everybody who asked for it has left and nobody comes back in time, it is killed, unless
/// it is detached. Says whether it was.
async fn attended<T>(
    lead: &Lead,
    exec: &Exec,
    mut run: Pin<Box<dyn Future<Output = Result<T, Failed>> + Send + '_>>,
    mut started: watch::Receiver<bool>,
) -> Result<(T, bool), Failed> {
    let alone = async {
        if exec.detached || started.wait_for(|started| *started).await.is_err() {
            return std::future::pending().await;
        }
        deserted(lead.run.callers.subscribe(), RETURN).await;
    };
    drowse_shared::select_biased! {
        ended = run.as_mut() => return Ok((ended?, false)),
        () = alone => {}
    }
    tracing::info!(space = %exec.space, "a command with a key is killed: nobody came back for it");
    let place = lead.node.place(exec.space);
    let killed = kill(&place, &exec.tag).await;
    let ended = tokio::time::timeout(KILL, run).await;
    let ended = ended
        .map_err(|_| Failed::Unsure(agent_client::Error::Late { what: "kill the command", after: KILL }))?;
    // One that had ended by itself meanwhile was not killed.
    Ok((ended?, killed.is_ok()))
}

/// Resolves once nobody has waited for as long as `within`.
async fn deserted(mut callers: watch::Receiver<usize>, within: Duration) {
    loop {
        let gone = callers.wait_for(|callers| *callers == 0).await.is_err();
        let back = callers.wait_for(|callers| *callers > 0);
        if gone || tokio::time::timeout(within, back).await.is_err() {
            return;
        }
    }
}

/// It cannot be said what came of it, and never will be.
async fn lost(node: &Node, exec: &Exec, why: &agent_client::Error) -> Error {
    let why = error::chain(why);
    tracing::warn!(space = %exec.space, why, "what came of a command with a key is not known");
    came(node, exec, Came::Unknown(why.clone())).await;
    unknown(&why)
}

/// Writes what came of a command. If that fails, its agent is asked again the next time.
async fn came(node: &Node, exec: &Exec, came: Came) {
    if let Err(error) = node.ledger.end_exec(exec, came, node.env.clock.wall()).await {
        tracing::error!(space = %exec.space, error = %error::chain(&error), "what came of a command could not be kept");
    }
}

/// What is kept of a result.
fn kept(result: ExecResult) -> ExecResult {
    let cut = |text: String| match text.len() > KEPT_OUTPUT_BYTES_MAX {
        // As base64 the limit is whole groups of four.
        true => (text[..text.floor_char_boundary(KEPT_OUTPUT_BYTES_MAX)].to_owned(), true),
        false => (text, false),
    };
    let (stdout, out_cut) = cut(result.stdout);
    let (stderr, err_cut) = cut(result.stderr);
    ExecResult {
        stdout,
        stderr,
        stdout_truncated: result.stdout_truncated || out_cut,
        stderr_truncated: result.stderr_truncated || err_cut,
        resumed: None,
        ..result
    }
}

/// Looks after the commands of an earlier life, and forgets keys that are too old, until the daemon ends.
pub async fn tend(node: Arc<Node>) {
    let pulse = node.watchdog.watch("keys", STEP);
    let work = async {
        pulse.at("looking for commands that were under way");
        let under_way = node.ledger.execs_under_way().await.unwrap_or_else(|error| {
            tracing::error!(error = %error::chain(&error), "commands that were under way could not be read");
            Vec::new()
        });
        for exec in under_way {
            pulse.about("finding a command that was under way", &exec.space);
            take_over(&node, exec).await;
        }
        loop {
            pulse.at("forgetting old keys");
            if let Err(error) = node.ledger.expire_execs(node.env.clock.wall()).await {
                tracing::warn!(error = %error::chain(&error), "old keys could not be forgotten");
            }
            pulse.pauses(EXPIRE);
            tokio::time::sleep(EXPIRE).await;
        }
    };
    drowse_shared::select_biased! {
        () = node.shutdown.stopping() => {}
        () = work => {}
    }
}

/// A command that still runs is waited for; what came of any other is found out when somebody asks. Looking wakes nothing.
async fn take_over(node: &Arc<Node>, exec: Exec) {
    let Ok(row) = node.known(&SpaceRef::Id(exec.space)).await else { return };
    if exec.detached || row.state != State::Active {
        return;
    }
    let (run, first) = node.keyed.enter(exec.space, &exec.key, &exec.body);
    if !first {
        return;
    }
    let lead = Lead { node: node.clone(), run, space: exec.space, key: exec.key.clone() };
    node.env.spawn("keyed exec", async move {
        let answer = rejoin(&lead, exec).await;
        lead.give(answer);
    });
}
