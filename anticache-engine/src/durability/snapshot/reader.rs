//! Reads a snapshot file from its beginning to its end, extent by extent.

use std::path::{Path, PathBuf};

use super::format::{Beginning, Damage, EXTENT_HEADER_BYTES, ExtentView, Kind, Owner};
use crate::error::RecoveryError;
use crate::io::files::Files;
use crate::io::read_ahead::ReadAhead;

/// No extent is longer: what a damaged header says beyond that is not believed.
const LONGEST_EXTENT_BYTES: usize = 2 << 20;

/// A snapshot file that is being read.
pub struct SnapshotReader {
    file: ReadAhead,
    path: PathBuf,
    owner: Owner,
    /// Number of the next extent.
    number: u32,
    /// Length of the extent handed out last, which is passed over before the next one.
    extent_bytes: usize,
}

impl SnapshotReader {
    /// Opens a file that has `bytes`, and reads what the snapshot is.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or has another length.
    pub fn open(files: &dyn Files, path: &Path, owner: Owner, bytes: u64) -> Result<(Self, Beginning), RecoveryError> {
        let file = files.open(path).and_then(|file| ReadAhead::new(files, file)).map_err(RecoveryError::io(path))?;
        let mut reader = Self { file, path: path.to_owned(), owner, number: 0, extent_bytes: 0 };
        let found = reader.file.file_bytes();
        if found != bytes {
            let damage = Damage { expected: format!("{bytes} bytes"), found: format!("{found} bytes") };
            return Err(damaged(path, found.min(bytes), damage));
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
        let Self { file, path, owner, number, extent_bytes } = self;
        file.advance(std::mem::take(extent_bytes));
        let (offset, this) = (file.position(), *number);
        let header = file.peek(EXTENT_HEADER_BYTES).map_err(RecoveryError::io(path))?;
        if header.len() < EXTENT_HEADER_BYTES {
            let damage = Damage { expected: format!("extent {this}"), found: "the end of the file".to_owned() };
            return Err(damaged(path, offset, damage));
        }
        let bytes = ExtentView::padded_bytes(header).min(LONGEST_EXTENT_BYTES);
        let extent = file.peek(bytes).map_err(RecoveryError::io(path))?;
        (*extent_bytes, *number) = (extent.len(), this + 1);
        ExtentView::open(extent, *owner, this).map_err(|damage| damaged(path, offset, damage))
    }

    /// Whether the last extent that was handed out ends with the file.
    pub fn is_at_end(&self) -> bool {
        self.file.left_bytes() == self.extent_bytes as u64
    }

    /// What does not fit in the extent handed out last.
    pub fn damaged(&self, damage: Damage) -> RecoveryError {
        damaged(&self.path, self.file.position(), damage)
    }
}

fn damaged(path: &Path, offset: u64, damage: Damage) -> RecoveryError {
    RecoveryError::Damaged { path: path.to_owned(), offset, damage }
}
