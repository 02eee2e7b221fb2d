//! What a YCSB terminal says to mysqld 5.6 and hears from it, byte by byte: prepared statements in the binary protocol, and `COMMIT` or `ROLLBACK` as text.
//!
//! Connecting, logging in and preparing is the client library's; it offers no calls that do not wait. The format is that of the protocol documentation in
//! MySQL's source ("COM_STMT_EXECUTE", "Binary Protocol Resultset", "OK_Packet", "ERR_Packet"), without `CLIENT_DEPRECATE_EOF`, which 5.6 does not know.

const COM_QUERY: u8 = 0x03;
const COM_STMT_EXECUTE: u8 = 0x17;
const TYPE_LONGLONG: u8 = 0x08;
const TYPE_VAR_STRING: u8 = 0xfd;

/// First bytes of packets.
const OK: u8 = 0x00;
const EOF: u8 = 0xfe;
const ERR: u8 = 0xff;
/// A packet of an EOF's first byte that is longer than this is none.
const EOF_BYTES: usize = 8;
/// Bits of a row's NULL bitmap before the first column's.
const NULL_OFFSET: usize = 2;

/// A parameter of a prepared statement.
#[derive(Debug, Clone, Copy)]
pub enum Parameter<'a> {
    Integer(i64),
    Text(&'a [u8]),
}

/// Writes the request to execute a prepared statement into `request`, in place of what it held.
pub fn execute(statement: u32, parameters: &[Parameter<'_>], request: &mut Vec<u8>) {
    packet(request, |body| {
        body.push(COM_STMT_EXECUTE);
        body.extend_from_slice(&statement.to_le_bytes());
        // No cursor; once.
        body.push(0);
        body.extend_from_slice(&1_u32.to_le_bytes());
        // No NULL among them; their types follow.
        body.resize(body.len() + parameters.len().div_ceil(8), 0);
        body.push(1);
        for parameter in parameters {
            let kind = match parameter {
                Parameter::Integer(_) => TYPE_LONGLONG,
                Parameter::Text(_) => TYPE_VAR_STRING,
            };
            body.extend_from_slice(&[kind, 0]);
        }
        for parameter in parameters {
            match parameter {
                Parameter::Integer(value) => body.extend_from_slice(&value.to_le_bytes()),
                Parameter::Text(text) => {
                    push_length(text.len(), body);
                    body.extend_from_slice(text);
                }
            }
        }
    });
}

/// Writes the request to execute a statement given as text.
pub fn query(statement: &str, request: &mut Vec<u8>) {
    packet(request, |body| {
        body.push(COM_QUERY);
        body.extend_from_slice(statement.as_bytes());
    });
}

/// A request is a packet of its own, whose number is 0.
fn packet(request: &mut Vec<u8>, write_body: impl FnOnce(&mut Vec<u8>)) {
    request.clear();
    request.extend_from_slice(&[0; 4]);
    write_body(request);
    let length = (request.len() - 4) as u32;
    request[..3].copy_from_slice(&length.to_le_bytes()[..3]);
}

fn push_length(length: usize, body: &mut Vec<u8>) {
    match length {
        0..=0xfa => body.push(length as u8),
        _ => {
            body.push(0xfd);
            body.extend_from_slice(&(length as u32).to_le_bytes()[..3]);
        }
    }
}

/// mysqld's answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Executed, with so many rows affected (or, as the session asks, matched).
    Done { affected_rows: u64 },
    /// The first row of a result, unless it has none.
    Rows(Option<Row<'a>>),
    /// An error, by number.
    Failed { code: u16, message: String },
}

/// Bytes that no mysqld 5.6 sends.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an answer of MySQL 5.6: {0}")]
pub struct Malformed(&'static str);

/// What the bytes received so far are; `None`: they are not all there yet.
///
/// # Errors
/// [`Malformed`].
pub fn answer(received: &[u8]) -> Result<Option<Answer<'_>>, Malformed> {
    let mut bytes = Bytes(received);
    let Some(answer) = bytes.answer()? else { return Ok(None) };
    if bytes.0.is_empty() { Ok(Some(answer)) } else { Err(Malformed("more than one answer")) }
}

/// A row of a result in the binary protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    packet: &'a [u8],
    columns: usize,
}

impl<'a> Row<'a> {
    /// Appends the fields of a row of a BIGINT and texts, which are its other columns, to `record`, one after another.
    ///
    /// # Errors
    /// [`Malformed`] for anything else, also a NULL.
    pub fn push_texts(self, record: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut bytes = Bytes(&self.packet[1..]);
        let nulls = bytes.take((self.columns + 7 + NULL_OFFSET) / 8).ok_or(TRUNCATED_ROW)?;
        if nulls.iter().any(|&byte| byte != 0) {
            return Err(Malformed("NULL in a column that has none"));
        }
        bytes.take(size_of::<i64>()).ok_or(TRUNCATED_ROW)?;
        for _ in 1..self.columns {
            let length = bytes.length().ok_or(TRUNCATED_ROW)?;
            record.extend_from_slice(bytes.take(length as usize).ok_or(TRUNCATED_ROW)?);
        }
        if bytes.0.is_empty() { Ok(()) } else { Err(Malformed("a row with more than its columns")) }
    }
}

const TRUNCATED_ROW: Malformed = Malformed("a row that ends within a column");

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// An integer by which lengths and counts are encoded.
    fn length(&mut self) -> Option<u64> {
        let bytes = match self.take(1)?[0] {
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            0xfb | 0xff => return None,
            small => return Some(u64::from(small)),
        };
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(self.take(bytes)?);
        Some(u64::from_le_bytes(value))
    }

    /// The next packet, which is not empty; `None`: it is not all there.
    fn packet(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let &[low, middle, high, _number, ..] = self.0 else { return Ok(None) };
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        match length {
            0 => return Err(Malformed("an empty packet")),
            0xff_ffff => return Err(Malformed("a packet of 16 MiB or more")),
            _ => {}
        }
        if self.0.len() < 4 + length {
            return Ok(None);
        }
        self.take(4);
        Ok(self.take(length))
    }

    fn answer(&mut self) -> Result<Option<Answer<'a>>, Malformed> {
        let Some(head) = self.packet()? else { return Ok(None) };
        match head[0] {
            OK => {
                let affected_rows = Bytes(&head[1..]).length().ok_or(Malformed("an OK without its count"))?;
                Ok(Some(Answer::Done { affected_rows }))
            }
            ERR => failed(head).map(Some),
            _ => {
                let columns = Bytes(head).length().ok_or(Malformed("a result without its count of columns"))?;
                self.rows(columns as usize)
            }
        }
    }

    /// The result behind its number of columns: their descriptions, which every execution repeats, an EOF, rows, an EOF.
    fn rows(&mut self, columns: usize) -> Result<Option<Answer<'a>>, Malformed> {
        for _ in 0..columns {
            let Some(_description) = self.packet()? else { return Ok(None) };
        }
        let Some(packet) = self.packet()? else { return Ok(None) };
        if !is_eof(packet) {
            return Err(Malformed("a result whose columns do not end"));
        }
        let mut first = None;
        loop {
            let Some(packet) = self.packet()? else { return Ok(None) };
            match packet[0] {
                OK => {
                    first.get_or_insert(Row { packet, columns });
                }
                // A statement that locks can find that out behind the descriptions.
                ERR => return failed(packet).map(Some),
                _ if is_eof(packet) => return Ok(Some(Answer::Rows(first))),
                _ => return Err(Malformed("a row that is none")),
            }
        }
    }
}

fn is_eof(packet: &[u8]) -> bool {
    packet[0] == EOF && packet.len() <= EOF_BYTES
}

fn failed<'a>(packet: &[u8]) -> Result<Answer<'a>, Malformed> {
    let &[_, low, high, ref rest @ ..] = packet else { return Err(Malformed("an error without its number")) };
    // `#` and the SQLSTATE stand before the text.
    let text = if rest.first() == Some(&b'#') { rest.get(6..).unwrap_or_default() } else { rest };
    Ok(Answer::Failed { code: u16::from_le_bytes([low, high]), message: String::from_utf8_lossy(text).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets(bodies: &[&[u8]]) -> Vec<u8> {
        let mut all = Vec::new();
        for (number, body) in (1..).zip(bodies) {
            all.extend_from_slice(&(body.len() as u32).to_le_bytes()[..3]);
            all.push(number);
            all.extend_from_slice(body);
        }
        all
    }

    const EOF_PACKET: &[u8] = &[EOF, 0, 0, 2, 0];

    /// A row of a key and two fields, as mysqld sends it.
    fn result_of_one(nulls: u8) -> Vec<u8> {
        let mut row = vec![0, nulls];
        row.extend_from_slice(&7_i64.to_le_bytes());
        row.extend_from_slice(b"\x03abc\x02de");
        packets(&[&[3], b"key", b"field0", b"field1", EOF_PACKET, &row, EOF_PACKET])
    }

    #[test]
    fn a_request_is_one_packet() {
        let mut request = vec![9; 3];
        execute(5, &[Parameter::Text(b"abc"), Parameter::Integer(-2)], &mut request);
        let mut expected = vec![28, 0, 0, 0, COM_STMT_EXECUTE, 5, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0xfd, 0, 8, 0, 3];
        expected.extend_from_slice(b"abc");
        expected.extend_from_slice(&(-2_i64).to_le_bytes());
        assert_eq!(request, expected);
        query("COMMIT", &mut request);
        assert_eq!(request, b"\x07\0\0\0\x03COMMIT");
        execute(5, &[Parameter::Text(&[b'x'; 251])], &mut request);
        assert_eq!(request[4 + 11..][..7], [1, 0xfd, 0, 0xfd, 251, 0, 0], "a length of more than a byte");
    }

    #[test]
    fn answers_of_every_kind_are_told_apart() {
        let done = packets(&[&[OK, 1, 0, 2, 0, 0, 0]]);
        assert_eq!(answer(&done), Ok(Some(Answer::Done { affected_rows: 1 })));
        let none = packets(&[&[1], b"key", EOF_PACKET, EOF_PACKET]);
        assert_eq!(answer(&none), Ok(Some(Answer::Rows(None))));
        let deadlock = b"\xff\xbd\x04#40001Deadlock found";
        let failed = || Answer::Failed { code: 1213, message: "Deadlock found".to_owned() };
        assert_eq!(answer(&packets(&[deadlock])), Ok(Some(failed())));
        let late = packets(&[&[1], b"key", EOF_PACKET, deadlock]);
        assert_eq!(answer(&late), Ok(Some(failed())), "behind the columns' descriptions");
        let result = result_of_one(0);
        let Ok(Some(Answer::Rows(Some(row)))) = answer(&result) else { panic!("{:?}", answer(&result)) };
        let mut record = b"before ".to_vec();
        row.push_texts(&mut record).unwrap();
        assert_eq!(record, b"before abcde");
    }

    #[test]
    fn an_answer_counts_when_its_last_byte_is_there() {
        let result = result_of_one(0);
        for length in 0..result.len() {
            assert_eq!(answer(&result[..length]), Ok(None), "{length} bytes");
        }
        let twice = [result.clone(), result].concat();
        assert_eq!(answer(&twice), Err(Malformed("more than one answer")));
    }

    #[test]
    fn a_null_and_a_column_too_few_are_refused() {
        let row = result_of_one(1 << (NULL_OFFSET + 1));
        let Ok(Some(Answer::Rows(Some(null)))) = answer(&row) else { panic!("{:?}", answer(&row)) };
        assert!(null.push_texts(&mut Vec::new()).is_err());
        let short = packets(&[&[2], b"key", b"field0", EOF_PACKET, &[0, 0, 1, 2], EOF_PACKET]);
        let Ok(Some(Answer::Rows(Some(short)))) = answer(&short) else { panic!("{:?}", answer(&short)) };
        assert_eq!(short.push_texts(&mut Vec::new()), Err(TRUNCATED_ROW));
    }

    proptest! {
        #[test]
        fn anything_else_is_an_error_and_no_panic(received in proptest::collection::vec(any::<u8>(), 0..200), columns in 0..4_usize) {
            if let Ok(Some(Answer::Rows(Some(row)))) = answer(&received) {
                let _ = row.push_texts(&mut Vec::new());
            }
            let mut packet = vec![0];
            packet.extend_from_slice(&received);
            let _ = Row { packet: &packet, columns }.push_texts(&mut Vec::new());
        }
    }
}
