use camino::Utf8Path;
use drowse_shared::token::Token;
use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn a_readmission_whose_caller_leaves_is_so_on_disk_and_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join(db::FILE);
    let env = Env::real();
    let db = Store::open(&env, &path).expect("fresh");
    let gates =
        crate::Config::with_defaults(Token::checked(&"t".repeat(32), "a test").expect("long enough")).gates;
    let fleet =
        Arc::new(Fleet::open(&env, db.clone(), gates, true, Build::unreleased()).await.expect("opened"));
    let peer = Peer {
        ledger: LedgerId::mint(&env),
        id: "back".parse().expect("an id"),
        endpoint: Arc::from("http://back"),
        live: true,
    };
    assert!(fleet.readmit(&peer).now_or_never().is_none(), "it is not written at once");
    for _ in 0..400 {
        if fleet.peer(&peer.ledger).is_some() {
            let kept = db.load().await.expect("read").roster.expect("founded");
            assert!(kept.get(&peer.ledger).is_some());
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it is no member");
}

/// What lets no write of the gateway through.
const FULL: &str = "create trigger full before insert on fleet begin select raise(abort, 'full'); end";

#[tokio::test]
async fn why_nobody_could_be_told_is_shown_until_somebody_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join(db::FILE);
    let env = Env::real();
    let gates =
        crate::Config::with_defaults(Token::checked(&"t".repeat(32), "a test").expect("long enough")).gates;
    let build = |second| Build {
        committed_at: Some(jiff::Timestamp::from_second(second).expect("a time")),
        ..Build::unreleased()
    };
    let db = Store::open(&env, &path).expect("fresh");
    let fleet = Arc::new(Fleet::open(&env, db, gates, true, build(2)).await.expect("opened"));
    let said = CheckIn {
        build: build(1),
        upgrade: Some(drowse_shared::api::upgrade::SelfUpgrade::default()),
        ..check_in_for_tests("n1", 1, "http://n1")
    };
    let ledger = said.ledger_id;
    fleet.check_in(said).await.expect("it joins");
    assert!(fleet.roll().await.expect("there is a release").rolling);
    let trouble = || fleet.upgrade().expect("a fleet").trouble;
    assert_eq!(trouble(), None);
    let other = rusqlite::Connection::open(&path).expect("it is there");
    other.execute_batch(FULL).expect("made");
    assert_eq!(fleet.turn(ledger).await, None, "nobody is told what is not written down");
    assert!(trouble().is_some_and(|why| why.contains("cannot write")), "{:?}", trouble());
    other.execute_batch("drop trigger full").expect("gone");
    assert!(fleet.turn(ledger).await.is_some());
    assert_eq!(trouble(), None);
}
