//! The 64-bit hash by which data are compared across systems and machines: XXH3, whose output is fixed by its specification.

use xxhash_rust::xxh3::xxh3_64;

/// The hash of some bytes.
pub fn hash_of(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Number of rows, and the sum modulo 2^64 of their hashes, which does not depend on their order. Two equal rows count twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowSum {
    pub rows: u64,
    pub checksum: u64,
}

impl RowSum {
    /// Adds a serialized row.
    pub fn add(&mut self, row: &[u8]) {
        self.rows += 1;
        self.checksum = self.checksum.wrapping_add(hash_of(row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // The value for the empty input stands in XXH3's specification.
        assert_eq!(hash_of(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn a_sum_does_not_depend_on_the_order_but_on_every_row() {
        let sum = |rows: &[&[u8]]| {
            let mut sum = RowSum::default();
            rows.iter().for_each(|row| sum.add(row));
            sum
        };
        assert_eq!(sum(&[b"a", b"b"]), sum(&[b"b", b"a"]));
        assert_ne!(sum(&[b"a", b"b"]), sum(&[b"a", b"c"]));
        assert_ne!(sum(&[b"a", b"a"]), sum(&[b"a"]));
    }
}
