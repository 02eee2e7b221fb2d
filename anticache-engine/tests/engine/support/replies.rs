//! Replies as a partition writes them.

use anticache_engine::net::frame::Status;
use anticache_engine::partition::ReplySink;

/// One reply, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub token: u64,
    pub status: Status,
    pub payload: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// Replies of all connections, one after the other.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl ReplySink for Bytes {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

/// Takes the replies out.
pub fn decode(wire: &mut Vec<u8>) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut at = 0;
    while at < wire.len() {
        let length = u32::from_le_bytes(wire[at..at + 4].try_into().unwrap()) as usize;
        answers.push(Answer {
            token: u64::from_le_bytes(wire[at + 4..at + 12].try_into().unwrap()),
            status: Status::from_wire(wire[at + 12]).unwrap(),
            payload: wire[at + 13..at + 4 + length].to_vec(),
        });
        at += 4 + length;
    }
    wire.clear();
    answers
}
