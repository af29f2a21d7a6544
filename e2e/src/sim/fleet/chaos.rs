use std::time::Duration;

use tokio::time::sleep;

use super::{Fleet, NODES};
use crate::sim::Fall;

/// What may go wrong, each drawn by the seed.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// A node falls and comes back.
    NodeFalls(Fall),
    /// A node falls at one of its next effects.
    NodeFallsAtStep(u64),
    /// The gateway falls, perhaps with its database lost.
    GatewayFalls { fall: Fall, loses_database: bool, at_step: Option<u64> },
    /// Nothing gets through between the gateway and a node, in one direction or both.
    Cut { there: bool, back: bool },
    /// Open connections between the gateway and a node break.
    Reset,
    /// Open connections carry nothing any more in one direction.
    Silence { there: bool },
    /// One message is held on the wire, then delivered late or destroyed.
    Hold { prefix: &'static str, there: bool, reset: bool },
    /// A node falls and finds its ledger gone; its disks and `node.json` are there.
    LedgerLost(Fall),
    /// A create is held on the wire, its gateway vanishes, and it arrives after others have asked for the name.
    LateCreate,
    /// Connections of clients break.
    ClientsReset,
}

impl Fleet {
    /// Makes trouble, one at a time or several at once, for as long as it is polled.
    pub async fn chaos(&self) {
        // What neither the gateway nor any node remembers, nobody can know; so only one side forgets in one run.
        let nodes_forget = self.world.draw(|rng| rng.one_in(2));
        tokio::join!(self.troubles(nodes_forget), self.troubles(nodes_forget));
    }

    async fn troubles(&self, nodes_forget: bool) {
        loop {
            let pause = self.world.draw(|rng| rng.below(6000));
            sleep(Duration::from_millis(pause)).await;
            self.trouble(nodes_forget).await;
        }
    }

    async fn trouble(&self, nodes_forget: bool) {
        let (node, gateway, trouble, lasts_ms) = self.world.draw(|rng| {
            let node = *rng.pick(&NODES);
            let gateway = *rng.pick(self.gateways);
            let long = rng.one_in(5);
            let lasts_ms = rng.below(if long { 70_000 } else { 8000 });
            let trouble = match rng.below(13) {
                0 if nodes_forget => {
                    Trouble::LedgerLost(if rng.one_in(2) { Fall::Process } else { Fall::Power })
                }
                0 => Trouble::NodeFalls(if rng.one_in(2) { Fall::Process } else { Fall::Power }),
                1 | 2 => Trouble::NodeFallsAtStep(1 + rng.below(150)),
                3 | 4 => Trouble::GatewayFalls {
                    fall: if rng.one_in(2) { Fall::Process } else { Fall::Power },
                    loses_database: !nodes_forget && rng.one_in(2),
                    at_step: rng.one_in(2).then(|| 1 + rng.below(150)),
                },
                5 | 6 => {
                    let there = rng.one_in(2);
                    Trouble::Cut { there, back: !there || rng.one_in(3) }
                }
                7 => Trouble::Reset,
                8 => Trouble::Silence { there: rng.one_in(2) },
                9 | 10 => {
                    let there = !rng.one_in(3);
                    let prefixes = ["POST /acquireSpace", "POST /destroySpace", "POST /lookup", "POST /"];
                    let prefix = if there { *rng.pick(&prefixes) } else { "HTTP/1.1 200" };
                    Trouble::Hold { prefix, there, reset: rng.one_in(3) }
                }
                11 => Trouble::LateCreate,
                _ => Trouble::ClientsReset,
            };
            (node, gateway, trouble, lasts_ms)
        });
        let lasts = Duration::from_millis(lasts_ms);
        let world = &self.world;
        world.note(&format!("TROUBLE {gateway} {node} {trouble:?} for {lasts_ms} ms"));
        match trouble {
            Trouble::NodeFalls(fall) => self.bounce(node, fall, lasts).await,
            Trouble::NodeFallsAtStep(k) => self.bounce_at(node, k, lasts).await,
            Trouble::GatewayFalls { fall, loses_database, at_step } => {
                match at_step {
                    Some(k) => {
                        world.crash_at(gateway, Some(k), fall);
                        sleep(Duration::from_secs(2)).await;
                        world.crash_at(gateway, None, fall);
                        if world.is_up(gateway) {
                            return;
                        }
                    }
                    None => world.crash(gateway, fall),
                }
                if loses_database {
                    world.note(&format!("{gateway} LOSES ITS DATABASE"));
                    if let Some(disk) = self.databases.get(gateway) {
                        disk.wipe();
                    }
                }
                self.restart(gateway, lasts.min(Duration::from_secs(10))).await;
            }
            Trouble::Cut { there, back } => {
                if there {
                    world.cut(gateway, node);
                }
                if back {
                    world.cut(node, gateway);
                }
                sleep(lasts).await;
                world.heal(gateway, node);
            }
            Trouble::Reset => world.reset(gateway, node),
            Trouble::Silence { there: true } => world.silence(gateway, node),
            Trouble::Silence { there: false } => world.silence(node, gateway),
            Trouble::Hold { prefix, there, reset } => {
                let held =
                    if there { world.hold(gateway, node, prefix) } else { world.hold(node, gateway, prefix) };
                held.arrived().await;
                sleep(lasts).await;
                if reset { held.reset() } else { held.release() }
            }
            Trouble::LedgerLost(fall) => {
                // Another trouble may have brought it up again meanwhile; a ledger is not lost under a running daemon.
                if world.is_up(node) {
                    world.crash(node, fall);
                    if let Some(disks) = self.nodes.get(node) {
                        if fall == Fall::Power {
                            disks.machine.reboot();
                        }
                        disks.ledger.wipe();
                    }
                    world.note(&format!("{node} LOSES ITS LEDGER"));
                    self.restart(node, lasts).await;
                }
            }
            Trouble::LateCreate => {
                let held = world.hold(gateway, node, "POST /acquireSpace");
                if held.arrived().await {
                    // Without power nobody tells the node that its caller is gone.
                    world.crash(gateway, Fall::Power);
                    let down = world.draw(|rng| rng.below(1000));
                    self.restart(gateway, Duration::from_millis(down)).await;
                    sleep(lasts.min(Duration::from_secs(20))).await;
                }
                held.release();
            }
            Trouble::ClientsReset => {
                for client in super::CLIENTS {
                    world.reset(client, gateway);
                }
            }
        }
    }

    async fn bounce(&self, host: &str, fall: Fall, down: Duration) {
        self.world.crash(host, fall);
        if let (Fall::Power, Some(node)) = (fall, self.nodes.get(host)) {
            node.machine.reboot();
        }
        self.restart(host, down).await;
    }

    async fn bounce_at(&self, host: &str, k: u64, down: Duration) {
        self.world.crash_at(host, Some(k), Fall::Process);
        sleep(Duration::from_secs(2)).await;
        self.world.crash_at(host, None, Fall::Process);
        if !self.world.is_up(host) {
            self.restart(host, down).await;
        }
    }

    /// Another trouble may have it in hand already.
    async fn restart(&self, host: &str, down: Duration) {
        sleep(down).await;
        if !self.world.is_up(host) {
            self.world.restart(host, Duration::ZERO).await;
        }
    }

    /// Ends every trouble.
    pub async fn repair(&self) {
        self.world.note("REPAIRED");
        self.world.release_all();
        self.world.heal_all();
        for host in NODES.iter().chain(self.gateways) {
            self.world.crash_at(host, None, Fall::Process);
            if !self.world.is_up(host) {
                self.world.restart(host, Duration::ZERO).await;
            }
        }
    }
}
