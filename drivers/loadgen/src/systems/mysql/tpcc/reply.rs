//! What a terminal displays, in the layout of the replies of the engine's procedures.

use super::statements::Fields;

/// A reply under construction.
#[derive(Default)]
pub struct Reply(Vec<u8>);

impl Reply {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Bytes whose number the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// A length of one byte, and the text.
    pub fn text(&mut self, text: &[u8]) {
        self.0.push(text.len() as u8);
        self.raw(text);
    }

    /// The lowest `BYTES` bytes of a number.
    pub fn number<const BYTES: usize>(&mut self, value: i64) {
        self.raw(&value.to_le_bytes()[..BYTES]);
    }

    /// Street, street, city, state and zip of a row whose columns have this prefix.
    pub fn address(&mut self, row: &Fields<'_>, [street_1, street_2, city, state, zip]: [&str; 5]) {
        for column in [street_1, street_2, city] {
            self.text(row.text(column));
        }
        for column in [state, zip] {
            self.raw(row.text(column));
        }
    }
}
