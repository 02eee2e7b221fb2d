//! The command log of a partition: procedure and parameters of every transaction that wrote, synced in groups (paper §2).
//!
//! A group collects records while the group before it is being written; the next write starts a little after that one is durable, so the group size
//! adapts to the disk ([`Gathering`]); where configured, not before a while has passed or enough bytes wait. Replies wait in their group.
//! Reads are not logged, and wait only when they saw a tuple whose last write is not durable yet: a reply never shows what a crash could take back.
//!
//! Segment file `command-PPPP-NNNNNNNN.log` (partition, number), made ahead (`segment.rs`), direct I/O, little-endian numbers:
//!
//! ```text
//! segment header, padded to 4096:  "ACLS" version:4 (4) partition:4 segment:8 first_sequence:8 flags:4 (bit 0: resumed)
//!                                  salt:8 longest group:8 length:4 JSON list of procedure names, checksum:4 over all before
//! group, padded to 4096:           "ACLG" bytes:4 group:8 first sequence:8 records:4 checksum:4 salt:8, then records;
//!                                  the checksum covers header (with this field zero) and records
//!   record:                        length:4 (of what follows) kind:1 procedure:2
//!                                  [kind 1: transaction:8 participants:2, then participant:2 each] parameters
//! ```
//!
//! Kind 0 is a single-partition transaction, kind 1 a multi-partition one with the partitions that take part. A record's sequence is its place among
//! all that were appended since the database was created. `first_sequence` of a header: no record before it stands in the segment.
//!
//! After a crash the log goes on in a new segment whose flag says `resumed` and whose `first_sequence` is where it goes on: whatever stands in segments
//! before it from that sequence on was given up by recovery and is never read again. Groups are counted from 0 again there. Segments that a snapshot has
//! made superfluous are removed from the front.
//!
//! Behind a torn group no whole one may follow, and what a torn group still holds of its parameters a client has chosen. So a segment has a random salt,
//! which its groups repeat: nobody else can have made what looks like a group of it. And its header says how long its groups are at most, so that it need
//! not be read to its end to see that none follows; a group that is longer begins a segment of its own, whose header says so.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::Group;
use super::segment::{Place, Segment, Segments, sync_before, trim_behind};
use crate::catalog::TableId;
use crate::io::files::Files;
use crate::io::ring::IoRing;
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES, GrowingBuf};
use crate::partition::Origin;
use crate::storage::tuples::TupleId;

/// A record of a single-partition transaction.
pub(super) const KIND_SINGLE: u8 = 0;
/// A record of a multi-partition transaction.
pub(super) const KIND_MULTI: u8 = 1;
const KEPT_GROUP_BYTES: usize = 1 << 20;
/// Groups of this size are a bulk load's. To write every block twice would then take more of the disk than the first write to a reserved block does:
/// on a disk that turns, a megabyte of zeros and the way there and back is as long as the file system's transaction; on flash, longer from 0.1 MB on.
const LARGE_GROUP_BYTES: u64 = 512 << 10;

/// How long groups collect records.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gathering {
    /// None is written before this has passed since its first record.
    pub interval: Duration,
    /// Nor before this share of the time that the last write took has passed since that ended. Those who were answered then can come with their next
    /// transaction; otherwise they would wait for the write that others have begun, and for their own: two turns of a disk instead of one. A disk that
    /// turns is at the same place only a turn later anyway.
    pub share: f64,
    /// With so many bytes waiting, replies included, a group is written in spite of both.
    pub bytes: usize,
}

/// Longest wait for a share of the last write's time: a single slow write must not make the next one late.
const LONGEST_GATHERING: Duration = Duration::from_millis(5);

/// The log of one partition.
pub struct CommandLog {
    segments: Segments,
    segment: Segment,
    offset: u64,
    sequence: u64,
    /// First sequences of the segments taken, oldest first, with the current one.
    segment_sequences: Vec<(u64, u64)>,
    current: Group,
    in_flight: Option<Group>,
    spare: Option<Group>,
    gathering: Gathering,
    /// When the write of the group in flight was begun.
    write_begun: Instant,
    /// When the next may be, by [`Gathering::share`].
    not_before: Option<Instant>,
    /// Groups made durable.
    pub groups_written: u64,
    /// Bytes written, padding included.
    pub bytes_written: u64,
}

impl CommandLog {
    /// Starts the log of a new database in `directory`.
    ///
    /// # Errors
    /// As [`Segments::start`].
    pub fn create(
        files: &Arc<dyn Files>,
        directory: &Path,
        partition: u32,
        segment_bytes: u64,
        procedure_names: Vec<String>,
    ) -> io::Result<Self> {
        let (files, directory) = (Arc::clone(files), directory.to_owned());
        Self::start(Place { files, directory, partition, segment_bytes, procedure_names }, 0, 0, false)
    }

    /// Goes on with a log that was read: in a new segment `next_segment`, which is above all that exist ([`super::log_reader::LogSummary`] knows it),
    /// with the record `next_sequence`. What the older segments hold before that is durable when this returns, and what they hold from there on is
    /// given up.
    ///
    /// # Errors
    /// As [`Segments::start`], and when what was read cannot be made durable.
    pub fn resume(
        files: &Arc<dyn Files>,
        directory: &Path,
        partition: u32,
        segment_bytes: u64,
        procedure_names: Vec<String>,
        next_segment: u64,
        next_sequence: u64,
    ) -> io::Result<Self> {
        let (files, directory) = (Arc::clone(files), directory.to_owned());
        let place = Place { files, directory, partition, segment_bytes, procedure_names };
        sync_before(&place, next_segment)?;
        Self::start(place, next_segment, next_sequence, true)
    }

    /// Gives back the space that an earlier process has reserved for records and not used, given where its last group ends
    /// ([`super::log_reader::LogSummary::end`]). Without it each restart would keep another segment or two until the next snapshot.
    ///
    /// # Errors
    /// What the system says; the log is as good as before.
    pub fn trim(files: &Arc<dyn Files>, directory: &Path, partition: u32, end: Option<(u64, u64)>) -> io::Result<()> {
        let (files, directory) = (Arc::clone(files), directory.to_owned());
        trim_behind(&Place { files, directory, partition, segment_bytes: 0, procedure_names: Vec::new() }, end)
    }

    fn start(place: Place, next_segment: u64, next_sequence: u64, resumed: bool) -> io::Result<Self> {
        let (segments, segment) = Segments::start(place, next_segment, next_sequence, resumed)?;
        Ok(Self {
            segment_sequences: vec![(segment.number, next_sequence)],
            segments,
            segment,
            offset: DIRECT_IO_ALIGN_BYTES as u64,
            sequence: next_sequence,
            current: Group::new(),
            in_flight: None,
            spare: Some(Group::new()),
            gathering: Gathering::default(),
            write_begun: Instant::now(),
            not_before: None,
            groups_written: 0,
            bytes_written: 0,
        })
    }

    /// Lets groups grow; at the beginning each is written as soon as the one before it is durable.
    #[must_use]
    pub fn gathering(mut self, gathering: Gathering) -> Self {
        self.gathering = gathering;
        self
    }

    /// Adds the record of a single-partition transaction that wrote; its tuples are to be marked with the flag returned.
    pub fn append(&mut self, procedure: u16, params: &[u8]) -> u8 {
        self.begin_record(KIND_SINGLE, procedure, params.len());
        self.end_record(params)
    }

    /// Adds the record of this partition's part in a multi-partition transaction, with the partitions that take part; as [`CommandLog::append`].
    pub fn append_multi(&mut self, procedure: u16, transaction: u64, participants: &[u16], params: &[u8]) -> u8 {
        self.begin_record(KIND_MULTI, procedure, 10 + 2 * participants.len() + params.len());
        let buffer = &mut self.current.buffer;
        buffer.extend_from_slice(&transaction.to_le_bytes());
        buffer.extend_from_slice(&(participants.len() as u16).to_le_bytes());
        for participant in participants {
            buffer.extend_from_slice(&participant.to_le_bytes());
        }
        self.end_record(params)
    }

    #[inline]
    fn begin_record(&mut self, kind: u8, procedure: u16, rest_bytes: usize) {
        let group = &mut self.current;
        if group.records == 0 && !self.gathering.interval.is_zero() {
            group.begun = Some(Instant::now());
        }
        group.buffer.extend_from_slice(&(3 + rest_bytes as u32).to_le_bytes());
        group.buffer.push(kind);
        group.buffer.extend_from_slice(&procedure.to_le_bytes());
    }

    #[inline]
    fn end_record(&mut self, params: &[u8]) -> u8 {
        let group = &mut self.current;
        group.buffer.extend_from_slice(params);
        group.records += 1;
        self.sequence += 1;
        group.flag()
    }

    /// Records appended since the database was created: the sequence of the next one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Every record below is durable.
    pub fn durable_sequence(&self) -> u64 {
        let in_flight = self.in_flight.as_ref().map_or(0, |group| group.records);
        self.sequence - u64::from(self.current.records) - u64::from(in_flight)
    }

    /// The segment taken last that begins at or before record `sequence`: that record is not in an older one.
    pub fn segment_holding(&self, sequence: u64) -> u64 {
        let begins = self.segment_sequences.iter().rev().find(|&&(_, first)| first <= sequence);
        begins.map_or(self.segment_sequences[0].0, |&(number, _)| number)
    }

    /// Removes segments that hold nothing but records below `sequence`, when there is time; never the current one.
    pub fn truncate_before(&mut self, sequence: u64) {
        if let Some(kept) = self.segment_sequences.iter().rposition(|&(_, first)| first <= sequence) {
            self.segment_sequences.drain(..kept);
            self.segments.remove_before(self.segment_sequences[0].0);
        }
    }

    /// Bytes of the group under construction, unless it has no record, and of all replies that wait, those for the group in flight included.
    pub fn group_bytes(&self) -> usize {
        let waiting_bytes = self.in_flight.as_ref().map_or(0, |group| group.frames.len());
        let current = &self.current;
        waiting_bytes + if current.records == 0 { 0 } else { current.buffer.len() + current.frames.len() }
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

    /// Remembers that a multi-partition transaction waits until everything that was appended so far is durable; false when it is. The group which
    /// that is then tells so ([`CommandLog::multi_in_flight`]). `written` = the write of the group in flight has completed.
    pub fn note_multi(&mut self, number: u64, written: bool) -> bool {
        let in_flight = self.in_flight.as_mut().filter(|_| !written);
        let group = if self.current.records > 0 { Some(&mut self.current) } else { in_flight };
        let Some(group) = group else { return false };
        group.last_multi = Some(number);
        true
    }

    /// The last multi-partition transaction that waits for the group which is being written.
    pub fn multi_in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().and_then(|group| group.last_multi)
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

    /// How long the group under construction has yet to wait before [`CommandLog::flush`] writes it; None while there is none, or another is
    /// under way, whose completion is the moment to look again.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        if self.in_flight.is_some() || self.current.records == 0 {
            return None;
        }
        if self.group_bytes() >= self.gathering.bytes {
            return Some(Duration::ZERO);
        }
        let ripe = self.current.begun.map(|begun| begun + self.gathering.interval);
        let until = ripe.into_iter().chain(self.not_before).max();
        Some(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now)))
    }

    /// Starts to write the current group when there is one that is due and no other is under way.
    ///
    /// # Errors
    /// When the next segment cannot be created.
    pub fn flush(&mut self, ring: &mut IoRing, tag: u64) -> io::Result<()> {
        if self.in_flight.is_some() || self.current.records == 0 {
            return Ok(());
        }
        let waits = (self.current.begun.is_some() || self.not_before.is_some())
            && self.due(Instant::now()).is_none_or(|due| !due.is_zero());
        if waits { Ok(()) } else { self.flush_now(ring, tag) }
    }

    /// As [`CommandLog::flush`], without waiting for the group to be due: for whoever cannot go on before it is durable.
    ///
    /// # Errors
    /// As [`CommandLog::flush`].
    pub fn flush_now(&mut self, ring: &mut IoRing, tag: u64) -> io::Result<()> {
        if self.in_flight.is_some() || self.current.records == 0 || !ring.has_room() {
            return Ok(());
        }
        // Everything that can fail comes before the group is taken: its replies must stay where `abandon` finds them.
        let bytes = self.current.buffer.len().next_multiple_of(DIRECT_IO_ALIGN_BYTES) as u64;
        let filled_waits = !self.segment.filled && self.segments.is_ready();
        if filled_waits || !self.segment.admits(self.offset, bytes) {
            self.next_segment(bytes)?;
        }
        if bytes >= LARGE_GROUP_BYTES {
            self.segments.note_large_group();
        }
        let next_number = self.current.number + 1;
        let mut next = self.spare.take().unwrap_or_else(Group::new);
        next.reset(next_number);
        let mut group = std::mem::replace(&mut self.current, next);
        group.seal(self.sequence - u64::from(group.records), self.segment.salt());
        let buffer = std::mem::replace(&mut group.buffer, GrowingBuf::new(DIRECT_IO_ALIGN_BYTES));
        ring.write(&self.segment.file, self.offset, vec![buffer.into()], true, tag);
        self.offset += bytes;
        self.bytes_written += bytes;
        self.in_flight = Some(group);
        (self.write_begun, self.not_before) = (Instant::now(), None);
        Ok(())
    }

    fn next_segment(&mut self, group_bytes: u64) -> io::Result<()> {
        let first_sequence = self.sequence - u64::from(self.current.records);
        let segment = self.segments.next(&self.segment, self.offset, first_sequence, group_bytes)?;
        self.segment_sequences.push((segment.number, first_sequence));
        self.segment = segment;
        self.offset = DIRECT_IO_ALIGN_BYTES as u64;
        Ok(())
    }

    /// The group whose write completed, with the flag to clear; give it back with [`CommandLog::recycle`].
    pub fn complete(&mut self, buffer: AlignedBuf) -> Option<(Group, u8)> {
        let mut group = self.in_flight.take()?;
        group.buffer = buffer.into_growing();
        self.groups_written += 1;
        if self.gathering.share > 0.0 {
            self.gather_from(Instant::now());
        }
        let flag = group.flag();
        Some((group, flag))
    }

    /// Lets the next group collect records for a share of the time that the write that has `ended` took.
    fn gather_from(&mut self, ended: Instant) {
        let took = ended.saturating_duration_since(self.write_begun);
        self.not_before = Some(ended + took.mul_f64(self.gathering.share).min(LONGEST_GATHERING));
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
    use super::super::group::{GROUP_HEADER_BYTES, GROUP_MAGIC};
    use super::*;

    fn origin(token: u64) -> Origin {
        Origin { connection: 0, epoch: 0, token }
    }

    fn kernel() -> Arc<dyn Files> {
        Arc::new(crate::io::files::KernelFiles::new())
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
        let mut ring = kernel().ring(4).unwrap();
        let mut log = CommandLog::create(&kernel(), dir.path(), 0, 1 << 20, vec!["p".to_owned()]).unwrap();
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
        let mut ring = kernel().ring(4).unwrap();
        let mut log = CommandLog::create(&kernel(), dir.path(), 2, 16 << 10, vec!["a".to_owned()]).unwrap();
        for n in 0..5u8 {
            log.append(7, &[n; 5000]);
            log.flush(&mut ring, 0).unwrap();
            finish(&mut log, &mut ring);
        }
        let mut segments: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
        segments.sort();
        let groups = |path: &std::path::PathBuf| std::fs::read(path).unwrap()[4096..].starts_with(&GROUP_MAGIC);
        assert_eq!(segments.iter().filter(|path| groups(path)).count(), 5, "one 8 KiB group fits a segment of 16 KiB");
        assert!(!groups(&segments[0]), "made before such a long group was known of");
        let bytes = std::fs::read(&segments[4]).unwrap();
        let group = &bytes[4096..];
        let used = u32::from_le_bytes(group[4..8].try_into().unwrap()) as usize;
        assert_eq!((&group[..4], used), (GROUP_MAGIC.as_slice(), GROUP_HEADER_BYTES + 7 + 5000));
        let mut unsummed = group[..used].to_vec();
        unsummed[28..32].fill(0);
        assert_eq!(crc32c::crc32c(&unsummed).to_le_bytes(), group[28..32]);
        assert_eq!(&group[16..24], 3u64.to_le_bytes(), "sequence of the group's first record");
        assert_eq!(group[32..40], bytes[32..40], "the segment's salt");
        assert_eq!(group[47], 3);
    }

    #[test]
    fn a_group_waits_for_its_time_or_its_bytes() {
        let files = crate::io::simulated::SimulatedDisk::new(1).files();
        files.create_dir_all(Path::new("/d")).unwrap();
        let mut ring = files.ring(4).unwrap();
        let log = CommandLog::create(&files, Path::new("/d"), 0, 64 << 10, vec!["p".to_owned()]).unwrap();
        let hour = Duration::from_secs(3600);
        let mut log = log.gathering(Gathering { interval: hour, share: 0.0, bytes: 4096 });
        assert_eq!(log.due(Instant::now()), None, "there is no group");
        log.append(0, &[0; 1000]);
        let now = Instant::now();
        assert!(log.due(now).is_some_and(|due| !due.is_zero() && due <= hour));
        assert_eq!(log.due(now + hour), Some(Duration::ZERO));
        log.flush(&mut ring, 0).unwrap();
        assert_eq!(ring.in_flight(), 0, "it is not due");
        log.append(0, &[0; 3000]);
        log.hold(0, origin(1), &[0; 100]);
        assert_eq!(log.due(now), Some(Duration::ZERO), "its bytes are enough");
        log.flush(&mut ring, 0).unwrap();
        assert_eq!((ring.in_flight(), log.due(now)), (1, None));
        log.append(0, &[0; 9000]);
        assert_eq!(log.due(now), None, "one is under way");
        assert_eq!(finish(&mut log, &mut ring).0, [1]);
        assert_eq!(log.due(now), Some(Duration::ZERO));
        log.flush(&mut ring, 0).unwrap();
        finish(&mut log, &mut ring);
        log.append(0, b"alone");
        log.flush_now(&mut ring, 0).unwrap();
        finish(&mut log, &mut ring);
        assert!(log.is_idle());
        assert_eq!(log.sequence(), 4);
    }

    #[test]
    fn the_segment_behind_large_groups_is_not_filled() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut ring = kernel().ring(4).unwrap();
        let mut log = CommandLog::create(&kernel(), dir.path(), 0, 64 << 20, vec!["p".to_owned()]).unwrap();
        let mut write = |log: &mut CommandLog, record_bytes: usize| {
            log.append(0, &vec![1; record_bytes]);
            log.flush(&mut ring, 0).unwrap();
            finish(log, &mut ring);
        };
        while log.segment.number == 0 {
            write(&mut log, LARGE_GROUP_BYTES as usize);
        }
        assert!(!log.segment.filled);
        assert!(log.segments.wait_until_made());
        write(&mut log, 1000);
        assert_eq!((log.segment.number, log.segment.filled), (2, true), "other groups do not wait for the end of it");
    }

    #[test]
    fn a_group_waits_for_a_share_of_the_write_before() {
        let files = crate::io::simulated::SimulatedDisk::new(1).files();
        files.create_dir_all(Path::new("/d")).unwrap();
        let mut ring = files.ring(4).unwrap();
        let log = CommandLog::create(&files, Path::new("/d"), 0, 64 << 10, vec!["p".to_owned()]).unwrap();
        let mut log = log.gathering(Gathering { interval: Duration::ZERO, share: 0.5, bytes: 4096 });
        log.append(0, b"the first of all");
        assert_eq!(log.due(Instant::now()), Some(Duration::ZERO), "there was no write before");
        log.flush(&mut ring, 0).unwrap();
        assert_eq!(ring.in_flight(), 1);
        finish(&mut log, &mut ring);
        assert!(log.not_before.is_some());
        let ms = Duration::from_millis;
        for (took, waits) in [(ms(8), ms(4)), (ms(4000), LONGEST_GATHERING)] {
            // A write that ends in an hour: the clock of the machine decides nothing.
            log.write_begun = Instant::now() + Duration::from_secs(3600);
            let ended = log.write_begun + took;
            log.gather_from(ended);
            assert_eq!(log.due(ended), None, "there is no group");
            log.append(0, b"next");
            assert_eq!(log.due(ended), Some(waits));
            assert_eq!(log.due(ended + ms(1)), Some(waits - ms(1)));
            assert_eq!(log.due(ended + waits), Some(Duration::ZERO));
            log.flush(&mut ring, 0).unwrap();
            assert_eq!(ring.in_flight(), 0, "it gathers");
            log.append(0, &[0; 5000]);
            assert_eq!(log.due(ended), Some(Duration::ZERO), "its bytes are enough");
            log.flush(&mut ring, 0).unwrap();
            finish(&mut log, &mut ring);
        }
    }
}
