//! What seeds have found, as small plans: each broke a law once.

use super::{
    GATEWAYS, NAMES, NODES, Plan,
    plan::{Action, Event, Forgets, Trouble, Verb},
    scenario,
};
use crate::sim::{Fall, Weather};

fn holds(actions: &[(u64, Verb)], troubles: &[(u64, Trouble)]) {
    let action = |(at_ms, verb): &(u64, Verb)| Action {
        at_ms: *at_ms,
        client: "c0".to_owned(),
        gateway: GATEWAYS[0].to_owned(),
        verb: *verb,
        name: NAMES[0].to_owned(),
        leaves_after_ms: None,
    };
    let plan = Plan {
        seed: 1,
        gateways: 1,
        nodes: 3,
        weather: Weather::CALM,
        runtime_fails_one_in: 0,
        forgets: Forgets::Nodes,
        actions: actions.iter().map(action).collect(),
        troubles: troubles
            .iter()
            .map(|(at_ms, trouble)| Event { at_ms: *at_ms, trouble: trouble.clone() })
            .collect(),
    };
    scenario(&plan).assert_good("this test");
}

#[test]
fn a_removed_node_that_lost_its_ledger_can_be_asked_what_it_holds() {
    let (gateway, node) = (GATEWAYS[0].to_owned(), NODES[2].to_owned());
    let removed = Trouble::NodeRemoved {
        gateway,
        node: node.clone(),
        fall: Fall::Process,
        down_ms: 1000,
        out_ms: 40_000,
        gateway_forgets: false,
    };
    let lost = Trouble::LedgerLost { node, fall: Fall::Process, down_ms: 0 };
    holds(&[(0, Verb::Acquire), (60_000, Verb::Get)], &[(1000, removed), (45_000, lost)]);
}

#[test]
fn a_gateway_that_does_not_know_its_nodes_gives_no_list_of_spaces() {
    let forgets = Trouble::GatewayFalls {
        gateway: GATEWAYS[0].to_owned(),
        fall: Fall::Process,
        at_step: None,
        loses_database: true,
        down_ms: 0,
    };
    holds(&[(0, Verb::Acquire), (2000, Verb::List)], &[(1000, forgets)]);
}
