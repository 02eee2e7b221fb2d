//! Which transactions update the LRU chain (aLRU, paper §3.1).

use std::ops::Range;

/// From this α on every transaction is prefetched for as if it were chosen.
const CHAIN_OFTEN: f64 = 0.25;

/// Chooses the transactions that update the chain: each with probability α, whatever became of the others, by a seeded xorshift generator.
///
/// How many are passed over before the next one is drawn at once, from the geometric distribution that they have: so it is known some time before which
/// one it will be, and only that one's links are brought near.
#[derive(Debug)]
pub(super) struct Sampler {
    state: u64,
    alpha: f64,
    /// Transactions before the next one that is chosen.
    before_next: u64,
}

impl Sampler {
    pub(super) fn new(alpha: f64, seed: u64) -> Self {
        let mut sampler = Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, alpha, before_next: 0 };
        sampler.draw();
        sampler
    }

    /// Goes on with another α.
    pub(super) fn set_alpha(&mut self, alpha: f64) {
        self.alpha = alpha;
        self.draw();
    }

    /// Whether the next transaction is chosen: always with α = 1, never with α = 0.
    #[inline]
    pub(super) fn choose(&mut self) -> bool {
        let chosen = self.before_next == 0;
        if chosen {
            self.draw();
        } else {
            self.before_next -= 1;
        }
        chosen
    }

    /// Which of the next `count` transactions may be chosen: at most one, unless so many are that it is not worth telling them apart.
    #[inline]
    pub(super) fn candidates(&self, count: usize) -> Range<usize> {
        if self.alpha >= CHAIN_OFTEN {
            return 0..count;
        }
        let next = self.before_next.min(count as u64) as usize;
        next..count.min(next + 1)
    }

    /// P(n passed over) = (1 - α)^n α: of a number u that is uniform in (0, 1], the whole part of ln u / ln(1 - α).
    fn draw(&mut self) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        if self.alpha >= 1.0 {
            self.before_next = 0;
        } else if self.alpha > 0.0 {
            let uniform = ((self.state >> 11) + 1) as f64 / (1u64 << 53) as f64;
            self.before_next = (uniform.ln() / (-self.alpha).ln_1p()) as u64;
        } else {
            self.before_next = u64::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `count` transactions get, and whether each was announced to be a candidate at every distance up to a window.
    fn chosen(sampler: &mut Sampler, count: usize) -> Vec<bool> {
        (0..count)
            .map(|_| {
                let announced = sampler.candidates(1).contains(&0);
                let chosen = sampler.choose();
                assert!(announced || !chosen, "chosen without having been announced");
                chosen
            })
            .collect()
    }

    #[test]
    fn each_is_chosen_with_probability_alpha_whatever_became_of_the_one_before() {
        for (alpha, count) in [(0.01, 2_000_000), (0.1, 400_000), (0.5, 200_000)] {
            let chosen = chosen(&mut Sampler::new(alpha, 7), count);
            let share = |of: &mut dyn Iterator<Item = bool>| {
                let (hits, all) = of.fold((0u32, 0u32), |(hits, all), hit| (hits + u32::from(hit), all + 1));
                (f64::from(hits) / f64::from(all), (alpha * (1.0 - alpha) / f64::from(all)).sqrt())
            };
            let after_chosen = &mut chosen.windows(2).filter(|pair| pair[0]).map(|pair| pair[1]);
            let after_two = &mut chosen.windows(3).filter(|three| !three[0] && !three[1]).map(|three| three[2]);
            for of in [&mut chosen.iter().copied() as &mut dyn Iterator<Item = bool>, after_chosen, after_two] {
                let (share, deviation) = share(of);
                assert!((share - alpha).abs() < 4.0 * deviation, "{share} instead of {alpha}, deviation {deviation}");
            }
        }
    }

    #[test]
    fn all_or_none_are_chosen_at_the_ends_and_alpha_can_change() {
        let mut sampler = Sampler::new(0.0, 1);
        assert!(chosen(&mut sampler, 10_000).iter().all(|&chosen| !chosen));
        assert!(sampler.candidates(16).is_empty());
        sampler.set_alpha(1.0);
        assert!(chosen(&mut sampler, 10_000).iter().all(|&chosen| chosen));
        assert_eq!(sampler.candidates(16), 0..16);
        sampler.set_alpha(1e-12);
        assert!(chosen(&mut sampler, 10_000).iter().all(|&chosen| !chosen));
    }

    proptest! {
        #[test]
        fn whoever_is_chosen_was_a_candidate_at_any_distance(alpha in 0.0..=1.0, seed: u64, count in 1..40usize) {
            let mut sampler = Sampler::new(alpha, seed);
            for _ in 0..20 {
                let candidates = sampler.candidates(count);
                prop_assert!(candidates.end <= count && (candidates.len() <= 1 || alpha >= CHAIN_OFTEN));
                let first = (0..count).find(|_| sampler.choose());
                prop_assert!(first.is_none_or(|first| candidates.contains(&first)));
                prop_assert!(first.is_some() || candidates.is_empty() || alpha >= CHAIN_OFTEN);
            }
        }
    }
}
