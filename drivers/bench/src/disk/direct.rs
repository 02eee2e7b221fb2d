//! The machine's own disk without the engine: direct reads and synced writes of a scratch file, through an io_uring of this module's own.
//!
//! Invariant that makes the unsafe submission sound: from submission to completion the kernel may write to an operation's buffer; buffers and file live
//! in [`Reader`] and are neither moved (the heap blocks are not) nor dropped while operations are in flight: dropping it waits for them, and where waiting
//! fails the process is given up.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anticache_engine::io::{AlignedBuf, aligned_buf, aligned_bufs};
use anyhow::Context;
use io_uring::{IoUring, opcode, types};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::harness::thread_cpu_s;

const MEBIBYTE: usize = 1 << 20;
pub const PAGE: usize = 4096;
/// What a write's completion is known by: no slot of a read.
const WRITE: u64 = u64::MAX;

/// Bytes per second of reads of 1 MiB in order, four in flight, of a file from its beginning to its last whole MiB. None, and a warning, where the
/// file system refuses direct I/O.
///
/// # Errors
/// What the system says; also where the file is shorter than a read.
pub fn bytes_per_s_through(path: &Path) -> anyhow::Result<Option<f64>> {
    let Some(file) = open_direct(OpenOptions::new().read(true), path)? else { return Ok(None) };
    let read = || {
        let places = file.metadata()?.len() / MEBIBYTE as u64;
        anyhow::ensure!(places > 0, "the file is shorter than 1 MiB");
        let mut offsets = (0..places).map(|place| place * MEBIBYTE as u64);
        let reads = Reader::new(&file, MEBIBYTE, 4)?.run(Duration::MAX, || offsets.next())?;
        Ok(Some(reads.per_s * MEBIBYTE as f64))
    };
    read().with_context(|| path.display().to_string())
}

/// None, and a warning, where the file system refuses direct I/O.
fn open_direct(options: &mut OpenOptions, path: &Path) -> anyhow::Result<Option<File>> {
    match options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            eprintln!(
                "warning: {} is on a file system without direct I/O: no figure of the disk's own speed is valid there, none is given",
                path.display()
            );
            Ok(None)
        }
        Err(error) => Err(error).context(path.display().to_string()),
    }
}

/// A file of its own, read and written past the page cache.
pub struct Scratch {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// What it was written with, all in order and with one sync at the end.
    pub written_bytes_per_s: f64,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may be gone with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads that have ended.
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    pub per_s: f64,
    /// Microseconds of this thread's CPU time for each, with what the kernel did on its behalf, and without what other work took.
    pub cpu_us: f64,
}

/// Something else to do, in pieces that take equally long.
struct Work {
    state: u64,
    done: u64,
    piece_s: f64,
}

impl Work {
    /// Pieces of some 10 us, and how long one takes while nothing else happens.
    fn calibrated() -> Self {
        const PIECES: u64 = 2000;
        let mut work = Self { state: 1, done: 0, piece_s: 0.0 };
        (0..PIECES).for_each(|_| work.piece());
        let before_s = thread_cpu_s();
        (0..PIECES).for_each(|_| work.piece());
        work.piece_s = (thread_cpu_s() - before_s) / PIECES as f64;
        work.done = 0;
        work
    }

    fn piece(&mut self) {
        // Each step waits for the one before, so that no processor does two at once.
        self.state = (0..8000)
            .fold(self.state, |state, step| std::hint::black_box(state ^ step).wrapping_mul(0x5851_F42D_4C95_7F2D));
        self.done += 1;
    }

    fn took_s(&self) -> f64 {
        self.done as f64 * self.piece_s
    }
}

impl Scratch {
    /// Writes a file of so many bytes, which no compression makes shorter. None, and a warning, where the file system refuses direct I/O.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(directory: &Path, bytes: u64) -> anyhow::Result<Option<Self>> {
        let path = directory.join("scratch");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let Some(file) = open_direct(options, &path)? else { return Ok(None) };
        let mut scratch = Self { path, file, bytes, written_bytes_per_s: 0.0 };
        scratch.fill().with_context(|| scratch.path.display().to_string())?;
        Ok(Some(scratch))
    }

    fn fill(&mut self) -> std::io::Result<()> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut buffer = aligned_buf(MEBIBYTE);
        rng.fill(&mut buffer[..]);
        let started = Instant::now();
        self.file.seek(SeekFrom::Start(0))?;
        for number in 0..self.bytes / MEBIBYTE as u64 {
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            self.file.write_all(&buffer)?;
        }
        self.file.sync_data()?;
        self.written_bytes_per_s = self.bytes as f64 / started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Reads of so many bytes at places drawn anew for each, so many in flight.
    ///
    /// # Errors
    /// What the disk says.
    pub fn random_reads(&self, bytes: usize, depth: usize, duration: Duration) -> anyhow::Result<Reads> {
        Reader::new(&self.file, bytes, depth)?.run(duration, self.random_places(bytes))
    }

    /// The same by a thread that always has something else to do: what a read takes from that. What the kernel does when reads end, it does in an
    /// interrupt, which a thread that sleeps meanwhile is not charged for.
    ///
    /// # Errors
    /// What the disk says.
    pub fn random_reads_beside_work(&self, bytes: usize, depth: usize, duration: Duration) -> anyhow::Result<Reads> {
        let mut reader = Reader::new(&self.file, bytes, depth)?;
        reader.work = Some(Work::calibrated());
        reader.run(duration, self.random_places(bytes))
    }

    /// Such reads with a write of 1 MiB under way for each so many reads, in order, as blocks of evicted tuples are written.
    ///
    /// # Errors
    /// What the disk says.
    pub fn random_reads_and_writes(
        &self,
        bytes: usize,
        depth: usize,
        reads_of_a_write: u64,
        duration: Duration,
    ) -> anyhow::Result<Reads> {
        let mut reader = Reader::new(&self.file, bytes, depth)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        let mut buffer = aligned_bufs(2, MEBIBYTE).pop().context("a buffer of a mebibyte")?;
        rng.fill(&mut buffer[..]);
        reader.writes = Some(Writes { buffer, reads_of_a_write, places: self.bytes / MEBIBYTE as u64, begun: 0 });
        reader.run(duration, self.random_places(bytes))
    }

    fn random_places(&self, bytes: usize) -> impl FnMut() -> Option<u64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let places = self.bytes / bytes as u64;
        move || Some(rng.random_range(0..places) * bytes as u64)
    }

    /// Bytes per second of reads of 1 MiB in order, four in flight.
    ///
    /// # Errors
    /// What the disk says.
    pub fn sequential_bytes_per_s(&self, duration: Duration) -> anyhow::Result<f64> {
        let places = self.bytes / MEBIBYTE as u64;
        let mut next = 0;
        let reads = Reader::new(&self.file, MEBIBYTE, 4)?.run(duration, || {
            next += 1;
            Some((next - 1) % places * MEBIBYTE as u64)
        })?;
        Ok(reads.per_s * MEBIBYTE as f64)
    }

    /// Microseconds of single page writes, each with a sync of its data.
    ///
    /// # Errors
    /// What the disk says.
    pub fn synced_writes_us(&self, duration: Duration) -> anyhow::Result<Vec<f64>> {
        let mut times_us = Vec::new();
        let started = Instant::now();
        let buffer = aligned_buf(PAGE);
        while started.elapsed() < duration {
            let began = Instant::now();
            self.file.write_all_at(&buffer, times_us.len() as u64 * PAGE as u64 % self.bytes)?;
            self.file.sync_data()?;
            times_us.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times_us)
    }
}

/// Writes of [`MEBIBYTE`] beside the reads, all of the same bytes, which the kernel only reads.
struct Writes {
    buffer: AlignedBuf,
    reads_of_a_write: u64,
    /// Of the file, one behind the other, and so many of them were begun to be written.
    places: u64,
    begun: u64,
}

struct Reader<'file> {
    ring: IoUring,
    file: &'file File,
    /// One for each read in flight.
    buffers: Vec<AlignedBuf>,
    writes: Option<Writes>,
    work: Option<Work>,
    in_flight: usize,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            self.wait(&mut Vec::new());
        }
    }
}

impl<'file> Reader<'file> {
    fn new(file: &'file File, bytes: usize, depth: usize) -> anyhow::Result<Self> {
        let ring = IoUring::new((2 * depth).next_power_of_two() as u32).context("io_uring is refused")?;
        let mut buffers = Vec::with_capacity(depth);
        while buffers.len() < depth {
            buffers.extend(aligned_bufs(depth - buffers.len(), bytes));
        }
        Ok(Self { ring, file, buffers, writes: None, work: None, in_flight: 0 })
    }

    /// Reads at one place after the other until time or places are over.
    fn run(&mut self, duration: Duration, mut place: impl FnMut() -> Option<u64>) -> anyhow::Result<Reads> {
        let (started, cpu_before_s) = (Instant::now(), thread_cpu_s());
        let (mut count, mut problem) = (0_u64, None);
        for slot in 0..self.buffers.len() {
            self.begin(slot, place())?;
        }
        let mut ended = Vec::new();
        while self.in_flight > 0 {
            self.wait(&mut ended);
            let over = started.elapsed() >= duration || problem.is_some();
            for (slot, result) in ended.drain(..) {
                let (what, bytes) = match self.buffers.get(slot) {
                    Some(buffer) => ("read", buffer.len()),
                    None => ("write", MEBIBYTE),
                };
                if result != bytes as i32 {
                    problem.get_or_insert_with(|| match result {
                        ..0 => anyhow::Error::new(std::io::Error::from_raw_os_error(-result)).context(what),
                        _ => anyhow::anyhow!("a {what} ended after {result} bytes"),
                    });
                } else if slot < self.buffers.len() {
                    count += 1;
                    if !over {
                        self.begin(slot, place())?;
                        self.begin_write(count)?;
                    }
                }
            }
        }
        if let Some(problem) = problem {
            return Err(problem.context("direct I/O"));
        }
        let work_s = self.work.as_ref().map_or(0.0, Work::took_s);
        let cpu_us = (thread_cpu_s() - cpu_before_s - work_s) * 1e6 / count as f64;
        Ok(Reads { per_s: count as f64 / started.elapsed().as_secs_f64(), cpu_us })
    }

    /// Begins the write that is due after so many reads.
    fn begin_write(&mut self, reads: u64) -> anyhow::Result<()> {
        let Some(writes) = &mut self.writes else { return Ok(()) };
        if reads / writes.reads_of_a_write <= writes.begun {
            return Ok(());
        }
        let file = types::Fd(self.file.as_raw_fd());
        let offset = writes.begun % writes.places * MEBIBYTE as u64;
        let write = opcode::Write::new(file, writes.buffer.as_ptr(), MEBIBYTE as u32).offset(offset).build();
        // SAFETY: the buffer is as long as the write, nothing changes it, and it stays until the completion was seen (module invariant).
        unsafe { self.ring.submission().push(&write.user_data(WRITE)) }.context("the submission queue is full")?;
        writes.begun += 1;
        self.in_flight += 1;
        Ok(())
    }

    fn begin(&mut self, slot: usize, place: Option<u64>) -> anyhow::Result<()> {
        let Some(offset) = place else { return Ok(()) };
        let buffer = &mut self.buffers[slot];
        let file = types::Fd(self.file.as_raw_fd());
        let read = opcode::Read::new(file, buffer.as_mut_ptr(), buffer.len() as u32).offset(offset).build();
        // SAFETY: the slot's buffer is as long as the read, no other operation uses it, and it stays until the completion was seen (module invariant).
        unsafe { self.ring.submission().push(&read.user_data(slot as u64)) }.context("the submission queue is full")?;
        self.in_flight += 1;
        Ok(())
    }

    /// Waits for at least one read; slots and results of those that have ended, in an empty list.
    fn wait(&mut self, ended: &mut Vec<(usize, i32)>) {
        let wanted = usize::from(self.work.is_none());
        while let Err(error) = self.ring.submit_and_wait(wanted) {
            if error.kind() != std::io::ErrorKind::Interrupted {
                // Reads may be in flight into buffers that the caller would free.
                eprintln!("io_uring cannot be waited for: {error}");
                std::process::abort();
            }
        }
        if let Some(work) = &mut self.work {
            while self.ring.completion().is_empty() {
                work.piece();
            }
        }
        ended.extend(self.ring.completion().map(|completion| (completion.user_data() as usize, completion.result())));
        self.in_flight -= ended.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_and_short_ones_are_errors() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut scratch = Scratch::create(directory.path(), 4 << 20).unwrap().unwrap();
        let millisecond = Duration::from_millis(1);
        assert!(scratch.random_reads(PAGE, 8, millisecond).unwrap().per_s > 0.0);
        let mixed = scratch.random_reads_and_writes(PAGE, 8, 2, millisecond).unwrap();
        assert!(mixed.per_s > 0.0);
        let beside_work = scratch.random_reads_beside_work(PAGE, 8, 20 * millisecond).unwrap();
        assert!(beside_work.per_s > 0.0 && beside_work.cpu_us.is_finite());
        assert!(scratch.sequential_bytes_per_s(millisecond).unwrap() > 0.0 && scratch.written_bytes_per_s > 0.0);
        assert!(!scratch.synced_writes_us(millisecond).unwrap().is_empty());
        assert!(bytes_per_s_through(&scratch.path).unwrap().unwrap() > 0.0);
        std::fs::write(directory.path().join("short"), [1; PAGE]).unwrap();
        for (name, problem) in [("none", "No such file"), ("short", "shorter than 1 MiB")] {
            let error = bytes_per_s_through(&directory.path().join(name)).unwrap_err();
            assert!(format!("{error:#}").contains(problem), "{error:#}");
        }
        // Behind the end of the file.
        scratch.bytes *= 1000;
        let error = scratch.random_reads(PAGE, 8, millisecond).unwrap_err();
        assert!(format!("{error:#}").contains("after 0 bytes"), "{error:#}");
    }
}
