//! Rows as JSON objects, `{"w_id":1,"w_name":"…","w_tax":1234,…}`: numbers as the engine's rows have them (decimals in units of their last digit,
//! dates in microseconds since 1970), text with CHAR's padding, `null`.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;

use anticache_engine::catalog::TableDef;
use serde::de::{self, Deserializer as _, MapAccess, Visitor};

use crate::systems::mysql::rows::Cell;

/// A document that is not a row of the table.
#[derive(Debug, thiserror::Error)]
#[error("not the JSON document of a row: {0}")]
pub struct DocumentError(#[from] serde_json::Error);

/// The key of a row's document: `customer:1:2:3`. `None` for a table without a primary key.
pub fn key_of_row(table: &TableDef, cells: &[Cell]) -> Option<String> {
    let primary = table.indexes.first().filter(|_| table.key_bytes > 0)?;
    let number = |position: usize| if let Cell::Number(number) = cells[position] { number } else { 0 };
    let key: Vec<i64> = primary.parts[..primary.own_parts].iter().map(|part| number(part.column)).collect();
    Some(key_of(table, &key))
}

/// As [`key_of_row`], of the primary key's values.
pub fn key_of(table: &TableDef, key: &[i64]) -> String {
    let mut text = table.name.clone();
    for number in key {
        text.push(':');
        text.push_str(&number.to_string());
    }
    text
}

/// The document of a row; its cells in the order of the table's columns.
///
/// # Errors
/// [`DocumentError`] when a text is not UTF-8, which none of ours is.
pub fn encode(table: &TableDef, cells: &[Cell]) -> Result<Vec<u8>, DocumentError> {
    let mut document = Vec::with_capacity(2 * table.max_serialized_bytes());
    document.push(b'{');
    for (position, (column, cell)) in table.columns.iter().zip(cells).enumerate() {
        let separator = if position == 0 { "" } else { "," };
        write!(document, "{separator}\"{}\":", column.name).map_err(serde_json::Error::io)?;
        match cell {
            Cell::Null => document.extend_from_slice(b"null"),
            Cell::Number(number) => write!(document, "{number}").map_err(serde_json::Error::io)?,
            Cell::Text(text) => {
                let text = std::str::from_utf8(text).map_err(<serde_json::Error as de::Error>::custom)?;
                serde_json::to_writer(&mut document, text)?;
            }
        }
    }
    document.push(b'}');
    Ok(document)
}

/// The cells of a document's row.
///
/// # Errors
/// [`DocumentError`] for anything but one object with exactly the table's columns.
pub fn decode(table: &TableDef, document: &[u8]) -> Result<Vec<Cell>, DocumentError> {
    let mut parser = serde_json::Deserializer::from_slice(document);
    let cells = parser.deserialize_map(RowVisitor(table))?;
    parser.end()?;
    Ok(cells)
}

struct RowVisitor<'a>(&'a TableDef);

impl<'de> Visitor<'de> for RowVisitor<'_> {
    type Value = Vec<Cell>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an object with the columns of {}", self.0.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Cell>, A::Error> {
        let columns = &self.0.columns;
        let mut cells: Vec<Option<Cell>> = vec![None; columns.len()];
        let mut next = 0;
        while let Some(name) = map.next_key::<Text<'de>>()? {
            // Nearly always in the table's order.
            let in_order = columns.get(next).filter(|column| column.name == name.0).map(|_| next);
            let position = in_order.or_else(|| columns.iter().position(|column| column.name == name.0));
            let position = position.ok_or_else(|| de::Error::custom(format_args!("unknown column {:?}", name.0)))?;
            let cell = match map.next_value::<JsonCell<'de>>()? {
                JsonCell::Null => Cell::Null,
                JsonCell::Number(number) => Cell::Number(number),
                JsonCell::Text(text) => Cell::Text(text.into_owned().into_bytes()),
            };
            if cells[position].replace(cell).is_some() {
                return Err(de::Error::custom(format_args!("column {:?} twice", name.0)));
            }
            next = position + 1;
        }
        let missing = cells.iter().position(Option::is_none);
        match missing {
            Some(missing) => Err(de::Error::custom(format_args!("{} is missing", columns[missing].name))),
            None => Ok(cells.into_iter().flatten().collect()),
        }
    }
}

/// A string that is borrowed from the document unless escapes force a copy.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value of a document.
enum JsonCell<'a> {
    Null,
    Number(i64),
    Text(Cow<'a, str>),
}

impl<'de> serde::Deserialize<'de> for JsonCell<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<JsonCell<'de>, D::Error> {
        struct CellVisitor;

        impl<'de> Visitor<'de> for CellVisitor {
            type Value = JsonCell<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an integer, a text or null")
            }

            fn visit_unit<E>(self) -> Result<JsonCell<'de>, E> {
                Ok(JsonCell::Null)
            }

            fn visit_i64<E>(self, number: i64) -> Result<JsonCell<'de>, E> {
                Ok(JsonCell::Number(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<JsonCell<'de>, E> {
                i64::try_from(number).map(JsonCell::Number).map_err(E::custom)
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonCell<'de>, E> {
                Ok(JsonCell::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<JsonCell<'de>, E> {
                Ok(JsonCell::Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_any(CellVisitor)
    }
}

#[cfg(test)]
mod tests {
    use anticache_engine::catalog::Catalog;
    use proptest::prelude::*;

    use super::*;

    const SQL: &str = "CREATE TABLE t (a SMALLINT NOT NULL, b INT, c CHAR(3) NOT NULL, PRIMARY KEY (b, a)); \
                       CREATE TABLE u (a INT NOT NULL)";

    fn row(a: i64, b: Option<i64>, c: &str) -> Vec<Cell> {
        vec![Cell::Number(a), b.map_or(Cell::Null, Cell::Number), Cell::Text(c.as_bytes().to_vec())]
    }

    #[test]
    fn the_document_is_plain_json() {
        let catalog = Catalog::from_sql(SQL).unwrap();
        let document = encode(catalog.table(0), &row(-7, None, "x\"y")).unwrap();
        assert_eq!(document, br#"{"a":-7,"b":null,"c":"x\"y"}"#);
        assert_eq!(key_of_row(catalog.table(0), &row(1, Some(2), "xyz")).as_deref(), Some("t:2:1"));
        assert_eq!(key_of_row(catalog.table(1), &[Cell::Number(1)]), None);
    }

    #[test]
    fn anything_else_is_refused() {
        let catalog = Catalog::from_sql(SQL).unwrap();
        for document in [
            "",
            "null",
            "[]",
            r#"{"a":1,"b":2}"#,
            r#"{"a":1,"b":2,"c":"x","d":1}"#,
            r#"{"a":1,"a":1,"b":2,"c":"x"}"#,
            r#"{"a":1.5,"b":2,"c":"x"}"#,
            r#"{"a":1,"b":2,"c":"x"} 1"#,
        ] {
            assert!(decode(catalog.table(0), document.as_bytes()).is_err(), "{document}");
        }
        let other_order = decode(catalog.table(0), br#"{"c":"xyz","a":1,"b":2}"#).unwrap();
        assert_eq!(other_order, row(1, Some(2), "xyz"));
    }

    proptest! {
        #[test]
        fn rows_survive(a: i64, b: Option<i64>, c in "\\PC{0,5}") {
            let catalog = Catalog::from_sql(SQL).unwrap();
            let cells = row(a, b, &c);
            let document = encode(catalog.table(0), &cells).unwrap();
            prop_assert_eq!(decode(catalog.table(0), &document).unwrap(), cells);
        }
    }
}
