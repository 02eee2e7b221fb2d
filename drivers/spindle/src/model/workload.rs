//! Streams of operations: generated here, run on the model by [`super::simulate`] and on a real device by the self-test.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

use super::Operation;

/// The order of the places that are read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Uniformly distributed, aligned to their size.
    Random,
    /// One behind the other, from the region's start again after its end.
    Sequential,
    /// As `Sequential`, with a flush after each.
    AppendFlush,
}

/// A closed-loop workload: `queue_depth` operations are under way at any time, apart from the think time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Order of places.
    pub pattern: Pattern,
    /// Read or write.
    pub operation: Operation,
    /// Size of each.
    pub sectors: u32,
    /// Operations under way; 1 with `AppendFlush`, whose flush follows its write.
    pub queue_depth: usize,
    /// First sector of the region.
    pub region_first: u64,
    /// Its size; at least `sectors`.
    pub region_sectors: u64,
    /// Operations in all, flushes not counted; `None`: no limit but time.
    pub operations: Option<u64>,
    /// After so many seconds no operation is begun; `None`: no limit but their number.
    pub seconds: Option<f64>,
    /// From a completion until the operation that replaces it.
    pub think_ns: u64,
    /// Of the random places.
    pub seed: u64,
}

/// One operation of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What.
    pub operation: Operation,
    /// Where; 0 for a flush.
    pub first_sector: u64,
    /// How many sectors; 0 for a flush.
    pub sectors: u32,
}

/// The operations of a [`Workload`], the same for the same workload wherever it runs.
#[derive(Debug, Clone)]
pub struct Accesses {
    workload: Workload,
    random: Xoshiro256PlusPlus,
    begun: u64,
    flush_due: bool,
}

impl Workload {
    /// What is wrong with the workload, if anything: which value, and what is allowed.
    pub fn fault(&self) -> Option<String> {
        if self.sectors == 0 || u64::from(self.sectors) > self.region_sectors {
            return Some(format!(
                "sectors = {}: 1 to region_sectors = {} are allowed",
                self.sectors, self.region_sectors
            ));
        }
        if self.region_first.checked_add(self.region_sectors).is_none() {
            return Some(format!("region_first = {}: the region ends beyond 2^64 sectors", self.region_first));
        }
        if self.queue_depth == 0 || (self.pattern == Pattern::AppendFlush && self.queue_depth > 1) {
            return Some(format!("queue_depth = {}: at least 1, and 1 with append-flush", self.queue_depth));
        }
        match (self.pattern, self.operation) {
            (_, Operation::Flush) => Some("operation = flush: read or write".to_owned()),
            (Pattern::AppendFlush, Operation::Read) => Some("operation = read: append-flush writes".to_owned()),
            _ if self.operations.is_none() && self.seconds.is_none() => {
                Some("neither operations nor seconds are given: the workload would not end".to_owned())
            }
            _ => self
                .seconds
                .filter(|seconds| !seconds.is_finite() || *seconds <= 0.0)
                .map(|seconds| format!("seconds = {seconds}: more than 0")),
        }
    }

    /// The operations, in their order. Ends after `operations`, if given; `seconds` is for the one who runs them.
    pub fn accesses(&self) -> Accesses {
        let random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        Accesses { workload: self.clone(), random, begun: 0, flush_due: false }
    }
}

impl Iterator for Accesses {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        if std::mem::take(&mut self.flush_due) {
            return Some(Access { operation: Operation::Flush, first_sector: 0, sectors: 0 });
        }
        let Workload { pattern, operation, sectors, region_first, region_sectors, operations, .. } = self.workload;
        if operations.is_some_and(|operations| self.begun >= operations) {
            return None;
        }
        let places = (region_sectors / u64::from(sectors.max(1))).max(1);
        let place = match pattern {
            Pattern::Random => self.random.random_range(0..places),
            Pattern::Sequential | Pattern::AppendFlush => self.begun % places,
        };
        self.begun += 1;
        self.flush_due = pattern == Pattern::AppendFlush;
        Some(Access { operation, first_sector: region_first + place * u64::from(sectors), sectors })
    }
}
