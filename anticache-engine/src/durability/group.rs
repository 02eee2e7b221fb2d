//! What becomes durable together: a group of the command log.

use std::time::Instant;

use crate::catalog::TableId;
use crate::io::{DIRECT_IO_ALIGN_BYTES, GrowingBuf};
use crate::partition::Origin;
use crate::storage::tuples::{TupleId, flag};

pub(super) const GROUP_MAGIC: [u8; 4] = *b"ACLG";
pub(super) const GROUP_HEADER_BYTES: usize = 40;

/// A reply that waits for its group.
#[derive(Debug, Clone, Copy)]
pub struct HeldReply {
    /// Whose it is.
    pub origin: Origin,
    start: usize,
    end: usize,
}

/// Records, replies and marks that become durable together.
pub struct Group {
    pub(super) number: u64,
    pub(super) buffer: GrowingBuf,
    pub(super) records: u32,
    pub(super) replies: Vec<HeldReply>,
    pub(super) frames: Vec<u8>,
    /// Tuples that carry this group's flag.
    pub marked: Vec<(TableId, TupleId)>,
    pub(super) deleted: bool,
    /// Number of the last multi-partition transaction that waits for it to be durable.
    pub(super) last_multi: Option<u64>,
    /// When its first record came; kept only where groups wait for a time.
    pub(super) begun: Option<Instant>,
}

impl Group {
    pub(super) fn new() -> Self {
        let mut group = Self {
            number: 0,
            buffer: GrowingBuf::new(DIRECT_IO_ALIGN_BYTES),
            records: 0,
            replies: Vec::new(),
            frames: Vec::new(),
            marked: Vec::new(),
            deleted: false,
            last_multi: None,
            begun: None,
        };
        group.reset(0);
        group
    }

    pub(super) fn reset(&mut self, number: u64) {
        self.number = number;
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; GROUP_HEADER_BYTES]);
        self.records = 0;
        self.replies.clear();
        self.frames.clear();
        self.marked.clear();
        self.deleted = false;
        self.last_multi = None;
        self.begun = None;
    }

    pub(super) fn flag(&self) -> u8 {
        if self.number.is_multiple_of(2) { flag::UNSYNCED_EVEN } else { flag::UNSYNCED_ODD }
    }

    /// Writes the header and pads to whole pages, given the sequence of the first record and the salt of the segment that the group goes to.
    pub(super) fn seal(&mut self, first_sequence: u64, salt: u64) {
        let bytes = self.buffer.len() as u32;
        let header = &mut self.buffer[..GROUP_HEADER_BYTES];
        header[0..4].copy_from_slice(&GROUP_MAGIC);
        header[4..8].copy_from_slice(&bytes.to_le_bytes());
        header[8..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..24].copy_from_slice(&first_sequence.to_le_bytes());
        header[24..28].copy_from_slice(&self.records.to_le_bytes());
        header[28..32].fill(0);
        header[32..40].copy_from_slice(&salt.to_le_bytes());
        let checksum = crc32c::crc32c(&self.buffer);
        self.buffer[28..32].copy_from_slice(&checksum.to_le_bytes());
        let padded = self.buffer.len().next_multiple_of(DIRECT_IO_ALIGN_BYTES);
        self.buffer.resize(padded, 0);
    }

    /// The replies with their frames.
    pub fn replies(&self) -> impl Iterator<Item = (Origin, &[u8])> {
        self.replies.iter().map(|held| (held.origin, &self.frames[held.start..held.end]))
    }

    pub(super) fn hold(&mut self, origin: Origin, frame: &[u8]) {
        let start = self.frames.len();
        self.frames.extend_from_slice(frame);
        self.replies.push(HeldReply { origin, start, end: self.frames.len() });
    }
}
