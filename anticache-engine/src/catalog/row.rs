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

/// Writes a number of 1, 2, 4 or 8 bytes; those of its bytes that have no room are dropped.
#[inline]
pub fn set_number(bytes: &mut [u8], value: i64) {
    match bytes {
        [a] => *a = value as u8,
        [_, _] => bytes.copy_from_slice(&(value as u16).to_le_bytes()),
        [_, _, _, _] => bytes.copy_from_slice(&(value as u32).to_le_bytes()),
        _ => bytes.copy_from_slice(&value.to_le_bytes()),
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

/// Appends the serialized row of these values, one for each column in the DDL's order: the inverse of [`values`]. CHAR is padded with blanks.
///
/// # Errors
/// What does not fit: the number of values, a value of another kind or size, NULL where the column has none.
pub fn encode(table: &TableDef, values: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), String> {
    if values.len() != table.columns.len() {
        return Err(format!(
            "{} values for table {}, which has {} columns",
            values.len(),
            table.name,
            table.columns.len()
        ));
    }
    let start = out.len();
    out.resize(start + table.row_bytes, 0);
    for (column, value) in table.columns.iter().zip(values) {
        encode_column(table, column, *value, start, out)?;
    }
    Ok(())
}

/// Writes one value of the row that begins at `start`; VARCHAR columns come in their order.
fn encode_column(
    table: &TableDef,
    column: &super::Column,
    value: Value<'_>,
    start: usize,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let refuse =
        || format!("column `{}` of table {} is {:?}; not {value:?}", column.name, table.name, column.column_type);
    let place = start + column.offset..start + column.offset + column.column_type.bytes();
    match (value, column.column_type) {
        (Value::Null, column_type) => {
            let bit = column.null_bit.ok_or_else(refuse)?;
            out[start + table.null_offset + bit / 8] |= 1 << (bit % 8);
            if matches!(column_type, ColumnType::VarChar { .. }) {
                out.extend_from_slice(&[0; 2]);
            }
        }
        (Value::Text(text), ColumnType::VarChar { max_bytes }) if text.len() <= max_bytes => {
            out.extend_from_slice(&(text.len() as u16).to_le_bytes());
            out.extend_from_slice(text);
        }
        (Value::Text(text), ColumnType::Char { bytes }) if text.len() <= bytes => {
            let (used, padding) = out[place].split_at_mut(text.len());
            used.copy_from_slice(text);
            padding.fill(b' ');
        }
        (Value::Number(value), column_type) if column_type.is_number() => {
            let bytes = value.to_le_bytes();
            let target = &mut out[place];
            target.copy_from_slice(&bytes[..target.len()]);
            if number(target) != value {
                return Err(refuse());
            }
        }
        _ => return Err(refuse()),
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::super::Catalog;
    use super::*;

    const SQL: &str = "CREATE TABLE t (a VARCHAR(5), k SMALLINT NOT NULL, c CHAR(4) NOT NULL, d DECIMAL(6,2), b VARCHAR(3) NOT NULL, e BIGINT, PRIMARY KEY (k))";

    #[test]
    fn encoding_is_the_inverse_of_reading() {
        let catalog = Catalog::from_sql(SQL).unwrap();
        let table = catalog.table(0);
        for row in [
            [
                Value::Text(b"abcde"),
                Value::Number(-7),
                Value::Text(b"wxyz"),
                Value::Null,
                Value::Text(b""),
                Value::Number(i64::MIN),
            ],
            [
                Value::Null,
                Value::Number(300),
                Value::Text(b"w   "),
                Value::Number(-123_456),
                Value::Text(b"xyz"),
                Value::Null,
            ],
        ] {
            let mut encoded = b"before".to_vec();
            encode(table, &row, &mut encoded).unwrap();
            assert_eq!(values(table, &encoded[6..]).unwrap(), row);
        }
        let short = [Value::Null, Value::Number(1), Value::Text(b"w"), Value::Null, Value::Text(b""), Value::Null];
        let mut encoded = Vec::new();
        encode(table, &short, &mut encoded).unwrap();
        assert_eq!(values(table, &encoded).unwrap()[2], Value::Text(b"w   "));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let catalog = Catalog::from_sql(SQL).unwrap();
        let fits = [Value::Null, Value::Number(1), Value::Text(b"w"), Value::Null, Value::Text(b""), Value::Null];
        for (column, value, expected) in [
            (0, Value::Text(b"abcdef"), "column `a` of table t"),
            (1, Value::Null, "column `k`"),
            (1, Value::Number(40_000), "not Number(40000)"),
            (2, Value::Text(b"vwxyz"), "column `c`"),
            (3, Value::Text(b"1"), "column `d`"),
            (4, Value::Number(1), "column `b`"),
        ] {
            let mut row = fits;
            row[column] = value;
            let problem = encode(catalog.table(0), &row, &mut Vec::new()).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        let problem = encode(catalog.table(0), &fits[1..], &mut Vec::new()).unwrap_err();
        assert_eq!(problem, "5 values for table t, which has 6 columns");
    }
}
