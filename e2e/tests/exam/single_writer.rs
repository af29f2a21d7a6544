use drowse_e2e::{
    daemon::Daemon,
    fleet::Fleet,
    ground::free_port,
    wait::{seconds, timed},
};

/// Starts a second daemon over a state that has one, and tells what it said.
async fn refused(second: &mut Daemon) -> String {
    second.start();
    let (status, took) = timed(second.exit(seconds(10))).await;
    assert!(!status.success(), "it must not pass for a good end: {status}");
    assert!(took < seconds(5), "at once, not after {took:?}");
    second.log()
}

#[tokio::test]
async fn a_second_daemon_on_one_ledger_ends_at_once_in_words() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let state = fleet.node("n1").state.clone();
    let mut second = fleet.describe_node("second").await;
    second.daemon.set("DROWSE_STATE", &state);
    let said = refused(&mut second.daemon).await;
    assert!(said.contains(state.as_str()), "it names the path: {said}");
    assert!(said.contains("DROWSE_STATE"), "it names the variable: {said}");
    assert_eq!(fleet.exec("a", "echo undisturbed").await, "undisturbed");
    fleet.end().await;
}

#[tokio::test]
async fn a_second_gateway_on_one_database_ends_at_once_in_words() {
    let fleet = Fleet::fake(1).start().await;
    let state = fleet.ground.root.join("gateway");
    let mut second = Daemon::new("second", "drowse-gateway", fleet.ground.root.join("logs/second.log"));
    second.env = fleet.gateway.env.clone();
    second.set("DROWSE_GATEWAY_LISTEN", format!("127.0.0.1:{}", free_port()));
    let said = refused(&mut second).await;
    assert!(said.contains(state.as_str()), "it names the path: {said}");
    assert!(said.contains("DROWSE_STATE"), "it names the variable: {said}");
    fleet.acquire("still-works").await;
    fleet.end().await;
}
