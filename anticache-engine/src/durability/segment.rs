//! Segment files of the command log, prepared ahead of their use by a thread of their own.
//!
//! A synced write costs one rotation of a disk only when the file's blocks were written before: the first write to a block that `fallocate`
//! merely reserved makes the file system commit a transaction of its own with the data, which is two or three seeks more. So every segment is filled
//! with zeros beforehand, as InnoDB does with its redo log. A bulk load, whose groups are large, is better off without: the filling rests while they
//! come. When the log reaches the end of its segment before the next one is filled, it takes that one as it is and goes on to another as soon as a
//! filled one is ready; so does a log that goes on after recovery. On a simulated disk the same work is done at once by the thread that asks for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::io::files::{DiskFile, Files};
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES, aligned_buf};
use crate::secret::new_nonce;

const MAGIC: [u8; 4] = *b"ACLS";
const VERSION: u32 = 4;
const FIXED_HEADER_BYTES: usize = 52;
const RESUMED: u32 = 1;
const FILL_BYTES: usize = 1 << 20;
/// Longest group of a segment that has not begun with a longer one; of small segments a quarter. Recovery reads so much behind the last group.
const LONGEST_GROUP_BYTES: u64 = 8 << 20;
/// The filling goes on when no large group has come for so long.
const REST: Duration = Duration::from_millis(100);

/// Name of a segment file.
pub(super) fn file_name(partition: u32, number: u64) -> String {
    format!("command-{partition:04}-{number:08}.log")
}

/// Numbers of the segments of a partition among the `names` of a directory, ascending.
pub(super) fn numbers(names: &[String], partition: u32) -> Vec<u64> {
    let prefix = format!("command-{partition:04}-");
    let digits = names.iter().filter_map(|name| name.strip_prefix(&prefix)?.strip_suffix(".log"));
    let mut numbers: Vec<u64> = digits.filter_map(|digits| digits.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// What the header of a segment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) partition: u32,
    pub(super) number: u64,
    /// No record with a lower sequence stands in the segment. In a resumed one it is exactly the sequence at which the log goes on.
    pub(super) first_sequence: u64,
    /// Whether the log was started anew with this segment: what segments before it hold from `first_sequence` on does not count.
    pub(super) resumed: bool,
    /// Stands in every group of the segment, and nobody outside knows it: parameters that look like a group are none.
    pub(super) salt: u64,
    /// No group of the segment is longer, padding included: behind a damaged one a whole one would begin within so many bytes.
    pub(super) longest_group_bytes: u64,
    pub(super) procedure_names: Vec<String>,
}

impl Header {
    fn to_bytes(&self) -> io::Result<AlignedBuf> {
        let names = serde_json::to_vec(&self.procedure_names).map_err(io::Error::other)?;
        let mut text = Vec::with_capacity(DIRECT_IO_ALIGN_BYTES);
        text.extend_from_slice(&MAGIC);
        text.extend_from_slice(&VERSION.to_le_bytes());
        text.extend_from_slice(&self.partition.to_le_bytes());
        text.extend_from_slice(&self.number.to_le_bytes());
        text.extend_from_slice(&self.first_sequence.to_le_bytes());
        text.extend_from_slice(&(u32::from(self.resumed) * RESUMED).to_le_bytes());
        text.extend_from_slice(&self.salt.to_le_bytes());
        text.extend_from_slice(&self.longest_group_bytes.to_le_bytes());
        text.extend_from_slice(&(names.len() as u32).to_le_bytes());
        text.extend_from_slice(&names);
        text.extend_from_slice(&crc32c::crc32c(&text).to_le_bytes());
        let mut header = aligned_buf(DIRECT_IO_ALIGN_BYTES);
        if text.len() > header.len() {
            let message = format!("procedure names take {} bytes; at most {} fit", text.len(), header.len());
            return Err(io::Error::other(message));
        }
        header[..text.len()].copy_from_slice(&text);
        Ok(header)
    }

    /// The header at the beginning of a segment, when it is whole; `Err` = whole, but of another version, which it names.
    pub(super) fn parse(bytes: &[u8]) -> Option<Result<Self, u32>> {
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes.get(..4)? != MAGIC {
            return None;
        }
        let version = short(4)?;
        if version != VERSION {
            return Some(Err(version));
        }
        let names_end = FIXED_HEADER_BYTES.checked_add(short(48)? as usize)?;
        if short(names_end)? != crc32c::crc32c(bytes.get(..names_end)?) {
            return None;
        }
        Some(Ok(Self {
            partition: short(8)?,
            number: long(12)?,
            first_sequence: long(20)?,
            resumed: short(28)? & RESUMED != 0,
            salt: long(32)?,
            longest_group_bytes: long(40)?,
            procedure_names: serde_json::from_slice(&bytes[FIXED_HEADER_BYTES..names_end]).ok()?,
        }))
    }
}

/// One file of the log.
#[derive(Debug)]
pub struct Segment {
    /// The open file.
    pub file: Arc<dyn DiskFile>,
    /// Place in the order of segments, from 0.
    pub number: u64,
    /// Size; what lies beyond is not reserved.
    pub bytes: u64,
    /// Whether every block was written once.
    pub filled: bool,
    header: Header,
}

impl Segment {
    /// What its groups carry.
    pub fn salt(&self) -> u64 {
        self.header.salt
    }

    /// Whether a group of `bytes` may be written at `offset`.
    pub fn admits(&self, offset: u64, bytes: u64) -> bool {
        offset + bytes <= self.bytes && bytes <= self.header.longest_group_bytes
    }

    /// Makes it, before anything else is in it, admit a first group of `bytes`. A crash may leave it without a header: none may follow it yet.
    ///
    /// # Errors
    /// When the disk is full, or does not write the header.
    fn admit(&mut self, bytes: u64) -> io::Result<()> {
        let end = DIRECT_IO_ALIGN_BYTES as u64 + bytes;
        if end > self.bytes {
            self.file.allocate(end)?;
            self.bytes = end;
            self.filled = false;
        }
        if bytes > self.header.longest_group_bytes {
            let header = Header { longest_group_bytes: bytes, ..self.header.clone() };
            self.file.write_all_at(&header.to_bytes()?, 0)?;
            self.file.sync()?;
            self.header = header;
        }
        Ok(())
    }
}

/// Where a log's segments lie and what is in each of them.
#[derive(Debug, Clone)]
pub struct Place {
    /// The disk.
    pub files: Arc<dyn Files>,
    /// The directory.
    pub directory: PathBuf,
    /// Whose log it is.
    pub partition: u32,
    /// Size of a segment; a multiple of [`DIRECT_IO_ALIGN_BYTES`].
    pub segment_bytes: u64,
    /// By procedure number.
    pub procedure_names: Vec<String>,
}

impl Place {
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.directory.join(file_name(self.partition, number))
    }
}

/// Makes the segments of one log.
#[derive(Debug, Clone)]
struct Maker {
    place: Place,
    /// Set by the log when it needs the segment at once.
    hurry: Arc<AtomicBool>,
    /// How many large groups the log has written.
    large_groups: Arc<AtomicU64>,
}

impl Maker {
    fn make(&self, number: u64, first_sequence: u64, resumed: bool) -> io::Result<Segment> {
        let Place { files, partition, segment_bytes, procedure_names, .. } = &self.place;
        let path = self.place.path(number);
        let page_bytes = DIRECT_IO_ALIGN_BYTES as u64;
        let make = || {
            let header = Header {
                partition: *partition,
                number,
                first_sequence,
                resumed,
                salt: self.salt(number)?,
                longest_group_bytes: LONGEST_GROUP_BYTES.min((segment_bytes / 4).next_multiple_of(page_bytes)),
                procedure_names: procedure_names.clone(),
            };
            let header_page = header.to_bytes()?;
            let file = files.create(&path)?;
            file.allocate(*segment_bytes)?;
            let filled = self.fill(&*file)?;
            file.write_all_at(&header_page, 0)?;
            file.sync()?;
            files.sync_dir(&self.place.directory)?;
            Ok(Segment { file, number, bytes: *segment_bytes, filled, header })
        };
        make().map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("command log {}: {error}", path.display()))
        })
    }

    /// Random; on a simulated disk, where all follows from the seed, one of the segment.
    fn salt(&self, number: u64) -> io::Result<u64> {
        if self.place.files.is_simulated() {
            return Ok(number << 32 | u64::from(self.place.partition) << 1 | 1);
        }
        let [first, ..] = *new_nonce()?.as_chunks::<8>().0 else { return Ok(0) };
        Ok(u64::from_le_bytes(first))
    }

    /// Writes zeros over the whole file, with rests as long as large groups come; false when the log could not wait for the end of it.
    fn fill(&self, file: &dyn DiskFile) -> io::Result<bool> {
        let segment_bytes = self.place.segment_bytes;
        let zeros = aligned_buf(FILL_BYTES.min(segment_bytes as usize));
        let (mut offset, mut large_groups) = (0, self.large_groups.load(Ordering::Relaxed));
        while offset < segment_bytes {
            if self.hurry.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let before = std::mem::replace(&mut large_groups, self.large_groups.load(Ordering::Relaxed));
            if large_groups != before {
                std::thread::park_timeout(REST);
                continue;
            }
            let bytes = zeros.len().min((segment_bytes - offset) as usize);
            file.write_all_at(&zeros[..bytes], offset)?;
            offset += bytes as u64;
        }
        Ok(true)
    }

    fn carry_out(&self, order: Order) -> Option<io::Result<Segment>> {
        match order {
            Order::Make { number, first_sequence } => return Some(self.make(number, first_sequence, false)),
            // A segment that keeps its reserved rest only wastes space.
            Order::Trim(file, bytes) => drop(file.set_len(bytes)),
            Order::RemoveBefore(number) => {
                if let Err(error) = remove_before(&self.place, number) {
                    let directory = self.place.directory.display();
                    eprintln!(
                        "anticached: command log {directory}: segments before {number} are no longer needed and cannot be removed: {error}"
                    );
                }
            }
        }
        None
    }
}

/// Removes the segments before `number`, oldest first.
fn remove_before(place: &Place, number: u64) -> io::Result<()> {
    let mut old = numbers(&place.files.list(&place.directory)?, place.partition);
    old.retain(|&segment| segment < number);
    for &segment in &old {
        place.files.remove(&place.path(segment))?;
    }
    if old.is_empty() { Ok(()) } else { place.files.sync_dir(&place.directory) }
}

/// Gives back what an earlier process has reserved and not used: what lies behind the `end` of its last group, in that segment and those behind it.
/// From the back, each durably before the next: what goes may be whole groups that recovery has given up, and a crash must not leave one of them
/// behind a segment that has lost its own.
pub(super) fn trim_behind(place: &Place, end: Option<(u64, u64)>) -> io::Result<()> {
    for segment in numbers(&place.files.list(&place.directory)?, place.partition).into_iter().rev() {
        let used_bytes = match end {
            Some((last, _)) if segment < last => continue,
            Some((last, end)) if segment == last => end,
            _ => DIRECT_IO_ALIGN_BYTES as u64,
        };
        let file = place.files.open(&place.path(segment))?;
        if file.len()? > used_bytes {
            file.set_len(used_bytes)?;
            file.sync()?;
        }
    }
    Ok(())
}

/// Makes durable the segments before `number` and their names: after a process died, its last write, or its last segment, may be there to read and
/// not be durable.
pub(super) fn sync_before(place: &Place, number: u64) -> io::Result<()> {
    let named = |path: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("command log {}: {error}", path.display()))
    };
    for segment in numbers(&place.files.list(&place.directory)?, place.partition) {
        let path = place.path(segment);
        if segment < number {
            place.files.open(&path).and_then(|file| file.sync()).map_err(|error| named(&path, error))?;
        }
    }
    place.files.sync_dir(&place.directory)
}

enum Order {
    /// Make a segment.
    Make { number: u64, first_sequence: u64 },
    /// Give back what a segment reserved beyond its use.
    Trim(Arc<dyn DiskFile>, u64),
    /// Remove the segments before this one.
    RemoveBefore(u64),
}

/// The thread that carries out orders.
#[derive(Debug)]
struct Worker {
    orders: Option<Sender<Order>>,
    made: Receiver<io::Result<Segment>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(maker: Maker) -> io::Result<Self> {
        let (orders, ordered) = channel();
        let (deliver, made) = channel();
        let name = format!("log-{}", maker.place.partition);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            for order in ordered {
                if let Some(made) = maker.carry_out(order) {
                    // Nobody listens any more when the log is gone: the orders end as well.
                    let _ = deliver.send(made);
                }
            }
        })?;
        Ok(Self { orders: Some(orders), made, thread: Some(thread) })
    }
}

/// The segments to come: one is always being prepared.
#[derive(Debug)]
pub struct Segments {
    maker: Maker,
    /// None where orders are carried out at once.
    worker: Option<Worker>,
    ready: Option<io::Result<Segment>>,
    /// Whether a segment was ordered that the worker has not delivered.
    ordered: bool,
}

impl Segments {
    /// Makes the first segment and starts to prepare the next one. Where a log is `resumed`, clients wait for the first one: it is not filled, and the
    /// log goes on to the next one when that is.
    ///
    /// # Errors
    /// When the first segment cannot be made (a full disk is noticed here: segments are reserved), or the thread not started.
    pub fn start(mut place: Place, number: u64, first_sequence: u64, resumed: bool) -> io::Result<(Self, Segment)> {
        place.segment_bytes = place.segment_bytes.next_multiple_of(DIRECT_IO_ALIGN_BYTES as u64);
        let simulated = place.files.is_simulated();
        let hurry = Arc::new(AtomicBool::new(resumed && !simulated));
        let maker = Maker { place, hurry, large_groups: Arc::default() };
        let first = maker.make(number, first_sequence, resumed)?;
        maker.hurry.store(false, Ordering::Relaxed);
        let worker = if simulated { None } else { Some(Worker::start(maker.clone())?) };
        let mut segments = Self { maker, worker, ready: None, ordered: false };
        segments.prepare(number + 1, first_sequence);
        Ok((segments, first))
    }

    fn prepare(&mut self, number: u64, first_sequence: u64) {
        self.ordered = self.worker.is_some();
        self.order(Order::Make { number, first_sequence });
    }

    fn order(&mut self, order: Order) {
        match &self.worker {
            // The thread ends only after the sender was dropped.
            Some(Worker { orders: Some(orders), .. }) => drop(orders.send(order)),
            _ => self.ready = self.maker.carry_out(order).or(self.ready.take()),
        }
    }

    /// Whether a filled segment waits to be taken.
    pub fn is_ready(&mut self) -> bool {
        if let Some(worker) = &self.worker
            && self.ready.is_none()
            && let Ok(made) = worker.made.try_recv()
        {
            self.ready = Some(made);
            self.ordered = false;
        }
        matches!(&self.ready, Some(Ok(segment)) if segment.filled)
    }

    /// The log has written a large group: the disk has more to do than to fill segments.
    pub fn note_large_group(&self) {
        self.maker.large_groups.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the segment under preparation delivered as it is.
    fn hurry(&self) {
        self.maker.hurry.store(true, Ordering::Relaxed);
        if let Some(Worker { thread: Some(thread), .. }) = &self.worker {
            thread.thread().unpark();
        }
    }

    /// The segment that follows `last`, of which `used_bytes` were used; waits only when it is not ready, and then not for its filling. The first
    /// group that goes into it has `group_bytes`, and its first record is `first_sequence`.
    ///
    /// # Errors
    /// When it cannot be made, a full disk for example; tried once more if it could not be made ahead.
    pub fn next(
        &mut self,
        last: &Segment,
        used_bytes: u64,
        first_sequence: u64,
        group_bytes: u64,
    ) -> io::Result<Segment> {
        if !self.is_ready()
            && self.ordered
            && let Some(worker) = &self.worker
        {
            self.hurry();
            self.ready = worker.made.recv().ok();
            self.ordered = false;
            self.maker.hurry.store(false, Ordering::Relaxed);
        }
        let mut segment = match self.ready.take() {
            Some(Ok(segment)) => segment,
            Some(Err(_)) | None => self.maker.make(last.number + 1, first_sequence, false)?,
        };
        if let Err(error) = segment.admit(group_bytes) {
            let what = format!("command log: segment {} for a group of {group_bytes} bytes", segment.number);
            self.ready = Some(Ok(segment));
            return Err(io::Error::new(error.kind(), format!("{what}: {error}")));
        }
        self.prepare(segment.number + 1, first_sequence);
        if used_bytes < last.bytes {
            self.order(Order::Trim(Arc::clone(&last.file), used_bytes));
        }
        Ok(segment)
    }

    /// Waits for the segment under preparation; whether it is filled.
    #[cfg(test)]
    pub(super) fn wait_until_made(&mut self) -> bool {
        while self.ready.is_none() {
            self.is_ready();
        }
        self.is_ready()
    }

    /// Removes the segments before `number`, when there is time.
    pub fn remove_before(&mut self, number: u64) {
        self.order(Order::RemoveBefore(number));
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.hurry();
        if let Some(Worker { orders, thread, .. }) = &mut self.worker {
            *orders = None;
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(directory: &Path, segment_bytes: u64) -> (Segments, Segment) {
        let files = Arc::new(crate::io::files::KernelFiles::new());
        let (directory, procedure_names) = (directory.to_owned(), vec!["p".to_owned()]);
        Segments::start(Place { files, directory, partition: 3, segment_bytes, procedure_names }, 0, 0, false).unwrap()
    }

    #[test]
    fn segments_are_filled_ahead_and_follow_each_other() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (mut segments, mut segment) = start(directory.path(), 3 << 20);
        assert!(segment.filled);
        for number in 1..5 {
            while !segments.is_ready() {
                std::thread::yield_now();
            }
            segment = segments.next(&segment, 4096, number, 4096).unwrap();
            assert_eq!((segment.number, segment.bytes, segment.filled), (number, 3 << 20, true));
        }
        drop(segments);
        let trimmed = directory.path().join("command-0003-00000002.log").metadata().unwrap().len();
        assert_eq!(trimmed, 4096, "what was reserved and not used is given back");
        let bytes = std::fs::read(directory.path().join("command-0003-00000004.log")).unwrap();
        assert_eq!((&bytes[..4], bytes.len()), (b"ACLS".as_slice(), 3 << 20));
        assert!(bytes[4096..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_resumed_log_begins_before_a_segment_is_filled() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (segments, segment) = start(directory.path(), 3 << 20);
        drop(segments);
        let files = Arc::new(crate::io::files::KernelFiles::new());
        let (directory, procedure_names) = (directory.path().to_owned(), Vec::new());
        let place = Place { files, directory, partition: 3, segment_bytes: 3 << 20, procedure_names };
        let (mut segments, resumed) = Segments::start(place, segment.number + 2, 5, true).unwrap();
        assert_eq!((resumed.number, resumed.bytes, resumed.filled), (2, 3 << 20, false));
        while !segments.is_ready() {
            std::thread::yield_now();
        }
        let next = segments.next(&resumed, 4096, 5, 4096).unwrap();
        assert_eq!((next.number, next.filled), (3, true));
    }

    #[test]
    fn a_log_in_a_hurry_gets_segments_that_are_not_filled() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (mut segments, mut segment) = start(directory.path(), 64 << 20);
        let mut unfilled = 0;
        for _ in 0..4 {
            segment = segments.next(&segment, 64 << 20, 0, 4096).unwrap();
            unfilled += u32::from(!segment.filled);
        }
        assert_eq!(segment.number, 4);
        assert!(unfilled > 0, "64 MiB are not written between two calls");
    }

    #[test]
    fn a_group_longer_than_a_segments_others_begins_one_that_says_so() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (mut segments, first) = start(directory.path(), 1 << 20);
        assert!(first.admits(4096, 256 << 10) && !first.admits(4096, 260 << 10) && !first.admits(1 << 20, 4096));
        for (number, group_bytes, file_bytes) in
            [(1, 256 << 10, 1 << 20), (2, 260 << 10, 1 << 20), (3, 2 << 20, (2 << 20) + 4096)]
        {
            let segment = segments.next(&first, 4096, 0, group_bytes).unwrap();
            assert!(segment.admits(4096, group_bytes));
            let bytes = std::fs::read(directory.path().join(file_name(3, number))).unwrap();
            let header = Header::parse(&bytes).unwrap().unwrap();
            assert_eq!((header, bytes.len()), (segment.header, file_bytes));
        }
    }

    #[test]
    fn the_filling_rests_while_large_groups_come_and_goes_on_behind_them() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (mut segments, _) = start(directory.path(), 64 << 20);
        for _ in 0..600 {
            segments.note_large_group();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!segments.is_ready(), "zeros were written while large groups came");
        assert!(segments.wait_until_made(), "the filling goes on behind them");
    }

    #[test]
    fn a_segment_that_could_not_be_made_ahead_is_tried_again() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let place = directory.path().join("log");
        std::fs::create_dir(&place).unwrap();
        let (mut segments, segment) = start(&place, 1 << 20);
        segments.wait_until_made();
        let first = segments.next(&segment, 1 << 20, 0, 4096).unwrap();
        std::fs::rename(&place, directory.path().join("gone")).unwrap();
        // The segment after may have been begun before the directory went: take it, and the one after it cannot be made.
        let failed =
            segments.next(&first, 1 << 20, 1, 4096).and_then(|second| segments.next(&second, 1 << 20, 2, 4096));
        assert!(failed.unwrap_err().to_string().contains("command log"));
        std::fs::rename(directory.path().join("gone"), &place).unwrap();
        let number = segments.next(&first, 1 << 20, 3, 4096).unwrap().number;
        assert!(number >= 2, "{number}");
    }
}
