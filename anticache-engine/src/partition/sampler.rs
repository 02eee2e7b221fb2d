//! Which transactions update the LRU chain (aLRU, paper §3.1).

/// From this α on the chain's neighbours of a tuple are prefetched with it.
const CHAIN_OFTEN: f64 = 0.25;

/// Chooses the transactions that update the chain: each with probability α, by a seeded xorshift generator.
#[derive(Debug)]
pub(super) struct Sampler {
    state: u64,
    threshold: u64,
}

impl Sampler {
    pub(super) fn new(alpha: f64, seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, threshold: Self::threshold(alpha) }
    }

    /// 2^32 · α, so that α = 1 is "always" and α = 0 "never" exactly.
    fn threshold(alpha: f64) -> u64 {
        (alpha * (1u64 << 32) as f64) as u64
    }

    /// Goes on with another α.
    pub(super) fn set_alpha(&mut self, alpha: f64) {
        self.threshold = Self::threshold(alpha);
    }

    #[inline]
    pub(super) fn choose(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) < self.threshold
    }

    /// Whether so many transactions do.
    #[inline]
    pub(super) fn chooses_often(&self) -> bool {
        self.threshold >= Self::threshold(CHAIN_OFTEN)
    }
}
