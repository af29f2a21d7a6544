use super::{Action, Event, Forgets, Message, Plan, Trouble, Verb};
use crate::sim::{
    Fall, Rng, Weather,
    fleet::{CLIENTS, GATEWAYS, JOINER, NAMES, NODES},
};

/// How much happens in a run.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Troubles that may overlap, at most; a hold or a fall at a step may outlast its turn.
    pub lanes: u64,
    /// The longest pause before the next trouble of a lane.
    pub trouble_pause_ms_max: u64,
    /// The longest pause before the next verb of a client.
    pub client_pause_ms_max: u64,
    /// Verbs of each client.
    pub verbs: u64,
    /// How many names they share.
    pub names: usize,
}

impl Mix {
    /// Some trouble, clients that take their time.
    pub const USUAL: Self =
        Self { lanes: 2, trouble_pause_ms_max: 6000, client_pause_ms_max: 2500, verbs: 30, names: 6 };
    /// Hasty clients, and few names.
    pub const BUSY: Self =
        Self { lanes: 2, trouble_pause_ms_max: 3000, client_pause_ms_max: 800, verbs: 40, names: 2 };
    /// Everything at once.
    pub const STORM: Self =
        Self { lanes: 4, trouble_pause_ms_max: 2500, client_pause_ms_max: 1500, verbs: 30, names: 4 };
    /// All want one name, at once, while everything breaks.
    pub const CROWD: Self =
        Self { lanes: 3, trouble_pause_ms_max: 1500, client_pause_ms_max: 400, verbs: 40, names: 1 };
}

/// Troubles are drawn for so long after the last verb may begin: clients are held up.
const TROUBLE_OUTLASTS_MS: u64 = 60_000;

/// Nodes that are there from the start.
const STARTS: usize = 3;

/// Draws one kind of trouble.
type Draw = fn(&mut Dice) -> Trouble;

/// What breaks, with what weight.
const TROUBLES: &[(u64, Draw)] = &[
    (1, |d| match d.forgets {
        Forgets::Nodes => Trouble::LedgerLost { node: d.node(), fall: d.fall(), down_ms: d.lasts() },
        Forgets::Gateways => Trouble::NodeFalls { node: d.node(), fall: d.fall(), down_ms: d.lasts() },
    }),
    (2, |d| Trouble::NodeFallsAtStep { node: d.node(), step: 1 + d.rng.below(150), down_ms: d.lasts() }),
    (2, |d| Trouble::GatewayFalls {
        gateway: d.gateway(),
        fall: d.fall(),
        at_step: d.rng.one_in(2).then(|| 1 + d.rng.below(150)),
        loses_database: d.forgets == Forgets::Gateways && d.rng.one_in(2),
        down_ms: d.lasts().min(10_000),
    }),
    (2, |d| {
        let there = d.rng.one_in(2);
        let back = !there || d.rng.one_in(3);
        Trouble::Cut { gateway: d.gateway(), node: d.node(), there, back, lasts_ms: d.lasts() }
    }),
    (1, |d| Trouble::Reset { gateway: d.gateway(), node: d.node() }),
    (1, |d| {
        let (from, to) = d.link();
        Trouble::Silence { from, to }
    }),
    (2, |d| {
        let (gateway, node) = (d.gateway(), d.node());
        let (reset, lasts_ms) = (d.rng.one_in(3), d.lasts());
        if d.rng.one_in(3) {
            return Trouble::Hold { from: node, to: gateway, message: Message::Answer, reset, lasts_ms };
        }
        let requests = [Message::Acquire, Message::Destroy, Message::Lookup, Message::Request];
        Trouble::Hold { from: gateway, to: node, message: *d.rng.pick(&requests), reset, lasts_ms }
    }),
    (1, |d| Trouble::LateCreate {
        gateway: d.gateway(),
        node: d.node(),
        down_ms: d.rng.below(1000),
        lasts_ms: d.lasts().min(20_000),
    }),
    (1, |d| Trouble::ClientsReset { gateway: d.gateway() }),
    (1, |d| match (d.gateways, d.rng.below(4)) {
        ([_], 0) => Trouble::RemovalAsked { gateway: d.gateway(), node: d.node() },
        ([_], 1 | 2) => Trouble::NodeRemoved {
            gateway: d.gateway(),
            node: d.node(),
            fall: d.fall(),
            down_ms: d.rng.below(40_000),
            out_ms: d.rng.below(90_000),
            gateway_forgets: d.forgets == Forgets::Gateways && d.rng.one_in(3),
        },
        // What one gateway removed, another one may hear of too late; several gateways are a promise yet to be made.
        _ => Trouble::NodeJoins { node: JOINER.to_owned() },
    }),
];

/// What clients ask, with what weight.
const VERBS: &[(u64, Verb)] = &[
    (45, Verb::Acquire),
    (20, Verb::Exec),
    (14, Verb::Destroy),
    (8, Verb::Get),
    (3, Verb::Freeze),
    (3, Verb::Stop),
    (3, Verb::Wake),
    (4, Verb::List),
    (3, Verb::ExecLong),
    (2, Verb::ExecDetached),
    (5, Verb::Read),
    (3, Verb::Touch),
    (5, Verb::Note),
    (5, Verb::Doze),
];

/// What clients ask in a run that is about making and removing alone.
const TURNOVER: &[(u64, Verb)] = &[(5, Verb::Acquire), (4, Verb::Destroy), (1, Verb::Exec)];

const MIXES: &[(u64, Mix)] = &[(4, Mix::USUAL), (2, Mix::BUSY), (2, Mix::STORM), (2, Mix::CROWD)];

/// What every draw of a trouble may use.
struct Dice {
    rng: Rng,
    gateways: &'static [&'static str],
    nodes: &'static [&'static str],
    forgets: Forgets,
    /// How long the trouble that is being drawn keeps its lane.
    lasts_ms: u64,
}

impl Dice {
    fn node(&mut self) -> String {
        (*self.rng.pick(self.nodes)).to_owned()
    }

    fn gateway(&mut self) -> String {
        (*self.rng.pick(self.gateways)).to_owned()
    }

    /// A gateway and a node, in either order.
    fn link(&mut self) -> (String, String) {
        let (gateway, node) = (self.gateway(), self.node());
        if self.rng.one_in(2) { (gateway, node) } else { (node, gateway) }
    }

    fn fall(&mut self) -> Fall {
        if self.rng.one_in(2) { Fall::Process } else { Fall::Power }
    }

    /// How long it lasts: seconds mostly, now and then longer than any deadline.
    fn lasts(&mut self) -> u64 {
        let most = if self.rng.one_in(5) { 70_000 } else { 8000 };
        self.lasts_ms = self.rng.below(most);
        self.lasts_ms
    }
}

pub(super) fn draw(seed: u64, gateways: Option<usize>) -> Plan {
    let mut rng = Rng::of(seed, "plan");
    let drawn = if rng.one_in(4) { 2 } else { 1 };
    let gateways = gateways.unwrap_or(drawn).clamp(1, GATEWAYS.len());
    let forgets = if rng.one_in(2) { Forgets::Nodes } else { Forgets::Gateways };
    let mix = *rng.weigh(MIXES);
    let weather = Weather {
        lag_ms: *rng.weigh(&[(6, Weather::USUAL.lag_ms), (1, (1, 1)), (1, (5, 40))]),
        slow_one_in: *rng.weigh(&[(4, Weather::USUAL.slow_one_in), (1, 0), (1, 4)]),
        duplicate_one_in: *rng.weigh(&[(4, Weather::USUAL.duplicate_one_in), (1, 0), (1, 5)]),
        defer_one_in: *rng.weigh(&[(4, Weather::USUAL.defer_one_in), (1, 0), (1, 3)]),
        ..Weather::USUAL
    };
    let runtime_fails_one_in = *rng.weigh(&[(4, 0), (3, 40), (1, 12)]);

    let verbs = *rng.weigh(&[(3, VERBS), (1, TURNOVER)]);
    let kinds = kinds(&mut rng);

    let mut actions: Vec<Action> =
        CLIENTS.iter().flat_map(|client| asks(seed, client, mix, verbs, gateways)).collect();
    actions.sort_by_key(|action| action.at_ms);
    let until_ms = actions.last().map_or(0, |action| action.at_ms) + TROUBLE_OUTLASTS_MS;
    let mut troubles = Vec::new();
    for lane in 0..mix.lanes {
        let mut dice = Dice {
            rng: Rng::of(seed, &format!("troubles {lane}")),
            gateways: &GATEWAYS[..gateways],
            nodes: &NODES[..STARTS],
            forgets,
            lasts_ms: 0,
        };
        let mut at_ms = 0;
        loop {
            at_ms += dice.rng.below(mix.trouble_pause_ms_max);
            if at_ms > until_ms {
                break;
            }
            dice.lasts_ms = 0;
            let draw = *dice.rng.weigh(&kinds);
            troubles.push(Event { at_ms, trouble: draw(&mut dice) });
            at_ms += dice.lasts_ms;
        }
    }
    troubles.sort_by_key(|event| event.at_ms);
    Plan { seed, gateways, nodes: STARTS, weather, runtime_fails_one_in, forgets, actions, troubles }
}

/// The kinds of trouble of one plan. Half of the plans know only some: so that one kind meets itself, undisturbed.
fn kinds(rng: &mut Rng) -> Vec<(u64, Draw)> {
    let all = TROUBLES.to_vec();
    if rng.one_in(2) {
        return all;
    }
    let some: Vec<_> = TROUBLES.iter().filter(|_| rng.one_in(3)).copied().collect();
    if some.is_empty() { all } else { some }
}

/// What one client asks, and when.
fn asks(seed: u64, client: &str, mix: Mix, verbs: &[(u64, Verb)], gateways: usize) -> Vec<Action> {
    let mut rng = Rng::of(seed, client);
    let mut at_ms = 0;
    let mut verb = |_| {
        at_ms += rng.below(mix.client_pause_ms_max);
        Action {
            at_ms,
            client: client.to_owned(),
            gateway: (*rng.pick(&GATEWAYS[..gateways])).to_owned(),
            verb: *rng.weigh(verbs),
            name: (*rng.pick(&NAMES[..mix.names])).to_owned(),
            leaves_after_ms: rng.one_in(4).then(|| rng.below(1500)),
        }
    };
    (0..mix.verbs).map(&mut verb).collect()
}
