//! Reads a snapshot file from its beginning to its end, extent by extent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{Beginning, Damage, EXTENT_HEADER_BYTES, ExtentView, Kind, Owner};
use crate::error::RecoveryError;
use crate::io::files::{DiskFile, Files};
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES, aligned_buf};

/// Bytes read at once; several extents.
const WINDOW_BYTES: usize = 2 << 20;

/// A snapshot file that is being read.
pub struct SnapshotReader {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    owner: Owner,
    file_bytes: u64,
    /// Bytes of the file from `window_offset` on; the next extent begins at `at` of them.
    window: AlignedBuf,
    window_offset: u64,
    filled: usize,
    at: usize,
    /// Number of the next extent.
    number: u32,
    /// Where the extent handed out last begins in the file.
    extent_offset: u64,
}

impl SnapshotReader {
    /// Opens a file that has `bytes`, and reads what the snapshot is.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or has another length.
    pub fn open(files: &dyn Files, path: &Path, owner: Owner, bytes: u64) -> Result<(Self, Beginning), RecoveryError> {
        let file = files.open(path).map_err(RecoveryError::io(path))?;
        let found = file.len().map_err(RecoveryError::io(path))?;
        let mut reader = Self {
            file,
            path: path.to_owned(),
            owner,
            file_bytes: bytes,
            window: aligned_buf(WINDOW_BYTES),
            window_offset: 0,
            filled: 0,
            at: 0,
            number: 0,
            extent_offset: 0,
        };
        if found != bytes {
            let damage = Damage { expected: format!("{bytes} bytes"), found: format!("{found} bytes") };
            return Err(reader.damaged_at(found.min(bytes), damage));
        }
        let first = reader.next_extent()?;
        match (first.kind, Beginning::parse(first.payload)) {
            (Kind::Beginning, Some(beginning)) => Ok((reader, beginning)),
            (kind, _) => {
                let found = format!("{kind:?} of {} bytes", first.payload.len());
                let damage = Damage { expected: "a beginning".to_owned(), found };
                Err(reader.damaged(damage))
            }
        }
    }

    /// The next extent.
    ///
    /// # Errors
    /// When it cannot be read or is damaged, also when the file ends.
    pub fn next_extent(&mut self) -> Result<ExtentView<'_>, RecoveryError> {
        self.extent_offset = self.window_offset + self.at as u64;
        if self.filled - self.at < EXTENT_HEADER_BYTES {
            self.fill()?;
        }
        let rest = &self.window[self.at..self.filled];
        if rest.len() < EXTENT_HEADER_BYTES {
            let damage =
                Damage { expected: format!("extent {}", self.number), found: "the end of the file".to_owned() };
            return Err(self.damaged(damage));
        }
        let bytes = ExtentView::padded_bytes(rest);
        if bytes > rest.len() {
            self.fill()?;
        }
        let end = self.filled.min(self.at + bytes);
        let (start, number) = (self.at, self.number);
        self.at = end;
        self.number += 1;
        match ExtentView::open(&self.window[start..end], self.owner, number) {
            Ok(extent) => Ok(extent),
            Err(damage) => Err(self.damaged(damage)),
        }
    }

    /// Whether the last extent that was handed out ends with the file.
    pub fn is_at_end(&self) -> bool {
        self.window_offset + self.at as u64 == self.file_bytes
    }

    /// Moves the window so that it begins with the next extent.
    fn fill(&mut self) -> Result<(), RecoveryError> {
        self.window.copy_within(self.at..self.filled, 0);
        self.window_offset += self.at as u64;
        self.filled -= self.at;
        self.at = 0;
        while self.filled < self.window.len() && self.window_offset + (self.filled as u64) < self.file_bytes {
            let offset = self.window_offset + self.filled as u64;
            let read = self.file.read_at(&mut self.window[self.filled..], offset);
            let read = match read {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.map_err(RecoveryError::io(&self.path))?,
            };
            if read == 0 || !read.is_multiple_of(DIRECT_IO_ALIGN_BYTES) {
                let damage = Damage { expected: "whole pages".to_owned(), found: format!("{read} bytes") };
                return Err(self.damaged_at(offset, damage));
            }
            self.filled += read;
        }
        Ok(())
    }

    /// What does not fit in the extent handed out last.
    pub fn damaged(&self, damage: Damage) -> RecoveryError {
        self.damaged_at(self.extent_offset, damage)
    }

    fn damaged_at(&self, offset: u64, damage: Damage) -> RecoveryError {
        RecoveryError::Damaged { path: self.path.clone(), offset, damage }
    }
}
