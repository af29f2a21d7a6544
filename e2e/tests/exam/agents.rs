//! Daemons come and go, also as another build; what runs in spaces does not notice.

use std::{
    collections::BTreeSet,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_e2e::{
    daemon::binary,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::spaces::State;

use super::streams::Terminal;

/// The agent of another build: another program to the node, with one more byte at its end.
fn rebuilt(fleet: &Fleet, number: u8) -> Utf8PathBuf {
    let path = fleet.ground.root.join(format!("agent-{number}"));
    std::fs::copy(binary("drowse-agent"), &path).expect("copied");
    let mut file = std::fs::File::options().append(true).open(&path).expect("ours");
    file.write_all(&[number]).expect("written");
    path
}

/// The node dies and comes back as a build with this agent.
async fn updated(fleet: &mut Fleet, agent: &Utf8Path) {
    fleet.kill("n1");
    fleet.node_mut("n1").daemon.set("DROWSE_AGENT", agent);
    fleet.revive("n1").await;
}

/// The agents that lie at the node, as files.
fn agents(fleet: &Fleet) -> BTreeSet<u64> {
    let dir = fleet.node("n1").state.join("agents");
    let found = std::fs::read_dir(dir).expect("it started once").filter_map(|entry| {
        let agent = entry.expect("readable").path().join("drowse-agent");
        // One that is being removed is none any more.
        std::fs::metadata(agent).ok().map(|found| found.ino())
    });
    found.collect()
}

/// The first process of a space, by the host's number: its pid, its start, and which file it is of.
fn first_process(fleet: &Fleet, id: &str) -> (u32, String, u64) {
    let pid =
        std::fs::read_to_string(fleet.ground.run.join("0").join(id).join("bundle/pid")).expect("it runs");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let start = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20)).expect("a field").to_owned();
    let file = std::fs::metadata(format!("/proc/{pid}/exe")).expect("we are root").ino();
    (pid.parse().expect("a number"), start, file)
}

fn ticks(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).filter(|line| line.starts_with("tick ")).collect()
}

#[tokio::test]
async fn an_agent_is_replaced_in_place_and_what_runs_goes_on() {
    let mut fleet = Fleet::real(1).start().await;
    let (a, b) = (fleet.acquire("a").await.space.id, fleet.acquire("b").await.space.id);
    let [a, b] = [a, b].map(|id| id.to_string());
    let tick = "i=0; until [ -e stop ]; do echo tick $i; echo >>ticked; i=$((i+1)); sleep 0.02; done; read x; echo got $x; exit 33";
    let query = format!("space=a&tag=main&command={}", drowse_e2e::door::escape(tick.as_bytes()));
    let mut terminal = Terminal::open(&fleet, &query).await.expect("opened");
    terminal.shows("tick 3").await;
    let pid = terminal.started.pid;
    let wait = |end: &str| format!("echo early; until [ -e go ]; do sleep 0.05; done; echo late; {end}");
    let job = fleet.detach("a", &wait("exit 44")).await;
    let ended = fleet.detach("a", "echo out; exit 5").await;
    let slept = fleet.detach("b", &wait("exit 45")).await;
    fleet.freeze("b").await;
    let before = [&a, &b].map(|id| first_process(&fleet, id));
    let first = agents(&fleet);
    assert!(first.len() == 1 && before.iter().all(|(_, _, file)| first.contains(file)));

    let rebuilt = rebuilt(&fleet, 1);
    updated(&mut fleet, &rebuilt).await;
    drop(terminal);
    eventually("the agent of the space that runs is replaced", seconds(20), || async {
        (first_process(&fleet, &a).2 != before[0].2).then_some(())
    })
    .await;
    let now = first_process(&fleet, &a);
    assert_eq!((now.0, &now.1), (before[0].0, &before[0].1), "it is the same process");
    assert_eq!(first_process(&fleet, &b), before[1], "what is frozen is left alone");
    assert_eq!(fleet.get("b").await.state, State::Frozen);
    assert_eq!(agents(&fleet).len(), 2, "the agent of the frozen space stays");

    let ticked: u32 = fleet.exec("a", "wc -l <ticked").await.parse().expect("a number");
    let mut on = Terminal::open(&fleet, "space=a&tag=main").await.expect("joined");
    on.shows(&format!("tick {}", ticked + 1)).await;
    let mut back = Terminal::open(&fleet, "space=a&tag=main").await.expect("joined");
    assert!(back.started.joined && back.started.pid == pid);
    back.types("hello\n").await;
    fleet.exec("a", "touch stop go").await;
    let (seen, end) = back.heard_out().await;
    let seen = String::from_utf8(seen).expect("text");
    let counted = ticks(&seen);
    let wanted: Vec<_> = (0..counted.len()).map(|n| format!("tick {n}")).collect();
    assert!(counted == wanted, "every tick once, in order: {seen}");
    assert!(seen.contains("got hello") && end.exit_code == 33, "{end:?}");
    for (pid, text, code) in [(job, "early\nlate\n", 44), (ended, "out\n", 5)] {
        let joined = Terminal::open(&fleet, &format!("space=a&pid={pid}")).await.expect("joined");
        let (seen, end) = joined.heard_out().await;
        assert_eq!((String::from_utf8_lossy(&seen).as_ref(), end.exit_code), (text, code));
    }

    // The frozen one follows when it is woken, before it is used.
    fleet.exec("b", "touch go").await;
    assert_eq!(first_process(&fleet, &b).2, now.2);
    let joined = Terminal::open(&fleet, &format!("space=b&pid={slept}")).await.expect("joined");
    let (seen, end) = joined.heard_out().await;
    assert_eq!((String::from_utf8_lossy(&seen).as_ref(), end.exit_code), ("early\nlate\n", 45));
    let only = || async { (agents(&fleet) == BTreeSet::from([now.2])).then_some(()) };
    eventually("agents that nobody runs are removed", seconds(20), only).await;
    fleet.end().await;
}

#[tokio::test]
async fn an_agent_that_cannot_be_replaced_goes_on_and_it_is_said() {
    let mut fleet = Fleet::real(1).start().await;
    let id = fleet.acquire("a").await.space.id.to_string();
    let job = fleet.detach("a", "until [ -e go ]; do sleep 0.05; done; exit 7").await;
    let before = first_process(&fleet, &id);
    let broken = fleet.ground.root.join("broken");
    std::fs::write(&broken, "#!/bin/sh\necho no agent\n").expect("written");
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).expect("ours");
    updated(&mut fleet, &broken).await;
    let said = || async {
        let log = fleet.node("n1").daemon.log();
        log.contains("it keeps the agent of another build").then_some(())
    };
    eventually("it is said", seconds(20), said).await;
    let metrics = fleet.node("n1").door.page("/metrics").await.text();
    assert!(metrics.contains("drowse_node_old_agents 1\n"), "{metrics}");
    assert_eq!(first_process(&fleet, &id), before);
    assert_eq!(fleet.exec("a", "echo on").await, "on");
    assert_eq!(agents(&fleet).len(), 2);

    let rebuilt = rebuilt(&fleet, 1);
    updated(&mut fleet, &rebuilt).await;
    let now = || async { (first_process(&fleet, &id).2 != before.2).then_some(()) };
    eventually("a build that can replaces it", seconds(20), now).await;
    fleet.exec("a", "touch go").await;
    let joined = Terminal::open(&fleet, &format!("space=a&pid={job}")).await.expect("joined");
    assert_eq!(joined.heard_out().await.1.exit_code, 7);
    eventually("the others are removed", seconds(20), || async { (agents(&fleet).len() == 1).then_some(()) })
        .await;
    let metrics = fleet.node("n1").door.page("/metrics").await.text();
    assert!(metrics.contains("drowse_node_old_agents 0\n"), "{metrics}");
    fleet.end().await;
}

/// Starts a command, leaves, kills the node and starts it again; joins the command after a while.
async fn joined_after(wait: Duration) {
    let mut fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let count = "i=0; until [ -e stop ]; do echo tick $i; i=$((i+1)); sleep 0.02; done; echo end; exit 9";
    let pid = fleet.detach("a", count).await;
    let start = format!("cut -d' ' -f22 /proc/{pid}/stat");
    let before = fleet.exec("a", &start).await;
    fleet.kill("n1");
    fleet.revive("n1").await;
    tokio::time::sleep(wait).await;
    assert_eq!(fleet.exec("a", &start).await, before, "the same process");
    let joined = Terminal::open(&fleet, &format!("space=a&pid={pid}")).await.expect("joined");
    assert_eq!(joined.started.pid, pid);
    fleet.exec("a", "touch stop").await;
    let (seen, end) = joined.heard_out().await;
    let seen = String::from_utf8(seen).expect("text");
    let counted = ticks(&seen);
    let wanted: Vec<_> = (0..counted.len()).map(|n| format!("tick {n}")).collect();
    assert!(counted == wanted && seen.ends_with("end\n"), "every tick once, in order: {seen}");
    assert!(counted.len() as u128 > wait.as_millis() / 50, "{} ticks in {wait:?}", counted.len());
    assert_eq!(end.exit_code, 9);
    fleet.end().await;
}

#[tokio::test]
async fn a_command_outlives_its_client_and_the_node_and_is_joined_by_its_pid() {
    joined_after(seconds(3)).await;
}

#[tokio::test]
#[ignore = "takes more than a minute"]
async fn soak_a_command_is_joined_by_its_pid_seventy_seconds_after_its_node_was_killed() {
    joined_after(seconds(70)).await;
}
