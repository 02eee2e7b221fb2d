//! What a YCSB terminal says to Memcached and hears from it: three commands of the meta protocol (`doc/protocol.txt` of Memcached 1.6). Many may be
//! outstanding on a connection; their answers come in their order.
//!
//! A terminal does not wait: its answers are looked for among the bytes that have come, and are read where they lie. [`super::link`] waits for its own.

use std::io::Write;

/// Appends a request for the value of a key.
pub fn get(key: &str, requests: &mut Vec<u8>) {
    push(requests, format_args!("mg {key} v\r\n"));
}

/// How [`store`] treats a value that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Replaces it.
    Set,
    /// Gives way to it.
    Add,
}

/// Appends a request to store a value.
pub fn store(key: &str, value: &[u8], mode: Mode, requests: &mut Vec<u8>) {
    let flag = match mode {
        Mode::Set => "",
        Mode::Add => " ME",
    };
    push(requests, format_args!("ms {key} {}{flag}\r\n", value.len()));
    requests.extend_from_slice(value);
    requests.extend_from_slice(b"\r\n");
}

/// Appends a request to remove a key.
pub fn delete(key: &str, requests: &mut Vec<u8>) {
    push(requests, format_args!("md {key}\r\n"));
}

fn push(requests: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    requests.write_fmt(text).expect("a vector takes all that is written to it");
}

/// Memcached's answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Value(&'a [u8]),
    /// The key has no value.
    Absent,
    /// Stored, or removed.
    Done,
    /// Not stored, because of what is there.
    NotStored,
    /// The server could not, for example for want of memory.
    Refused(&'a [u8]),
}

/// Bytes that Memcached does not send to these requests.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an answer of Memcached: {0:?}")]
pub struct Malformed(String);

/// The first answer among the bytes received, and how many of them it takes; `None`: they are not all there yet.
///
/// # Errors
/// [`Malformed`].
pub fn answer(received: &[u8]) -> Result<Option<(Answer<'_>, usize)>, Malformed> {
    let malformed = || Malformed(String::from_utf8_lossy(&received[..received.len().min(80)]).into_owned());
    let Some(end) = received.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, behind) = (&received[..end], end + 2);
    Ok(match line {
        b"EN" | b"NF" => Some((Answer::Absent, behind)),
        b"HD" => Some((Answer::Done, behind)),
        b"NS" => Some((Answer::NotStored, behind)),
        [b'V', b'A', b' ', length @ ..] => {
            let length = std::str::from_utf8(length).ok().and_then(|digits| digits.parse::<u32>().ok());
            let end = behind + length.ok_or_else(malformed)? as usize;
            match received.get(end..end + 2) {
                Some(b"\r\n") => Some((Answer::Value(&received[behind..end]), end + 2)),
                Some(_) => return Err(malformed()),
                None => None,
            }
        }
        _ if line.starts_with(b"SERVER_ERROR ") => Some((Answer::Refused(&line[b"SERVER_ERROR ".len()..]), behind)),
        _ => return Err(malformed()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_those_of_the_protocol() {
        let mut requests = Vec::new();
        get("t:1", &mut requests);
        store("t:1", b"a\r\nb", Mode::Set, &mut requests);
        store("t:1", b"", Mode::Add, &mut requests);
        delete("t:1", &mut requests);
        assert_eq!(requests, b"mg t:1 v\r\nms t:1 4\r\na\r\nb\r\nms t:1 0 ME\r\n\r\nmd t:1\r\n");
    }

    #[test]
    fn answers_count_when_they_are_whole() {
        let whole: [(&[u8], Answer<'_>); 7] = [
            (b"VA 4\r\na\r\nb\r\n", Answer::Value(b"a\r\nb")),
            (b"VA 0\r\n\r\n", Answer::Value(b"")),
            (b"EN\r\n", Answer::Absent),
            (b"NF\r\n", Answer::Absent),
            (b"HD\r\n", Answer::Done),
            (b"NS\r\n", Answer::NotStored),
            (b"SERVER_ERROR out of memory\r\n", Answer::Refused(b"out of memory")),
        ];
        for (received, expected) in whole {
            (0..received.len()).for_each(|length| assert_eq!(answer(&received[..length]), Ok(None)));
            assert_eq!(answer(received), Ok(Some((expected, received.len()))));
            let two = [received, received].concat();
            assert_eq!(answer(&two), answer(received), "the next one is not looked at");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let wrong: [&[u8]; 5] = [b"VA x\r\n", b"VA 1\r\nab\r\n", b"CLIENT_ERROR bad\r\n", b"\r\n", b"END\r\n"];
        for received in wrong {
            assert!(answer(received).is_err(), "{}", String::from_utf8_lossy(received));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(received in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = answer(&received);
        }
    }
}
