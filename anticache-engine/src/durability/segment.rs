//! Segment files of the command log, prepared ahead of their use by a thread of their own.
//!
//! A synced write costs one rotation of a disk only when the file's blocks were written before: the first write to a block that `fallocate`
//! merely reserved makes the file system commit a transaction of its own with the data, which is two or three seeks more. So every segment is filled
//! with zeros beforehand, as InnoDB does with its redo log. When the log is faster than that (bulk loading), it takes a segment as it is and goes on
//! to the next one as soon as a filled one is ready.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::io::{DIRECT_IO_ALIGN_BYTES, aligned_buf, open_direct};

const MAGIC: [u8; 4] = *b"ACLS";
const VERSION: u32 = 1;
const FILL_BYTES: usize = 1 << 20;

/// One file of the log.
#[derive(Debug)]
pub struct Segment {
    /// The open file.
    pub file: Arc<File>,
    /// Place in the order of segments, from 0.
    pub number: u64,
    /// Size; what lies beyond is not reserved.
    pub bytes: u64,
    /// Whether every block was written once.
    pub filled: bool,
}

impl Segment {
    /// Makes it hold at least `bytes`.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn grow(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > self.bytes {
            rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, bytes).map_err(|error| {
                let error = io::Error::from(error);
                io::Error::new(error.kind(), format!("command log: segment {} of {bytes} bytes: {error}", self.number))
            })?;
            self.bytes = bytes;
            self.filled = false;
        }
        Ok(())
    }
}

/// Makes the segments of one log.
#[derive(Debug, Clone)]
struct Maker {
    directory: PathBuf,
    partition: u32,
    bytes: u64,
    procedure_names: Vec<String>,
    /// Set by the log when it needs the segment at once.
    hurry: Arc<AtomicBool>,
}

impl Maker {
    fn make(&self, number: u64) -> io::Result<Segment> {
        let path = self.directory.join(format!("command-{:04}-{number:08}.log", self.partition));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("command log {}: {error}", path.display()));
        let file = open_direct(&path).map_err(named)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, self.bytes)
            .map_err(|error| named(error.into()))?;
        let filled = self.fill(&file).map_err(named)?;
        let header = self.header(number)?;
        rustix::io::pwrite(&file, &header, 0).map_err(|error| named(error.into()))?;
        file.sync_all().map_err(named)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(Segment { file: Arc::new(file), number, bytes: self.bytes, filled })
    }

    /// Writes zeros over the whole file; false when the log could not wait for the end of it.
    fn fill(&self, file: &File) -> io::Result<bool> {
        let zeros = aligned_buf(FILL_BYTES.min(self.bytes as usize));
        let mut offset = 0;
        while offset < self.bytes {
            if self.hurry.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let bytes = zeros.len().min((self.bytes - offset) as usize);
            offset += rustix::io::pwrite(file, &zeros[..bytes], offset)? as u64;
        }
        Ok(true)
    }

    fn header(&self, number: u64) -> io::Result<crate::io::AlignedBuf> {
        let names = serde_json::to_vec(&self.procedure_names).map_err(io::Error::other)?;
        let mut text = Vec::with_capacity(DIRECT_IO_ALIGN_BYTES);
        text.extend_from_slice(&MAGIC);
        text.extend_from_slice(&VERSION.to_le_bytes());
        text.extend_from_slice(&self.partition.to_le_bytes());
        text.extend_from_slice(&number.to_le_bytes());
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
}

/// Procedure names of a segment whose header is whole and of this partition and number; else None.
pub(super) fn parse_header(bytes: &[u8], partition: u32, number: u64) -> Option<Vec<String>> {
    let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let names_end = 24 + short(20)? as usize;
    let whole = bytes.get(..4)? == MAGIC
        && short(4)? == VERSION
        && short(8)? == partition
        && bytes.get(12..20)? == number.to_le_bytes()
        && short(names_end)? == crc32c::crc32c(bytes.get(..names_end)?);
    whole.then(|| serde_json::from_slice(&bytes[24..names_end]).ok())?
}

enum Order {
    /// Make the segment of this number.
    Make(u64),
    /// Give back what a segment reserved beyond its use.
    Trim(Arc<File>, u64),
}

/// The segments to come: one is always being prepared.
#[derive(Debug)]
pub struct Segments {
    maker: Maker,
    orders: Option<Sender<Order>>,
    made: Receiver<io::Result<Segment>>,
    ready: Option<io::Result<Segment>>,
    /// Whether a segment was ordered that `made` has not delivered.
    ordered: bool,
    thread: Option<JoinHandle<()>>,
}

impl Segments {
    /// Makes segment 0 and starts to prepare the next one.
    ///
    /// # Errors
    /// When the first segment cannot be made (a full disk is noticed here: segments are reserved), or the thread not started.
    pub fn start(
        directory: PathBuf,
        partition: u32,
        bytes: u64,
        procedure_names: Vec<String>,
    ) -> io::Result<(Self, Segment)> {
        let bytes = bytes.next_multiple_of(DIRECT_IO_ALIGN_BYTES as u64);
        let maker = Maker { directory, partition, bytes, procedure_names, hurry: Arc::default() };
        let first = maker.make(0)?;
        let (orders, ordered) = channel();
        let (deliver, made) = channel();
        let worker = maker.clone();
        let thread = std::thread::Builder::new().name(format!("log-{partition}")).spawn(move || {
            for order in ordered {
                match order {
                    // Nobody listens any more when the log is gone: the orders end as well.
                    Order::Make(number) => drop(deliver.send(worker.make(number))),
                    // A segment that keeps its reserved rest only wastes space.
                    Order::Trim(file, bytes) => drop(file.set_len(bytes)),
                }
            }
        })?;
        let mut segments =
            Self { maker, orders: Some(orders), made, ready: None, ordered: false, thread: Some(thread) };
        segments.prepare(1);
        Ok((segments, first))
    }

    fn prepare(&mut self, number: u64) {
        self.ordered = true;
        self.order(Order::Make(number));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only after the sender was dropped.
            let _ = orders.send(order);
        }
    }

    /// Whether a filled segment waits to be taken.
    pub fn is_ready(&mut self) -> bool {
        if self.ready.is_none()
            && let Ok(made) = self.made.try_recv()
        {
            self.ready = Some(made);
            self.ordered = false;
        }
        matches!(&self.ready, Some(Ok(segment)) if segment.filled)
    }

    /// The segment that follows `last`, of which `used_bytes` were used; waits only when it is not ready, and then not for its filling.
    ///
    /// # Errors
    /// When it cannot be made, a full disk for example; tried once more if it could not be made ahead.
    pub fn next(&mut self, last: &Segment, used_bytes: u64) -> io::Result<Segment> {
        if !self.is_ready() && self.ordered {
            self.maker.hurry.store(true, Ordering::Relaxed);
            self.ready = self.made.recv().ok();
            self.ordered = false;
            self.maker.hurry.store(false, Ordering::Relaxed);
        }
        let segment = match self.ready.take() {
            Some(Ok(segment)) => segment,
            Some(Err(_)) | None => self.maker.make(last.number + 1)?,
        };
        self.prepare(segment.number + 1);
        if used_bytes < last.bytes {
            self.order(Order::Trim(Arc::clone(&last.file), used_bytes));
        }
        Ok(segment)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.maker.hurry.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(directory: &std::path::Path, bytes: u64) -> (Segments, Segment) {
        Segments::start(directory.to_owned(), 3, bytes, vec!["p".to_owned()]).unwrap()
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
            segment = segments.next(&segment, 4096).unwrap();
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
    fn a_log_in_a_hurry_gets_segments_that_are_not_filled() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (mut segments, mut segment) = start(directory.path(), 64 << 20);
        let mut unfilled = 0;
        for _ in 0..4 {
            segment = segments.next(&segment, 64 << 20).unwrap();
            unfilled += u32::from(!segment.filled);
        }
        assert_eq!(segment.number, 4);
        assert!(unfilled > 0, "64 MiB are not written between two calls");
        segment.grow(65 << 20).unwrap();
        assert_eq!(segment.file.metadata().unwrap().len(), 65 << 20);
    }

    #[test]
    fn a_segment_that_could_not_be_made_ahead_is_tried_again() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let place = directory.path().join("log");
        std::fs::create_dir(&place).unwrap();
        let (mut segments, segment) = start(&place, 1 << 20);
        while segments.ready.is_none() {
            segments.is_ready();
        }
        let first = segments.next(&segment, 1 << 20).unwrap();
        std::fs::rename(&place, directory.path().join("gone")).unwrap();
        // The segment after may have been begun before the directory went: take it, and the one after it cannot be made.
        let failed = segments.next(&first, 1 << 20).and_then(|second| segments.next(&second, 1 << 20));
        assert!(failed.unwrap_err().to_string().contains("command log"));
        std::fs::rename(directory.path().join("gone"), &place).unwrap();
        let number = segments.next(&first, 1 << 20).unwrap().number;
        assert!(number >= 2, "{number}");
    }
}
