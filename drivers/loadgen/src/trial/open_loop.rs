//! An open loop: the arrivals that free terminals take, what is measured of them, and whether the system kept up.
//!
//! Arrivals wait in one queue, in the order of their times, for whichever terminal is free first: a terminal whose transaction hangs holds up nobody
//! but itself. The number of terminals bounds how many transactions are under way; what waits for a terminal has arrived all the same, and its
//! waiting counts. So *response time* begins with the arrival, whoever or whatever is late; *service time* begins when a terminal submits, as in a
//! closed loop. A client that only measured the latter would leave out what a slow system makes its users wait (coordinated omission).

use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::recorder::{Spans, Tally, add_histogram, latency_us, new_histogram};
use super::result::LatencySummary;
use crate::arrivals::{OpenLoop, Process, Schedule};

/// A system that falls behind by more than this share of what arrived is overloaded ...
const OVERLOADED_SHARE: f64 = 0.01;
/// ... unless that is so few that chance explains it: 64 terminals that are busy now and then differ by that much between two moments.
const LEAST_GROWTH: u64 = 32;
/// From then on the client's own lateness, of one start in a hundred, can be what a response time consists of.
const CLIENT_LATE_US: u64 = 1000;

/// The queue of arrivals that all terminals of a trial share.
pub struct Arrivals {
    pub open_loop: OpenLoop,
    spans: Spans,
    queue: Mutex<Queue>,
}

struct Queue {
    schedule: Schedule,
    /// Arrivals of the measured interval that were taken.
    taken: u64,
    /// Taken by terminals that did not come to start them before the end.
    given_back: Vec<u64>,
}

/// Arrivals up to some moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Those of the measured interval.
    pub in_interval: u64,
    /// Those that no terminal has started, of the warm-up and of the interval.
    pub not_started: u64,
}

impl Arrivals {
    pub fn new(open_loop: OpenLoop, seed: u64, spans: Spans) -> Arrivals {
        let queue = Queue { schedule: Schedule::new(open_loop, seed), taken: 0, given_back: Vec::new() };
        Arrivals { open_loop, spans, queue: Mutex::new(queue) }
    }

    /// When the transaction arrives, or has arrived, that a free terminal is to start next.
    pub fn take(&self) -> u64 {
        let mut queue = self.lock();
        let intended_ns = queue.schedule.next_ns();
        queue.taken += u64::from(self.spans.is_measured(intended_ns));
        intended_ns
    }

    /// Puts an arrival back that was taken and not started.
    pub fn give_back(&self, intended_ns: u64) {
        self.lock().given_back.push(intended_ns);
    }

    /// Counts what arrived before `until_ns`, when terminals take no more; `on_waiting` gets the times of those that were not started.
    pub fn end(&self, until_ns: u64, mut on_waiting: impl FnMut(u64)) -> Arrived {
        let mut queue = self.lock();
        let mut arrived = Arrived { in_interval: queue.taken, not_started: 0 };
        for intended_ns in std::mem::take(&mut queue.given_back) {
            if intended_ns < until_ns {
                arrived.not_started += 1;
                on_waiting(intended_ns);
            } else {
                arrived.in_interval -= u64::from(self.spans.is_measured(intended_ns));
            }
        }
        loop {
            let intended_ns = queue.schedule.next_ns();
            if intended_ns >= until_ns {
                return arrived;
            }
            arrived.in_interval += u64::from(self.spans.is_measured(intended_ns));
            arrived.not_started += 1;
            on_waiting(intended_ns);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is measured from arrivals on, beside [`Tally`].
#[derive(Debug, Clone)]
pub struct OpenTally {
    spans: Spans,
    /// From the arrival to the commit, in microseconds; of the same transactions as the latencies, and of those that were not started by the end of
    /// the measured interval, with what they had waited until then.
    pub response_us: Histogram<u64>,
    /// How late transactions of the measured interval were started though a terminal was free: what the client itself does to a response time.
    pub client_late_us: Histogram<u64>,
    /// How late any transaction of the measured interval was started, for want of a free terminal too.
    latest_start_us: u64,
    /// Transactions that were waiting for a terminal when the measured interval began.
    backlog_at_start: u64,
    /// How long terminals have spun until an arrival in the measured interval: CPU time that was no work.
    pub spun_ns: u64,
}

impl OpenTally {
    pub fn new(spans: Spans) -> OpenTally {
        let (response_us, client_late_us) = (new_histogram(), new_histogram());
        OpenTally { spans, response_us, client_late_us, latest_start_us: 0, backlog_at_start: 0, spun_ns: 0 }
    }

    /// A terminal has started what arrived at `intended_ns`, after it spun for so long; `was_free` says whether one was free by then.
    pub fn start(&mut self, intended_ns: u64, now_ns: u64, was_free: bool, spun_ns: u64) {
        if now_ns < self.spans.measure_start_ns {
            return;
        }
        self.spun_ns += spun_ns;
        self.backlog_at_start += u64::from(intended_ns < self.spans.measure_start_ns);
        let late_us = latency_us(intended_ns, now_ns);
        self.latest_start_us = self.latest_start_us.max(late_us);
        if was_free {
            self.client_late_us.saturating_record(late_us);
        }
    }

    /// What arrived at `intended_ns` has committed, or nobody waits for it any longer.
    pub fn end(&mut self, intended_ns: u64, now_ns: u64) {
        if now_ns >= self.spans.measure_start_ns {
            self.response_us.saturating_record(latency_us(intended_ns, now_ns));
        }
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &OpenTally) {
        add_histogram(&mut self.response_us, &other.response_us);
        add_histogram(&mut self.client_late_us, &other.client_late_us);
        self.latest_start_us = self.latest_start_us.max(other.latest_start_us);
        self.backlog_at_start += other.backlog_at_start;
        self.spun_ns += other.spun_ns;
    }
}

/// What `result.json` says of an open loop, under `open_loop`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenLoopResult {
    pub arrival: Process,
    /// The rate that was asked for.
    pub offered_txn_s: f64,
    /// Transactions that arrived in the measured interval; with Poisson arrivals the rate is their mean.
    pub arrived: u64,
    /// Transactions that were over in the measured interval ÷ its seconds, those that the benchmark itself rolls back included.
    pub achieved_txn_s: f64,
    /// From the arrival to the commit.
    pub response_us: LatencySummary,
    /// How late transactions were started though a terminal was free.
    pub client_late_us: LatencySummary,
    /// The latest start of all, for want of a free terminal too.
    pub latest_start_us: u64,
    /// Transactions that waited for a terminal when the measured interval began ...
    pub backlog_at_start: u64,
    /// ... and those that had arrived and were not started when it ended.
    pub not_started: u64,
    #[serde(skip)]
    over: u64,
}

impl OpenLoopResult {
    pub fn of(open_loop: OpenLoop, arrived: Arrived, open: &OpenTally, tally: &Tally, measured_s: f64) -> Self {
        let over = tally.committed + tally.aborted.values().sum::<u64>();
        OpenLoopResult {
            arrival: open_loop.process,
            offered_txn_s: open_loop.offered_txn_s,
            arrived: arrived.in_interval,
            achieved_txn_s: if measured_s > 0.0 { over as f64 / measured_s } else { 0.0 },
            response_us: LatencySummary::of(&open.response_us),
            client_late_us: LatencySummary::of(&open.client_late_us),
            latest_start_us: open.latest_start_us,
            backlog_at_start: open.backlog_at_start,
            not_started: arrived.not_started,
            over,
        }
    }

    /// What a reader must know of a trial that is valid all the same: (flag, reason).
    pub fn remarks(&self) -> Vec<(&'static str, String)> {
        let mut remarks = Vec::new();
        let OpenLoopResult { arrived, over, not_started, .. } = *self;
        let growth = arrived.saturating_sub(over);
        if growth > LEAST_GROWTH && growth as f64 > OVERLOADED_SHARE * arrived as f64 {
            let message = format!(
                "overloaded: {over} transactions were over and {arrived} arrived, {not_started} of all were not started: \
                 response times grow with the length of the trial"
            );
            remarks.push(("overloaded", message));
        }
        let late_us = self.client_late_us.p99;
        if late_us >= CLIENT_LATE_US && 2 * late_us >= self.response_us.p99 {
            let message = format!(
                "the client started one transaction in a hundred {late_us} µs late or more though a terminal was free: \
                 the highest response times are its own"
            );
            remarks.push(("client_late", message));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    /// 10 ms of warm-up, 100 ms measured.
    const SPANS: Spans = Spans { measure_start_ns: 10 * MILLISECOND, measure_end_ns: 110 * MILLISECOND };
    /// A transaction each millisecond.
    const EACH_MILLISECOND: OpenLoop = OpenLoop { process: Process::Fixed, offered_txn_s: 1000.0 };

    #[test]
    fn every_arrival_is_taken_once_in_order() {
        let arrivals = Arrivals::new(EACH_MILLISECOND, 1, SPANS);
        let taken: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..25).map(|_| arrivals.take()).collect())).collect();
            let taken: Vec<Vec<u64>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(taken.iter().all(|of_one| of_one.is_sorted()));
            taken.into_iter().flatten().collect()
        });
        let mut sorted = taken;
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=100).map(|n| n * MILLISECOND).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_not_started_is_counted_with_its_time() {
        let arrivals = Arrivals::new(EACH_MILLISECOND, 1, SPANS);
        // At 1 to 100 ms; 99 is given back, and 101 to 109 nobody takes.
        (0..100).for_each(|_| _ = arrivals.take());
        arrivals.give_back(99 * MILLISECOND);
        let mut waiting = Vec::new();
        let arrived = arrivals.end(SPANS.measure_end_ns, |intended_ns| waiting.push(intended_ns / MILLISECOND));
        assert_eq!(arrived, Arrived { in_interval: 100, not_started: 10 });
        assert_eq!(waiting, [99, 101, 102, 103, 104, 105, 106, 107, 108, 109]);
    }

    #[test]
    fn arrivals_after_the_end_have_not_arrived() {
        let arrivals = Arrivals::new(EACH_MILLISECOND, 1, SPANS);
        // The trial is cut off at 55 ms, when a free terminal waits for the arrival of 55 ms.
        (0..55).for_each(|_| _ = arrivals.take());
        arrivals.give_back(55 * MILLISECOND);
        let arrived = arrivals.end(55 * MILLISECOND, |_| panic!("none waits"));
        assert_eq!(arrived, Arrived { in_interval: 45, not_started: 0 });
    }

    #[test]
    fn lateness_is_the_clients_where_a_terminal_was_free() {
        let mut open = OpenTally::new(SPANS);
        open.start(2 * MILLISECOND, 9 * MILLISECOND, true, 7);
        assert_eq!((open.latest_start_us, open.client_late_us.len()), (0, 0), "the warm-up is not measured");
        open.start(9 * MILLISECOND, 12 * MILLISECOND, false, 5);
        open.start(20 * MILLISECOND, 20 * MILLISECOND + 40_000, true, 3);
        assert_eq!((open.backlog_at_start, open.latest_start_us, open.spun_ns), (1, 3000, 8));
        assert_eq!((open.client_late_us.len(), open.client_late_us.max()), (1, 40));
        open.end(9 * MILLISECOND, 9_999_999);
        assert_eq!(open.response_us.len(), 0);
        open.end(9 * MILLISECOND, 13 * MILLISECOND);
        assert_eq!((open.response_us.len(), open.response_us.max()), (1, 4001), "4000 in a bucket of 2");
        let mut sum = OpenTally::new(SPANS);
        sum.add(&open);
        sum.add(&open);
        assert_eq!((sum.backlog_at_start, sum.latest_start_us, sum.response_us.len()), (2, 3000, 2));
    }

    /// A trial of 30 s in which so many transactions arrived and were over, and the client was that late.
    fn flags(arrived: u64, over: u64, client_late_us: u64, response_us: u64) -> Vec<&'static str> {
        let mut open = OpenTally::new(SPANS);
        open.client_late_us.record(client_late_us).unwrap();
        open.response_us.record(response_us).unwrap();
        let mut tally = Tally::new(1);
        tally.committed = over - 1;
        tally.aborted.insert("item not found".to_owned(), 1);
        let arrived = Arrived { in_interval: arrived, not_started: 0 };
        let result = OpenLoopResult::of(EACH_MILLISECOND, arrived, &open, &tally, 30.0);
        assert_eq!(result.achieved_txn_s, over as f64 / 30.0);
        result.remarks().into_iter().map(|(flag, _)| flag).collect()
    }

    #[test]
    fn a_system_that_falls_behind_is_overloaded() {
        let nothing = [""; 0];
        assert_eq!(flags(30_000, 30_000, 20, 500), nothing);
        assert_eq!(flags(30_000, 29_701, 20, 500), nothing, "less than a hundredth");
        assert_eq!(flags(30_000, 29_699, 20, 500), ["overloaded"]);
        assert_eq!(flags(100, 68, 20, 500), nothing, "as many as may be under way at the end by chance");
        assert_eq!(flags(100, 67, 20, 500), ["overloaded"]);
        assert_eq!(flags(30_000, 31_000, 20, 500), nothing, "it caught up with what the warm-up left");
    }

    #[test]
    fn a_client_that_is_late_itself_is_named() {
        let nothing = [""; 0];
        assert_eq!(flags(1000, 1000, 900, 900), nothing, "a wake-up");
        assert_eq!(flags(1000, 1000, 5000, 6000), ["client_late"]);
        assert_eq!(flags(1000, 1000, 5000, 60_000), nothing, "the system is what was slow");
    }
}
