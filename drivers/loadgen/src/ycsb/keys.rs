//! Which record an operation touches: Zipf over popularity ranks, ranks onto keys.

use rand::RngExt;
use rand_distr::Zipf;
use rand_xoshiro::rand_core::Rng;
use serde::Deserialize;

use crate::streams::{Purpose, Stream, stream};

/// How popularity ranks lie in the key space; a recorded parameter of every trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyOrder {
    /// Neighbouring ranks are neighbouring keys: rank r is key records − r, so the newest is hottest (paper §4.1).
    Clustered,
    /// Hot records are spread over the key space by a fixed permutation.
    Scattered,
}

/// Most records that the scattered order permutes (two halves of 20 bits).
pub const MAX_SCATTERED_RECORDS: u64 = 1 << 40;

/// The permutation is the same for every data set, system and trial, so that a cache that was
/// prewarmed for one trial is warm for the next; hence a constant and not the trial's seed.
const SCATTER_SEED: u64 = 0x5eed_0f4b_4559_5301;

/// Draws keys by popularity.
#[derive(Debug, Clone)]
pub struct KeyChooser {
    records: u64,
    ranks: Zipf<f64>,
    scatter: Option<Permutation>,
}

impl KeyChooser {
    /// A chooser over keys 0 … records − 1 with Zipf exponent `skew`.
    ///
    /// # Panics
    /// With zero records or a negative skew; a checked specification has neither.
    pub fn new(records: u64, skew: f64, order: KeyOrder) -> KeyChooser {
        KeyChooser {
            records,
            ranks: Zipf::new(records as f64, skew).expect("the specification bounds records and skew"),
            scatter: (order == KeyOrder::Scattered).then(|| Permutation::new(records)),
        }
    }

    /// Draws a rank from 1 (hottest) to records: P(r) ∝ 1 / r^skew.
    pub fn rank(&self, random: &mut Stream) -> u64 {
        // Rounding at the far end could step over the last rank.
        (random.sample(self.ranks) as u64).clamp(1, self.records)
    }

    /// The key of a rank; a bijection from 1 … records to 0 … records − 1.
    pub fn key_of_rank(&self, rank: u64) -> i64 {
        let newest_first = self.records - rank;
        let key = match &self.scatter {
            None => newest_first,
            Some(permutation) => permutation.apply(newest_first),
        };
        key as i64
    }

    /// Draws a key.
    pub fn key(&self, random: &mut Stream) -> i64 {
        self.key_of_rank(self.rank(random))
    }
}

const ROUNDS: usize = 4;

/// A permutation of 0 … size − 1: a Feistel network over the next power of four, walked until the
/// value falls inside. Needs no table, so 20 M records cost no memory.
#[derive(Debug, Clone)]
struct Permutation {
    size: u64,
    half_bits: u32,
    round_keys: [u64; ROUNDS],
}

impl Permutation {
    fn new(size: u64) -> Permutation {
        let bits = u64::BITS - size.saturating_sub(1).leading_zeros();
        let mut random = stream(SCATTER_SEED, Purpose::Scatter, 0);
        Permutation { size, half_bits: bits.div_ceil(2).max(1), round_keys: std::array::from_fn(|_| random.next_u64()) }
    }

    fn apply(&self, value: u64) -> u64 {
        let mut walked = self.encrypt(value);
        // Ends: a permutation of the larger domain leads back into the smaller one.
        while walked >= self.size {
            walked = self.encrypt(walked);
        }
        walked
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys {
            let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ ((mixed ^ (mixed >> 29)) >> 20 & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEWS: [f64; 5] = [0.5, 0.75, 1.0, 1.25, 1.5];

    /// Pearson's chi-square of sampled ranks against the exact probabilities, over classes of ranks
    /// with at least 50 expected draws each, and the number of classes.
    fn chi_square(records: u64, skew: f64, draws: u32) -> (f64, usize) {
        let weights: Vec<f64> = (1..=records).map(|rank| (rank as f64).powf(-skew)).collect();
        let total: f64 = weights.iter().sum();
        let chooser = KeyChooser::new(records, skew, KeyOrder::Clustered);
        let mut random = stream(20_130, Purpose::Operations, (skew * 100.0) as u64);
        let mut counts = vec![0_u32; records as usize];
        for _ in 0..draws {
            counts[chooser.rank(&mut random) as usize - 1] += 1;
        }
        let (mut statistic, mut classes) = (0.0, 0);
        let (mut expected, mut observed) = (0.0, 0.0);
        for (weight, count) in weights.iter().zip(&counts) {
            expected += f64::from(draws) * weight / total;
            observed += f64::from(*count);
            if expected >= 50.0 {
                statistic += (observed - expected).powi(2) / expected;
                (expected, observed, classes) = (0.0, 0.0, classes + 1);
            }
        }
        (statistic, classes)
    }

    #[test]
    fn ranks_follow_the_exact_zipf_distribution() {
        for skew in SKEWS {
            for records in [10, 1000, 100_000] {
                let (statistic, classes) = chi_square(records, skew, 400_000);
                let freedom = classes as f64 - 1.0;
                // Mean + 4.5 standard deviations of a chi-square: false alarms are about one in 100,000.
                let limit = freedom + 4.5 * (2.0 * freedom).sqrt();
                assert!(statistic < limit, "s = {skew}, n = {records}: {statistic:.1} >= {limit:.1}");
            }
        }
    }

    #[test]
    fn the_test_notices_a_wrong_exponent() {
        // The same statistic, with samples of s = 1.02 held against s = 1: it must be far out.
        let weights: Vec<f64> = (1..=1000).map(|rank| 1.0 / f64::from(rank)).collect();
        let total: f64 = weights.iter().sum();
        let chooser = KeyChooser::new(1000, 1.02, KeyOrder::Clustered);
        let mut random = stream(1, Purpose::Operations, 1);
        let mut counts = vec![0.0; 1000];
        (0..400_000).for_each(|_| counts[chooser.rank(&mut random) as usize - 1] += 1.0);
        let statistic: f64 = weights
            .iter()
            .map(|weight| 400_000.0 * weight / total)
            .zip(&counts)
            .map(|(expected, count)| (count - expected).powi(2) / expected)
            .sum();
        assert!(statistic > 999.0 + 4.5 * (2.0_f64 * 999.0).sqrt(), "{statistic}");
    }

    #[test]
    fn the_newest_record_is_the_hottest() {
        let chooser = KeyChooser::new(500, 1.0, KeyOrder::Clustered);
        assert_eq!(chooser.key_of_rank(1), 499);
        assert_eq!(chooser.key_of_rank(500), 0);
    }

    #[test]
    fn the_scattered_order_is_a_bijection() {
        for records in [1, 2, 3, 5, 64, 1000, 65_537] {
            let chooser = KeyChooser::new(records, 1.0, KeyOrder::Scattered);
            let mut seen = vec![false; records as usize];
            for rank in 1..=records {
                let key = chooser.key_of_rank(rank) as usize;
                assert!(!std::mem::replace(&mut seen[key], true), "{records} records: key {key} twice");
            }
        }
    }

    #[test]
    fn the_scattered_order_spreads_the_hottest_records() {
        let records = 100_000;
        let chooser = KeyChooser::new(records, 1.0, KeyOrder::Scattered);
        let mut quarters = [0_u32; 4];
        for rank in 1..=1000 {
            quarters[chooser.key_of_rank(rank) as usize * 4 / records as usize] += 1;
        }
        assert!(quarters.iter().all(|&count| (180..=320).contains(&count)), "{quarters:?}");
    }
}
