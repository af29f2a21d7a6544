//! The fleet under seeds: production gateway and nodes, simulated machines, network and time.
//!
//! See `drowse_e2e::sim` for how to run one seed and how to read its story.

use std::{env, fs, process::Command};

use drowse_e2e::sim::{
    Fall, Run,
    fleet::{self, Plan},
};

/// The seed whose story must repeat.
const FIXED: u64 = 4677;
/// Every so-manieth step is tried as the last one when nobody says which.
const STRIDE: u64 = 7;
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
fn a_fixed_seed_is_the_same_story_twice_and_in_another_process() {
    let once = fleet::scenario(&Plan::draw(FIXED));
    once.assert_same_story(&fleet::scenario(&Plan::draw(FIXED)));
    judge(&once);
    let this = env::current_exe().expect("a test binary");
    let other = Command::new(this)
        .args(["--exact", "the_laws_hold_under_many_seeds", "--nocapture"])
        .env("DROWSE_SIM_SEED", FIXED.to_string())
        .env("DROWSE_SIM_SEEDS", "1")
        .output()
        .expect("the test binary runs");
    let said = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(said.contains(&once.fingerprint()), "here {}, there:\n{said}", once.fingerprint());
}

#[test]
fn the_laws_hold_under_many_seeds() {
    let first = setting("DROWSE_SIM_SEED", 1);
    for seed in first..first + setting("DROWSE_SIM_SEEDS", SEEDS) {
        let run = fleet::scenario(&Plan::draw(seed));
        println!(
            "seed {seed}: {} lines, {}, {} failures",
            run.story.len(),
            run.fingerprint(),
            run.failures.len()
        );
        judge(&run);
    }
}

/// Each step of a node and of the gateway as its last, with a power loss where that is worse than a crash.
#[test]
fn a_fall_at_any_step_of_a_space_s_life_breaks_no_law() {
    let stride = setting("DROWSE_SIM_STRIDE", STRIDE);
    for (host, fall) in [("g", Fall::Power), ("n0", Fall::Process), ("n0", Fall::Power)] {
        let mut falls = 0;
        for k in (1..).step_by(usize::try_from(stride).expect("a small number")) {
            let run = fleet::fall_at(FIXED, host, fall, k);
            run.assert_good(&format!("fleet::fall_at({FIXED}, {host:?}, Fall::{fall:?}, {k})"));
            if run.value == Some(false) {
                break;
            }
            falls += 1;
        }
        println!("{host} {fall:?}: {falls} falls");
        assert!(falls * stride > 60, "{host} has only {} steps in this scenario", falls * stride);
    }
}

#[test]
fn two_gateways_that_ask_crosswise_build_one_body() {
    fleet::crosswise(FIXED).assert_good("cargo test -p drowse-e2e --test sim crosswise");
}
