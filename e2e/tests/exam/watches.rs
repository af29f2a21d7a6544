//! Directories under watch, through gateway and node.

use std::{collections::BTreeSet, time::Duration};

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{
    Code,
    spaces::{Resumed, State},
    watch::{Change, WatchEvent},
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// A watch and what it has not been asked for yet.
struct Watch {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Watch {
    /// Opens one; it has said that it began.
    async fn begin(fleet: &Fleet, wish: Value) -> (Self, Option<Resumed>) {
        let mut watch = Self { response: fleet.door.stream("watchFiles", &wish).await, buffer: Vec::new() };
        match watch.says().await {
            Some(WatchEvent::Started(started)) => (watch, started.resumed),
            other => panic!("{other:?}"),
        }
    }

    async fn of(fleet: &Fleet, path: &str) -> Self {
        Self::begin(fleet, json!({ "name": "a", "path": path, "recursive": true })).await.0
    }

    /// The next line; `None` when it was cut.
    async fn says(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line is an event"));
            }
            match timeout(seconds(30), self.response.chunk()).await.expect("in time") {
                Ok(Some(piece)) => self.buffer.extend_from_slice(&piece),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The next change.
    async fn next(&mut self) -> (Change, String) {
        loop {
            match self.says().await {
                Some(WatchEvent::Changed(change)) => return (change.change, change.path),
                Some(WatchEvent::Alive {}) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Names that are made, up to this one.
    async fn made_until(&mut self, last: &str) -> Vec<String> {
        let mut made = Vec::new();
        while made.last().is_none_or(|name| name != last) {
            if let (Change::Create, name) = self.next().await {
                made.push(name);
            }
        }
        made
    }
}

/// Queues for changes that the first process of a space holds, by the host's number of it.
fn queues(pid: &str) -> usize {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("inotify")).count()
}

#[tokio::test]
async fn a_watch_tells_all_that_happens_once_it_began() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    for round in 0..20 {
        let mut watch = Watch::of(&fleet, "/home/user").await;
        let name = format!("now{round}");
        fleet.write("a", &name, "x").await;
        assert_eq!(watch.next().await, (Change::Create, name));
    }
    let mut watch = Watch::of(&fleet, "/home/user").await;
    for round in 0..10 {
        fleet.exec("a", &format!("mkdir -p a{round}/b/c && touch a{round}/b/c/f")).await;
        let wanted = ["", "/b", "/b/c", "/b/c/f"].map(|path| format!("a{round}{path}"));
        assert_eq!(watch.made_until(&wanted[3]).await, wanted, "each once, parents first");
    }
    drop(watch);
    let mut watch = Watch::of(&fleet, "/home/user").await;
    fleet.exec("a", "mv now0 then; rm then; chmod 600 now1; mkdir $'\\xff'").await;
    let wanted = [
        (Change::Rename, "now0"),
        (Change::Create, "then"),
        (Change::Remove, "then"),
        (Change::Chmod, "now1"),
    ];
    for (change, path) in wanted {
        assert_eq!(watch.next().await, (change, path.to_owned()));
    }
    let Some(WatchEvent::Changed(strange)) = watch.says().await else { panic!("no change") };
    assert_eq!((strange.path.as_str(), strange.path_base64.as_deref()), ("\u{fffd}", Some("/w==")));

    // Quiet, it lets the space sleep and goes on with it.
    assert_eq!(fleet.freeze("a").await.state, State::Frozen);
    fleet.exec("a", "touch woken").await;
    assert_eq!(watch.next().await, (Change::Create, "woken".to_owned()));
    fleet.freeze("a").await;
    let wish = json!({ "name": "a", "user": "root", "path": "/etc" });
    let (mut other, resumed) = Watch::begin(&fleet, wish).await;
    assert_eq!(resumed, Some(Resumed::Thawed));
    fleet
        .exec("a", "sudo touch /etc/one; sudo mkdir /etc/sub; sudo touch /etc/sub/none; sudo touch /etc/two")
        .await;
    assert_eq!(other.made_until("two").await, ["one", "sub", "two"], "not recursive");

    for (wish, code) in [
        (json!({ "name": "a", "path": "nowhere" }), Code::FileNotFound),
        (json!({ "name": "a", "path": "now2" }), Code::NotAFile),
        (json!({ "name": "a", "path": "/root" }), Code::PermissionDenied),
        (json!({ "name": "a", "user": "nobody-here" }), Code::UnknownUser),
        (json!({ "name": "nobody" }), Code::SpaceNotFound),
        (json!({ "name": "a", "path": "" }), Code::InvalidRequest),
        (json!({ "name": "a", "colour": 1 }), Code::InvalidRequest),
    ] {
        fleet.door.call::<Value>("watchFiles", wish).await.refused(&code);
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_watch_of_more_than_can_be_told_says_so() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.exec("a", "mkdir many").await;
    let mut watch = Watch::of(&fleet, "many").await;
    fleet.exec("a", "cd many && seq 20000 | xargs touch").await;
    let wanted: BTreeSet<String> = (1..=20_000).map(|n: u32| n.to_string()).collect();
    let mut seen = BTreeSet::new();
    let lost = loop {
        match watch.says().await.expect("it is not cut") {
            WatchEvent::Changed(change) if change.change == Change::Create => {
                assert!(seen.insert(change.path.clone()), "{} is told once", change.path);
            }
            WatchEvent::Changed(_) | WatchEvent::Alive {} => {}
            WatchEvent::Overflow(overflow) => break Some(overflow.message),
            other => panic!("{other:?}"),
        }
        if seen.len() == wanted.len() {
            break None;
        }
    };
    assert!(lost.is_some() || seen == wanted, "{} of 20000", seen.len());
    println!("20,000 files: {} told, overflow: {lost:?}", seen.len());

    // Whoever does not read is told of the loss once he does, and nobody keeps it all for him.
    let mut watch = Watch::of(&fleet, "many").await;
    fleet
        .exec(
            "a",
            "cd many && for i in 1 2 3 4 5 6 7 8; do seq 20000 | xargs rm -f; seq 20000 | xargs touch; done",
        )
        .await;
    let ends = async {
        loop {
            match watch.says().await.expect("it is not cut") {
                WatchEvent::Changed(_) | WatchEvent::Alive {} => {}
                other => break other,
            }
        }
    };
    let WatchEvent::Overflow(overflow) = timeout(seconds(60), ends).await.expect("in time") else {
        panic!("it is no overflow")
    };
    assert!(overflow.message.contains("watch anew"), "{}", overflow.message);
    assert_eq!(watch.says().await, None, "it is the last line");
    fleet.end().await;
}

#[tokio::test]
async fn a_watch_ends_with_its_client_and_with_its_space() {
    let fleet = Fleet::real(1).start().await;
    let id = fleet.acquire("a").await.space.id.to_string();
    let pid =
        std::fs::read_to_string(fleet.ground.run.join("0").join(&id).join("bundle/pid")).expect("it runs");
    assert_eq!(queues(&pid), 0);
    let mut watches = Vec::new();
    for _ in 0..16 {
        watches.push(Watch::of(&fleet, "/home/user").await);
    }
    assert!(queues(&pid) >= 16, "{}", queues(&pid));
    drop(watches);
    eventually("the queues of clients that left are gone", seconds(10), || async {
        (queues(&pid) == 0).then_some(())
    })
    .await;

    // Its space stops: it says so.
    let mut watch = Watch::of(&fleet, "/home/user").await;
    fleet.door.turn("stopSpace", "a").await.ok();
    let last = loop {
        match watch.says().await {
            Some(WatchEvent::Alive {} | WatchEvent::Changed(_)) => {}
            last => break last,
        }
    };
    assert!(matches!(last, Some(WatchEvent::Failed(_))), "{last:?}");

    let (mut watch, resumed) = Watch::begin(&fleet, json!({ "name": "a" })).await;
    assert_eq!(resumed, Some(Resumed::Restarted));
    let (destroyed, took) = timed(fleet.destroy("a")).await;
    assert!(destroyed && took < seconds(10), "{took:?}");
    let last = loop {
        match watch.says().await {
            Some(WatchEvent::Alive {} | WatchEvent::Changed(_)) => {}
            last => break last,
        }
    };
    assert!(matches!(last, Some(WatchEvent::Failed(_))), "{last:?}");
    // What the daemons had open for it is closed.
    let quiet = || async {
        let text = fleet.node("n1").door.page("/metrics").await.text();
        let open = text
            .lines()
            .find_map(|line| line.strip_prefix("drowse_node_tasks{name=\"agent\"} ")?.parse::<u32>().ok());
        (open.unwrap_or(0) == 0).then_some(())
    };
    eventually("the node has no connection to an agent", Duration::from_secs(10), quiet).await;
    fleet.end().await;
}
