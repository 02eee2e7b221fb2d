//! Contents of records: random printable text that carries its own checksum.

use rand_xoshiro::rand_core::Rng;

/// Characters at the end of a field that hold the checksum: CRC-32C in lower-case hexadecimal.
const CHECKSUM_BYTES: usize = 8;

/// Shortest field: one random character and the checksum.
pub const MIN_FIELD_BYTES: u32 = CHECKSUM_BYTES as u32 + 1;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Shape of a record: how many fields of how many bytes. The key is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLayout {
    pub fields: usize,
    pub field_bytes: usize,
}

impl RecordLayout {
    pub fn new(fields: u32, field_bytes: u32) -> RecordLayout {
        RecordLayout { fields: fields as usize, field_bytes: field_bytes as usize }
    }

    /// Bytes of all fields of a record.
    pub fn record_bytes(self) -> usize {
        self.fields * self.field_bytes
    }

    /// Appends all fields of a new version of record `key` to `row`.
    pub fn push_record(self, key: i64, random: &mut impl Rng, row: &mut Vec<u8>) {
        let start = row.len();
        row.resize(start + self.record_bytes(), 0);
        for (field, value) in row[start..].chunks_exact_mut(self.field_bytes).enumerate() {
            fill_field(key, field as u16, random, value);
        }
    }

    /// Writes a new version of one field into `value`, whose length is `field_bytes`.
    pub fn fill_field(self, key: i64, field: u16, random: &mut impl Rng, value: &mut [u8]) {
        debug_assert_eq!(value.len(), self.field_bytes);
        fill_field(key, field, random, value);
    }

    /// Whether `row`, the fields of record `key` one after another, is intact: right length, and
    /// every field carries the checksum of its key, index and characters.
    pub fn verify_record(self, key: i64, row: &[u8]) -> bool {
        row.len() == self.record_bytes()
            && row
                .chunks_exact(self.field_bytes)
                .enumerate()
                .all(|(field, value)| self.verify_field(key, field as u16, value))
    }

    /// Whether one field is intact; see [`RecordLayout::verify_record`].
    pub fn verify_field(self, key: i64, field: u16, value: &[u8]) -> bool {
        if value.len() != self.field_bytes {
            return false;
        }
        let (text, sum) = value.split_at(value.len() - CHECKSUM_BYTES);
        sum == checksum(key, field, text)
    }
}

fn fill_field(key: i64, field: u16, random: &mut impl Rng, value: &mut [u8]) {
    let (text, sum) = value.split_at_mut(value.len() - CHECKSUM_BYTES);
    random.fill_bytes(text);
    for byte in text.iter_mut() {
        // The 95 printable characters from the 256 byte values, by multiplication instead of division:
        // some come up 3 times in 256 and others 2, which matters to nothing here.
        *byte = b' ' + ((u16::from(*byte) * 95) >> 8) as u8;
    }
    sum.copy_from_slice(&checksum(key, field, text));
}

/// CRC-32C of (key as 8 little-endian bytes, field index as 2, the characters), in hexadecimal.
fn checksum(key: i64, field: u16, text: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut name = [0; 10];
    name[..8].copy_from_slice(&key.to_le_bytes());
    name[8..].copy_from_slice(&field.to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&name), text);
    std::array::from_fn(|digit| HEX[(sum >> (28 - 4 * digit)) as usize & 0xf])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::{Purpose, stream};

    const LAYOUT: RecordLayout = RecordLayout { fields: 10, field_bytes: 100 };

    fn record(key: i64) -> Vec<u8> {
        let mut row = Vec::new();
        LAYOUT.push_record(key, &mut stream(1, Purpose::Record, key as u64), &mut row);
        row
    }

    #[test]
    fn a_record_is_printable_and_verifies_as_itself_only() {
        let row = record(41);
        assert_eq!(row.len(), 1000);
        assert!(row.iter().all(|byte| (b' '..=b'~').contains(byte)));
        assert!(LAYOUT.verify_record(41, &row));
        assert!(!LAYOUT.verify_record(42, &row), "another key's record");
        assert!(!LAYOUT.verify_record(41, &row[..999]), "a short record");
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let row = record(41);
        for position in 0..row.len() {
            let mut damaged = row.clone();
            damaged[position] ^= 1;
            assert!(!LAYOUT.verify_record(41, &damaged), "byte {position}");
        }
    }

    #[test]
    fn exchanged_fields_are_noticed() {
        let row = record(41);
        let swapped = [&row[100..200], &row[..100], &row[200..]].concat();
        assert!(!LAYOUT.verify_record(41, &swapped));
    }

    #[test]
    fn the_checksum_is_the_one_of_the_contract() {
        // "123456789" has the CRC-32C e3069283; the name bytes in front are hashed with it.
        let whole = [&7_i64.to_le_bytes()[..], &3_u16.to_le_bytes()[..], b"123456789"].concat();
        let expected = format!("{:08x}", crc32c::crc32c(&whole));
        assert_eq!(checksum(7, 3, b"123456789"), expected.as_bytes());
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn all_printable_characters_occur() {
        let mut seen = [false; 256];
        for key in 0..100 {
            record(key).iter().for_each(|&byte| seen[byte as usize] = true);
        }
        assert!((b' '..=b'~').all(|byte| seen[byte as usize]));
    }
}
