//! The fleet under seeds: production gateway and nodes, simulated machines, network and time.
//!
//! See `drowse_e2e::sim` for how to run one seed and how to read its story.

use std::{
    env, fs,
    process::Command,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use drowse_e2e::sim::{
    Fall, Run,
    fleet::{
        self, Plan,
        shrink::{Budget, Shrunk, shrink},
    },
};

/// The seed whose story must repeat.
const FIXED: u64 = 4677;
/// Every so-manieth step is tried as the last one when nobody says which.
const STRIDE: u64 = 7;
/// Seeds run when nobody says how many: always, in a soak, in a hunt.
const SEEDS: (u64, u64, u64) = (500, 20_000, 500);
/// Seeds run at a time.
const THREADS: usize = 2;
/// Every so-manieth seed is run twice and must be the same story.
const REPEATS: u64 = 50;
/// A soak says how far it is after so many seeds.
const PROGRESS: u64 = 500;
/// Failing seeds after which a soak stops when nobody says.
const SOAK_FAILURES_MAX: u64 = 3;

/// What the environment says.
#[expect(clippy::disallowed_methods, reason = "a test has no configuration but this")]
fn said(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|text| !text.is_empty())
}

/// A number from the environment.
fn setting(variable: &str, otherwise: u64) -> u64 {
    let Some(text) = said(variable) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}; it must be a number"))
}

fn plan_of(seed: u64) -> Plan {
    match said("DROWSE_SIM_GATEWAYS") {
        Some(_) => Plan::draw_with(seed, usize::try_from(setting("DROWSE_SIM_GATEWAYS", 1)).unwrap_or(1)),
        None => Plan::draw(seed),
    }
}

/// The seeds to run, and how many when nobody says.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = setting("DROWSE_SIM_SEED", 1);
    first..first.saturating_add(setting("DROWSE_SIM_SEEDS", count))
}

/// Runs a seed; twice now and then.
fn run(seed: u64) -> Run<()> {
    let run = fleet::scenario(&plan_of(seed));
    if seed.is_multiple_of(REPEATS) {
        run.assert_same_story(&fleet::scenario(&plan_of(seed)));
    }
    run
}

/// Keeps the whole story where the environment says.
fn keep_story(run: &Run<()>) {
    if let Some(path) = said("DROWSE_SIM_STORY") {
        fs::write(&path, run.told()).unwrap_or_else(|error| panic!("{path} cannot be written: {error}"));
    }
}

/// What a person needs of a failing plan: failures, brief story, and how to run it again.
fn report(shrunk: &Shrunk) -> String {
    let Shrunk { plan, run, runs, .. } = shrunk;
    let path = format!("{}/plan-{}.json", env!("CARGO_TARGET_TMPDIR"), plan.seed);
    fs::write(&path, plan.json()).unwrap_or_else(|error| panic!("{path} cannot be written: {error}"));
    keep_story(run);
    let early = shrunk.ended_early.map(|why| format!("; {why}")).unwrap_or_default();
    format!(
        "seed {} fails, shrunk in {runs} runs{early}:\n  - {}\n{}\nrun it again: DROWSE_SIM_PLAN={path} \
         DROWSE_SIM_STORY=/tmp/story cargo test --release -p drowse-e2e --test sim many_seeds",
        plan.seed,
        run.failures.join("\n  - "),
        shrunk.story().join("\n"),
    )
}

/// Shrinks a plan that fails.
fn shrunk(plan: &Plan) -> Option<Shrunk> {
    shrink(plan, fleet::scenario, Budget::default())
}

#[test]
fn a_fixed_seed_is_the_same_story_twice_and_in_another_process() {
    let once = fleet::scenario(&Plan::draw(FIXED));
    once.assert_same_story(&fleet::scenario(&Plan::draw(FIXED)));
    let this = env::current_exe().expect("a test binary");
    let other = Command::new(this)
        .args(["--exact", "the_laws_hold_under_many_seeds", "--nocapture"])
        .env("DROWSE_SIM_SEED", FIXED.to_string())
        .env("DROWSE_SIM_SEEDS", "1")
        .env_remove("DROWSE_SIM_PLAN")
        .output()
        .expect("the test binary runs");
    let said = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(said.contains(&once.fingerprint()), "here {}, there:\n{said}", once.fingerprint());
}

#[test]
fn the_laws_hold_under_many_seeds() {
    if let Some(path) = said("DROWSE_SIM_PLAN") {
        let plan = Plan::read(path.as_str().into()).unwrap_or_else(|error| panic!("{error}"));
        let run = fleet::scenario(&plan);
        keep_story(&run);
        return run.assert_good(&format!("DROWSE_SIM_PLAN={path}"));
    }
    let failing = fleet::failing_seeds(seeds(SEEDS.0), THREADS, 1, |seed| {
        let run = run(seed);
        println!(
            "seed {seed}: {} lines, {}, {} failures",
            run.story.len(),
            run.fingerprint(),
            run.failures.len()
        );
        if seeds(SEEDS.0).count() == 1 {
            keep_story(&run);
        }
        run
    });
    if let Some(shrunk) = failing.first().and_then(|seed| shrunk(&plan_of(*seed))) {
        panic!("{}", report(&shrunk));
    }
}

#[test]
#[ignore = "20,000 seeds, or as many as DROWSE_SIM_SEEDS says"]
fn soak_seeds() {
    let done = AtomicU64::new(0);
    let failures_max =
        usize::try_from(setting("DROWSE_SIM_FAILURES", SOAK_FAILURES_MAX)).unwrap_or(usize::MAX);
    let failing = fleet::failing_seeds(seeds(SEEDS.1), THREADS, failures_max, |seed| {
        let run = run(seed);
        let done = done.fetch_add(1, Relaxed) + 1;
        if done.is_multiple_of(PROGRESS) || !run.failures.is_empty() {
            eprintln!(
                "{done} seeds; seed {seed}: {}",
                run.failures.first().map_or("holds", |failure| failure)
            );
        }
        run
    });
    let reports: Vec<String> =
        failing.iter().filter_map(|seed| shrunk(&plan_of(*seed))).map(|shrunk| report(&shrunk)).collect();
    assert!(reports.is_empty(), "{}", reports.join("\n\n"));
}

/// For whoever asks whether any seed notices a change: stops at the first that does, and says so in one line.
#[test]
#[ignore = "a tool: answers whether a seed fails, and why"]
fn hunt() {
    let failing = fleet::failing_seeds(seeds(SEEDS.2), THREADS, 1, |seed| fleet::scenario(&plan_of(seed)));
    let Some(shrunk) = failing.first().and_then(|seed| shrunk(&plan_of(*seed))) else {
        return println!("SURVIVED seeds={:?}", seeds(SEEDS.2));
    };
    println!(
        "KILLED seed={} law={:?} story_lines={} troubles={} actions={} runs={}",
        shrunk.plan.seed,
        shrunk.law,
        shrunk.story().len(),
        shrunk.plan.troubles.len(),
        shrunk.plan.actions.len(),
        shrunk.runs,
    );
    panic!("{}", report(&shrunk));
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

#[test]
fn a_node_that_became_known_too_late_to_be_asked_is_not_taken_for_a_no() {
    fleet::known_too_late(FIXED).assert_good("cargo test -p drowse-e2e --test sim too_late");
}
