//! The checksum of a tuple in a block: CRC-32C (Castagnoli), as everywhere else, of bytes that are few.
//!
//! The crate that computes it elsewhere goes to the first multiple of 8 and from the last one byte by byte, and divides what is long into three
//! parts that do not wait for each other; of a row of TPC-C's ends are half. The processor's instruction takes 8 bytes from wherever they lie.

/// From this length on the parts that do not wait for each other decide.
const LONG_BYTES: usize = 768;

/// CRC-32C of three little-endian words and then a row.
#[inline]
pub fn checksum(head: [u64; 3], row: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if row.len() < LONG_BYTES && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the only feature that the function needs.
        return unsafe { of_words(head, row) };
    }
    of_bytes(head, row)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn of_words(head: [u64; 3], row: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = row.as_chunks();
    let (halves, rest) = rest.as_chunks();
    let words = head.into_iter().chain(words.iter().map(|&word| u64::from_le_bytes(word)));
    let crc = words.fold(u64::from(u32::MAX), |crc, word| _mm_crc32_u64(crc, word)) as u32;
    let crc = halves.iter().fold(crc, |crc, &half| _mm_crc32_u32(crc, u32::from_le_bytes(half)));
    !rest.iter().fold(crc, |crc, &byte| _mm_crc32_u8(crc, byte))
}

fn of_bytes(head: [u64; 3], row: &[u8]) -> u32 {
    let mut bytes = [0; 24];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(head) {
        *bytes = word.to_le_bytes();
    }
    crc32c::crc32c_append(crc32c::crc32c(&bytes), row)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Rows of either kind, wherever in a word they begin.
        #[test]
        fn both_ways_agree(head: [u64; 3], bytes in prop::collection::vec(any::<u8>(), 0..2 * LONG_BYTES), skipped in 0..8usize) {
            let row = bytes.get(skipped..).unwrap_or_default();
            prop_assert_eq!(checksum(head, row), of_bytes(head, row));
        }
    }

    #[test]
    fn every_short_length_agrees() {
        let bytes: Vec<u8> = (0..200).collect();
        for end in 0..bytes.len() {
            assert_eq!(checksum([1, 2, 3], &bytes[..end]), of_bytes([1, 2, 3], &bytes[..end]), "{end} bytes");
        }
    }
}
