use drowse_node::executor::Executor;

use crate::{
    machine::{Machine, until},
    wire::fetch,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_space_is_told_what_it_uses_of_what_it_has() {
    let machine = Machine::new("metrics").await;
    let card = machine.card("metrics");
    let (id, spec) = (card.id, card.spec);
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");
    let metrics = async || -> serde_json::Value {
        let stream = machine.oci.agent(id).await.expect("the agent answers");
        let request = "GET /metrics HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n";
        let answer = fetch(stream, request).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).expect("JSON")
    };
    let first = metrics().await;
    assert_eq!(first["mem_total"], spec.memory_bytes, "{first}");
    assert_eq!(first["cpu_count"].as_f64(), Some(spec.cpus.ceil()), "{first}");
    let number = |metrics: &serde_json::Value, name: &str| metrics[name].as_u64().expect("a number");
    assert!(number(&first, "disk_total") <= spec.disk_bytes, "{first}");

    let work = "head -c 50M /dev/urandom > big; exec python3 -c 'x = bytearray(100 << 20)\nwhile True: pass'";
    let busy = machine.start(id, "user", work).await;
    let grown = |now: &serde_json::Value, name: &str| number(now, name).saturating_sub(number(&first, name));
    until("what it uses shows", async || {
        let now = metrics().await;
        let is_busy = now["cpu_used_pct"].as_f64().is_some_and(|share| share > 5.0);
        is_busy && grown(&now, "mem_used") > 90 << 20 && grown(&now, "disk_used") > 45 << 20
    })
    .await;
    drop(busy);
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}
