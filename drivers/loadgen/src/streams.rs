//! Named random streams.
//!
//! A stream is named by (seed, purpose, index) and by nothing else: not by the system under test, the
//! thread that uses it or the order of use. So every system gets the same data and the same operations.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// The generator behind every stream; its output is fixed by its published algorithm.
pub type Stream = Xoshiro256PlusPlus;

/// What a stream is for. The numbers are part of the format: changing one changes every result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial contents of a record; index = key.
    Record = 1,
    /// Operations of a terminal; index = terminal.
    Operations = 2,
    /// Keys that are read back after loading; index = 0.
    ReadBack = 3,
    /// Round keys of the scattered key order; index = 0.
    Scatter = 4,
    /// Keying and think times of a terminal; index = terminal.
    Pauses = 5,
    /// Times at which transactions arrive in an open loop; index = 0.
    Arrivals = 6,
}

/// The stream of that name.
pub fn stream(seed: u64, purpose: Purpose, index: u64) -> Stream {
    // Each part passes through SplitMix64 before the next is mixed in, so that neighbouring names
    // (seed 1, terminal 2 and seed 2, terminal 1) have unrelated states.
    let mixed = SplitMix64::seed_from_u64(seed).next_u64() ^ purpose as u64;
    let mixed = SplitMix64::seed_from_u64(mixed).next_u64() ^ index;
    Stream::seed_from_u64(mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_its_name() {
        let mut first = stream(7, Purpose::Operations, 3);
        let mut again = stream(7, Purpose::Operations, 3);
        assert_eq!(first.next_u64(), again.next_u64());
        let others = [
            stream(8, Purpose::Operations, 3).next_u64(),
            stream(7, Purpose::Record, 3).next_u64(),
            stream(7, Purpose::Operations, 4).next_u64(),
            stream(3, Purpose::Operations, 7).next_u64(),
        ];
        let value = stream(7, Purpose::Operations, 3).next_u64();
        assert!(others.iter().all(|&other| other != value));
    }
}
