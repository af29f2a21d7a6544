use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex},
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_node::{
    adopt::{Error, Moment, Options, Outcome, Report, Watch, adopt, note},
    ledger::{
        Database, Ledger,
        execs::{Came, Exec},
        identity,
    },
    space::{Space, State},
};
use drowse_shared::{
    api::{
        exec::OutputEncoding,
        spaces::{Policy, Spec, Template},
    },
    id::{Epoch, LedgerId, SpaceId},
    name::SpaceName,
    seams::Env,
};

use crate::harness::Ground;

/// Two state directories, and templates.
struct Machines {
    _dirs: [tempfile::TempDir; 2],
    from: Utf8PathBuf,
    to: Utf8PathBuf,
    templates: Utf8PathBuf,
    copy: bool,
    env: Env,
}

/// Remembers how far it got; dies when told to.
#[derive(Default)]
struct Doom {
    at: Option<(Moment, usize)>,
    reached: Mutex<Vec<Moment>>,
}

impl Watch for Doom {
    fn reached(&self, moment: Moment) {
        let mut reached = self.reached.lock().expect("nobody panics with it");
        reached.push(moment);
        let times = reached.iter().filter(|m| **m == moment).count();
        drop(reached);
        assert!(self.at != Some((moment, times)), "killed");
    }

    fn copied(&self, _: &SpaceName, _: u64, _: u64) {}
}

const DIGEST: &str = "blake3:abababababababababababababababababababababababababababababababab";

impl Machines {
    async fn new(from: &str, copy: bool) -> Self {
        let (source, target) = (
            tempfile::Builder::new().prefix("drw-adopt-").tempdir_in(from).expect("a directory"),
            tempfile::Builder::new().prefix("drw-adopt-").tempdir_in("/tmp").expect("a directory"),
        );
        let path = |dir: &tempfile::TempDir| Utf8PathBuf::try_from(dir.path().to_owned()).expect("UTF-8");
        let templates = path(&target).join("templates");
        let template = templates.join(DIGEST.trim_start_matches("blake3:"));
        fs::create_dir_all(template.join("rootfs")).expect("made");
        fs::write(template.join("manifest.json"), "{}").expect("written");
        let machines = Self {
            from: path(&source).join("state"),
            to: path(&target).join("state"),
            _dirs: [source, target],
            templates,
            copy,
            env: Env::real(),
        };
        for state in [&machines.from, &machines.to] {
            let ledger = machines.ledger(state).await;
            identity::keep(&ledger, state, LedgerId::mint(&machines.env)).await.expect("kept");
        }
        machines
    }

    async fn ledger(&self, state: &Utf8Path) -> Ledger {
        Ledger::open(&self.env, state, Database::File).await.expect("a ledger")
    }

    /// A space of a node, with a disk.
    async fn make(&self, state: &Utf8Path, name: &str, is: State) -> Space {
        let ledger = self.ledger(state).await;
        let own = identity::written(&ledger, state).await.expect("read").expect("it has one");
        let now = self.env.clock.wall();
        let space = Space {
            id: SpaceId::mint(&self.env),
            name: name.parse().expect("a name"),
            state: is,
            epoch: Epoch::FIRST,
            created_at: now,
            last_active_at: now,
            policy: Policy { freeze_after_seconds: Some(77), ..Policy::default() },
            spec: Spec::default(),
            template: Template { name: "base".to_owned(), digest: DIGEST.to_owned() },
            metadata: [("name".to_owned(), name.to_owned())].into(),
        };
        ledger.insert(&space, None).await.expect("inserted");
        let dir = state.join("spaces").join(space.id.to_string());
        fs::create_dir_all(&dir).expect("made");
        let image = fs::File::create_new(dir.join("disk.img")).expect("made");
        image.set_len(8 << 20).expect("sparse");
        image.write_all_at(name.as_bytes(), 5 << 20).expect("written");
        // The card is older than the row.
        let card = Space { metadata: [("name".to_owned(), "old".to_owned())].into(), ..space.clone() };
        fs::write(dir.join("space.json"), serde_json::to_vec(&card.card(own)).expect("plain"))
            .expect("written");
        space
    }

    fn options(&self) -> Options {
        Options {
            dir: self.from.clone(),
            state: self.to.clone(),
            templates: self.templates.clone(),
            gateways: Vec::new(),
            token: None,
            dry_run: false,
            copy: self.copy,
        }
    }

    async fn adopt(&self) -> Result<Report, Error> {
        adopt(&self.env, &self.options(), Arc::new(Doom::default())).await
    }

    /// Runs until it dies at `at`; what it reached.
    async fn killed(&self, at: Option<(Moment, usize)>) -> Vec<Moment> {
        let (env, options) = (self.env.clone(), self.options());
        let doom = Arc::new(Doom { at, ..Doom::default() });
        let watch = doom.clone();
        let task = async move { adopt(&env, &options, watch).await.map(drop) };
        let ended = self.env.finish("adopt", task).await;
        assert_eq!(ended.is_none(), at.is_some(), "it dies at {at:?}");
        let reached = doom.reached.lock().expect("nobody panics with it");
        reached.clone()
    }

    /// Ids whose disks a daemon would find in a state directory.
    fn disks(&self, state: &Utf8Path) -> BTreeSet<String> {
        let Ok(entries) = fs::read_dir(state.join("spaces")) else { return BTreeSet::new() };
        let names = entries.map(|entry| entry.expect("read").file_name().into_string().expect("UTF-8"));
        names.filter(|name| SpaceId::is_shape_of(name)).collect()
    }

    /// Everything there is beside disks.
    fn rest(&self, state: &Utf8Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(state.join("spaces")) else { return Vec::new() };
        let names = entries.map(|entry| entry.expect("read").file_name().into_string().expect("UTF-8"));
        names.filter(|name| !SpaceId::is_shape_of(name)).collect()
    }

    async fn rows(&self, state: &Utf8Path) -> Vec<Space> {
        self.ledger(state).await.all().await.expect("read")
    }

    /// The space is here, whole, exactly once, and its row is right.
    async fn is_here(&self, space: &Space) {
        let dir = self.to.join("spaces").join(space.id.to_string());
        let image = fs::read(dir.join("disk.img")).expect("its disk is here");
        assert_eq!(image.len(), 8 << 20);
        let name = space.name.as_str().as_bytes();
        assert_eq!(&image[5 << 20..(5 << 20) + name.len()], name, "its data is here");
        let row =
            self.rows(&self.to).await.into_iter().find(|row| row.id == space.id).expect("its row is here");
        let expected = Space { state: State::Stopped, epoch: row.epoch, ..space.clone() };
        assert_eq!(row, expected, "id, name, metadata, policy and createdAt are as they were");
        assert!(row.epoch > space.epoch, "it changed hands");
        let own = identity::in_file(&self.to).expect("read");
        let card: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("space.json")).expect("read")).expect("a card");
        assert_eq!(card["ledgerId"].as_str(), own.map(|id| id.to_string()).as_deref());
        assert_eq!(card["metadata"]["name"], space.name.as_str(), "the card is as new as the row was");
    }
}

/// Where a source lies, and whether it is copied.
const WAYS: [(&str, bool); 3] = [("/tmp", false), ("/dev/shm", false), ("/tmp", true)];

#[tokio::test]
async fn adopting_killed_anywhere_and_run_again_loses_nothing_and_doubles_nothing() {
    let mut met = BTreeSet::new();
    for (place, copy) in WAYS {
        let rehearsal = Machines::new(place, copy).await;
        for name in ["a", "b"] {
            rehearsal.make(&rehearsal.from, name, State::Active).await;
        }
        let moments = rehearsal.killed(None).await;
        for (at, moment) in moments.iter().enumerate() {
            let times = moments[..=at].iter().filter(|m| *m == moment).count();
            if times > 1 && (place, copy) != WAYS[0] {
                continue;
            }
            let machines = Machines::new(place, copy).await;
            let spaces = [
                machines.make(&machines.from, "a", State::Active).await,
                machines.make(&machines.from, "b", State::Frozen).await,
            ];
            machines.killed(Some((*moment, times))).await;
            met.insert(*moment);
            let (there, here) = (machines.disks(&machines.from), machines.disks(&machines.to));
            if copy {
                let refused = note::refuse(&machines.from, None).expect_err("it must not run any more");
                assert!(refused.to_string().contains("twice"), "{refused}");
            } else {
                let both: Vec<_> = there.intersection(&here).collect();
                assert!(both.is_empty(), "{place} {moment:?}: {both:?} lie at two places");
                for row in machines.rows(&machines.from).await {
                    assert!(there.contains(&row.id.to_string()), "{moment:?}: a row without its disk");
                }
            }
            for row in machines.rows(&machines.to).await {
                assert!(here.contains(&row.id.to_string()), "{moment:?}: a row without its disk");
            }

            // Twice: what is done stays done.
            for _ in 0..2 {
                let report = machines.adopt().await.expect("it goes on");
                assert!(report.spaces.iter().all(|row| row.outcome.is_done()), "{moment:?}: {report:?}");
            }
            for space in &spaces {
                machines.is_here(space).await;
            }
            assert_eq!(machines.rows(&machines.to).await.len(), 2);
            assert_eq!(machines.rest(&machines.to), [""; 0], "{place} {moment:?}: nothing half done is left");
            if !copy {
                assert_eq!(machines.rows(&machines.from).await, [], "the source knows them no more");
                assert_eq!(machines.disks(&machines.from), BTreeSet::new());
                assert_eq!(machines.rest(&machines.from), [""; 0], "{place} {moment:?}");
                assert!(note::refuse(&machines.from, None).is_ok(), "an empty node may run");
            }
        }
    }
    assert_eq!(met, BTreeSet::from(Moment::ALL), "every moment is met");
}

#[tokio::test]
async fn what_cannot_be_taken_stays_where_it_is_and_is_named() {
    let machines = Machines::new("/tmp", false).await;
    let (from, to) = (machines.from.clone(), machines.to.clone());
    let good = machines.make(&from, "good", State::Active).await;
    machines.make(&to, "taken", State::Stopped).await;
    let taken = machines.make(&from, "taken", State::Active).await;
    let cut = machines.make(&from, "cut", State::Destroying).await;
    let used = machines.make(&from, "used", State::Active).await;
    let newer = machines.make(&from, "newer", State::Active).await;
    let bare = machines.make(&from, "bare", State::Active).await;
    let gone = machines.make(&from, "gone", State::Active).await;
    let at = |space: &Space, file: &str| from.join("spaces").join(space.id.to_string()).join(file);
    let card = fs::read_to_string(at(&newer, "space.json")).expect("read");
    fs::write(at(&newer, "space.json"), card.replace("\"minReader\":1", "\"minReader\":2")).expect("written");
    fs::remove_file(at(&bare, "space.json")).expect("removed");
    fs::remove_dir_all(from.join("spaces").join(gone.id.to_string())).expect("removed");
    let image = fs::File::open(at(&used, "disk.img")).expect("there");
    rustix::fs::flock(&image, rustix::fs::FlockOperation::LockExclusive).expect("locked");

    let exec = Exec {
        space: good.id,
        key: "k".to_owned(),
        body: "b".to_owned(),
        tag: "t".to_owned(),
        detached: false,
        encoding: OutputEncoding::Utf8,
        timeout_seconds: 300,
        shown: "make".to_owned(),
        started_at: jiff::Timestamp::UNIX_EPOCH,
    };
    machines.ledger(&from).await.begin_exec(exec.clone()).await.expect("begun");

    let mut dry = machines.options();
    dry.dry_run = true;
    let report = adopt(&machines.env, &dry, Arc::new(Doom::default())).await.expect("a dry run");
    assert!(report.dry_run && report.spaces.len() == 7, "{report:?}");
    assert_eq!((machines.disks(&to).len(), machines.disks(&from).len()), (1, 6), "nothing moved");

    let report = machines.adopt().await.expect("it runs");
    let of = |space: &Space| report.spaces.iter().find(|row| row.id == space.id).expect("named").clone();
    assert_eq!(of(&good).outcome, Outcome::Moved);
    assert_eq!(of(&bare).outcome, Outcome::Moved, "the ledger says what it is");
    assert_eq!(of(&taken).outcome, Outcome::Conflict);
    assert_eq!(of(&cut).outcome, Outcome::Unfinished);
    assert_eq!(of(&used).outcome, Outcome::InUse);
    assert_eq!(of(&newer).outcome, Outcome::NewerFormat);
    assert_eq!(of(&gone).outcome, Outcome::NoDisk);
    for left in [&taken, &cut, &used, &newer] {
        assert!(at(left, "disk.img").is_file(), "{} stays", left.name);
        assert!(of(left).detail.len() > 20, "{} is explained", left.name);
        assert_eq!(of(left).name.as_ref(), Some(&left.name));
    }
    machines.is_here(&good).await;
    machines.is_here(&bare).await;
    let came = machines.ledger(&to).await.exec(good.id, "k").await.expect("read");
    assert!(
        matches!(came, Some((brought, Some(Came::Unknown(_)))) if brought == exec),
        "a command with a key is not run again on another machine"
    );

    // What stood in the way is gone.
    drop(image);
    fs::remove_dir_all(&machines.templates).expect("removed");
    let report = machines.adopt().await.expect("again");
    let row = report.spaces.iter().find(|row| row.id == used.id).expect("named");
    assert_eq!(row.outcome, Outcome::TemplateMissing);
    assert!(report.remains.iter().any(|what| what.contains("deploy/base/build")), "{report:?}");
}

#[tokio::test]
async fn adopting_is_refused_in_words() {
    let machines = Machines::new("/tmp", false).await;
    machines.make(&machines.from, "a", State::Active).await;
    let says = async |options: &Options, words: &str| {
        let refused = adopt(&machines.env, options, Arc::new(Doom::default())).await;
        let error = refused.expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    let options = machines.options();
    let own = machines.ledger(&machines.to).await;
    says(&options, "stop it (systemctl stop drowse-node)").await;
    drop(own);
    let other = machines.ledger(&machines.from).await;
    says(&options, "are not a dead node's").await;
    drop(other);
    says(&Options { dir: machines.to.clone(), ..options.clone() }, "own state directory").await;
    says(&Options { dir: machines.templates.clone(), ..options.clone() }, "not the state directory").await;
    says(&Options { dir: "/no/such".into(), ..options.clone() }, "/no/such").await;
    let copy = machines.to.with_extension("copy");
    fs::create_dir(&copy).expect("made");
    fs::copy(machines.to.join("node.json"), copy.join("node.json")).expect("copied");
    says(&Options { dir: copy, ..options.clone() }, "a copy of this node's own").await;

    // Copied once, its spaces run elsewhere: neither its daemon nor a third node may have them.
    let copied =
        adopt(&machines.env, &Options { copy: true, ..options.clone() }, Arc::new(Doom::default())).await;
    assert_eq!(copied.expect("copied").spaces[0].outcome, Outcome::Copied);
    let third = machines.to.with_extension("third");
    says(&Options { state: third, ..options }, "would run twice").await;
    let mut ground = Ground::new();
    ground.state = machines.from.clone();
    let refused = ground.try_start().await.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("would run twice") && refused.contains("adopted-by.json"), "{refused}");
}
