use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, sleep_until};

use super::{
    CLIENTS, Fleet,
    operator::Removal,
    plan::{Event, Trouble},
};
use crate::sim::Fall;

/// How long a fall at a step is waited for.
const STEP_COMES_WITHIN: Duration = Duration::from_secs(2);

impl Fleet {
    /// Makes the troubles of a plan, each at its time from now on.
    pub async fn chaos(&self, troubles: &[Event]) {
        let now = tokio::time::Instant::now();
        let each = troubles.iter().map(async |event| {
            sleep_until(now + Duration::from_millis(event.at_ms)).await;
            self.world.note(&format!("TROUBLE {:?}", event.trouble));
            self.trouble(&event.trouble).await;
        });
        join_all(each).await;
    }

    async fn trouble(&self, trouble: &Trouble) {
        let world = &self.world;
        match trouble {
            Trouble::NodeFalls { node, fall, down_ms } => self.bounce(node, *fall, ms(*down_ms)).await,
            Trouble::NodeFallsAtStep { node, step, down_ms } => {
                if self.falls_at_step(node, *step, Fall::Process).await {
                    self.restart(node, ms(*down_ms)).await;
                }
            }
            Trouble::GatewayFalls { gateway, fall, at_step, loses_database, down_ms } => {
                match at_step {
                    Some(step) => {
                        if !self.falls_at_step(gateway, *step, *fall).await {
                            return;
                        }
                    }
                    None => world.crash(gateway, *fall),
                }
                if *loses_database {
                    self.forget(gateway);
                }
                self.restart(gateway, ms(*down_ms)).await;
            }
            Trouble::Cut { gateway, node, there, back, lasts_ms } => {
                if *there {
                    world.cut(gateway, node);
                }
                if *back {
                    world.cut(node, gateway);
                }
                sleep(ms(*lasts_ms)).await;
                world.heal(gateway, node);
            }
            Trouble::Reset { gateway, node } => world.reset(gateway, node),
            Trouble::Silence { from, to } => world.silence(from, to),
            Trouble::Hold { from, to, message, reset, lasts_ms } => {
                let held = world.hold(from, to, message.prefix());
                held.arrived().await;
                sleep(ms(*lasts_ms)).await;
                if *reset { held.reset() } else { held.release() }
            }
            Trouble::LedgerLost { node, fall, down_ms } => {
                // Another trouble may have taken it down already; a ledger is lost only with the daemon on it.
                if world.is_up(node) {
                    world.crash(node, *fall);
                    if let Some(disks) = self.nodes.get(node.as_str()) {
                        disks.ledger.wipe();
                    }
                    self.laws.forgot(node);
                    world.note(&format!("{node} LOSES ITS LEDGER"));
                    self.restart(node, ms(*down_ms)).await;
                }
            }
            Trouble::LateCreate { gateway, node, down_ms, lasts_ms } => {
                let held = world.hold(gateway, node, "POST /acquireSpace");
                if held.arrived().await {
                    // Without power nobody tells the node that its caller is gone.
                    world.crash(gateway, Fall::Power);
                    self.restart(gateway, ms(*down_ms)).await;
                    sleep(ms(*lasts_ms)).await;
                }
                held.release();
            }
            Trouble::NodeJoins { node } => {
                if let Some((node, _)) = self.nodes.get_key_value(node.as_str())
                    && world.life_of(node) == 0
                {
                    self.start_node(node);
                }
            }
            Trouble::NodeRemoved { gateway, node, fall, down_ms, out_ms, gateway_forgets } => {
                let (down, out) = (ms(*down_ms), ms(*out_ms));
                let (fall, gateway_forgets) = (*fall, *gateway_forgets);
                self.remove_and_readmit(Removal { gateway, node, fall, down, out, gateway_forgets }).await;
            }
            Trouble::RemovalAsked { gateway, node } => self.remove_at_once(gateway, node).await,
            Trouble::ClientsReset { gateway } => {
                for client in CLIENTS {
                    world.reset(client, gateway);
                }
            }
        }
    }

    /// A gateway that is down loses its database.
    pub(super) fn forget(&self, gateway: &str) {
        self.world.note(&format!("{gateway} LOSES ITS DATABASE"));
        if let Some(disk) = self.databases.get(gateway) {
            disk.wipe();
        }
        self.laws.gateway_forgot(gateway);
    }

    async fn bounce(&self, host: &str, fall: Fall, down: Duration) {
        self.world.crash(host, fall);
        self.restart(host, down).await;
    }

    /// Answers whether it fell, or was down already.
    async fn falls_at_step(&self, host: &str, step: u64, fall: Fall) -> bool {
        self.world.crash_at(host, Some(step), fall);
        sleep(STEP_COMES_WITHIN).await;
        self.world.crash_at(host, None, fall);
        !self.world.is_up(host)
    }

    /// Another trouble may have it in hand already.
    pub(super) async fn restart(&self, host: &str, down: Duration) {
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
        for host in self.nodes.keys().chain(self.gateways).filter(|host| self.world.life_of(host) > 0) {
            self.world.crash_at(host, None, Fall::Process);
            if !self.world.is_up(host) {
                self.world.restart(host, Duration::ZERO).await;
            }
        }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
