//! The fleet under seeds: production gateway and nodes, simulated machines, network and time.
//!
//! See `drowse_e2e::sim` for how to run one seed and how to read its story.

use std::{env, fs};

use drowse_e2e::sim::{Run, fleet};

/// Seeds run when nobody says how many.
const SEEDS: u64 = 20;

/// A number from the environment.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration but this")]
fn setting(variable: &str, otherwise: u64) -> u64 {
    let Ok(text) = env::var(variable) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}; it must be a number"))
}

fn judge(run: &Run<()>) {
    #[expect(clippy::disallowed_methods, reason = "a test has no configuration but this")]
    if let Ok(path) = env::var("DROWSE_SIM_STORY") {
        fs::write(&path, run.story.join("\n")).expect("the story can be written");
    }
    run.assert_good(&format!(
        "DROWSE_SIM_SEED={} DROWSE_SIM_SEEDS=1 DROWSE_SIM_STORY=/tmp/story cargo test -p drowse-e2e --test sim seeds",
        run.seed
    ));
}

#[test]
fn a_fixed_seed_is_the_same_story_twice() {
    let once = fleet::scenario(4677);
    once.assert_same_story(&fleet::scenario(4677));
    judge(&once);
}

#[test]
fn the_laws_hold_under_many_seeds() {
    let first = setting("DROWSE_SIM_SEED", 1);
    for seed in first..first + setting("DROWSE_SIM_SEEDS", SEEDS) {
        let run = fleet::scenario(seed);
        println!("seed {seed}: {} lines, {}, {} failures", run.story.len(), run.fingerprint(), run.failures.len());
        judge(&run);
    }
}
