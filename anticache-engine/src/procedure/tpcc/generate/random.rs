//! Random numbers and texts (clauses 2.1.6, 4.3.2).

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// What a stream is for. The numbers are part of the format: changing one changes every result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Purpose {
    Constants = 16,
    Item = 17,
    Warehouse = 18,
    Stock = 19,
    District = 20,
    Customer = 21,
    History = 22,
    Orders = 23,
    OrderLine = 24,
    Terminal = 25,
}

/// A random stream: xoshiro256++, named by (seed, purpose, index) as the drivers' streams are.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub(super) fn new(seed: u64, purpose: Purpose, index: u64) -> Self {
        // Each part passes through a generator before the next is mixed in, so that neighbouring names have unrelated states.
        let mixed = SplitMix64::seed_from_u64(seed).next_u64() ^ purpose as u64;
        let mixed = SplitMix64::seed_from_u64(mixed).next_u64() ^ index;
        Self(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// A whole number from `low` to `high`, both included, all equally likely.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn uniform(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "nothing lies from {low} to {high}");
        let count = high.abs_diff(low).wrapping_add(1);
        if count == 0 {
            return self.0.next_u64().cast_signed();
        }
        // The upper half of a 128-bit product is the choice; low halves below 2^64 mod count would make some choices likelier than others.
        let unfair_below = count.wrapping_neg() % count;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(count);
            if product as u64 >= unfair_below {
                return low.wrapping_add_unsigned((product >> 64) as u64);
            }
        }
    }

    /// Whether something happens that does in `percent` of all cases.
    pub fn percent(&mut self, percent: i64) -> bool {
        self.uniform(1, 100) <= percent
    }

    /// NURand(A, x, y) with the constant C (clause 2.1.6).
    pub(super) fn skewed(&mut self, a: i64, c: i64, low: i64, high: i64) -> i64 {
        let drawn = self.uniform(0, a) | self.uniform(low, high);
        (drawn + c) % (high - low + 1) + low
    }

    fn symbols(&mut self, symbols: &[u8], length: usize, out: &mut Vec<u8>) {
        let (mut drawn, mut left) = (0, 0);
        for _ in 0..length {
            if left == 0 {
                (drawn, left) = (self.0.next_u64(), 4);
            }
            // Sixteen bits a symbol: none is likelier than another by more than one in a thousand.
            out.push(symbols[((drawn & 0xffff) as usize * symbols.len()) >> 16]);
            drawn >>= 16;
            left -= 1;
        }
    }

    /// An a-string: `shortest` to `longest` letters and digits (clause 4.3.2.2).
    pub fn a_string(&mut self, shortest: i64, longest: i64) -> Vec<u8> {
        const SYMBOLS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let length = self.uniform(shortest, longest) as usize;
        let mut text = Vec::with_capacity(length);
        self.symbols(SYMBOLS, length, &mut text);
        text
    }

    /// An n-string: digits (clause 4.3.2.2).
    pub fn n_string(&mut self, length: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(length);
        self.symbols(b"0123456789", length, &mut text);
        text
    }

    /// Data of an item or its stock: 26 to 50 letters and digits, in 10 % of the cases with "ORIGINAL" somewhere (clause 4.3.3.1).
    pub(super) fn data(&mut self) -> Vec<u8> {
        const ORIGINAL: &[u8] = b"ORIGINAL";
        let mut text = self.a_string(26, 50);
        if self.percent(10) {
            let start = self.uniform(0, (text.len() - ORIGINAL.len()) as i64) as usize;
            text[start..start + ORIGINAL.len()].copy_from_slice(ORIGINAL);
        }
        text
    }

    /// Puts things into random order.
    pub(super) fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.uniform(0, last as i64) as usize);
        }
    }
}

/// The last name of this number, 0 to 999 (clause 4.3.2.3).
pub fn last_name(number: i64) -> Vec<u8> {
    const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    let syllable = |unit: i64| SYLLABLES[(number / unit % 10) as usize];
    [syllable(100), syllable(10), syllable(1)].concat().into_bytes()
}

/// The constants C of NURand, drawn once for a database and its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constants {
    pub(super) last_load: i64,
    pub(super) last_run: i64,
    pub(super) customer: i64,
    pub(super) item: i64,
}

impl Constants {
    pub(super) const LAST_A: i64 = 255;
    pub(super) const CUSTOMER_A: i64 = 1023;
    pub(super) const ITEM_A: i64 = 8191;

    /// The constants of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, Purpose::Constants, 0);
        let last_load = random.uniform(0, Self::LAST_A);
        // Clause 2.1.6.1: what is run differs from what was loaded by 65 to 119, but neither 96 nor 112.
        let last_run = loop {
            let candidate = random.uniform(0, Self::LAST_A);
            let difference = (candidate - last_load).abs();
            if (65..=119).contains(&difference) && difference != 96 && difference != 112 {
                break candidate;
            }
        };
        let customer = random.uniform(0, Self::CUSTOMER_A);
        Self { last_load, last_run, customer, item: random.uniform(0, Self::ITEM_A) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_reaches_everything_about_equally_often() {
        let mut random = Random::new(1, Purpose::Terminal, 0);
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[(random.uniform(-3, 3) + 3) as usize] += 1);
        // Six standard deviations of 70 000 draws in 7 cells.
        assert!(counts.iter().all(|&count| (9_440..10_560).contains(&count)), "{counts:?}");
        assert_eq!(random.uniform(5, 5), 5);
        random.uniform(i64::MIN, i64::MAX);
    }

    #[test]
    fn nurand_is_the_clauses_formula() {
        let (a, c, low, high) = (1023, 77, 1, 3000);
        let (mut random, mut same) = (Random::new(2, Purpose::Terminal, 0), Random::new(2, Purpose::Terminal, 0));
        let mut seen = [0u32; 3001];
        for _ in 0..100_000 {
            let (left, right) = (same.uniform(0, a), same.uniform(low, high));
            let value = random.skewed(a, c, low, high);
            assert_eq!(value, ((left | right) + c) % 3000 + 1);
            seen[value as usize] += 1;
        }
        let (most, least) = (seen[1..].iter().max().unwrap(), seen[1..].iter().min().unwrap());
        assert!(seen[0] == 0 && *most > 150 && *least < 10, "{least} to {most} of 33 on average: not skewed");
    }

    #[test]
    fn constants_keep_their_distance() {
        for seed in 0..2000 {
            let constants = Constants::new(seed);
            let difference = (constants.last_run - constants.last_load).abs();
            assert!((65..=119).contains(&difference) && difference != 96 && difference != 112, "{constants:?}");
            assert_eq!(constants, Constants::new(seed));
        }
    }

    #[test]
    fn names_and_texts() {
        assert_eq!(last_name(371), b"PRICALLYOUGHT");
        assert_eq!((last_name(0), last_name(40)), (b"BARBARBAR".to_vec(), b"BARPRESBAR".to_vec()));
        assert!((0..1000).all(|number| last_name(number).len() <= 15));
        let mut random = Random::new(3, Purpose::Terminal, 0);
        let texts: Vec<_> = (0..2000).map(|_| random.a_string(8, 16)).collect();
        assert!(texts.iter().all(|text| (8..=16).contains(&text.len()) && text.iter().all(u8::is_ascii_alphanumeric)));
        assert!((8..=16).all(|length| texts.iter().any(|text| text.len() == length)));
        assert!(random.n_string(1000).iter().all(u8::is_ascii_digit));
        let original = (0..10_000).filter(|_| random.data().windows(8).any(|window| window == b"ORIGINAL")).count();
        assert!((800..1200).contains(&original), "{original} of 10000");
    }

    #[test]
    fn a_stream_is_its_name() {
        let first = |seed, purpose, index| Random::new(seed, purpose, index).uniform(0, i64::MAX);
        let value = first(7, Purpose::Item, 3);
        assert_eq!(value, first(7, Purpose::Item, 3));
        assert!(
            ![first(8, Purpose::Item, 3), first(7, Purpose::Stock, 3), first(3, Purpose::Item, 7)].contains(&value)
        );
    }
}
