//! What a YCSB terminal says to Memcached and hears from it: three commands of the meta protocol (`doc/protocol.txt` of Memcached 1.6), one at a time.
//!
//! [`super::cache`] has the client library's connections, which wait for their answers; the library offers no decoder without one.

use std::io::Write;

/// Writes a request for the value of a key into `request`, in place of what it held.
pub fn get(key: &str, request: &mut Vec<u8>) {
    request.clear();
    push(request, format_args!("mg {key} v\r\n"));
}

/// How [`store`] treats a value that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Replaces it.
    Set,
    /// Gives way to it.
    Add,
}

/// Writes a request to store a value.
pub fn store(key: &str, value: &[u8], mode: Mode, request: &mut Vec<u8>) {
    request.clear();
    let flag = match mode {
        Mode::Set => "",
        Mode::Add => " ME",
    };
    push(request, format_args!("ms {key} {}{flag}\r\n", value.len()));
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
}

/// Writes a request to remove a key.
pub fn delete(key: &str, request: &mut Vec<u8>) {
    request.clear();
    push(request, format_args!("md {key}\r\n"));
}

fn push(request: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    request.write_fmt(text).expect("a vector takes all that is written to it");
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

/// What the bytes received so far are; `None`: they are not all there yet.
///
/// # Errors
/// [`Malformed`].
pub fn answer(received: &[u8]) -> Result<Option<Answer<'_>>, Malformed> {
    let malformed = || Malformed(String::from_utf8_lossy(&received[..received.len().min(80)]).into_owned());
    let Some(end) = received.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, rest) = (&received[..end], &received[end + 2..]);
    let answer = match line {
        b"EN" | b"NF" => Answer::Absent,
        b"HD" => Answer::Done,
        b"NS" => Answer::NotStored,
        [b'V', b'A', b' ', length @ ..] => {
            let length = std::str::from_utf8(length).ok().and_then(|digits| digits.parse::<u32>().ok());
            let length = length.ok_or_else(malformed)? as usize;
            if rest.len() < length + 2 {
                return Ok(None);
            }
            return if &rest[length..] == b"\r\n" {
                Ok(Some(Answer::Value(&rest[..length])))
            } else {
                Err(malformed())
            };
        }
        _ if line.starts_with(b"SERVER_ERROR ") => Answer::Refused(&line[b"SERVER_ERROR ".len()..]),
        _ => return Err(malformed()),
    };
    if rest.is_empty() { Ok(Some(answer)) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_those_of_the_protocol() {
        let mut request = b"before".to_vec();
        get("t:1", &mut request);
        assert_eq!(request, b"mg t:1 v\r\n");
        store("t:1", b"a\r\nb", Mode::Set, &mut request);
        assert_eq!(request, b"ms t:1 4\r\na\r\nb\r\n");
        store("t:1", b"", Mode::Add, &mut request);
        assert_eq!(request, b"ms t:1 0 ME\r\n\r\n");
        delete("t:1", &mut request);
        assert_eq!(request, b"md t:1\r\n");
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
            assert_eq!(answer(received), Ok(Some(expected)));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let wrong: [&[u8]; 6] =
            [b"HD\r\nHD\r\n", b"VA x\r\n", b"VA 1\r\nab\r\n", b"CLIENT_ERROR bad\r\n", b"\r\n", b"END\r\n"];
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
