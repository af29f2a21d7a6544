use std::{fs, time::Instant};

use drowse_node::{executor::Vitality, lifecycle::reconcile};

use crate::machine::Machine;

const DISKS: usize = 10_000;
/// A start is to know within a second what lies on its machine; five times that on a busy one.
const SURVEY_SECONDS: u64 = 5;

/// Directories with cards and sparse images, as ten thousand stopped spaces leave them.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_disks_are_surveyed_in_seconds() {
    let machine = Machine::new("scale").await;
    for number in 0..DISKS {
        let card = machine.card(&format!("customer-{number}"));
        let disk = machine.disks().join(card.id.to_string());
        fs::create_dir_all(&disk).expect("made");
        fs::write(disk.join("space.json"), serde_json::to_vec(&card).expect("plain")).expect("written");
        fs::File::create(disk.join("disk.img")).and_then(|image| image.set_len(1 << 30)).expect("sparse");
    }
    let begun = Instant::now();
    let found = reconcile::survey(&machine.oci).await.expect("surveyed");
    let took = begun.elapsed();
    assert_eq!(found.len(), DISKS);
    assert!(found.values().all(|found| found.disk && found.card.is_some()), "every disk has its card");
    assert!(found.values().all(|found| found.vitality == Vitality::Stopped), "nothing runs");
    assert!(took.as_secs() < SURVEY_SECONDS, "the survey of {DISKS} disks took {took:?}");
    machine.leave().await;
    println!("survey of {DISKS} disks {took:.0?}");
}
