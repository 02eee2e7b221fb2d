//! Records as JSON documents: `{"field0":"…","field1":"…",…}`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer as _, MapAccess, Visitor};

use crate::ycsb::RecordLayout;

/// A document that is not a record of the layout.
#[derive(Debug, thiserror::Error)]
#[error("not the JSON document of a record: {0}")]
pub struct DocumentError(#[from] serde_json::Error);

/// Writes the document of a record into `document`, in place of what it held.
///
/// # Errors
/// [`DocumentError`] when a field is not UTF-8, which no record of ours is.
pub fn encode<'a>(fields: impl Iterator<Item = &'a [u8]>, document: &mut Vec<u8>) -> Result<(), DocumentError> {
    document.clear();
    document.push(b'{');
    for (index, field) in fields.enumerate() {
        let text = std::str::from_utf8(field).map_err(<serde_json::Error as de::Error>::custom)?;
        let separator = if index == 0 { "" } else { "," };
        document.extend_from_slice(format!("{separator}\"field{index}\":").as_bytes());
        serde_json::to_writer(&mut *document, text)?;
    }
    document.push(b'}');
    Ok(())
}

/// Parses a document and writes the fields of its record, one after another, into `record`.
///
/// # Errors
/// [`DocumentError`] for anything but one object with exactly the layout's fields, each a string of
/// the layout's length.
pub fn decode(layout: RecordLayout, document: &[u8], record: &mut Vec<u8>) -> Result<(), DocumentError> {
    record.clear();
    record.resize(layout.record_bytes(), 0);
    let mut parser = serde_json::Deserializer::from_slice(document);
    parser.deserialize_map(RecordVisitor { layout, record })?;
    parser.end()?;
    Ok(())
}

struct RecordVisitor<'a> {
    layout: RecordLayout,
    record: &'a mut Vec<u8>,
}

impl<'de> Visitor<'de> for RecordVisitor<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an object with {} fields of {} bytes", self.layout.fields, self.layout.field_bytes)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = vec![false; self.layout.fields];
        while let Some((name, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
            let index = field_index(&name.0)
                .filter(|&index| index < self.layout.fields)
                .ok_or_else(|| de::Error::custom(format_args!("unknown field {:?}", name.0)))?;
            if value.0.len() != self.layout.field_bytes {
                return Err(de::Error::invalid_length(value.0.len(), &self));
            }
            if std::mem::replace(&mut seen[index], true) {
                return Err(de::Error::custom(format_args!("field {:?} twice", name.0)));
            }
            let start = index * self.layout.field_bytes;
            self.record[start..start + self.layout.field_bytes].copy_from_slice(value.0.as_bytes());
        }
        match seen.iter().position(|&present| !present) {
            Some(missing) => Err(de::Error::custom(format_args!("field{missing} is missing"))),
            None => Ok(()),
        }
    }
}

/// A string that is borrowed from the document unless escapes force a copy.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn field_index(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("field")?;
    let canonical = digits == "0" || !digits.starts_with(['0', '+']);
    canonical.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: RecordLayout = RecordLayout { fields: 3, field_bytes: 9 };

    fn round_trip(layout: RecordLayout, record: &[u8]) -> Vec<u8> {
        let (mut document, mut back) = (Vec::new(), Vec::new());
        encode(record.chunks_exact(layout.field_bytes), &mut document).unwrap();
        decode(layout, &document, &mut back).unwrap();
        back
    }

    #[test]
    fn the_document_is_plain_json() {
        let mut document = Vec::new();
        encode([&b"a\"b"[..], &b"c\\d"[..]].into_iter(), &mut document).unwrap();
        assert_eq!(document, br#"{"field0":"a\"b","field1":"c\\d"}"#);
        let value: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(value["field0"], "a\"b");
    }

    #[test]
    fn every_printable_character_survives() {
        let layout = RecordLayout { fields: 1, field_bytes: 95 };
        let all: Vec<u8> = (b' '..=b'~').collect();
        assert_eq!(round_trip(layout, &all), all);
    }

    #[test]
    fn fields_may_come_in_any_order() {
        let document = br#"{"field2":"ccccccccc","field0":"aaaaaaaaa","field1":"bbbbbbbbb"}"#;
        let mut record = Vec::new();
        decode(LAYOUT, document, &mut record).unwrap();
        assert_eq!(record, b"aaaaaaaaabbbbbbbbbccccccccc");
    }

    #[test]
    fn anything_else_is_refused() {
        let documents = [
            "",
            "null",
            "{}",
            r#"{"field0":"aaaaaaaaa","field1":"bbbbbbbbb"}"#,
            r#"{"field0":"aaaaaaaaa","field1":"bbbbbbbbb","field2":"short"}"#,
            r#"{"field0":"aaaaaaaaa","field1":"bbbbbbbbb","field3":"ccccccccc"}"#,
            r#"{"field0":"aaaaaaaaa","field0":"bbbbbbbbb","field2":"ccccccccc"}"#,
            r#"{"field0":"aaaaaaaaa","field1":"bbbbbbbbb","field2":7}"#,
            r#"{"field0":"aaaaaaaaa","field1":"bbbbbbbbb","field02":"ccccccccc"}"#,
            r#"{"field0":"aaaaaaaaa","field1":"bbbbbbbbb","field2":"ccccccccc"} "x""#,
        ];
        for document in documents {
            assert!(decode(LAYOUT, document.as_bytes(), &mut Vec::new()).is_err(), "{document}");
        }
    }

    proptest! {
        #[test]
        fn printable_records_survive(record in proptest::collection::vec(b' '..=b'~', 27)) {
            prop_assert_eq!(round_trip(LAYOUT, &record), record);
        }

        #[test]
        fn quotes_backslashes_and_control_characters_survive(
            record in proptest::collection::vec(
                proptest::sample::select(&b"\"\\/\x00\x08\x0c\n\r\t\x1f\x7f u"[..]), 27)
        ) {
            prop_assert_eq!(round_trip(LAYOUT, &record), record);
        }

        #[test]
        fn damaged_documents_never_panic(document in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(LAYOUT, &document, &mut Vec::new());
        }
    }
}
