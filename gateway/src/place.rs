//! Which node takes a new space: a pure function over what the nodes last reported. It asks nobody.

use std::{cmp::Ordering, fmt};

use drowse_shared::{
    api::{
        nodes::{Disk, Reading, WIRE_VERSION},
        spaces::State,
    },
    id::NodeId,
};

/// The limits a node must keep to take a new space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gates {
    /// Busiest processors, in percent.
    pub cpu_percent_max: f64,
    /// Active spaces at which a node is full.
    pub active_max: u64,
    /// Least room on the data disk, as [`disk_floor`] takes it.
    pub disk_floor_bytes: u64,
}

/// Least room on the data disk of a node, as long as nobody sets another.
pub const DISK_FLOOR_BYTES: u64 = 10 << 30;

/// What must be free on a disk of this size for a new space: what is asked for, but never more than 5 % of it.
pub fn disk_floor(asked_bytes: u64, total_bytes: u64) -> u64 {
    asked_bytes.min(total_bytes / 20)
}

impl Default for Gates {
    fn default() -> Self {
        Self { cpu_percent_max: 70.0, active_max: 400, disk_floor_bytes: DISK_FLOOR_BYTES }
    }
}

/// Whether a node is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Not heard since this gateway started.
    Silent,
    /// Missed two intervals.
    Down {
        /// Since its last check-in.
        seconds: u64,
    },
    /// Checks in.
    Live,
}

/// A reading, as far as placement looks at it. Small: a pick looks at every node's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measured {
    /// Of the machine.
    pub(crate) cores: u32,
    /// Used processor time, once it is known.
    pub(crate) cpu_percent: Option<f64>,
    /// Memory that could be had.
    pub(crate) memory_available_bytes: u64,
    /// The file system the disks are on, if it could be read.
    pub(crate) disk: Option<Disk>,
    /// Active spaces.
    pub(crate) active: u64,
}

impl From<&Reading> for Measured {
    fn from(reading: &Reading) -> Self {
        Self {
            cores: reading.cores,
            cpu_percent: reading.cpu_percent,
            memory_available_bytes: reading.memory_available_bytes,
            disk: reading.disk,
            active: reading.spaces.get(&State::Active).copied().unwrap_or(0),
        }
    }
}

/// A node, as far as placement looks at it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate<'a> {
    /// What an operator calls it.
    pub(crate) id: &'a NodeId,
    /// Whether it is there.
    pub(crate) presence: Presence,
    /// Whether it was removed.
    pub(crate) removed: bool,
    /// What it last measured.
    pub(crate) reading: Option<Measured>,
    /// Whether it holds this fleet's configuration.
    pub(crate) configured: bool,
    /// The wire it speaks, oldest and newest.
    pub(crate) wire: (u32, u32),
    /// Whether it said that it takes no new spaces.
    pub(crate) draining: bool,
    /// Whether another live node knows it, or it is alone.
    pub(crate) announced: bool,
    /// Whether it gave permission to build this name.
    pub(crate) ticket: bool,
    /// Spaces placed there that its reading does not show yet.
    pub(crate) placed: u64,
}

/// Why a node does not take a new space.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    Removed,
    Silent,
    Down { seconds: u64 },
    NoReading,
    NoConfiguration,
    Wire { min: u32, max: u32 },
    Draining,
    NotAnnounced,
    NoTicket,
    Cpu { percent: f64, max: f64 },
    Active { active: u64, placed: u64, max: u64 },
    Disk { available_bytes: u64, floor_bytes: u64 },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("was removed; readmitNode brings it back"),
            Self::Silent => f.write_str("has not checked in since this gateway started"),
            Self::Down { seconds } => write!(f, "has not checked in for {seconds} s"),
            Self::NoReading => f.write_str("has not reported a reading"),
            Self::NoConfiguration => f.write_str("holds no configuration of this fleet yet"),
            Self::Wire { min, max } => {
                write!(f, "speaks wire versions {min} to {max}, this gateway speaks {WIRE_VERSION}")
            }
            Self::Draining => f.write_str("is draining"),
            Self::NotAnnounced => f.write_str("is not yet known to another live node"),
            Self::NoTicket => f.write_str("gave no permission to build this name"),
            Self::Cpu { percent, max } => write!(f, "cpu {percent:.0} % is above the {max:.0} % limit"),
            Self::Active { active, placed, max } => {
                write!(
                    f,
                    "{active} active spaces and {placed} placed since its reading reach the limit of {max}"
                )
            }
            Self::Disk { available_bytes, floor_bytes } => write!(
                f,
                "its data disk has {} available, below the floor of {}",
                gib(*available_bytes),
                gib(*floor_bytes)
            ),
        }
    }
}

fn gib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let gib = bytes as f64 / f64::from(1 << 30);
    format!("{gib:.1} GiB")
}

/// The first gate that refuses this node.
pub(crate) fn refusal(node: &Candidate<'_>, gates: &Gates) -> Option<Refusal> {
    measured(node, gates).err()
}

/// Its density, and the memory that breaks a tie.
fn measured(node: &Candidate<'_>, gates: &Gates) -> Result<(f64, u64), Refusal> {
    if node.removed {
        return Err(Refusal::Removed);
    }
    match node.presence {
        Presence::Silent => return Err(Refusal::Silent),
        Presence::Down { seconds } => return Err(Refusal::Down { seconds }),
        Presence::Live => {}
    }
    let Some(reading) = &node.reading else { return Err(Refusal::NoReading) };
    if !node.configured {
        return Err(Refusal::NoConfiguration);
    }
    let (min, max) = node.wire;
    if !(min..=max).contains(&WIRE_VERSION) {
        return Err(Refusal::Wire { min, max });
    }
    if node.draining {
        return Err(Refusal::Draining);
    }
    if !node.announced {
        return Err(Refusal::NotAnnounced);
    }
    if !node.ticket {
        return Err(Refusal::NoTicket);
    }
    if let Some(percent) = reading.cpu_percent.filter(|percent| *percent > gates.cpu_percent_max) {
        return Err(Refusal::Cpu { percent, max: gates.cpu_percent_max });
    }
    let active = reading.active;
    let placed = node.placed;
    if active.saturating_add(placed) >= gates.active_max {
        return Err(Refusal::Active { active, placed, max: gates.active_max });
    }
    if let Some(disk) = reading.disk {
        let floor_bytes = disk_floor(gates.disk_floor_bytes, disk.total_bytes);
        if disk.available_bytes < floor_bytes {
            return Err(Refusal::Disk { available_bytes: disk.available_bytes, floor_bytes });
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of spaces are far below 2^52")]
    let density = active.saturating_add(placed) as f64 / f64::from(reading.cores.max(1));
    Ok((density, reading.memory_available_bytes))
}

/// The emptiest node per core; of equals the one with more memory available, then the smaller id. None if every node
/// refuses.
pub(crate) fn choose<'a>(nodes: impl Iterator<Item = Candidate<'a>>, gates: &Gates) -> Option<Candidate<'a>> {
    let fit = nodes.filter_map(|node| measured(&node, gates).ok().map(|score| (node, score)));
    fit.min_by(|(a, a_score), (b, b_score)| order(a, *a_score, b, *b_score)).map(|(node, _)| node)
}

/// Every node that refuses, with its reason, in the order given.
pub(crate) fn refusals<'a>(
    nodes: impl Iterator<Item = Candidate<'a>>,
    gates: &Gates,
) -> Vec<(NodeId, Refusal)> {
    nodes.filter_map(|node| refusal(&node, gates).map(|why| (node.id.clone(), why))).collect()
}

fn order(
    a: &Candidate<'_>,
    (a_density, a_memory): (f64, u64),
    b: &Candidate<'_>,
    (b_density, b_memory): (f64, u64),
) -> Ordering {
    a_density.total_cmp(&b_density).then(b_memory.cmp(&a_memory)).then_with(|| a.id.cmp(b.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(id: &str, cores: u32, active: u64) -> Candidate<'static> {
        Candidate {
            id: Box::leak(Box::new(id.parse().expect("an id"))),
            presence: Presence::Live,
            removed: false,
            reading: Some(Measured {
                cores,
                cpu_percent: Some(5.0),
                memory_available_bytes: 4 << 30,
                disk: Some(Disk { total_bytes: 1 << 40, available_bytes: 1 << 39 }),
                active,
            }),
            configured: true,
            wire: (WIRE_VERSION, WIRE_VERSION),
            draining: false,
            announced: true,
            ticket: true,
            placed: 0,
        }
    }

    fn with(change: impl FnOnce(&mut Candidate<'static>)) -> Candidate<'static> {
        let mut n = node("a", 2, 0);
        change(&mut n);
        n
    }

    fn reading<'a>(n: &'a mut Candidate<'static>) -> &'a mut Measured {
        n.reading.as_mut().expect("has one")
    }

    #[test]
    fn every_gate_refuses_in_its_own_words() {
        let cases: [(Candidate<'_>, &str); 14] = [
            (with(|n| n.removed = true), "was removed"),
            (with(|n| n.presence = Presence::Silent), "has not checked in since"),
            (with(|n| n.presence = Presence::Down { seconds: 42 }), "has not checked in for 42 s"),
            (with(|n| n.reading = None), "not reported a reading"),
            (with(|n| n.configured = false), "holds no configuration"),
            (with(|n| n.wire = (2, 3)), "speaks wire versions 2 to 3"),
            (with(|n| n.draining = true), "is draining"),
            (with(|n| n.announced = false), "not yet known to another"),
            (with(|n| n.ticket = false), "no permission"),
            (with(|n| reading(n).cpu_percent = Some(70.1)), "cpu 70 % is above the 70 % limit"),
            (with(|n| n.placed = 400), "0 active spaces and 400 placed"),
            (
                with(|n| reading(n).active = 400),
                "400 active spaces and 0 placed since its reading reach the limit of 400",
            ),
            (
                with(|n| reading(n).disk = Some(Disk { total_bytes: 1 << 40, available_bytes: 9 << 30 })),
                "9.0 GiB available, below the floor of 10.0 GiB",
            ),
            (
                with(|n| reading(n).disk = Some(Disk { total_bytes: 20 << 30, available_bytes: 1 << 29 })),
                "0.5 GiB available, below the floor of 1.0 GiB",
            ),
        ];
        for (candidate, says) in cases {
            let why = refusal(&candidate, &Gates::default()).expect("refused").to_string();
            assert!(why.contains(says), "{why} has no {says:?}");
            assert_eq!(choose([candidate].into_iter(), &Gates::default()), None);
            assert_eq!(refusals([candidate].into_iter(), &Gates::default()).len(), 1);
        }
    }

    #[test]
    fn what_is_unknown_or_exactly_at_the_limit_passes() {
        for candidate in [
            with(|n| reading(n).cpu_percent = None),
            with(|n| reading(n).cpu_percent = Some(70.0)),
            with(|n| reading(n).disk = None),
            with(|n| reading(n).cores = 0),
            with(|n| n.placed = 399),
        ] {
            assert_eq!(refusal(&candidate, &Gates::default()), None, "{candidate:?}");
        }
    }

    #[test]
    fn the_emptiest_per_core_wins_then_memory_then_id() {
        let pick = |nodes: &[Candidate<'static>]| {
            choose(nodes.iter().copied(), &Gates::default()).map(|n| n.id.to_string()).expect("one")
        };
        assert_eq!(pick(&[node("a", 2, 3), node("b", 8, 8)]), "b");
        assert_eq!(pick(&[node("b", 2, 2), node("a", 2, 2)]), "a");
        let mut roomy = node("c", 2, 2);
        reading(&mut roomy).memory_available_bytes = 5 << 30;
        assert_eq!(pick(&[node("a", 2, 2), roomy]), "c");
        let mut filled = node("a", 2, 0);
        filled.placed = 2;
        assert_eq!(pick(&[filled, node("b", 2, 1)]), "b");
    }

    proptest! {
        /// A burst inside one interval leaves no node denser than another by more than one space.
        #[test]
        fn a_burst_spreads_by_density(
            cores in proptest::collection::vec(1_u32..16, 1..6),
            burst in 0_usize..200,
        ) {
            let mut nodes: Vec<Candidate<'_>> =
                cores.iter().enumerate().map(|(n, cores)| node(&format!("n{n}"), *cores, 0)).collect();
            for _ in 0..burst {
                let id = choose(nodes.iter().copied(), &Gates::default()).expect("room for all").id;
                nodes.iter_mut().filter(|n| n.id == id).for_each(|n| n.placed += 1);
            }
            for a in &nodes {
                for b in &nodes {
                    let cores = |n: &Candidate<'_>| n.reading.as_ref().expect("has one").cores;
                    // What a had before its last space was no denser than b is now.
                    let before = a.placed.saturating_sub(1) * u64::from(cores(b));
                    prop_assert!(before <= b.placed * u64::from(cores(a)), "{a:?} {b:?}");
                }
            }
        }
    }
}
