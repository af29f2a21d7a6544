//! The world itself, with small services of axum over the daemons' own HTTP pieces.

use std::{
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::State, routing::post};
use drowse_shared::{
    http::{Limits, client, serve, why},
    seams::Env,
    shutdown::Shutdown,
};
use tokio::time::{sleep, timeout};

use super::*;

const PATIENCE: Duration = Duration::from_secs(9);

/// A service that counts its calls on a disk that outlives it, and answers after `delay`.
fn counter(world: &World, name: &str, disk: &Arc<AtomicU64>, delay: Duration) {
    let (at, disk) = (format!("{name}:80"), disk.clone());
    world.host(name, move |env: Env| {
        let (at, disk) = (at.clone(), disk.clone());
        async move {
            let listener = env.net.bind(&at).await.expect("free");
            let count = |State((env, disk, delay)): State<(Env, Arc<AtomicU64>, Duration)>| async move {
                sleep(delay).await;
                let now = env.blocking("count", move || disk.fetch_add(1, Relaxed) + 1).await;
                now.map(|n| n.to_string()).unwrap_or_default()
            };
            let app = Router::new().route("/count", post(count)).with_state((env.clone(), disk, delay));
            serve(env, listener, app, Limits::default(), Shutdown::new()).await;
        }
    });
}

/// A host that does nothing by itself.
fn idle(world: &World, name: &str) {
    world.host(name, |_| async {});
}

/// One call, with a fresh client.
async fn call(env: Env, to: &str) -> Result<u16, String> {
    let request = http::Request::post(format!("http://{to}/count")).body(Body::empty()).expect("valid");
    match timeout(PATIENCE, client::<Body>(&env, Limits::default()).request(request)).await {
        Ok(Ok(response)) => Ok(response.status().as_u16()),
        Ok(Err(error)) => Err(why(&error)),
        Err(_) => Err("too late".to_owned()),
    }
}

async fn call_from(world: &World, host: &str, to: &'static str) -> Result<u16, String> {
    world.on(host, move |env| call(env, to)).await.unwrap_or_else(|| Err("fell".to_owned()))
}

fn good<T>(run: Run<T>) -> T {
    run.assert_good("cargo test -p drowse-e2e --lib sim");
    run.value.expect("no failure, so it ended")
}

#[test]
fn what_is_quicker_arrives_first_and_time_is_only_simulated() {
    let order = good(run(1, |world| async move {
        world.set_weather(Weather::CALM);
        let disk = Arc::default();
        counter(&world, "slow", &disk, Duration::from_secs(3000));
        counter(&world, "quick", &disk, Duration::from_secs(1));
        idle(&world, "c");
        sleep(Duration::from_millis(50)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let ask = |to: &'static str| {
            let order = order.clone();
            world.on("c", move |env| async move {
                let request = http::Request::post(format!("http://{to}:80/count")).body(Body::empty());
                let response = client::<Body>(&env, Limits::default()).request(request.expect("valid")).await;
                order.lock().expect("unpoisoned").push((to, response.is_ok()));
            })
        };
        tokio::join!(ask("slow"), ask("quick"));
        assert_eq!(world.elapsed().as_secs(), 3000);
        order.lock().expect("unpoisoned").clone()
    }));
    assert_eq!(order, [("quick", true), ("slow", true)]);
}

#[test]
fn a_cut_link_hangs_both_ways_and_goes_through_once_it_heals() {
    for (from, to) in [("c", "s"), ("s", "c")] {
        good(run(2, move |world| async move {
            world.set_weather(Weather::CALM);
            let disk = Arc::new(AtomicU64::new(0));
            counter(&world, "s", &disk, Duration::ZERO);
            idle(&world, "c");
            sleep(Duration::from_millis(50)).await;
            world.cut(from, to);
            let heal = async {
                sleep(Duration::from_secs(7)).await;
                assert_eq!(disk.load(Relaxed), 0);
                world.heal("c", "s");
            };
            let (answer, ()) = tokio::join!(call_from(&world, "c", "s:80"), heal);
            assert_eq!(answer, Ok(200));
            assert_eq!(world.elapsed().as_secs(), 7);
            world.cut(from, to);
            assert_eq!(call_from(&world, "c", "s:80").await, Err("too late".to_owned()));
        }));
    }
}

#[test]
fn one_message_is_held_then_released_or_reset() {
    for reset in [false, true] {
        good(run(3, move |world| async move {
            world.set_weather(Weather::CALM);
            let disk = Arc::new(AtomicU64::new(0));
            counter(&world, "s", &disk, Duration::ZERO);
            idle(&world, "c");
            sleep(Duration::from_millis(50)).await;
            let held = world.hold("c", "s", "POST /count");
            let late = async {
                assert!(held.arrived().await);
                assert_eq!(call_from(&world, "c", "s:80").await, Ok(200), "others pass");
                assert_eq!(disk.load(Relaxed), 1);
                sleep(Duration::from_secs(5)).await;
                if reset { held.reset() } else { held.release() }
            };
            let (answer, ()) = tokio::join!(call_from(&world, "c", "s:80"), late);
            let expected = if reset { (Err("connection reset".to_owned()), 1) } else { (Ok(200), 2) };
            assert_eq!((answer, disk.load(Relaxed)), expected);
        }));
    }
}

#[test]
fn a_request_held_until_its_caller_left_is_read_and_cut_at_its_first_wait() {
    good(run(4, |world| async move {
        world.set_weather(Weather::CALM);
        let disk = Arc::new(AtomicU64::new(0));
        counter(&world, "s", &disk, Duration::from_secs(1));
        idle(&world, "c");
        sleep(Duration::from_millis(50)).await;
        let held = world.hold("c", "s", "POST /count");
        assert_eq!(call_from(&world, "c", "s:80").await, Err("too late".to_owned()));
        held.release();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(disk.load(Relaxed), 0);
    }));
}

#[test]
fn a_fallen_process_resets_and_refuses_and_a_dead_machine_is_silent() {
    for (fall, during, after) in [
        (Fall::Process, "connection reset", Err("connection refused".to_owned())),
        (Fall::Power, "too late", Err("too late".to_owned())),
    ] {
        good(run(5, move |world| async move {
            world.set_weather(Weather::CALM);
            let disk = Arc::new(AtomicU64::new(0));
            counter(&world, "s", &disk, Duration::from_secs(2));
            idle(&world, "c");
            sleep(Duration::from_millis(50)).await;
            let crash = async {
                sleep(Duration::from_secs(1)).await;
                world.crash("s", fall);
            };
            let (answer, ()) = tokio::join!(call_from(&world, "c", "s:80"), crash);
            assert_eq!(answer, Err(during.to_owned()));
            assert_eq!(call_from(&world, "c", "s:80").await, after);
            assert_eq!(disk.load(Relaxed), 0, "a dead life does nothing");
            world.restart("s", Duration::from_secs(1)).await;
            sleep(Duration::from_millis(50)).await;
            assert_eq!(call_from(&world, "c", "s:80").await, Ok(200), "the next life listens again");
        }));
    }
}

/// Two clients, bad weather, a fall of the server at its `k`-th step. Answers whether it fell.
fn small(seed: u64, k: Option<u64>) -> Run<bool> {
    run(seed, move |world| async move {
        let disk = Arc::new(AtomicU64::new(0));
        counter(&world, "s", &disk, Duration::from_millis(20));
        idle(&world, "c1");
        idle(&world, "c2");
        sleep(Duration::from_millis(50)).await;
        world.crash_at("s", k, Fall::Process);
        let client = async |host: &str| {
            let mut acknowledged = 0;
            for _ in 0..4 {
                acknowledged += u64::from(call_from(&world, host, "s:80").await == Ok(200));
            }
            acknowledged
        };
        let (one, two) = tokio::join!(client("c1"), client("c2"));
        world.crash_at("s", None, Fall::Process);
        let fell = !world.is_up("s");
        if disk.load(Relaxed) < one + two {
            world.fail("an acknowledged call was not counted");
        }
        if fell {
            world.restart("s", Duration::from_millis(200)).await;
            sleep(Duration::from_millis(50)).await;
        }
        let answer = call_from(&world, "c1", "s:80").await;
        if answer != Ok(200) {
            world.fail(&format!("the service does not come back: {answer:?}"));
        }
        fell
    })
}

#[test]
fn every_step_of_a_small_scenario_can_be_the_last_and_each_fall_repeats() {
    let mut falls = 0;
    for k in 1.. {
        let once = small(9, Some(k));
        once.assert_same_story(&small(9, Some(k)));
        if !good(once) {
            break;
        }
        falls += 1;
    }
    assert!(falls > 50, "only {falls} steps");
}

#[test]
fn one_seed_is_one_story_and_another_seed_another() {
    for seed in 0..10 {
        let once = small(seed, None);
        once.assert_same_story(&small(seed, None));
        assert_ne!(once.story, small(seed + 1, None).story);
        good(once);
    }
}

const FINGERPRINT: &str = "fingerprint ";

#[test]
#[ignore = "run by `a_seed_is_the_same_story_in_another_process`"]
fn prints_a_fingerprint() {
    println!("{FINGERPRINT}{}", small(11, Some(60)).fingerprint());
}

#[test]
fn a_seed_is_the_same_story_in_another_process() {
    let here = small(11, Some(60)).fingerprint();
    let this = std::env::current_exe().expect("a test binary");
    let other = Command::new(this)
        .args(["--exact", "sim::tests::prints_a_fingerprint", "--ignored", "--nocapture"])
        .output()
        .expect("the test binary runs");
    let said = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(said.contains(&format!("{FINGERPRINT}{here}")), "here {here}, there:\n{said}");
}

#[test]
fn panics_and_stray_tasks_are_failures() {
    let panics = run(1, |world| async move {
        world.host("a", |env: Env| async move {
            env.spawn("bad", async { panic!("oh") });
            sleep(Duration::from_secs(1)).await;
        });
        sleep(Duration::from_secs(2)).await;
    });
    assert_eq!(panics.failures, ["a: task `bad` panicked: oh"]);
    let strays = run(1, |_world| async move {
        #[expect(clippy::disallowed_methods, reason = "the mistake this must notice")]
        tokio::spawn(std::future::pending::<()>());
    });
    assert!(strays.failures[0].contains("1 tasks outlived"), "{:?}", strays.failures);
    let scenario = run(1, |_world| async move { panic!("no") });
    assert_eq!(scenario.failures, ["the scenario panicked: no"]);
}
