//! Operations whose reply left later than the model says: what the machine added to the emulated disk.

use serde::Serialize;

/// A reply that leaves this long after its due time is late. The prototype's wake-ups took up to 0.2 ms on a quiet
/// machine, and a rotation takes 8.3 ms.
pub const THRESHOLD_NS: u64 = 1_000_000;

const BOUNDS_US: [u64; 11] = [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, u64::MAX];

/// What kind of operation was late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
}

#[derive(Debug, Default, Clone)]
struct OfKind {
    operations: u64,
    late: u64,
    worst_ns: u64,
    histogram: [u64; BOUNDS_US.len()],
}

/// How late replies were, since the last reset.
#[derive(Debug, Default, Clone)]
pub struct Late {
    kinds: [OfKind; 3],
}

/// [`Late`] as it stands in the statistics.
#[derive(Debug, Serialize)]
pub struct Report {
    operations: u64,
    late: u64,
    late_share: f64,
    threshold_us: u64,
    worst_us: u64,
    late_by_kind: ByKind,
    histogram: Vec<Bucket>,
}

#[derive(Debug, Serialize)]
struct ByKind {
    read: u64,
    write: u64,
    flush: u64,
}

#[derive(Debug, Serialize)]
struct Bucket {
    /// Upper bound; the last bucket has none.
    up_to_us: Option<u64>,
    operations: u64,
}

impl Late {
    /// Counts a reply that was due at `due_ns` and left at `left_ns`.
    pub fn record(&mut self, kind: Kind, due_ns: u64, left_ns: u64) {
        let over_ns = left_ns.saturating_sub(due_ns);
        let of_kind = &mut self.kinds[kind as usize];
        of_kind.operations += 1;
        of_kind.late += u64::from(over_ns > THRESHOLD_NS);
        of_kind.worst_ns = of_kind.worst_ns.max(over_ns);
        let bucket = BOUNDS_US.iter().position(|bound| over_ns / 1_000 < *bound).unwrap_or(BOUNDS_US.len() - 1);
        of_kind.histogram[bucket] += 1;
    }

    /// For the statistics.
    pub fn report(&self) -> Report {
        let operations = self.kinds.iter().map(|k| k.operations).sum();
        let late = self.kinds.iter().map(|k| k.late).sum();
        let histogram = BOUNDS_US.iter().enumerate().map(|(i, bound)| Bucket {
            up_to_us: (*bound != u64::MAX).then_some(*bound),
            operations: self.kinds.iter().map(|k| k.histogram[i]).sum(),
        });
        Report {
            operations,
            late,
            late_share: if operations == 0 { 0.0 } else { late as f64 / operations as f64 },
            threshold_us: THRESHOLD_NS / 1_000,
            worst_us: self.kinds.iter().map(|k| k.worst_ns).max().unwrap_or(0) / 1_000,
            late_by_kind: ByKind {
                read: self.kinds[Kind::Read as usize].late,
                write: self.kinds[Kind::Write as usize].late,
                flush: self.kinds[Kind::Flush as usize].late,
            },
            histogram: histogram.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_the_threshold_is_late() {
        let mut late = Late::default();
        late.record(Kind::Read, 1_000, 1_000 + THRESHOLD_NS);
        late.record(Kind::Write, 5_000_000, 4_000_000);
        late.record(Kind::Flush, 0, THRESHOLD_NS + 1_000);
        let report = late.report();
        assert_eq!((report.operations, report.late, report.worst_us), (3, 1, 1_001));
        assert_eq!((report.late_by_kind.read, report.late_by_kind.flush), (0, 1));
        assert_eq!(report.histogram.iter().map(|b| b.operations).sum::<u64>(), 3);
        assert_eq!(report.histogram[0].operations, 1, "the write was early");
    }
}
