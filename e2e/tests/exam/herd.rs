//! Many who want sleeping spaces at one moment.

use std::{fs, os::unix::fs::PermissionsExt};

use drowse_e2e::{
    fleet::{Fleet, Plan},
    ground::random_hex,
    wait::{seconds, timed},
};
use drowse_shared::api::{
    Code,
    exec::ExecResult,
    spaces::{Acquired, EventList, Happened, State},
};
use futures_util::future::{join_all, try_join_all};
use serde_json::{Value, json};
use tokio::{sync::Barrier, task::JoinSet};

use super::ports::Web;

/// runc that writes down when a container begins to start and when it has, and takes a little longer for it.
struct Runtime {
    dir: camino::Utf8PathBuf,
}

impl Runtime {
    fn new(pause: &str) -> Self {
        let dir = camino::Utf8PathBuf::from(format!("/tmp/herd-{}", random_hex(8)));
        fs::create_dir(&dir).expect("a fresh name");
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *' run '*) ;; *) exec runc \"$@\";; esac\n\
             echo + >> {dir}/log\nsleep {pause}\nrunc \"$@\"\ncode=$?\necho - >> {dir}/log\nexit $code\n"
        );
        fs::write(dir.join("runtime"), script).expect("our own folder");
        fs::set_permissions(dir.join("runtime"), fs::Permissions::from_mode(0o755)).expect("our own file");
        Self { dir }
    }

    fn under(&self, plan: Plan) -> Plan {
        plan.node_env("DROWSE_RUNTIME", self.dir.join("runtime"))
    }

    /// How many containers were started, and how many at most at once.
    fn starts(&self) -> (usize, usize) {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let (mut all, mut now, mut most) = (0, 0usize, 0);
        for line in log.lines() {
            if line == "+" {
                (all, now) = (all + 1, now + 1);
                most = most.max(now);
            } else {
                now -= 1;
            }
        }
        (all, most)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// How often the space was woken, and how it was the last time.
async fn woken(fleet: &Fleet, name: &str) -> (usize, Happened) {
    let told: EventList = fleet.door.call("listEvents", json!({ "name": name, "limit": 1000 })).await.ok();
    let wakes = [Happened::Thawed, Happened::Restarted];
    let wakes: Vec<_> =
        told.events.iter().map(|event| event.what).filter(|what| wakes.contains(what)).collect();
    (wakes.len(), wakes[0])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_who_want_a_sleeping_space_at_once_are_one_wake_and_a_hundred_answers() {
    let runtime = Runtime::new("0");
    let web = std::sync::Arc::new(Web::over(runtime.under(Fleet::real(1))).await);
    web.app("shop").await;
    web.fleet.write("shop", "kept", "safe").await;
    assert_eq!(runtime.starts().0, 1, "it was made");
    for (round, verb, how, starts) in
        [(1, "freezeSpace", Happened::Thawed, 1), (2, "stopSpace", Happened::Restarted, 2)]
    {
        web.fleet.door.turn(verb, "shop").await.ok();
        let barrier = std::sync::Arc::new(Barrier::new(100));
        let mut herd = JoinSet::new();
        for n in 0..100 {
            let (web, barrier) = (web.clone(), barrier.clone());
            herd.spawn(async move {
                let door = web.fleet.door.clone();
                barrier.wait().await;
                match n % 4 {
                    // One of them starts the app again that the others ask; a second one finds its port taken.
                    0 if n < 8 => {
                        let ran = door.detach("shop", "python3 app.py 127.0.0.1 8080").await.ok();
                        assert!(ran.detached);
                    }
                    0 => {
                        let ran: ExecResult = door.exec("shop", "cat kept").await.ok();
                        assert_eq!((ran.stdout.as_str(), ran.exit_code), ("safe", Some(0)));
                    }
                    1 => assert_eq!(door.read("shop", b"kept").await.octets(), b"safe"),
                    2 => assert_eq!(web.knock("shop", "/", "").await, (200, String::new())),
                    _ => {
                        let acquired: Acquired = door.acquire("shop").await.ok();
                        assert_eq!((acquired.created, acquired.space.state), (false, State::Active));
                    }
                }
            });
        }
        let (answers, took) = timed(herd.join_all()).await;
        assert_eq!(answers.len(), 100);
        eprintln!("{verb}: 100 answers in {took:?}");
        assert_eq!(woken(&web.fleet, "shop").await, (round, how), "after {verb}");
        assert_eq!(runtime.starts().0, starts, "after {verb}");
    }
    let web = std::sync::Arc::into_inner(web).expect("the herd is gone");
    web.fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_cold_spaces_wanted_at_once_take_turns_and_all_come() {
    let runtime = Runtime::new("0.05");
    let plan = runtime.under(Fleet::real(1)).node_env("DROWSE_STARTS_MAX", 3);
    let web = Web::over(plan).await;
    let fleet = &web.fleet;
    let names: Vec<String> = (0..50).map(|n| format!("cold-{n}")).collect();
    let door = &fleet.door;
    let making = names.chunks(10).map(|part| async move {
        let mut ids = Vec::new();
        for name in part {
            ids.push(fleet.acquire(name).await.space.id);
            door.turn("stopSpace", name).await.ok();
        }
        ids
    });
    let ids = join_all(making).await.concat();
    assert_eq!(runtime.starts().0, 50);
    let waking = names.iter().map(|name| async move {
        let wish = json!({ "name": name, "command": "echo up" });
        let ran = door.attempt::<ExecResult>("execCommand", &wish).await?;
        // Whoever waited too long is told so, and comes again.
        if ran.status == 200 {
            assert_eq!(ran.ok().stdout, "up\n", "{name}");
            return Ok::<_, reqwest::Error>(1);
        }
        ran.refused(&Code::NodeBusy);
        assert_eq!(fleet.exec(name, "echo up").await, "up");
        Ok(0)
    });
    // Every fifth is wanted by its host as well: an app that starts with its space is waited for.
    let (asked, door) = (&web, &fleet.door);
    let knocking = names.iter().zip(&ids).step_by(5).map(|(name, id)| async move {
        let (label, app) = (format!("8080-{id}"), app(name));
        let (detached, page) =
            tokio::join!(door.attempt::<ExecResult>("execCommand", &app), asked.get(&label, "/"));
        match page.status {
            200 => assert_eq!(page.body, "up", "{name}"),
            _ => assert!(page.status == 503 && page.body.contains("node_busy"), "{name}: {}", page.body),
        }
        detached.expect("answered").status == 200
    });
    let ((first, _), took) = timed(async { tokio::join!(try_join_all(waking), join_all(knocking)) }).await;
    let first: usize = first.expect("every one is answered").into_iter().sum();
    let (all, most) = runtime.starts();
    eprintln!("50 cold spaces: {first} at the first try, {took:?}, {most} at once at most");
    assert_eq!((all, most), (100, 3), "no more starts than spaces, and never more than three at once");
    let metrics = fleet.node("n1").door.page("/metrics").await.text();
    assert!(metrics.contains("drowse_node_starts_total{end=\"done\"} 100"), "{metrics}");
    assert!(metrics.contains("drowse_node_starts_waiting 0"), "{metrics}");
    web.fleet.end().await;
}

/// Starts an app that answers at once.
fn app(name: &str) -> Value {
    let app = "use IO::Socket; $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 8080, Listen => 9); \
               while ($c = $s->accept) { sysread $c, $_, 4096; \
               print $c \"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nup\"; close $c }";
    json!({ "name": name, "argv": ["perl", "-e", app], "detach": true })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_s_turn_to_start_does_not_come_is_told_so_and_nothing_of_it_is_left() {
    let runtime = Runtime::new("3");
    let plan = runtime.under(Fleet::real(1)).node_env("DROWSE_STARTS_MAX", 1);
    let fleet = plan.node_env("DROWSE_START_WAIT", "1s").start().await;
    fleet.acquire("cold").await;
    fleet.door.turn("stopSpace", "cold").await.ok();
    let door = &fleet.door;
    let first = async { door.acquire("first").await.ok() };
    let late = async {
        // Not before the first one has its turn.
        drowse_e2e::wait::eventually("the first one starts", seconds(20), || async {
            (runtime.starts().0 == 2).then_some(())
        })
        .await;
        let new = door.acquire("new");
        let old = door.exec("cold", "true");
        let ((new, old), took) = timed(async { tokio::join!(new, old) }).await;
        for refused in [new.refused(&Code::NodeBusy), old.refused(&Code::NodeBusy)] {
            assert!(refused.message.contains("1 spaces at once"), "{refused}");
        }
        assert!(took < seconds(3), "{took:?}");
        assert_eq!(fleet.get("cold").await.state, State::Stopped, "as it was");
        door.call::<Value>("getSpace", json!({ "name": "new" })).await.refused(&Code::SpaceNotFound);
    };
    tokio::join!(first, late);
    assert_eq!(fleet.exec("cold", "echo up").await, "up");
    assert!(fleet.acquire("new").await.created);
    assert_eq!(fleet.disks().len(), 3);
    fleet.end().await;
}
