//! What a drive counts about itself.

use hdrhistogram::Histogram;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::Operation;

/// Times from the submission of a request to its completion, in microseconds to three digits.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceTimes {
    histogram: Histogram<u64>,
}

/// An hour: nothing takes longer.
const LONGEST_US: u64 = 3_600_000_000;

impl Default for ServiceTimes {
    fn default() -> ServiceTimes {
        // The bounds are constants that the library accepts; should they ever not be, a histogram that grows does the same.
        let histogram = Histogram::new_with_bounds(1, LONGEST_US, 3).or_else(|_| Histogram::new(3));
        ServiceTimes { histogram: histogram.unwrap_or_else(|_| unreachable!("three digits are allowed")) }
    }
}

impl ServiceTimes {
    /// Counts one request.
    pub fn record_ns(&mut self, time_ns: u64) {
        self.histogram.saturating_record((time_ns + 500) / 1000);
    }

    /// The distribution itself, in microseconds.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Mean in microseconds; 0 without requests.
    pub fn mean_us(&self) -> f64 {
        self.histogram.mean()
    }

    /// The time in microseconds that this share (0 to 1) of the requests did not exceed.
    pub fn quantile_us(&self, share: f64) -> u64 {
        self.histogram.value_at_quantile(share)
    }
}

impl Serialize for ServiceTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ServiceTimes", 7)?;
        fields.serialize_field("count", &self.histogram.len())?;
        fields.serialize_field("mean_us", &self.histogram.mean())?;
        fields.serialize_field("p50_us", &self.quantile_us(0.5))?;
        fields.serialize_field("p95_us", &self.quantile_us(0.95))?;
        fields.serialize_field("p99_us", &self.quantile_us(0.99))?;
        fields.serialize_field("p999_us", &self.quantile_us(0.999))?;
        fields.serialize_field("max_us", &self.histogram.max())?;
        fields.end()
    }
}

/// Counters since the start of the drive, or since they were last reset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Sectors of the reads.
    pub sectors_read: u64,
    /// Sectors of the writes.
    pub sectors_written: u64,
    /// Operations for which the arm moved.
    pub seeks: u64,
    /// Cylinders that it moved by, in all.
    pub seek_cylinders: u64,
    /// Reads that the read-ahead buffer answered, or that went on where it was being filled.
    pub read_ahead_hits: u64,
    /// Reads answered from the write cache.
    pub cache_hits: u64,
    /// Runs written from the cache to the platters.
    pub destages: u64,
    /// Sectors of these.
    pub sectors_destaged: u64,
    /// Writes that had to wait for room in the cache.
    pub throttled_writes: u64,
    /// Time that these counters are for.
    pub elapsed_ns: u64,
    /// Part of it in which the platters (or the flash) were at work; reading ahead does not count.
    pub busy_ns: u64,
    /// Requests submitted and not completed, those outside the drive's queue included: mean over time.
    pub mean_queue_depth: f64,
    /// The same: most at any time.
    pub max_queue_depth: u64,
    /// Service times of reads.
    pub read_service: ServiceTimes,
    /// Service times of writes.
    pub write_service: ServiceTimes,
    /// Service times of flushes.
    pub flush_service: ServiceTimes,
    #[serde(skip)]
    depth_ns: u128,
}

impl Counters {
    /// Time passes, with so many requests under way.
    pub(super) fn pass(&mut self, time_ns: u64, depth: usize, busy: bool) {
        self.elapsed_ns += time_ns;
        self.busy_ns += if busy { time_ns } else { 0 };
        self.depth_ns += u128::from(time_ns) * depth as u128;
        if time_ns > 0 {
            self.mean_queue_depth = self.depth_ns as f64 / self.elapsed_ns as f64;
        }
    }

    pub(super) fn submitted(&mut self, depth: usize) {
        self.max_queue_depth = self.max_queue_depth.max(depth as u64);
    }

    pub(super) fn completed(&mut self, operation: Operation, sectors: u32, time_ns: u64) {
        match operation {
            Operation::Read => {
                self.reads += 1;
                self.sectors_read += u64::from(sectors);
                self.read_service.record_ns(time_ns);
            }
            Operation::Write => {
                self.writes += 1;
                self.sectors_written += u64::from(sectors);
                self.write_service.record_ns(time_ns);
            }
            Operation::Flush => {
                self.flushes += 1;
                self.flush_service.record_ns(time_ns);
            }
        }
    }

    pub(super) fn moved(&mut self, distance: u64) {
        self.seeks += u64::from(distance > 0);
        self.seek_cylinders += distance;
    }
}
