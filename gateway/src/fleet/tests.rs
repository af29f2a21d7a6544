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
