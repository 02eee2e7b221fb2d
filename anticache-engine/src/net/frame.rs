//! Frames on the wire; all numbers are little-endian.
//!
//! ```text
//! hello     "ACE1" version:2 partition:2 nonce:32              client → server, once; partition 0xFFFF = "tell me about the cluster"
//! challenge length:4 JSON                                      server → client, when it has a secret: {"challenge": nonce}
//! proof     proof:32                                           client → server, when challenged
//! welcome   length:4 JSON                                      server → client, once: {"partitions", "partition", "procedures"[, "proof"]}
//! request   length:4 token:8 procedure:2 parameters            length counts what follows it
//! reply     length:4 token:8 status:1 payload
//! ```
//!
//! In place of challenge or welcome the server may send `{"error"}` and close. Nonces are 32 bytes from the operating system, new for every
//! connection; in JSON, nonces and proofs are lower-case hexadecimal digits. A proof is
//! `HMAC-SHA256(secret, "ACE2 from client" or "ACE2 from server", partition:2, server's nonce, client's nonce)`. A client that has a secret
//! sends nothing more to a server that does not ask for its proof or does not give its own. A handshake that takes too long is closed.
//!
//! Replies carry the request's token and come in any order. A request longer than [`MAX_REQUEST_BYTES`] or shorter than its fixed part closes the
//! connection, and only that.

/// First bytes of a connection.
pub const HELLO_MAGIC: [u8; 4] = *b"ACE1";
/// Version of this protocol.
pub const PROTOCOL_VERSION: u16 = 2;
/// Bytes of a hello before its nonce; the same in every version, so that another version can be named.
pub const HELLO_HEAD_BYTES: usize = 8;
/// Longest request, length field excluded.
pub const MAX_REQUEST_BYTES: usize = 16 << 20;
/// token and procedure.
pub const REQUEST_FIXED_BYTES: usize = 10;
/// length, token and status.
pub const REPLY_HEADER_BYTES: usize = 13;
/// Procedure numbers from here on are not procedures but requests to the partition itself, answered outside transactions (`net/admin.rs`).
pub const FIRST_ADMIN_PROCEDURE: u16 = 0xFFF0;
/// The partition's counters and settings as JSON.
pub const STATS_PROCEDURE: u16 = 0xFFFF;
/// Events; parameters: stream 1, number of the first 8. The answer is that of [`crate::events::Events::since`].
pub const EVENTS_PROCEDURE: u16 = 0xFFFE;
/// The partition's data structures as JSON; parameters: how many of each, 4 bytes. See [`crate::describe`].
pub const DESCRIBE_PROCEDURE: u16 = 0xFFFD;
/// A page of a table's rows; parameters: table 2, cursor 8 (0 = the beginning). The answer: next cursor 8 (all ones = that was the end), then rows, each
/// as length 4 and its serialized form. See [`crate::anticache::scan`].
pub const SCAN_PROCEDURE: u16 = 0xFFFC;
/// Takes a snapshot of all partitions; the reply comes when it is durable, `{"generation": n}`.
pub const SNAPSHOT_PROCEDURE: u16 = 0xFFFB;
/// Changes settings of the partition; parameters: a JSON object with some of [`crate::config::LIVE_SETTINGS`].
pub const SETTINGS_PROCEDURE: u16 = 0xFFFA;
/// Partition number of a hello that only asks.
pub const ANY_PARTITION: u16 = u16::MAX;

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Committed and, if it wrote, durable; the payload is the procedure's reply.
    Committed = 0,
    /// Aborted by the procedure; the payload says why.
    Aborted = 1,
    /// The server could not serve it; the payload says why.
    Failed = 2,
}

impl Status {
    /// The status of its number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::Committed, Self::Aborted, Self::Failed].into_iter().find(|&status| status as u8 == number)
    }
}

/// Starts a reply in `out`; the payload is appended next, then [`finish_reply`] with the position returned here.
#[inline]
pub fn begin_reply(out: &mut Vec<u8>, token: u64) -> usize {
    let start = out.len();
    let mut header = [0; REPLY_HEADER_BYTES];
    header[4..12].copy_from_slice(&token.to_le_bytes());
    out.extend_from_slice(&header);
    start
}

/// Completes the reply begun at `start`.
#[inline]
pub fn finish_reply(out: &mut [u8], start: usize, status: Status) {
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 12] = status as u8;
}

/// A whole reply.
pub fn write_reply(out: &mut Vec<u8>, token: u64, status: Status, payload: &[u8]) {
    let start = begin_reply(out, token);
    out.extend_from_slice(payload);
    finish_reply(out, start, status);
}

/// A whole request.
#[inline]
pub fn write_request(out: &mut Vec<u8>, token: u64, procedure: u16, params: &[u8]) {
    let length = (REQUEST_FIXED_BYTES + params.len()) as u32;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&token.to_le_bytes());
    out.extend_from_slice(&procedure.to_le_bytes());
    out.extend_from_slice(params);
}

/// A request found in a read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The client's name for it.
    pub token: u64,
    /// What to run.
    pub procedure: u16,
    /// Where its parameters start in the buffer.
    pub start: usize,
    /// Where they end.
    pub end: usize,
}

impl RequestHead {
    /// Its parameters.
    #[inline]
    pub fn params<'input>(&self, input: &'input [u8]) -> &'input [u8] {
        &input[self.start..self.end]
    }
}

/// A request that no well-behaved client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request of {length} bytes; allowed are {REQUEST_FIXED_BYTES} to {MAX_REQUEST_BYTES}")]
pub struct BadLength {
    /// The length that it states.
    pub length: u32,
}

/// Finds the whole requests at the start of `input`, at most `max`, and returns how many bytes they take.
///
/// # Errors
/// [`BadLength`]; requests before it are in `requests`.
pub fn parse_requests(input: &[u8], max: usize, requests: &mut Vec<RequestHead>) -> Result<usize, BadLength> {
    let mut at = 0;
    while requests.len() < max && input.len() - at >= 4 {
        let length = u32::from_le_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]]);
        if !(REQUEST_FIXED_BYTES..=MAX_REQUEST_BYTES).contains(&(length as usize)) {
            return Err(BadLength { length });
        }
        let end = at + 4 + length as usize;
        if end > input.len() {
            break;
        }
        let mut token = [0; 8];
        token.copy_from_slice(&input[at + 4..at + 12]);
        requests.push(RequestHead {
            token: u64::from_le_bytes(token),
            procedure: u16::from_le_bytes([input[at + 12], input[at + 13]]),
            start: at + 14,
            end,
        });
        at = end;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_survive_any_cut(
            sent in prop::collection::vec((any::<u64>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..50)), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut wire = Vec::new();
            for (token, procedure, params) in &sent {
                write_request(&mut wire, *token, *procedure, params);
            }
            let cut = cut.index(wire.len() + 1);
            let mut requests = Vec::new();
            let used = parse_requests(&wire[..cut], usize::MAX, &mut requests).unwrap();
            let whole = requests.len();
            for (head, (token, procedure, params)) in requests.iter().zip(&sent) {
                prop_assert_eq!((head.token, head.procedure, head.params(&wire)), (*token, *procedure, params.as_slice()));
            }
            requests.clear();
            parse_requests(&wire[used..], usize::MAX, &mut requests).unwrap();
            prop_assert_eq!(whole + requests.len(), sent.len());
        }

        #[test]
        fn arbitrary_bytes_never_panic(wire in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut requests = Vec::new();
            let _ = parse_requests(&wire, usize::MAX, &mut requests);
            for head in requests {
                prop_assert!(head.start <= head.end && head.end <= wire.len());
            }
        }
    }

    #[test]
    fn an_oversized_length_is_refused() {
        let mut requests = Vec::new();
        let wire = (MAX_REQUEST_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(parse_requests(&wire, 9, &mut requests), Err(BadLength { length: MAX_REQUEST_BYTES as u32 + 1 }));
        assert!(parse_requests(&9u32.to_le_bytes(), 9, &mut requests).is_err());
    }
}
