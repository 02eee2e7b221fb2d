//! How long the executor could not run transactions, and why: distributions that cost a few instructions to keep.

use std::time::Instant;

/// Steps of a power of two.
const STEPS: u32 = 4;
/// Bounds reach 2^28 µs, four minutes; longer pauses count as that.
const BUCKETS: usize = 28 * STEPS as usize;

/// Why the executor ran no transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseKind {
    /// It made room: constructed a block, or moved tuples so that a table could give memory back.
    Eviction,
    /// It merged tuples of fetched blocks, with the room that it made for them.
    Merge,
    /// It put the tuples of blocks together in another, or pointed entries to them.
    Compaction,
    /// It waited for the disk, because a transaction needed memory and every buffer was on its way.
    Stall,
    /// It carried a snapshot on.
    Snapshot,
    /// Anything between two transactions, these kinds and all others together: what a turn of the executor takes without its transactions, or a wait
    /// in the middle of a batch.
    Turn,
}

const KINDS: [(PauseKind, &str); 6] = [
    (PauseKind::Eviction, "eviction"),
    (PauseKind::Merge, "merge"),
    (PauseKind::Compaction, "compaction"),
    (PauseKind::Stall, "stall"),
    (PauseKind::Snapshot, "snapshot"),
    (PauseKind::Turn, "turn"),
];

/// A log-scaled histogram of microseconds: bucket `n` holds what is at most its bound, 2^(n / 4).
#[derive(Debug, Clone, Copy)]
struct Histogram {
    buckets: [u32; BUCKETS],
    count: u64,
    max_us: u64,
}

impl Histogram {
    const EMPTY: Self = Self { buckets: [0; BUCKETS], count: 0, max_us: 0 };

    fn bound_us(bucket: usize) -> u64 {
        f64::exp2(bucket as f64 / f64::from(STEPS)).ceil() as u64
    }

    #[inline]
    fn add(&mut self, us: u64) {
        // Nearly all turns end here: nothing was due.
        let guess = if us <= 1 { 0 } else { (f64::log2(us as f64) * f64::from(STEPS)).ceil() as usize };
        self.buckets[guess.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.max_us = self.max_us.max(us);
    }

    /// The bound of the bucket in which the pause of this rank lies, but never more than the longest pause; 0 when there was none.
    fn percentile_us(&self, share: f64) -> u64 {
        let rank = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank && seen > 0 {
                return Self::bound_us(bucket).min(self.max_us);
            }
        }
        0
    }
}

/// The pauses of a partition by kind.
#[derive(Debug, Clone, Copy)]
pub struct Pauses {
    kinds: [Histogram; KINDS.len()],
}

impl Default for Pauses {
    fn default() -> Self {
        Self { kinds: [Histogram::EMPTY; KINDS.len()] }
    }
}

impl Pauses {
    /// Counts a pause that began at `since` and ends now.
    #[inline]
    pub fn add(&mut self, kind: PauseKind, since: Instant) {
        self.add_us(kind, since.elapsed().as_micros() as u64);
    }

    /// Counts a pause of `us` microseconds.
    #[inline]
    pub fn add_us(&mut self, kind: PauseKind, us: u64) {
        self.kinds[kind as usize].add(us);
    }

    /// Pauses of a kind.
    pub fn count(&self, kind: PauseKind) -> u64 {
        self.kinds[kind as usize].count
    }

    /// The statistics' entries: number and percentiles in microseconds of each kind.
    pub fn report(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut report = serde_json::Map::new();
        for (kind, name) in KINDS {
            let histogram = &self.kinds[kind as usize];
            report.insert(format!("{name}_pauses"), histogram.count.into());
            for (suffix, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)] {
                report.insert(format!("{name}_pause_us_{suffix}"), histogram.percentile_us(share).into());
            }
            report.insert(format!("{name}_pause_us_max"), histogram.max_us.into());
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against sorting: never below the true percentile, and less than a step above it.
        #[test]
        fn percentiles_are_those_of_the_sorted_pauses(mut pauses in prop::collection::vec((0..30u32, 0..64u64).prop_map(|(shift, low)| (1 << shift) + low), 1..400)) {
            let mut histogram = Histogram::EMPTY;
            pauses.iter().for_each(|&us| histogram.add(us));
            pauses.sort_unstable();
            for share in [0.01, 0.5, 0.99, 0.999, 0.9999, 1.0] {
                let rank = (pauses.len() as f64 * share).ceil() as usize;
                let (truth, found) = (pauses[rank - 1], histogram.percentile_us(share));
                if truth < 1 << 27 {
                    prop_assert!(truth <= found && found as f64 <= truth as f64 * 1.2 + 1.0, "{share}: {found} for {truth}");
                }
            }
            prop_assert_eq!(histogram.max_us, pauses[pauses.len() - 1]);
        }
    }

    #[test]
    fn kinds_are_kept_apart_and_named() {
        let mut pauses = Pauses::default();
        pauses.add_us(PauseKind::Merge, 100);
        pauses.add_us(PauseKind::Stall, 3);
        let report = pauses.report();
        assert_eq!(report["merge_pause_us_p50"], 100);
        assert_eq!(report["stall_pause_us_max"], 3);
        assert_eq!((&report["eviction_pauses"], &report["eviction_pause_us_p999"]), (&0.into(), &0.into()));
        assert_eq!((pauses.count(PauseKind::Merge), report.len()), (1, 36));
        (0..10_000).for_each(|_| pauses.add_us(PauseKind::Turn, 1));
        pauses.add_us(PauseKind::Turn, 700);
        let report = pauses.report();
        assert_eq!((&report["turn_pause_us_p9999"], &report["turn_pause_us_max"]), (&1.into(), &700.into()));
        pauses.add_us(PauseKind::Turn, 600);
        assert_eq!(pauses.report()["turn_pause_us_p9999"], 609, "2^(37/4)");
    }
}
