//! When transactions arrive in an open loop: a function of the process, its rate and the seed alone. However slow a system is, its users come when
//! they come, so every system meets the same arrivals, and what waits for it is measured from the moment at which it arrived.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::streams::{Purpose, Stream, stream};

/// How arrivals follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// At equal distances.
    Fixed,
    /// Independently of each other: distances have an exponential distribution, as those of many users together.
    Poisson,
}

/// An open loop: transactions that arrive on their own, whether the system has answered earlier ones or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenLoop {
    pub process: Process,
    /// Transactions per second on average, of all terminals together.
    pub offered_txn_s: f64,
}

/// The endless, ascending times of arrival of one trial, in nanoseconds since its terminals started.
#[derive(Debug, Clone)]
pub struct Schedule {
    process: Process,
    mean_gap_ns: f64,
    random: Stream,
    arrived: u64,
    last_ns: f64,
}

impl Schedule {
    /// The arrivals of a seed.
    pub fn new(open_loop: OpenLoop, seed: u64) -> Schedule {
        Schedule {
            process: open_loop.process,
            mean_gap_ns: 1e9 / open_loop.offered_txn_s,
            random: stream(seed, Purpose::Arrivals, 0),
            arrived: 0,
            last_ns: 0.0,
        }
    }

    /// When the next transaction arrives.
    pub fn next_ns(&mut self) -> u64 {
        self.arrived += 1;
        self.last_ns = match self.process {
            // From the number, not from the last one: rounding never adds up.
            Process::Fixed => self.arrived as f64 * self.mean_gap_ns,
            Process::Poisson => {
                let uniform: f64 = self.random.random();
                // 1 − a number from [0, 1): never the logarithm of zero.
                self.last_ns - self.mean_gap_ns * (1.0 - uniform).ln()
            }
        };
        self.last_ns.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(process: Process, offered_txn_s: f64, seed: u64) -> Schedule {
        Schedule::new(OpenLoop { process, offered_txn_s }, seed)
    }

    fn times_ns(process: Process, offered_txn_s: f64, seed: u64, count: usize) -> Vec<u64> {
        let mut schedule = schedule(process, offered_txn_s, seed);
        (0..count).map(|_| schedule.next_ns()).collect()
    }

    #[test]
    fn arrivals_are_a_function_of_process_rate_and_seed() {
        for process in [Process::Fixed, Process::Poisson] {
            let times = times_ns(process, 5000.0, 7, 1000);
            assert_eq!(times, times_ns(process, 5000.0, 7, 1000));
            assert!(times.is_sorted());
            assert_ne!(times, times_ns(process, 5001.0, 7, 1000));
        }
        assert_ne!(times_ns(Process::Poisson, 5000.0, 7, 1000), times_ns(Process::Poisson, 5000.0, 8, 1000));
        // The generator and the formula are the format: other times would be other trials.
        assert_eq!(times_ns(Process::Fixed, 3.0, 7, 4), [333_333_333, 666_666_667, 1_000_000_000, 1_333_333_333]);
    }

    #[test]
    fn a_fixed_rate_does_not_drift() {
        // A day of 7 transactions per millisecond, whose distance is no whole number of nanoseconds.
        let mut schedule = schedule(Process::Fixed, 7000.0, 1);
        let last = (0..7000 * 100).map(|_| schedule.next_ns()).last();
        assert_eq!(last, Some(100_000_000_000));
        schedule.arrived = 7000 * 86_400 - 1;
        assert_eq!(schedule.next_ns(), 86_400_000_000_000);
    }

    #[test]
    fn the_mean_rate_is_the_one_that_was_asked_for() {
        for offered_txn_s in [0.5, 200.0, 300_000.0] {
            let count = 100_000;
            let last_ns = *times_ns(Process::Poisson, offered_txn_s, 3, count).last().unwrap();
            let rate = count as f64 / (last_ns as f64 / 1e9);
            // Four standard deviations of the mean of so many distances.
            let slack = 4.0 / (count as f64).sqrt();
            assert!((rate / offered_txn_s - 1.0).abs() < slack, "{rate} instead of {offered_txn_s}");
        }
    }

    /// Kolmogorov and Smirnov's distance between the distances of arrivals and an exponential distribution of that mean.
    fn distance_from_exponential(times_ns: &[u64], mean_ns: f64) -> f64 {
        let mut gaps: Vec<f64> = times_ns.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / mean_ns).collect();
        gaps.sort_by(f64::total_cmp);
        let count = gaps.len() as f64;
        let expected = gaps.iter().map(|gap| 1.0 - (-gap).exp());
        let apart = (0..).zip(expected).map(|(n, expected)| {
            let (before, after) = (f64::from(n) / count, f64::from(n + 1) / count);
            (expected - before).abs().max((after - expected).abs())
        });
        apart.fold(0.0, f64::max)
    }

    #[test]
    fn distances_of_poisson_arrivals_are_exponential() {
        let count = 20_000;
        // The 1 % limit of the test for so many values.
        let limit = 1.63 / f64::from(count - 1).sqrt();
        let times = times_ns(Process::Poisson, 10_000.0, 11, count as usize);
        let distance = distance_from_exponential(&times, 100_000.0);
        assert!(distance < limit, "{distance} of {limit}");
        let fixed = times_ns(Process::Fixed, 10_000.0, 11, count as usize);
        assert!(distance_from_exponential(&fixed, 100_000.0) > 0.5, "the test tells another distribution apart");
        // Independent of each other: the next distance does not follow from the last.
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e5 - 1.0).collect();
        let covariance = gaps.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / gaps.len() as f64;
        assert!(covariance.abs() < 4.0 / f64::from(count).sqrt(), "{covariance}");
    }
}
