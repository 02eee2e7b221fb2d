//! Whatever is asked of a drive: every request completes exactly once, and what was flushed survives a power cut.
//!
//! The caller here keeps the data as the daemon does: an overlay of what is in the cache, a copy of what is on its way, an image.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use spindle::model::{Drive, Event, Operation, PowerCut, Request};
use spindle::profile::Profile;

/// Larger than the 1 MiB of cache that the profiles are given here, so that it fills up.
const REGION: u64 = 400;

#[derive(Debug, Clone)]
enum Action {
    Write { first: u64, sectors: u32 },
    Read { first: u64, sectors: u32 },
    Flush,
    Wait { us: u64 },
    WaitForEvent,
    Cache { on: bool },
    Cut,
    Drain,
}

fn action() -> impl Strategy<Value = Action> {
    let place = || (0..REGION - 48, 1..48_u32);
    prop_oneof![
        6 => place().prop_map(|(first, sectors)| Action::Write { first, sectors }),
        3 => (0..64_u64, 1..6_u32).prop_map(|(first, sectors)| Action::Write { first, sectors }),
        3 => place().prop_map(|(first, sectors)| Action::Read { first, sectors }),
        2 => Just(Action::Flush),
        4 => (0..30_000_u64).prop_map(|us| Action::Wait { us }),
        6 => Just(Action::WaitForEvent),
        1 => any::<bool>().prop_map(|on| Action::Cache { on }),
        1 => Just(Action::Cut),
        1 => Just(Action::Drain),
    ]
}

/// A write that the caller has submitted; each has a version of its own, its id.
#[derive(Debug, Clone, Copy)]
struct Written {
    first: u64,
    sectors: u32,
    cached: bool,
}

impl Written {
    fn places(&self) -> std::ops::Range<u64> {
        self.first..self.first + u64::from(self.sectors)
    }
}

struct Caller {
    drive: Drive,
    now_ns: u64,
    next_id: u64,
    cache_on: bool,
    writes: BTreeMap<u64, Written>,
    /// Flushes under way, with the state of all sectors when they were submitted.
    flushes: BTreeMap<u64, BTreeMap<u64, usize>>,
    under_way: BTreeSet<u64>,
    overlay: BTreeMap<u64, u64>,
    in_flight: Option<(u64, Vec<u64>)>,
    image: BTreeMap<u64, u64>,
    /// Of each sector, the versions that it was given, in their order.
    history: BTreeMap<u64, Vec<u64>>,
    /// Of each sector, how many of these must survive.
    durable: BTreeMap<u64, usize>,
}

impl Caller {
    fn new(profile: &str, queue_depth: usize) -> Caller {
        let mut profile = Profile::load(profile).expect("built in");
        profile.write_cache.as_mut().expect("a cache").size_mib = 1;
        profile.host.as_mut().expect("an interface").queue_depth = queue_depth;
        Caller {
            drive: Drive::new(&profile, REGION, 77).expect("a drive"),
            now_ns: 0,
            next_id: 1,
            cache_on: true,
            writes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            under_way: BTreeSet::new(),
            overlay: BTreeMap::new(),
            in_flight: None,
            image: BTreeMap::new(),
            history: BTreeMap::new(),
            durable: BTreeMap::new(),
        }
    }

    fn submit(&mut self, operation: Operation, first_sector: u64, sectors: u32) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.under_way.insert(id);
        self.drive.submit(self.now_ns, Request { id, operation, first_sector, sectors });
        id
    }

    fn act(&mut self, action: &Action) -> TestCaseResult {
        match *action {
            Action::Write { first, sectors } => {
                let write = Written { first, sectors, cached: self.cache_on };
                // A host does not write a sector twice at the same time.
                let clash = |other: &Written| {
                    other.places().start < write.places().end && write.places().start < other.places().end
                };
                if !self.writes.values().any(clash) {
                    let id = self.submit(Operation::Write, first, sectors);
                    self.writes.insert(id, write);
                }
            }
            Action::Read { first, sectors } => {
                self.submit(Operation::Read, first, sectors);
            }
            Action::Flush => {
                let written = self.history.iter().map(|(sector, versions)| (*sector, versions.len())).collect();
                let id = self.submit(Operation::Flush, 0, 0);
                self.flushes.insert(id, written);
            }
            Action::Wait { us } => self.advance(self.now_ns + us * 1000)?,
            Action::WaitForEvent => match self.drive.next_event_ns() {
                Some(next_ns) => self.advance(next_ns)?,
                None => prop_assert!(self.under_way.is_empty(), "asleep with {:?} under way", self.under_way),
            },
            Action::Cache { on } => {
                self.cache_on = on;
                self.drive.set_write_cache(on);
            }
            Action::Cut => self.cut()?,
            Action::Drain => self.drain()?,
        }
        Ok(())
    }

    fn advance(&mut self, until_ns: u64) -> TestCaseResult {
        let mut events = Vec::new();
        self.drive.advance(until_ns, &mut events);
        let began_ns = self.now_ns;
        self.now_ns = until_ns;
        self.apply(&events, began_ns)?;
        prop_assert!(self.drive.next_event_ns().is_none_or(|next_ns| next_ns > until_ns));
        Ok(())
    }

    fn apply(&mut self, events: &[Event], began_ns: u64) -> TestCaseResult {
        let mut last_ns = began_ns;
        for event in events {
            let at_ns = match *event {
                Event::Completed { id, at_ns } => {
                    self.completed(id)?;
                    at_ns
                }
                Event::DestageBegan { first_sector, sectors, at_ns } => {
                    prop_assert!(self.in_flight.is_none());
                    let places = first_sector..first_sector + u64::from(sectors);
                    let versions: Vec<u64> =
                        places.clone().filter_map(|sector| self.overlay.get(&sector).copied()).collect();
                    prop_assert_eq!(versions.len(), sectors as usize, "a destage of sectors that are not in the cache");
                    self.in_flight = Some((first_sector, versions));
                    at_ns
                }
                Event::DestageEnded { first_sector, sectors, at_ns } => {
                    let Some((first, versions)) = self.in_flight.take() else { panic!("no destage had begun") };
                    prop_assert_eq!((first, versions.len()), (first_sector, sectors as usize));
                    for (sector, version) in (first..).zip(versions) {
                        self.image.insert(sector, version);
                        if self.overlay.get(&sector) == Some(&version) {
                            self.overlay.remove(&sector);
                        }
                    }
                    at_ns
                }
            };
            prop_assert!((last_ns..=self.now_ns).contains(&at_ns), "{event:?} outside {last_ns} to {}", self.now_ns);
            last_ns = at_ns;
            self.check_contents()?;
        }
        Ok(())
    }

    fn completed(&mut self, id: u64) -> TestCaseResult {
        prop_assert!(self.under_way.remove(&id), "request {} completed twice, or never submitted", id);
        if let Some(write) = self.writes.remove(&id) {
            for sector in write.places() {
                let versions = self.history.entry(sector).or_default();
                versions.push(id);
                if write.cached {
                    self.overlay.insert(sector, id);
                } else {
                    self.durable.insert(sector, versions.len());
                    self.image.insert(sector, id);
                }
            }
        }
        for (sector, versions) in self.flushes.remove(&id).unwrap_or_default() {
            let durable = self.durable.entry(sector).or_default();
            *durable = versions.max(*durable);
        }
        Ok(())
    }

    /// A reader finds the last version of each sector, and the image never lags behind what has been flushed.
    fn check_contents(&self) -> TestCaseResult {
        for (sector, versions) in &self.history {
            let seen = self.overlay.get(sector).or(self.image.get(sector));
            prop_assert_eq!(seen, versions.last(), "sector {} is out of date", sector);
        }
        self.check_image(&BTreeSet::new())
    }

    /// `torn`: sectors that a write past the cache had reached when the power went; they may hold its version.
    fn check_image(&self, torn: &BTreeSet<u64>) -> TestCaseResult {
        for (sector, durable) in self.durable.iter().filter(|(sector, durable)| **durable > 0 && !torn.contains(sector))
        {
            let found = self.image.get(sector);
            let kept = &self.history[sector][durable - 1..];
            prop_assert!(
                found.is_some_and(|found| kept.contains(found)),
                "sector {}: {:?} is none of {:?}",
                sector,
                found,
                kept
            );
        }
        Ok(())
    }

    fn cut(&mut self) -> TestCaseResult {
        let PowerCut { requests, interrupted } = self.drive.cut_power(self.now_ns);
        prop_assert_eq!(requests.iter().copied().collect::<BTreeSet<_>>(), std::mem::take(&mut self.under_way));
        prop_assert!(self.drive.next_event_ns().is_none(), "the drive is not idle after a power cut");
        let mut torn = BTreeSet::new();
        if let Some((first, reached)) = interrupted {
            let destage = self.in_flight.take().filter(|(destage_first, _)| *destage_first == first);
            let past_cache = self.writes.iter().find(|(_, write)| write.first == first && !write.cached);
            match (destage, past_cache) {
                (Some((_, versions)), _) => {
                    prop_assert!(reached as usize <= versions.len());
                    self.image.extend((first..).zip(versions).take(reached as usize));
                }
                (None, Some((id, write))) => {
                    prop_assert!(reached <= write.sectors);
                    torn.extend(write.places().take(reached as usize));
                    self.image.extend(write.places().take(reached as usize).map(|sector| (sector, *id)));
                }
                (None, None) => prop_assert!(false, "nothing was under way at {}", first),
            }
        }
        self.overlay.clear();
        self.in_flight = None;
        self.writes.clear();
        self.flushes.clear();
        self.check_image(&torn)?;
        // What is found now is what there is.
        self.history = self.image.iter().map(|(sector, version)| (*sector, vec![*version])).collect();
        self.durable = self.image.keys().map(|sector| (*sector, 1)).collect();
        Ok(())
    }

    fn drain(&mut self) -> TestCaseResult {
        let mut events = Vec::new();
        self.drive.drain(self.now_ns, &mut events);
        self.apply(&events, self.now_ns)?;
        prop_assert!(self.under_way.is_empty(), "left over: {:?}", self.under_way);
        prop_assert!(self.overlay.is_empty() && self.in_flight.is_none());
        prop_assert!(self.drive.next_event_ns().is_none(), "the drive is not idle after it was drained");
        Ok(())
    }

    /// Without new requests everything comes to an end by itself.
    fn finish(&mut self) -> TestCaseResult {
        for _ in 0..100_000 {
            let Some(next_ns) = self.drive.next_event_ns() else { break };
            self.advance(next_ns)?;
        }
        prop_assert!(self.drive.next_event_ns().is_none(), "the drive never comes to rest");
        prop_assert!(self.under_way.is_empty(), "never completed: {:?}", self.under_way);
        prop_assert!(self.overlay.is_empty(), "never destaged: {:?}", self.overlay.keys());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_and_nothing_happens_twice(
        profile in prop::sample::select(vec!["hdd-7200", "hdd-297mb", "hdd-15k", "sata-ssd", "nvme"]),
        queue_depth in 1..12_usize,
        actions in vec(action(), 1..200),
    ) {
        let mut caller = Caller::new(profile, queue_depth);
        for action in &actions {
            caller.act(action)?;
        }
        caller.finish()?;
        caller.cut()?;
    }
}
