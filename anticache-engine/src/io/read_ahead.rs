//! Reads a file from its beginning to its end, some reads ahead of who takes the bytes: the disk goes on while they are worked on, without a thread
//! of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::files::{DiskFile, Files};
use super::ring::{Completion, IoRing};
use super::{AlignedBuf, DIRECT_IO_ALIGN_BYTES, aligned_bufs};

/// Bytes of a read.
const PIECE_BYTES: usize = 512 << 10;
/// Reads that are begun ahead: half as many leave the disk without work whenever the kernel keeps the reader for a few milliseconds, as when it clears a
/// page (recovery of a snapshot took 1.37 times as long, on two cores of an Intel Xeon, family 6, model 167); with much more, bytes leave a
/// processor's cache before they are looked at (with twice as many bytes 1.1 to 1.2 times, on an AMD EPYC, family 25, model 17).
const PIECES: usize = 8;

/// A part of the file.
struct Piece {
    bytes: usize,
    /// None while it is being read.
    buffer: Option<AlignedBuf>,
}

/// A file that is being read. After an error it is of no use any more.
pub struct ReadAhead {
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    piece_bytes: usize,
    ring: IoRing,
    completions: Vec<Completion>,
    /// Pieces begun and not passed over, in the order of the file.
    pieces: VecDeque<Piece>,
    /// Pieces passed over: the number of the first of the others, by which its read is named.
    first_piece: u64,
    /// Bytes of the first piece that were passed over.
    passed_bytes: usize,
    /// Bytes of the file before the next read to be begun.
    begun_bytes: u64,
    position: u64,
    /// What lies in several pieces, put together.
    joined: Vec<u8>,
    spare: Vec<AlignedBuf>,
}

impl ReadAhead {
    /// At the beginning of a file.
    ///
    /// # Errors
    /// What the system says of its length, and as [`Files::ring`].
    pub fn new(files: &dyn Files, file: Arc<dyn DiskFile>) -> io::Result<Self> {
        Self::in_pieces(files, file, PIECE_BYTES)
    }

    fn in_pieces(files: &dyn Files, file: Arc<dyn DiskFile>, piece_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            file_bytes: file.len()?,
            file,
            piece_bytes,
            ring: files.ring(PIECES as u32)?,
            completions: Vec::with_capacity(PIECES),
            pieces: VecDeque::with_capacity(PIECES),
            first_piece: 0,
            passed_bytes: 0,
            begun_bytes: 0,
            position: 0,
            joined: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of the file that were passed over.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the file that were not.
    pub fn left_bytes(&self) -> u64 {
        self.file_bytes - self.position
    }

    /// The next `bytes`, or as many as are left.
    ///
    /// # Errors
    /// What the disk says, also when a read gives less than the file has.
    pub fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        let bytes = self.left_bytes().min(bytes as u64) as usize;
        if bytes == 0 {
            return Ok(&[]);
        }
        self.await_piece(0)?;
        if self.passed_bytes + bytes > self.pieces[0].bytes {
            return self.join(bytes);
        }
        let buffer = self.pieces[0].buffer.as_deref().unwrap_or_default();
        Ok(&buffer[self.passed_bytes..self.passed_bytes + bytes])
    }

    fn join(&mut self, bytes: usize) -> io::Result<&[u8]> {
        self.joined.clear();
        let (mut at, mut from) = (0, self.passed_bytes);
        while self.joined.len() < bytes {
            self.await_piece(at)?;
            let piece = &self.pieces[at];
            let end = piece.bytes.min(from + bytes - self.joined.len());
            self.joined.extend_from_slice(&piece.buffer.as_deref().unwrap_or_default()[from..end]);
            (at, from) = (at + 1, 0);
        }
        Ok(&self.joined)
    }

    /// Passes over `bytes` of what was looked at.
    pub fn advance(&mut self, bytes: usize) {
        self.position += bytes as u64;
        self.passed_bytes += bytes;
        while let Some(first) = self.pieces.front()
            && self.passed_bytes >= first.bytes
        {
            self.passed_bytes -= first.bytes;
            self.first_piece += 1;
            self.spare.extend(self.pieces.pop_front().and_then(|piece| piece.buffer));
        }
        debug_assert!(self.position <= self.begun_bytes, "only what was looked at is passed over");
    }

    /// Waits until a piece is there, counted from the first that was not passed over; the file must reach so far.
    fn await_piece(&mut self, at: usize) -> io::Result<()> {
        loop {
            self.begin_reads(PIECES.max(at + 1))?;
            if self.pieces.get(at).is_some_and(|piece| piece.buffer.is_some()) {
                return Ok(());
            }
            self.ring.wait(&mut self.completions)?;
            for mut completion in self.completions.drain(..) {
                completion.result?;
                let place = (completion.tag - self.first_piece) as usize;
                self.pieces[place].buffer = completion.buffers.pop();
            }
        }
    }

    /// Begins reads until there are so many pieces, or the file or the ring ends.
    fn begin_reads(&mut self, pieces: usize) -> io::Result<()> {
        while self.pieces.len() < pieces && self.begun_bytes < self.file_bytes && self.ring.has_room() {
            if self.spare.is_empty() {
                self.spare = aligned_bufs(pieces - self.pieces.len(), self.piece_bytes);
            }
            let Some(mut buffer) = self.spare.pop() else { break };
            // Files begin with a page of their own, and most extents of a snapshot have a length that divides a piece's: so few of them lie in two pieces.
            let most_bytes = if self.begun_bytes == 0 { DIRECT_IO_ALIGN_BYTES } else { self.piece_bytes };
            let bytes = (self.file_bytes - self.begun_bytes).min(most_bytes as u64) as usize;
            let whole = bytes - bytes % DIRECT_IO_ALIGN_BYTES;
            let piece = if whole > 0 {
                let number = self.first_piece + self.pieces.len() as u64;
                self.ring.read_some(&self.file, self.begun_bytes, buffer, whole, number);
                Piece { bytes: whole, buffer: None }
            } else {
                // A file that was cut off may end in a page, of which direct I/O reads what there is.
                let read = self.file.read_at(&mut buffer[..DIRECT_IO_ALIGN_BYTES], self.begun_bytes)?;
                if read < bytes {
                    return Err(io::Error::other(format!("short read: {read} of {bytes} bytes")));
                }
                Piece { bytes, buffer: Some(buffer) }
            };
            self.begun_bytes += piece.bytes as u64;
            self.pieces.push_back(piece);
        }
        self.ring.submit()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::io::aligned_buf;
    use crate::io::files::KernelFiles;
    use crate::io::simulated::{Fault, FaultRule, Operation, SimulatedDisk};

    const PIECE: usize = 2 * DIRECT_IO_ALIGN_BYTES;

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at / 7 + at / 4096) as u8).collect()
    }

    fn stored(files: &dyn Files, path: &Path, content: &[u8]) -> Arc<dyn DiskFile> {
        let file = files.create(path).unwrap();
        let mut padded = aligned_buf(content.len().next_multiple_of(DIRECT_IO_ALIGN_BYTES));
        padded[..content.len()].copy_from_slice(content);
        file.write_all_at(&padded, 0).unwrap();
        file.set_len(content.len() as u64).unwrap();
        file
    }

    fn simulated(seed: u64, content: &[u8]) -> (SimulatedDisk, Arc<dyn Files>, Arc<dyn DiskFile>) {
        let disk = SimulatedDisk::new(seed);
        let files = disk.files();
        let file = stored(&*files, Path::new("/file"), content);
        (disk, files, file)
    }

    /// Looks at and passes over these numbers of bytes again and again, up to the end.
    fn read(mut file: ReadAhead, steps: &[(usize, usize)], content: &[u8]) {
        let most = steps.iter().map(|&(looked, _)| looked).max().unwrap_or(0);
        let mut at = 0;
        for &(looked, passed) in steps.iter().cycle() {
            assert_eq!((file.position(), file.left_bytes()), (at as u64, (content.len() - at) as u64));
            let end = content.len().min(at + looked);
            assert!(file.peek(looked).unwrap() == &content[at..end], "{looked} bytes at {at}");
            let buffers = file.pieces.len() + file.spare.len();
            assert!(buffers <= PIECES.max(most / file.piece_bytes + 3), "buffers are used again");
            if at == content.len() {
                return;
            }
            let passed = passed.min(end - at);
            file.advance(passed);
            at += passed;
        }
    }

    proptest! {
        /// Whatever lies in one piece or in many, in whatever order reads end, and wherever the file ends.
        #[test]
        fn every_byte_comes_in_order(
            seed: u64,
            bytes in 0..40 * DIRECT_IO_ALIGN_BYTES,
            cut in prop_oneof![Just(0), 0..DIRECT_IO_ALIGN_BYTES],
            steps in prop::collection::vec((1..12 * PIECE, 1..12 * PIECE), 1..6),
        ) {
            let content = content((bytes / DIRECT_IO_ALIGN_BYTES * DIRECT_IO_ALIGN_BYTES).saturating_sub(cut));
            let (_, files, file) = simulated(seed, &content);
            read(ReadAhead::in_pieces(&*files, file, PIECE).unwrap(), &steps, &content);
        }
    }

    #[test]
    fn the_kernels_files_are_read_with_and_without_the_page_cache() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let content = content(13 * PIECE_BYTES / 2 + 100);
        let direct = KernelFiles::new();
        let path = directory.path().join("file");
        let file = stored(&direct, &path, &content);
        read(ReadAhead::new(&direct, file).unwrap(), &[(64, 0), (300_000, 290_000), (5 << 20, 5 << 20)], &content);
        let cached = KernelFiles::inspecting();
        let file = cached.open(&path).unwrap();
        read(ReadAhead::new(&cached, file).unwrap(), &[(4096, 4096)], &content);
    }

    #[test]
    fn failed_and_short_reads_are_errors() {
        for (after, error) in [(0, Fault::Io), (2, Fault::ShortRead), (4, Fault::ShortRead)] {
            let content = content(4 * PIECE + 100);
            let (disk, files, file) = simulated(1, &content);
            disk.fail(FaultRule { file: "file".to_owned(), operation: Operation::Read, after, error, times: 1 });
            let mut file = ReadAhead::in_pieces(&*files, file, PIECE).unwrap();
            let problem = file.peek(content.len()).unwrap_err().to_string();
            let expected = if error == Fault::Io { "Input/output error" } else { "short " };
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
