//! Rows between MySQL and the engine's catalog, so that all systems' rows can be compared byte by byte.
//!
//! | column | engine | mysqld's answer | parameter of a statement |
//! |---|---|---|---|
//! | integers | number | number | number |
//! | `DECIMAL(n,s)` | number × 10ˢ | text, `-12.30` | text: a number would pass through a double |
//! | `DATETIME` | µs since 1970, UTC | date and time | date and time; whole seconds, see [`crate::tpcc`] |
//! | `CHAR(n)` | padded with blanks | without the blanks | text |
//! | `VARCHAR(n)` | text | text | text |

use anticache_engine::catalog::row::{self, Value};
use anticache_engine::catalog::{ColumnType, TableDef};
use mysql::Row;
use mysql::prelude::Queryable;

use super::session::{MysqlServer, Use};
use crate::system::SystemError;

const US_PER_S: i64 = 1_000_000;
const S_PER_DAY: i64 = 86_400;

/// One column's value, as the engine's rows have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    Null,
    /// An integer, a scaled decimal, or microseconds since 1970.
    Number(i64),
    /// CHAR with its padding, or VARCHAR.
    Text(Vec<u8>),
}

impl Cell {
    /// The same, borrowed.
    pub fn value(&self) -> Value<'_> {
        match self {
            Cell::Null => Value::Null,
            Cell::Number(number) => Value::Number(*number),
            Cell::Text(text) => Value::Text(text),
        }
    }
}

/// What mysqld answered for a column.
///
/// # Errors
/// [`SystemError::Data`] for anything that the column's type cannot be.
pub fn cell(column_type: ColumnType, value: mysql::Value) -> Result<Cell, SystemError> {
    use mysql::Value::{Bytes, Date, Int, NULL, UInt};
    let number = match (column_type, value) {
        (_, NULL) => return Ok(Cell::Null),
        (ColumnType::VarChar { .. }, Bytes(text)) => return Ok(Cell::Text(text)),
        (ColumnType::Char { bytes }, Bytes(mut text)) => {
            text.resize(bytes, b' ');
            return Ok(Cell::Text(text));
        }
        (ColumnType::Integer { .. }, Int(number)) => Ok(number),
        (ColumnType::Integer { .. }, UInt(number)) => i64::try_from(number).map_err(|_| UInt(number)),
        (ColumnType::Decimal { scale, .. }, Bytes(text)) => scaled(&text, scale).ok_or(Bytes(text)),
        (ColumnType::Timestamp, Date(year, month, day, hour, minute, second, us)) => {
            let days = days_since_1970(i64::from(year), i64::from(month), i64::from(day));
            let seconds = (i64::from(hour) * 60 + i64::from(minute)) * 60 + i64::from(second);
            Ok((days * S_PER_DAY + seconds) * US_PER_S + i64::from(us))
        }
        (_, other) => Err(other),
    };
    let unexpected = |value| SystemError::Data(format!("mysqld answered {value:?} for a column {column_type:?}"));
    number.map(Cell::Number).map_err(unexpected)
}

/// A value as a parameter for its column.
pub fn parameter(column_type: ColumnType, value: Value<'_>) -> mysql::Value {
    match (column_type, value) {
        (_, Value::Null) => mysql::Value::NULL,
        (_, Value::Text(text)) => mysql::Value::Bytes(text.to_vec()),
        (ColumnType::Decimal { scale, .. }, Value::Number(number)) => mysql::Value::Bytes(decimal(number, scale)),
        (ColumnType::Timestamp, Value::Number(us)) => date(us),
        (_, Value::Number(number)) => mysql::Value::Int(number),
    }
}

/// Appends a value in the text form that LOAD DATA reads, with its default separators and escapes.
pub fn push_infile(column_type: ColumnType, value: Value<'_>, out: &mut Vec<u8>) {
    match (column_type, value) {
        (_, Value::Null) => out.extend_from_slice(b"\\N"),
        (_, Value::Text(text)) => {
            for &byte in text {
                if matches!(byte, b'\\' | b'\t' | b'\n') {
                    out.push(b'\\');
                }
                out.push(byte);
            }
        }
        (ColumnType::Decimal { scale, .. }, Value::Number(number)) => out.extend_from_slice(&decimal(number, scale)),
        (ColumnType::Timestamp, Value::Number(us)) => {
            if let mysql::Value::Date(year, month, day, hour, minute, second, _) = date(us) {
                let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
                out.extend_from_slice(text.as_bytes());
            }
        }
        (_, Value::Number(number)) => out.extend_from_slice(number.to_string().as_bytes()),
    }
}

/// Text of a number with this many digits behind the point.
pub fn decimal(number: i64, scale: u32) -> Vec<u8> {
    if scale == 0 {
        return number.to_string().into_bytes();
    }
    let unit = 10u64.pow(scale);
    let sign = if number < 0 { "-" } else { "" };
    let (whole, rest) = (number.unsigned_abs() / unit, number.unsigned_abs() % unit);
    format!("{sign}{whole}.{rest:0width$}", width = scale as usize).into_bytes()
}

/// The number, in units of the last digit, that a text with this many digits behind the point is.
fn scaled(text: &[u8], scale: u32) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let behind = digits.iter().position(|&byte| byte == b'.').map_or(0, |point| digits.len() - point - 1);
    if behind != scale as usize || digits.is_empty() {
        return None;
    }
    let mut number = 0i64;
    for &byte in digits.iter().filter(|&&byte| byte != b'.') {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    Some(if negative { -number } else { number })
}

/// Days from 1 January 1970 to a date of the Gregorian calendar. Years are counted from March, so that the leap day ends one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year_from_march = if month > 2 { year } else { year - 1 };
    let month_from_march = (month + 9) % 12;
    let leap_days = year_from_march.div_euclid(4) - year_from_march.div_euclid(100) + year_from_march.div_euclid(400);
    let days_before_month = (153 * month_from_march + 2) / 5;
    const FROM_MARCH_OF_0: i64 = 719_469;
    365 * year_from_march + leap_days + days_before_month + day - FROM_MARCH_OF_0
}

/// The date and time of microseconds since 1970; parts of a second are cut off.
pub fn date(us: i64) -> mysql::Value {
    let seconds = us.div_euclid(US_PER_S);
    let (days, second_of_day) = (seconds.div_euclid(S_PER_DAY), seconds.rem_euclid(S_PER_DAY));
    // Never too late; a century too early by no more than a month, so the steps are few.
    let mut year = 1970 + days.div_euclid(if days < 0 { 365 } else { 366 });
    while days_since_1970(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days_since_1970(year, month + 1, 1) <= days {
        month += 1;
    }
    let day = days - days_since_1970(year, month, 1) + 1;
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    mysql::Value::Date(year as u16, month as u8, day as u8, hour as u8, minute as u8, second as u8, 0)
}

/// The cells of a row that was selected with these column types.
pub fn cells(types: impl Iterator<Item = ColumnType>, row: Row) -> Result<Vec<Cell>, SystemError> {
    types.zip(row.unwrap()).map(|(column_type, value)| cell(column_type, value)).collect()
}

/// Passes every row of a table, serialized, to `on_row`, in the order of the primary key. Rows are streamed: neither side holds the table.
///
/// Each table is a consistent read of its own. That is one of all tables as long as nothing writes: terminals are stopped when rows are compared.
///
/// # Errors
/// What mysqld refuses; [`SystemError::Data`] for a row that the catalog has no place for.
pub fn scan(server: &MysqlServer, table: &TableDef, on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
    let mut serialized = Vec::new();
    scan_cells(server, table, &mut |cells| {
        let values: Vec<Value<'_>> = cells.iter().map(Cell::value).collect();
        serialized.clear();
        row::encode(table, &values, &mut serialized).map_err(SystemError::Data)?;
        on_row(&serialized);
        Ok(())
    })
}

/// As [`scan`], with the cells of each row in the order of the table's columns.
///
/// # Errors
/// As [`scan`], and those of `on_row`.
pub fn scan_cells(
    server: &MysqlServer,
    table: &TableDef,
    on_row: &mut dyn FnMut(Vec<Cell>) -> Result<(), SystemError>,
) -> Result<(), SystemError> {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    // Without a condition and an order, InnoDB goes through the clustered index.
    let query = format!("SELECT SQL_NO_CACHE {} FROM {}", columns.join(","), table.name);
    let mut session = server.connect(Use::Bulk)?;
    let statement = session.prepare(&query)?;
    let mut failure = Ok(());
    session.run(|connection| {
        for row in connection.exec_iter(&statement, ())? {
            let types = table.columns.iter().map(|column| column.column_type);
            failure = cells(types, row?).and_then(&mut *on_row);
            if failure.is_err() {
                break;
            }
        }
        Ok(())
    })?;
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MONEY: ColumnType = ColumnType::Decimal { bytes: 8, scale: 2 };

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (us, expected) in [
            (0, mysql::Value::Date(1970, 1, 1, 0, 0, 0, 0)),
            (-1, mysql::Value::Date(1969, 12, 31, 23, 59, 59, 0)),
            (951_782_399_999_999, mysql::Value::Date(2000, 2, 28, 23, 59, 59, 0)),
            (951_782_400_000_000, mysql::Value::Date(2000, 2, 29, 0, 0, 0, 0)),
            (1_377_475_200_000_000, mysql::Value::Date(2013, 8, 26, 0, 0, 0, 0)),
            (4_107_542_400_000_000, mysql::Value::Date(2100, 3, 1, 0, 0, 0, 0)),
        ] {
            assert_eq!(date(us), expected);
        }
    }

    #[test]
    fn infile_text_is_escaped() {
        let mut out = Vec::new();
        push_infile(ColumnType::VarChar { max_bytes: 9 }, Value::Text(b"a\tb\\c\nd"), &mut out);
        push_infile(MONEY, Value::Number(-5), &mut out);
        push_infile(ColumnType::Timestamp, Value::Number(1_377_475_201_000_000), &mut out);
        push_infile(ColumnType::Integer { bytes: 1 }, Value::Null, &mut out);
        assert_eq!(out, b"a\\\tb\\\\c\\\nd-0.052013-08-26 00:00:01\\N");
    }

    #[test]
    fn anything_else_is_refused() {
        for (column_type, value) in [
            (MONEY, mysql::Value::Bytes(b"1.234".to_vec())),
            (MONEY, mysql::Value::Bytes(b"1.x4".to_vec())),
            (MONEY, mysql::Value::Bytes(b"99999999999999999999.00".to_vec())),
            (MONEY, mysql::Value::Double(1.5)),
            (ColumnType::Timestamp, mysql::Value::Int(1)),
            (ColumnType::Integer { bytes: 8 }, mysql::Value::UInt(u64::MAX)),
        ] {
            assert!(cell(column_type, value.clone()).is_err(), "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_survive(number: i64, scale in 0u32..10, seconds in -20_000_000_000i64..200_000_000_000) {
            let number = number / 2;
            let money = ColumnType::Decimal { bytes: 8, scale };
            prop_assert_eq!(cell(money, parameter(money, Value::Number(number))).unwrap(), Cell::Number(number));
            let us = seconds * US_PER_S;
            let back = cell(ColumnType::Timestamp, parameter(ColumnType::Timestamp, Value::Number(us))).unwrap();
            prop_assert_eq!(back, Cell::Number(us));
        }
    }
}
