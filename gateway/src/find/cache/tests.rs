use proptest::prelude::*;

use super::*;

const AGE: Duration = Duration::from_secs(60);

fn hit(name: u8, id: u8, ledger: u8) -> Hit {
    Hit {
        ledger: format!("{ledger:032x}").parse().expect("an id"),
        id: format!("{id:032x}").parse().expect("an id"),
        name: format!("n{name}").parse().expect("a name"),
        epoch: Epoch::FIRST,
    }
}

fn name(n: u8) -> SpaceRef {
    SpaceRef::Name(format!("n{n}").parse().expect("a name"))
}

fn by_id(n: u8) -> SpaceRef {
    SpaceRef::Id(hit(0, n, 0).id)
}

#[tokio::test(start_paused = true)]
async fn hints_end_by_age_however_often_they_are_used_and_leave_what_is_known() {
    let mut cache = Cache::new(10, AGE, 7);
    cache.put(hit(1, 1, 1), Instant::now());
    for _ in 0..59 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(cache.get(&name(1), Instant::now()).is_some());
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(cache.get(&name(1), Instant::now()).is_none());
    assert!(cache.knows(&name(1)) && cache.knows(&by_id(1)), "it exists all the same");
    cache.put(hit(1, 1, 2), Instant::now());
    assert_eq!(cache.get(&name(1), Instant::now()), Some(hit(1, 1, 2)));
    cache.doubt(&by_id(1));
    assert!(cache.get(&name(1), Instant::now()).is_none() && cache.knows(&name(1)));
    cache.forget(&name(1));
    assert!(!cache.knows(&name(1)) && !cache.knows(&by_id(1)), "gone");
}

#[tokio::test]
async fn a_name_and_an_id_lead_to_one_entry() {
    let now = Instant::now();
    let mut cache = Cache::new(2, AGE, 7);
    cache.put(hit(1, 1, 1), now);
    assert_eq!(cache.get(&name(1), now), cache.get(&by_id(1), now));
    cache.put(hit(1, 2, 1), now);
    assert_eq!(cache.get(&by_id(1), now), None, "the name has moved to another id");
    cache.put(hit(3, 3, 2), now);
    assert!(cache.get(&name(1), now).is_some());
    cache.put(hit(4, 4, 2), now);
    assert_eq!(cache.get(&name(3), now), None, "the least recently used one");
    cache.forget_node(&hit(0, 0, 2).ledger);
    assert!(cache.get(&name(4), now).is_none() && cache.get(&name(1), now).is_some());
    cache.forget(&by_id(2));
    assert!(cache.get(&name(1), now).is_none());
    assert_eq!((cache.len(), cache.by_name.len()), (0, 0));
}

/// The same in the plainest way there is.
#[derive(Default)]
struct Model {
    /// From the least to the most recently used.
    order: Vec<Hit>,
}

impl Model {
    fn at(&self, space: &SpaceRef) -> Option<usize> {
        self.order.iter().position(|hit| match space {
            SpaceRef::Id(id) => hit.id == *id,
            SpaceRef::Name(name) => hit.name == *name,
        })
    }

    fn forget(&mut self, space: &SpaceRef) {
        self.at(space).map(|at| self.order.remove(at));
    }

    fn get(&mut self, space: &SpaceRef) -> Option<Hit> {
        let hit = self.at(space).map(|at| self.order.remove(at))?;
        self.order.push(hit.clone());
        Some(hit)
    }

    fn put(&mut self, hit: Hit, entries_max: usize) {
        self.forget(&SpaceRef::Name(hit.name.clone()));
        self.forget(&SpaceRef::Id(hit.id));
        if self.order.len() == entries_max {
            self.order.remove(0);
        }
        self.order.push(hit);
    }
}

proptest! {
    #[test]
    fn it_does_what_a_plain_list_does(
        steps in proptest::collection::vec((0_u8..6, 0_u8..6, 0_u8..6), 0..200),
        entries_max in 1_usize..5,
    ) {
        let (mut cache, mut model) = (Cache::new(entries_max, AGE, 7), Model::default());
        let now = Instant::now();
        for (step, a, b) in steps {
            match step {
                0 | 1 => {
                    cache.put(hit(a, b, a % 2), now);
                    model.put(hit(a, b, a % 2), entries_max);
                }
                2 => {
                    cache.forget(&name(a));
                    model.forget(&name(a));
                }
                3 => prop_assert_eq!(cache.get(&name(a), now), model.get(&name(a))),
                4 => prop_assert_eq!(cache.get(&by_id(b), now), model.get(&by_id(b))),
                _ => {
                    cache.forget_node(&hit(0, 0, a % 2).ledger);
                    model.order.retain(|kept| kept.ledger != hit(0, 0, a % 2).ledger);
                }
            }
            prop_assert_eq!(cache.len(), model.order.len());
            prop_assert_eq!(cache.by_name.len(), model.order.len());
            prop_assert!(cache.entries.len() <= entries_max);
        }
    }
}

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let statm = fs_err::read_to_string("/proc/self/statm").expect("there is a kernel");
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

#[tokio::test]
#[ignore = "measures memory; prints bytes and nanoseconds an entry"]
async fn soak_a_million_names_are_small() {
    const NAMES: u64 = 1_000_000;
    let id = |n: u64| format!("{n:032x}").parse().expect("an id");
    let named = |n: u64| format!("customer-{n:015}").parse::<SpaceName>().expect("a name");
    let one = |n: u64| Hit {
        ledger: format!("{:032x}", n % 1000).parse().expect("an id"),
        id: id(n),
        name: named(n),
        epoch: Epoch::FIRST,
    };
    let mut cache = Cache::new(1_000_000, AGE, 7);
    let before = resident_bytes();
    let begun = Instant::now();
    for n in 0..NAMES {
        cache.put(one(n), begun);
    }
    let (put, bytes) = (begun.elapsed(), resident_bytes().saturating_sub(before) / NAMES);
    let begun = Instant::now();
    let found = (0..NAMES).filter(|n| cache.get(&SpaceRef::Name(named(*n)), begun).is_some()).count();
    let got = begun.elapsed();
    println!(
        "{NAMES} names of 24 bytes: {bytes} bytes an entry, put {} ns, get {} ns (making the key included)",
        put.as_nanos() / u128::from(NAMES),
        got.as_nanos() / u128::from(NAMES),
    );
    assert_eq!(found as u64, NAMES);
    assert!(bytes <= 200, "{bytes} bytes an entry");
    // A million more go through without another byte.
    let full = resident_bytes();
    for n in NAMES..2 * NAMES {
        cache.put(one(n), begun);
    }
    let grown = resident_bytes().saturating_sub(full);
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert_eq!(cache.len() as u64, NAMES);
}
