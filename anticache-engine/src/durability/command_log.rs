//! The command log of a partition: procedure and parameters of every transaction that wrote, synced in groups (paper §2).
//!
//! A group collects records while the group before it is being written; the next write starts when that one is durable, so the group size
//! adapts to the disk. Replies wait in their group. Reads are not logged, and wait only when they saw a tuple whose last write is not durable yet:
//! a reply never shows what a crash could take back.
//!
//! Segment file `command-PPPP-NNNNNNNN.log` (partition, number), made ahead (`segment.rs`), direct I/O, little-endian numbers:
//!
//! ```text
//! segment header, padded to 4096:  "ACLS" version:4 partition:4 segment:8 length:4 JSON list of procedure names, checksum:4 over all before
//! group, padded to 4096:           "ACLG" bytes:4 group:8 first sequence:8 records:4 checksum:4 over header (this field zero) and records
//!   record:                        length:4 (of what follows) procedure:2 parameters
//! ```

use std::io;
use std::path::Path;

use super::segment::{Segment, Segments};
use crate::catalog::TableId;
use crate::io::ring::IoRing;
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES};
use crate::partition::Origin;
use crate::storage::tuples::{TupleId, flag};

pub(super) const GROUP_MAGIC: [u8; 4] = *b"ACLG";
pub(super) const GROUP_HEADER_BYTES: usize = 32;
const KEPT_GROUP_BYTES: usize = 1 << 20;

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
    number: u64,
    buffer: AlignedBuf,
    records: u32,
    replies: Vec<HeldReply>,
    frames: Vec<u8>,
    /// Tuples that carry this group's flag.
    pub marked: Vec<(TableId, TupleId)>,
    deleted: bool,
}

impl Group {
    fn new() -> Self {
        let mut group = Self {
            number: 0,
            buffer: AlignedBuf::new(DIRECT_IO_ALIGN_BYTES),
            records: 0,
            replies: Vec::new(),
            frames: Vec::new(),
            marked: Vec::new(),
            deleted: false,
        };
        group.reset(0);
        group
    }

    fn reset(&mut self, number: u64) {
        self.number = number;
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; GROUP_HEADER_BYTES]);
        self.records = 0;
        self.replies.clear();
        self.frames.clear();
        self.marked.clear();
        self.deleted = false;
    }

    fn flag(&self) -> u8 {
        if self.number.is_multiple_of(2) { flag::UNSYNCED_EVEN } else { flag::UNSYNCED_ODD }
    }

    /// The replies with their frames.
    pub fn replies(&self) -> impl Iterator<Item = (Origin, &[u8])> {
        self.replies.iter().map(|held| (held.origin, &self.frames[held.start..held.end]))
    }

    fn hold(&mut self, origin: Origin, frame: &[u8]) {
        let start = self.frames.len();
        self.frames.extend_from_slice(frame);
        self.replies.push(HeldReply { origin, start, end: self.frames.len() });
    }
}

/// The log of one partition.
pub struct CommandLog {
    segments: Segments,
    segment: Segment,
    offset: u64,
    sequence: u64,
    current: Group,
    in_flight: Option<Group>,
    spare: Option<Group>,
    /// Groups made durable.
    pub groups_written: u64,
    /// Bytes written, padding included.
    pub bytes_written: u64,
}

impl CommandLog {
    /// Starts a log in `directory`.
    ///
    /// # Errors
    /// As [`Segments::start`].
    pub fn create(
        directory: &Path,
        partition: u32,
        segment_bytes: u64,
        procedure_names: Vec<String>,
    ) -> io::Result<Self> {
        let (segments, segment) = Segments::start(directory.to_owned(), partition, segment_bytes, procedure_names)?;
        Ok(Self {
            segments,
            segment,
            offset: DIRECT_IO_ALIGN_BYTES as u64,
            sequence: 0,
            current: Group::new(),
            in_flight: None,
            spare: Some(Group::new()),
            groups_written: 0,
            bytes_written: 0,
        })
    }

    /// Adds the record of a transaction that wrote; its tuples are to be marked with the flag returned.
    pub fn append(&mut self, procedure: u16, params: &[u8]) -> u8 {
        let group = &mut self.current;
        group.buffer.extend_from_slice(&(2 + params.len() as u32).to_le_bytes());
        group.buffer.extend_from_slice(&procedure.to_le_bytes());
        group.buffer.extend_from_slice(params);
        group.records += 1;
        self.sequence += 1;
        group.flag()
    }

    /// Bytes of the group under construction, with the replies that wait for it; 0 while it has no record.
    pub fn group_bytes(&self) -> usize {
        if self.current.records == 0 { 0 } else { self.current.buffer.len() + self.current.frames.len() }
    }

    /// Who waits for a reply.
    pub fn held_origins(&self) -> impl Iterator<Item = &Origin> {
        self.in_flight
            .iter()
            .chain(std::iter::once(&self.current))
            .flat_map(|group| &group.replies)
            .map(|held| &held.origin)
    }

    /// Remembers a tuple that carries the current group's flag.
    pub fn mark(&mut self, table: TableId, tuple: TupleId) {
        self.current.marked.push((table, tuple));
    }

    /// Remembers that the current group deletes a tuple.
    pub fn mark_deleted(&mut self) {
        self.current.deleted = true;
    }

    /// Remembers where a tuple with `flags` of groups under way went.
    pub fn moved(&mut self, table: TableId, tuple: TupleId, flags: u8) {
        if flags & self.current.flag() != 0 {
            self.current.marked.push((table, tuple));
        }
        if let Some(group) = &mut self.in_flight
            && flags & group.flag() != 0
        {
            group.marked.push((table, tuple));
        }
    }

    /// Flags of the groups under way that delete tuples.
    #[inline]
    pub fn unsynced_deletes(&self) -> u8 {
        let current = if self.current.deleted { self.current.flag() } else { 0 };
        current | self.in_flight.as_ref().filter(|group| group.deleted).map_or(0, Group::flag)
    }

    /// Keeps the reply of a transaction that wrote (`unsynced` = 0), or that saw tuples with the flags `unsynced`, until it may be sent.
    pub fn hold(&mut self, unsynced: u8, origin: Origin, frame: &[u8]) {
        match &mut self.in_flight {
            Some(group) if unsynced != 0 && unsynced & self.current.flag() == 0 => group.hold(origin, frame),
            _ => self.current.hold(origin, frame),
        }
    }

    /// Starts to write the current group when there is one and no other is under way.
    ///
    /// # Errors
    /// When the next segment cannot be created.
    pub fn flush(&mut self, ring: &mut IoRing, tag: u64) -> io::Result<()> {
        if self.in_flight.is_some() || self.current.records == 0 || !ring.has_room() {
            return Ok(());
        }
        // Everything that can fail comes before the group is taken: its replies must stay where `abandon` finds them.
        let bytes = self.current.buffer.len().next_multiple_of(DIRECT_IO_ALIGN_BYTES) as u64;
        let filled_waits = !self.segment.filled && self.segments.is_ready();
        if filled_waits || self.offset + bytes > self.segment.bytes {
            self.next_segment(bytes)?;
        }
        let next_number = self.current.number + 1;
        let mut next = self.spare.take().unwrap_or_else(Group::new);
        next.reset(next_number);
        let mut group = std::mem::replace(&mut self.current, next);
        self.seal(&mut group);
        let buffer = std::mem::replace(&mut group.buffer, AlignedBuf::new(DIRECT_IO_ALIGN_BYTES));
        ring.write(&self.segment.file, self.offset, vec![buffer], true, tag);
        self.offset += bytes;
        self.bytes_written += bytes;
        self.in_flight = Some(group);
        Ok(())
    }

    fn seal(&self, group: &mut Group) {
        let bytes = group.buffer.len() as u32;
        let first_sequence = self.sequence - u64::from(group.records);
        let header = &mut group.buffer[..GROUP_HEADER_BYTES];
        header[0..4].copy_from_slice(&GROUP_MAGIC);
        header[4..8].copy_from_slice(&bytes.to_le_bytes());
        header[8..16].copy_from_slice(&group.number.to_le_bytes());
        header[16..24].copy_from_slice(&first_sequence.to_le_bytes());
        header[24..28].copy_from_slice(&group.records.to_le_bytes());
        header[28..32].fill(0);
        let checksum = crc32c::crc32c(&group.buffer);
        group.buffer[28..32].copy_from_slice(&checksum.to_le_bytes());
        let padded = group.buffer.len().next_multiple_of(DIRECT_IO_ALIGN_BYTES);
        group.buffer.resize(padded, 0);
    }

    fn next_segment(&mut self, group_bytes: u64) -> io::Result<()> {
        let mut segment = self.segments.next(&self.segment, self.offset)?;
        segment.grow(group_bytes + DIRECT_IO_ALIGN_BYTES as u64)?;
        self.segment = segment;
        self.offset = DIRECT_IO_ALIGN_BYTES as u64;
        Ok(())
    }

    /// The group whose write completed, with the flag to clear; give it back with [`CommandLog::recycle`].
    pub fn complete(&mut self, buffer: AlignedBuf) -> Option<(Group, u8)> {
        let mut group = self.in_flight.take()?;
        group.buffer = buffer;
        self.groups_written += 1;
        let flag = group.flag();
        Some((group, flag))
    }

    /// Takes back a group's memory, unless a burst has made it large: it is not part of the memory budget, so it stays small.
    pub fn recycle(&mut self, group: Group) {
        let large = group.buffer.capacity().max(group.frames.capacity()) > KEPT_GROUP_BYTES;
        self.spare = (!large).then_some(group);
    }

    /// All replies that wait, after a failure.
    pub fn abandon(&mut self) -> Vec<Origin> {
        let origins = self.held_origins().copied().collect();
        self.in_flight = None;
        self.current.reset(self.current.number);
        origins
    }

    /// Whether a group is being written or waits to be.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.current.records == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(token: u64) -> Origin {
        Origin { connection: 0, epoch: 0, token }
    }

    fn finish(log: &mut CommandLog, ring: &mut IoRing) -> (Vec<u64>, u8) {
        let mut done = Vec::new();
        while done.is_empty() {
            ring.wait(&mut done).unwrap();
        }
        let mut completion = done.remove(0);
        completion.result.unwrap();
        let (group, flag) = log.complete(completion.buffers.remove(0)).unwrap();
        let tokens = group.replies().map(|(origin, _)| origin.token).collect();
        log.recycle(group);
        (tokens, flag)
    }

    #[test]
    fn replies_wait_for_the_group_that_they_depend_on() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut ring = IoRing::new(4).unwrap();
        let mut log = CommandLog::create(dir.path(), 0, 1 << 20, vec!["p".to_owned()]).unwrap();
        let first = log.append(0, b"one");
        log.hold(0, origin(1), b"frame");
        log.flush(&mut ring, 0).unwrap();
        let second = log.append(0, b"two");
        assert_ne!(first, second);
        log.hold(0, origin(2), b"frame");
        log.hold(first, origin(3), b"saw the first");
        log.hold(first | second, origin(4), b"saw both");
        log.flush(&mut ring, 0).unwrap();
        assert_eq!(finish(&mut log, &mut ring), (vec![1, 3], first));
        log.flush(&mut ring, 0).unwrap();
        assert_eq!(finish(&mut log, &mut ring), (vec![2, 4], second));
        assert!(log.is_idle());
    }

    #[test]
    fn groups_on_disk_are_whole_and_checksummed_and_segments_follow_each_other() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut ring = IoRing::new(4).unwrap();
        let mut log = CommandLog::create(dir.path(), 2, 16 << 10, vec!["a".to_owned()]).unwrap();
        for n in 0..5u8 {
            log.append(7, &[n; 5000]);
            log.flush(&mut ring, 0).unwrap();
            finish(&mut log, &mut ring);
        }
        let mut segments: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
        segments.sort();
        let groups = |path: &std::path::PathBuf| std::fs::read(path).unwrap()[4096..].starts_with(&GROUP_MAGIC);
        assert_eq!(segments.iter().filter(|path| groups(path)).count(), 5, "one 8 KiB group fits a segment of 16 KiB");
        let bytes = std::fs::read(&segments[3]).unwrap();
        let group = &bytes[4096..];
        let used = u32::from_le_bytes(group[4..8].try_into().unwrap()) as usize;
        assert_eq!((&group[..4], used), (GROUP_MAGIC.as_slice(), 32 + 6 + 5000));
        let mut unsummed = group[..used].to_vec();
        unsummed[28..32].fill(0);
        assert_eq!(crc32c::crc32c(&unsummed).to_le_bytes(), group[28..32]);
        assert_eq!(&group[16..24], 3u64.to_le_bytes(), "sequence of the group's first record");
        assert_eq!(group[38], 3);
    }
}
