//! Rows built on the stack, in their serialized form.

use super::{ColumnType, Field, TableDef};

/// A serialized row of at most `N` bytes under construction. Columns that are not set are zero; VARCHAR columns are set last, in the table's order.
#[derive(Debug, Clone)]
pub struct RowBuf<const N: usize = 256> {
    bytes: [u8; N],
    len: usize,
    next_var: u8,
}

impl<const N: usize> RowBuf<N> {
    /// An empty row of a table.
    ///
    /// # Panics
    /// If the table's fixed part does not fit in `N` bytes.
    #[inline]
    pub fn new(table: &TableDef) -> Self {
        Self::of_bytes(table.row_bytes)
    }

    /// An empty row whose fixed part has `row_bytes`.
    ///
    /// # Panics
    /// As [`RowBuf::new`].
    #[inline]
    pub fn of_bytes(row_bytes: usize) -> Self {
        assert!(row_bytes <= N, "a row of {row_bytes} bytes in a buffer of {N}");
        Self { bytes: [0; N], len: row_bytes, next_var: 0 }
    }

    /// Sets a number; the bytes that the column has no room for are dropped.
    #[inline]
    pub fn integer(&mut self, field: Field, value: i64) -> &mut Self {
        self.bytes[field.offset..field.offset + field.bytes].copy_from_slice(&value.to_le_bytes()[..field.bytes]);
        self
    }

    /// Sets a CHAR column, padding or cutting the text, or appends a VARCHAR.
    ///
    /// # Panics
    /// If VARCHAR columns are not set in their order, or the row does not fit in `N` bytes.
    #[inline]
    pub fn text(&mut self, field: Field, text: &[u8]) -> &mut Self {
        match field.var {
            Some(var) => {
                assert_eq!(var, self.next_var, "VARCHAR columns are set in the table's order");
                self.next_var += 1;
                let start = self.len + 2;
                self.bytes[self.len..start].copy_from_slice(&(text.len() as u16).to_le_bytes());
                self.bytes[start..start + text.len()].copy_from_slice(text);
                self.len = start + text.len();
            }
            None => {
                let target = &mut self.bytes[field.offset..field.offset + field.bytes];
                let length = text.len().min(target.len());
                target[..length].copy_from_slice(&text[..length]);
                target[length..].fill(b' ');
            }
        }
        self
    }

    /// Sets a column to NULL (a VARCHAR: with the empty text).
    #[inline]
    pub fn null(&mut self, field: Field) -> &mut Self {
        if field.var.is_some() {
            self.text(field, b"");
        }
        if let Some((byte, mask)) = field.null {
            self.bytes[byte] |= mask;
        }
        self
    }

    /// The serialized row.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A number of 1, 2, 4 or 8 bytes.
#[inline]
pub fn number(bytes: &[u8]) -> i64 {
    match *bytes {
        [a] => i64::from(a.cast_signed()),
        [a, b] => i64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// A serialized row read column by column, for tools and tests.
///
/// # Errors
/// As [`TableDef::split`].
pub fn values<'row>(table: &TableDef, serialized: &'row [u8]) -> Result<Vec<Value<'row>>, String> {
    let (fixed, vars) = table.split(serialized)?;
    let vars: Vec<&[u8]> = vars.collect();
    let value = |column: &super::Column| {
        let null = column.null_bit.is_some_and(|bit| fixed[table.null_offset + bit / 8] & 1 << (bit % 8) != 0);
        let bytes = &fixed[column.offset..column.offset + column.column_type.bytes()];
        match (null, column.var, column.column_type) {
            (true, ..) => Value::Null,
            (_, Some(var), _) => Value::Text(vars[usize::from(var)]),
            (.., ColumnType::Char { .. }) => Value::Text(bytes),
            _ => Value::Number(number(bytes)),
        }
    };
    Ok(table.columns.iter().map(value).collect())
}

/// One column's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value<'row> {
    /// NULL.
    Null,
    /// An integer, a scaled decimal, or microseconds since 1970.
    Number(i64),
    /// CHAR with its padding, or VARCHAR.
    Text(&'row [u8]),
}
