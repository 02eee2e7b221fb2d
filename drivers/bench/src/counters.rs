//! What the processor counts while a thread works: instructions, cycles, misses. A machine that does not offer its counters, as most virtual ones do not,
//! shows none; nothing else stands in for them.

use std::io;

use perf_event::events::{Cache, CacheOp, CacheResult, Event, Hardware, WhichCache};
use perf_event::{Builder, Counter};

const KINDS: usize = 4;
/// In the order of [`Counts`].
const NAMES: [&str; KINDS] = ["instructions", "cycles", "last-level cache misses", "data TLB misses"];

fn events() -> [Event; KINDS] {
    let tlb = Cache { which: WhichCache::DTLB, operation: CacheOp::READ, result: CacheResult::MISS };
    [Hardware::INSTRUCTIONS.into(), Hardware::CPU_CYCLES.into(), Hardware::CACHE_MISSES.into(), tlb.into()]
}

/// Events of the program itself, not of the kernel, by kind; not a number where they are not counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts([f64; KINDS]);

impl Counts {
    pub fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind] - before.0[kind]))
    }

    pub fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// Those that were counted, with their names.
    pub fn named(self) -> impl Iterator<Item = (&'static str, f64)> {
        NAMES.into_iter().zip(self.0).filter(|(_, count)| count.is_finite())
    }
}

/// The counters of the thread that opened them.
pub struct Counters([io::Result<Counter>; KINDS]);

impl Counters {
    pub fn of_this_thread() -> Self {
        Self::open(events())
    }

    fn open(events: [Event; KINDS]) -> Self {
        Self(events.map(|event| {
            let mut counter = Builder::new().kind(event).build()?;
            counter.enable()?;
            Ok(counter)
        }))
    }

    /// Since the counters were opened. Where there are more than the processor can count at once, the kernel lets them take turns: their counts are
    /// extrapolated.
    pub fn read(&mut self) -> Counts {
        let mut counts = Counts([f64::NAN; KINDS]);
        for (counter, count) in self.0.iter_mut().zip(&mut counts.0) {
            let read = counter.as_mut().ok().and_then(|counter| counter.read_count_and_time().ok());
            if let Some(read) = read.filter(|read| read.time_running > 0) {
                *count = read.count as f64 * read.time_enabled as f64 / read.time_running as f64;
            }
        }
        counts
    }

    /// Which there are, and why the others are missing.
    pub fn describe(&self) -> String {
        let each = NAMES.iter().zip(&self.0).map(|(name, counter)| match counter {
            Ok(_) => (*name).to_owned(),
            Err(error) => format!("no {name} ({error})"),
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use perf_event::events::Software;

    use super::*;

    #[test]
    fn what_is_counted_grows_with_the_work() {
        let kinds = [Software::PAGE_FAULTS, Software::TASK_CLOCK, Software::PAGE_FAULTS_MIN, Software::CPU_CLOCK];
        let mut counters = Counters::open(kinds.map(Event::from));
        let before = counters.read();
        std::hint::black_box(vec![1_u8; 1 << 20]);
        let counts = counters.read().since(before);
        for (count, counter) in counts.0.iter().zip(&counters.0) {
            assert!(if counter.is_ok() { *count > 0.0 } else { count.is_nan() }, "{counts:?}: {}", counters.describe());
        }
    }

    #[test]
    fn what_is_not_counted_is_not_shown() {
        let mut sum = Counts::default();
        for _ in 0..2 {
            sum.add(Counts([5.0, f64::NAN, 8.0, f64::NAN]).since(Counts([2.0, f64::NAN, 8.0, 1.0])));
        }
        assert_eq!(sum.named().collect::<Vec<_>>(), [(NAMES[0], 6.0), (NAMES[2], 0.0)]);
    }

    #[test]
    fn every_kind_is_described() {
        let described = Counters::of_this_thread().describe();
        assert!(NAMES.iter().all(|name| described.contains(name)), "{described}");
    }
}
