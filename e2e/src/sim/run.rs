use std::{
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{
    interpose,
    log::Teller,
    story::{Line, brief},
    world::World,
};

/// What one simulated run was like.
#[derive(Debug)]
pub struct Run<T> {
    /// The seed.
    pub seed: u64,
    /// What the scenario answered; `None` when it panicked.
    pub value: Option<T>,
    /// Everything that happened, one line each, in order.
    pub story: Vec<Line>,
    /// What should not have happened: broken promises, panics, tasks left alive.
    pub failures: Vec<String>,
}

/// Runs a scenario in a world of its own: one thread, one seed, simulated time.
///
/// # Panics
/// When no thread can be started.
pub fn run<T, F>(seed: u64, scenario: impl FnOnce(World) -> F + Send + 'static) -> Run<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    // std's hash keys are per thread and count up, so only a fresh thread starts from the seed.
    #[expect(clippy::disallowed_methods, reason = "this is the world, not an inhabitant")]
    std::thread::spawn(move || here(seed, scenario)).join().expect("panics are caught inside")
}

fn here<T, F: Future<Output = T>>(seed: u64, scenario: impl FnOnce(World) -> F) -> Run<T> {
    interpose::enter(seed);
    // Without I/O: a real socket opened by mistake panics.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing from the machine");
    let world = runtime.block_on(async { World::new(seed) });
    let _logs = tracing::subscriber::set_default(Teller(world.clone()));
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(scenario(world.clone()))));
    let value = match ended {
        Ok(value) => Some(value),
        Err(panic) => {
            world.fail(&format!("the scenario panicked: {}", said(&*panic)));
            None
        }
    };
    let alive = runtime.block_on(world.end());
    if alive > 0 {
        world.fail(&format!("{alive} tasks outlived every host: something is not spawned through the seams"));
    }
    let (story, failures) = world.take_story();
    Run { seed, value, story, failures }
}

/// What a panic said.
pub(super) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no words)".to_owned())
}

impl<T> Run<T> {
    /// Panics with the failures, how to see them again, and a brief story.
    ///
    /// # Panics
    /// When the run failed.
    pub fn assert_good(&self, rerun: &str) {
        if self.failures.is_empty() {
            return;
        }
        let told = brief(&self.story).join("\n");
        let failures = self.failures.join("\n  - ");
        panic!("seed {} failed:\n  - {failures}\nrun it again: {rerun}\n{told}", self.seed);
    }

    /// The whole story as text.
    pub fn told(&self) -> String {
        let mut text = String::new();
        for line in &self.story {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Panics at the first line where two runs of one seed differ.
    ///
    /// # Panics
    /// When they differ.
    pub fn assert_same_story(&self, other: &Self) {
        let lines = self.story.len().max(other.story.len());
        let (mine, theirs) = (&self.story, &other.story);
        if let Some(at) = (0..lines).find(|&at| mine.get(at) != theirs.get(at)) {
            let before: Vec<String> = mine[at.saturating_sub(12)..at].iter().map(Line::to_string).collect();
            let before = before.join("\n");
            panic!(
                "two runs of seed {} differ at line {at}:\n{before}\nonce:  {:?}\nagain: {:?}",
                self.seed,
                mine.get(at),
                theirs.get(at)
            );
        }
    }

    /// A short hand for the whole story, to compare across processes.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for line in &self.story {
            hasher.update(&line.at_ms.to_le_bytes()).update(line.text.as_bytes()).update(b"\n");
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }
}
