//! How long the tests with random cases go on.

use proptest::prelude::ProptestConfig;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap_or_else(|_| panic!("{name}={number}: not a number")))
}

/// Cases of a test that has so many on every commit: `TEST_EFFORT=100` makes a hundred times as many.
pub fn cases(usual: u64) -> u64 {
    usual * number("TEST_EFFORT").unwrap_or(1)
}

/// Seeds of a test's cases; `TEST_SEED` is the first one.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let first = number("TEST_SEED").unwrap_or(1);
    first..first + cases(usual)
}

/// For properties whose cases are too slow to be made smaller when one fails.
pub fn properties(usual: u32) -> ProptestConfig {
    let cases = u32::try_from(cases(usual.into())).unwrap_or(u32::MAX);
    ProptestConfig { cases, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() }
}
