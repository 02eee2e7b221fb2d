//! Indexes and their keys.
//!
//! Procedures name a key by the bytes of the index's columns as they stand in a row, one behind the other; a VARCHAR(n) column as n bytes padded with
//! zeros and its length in two bytes, the higher one first ([`KeyBuf`] builds them). A hash index compares these bytes. An ordered index compares
//! them made comparable: numbers with the highest byte first and the sign bit flipped.
//!
//! The entries of an ordered index that is not unique end with the primary key's columns that the index does not have: so all entries differ, and
//! equal ones have an order that a replay of the command log finds again.

use std::ops::Range;

use super::{Column, ColumnType};

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 128;
/// Longest key of most tables, so that its buffer is passed on in registers where that of the longest is copied.
const SHORT_KEY_BYTES: usize = 24;
/// Longest key that is made comparable in registers.
pub const NARROW_KEY_BYTES: usize = 16;

/// How an index finds its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// Equality only (`USING HASH`; the primary key's unless the DDL says otherwise).
    Hash,
    /// Equality, ranges and prefixes, in both directions (`USING BTREE`; a secondary index's unless the DDL says otherwise).
    Ordered,
}

/// Where a part of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    /// At this offset of the row, and of the image of indexed columns.
    Fixed {
        /// Offset in bytes.
        offset: usize,
    },
    /// A VARCHAR column.
    Var {
        /// Offset of its reference in the row.
        offset: usize,
        /// Offset of its padded text in the image of indexed columns.
        image_offset: usize,
    },
}

/// One column of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPart {
    /// Which column of the table.
    pub column: usize,
    /// Where it is.
    pub source: KeySource,
    /// Bytes in the key.
    pub bytes: usize,
    /// Whether it is a signed number.
    pub number: bool,
}

impl KeyPart {
    /// Bytes of a VARCHAR of this length in a key.
    pub const fn var_bytes(max_bytes: usize) -> usize {
        max_bytes + 2
    }

    pub(super) fn new(position: usize, column: &Column, image_offset: Option<usize>) -> Self {
        let (source, bytes) = match (column.column_type, image_offset) {
            (ColumnType::VarChar { max_bytes }, Some(image_offset)) => {
                (KeySource::Var { offset: column.offset, image_offset }, Self::var_bytes(max_bytes))
            }
            (column_type, _) => (KeySource::Fixed { offset: column.offset }, column_type.bytes()),
        };
        Self { column: position, source, bytes, number: column.column_type.is_number() }
    }
}

/// One index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexDef {
    /// Name as in the DDL; `PRIMARY` for the primary key's.
    pub name: String,
    /// Hash or ordered.
    pub kind: IndexKind,
    /// Whether two tuples may not have the same key.
    pub unique: bool,
    /// The parts of an entry: the index's columns, and for an ordered one that is not unique the rest of the primary key.
    pub parts: Vec<KeyPart>,
    /// How many of the parts are the index's own columns.
    pub own_parts: usize,
    /// Bytes of the index's own columns.
    pub key_bytes: usize,
    /// Bytes of an entry's key.
    pub entry_bytes: usize,
    /// Offset in the row where the key stands in one piece; `None` = its columns are apart, or of variable length.
    pub contiguous: Option<usize>,
}

impl IndexDef {
    pub(super) fn new(name: String, kind: IndexKind, unique: bool, parts: Vec<KeyPart>, own_parts: usize) -> Self {
        let key_bytes = parts[..own_parts].iter().map(|part| part.bytes).sum();
        let entry_bytes = parts.iter().map(|part| part.bytes).sum();
        let mut next = None;
        let mut contiguous = None;
        for (place, part) in parts[..own_parts].iter().enumerate() {
            match part.source {
                KeySource::Fixed { offset } if place == 0 || next == Some(offset) => {
                    contiguous = contiguous.or(Some(offset));
                    next = Some(offset + part.bytes);
                }
                _ => {
                    contiguous = None;
                    break;
                }
            }
        }
        Self { name, kind, unique, parts, own_parts, key_bytes, entry_bytes, contiguous }
    }

    /// Whether entries are [`NarrowKey`]s.
    #[inline]
    pub fn is_narrow(&self) -> bool {
        self.entry_bytes <= NARROW_KEY_BYTES
    }

    /// Where in a row all parts of an entry but the last one stand in one piece.
    pub fn prefix(&self) -> Option<Range<usize>> {
        let (last, others) = self.parts.split_last()?;
        let start = self.contiguous.filter(|_| self.own_parts == self.parts.len() && !others.is_empty())?;
        Some(start..start + self.entry_bytes - last.bytes)
    }

    /// Makes a key, or the beginning of one, comparable for an ordered index.
    ///
    /// # Errors
    /// When it does not end where a column ends; the bytes that fit.
    ///
    /// # Panics
    /// If there is no room in a `K` for an entry.
    #[inline]
    pub fn normalize<K: NormalKey>(&self, key: &[u8]) -> Result<K, usize> {
        let mut normal = K::default();
        let mut at = 0;
        for part in &self.parts {
            if at == key.len() {
                return Ok(normal);
            }
            let bytes = key.get(at..at + part.bytes).ok_or(at)?;
            normal.push_normal(bytes, part.number);
            at += part.bytes;
        }
        if at == key.len() { Ok(normal) } else { Err(at) }
    }
}

/// A key of at most `N` bytes on the stack.
#[derive(Clone, Copy)]
pub struct KeyBytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// Any key.
pub type KeyBuf = KeyBytes<MAX_KEY_BYTES>;
/// A key of at most 24 bytes, as most tables have.
pub type ShortKey = KeyBytes<SHORT_KEY_BYTES>;

/// A key made comparable, or the beginning of one.
pub trait NormalKey: Default {
    /// Appends a column's bytes; a number has 1, 2, 4 or 8.
    fn push_normal(&mut self, bytes: &[u8], number: bool);
    /// Appends a VARCHAR's padded form of `bytes` bytes.
    fn push_var(&mut self, text: &[u8], bytes: usize);
    /// Bytes so far.
    fn len(&self) -> usize;
    /// Whether it is the beginning of all keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// As words, first byte highest, with zeros behind: they compare as the bytes do.
    ///
    /// # Panics
    /// If `W` words have no room for it.
    fn words<const W: usize>(&self) -> [u64; W];
}

impl<const N: usize> std::fmt::Debug for KeyBytes<N> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(out)
    }
}

impl<const N: usize> Default for KeyBytes<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> std::ops::Deref for KeyBytes<N> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl<const N: usize> KeyBytes<N> {
    /// An empty key.
    #[inline]
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// The key so far.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If the key becomes longer than `N` bytes; the catalog admits no index with keys longer than [`MAX_KEY_BYTES`].
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// With an integer of 1 byte.
    #[inline]
    #[must_use]
    pub fn i8(mut self, value: i8) -> Self {
        self.push(&value.to_le_bytes());
        self
    }

    /// With an integer of 2 bytes.
    #[inline]
    #[must_use]
    pub fn i16(mut self, value: i16) -> Self {
        self.push(&value.to_le_bytes());
        self
    }

    /// With an integer of 4 bytes.
    #[inline]
    #[must_use]
    pub fn i32(mut self, value: i32) -> Self {
        self.push(&value.to_le_bytes());
        self
    }

    /// With an integer of 8 bytes.
    #[inline]
    #[must_use]
    pub fn i64(mut self, value: i64) -> Self {
        self.push(&value.to_le_bytes());
        self
    }

    /// With a CHAR(`bytes`), padded with blanks. Text that is too long is cut off, as no stored value can equal it.
    #[must_use]
    pub fn char(mut self, text: &[u8], bytes: usize) -> Self {
        let text = &text[..text.len().min(bytes)];
        self.push(text);
        for _ in text.len()..bytes {
            self.push(b" ");
        }
        self
    }

    /// With a VARCHAR(`max_bytes`).
    #[inline]
    #[must_use]
    pub fn varchar(mut self, text: &[u8], max_bytes: usize) -> Self {
        self.push_var(text, KeyPart::var_bytes(max_bytes));
        self
    }

    /// Appends a VARCHAR's padded form of `bytes` bytes.
    #[inline]
    pub fn push_var(&mut self, text: &[u8], bytes: usize) {
        let text = &text[..text.len().min(bytes - 2)];
        self.bytes[self.len..][..text.len()].copy_from_slice(text);
        // What lies behind `len` is zero already.
        self.len += bytes;
        self.bytes[self.len - 2..self.len].copy_from_slice(&(text.len() as u16).to_be_bytes());
    }
}

impl<const N: usize> NormalKey for KeyBytes<N> {
    #[inline]
    fn push_normal(&mut self, bytes: &[u8], number: bool) {
        match number_of(bytes).filter(|_| number) {
            Some(value) => self.push(&value.to_be_bytes()[size_of_val(&value) - bytes.len()..]),
            None => self.push(bytes),
        }
    }

    #[inline]
    fn push_var(&mut self, text: &[u8], bytes: usize) {
        Self::push_var(self, text, bytes);
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn words<const W: usize>(&self) -> [u64; W] {
        let mut words = [0; W];
        let (whole, rest) = self.as_slice().as_chunks::<8>();
        for (word, chunk) in words.iter_mut().zip(whole) {
            *word = u64::from_be_bytes(*chunk);
        }
        if !rest.is_empty() {
            words[whole.len()] = rest.iter().rev().fold(0, |word, &byte| word >> 8 | u64::from(byte) << 56);
        }
        words
    }
}

/// A number of 1, 2, 4 or 8 bytes as one without a sign that compares like it; in the lowest bytes.
#[inline]
fn number_of(bytes: &[u8]) -> Option<u64> {
    Some(match *bytes {
        [a] => u64::from(a ^ 1 << 7),
        [a, b] => u64::from(u16::from_le_bytes([a, b]) ^ 1 << 15),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d]) ^ 1 << 31),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ 1 << 63,
        _ => return None,
    })
}

/// A key of at most [`NARROW_KEY_BYTES`] made comparable: a number, which no memory has to be written for. TPC-C's ORDERS, NEW_ORDER and ORDER_LINE
/// have only such.
#[derive(Debug, Clone, Copy, Default)]
pub struct NarrowKey {
    /// The bytes so far, the last of them lowest.
    bits: u128,
    len: usize,
}

impl NarrowKey {
    #[inline]
    fn push_bits<const BYTES: usize>(&mut self, value: u64) {
        self.bits = self.bits << (8 * BYTES) | u128::from(value);
        self.len += BYTES;
    }
}

impl NormalKey for NarrowKey {
    #[inline]
    fn push_normal(&mut self, bytes: &[u8], number: bool) {
        match (number_of(bytes).filter(|_| number), bytes.len()) {
            (Some(value), 1) => self.push_bits::<1>(value),
            (Some(value), 2) => self.push_bits::<2>(value),
            (Some(value), 4) => self.push_bits::<4>(value),
            (Some(value), _) => self.push_bits::<8>(value),
            (None, _) => bytes.iter().for_each(|&byte| self.push_bits::<1>(u64::from(byte))),
        }
    }

    fn push_var(&mut self, text: &[u8], bytes: usize) {
        let mut padded = KeyBytes::<NARROW_KEY_BYTES>::new();
        padded.push_var(text, bytes);
        self.push_normal(&padded, false);
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn words<const W: usize>(&self) -> [u64; W] {
        assert!(self.len <= NARROW_KEY_BYTES.min(8 * W), "a narrow key of {} bytes in {W} words", self.len);
        let bits = if self.len == 0 { 0 } else { self.bits << (8 * (NARROW_KEY_BYTES - self.len)) };
        std::array::from_fn(|word| if word < 2 { (bits >> (64 * (1 - word))) as u64 } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::Catalog;

    proptest! {
        #[test]
        fn normal_keys_are_ordered_like_their_values(
            a in (any::<i8>(), any::<i16>(), any::<i64>(), "[a-c]{0,4}"),
            b in (any::<i8>(), any::<i16>(), any::<i64>(), "[a-c]{0,4}"),
        ) {
            let catalog = Catalog::from_sql(
                "CREATE TABLE t (a TINYINT NOT NULL, b SMALLINT NOT NULL, c DECIMAL(12,2) NOT NULL, d VARCHAR(4) NOT NULL, PRIMARY KEY (a), \
                 UNIQUE KEY k (a, b, c, d))",
            ).unwrap();
            let index = &catalog.tables()[0].indexes[1];
            let key = |v: &(i8, i16, i64, String)| {
                let raw = KeyBuf::new().i8(v.0).i16(v.1).i64(v.2).varchar(v.3.as_bytes(), 4);
                index.normalize::<KeyBuf>(&raw).unwrap().to_vec()
            };
            prop_assert_eq!(key(&a).cmp(&key(&b)), a.cmp(&b));
        }
    }

    proptest! {
        /// Numbers and texts of all kinds, and beginnings of keys.
        #[test]
        fn a_narrow_key_has_the_words_of_its_bytes(numbers: (i8, i16, i32, u32), text in "[a-c]{0,2}", parts in 0..=4usize) {
            let catalog = Catalog::from_sql(
                "CREATE TABLE t (a TINYINT NOT NULL, b SMALLINT NOT NULL, c INT NOT NULL, d CHAR(4) NOT NULL, e VARCHAR(3) NOT NULL, \
                 PRIMARY KEY (a), UNIQUE KEY k (a, b, c, d, e))",
            ).unwrap();
            let index = &catalog.tables()[0].indexes[1];
            prop_assert!(index.is_narrow());
            let mut raw = KeyBuf::new().i8(numbers.0).i16(numbers.1).i32(numbers.2);
            raw.push(&numbers.3.to_le_bytes());
            let raw = raw.varchar(text.as_bytes(), 3);
            let end = index.parts[..parts].iter().map(|part| part.bytes).sum::<usize>();
            for key in [&raw[..], &raw[..end]] {
                let (narrow, bytes) = (index.normalize::<NarrowKey>(key), index.normalize::<KeyBuf>(key));
                let (narrow, bytes) = (narrow.unwrap(), bytes.unwrap());
                prop_assert_eq!(narrow.words::<2>(), bytes.words::<2>());
                prop_assert_eq!(narrow.words::<4>(), bytes.words::<4>());
                prop_assert_eq!((narrow.len(), narrow.is_empty()), (bytes.len(), key.is_empty()));
                if narrow.len() <= 8 {
                    prop_assert_eq!(narrow.words::<1>(), bytes.words::<1>());
                }
            }
        }
    }

    #[test]
    fn a_key_ends_where_a_column_ends() {
        let catalog =
            Catalog::from_sql("CREATE TABLE t (a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (a, b) USING BTREE)")
                .unwrap();
        let index = &catalog.tables()[0].indexes[0];
        assert_eq!(index.normalize::<KeyBytes<8>>(&[1, 0, 0, 0]).unwrap().as_slice(), [0x80, 0, 0, 1]);
        assert_eq!(index.normalize::<KeyBytes<8>>(&[1, 0, 0, 0, 9]).unwrap_err(), 4);
        assert_eq!(index.normalize::<NarrowKey>(&[0; 9]).unwrap_err(), 8);
    }
}
