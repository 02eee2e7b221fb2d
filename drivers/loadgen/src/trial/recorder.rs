//! What one worker thread records, and the sums over all workers.

use std::collections::BTreeMap;
use std::ops::Range;

use hdrhistogram::Histogram;

use super::open_loop::OpenTally;
use super::transactions::{TransactionLog, TransactionRecord};
use crate::system::{Completion, Outcome};

/// Longest latency that the histograms tell apart: one hour. Longer ones count as one hour.
const MAX_LATENCY_US: u64 = 3_600_000_000;
/// Significant decimal digits of the histograms.
const SIGNIFICANT_DIGITS: u8 = 3;
/// Share of the measured interval in which nothing completes from which on a system counts as stalled.
const STALLED_SHARE: f64 = 0.25;
/// Bounds of the same, in nanoseconds: noise alone never flags a short trial, and a long one does not
/// excuse a long pause. With 64 terminals even a disk of 7200 rpm completes something every few 10 ms.
const STALLED_NS: Range<u64> = 1_000_000_000..10_000_000_000;

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
    /// By type of transaction.
    pub committed_by_type: Vec<u64>,
    pub aborted: Counts,
    pub retried: Counts,
    pub verified: u64,
    pub verify_failed: u64,
    /// Latency by type, in microseconds, retries included: of transactions that commit in the measured
    /// interval, and of those under way at its end, without which a system that hangs would look fast.
    pub latency_us: Vec<Histogram<u64>>,
}

impl Tally {
    /// An empty tally for so many types of transactions.
    pub fn new(types: usize) -> Tally {
        Tally {
            committed: 0,
            committed_by_type: vec![0; types],
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
                self.committed_by_type[type_index] += 1;
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

    /// Counts the latency of a transaction that was under way at the end of the measured interval; `now_ns`
    /// is when it completed or, if it never did, when nobody waited for it any longer.
    pub fn record_outstanding(&mut self, spans: Spans, now_ns: u64, type_index: usize, submitted_ns: u64) {
        if submitted_ns < spans.measure_end_ns && now_ns >= spans.measure_end_ns {
            self.latency_us[type_index].saturating_record(latency_us(submitted_ns, now_ns));
        }
    }

    /// Adds the counts and latencies of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.committed += other.committed;
        for (sum, committed) in self.committed_by_type.iter_mut().zip(&other.committed_by_type) {
            *sum += committed;
        }
        add_counts(&mut self.aborted, &other.aborted);
        add_counts(&mut self.retried, &other.retried);
        self.verified += other.verified;
        self.verify_failed += other.verify_failed;
        for (sum, histogram) in self.latency_us.iter_mut().zip(&other.latency_us) {
            add_histogram(sum, histogram);
        }
    }

    /// Latencies of all types together.
    pub fn all_latencies_us(&self) -> Histogram<u64> {
        let mut all = new_histogram();
        for histogram in &self.latency_us {
            add_histogram(&mut all, histogram);
        }
        all
    }
}

/// Whole microseconds between two moments.
pub fn latency_us(submitted_ns: u64, now_ns: u64) -> u64 {
    (now_ns.saturating_sub(submitted_ns) + 500) / 1000
}

/// Adds a histogram that [`new_histogram`] made to another.
pub fn add_histogram(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    // Equal bounds, so every value fits.
    let _ = sum.add(other);
}

/// Adds counts by type.
pub fn add_counts(sum: &mut Counts, other: &Counts) {
    for (kind, count) in other {
        *sum.entry(kind.clone()).or_default() += count;
    }
}

const TENTH_NS: u64 = 100_000_000;

/// What one second of the timeline sums up. Coarser than [`Tally`], since a trial has many of them.
#[derive(Debug, Clone)]
struct SecondTally {
    committed: u64,
    committed_in_tenths: [u64; 10],
    aborted: u64,
    retried: u64,
    latency_us: Histogram<u64>,
}

impl SecondTally {
    fn new() -> SecondTally {
        let latency_us = Histogram::new_with_bounds(1, MAX_LATENCY_US, 2).expect("valid bounds");
        SecondTally { committed: 0, committed_in_tenths: [0; 10], aborted: 0, retried: 0, latency_us }
    }

    fn record(&mut self, tenth: usize, latency_us: u64, completion: &Completion) {
        match completion.outcome {
            Outcome::Committed => {
                self.committed += 1;
                self.committed_in_tenths[tenth] += 1;
                self.latency_us.saturating_record(latency_us);
            }
            Outcome::Aborted(_) => self.aborted += 1,
        }
        self.retried += completion.retries.len() as u64;
    }

    fn add(&mut self, other: &SecondTally) {
        self.committed += other.committed;
        for (sum, committed) in self.committed_in_tenths.iter_mut().zip(other.committed_in_tenths) {
            *sum += committed;
        }
        self.aborted += other.aborted;
        self.retried += other.retried;
        let _ = self.latency_us.add(&other.latency_us);
    }

    fn clear(&mut self) {
        (self.committed, self.aborted, self.retried) = (0, 0, 0);
        self.committed_in_tenths = [0; 10];
        self.latency_us.reset();
    }

    fn is_empty(&self) -> bool {
        self.committed + self.aborted + self.retried == 0
    }

    fn line(&self, second: i64) -> TimelineSecond {
        TimelineSecond {
            second,
            committed: self.committed,
            committed_in_tenths: self.committed_in_tenths,
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
    /// Of these, in each tenth of the second: evictions are so many that most seconds have some (paper §5.6).
    pub committed_in_tenths: [u64; 10],
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
    /// Whether a moment lies in the measured interval.
    pub fn is_measured(self, now_ns: u64) -> bool {
        (self.measure_start_ns..self.measure_end_ns).contains(&now_ns)
    }

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

    /// A system that completes nothing for so long inside the measured interval has stalled.
    pub fn stalled_ns(self) -> u64 {
        let measured_ns = (self.measure_end_ns - self.measure_start_ns) as f64;
        ((STALLED_SHARE * measured_ns) as u64).clamp(STALLED_NS.start, STALLED_NS.end)
    }
}

/// The time that is in both of two ascending lists of pauses, where it is at least `least_ns` long.
pub fn common_pauses(some: &[Range<u64>], others: &[Range<u64>], least_ns: u64) -> Vec<Range<u64>> {
    // Every pair: stalls are few, and in most trials there is none at all.
    some.iter()
        .flat_map(|a| others.iter().map(|b| a.start.max(b.start)..a.end.min(b.end)))
        .filter(|pause| pause.end.saturating_sub(pause.start) >= least_ns)
        .collect()
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

    /// Every second of the trial until `until_ns`, but not beyond the measured interval, in order; also
    /// those in which nothing happened, so that whoever reads the timeline sees a system that hangs.
    pub fn lines(&self, spans: Spans, until_ns: u64) -> Vec<TimelineSecond> {
        let end_ns = until_ns.min(spans.measure_end_ns);
        if end_ns == 0 {
            return Vec::new();
        }
        let line = |second| match self.0.get(&second) {
            Some(tally) => tally.line(second),
            None => TimelineSecond { second, ..TimelineSecond::default() },
        };
        (spans.second_of(0)..=spans.second_of(end_ns - 1)).map(line).collect()
    }
}

/// Records what the terminals of one worker complete.
#[derive(Debug)]
pub struct Recorder {
    spans: Spans,
    /// The measured interval.
    pub measured: Tally,
    /// Wrong reads before and after the measured interval: as wrong as any.
    pub unmeasured_verify_failed: u64,
    /// Committed since the start, for the progress display.
    pub committed_so_far: u64,
    /// Parts of the measured interval in which nothing of this worker completed, as far as they are
    /// long enough for a stall.
    pauses_ns: Vec<Range<u64>>,
    /// End of the last completion, but never before the measured interval.
    last_completion_ns: u64,
    stalled_ns: u64,
    /// Whether its terminal pauses: what nobody waits for is no stall.
    resting: bool,
    current: SecondTally,
    second: i64,
    second_end_ns: u64,
    /// The transactions of the measured interval one by one, where they are asked for.
    pub transactions: Option<TransactionLog>,
    /// What is measured from the arrival on, in an open loop.
    pub open: Option<OpenTally>,
}

impl Recorder {
    pub fn new(types: usize, spans: Spans) -> Recorder {
        Recorder {
            spans,
            measured: Tally::new(types),
            unmeasured_verify_failed: 0,
            committed_so_far: 0,
            pauses_ns: Vec::new(),
            last_completion_ns: spans.measure_start_ns,
            stalled_ns: spans.stalled_ns(),
            resting: false,
            current: SecondTally::new(),
            second: spans.second_of(0),
            second_end_ns: spans.second_end_ns(0),
            transactions: None,
            open: None,
        }
    }

    /// Also measures from arrivals on.
    pub fn in_open_loop(mut self) -> Recorder {
        self.open = Some(OpenTally::new(self.spans));
        self
    }

    /// Also keeps at most so many transactions of the measured interval one by one; `None`: none.
    pub fn keeping(mut self, most: Option<usize>) -> Recorder {
        self.transactions = most.map(TransactionLog::new);
        self
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

    /// Counts a transaction that completed at `now_ns`. Of one that completes after the measured interval
    /// only the latency counts, if it was submitted before: goodput comes from the interval alone.
    pub fn record(&mut self, now_ns: u64, type_index: usize, submitted_ns: u64, completion: &Completion) {
        debug_assert!(!self.needs_flush(now_ns));
        self.end_pause(now_ns);
        if now_ns >= self.spans.measure_end_ns {
            self.unmeasured_verify_failed += u64::from(completion.verified == Some(false));
            if completion.outcome == Outcome::Committed {
                self.measured.record_outstanding(self.spans, now_ns, type_index, submitted_ns);
            }
            return;
        }
        let latency_us = latency_us(submitted_ns, now_ns);
        let before_end_ns = self.second_end_ns.saturating_sub(now_ns + 1);
        let tenth = 9 - (before_end_ns / TENTH_NS).min(9) as usize;
        self.current.record(tenth, latency_us, completion);
        self.committed_so_far += u64::from(completion.outcome == Outcome::Committed);
        if now_ns >= self.spans.measure_start_ns {
            self.measured.record(type_index, latency_us, completion);
            if let Some(log) = &mut self.transactions {
                log.push(TransactionRecord {
                    submitted_ns,
                    latency_us: u32::try_from(latency_us).unwrap_or(u32::MAX),
                    // Terminals are at most 4096, types five.
                    terminal: completion.terminal as u16,
                    type_index: type_index as u8,
                    committed: completion.outcome == Outcome::Committed,
                });
            }
        } else {
            self.unmeasured_verify_failed += u64::from(completion.verified == Some(false));
        }
    }

    /// Its only terminal waits for no answer from now on. A stall of the system is then a time in which every terminal waits.
    pub fn rest(&mut self, now_ns: u64) {
        self.end_pause(now_ns);
        self.resting = true;
    }

    /// The terminal has ended its pause.
    pub fn resume(&mut self, now_ns: u64) {
        self.end_pause(now_ns);
        self.resting = false;
    }

    /// The stalls of this worker alone in the measured interval, up to `now_ns`.
    pub fn pauses_ns(&mut self, now_ns: u64) -> &[Range<u64>] {
        self.end_pause(now_ns);
        &self.pauses_ns
    }

    fn end_pause(&mut self, now_ns: u64) {
        let now_ns = now_ns.clamp(self.spans.measure_start_ns, self.spans.measure_end_ns);
        // The clock may have been read before another thread ended the pause.
        let now_ns = now_ns.max(self.last_completion_ns);
        if !self.resting && now_ns - self.last_completion_ns >= self.stalled_ns {
            self.pauses_ns.push(self.last_completion_ns..now_ns);
        }
        self.last_completion_ns = now_ns;
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
            recorder.record(now, 0, now.saturating_sub(7_000), &committed());
        }
        recorder.flush(10 * SECOND, &mut timeline);
        (recorder, timeline.lines(SPANS, 10 * SECOND))
    }

    #[test]
    fn only_the_measured_interval_counts() {
        let edges = [0, 1_499_999_999, 1_500_000_000, 3_999_999_999, 4_000_000_000, 5 * SECOND];
        let (recorder, _) = record_at(&edges);
        assert_eq!(recorder.measured.committed, 2);
        assert_eq!(recorder.measured.retried["1213"], 2);
        assert_eq!(recorder.measured.verified, 2);
        assert_eq!(recorder.committed_so_far, 4);
    }

    #[test]
    fn what_is_under_way_at_the_end_has_a_latency_but_is_no_commit() {
        let mut recorder = Recorder::new(1, SPANS);
        recorder.flush(9 * SECOND, &mut Timeline::default());
        recorder.record(9 * SECOND, 0, 2 * SECOND, &committed());
        recorder.record(9 * SECOND, 0, SPANS.measure_end_ns, &committed());
        recorder.measured.record_outstanding(SPANS, 9 * SECOND, 0, 3 * SECOND);
        let aborted = Completion { outcome: Outcome::Aborted("no such key".to_owned()), ..committed() };
        recorder.record(9 * SECOND, 0, 2 * SECOND, &aborted);
        let latencies_us = recorder.measured.all_latencies_us();
        assert_eq!((recorder.measured.committed, recorder.measured.verified), (0, 0));
        assert_eq!(latencies_us.len(), 2, "neither the one submitted at the end nor the aborted one counts");
        assert!(latencies_us.min() >= 5_990_000 && latencies_us.max() >= 6_990_000, "{}", latencies_us.min());
    }

    #[test]
    fn what_hangs_when_a_trial_is_cut_off_is_not_measured() {
        let mut tally = Tally::new(1);
        tally.record_outstanding(SPANS, 2 * SECOND, 0, SECOND);
        assert_eq!(tally.all_latencies_us().len(), 0);
    }

    #[test]
    fn the_timeline_has_negative_warm_up_seconds_and_no_gaps() {
        let (_, lines) = record_at(&[0, SECOND, 1_500_000_000, 3_600_000_000, 3_700_000_000, 4_100_000_000]);
        let counts: Vec<(i64, u64, u64)> =
            lines.iter().map(|line| (line.second, line.committed, line.retried)).collect();
        assert_eq!(counts, [(-2, 1, 1), (-1, 1, 1), (0, 1, 1), (1, 0, 0), (2, 2, 2)]);
        assert_eq!(lines[4].committed_in_tenths, [0, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(lines[4].latency_us_p50, 7);
        assert_eq!(lines[3].latency_us_p99, 0);
    }

    #[test]
    fn seconds_without_a_commit_are_lines_of_zeros() {
        let seconds = |times_ns: &[u64]| -> Vec<(i64, u64)> {
            record_at(times_ns).1.iter().map(|line| (line.second, line.committed)).collect()
        };
        assert_eq!(seconds(&[]), [(-2, 0), (-1, 0), (0, 0), (1, 0), (2, 0)]);
        assert_eq!(seconds(&[1_600_000_000]), [(-2, 0), (-1, 0), (0, 1), (1, 0), (2, 0)]);
    }

    #[test]
    fn the_timeline_of_a_trial_that_was_cut_off_ends_there() {
        let last = |until_ns| Timeline::default().lines(SPANS, until_ns).last().map(|line| line.second);
        assert_eq!((last(0), last(1), last(2_600_000_000)), (None, Some(-2), Some(1)));
        // A measured interval of whole seconds has no line after them.
        let whole = Spans { measure_start_ns: 0, measure_end_ns: 2 * SECOND };
        assert_eq!(Timeline::default().lines(whole, 5 * SECOND).len(), 2);
    }

    #[test]
    fn pauses_count_inside_the_measured_interval_only() {
        assert_eq!(SPANS.stalled_ns(), SECOND);
        let pauses = |times_ns: &[u64]| -> Vec<(u64, u64)> {
            record_at(times_ns).0.pauses_ns(10 * SECOND).iter().map(|pause| (pause.start, pause.end)).collect()
        };
        assert_eq!(pauses(&[0]), [(1_500_000_000, 4_000_000_000)], "a whole interval of silence");
        assert_eq!(pauses(&[2 * SECOND, 2_900_000_000]), [(2_900_000_000, 4_000_000_000)]);
        assert_eq!(pauses(&[2 * SECOND, 2_900_000_000, 3_500_000_000]), []);
    }

    #[test]
    fn a_terminals_own_pauses_are_no_stalls() {
        let mut recorder = Recorder::new(1, SPANS);
        recorder.rest(0);
        recorder.resume(2_800_000_000);
        assert_eq!(recorder.pauses_ns(2_900_000_000), []);
        let waited = std::slice::from_ref(&(2_900_000_000..4_000_000_000));
        assert_eq!(recorder.pauses_ns(10 * SECOND), waited, "it waited");
        let mut recorder = Recorder::new(1, SPANS);
        recorder.rest(0);
        assert_eq!(recorder.pauses_ns(10 * SECOND), [], "it still rests");
    }

    #[test]
    fn a_stall_is_a_quarter_of_the_interval_within_bounds() {
        let stalled_ns = |measure_s| Spans { measure_start_ns: 0, measure_end_ns: measure_s * SECOND }.stalled_ns();
        assert_eq!([1, 4, 8, 40, 600].map(stalled_ns), [1, 1, 2, 10, 10].map(|limit_s| limit_s * SECOND));
    }

    #[test]
    fn only_pauses_of_all_workers_are_pauses_of_the_system() {
        let one = [0..10, 20..30, 40..50];
        assert_eq!(common_pauses(&one, &[5..26, 28..60], 3), [5..10, 20..26, 40..50]);
        assert_eq!(common_pauses(&one, &[10..20, 30..40], 1), []);
    }

    #[test]
    fn wrong_reads_outside_of_the_measured_interval_are_kept() {
        let mut recorder = Recorder::new(1, SPANS);
        let wrong = Completion { verified: Some(false), ..committed() };
        recorder.record(0, 0, 0, &wrong);
        recorder.flush(5 * SECOND, &mut Timeline::default());
        recorder.record(5 * SECOND, 0, 0, &wrong);
        assert_eq!((recorder.unmeasured_verify_failed, recorder.measured.verify_failed), (2, 0));
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
