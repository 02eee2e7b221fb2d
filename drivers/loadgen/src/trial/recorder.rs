//! What one worker thread records, and the sums over all workers.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::system::{Completion, Outcome};

/// Longest latency that the histograms tell apart: one hour. Longer ones count as one hour.
const MAX_LATENCY_US: u64 = 3_600_000_000;
/// Significant decimal digits of the histograms.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Counts of events by type.
pub type Counts = BTreeMap<String, u64>;

/// An empty latency histogram in microseconds.
pub fn new_histogram() -> Histogram<u64> {
    // Constant, valid bounds: covered by a test.
    Histogram::new_with_bounds(1, MAX_LATENCY_US, SIGNIFICANT_DIGITS).expect("valid bounds")
}

/// Everything that is counted in the measured interval.
#[derive(Debug, Clone)]
pub struct Tally {
    pub committed: u64,
    pub aborted: Counts,
    pub retried: Counts,
    pub verified: u64,
    pub verify_failed: u64,
    /// Latency of committed transactions by type, in microseconds, retries included.
    pub latency_us: Vec<Histogram<u64>>,
}

impl Tally {
    /// An empty tally for so many types of transactions.
    pub fn new(types: usize) -> Tally {
        Tally {
            committed: 0,
            aborted: Counts::new(),
            retried: Counts::new(),
            verified: 0,
            verify_failed: 0,
            latency_us: vec![new_histogram(); types],
        }
    }

    fn record(&mut self, type_index: usize, latency_us: u64, completion: &Completion) {
        match &completion.outcome {
            Outcome::Committed => {
                self.committed += 1;
                self.latency_us[type_index].saturating_record(latency_us);
            }
            Outcome::Aborted(reason) => *self.aborted.entry(reason.clone()).or_default() += 1,
        }
        for &kind in &completion.retries {
            *self.retried.entry(kind.to_owned()).or_default() += 1;
        }
        if let Some(intact) = completion.verified {
            self.verified += 1;
            self.verify_failed += u64::from(!intact);
        }
    }

    /// Adds the counts and latencies of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.committed += other.committed;
        add_counts(&mut self.aborted, &other.aborted);
        add_counts(&mut self.retried, &other.retried);
        self.verified += other.verified;
        self.verify_failed += other.verify_failed;
        for (sum, histogram) in self.latency_us.iter_mut().zip(&other.latency_us) {
            // Equal bounds, so every value fits.
            let _ = sum.add(histogram);
        }
    }

    /// Latencies of all types together.
    pub fn all_latencies_us(&self) -> Histogram<u64> {
        let mut all = new_histogram();
        for histogram in &self.latency_us {
            let _ = all.add(histogram);
        }
        all
    }
}

/// Adds counts by type.
pub fn add_counts(sum: &mut Counts, other: &Counts) {
    for (kind, count) in other {
        *sum.entry(kind.clone()).or_default() += count;
    }
}

/// What one second of the timeline sums up. Coarser than [`Tally`], since a trial has many of them.
#[derive(Debug, Clone)]
struct SecondTally {
    committed: u64,
    aborted: u64,
    retried: u64,
    latency_us: Histogram<u64>,
}

impl SecondTally {
    fn new() -> SecondTally {
        let latency_us = Histogram::new_with_bounds(1, MAX_LATENCY_US, 2).expect("valid bounds");
        SecondTally { committed: 0, aborted: 0, retried: 0, latency_us }
    }

    fn record(&mut self, latency_us: u64, completion: &Completion) {
        match completion.outcome {
            Outcome::Committed => {
                self.committed += 1;
                self.latency_us.saturating_record(latency_us);
            }
            Outcome::Aborted(_) => self.aborted += 1,
        }
        self.retried += completion.retries.len() as u64;
    }

    fn add(&mut self, other: &SecondTally) {
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.retried += other.retried;
        let _ = self.latency_us.add(&other.latency_us);
    }

    fn clear(&mut self) {
        (self.committed, self.aborted, self.retried) = (0, 0, 0);
        self.latency_us.reset();
    }

    fn is_empty(&self) -> bool {
        self.committed + self.aborted + self.retried == 0
    }

    fn line(&self, second: i64) -> TimelineSecond {
        TimelineSecond {
            second,
            committed: self.committed,
            aborted: self.aborted,
            retried: self.retried,
            latency_us_p50: self.latency_us.value_at_quantile(0.5),
            latency_us_p99: self.latency_us.value_at_quantile(0.99),
        }
    }
}

/// One line of the timeline.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TimelineSecond {
    /// Second since the start of the measured interval; negative ones belong to the warm-up.
    pub second: i64,
    pub committed: u64,
    pub aborted: u64,
    pub retried: u64,
    pub latency_us_p50: u64,
    pub latency_us_p99: u64,
}

/// The spans of a trial, in nanoseconds since the terminals started.
#[derive(Debug, Clone, Copy)]
pub struct Spans {
    pub measure_start_ns: u64,
    pub measure_end_ns: u64,
}

impl Spans {
    /// The second of the timeline that a moment falls into.
    fn second_of(self, now_ns: u64) -> i64 {
        let since_start = now_ns as i64 - self.measure_start_ns as i64;
        since_start.div_euclid(1_000_000_000)
    }

    /// First nanosecond after the timeline's second that `now_ns` falls into.
    fn second_end_ns(self, now_ns: u64) -> u64 {
        let end = (self.second_of(now_ns) + 1) * 1_000_000_000 + self.measure_start_ns as i64;
        end as u64
    }
}

/// Seconds of all workers.
#[derive(Debug, Default)]
pub struct Timeline(BTreeMap<i64, SecondTally>);

impl Timeline {
    fn add(&mut self, second: i64, tally: &SecondTally) {
        match self.0.get_mut(&second) {
            Some(sum) => sum.add(tally),
            None => {
                self.0.insert(second, tally.clone());
            }
        }
    }

    /// The seconds in order, without gaps between the first and the last.
    pub fn lines(&self) -> Vec<TimelineSecond> {
        let (Some((&first, _)), Some((&last, _))) = (self.0.first_key_value(), self.0.last_key_value()) else {
            return Vec::new();
        };
        let line = |second| match self.0.get(&second) {
            Some(tally) => tally.line(second),
            None => TimelineSecond { second, ..TimelineSecond::default() },
        };
        (first..=last).map(line).collect()
    }
}

/// Records what the terminals of one worker complete.
#[derive(Debug)]
pub struct Recorder {
    spans: Spans,
    /// The measured interval.
    pub measured: Tally,
    /// Wrong reads during the warm-up: as wrong as any.
    pub warmup_verify_failed: u64,
    /// Committed since the start, for the progress display.
    pub committed_so_far: u64,
    /// Committed or aborted since the start, to notice when nothing happens any more.
    pub completed_so_far: u64,
    current: SecondTally,
    second: i64,
    second_end_ns: u64,
}

impl Recorder {
    pub fn new(types: usize, spans: Spans) -> Recorder {
        Recorder {
            spans,
            measured: Tally::new(types),
            warmup_verify_failed: 0,
            committed_so_far: 0,
            completed_so_far: 0,
            current: SecondTally::new(),
            second: spans.second_of(0),
            second_end_ns: spans.second_end_ns(0),
        }
    }

    /// Whether `now_ns` belongs to a later second than the current one; if so, [`Recorder::flush`]
    /// must come before [`Recorder::record`].
    pub fn needs_flush(&self, now_ns: u64) -> bool {
        now_ns >= self.second_end_ns
    }

    /// Hands the current second to the timeline and starts the one of `now_ns`.
    pub fn flush(&mut self, now_ns: u64, timeline: &mut Timeline) {
        if !self.current.is_empty() {
            timeline.add(self.second, &self.current);
            self.current.clear();
        }
        self.second = self.spans.second_of(now_ns);
        self.second_end_ns = self.spans.second_end_ns(now_ns);
    }

    /// Counts a transaction that completed at `now_ns` after `latency_ns`. One that completes after
    /// the measured interval is not counted.
    pub fn record(&mut self, now_ns: u64, type_index: usize, latency_ns: u64, completion: &Completion) {
        debug_assert!(!self.needs_flush(now_ns));
        if now_ns >= self.spans.measure_end_ns {
            return;
        }
        let latency_us = latency_ns.saturating_add(500) / 1000;
        self.current.record(latency_us, completion);
        self.completed_so_far += 1;
        self.committed_so_far += u64::from(completion.outcome == Outcome::Committed);
        if now_ns >= self.spans.measure_start_ns {
            self.measured.record(type_index, latency_us, completion);
        } else {
            self.warmup_verify_failed += u64::from(completion.verified == Some(false));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// 1.5 s of warm-up, 2.5 s measured.
    const SPANS: Spans = Spans { measure_start_ns: 1_500_000_000, measure_end_ns: 4_000_000_000 };

    fn committed() -> Completion {
        Completion { terminal: 0, outcome: Outcome::Committed, verified: Some(true), retries: vec!["1213"] }
    }

    fn record_at(times_ns: &[u64]) -> (Recorder, Vec<TimelineSecond>) {
        let mut recorder = Recorder::new(1, SPANS);
        let mut timeline = Timeline::default();
        for &now in times_ns {
            if recorder.needs_flush(now) {
                recorder.flush(now, &mut timeline);
            }
            recorder.record(now, 0, 7_000, &committed());
        }
        recorder.flush(10 * SECOND, &mut timeline);
        (recorder, timeline.lines())
    }

    #[test]
    fn only_the_measured_interval_counts() {
        let edges = [0, 1_499_999_999, 1_500_000_000, 3_999_999_999, 4_000_000_000, 5 * SECOND];
        let (recorder, _) = record_at(&edges);
        assert_eq!(recorder.measured.committed, 2);
        assert_eq!(recorder.measured.retried["1213"], 2);
        assert_eq!(recorder.measured.verified, 2);
        assert_eq!(recorder.measured.all_latencies_us().len(), 2);
        assert_eq!(recorder.committed_so_far, 4);
    }

    #[test]
    fn the_timeline_has_negative_warm_up_seconds_and_no_gaps() {
        let (_, lines) = record_at(&[0, SECOND, 1_500_000_000, 3_600_000_000, 3_700_000_000]);
        let counts: Vec<(i64, u64, u64)> =
            lines.iter().map(|line| (line.second, line.committed, line.retried)).collect();
        assert_eq!(counts, [(-2, 1, 1), (-1, 1, 1), (0, 1, 1), (1, 0, 0), (2, 2, 2)]);
        assert_eq!(lines[4].latency_us_p50, 7);
        assert_eq!(lines[3].latency_us_p99, 0);
    }

    #[test]
    fn wrong_reads_of_the_warm_up_are_kept() {
        let mut recorder = Recorder::new(1, SPANS);
        let wrong = Completion { verified: Some(false), ..committed() };
        recorder.record(0, 0, 7_000, &wrong);
        assert_eq!((recorder.warmup_verify_failed, recorder.measured.verify_failed), (1, 0));
    }

    #[test]
    fn latencies_beyond_the_bounds_are_kept_as_the_bound() {
        let mut tally = Tally::new(1);
        tally.record(0, u64::MAX / 2, &committed());
        tally.record(0, 0, &committed());
        assert_eq!(tally.all_latencies_us().len(), 2);
        assert!(tally.all_latencies_us().max() >= MAX_LATENCY_US);
    }

    #[test]
    fn aborts_count_by_reason_and_have_no_latency() {
        let mut tally = Tally::new(1);
        let aborted = Outcome::Aborted("no such key".to_owned());
        tally.record(0, 1000, &Completion { outcome: aborted, verified: None, ..committed() });
        assert_eq!((tally.committed, tally.aborted["no such key"]), (0, 1));
        assert_eq!(tally.all_latencies_us().len(), 0);
    }
}
