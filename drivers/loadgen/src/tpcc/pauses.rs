//! Keying and think times (clause 5.2.5).

use std::time::Duration;

use anticache_engine::procedure::tpcc::generate::TransactionKind;
use rand::RngExt;

use crate::streams::{Purpose, Stream, stream};

/// Seconds that an operator needs at least to enter an input (clause 5.2.5.7).
const fn keying_s(kind: TransactionKind) -> f64 {
    match kind {
        TransactionKind::NewOrder => 18.0,
        TransactionKind::Payment => 3.0,
        TransactionKind::OrderStatus | TransactionKind::Delivery | TransactionKind::StockLevel => 2.0,
    }
}

/// Mean seconds that an operator thinks about an answer (clause 5.2.5.7).
const fn mean_think_s(kind: TransactionKind) -> f64 {
    match kind {
        TransactionKind::NewOrder | TransactionKind::Payment => 12.0,
        TransactionKind::OrderStatus => 10.0,
        TransactionKind::Delivery | TransactionKind::StockLevel => 5.0,
    }
}

/// Think times beyond so many means are cut (clause 5.2.5.4).
const LONGEST_THINK: f64 = 10.0;

/// The pauses of one terminal. They have a random stream of their own: the inputs are the same with pauses and without.
pub struct Pauses {
    factor: f64,
    random: Stream,
    /// The transaction that is thought about; `None` before the first.
    last: Option<TransactionKind>,
}

impl Pauses {
    /// Those of a terminal, as a multiple of the specification's times.
    pub fn new(factor: f64, seed: u64, terminal: u32) -> Pauses {
        Pauses { factor, random: stream(seed, Purpose::Pauses, u64::from(terminal)), last: None }
    }

    /// From the last answer to the submission of a transaction of this kind: thinking, then keying.
    pub fn before(&mut self, kind: TransactionKind) -> Duration {
        let think_s = self.last.replace(kind).map_or(0.0, |last| {
            let uniform: f64 = self.random.random();
            // 1 − a number from [0, 1): never the logarithm of zero.
            mean_think_s(last) * (-(1.0 - uniform).ln()).min(LONGEST_THINK)
        });
        Duration::from_secs_f64(self.factor * (think_s + keying_s(kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_times_are_the_clauses() {
        for kind in TransactionKind::ALL {
            let mut pauses = Pauses::new(0.5, 7, 3);
            assert_eq!(pauses.before(kind).as_secs_f64(), 0.5 * keying_s(kind), "nothing to think about yet");
            let count = 20_000;
            let think_s: Vec<f64> =
                (0..count).map(|_| pauses.before(kind).as_secs_f64() / 0.5 - keying_s(kind)).collect();
            let mean_s = think_s.iter().sum::<f64>() / f64::from(count);
            let expected_s = mean_think_s(kind);
            // Six standard deviations of the mean of an exponential distribution.
            let slack_s = 6.0 * expected_s / f64::from(count).sqrt();
            assert!((mean_s - expected_s).abs() < slack_s, "{kind:?}: {mean_s} s");
            let longest_s = think_s.iter().fold(0.0_f64, |longest, &think_s| longest.max(think_s));
            assert!(longest_s > 5.0 * expected_s && longest_s < LONGEST_THINK * expected_s + 1e-6, "{longest_s} s");
        }
    }

    #[test]
    fn what_was_answered_is_thought_about_and_what_comes_is_keyed_in() {
        let mut pauses = Pauses::new(1.0, 7, 3);
        let mut same = Pauses::new(1.0, 7, 3);
        pauses.before(TransactionKind::Delivery);
        same.before(TransactionKind::Delivery);
        let (payment, order) = (pauses.before(TransactionKind::Payment), same.before(TransactionKind::NewOrder));
        assert_eq!(order - payment, Duration::from_secs(15));
    }
}
