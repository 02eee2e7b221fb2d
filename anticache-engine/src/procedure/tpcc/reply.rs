//! A reply put together on the stack: values are read from tuples that the transaction context lends only until the next call.

/// Most bytes of a reply. The longest is Payment's: twenty texts of at most `MAX_TEXT_BYTES` and their lengths, 200 bytes of data, numbers.
const MAX_BYTES: usize = 1536;

/// A reply under construction.
pub(super) struct Reply {
    bytes: [u8; MAX_BYTES],
    len: usize,
}

impl Reply {
    #[inline]
    pub(super) fn new() -> Self {
        Self { bytes: [0; MAX_BYTES], len: 0 }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Bytes whose number the reader knows.
    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// A length of one byte and the text, of which there are at most 255 bytes.
    #[inline]
    pub(super) fn text(&mut self, text: &[u8]) {
        debug_assert!(text.len() < 256);
        self.raw(&[text.len() as u8]);
        self.raw(text);
    }

    /// The lowest `BYTES` bytes of a number.
    #[inline]
    pub(super) fn number<const BYTES: usize>(&mut self, value: i64) {
        self.raw(&value.to_le_bytes()[..BYTES]);
    }

    /// Overwrites the number of `BYTES` bytes at an offset.
    #[inline]
    pub(super) fn set_number<const BYTES: usize>(&mut self, offset: usize, value: i64) {
        self.bytes[offset..offset + BYTES].copy_from_slice(&value.to_le_bytes()[..BYTES]);
    }
}
