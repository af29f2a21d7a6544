use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{CLIENTS, Client, Ended, Fleet, GATEWAYS, NAMES, NODES};
use crate::sim::{Fall, Run, Weather, World, run};

/// A world in which nothing is left to chance, and a whole fleet of two gateways and three nodes in it.
async fn calm(world: &World) -> Fleet {
    world.set_weather(Weather::CALM);
    let fleet = Fleet::new(world, &GATEWAYS, &NODES[..3]);
    fleet.start().await;
    fleet
}

async fn acquire(
    fleet: &Fleet,
    me: &'static str,
    gateway: &'static str,
    name: &'static str,
) -> Option<Ended> {
    let guest = fleet.clone();
    let work = fleet.world.on(me, move |env| async move {
        let client = Client::new(&guest, me, &env);
        client.call(gateway, "acquireSpace", name, &json!({ "name": name }), None).await
    });
    work.await
}

/// One client makes a space, uses it, destroys it and makes it anew, while `host` falls at its `k`-th effect and comes
/// back. Answers whether it fell.
pub fn fall_at(seed: u64, host: &'static str, fall: Fall, k: u64) -> Run<bool> {
    run(seed, move |world| async move {
        let fleet = Fleet::new(&world, &GATEWAYS[..1], &NODES[..3]);
        fleet.start().await;
        world.crash_at(host, Some(k), fall);
        let guest = fleet.clone();
        let work = world.on(CLIENTS[0], |env| async move {
            let client = Client::new(&guest, CLIENTS[0], &env);
            let one = json!({ "name": NAMES[0] });
            let exec = json!({ "name": NAMES[0], "command": "true" });
            for (verb, body) in [
                ("acquireSpace", &one),
                ("execCommand", &exec),
                ("stopSpace", &one),
                ("acquireSpace", &one),
                ("destroySpace", &one),
                ("acquireSpace", &one),
            ] {
                client.call(GATEWAYS[0], verb, NAMES[0], body, None).await;
            }
        });
        let back = async {
            while world.is_up(host) {
                sleep(Duration::from_millis(100)).await;
            }
            sleep(Duration::from_secs(1)).await;
            world.restart(host, Duration::ZERO).await;
            std::future::pending::<()>().await;
        };
        drowse_shared::select_biased! {
            _ = work => {}
            () = back => {}
        }
        let fell = world.life_of(host) > 1 || !world.is_up(host);
        fleet.settle(vec![NAMES[0].to_owned()], Weather::USUAL).await;
        fell
    })
}

/// Two gateways ask for one new name at the same moment, each reaching another node first, and each has another node in
/// mind for it. Law 1: one body all the same.
pub fn crosswise(seed: u64) -> Run<()> {
    run(seed, move |world| async move {
        let fleet = calm(&world).await;
        // g has just placed one on the first node, which h does not know before the next check-in.
        acquire(&fleet, CLIENTS[0], "g", NAMES[1]).await;
        let first = [world.hold("g", NODES[1], "POST /lookup"), world.hold("h", NODES[0], "POST /lookup")];
        let cross = async {
            for held in first {
                held.arrived().await;
                sleep(Duration::from_millis(50)).await;
                held.release();
            }
        };
        tokio::join!(
            acquire(&fleet, CLIENTS[1], "g", NAMES[0]),
            acquire(&fleet, CLIENTS[2], "h", NAMES[0]),
            cross
        );
        fleet.settle(NAMES[..2].iter().map(|name| (*name).to_owned()).collect(), Weather::CALM).await;
    })
}

/// A gateway that lost its database knows only a node that has just joined. While it asks that one for a name, the others
/// check in, one of which holds it. Law 1: who became known too late to be asked may hold it.
pub fn known_too_late(seed: u64) -> Run<()> {
    run(seed, move |world| async move {
        let fleet = calm(&world).await;
        acquire(&fleet, CLIENTS[0], "g", NAMES[0]).await;
        for node in &NODES[..3] {
            world.part("h", node);
        }
        world.crash("h", Fall::Power);
        if let Some(disk) = fleet.databases.get("h") {
            disk.wipe();
        }
        // Nodes check in every five seconds since the world began: the next time is in less than two.
        sleep(Duration::from_secs(3)).await;
        world.restart("h", Duration::ZERO).await;
        fleet.start_node(NODES[3]);
        sleep(Duration::from_millis(500)).await;
        let held = world.hold("h", NODES[3], "POST /lookup");
        let meanwhile = async {
            assert!(held.arrived().await, "h asks the node it knows");
            for node in &NODES[..3] {
                world.heal("h", node);
            }
            sleep(Duration::from_millis(1700)).await;
            held.release();
        };
        tokio::join!(acquire(&fleet, CLIENTS[1], "h", NAMES[0]), meanwhile);
        fleet.settle(vec![NAMES[0].to_owned()], Weather::CALM).await;
    })
}
