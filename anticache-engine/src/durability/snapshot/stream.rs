//! Writes the extents of one snapshot, a few of them in flight at once.

use std::sync::Arc;

use super::format::{Beginning, ExtentBuilder, Kind, Owner, Totals};
use crate::io::AlignedBuf;
use crate::io::aligned_buf;
use crate::io::files::DiskFile;
use crate::io::ring::IoRing;
use crate::partition::IoTag;
use crate::storage::table::capture::Item;

/// Buffers of one extent each: one for rows and one for entries under construction, the others in flight.
pub(super) const BUFFERS: usize = 4;

/// The file of a snapshot under way.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) file: Arc<dyn DiskFile>,
    owner: Owner,
    extent_bytes: usize,
    /// Buffers to take.
    free: Vec<AlignedBuf>,
    /// Extents under construction, at most one of a kind.
    open: Vec<ExtentBuilder>,
    in_flight: usize,
    extents: u32,
    /// Length of the file so far.
    pub(super) bytes: u64,
    /// Bytes that may be taken before the next step.
    pub(super) quota_bytes: usize,
    pub(super) totals: Totals,
}

impl Stream {
    /// Of the buffers kept from earlier snapshots; missing ones are made.
    pub(super) fn new(file: Arc<dyn DiskFile>, owner: Owner, extent_bytes: usize, mut free: Vec<AlignedBuf>) -> Self {
        free.resize_with(BUFFERS, || aligned_buf(extent_bytes));
        Self {
            file,
            owner,
            extent_bytes,
            free,
            open: Vec::with_capacity(BUFFERS),
            in_flight: 0,
            extents: 0,
            bytes: 0,
            quota_bytes: usize::MAX,
            totals: Totals::default(),
        }
    }

    /// Whether an extent can be begun without waiting for the disk.
    pub(super) fn has_buffer(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether an extent is under construction.
    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes an item of `bytes`; false when the disk has to do something first, or the quota is used up.
    pub(super) fn put(&mut self, ring: &mut IoRing, kind: Kind, bytes: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if bytes > self.quota_bytes {
            return false;
        }
        let found = self.open.iter().position(|extent| extent.kind() == kind);
        let fitting = found.filter(|&at| self.open[at].fits(bytes));
        let at = match fitting {
            Some(at) => at,
            None if self.free.is_empty() || !ring.has_room() => return false,
            None => {
                if let Some(full) = found {
                    let extent = self.open.swap_remove(full);
                    self.write(ring, extent);
                }
                let Some(buffer) = self.free.pop() else { return false };
                self.open.push(ExtentBuilder::new(buffer, kind));
                self.open.len() - 1
            }
        };
        self.open[at].push(bytes, write);
        self.quota_bytes -= bytes;
        true
    }

    /// Takes a tuple or an entry.
    pub(super) fn put_item(&mut self, ring: &mut IoRing, item: &Item<'_>) -> bool {
        let is_row = matches!(item, Item::Row { .. });
        let kind = if is_row { Kind::Rows } else { Kind::Entries };
        let taken = self.put(ring, kind, item.bytes(), |out| item.write(out));
        self.totals.rows += u64::from(taken && is_row);
        self.totals.entries += u64::from(taken && !is_row);
        taken
    }

    /// Starts the file.
    pub(super) fn begin(&mut self, ring: &mut IoRing, beginning: &Beginning) -> bool {
        self.put(ring, Kind::Beginning, beginning.bytes(), |out| beginning.write(out)) && self.close_extents(ring)
    }

    /// Ends the file; all extents before are closed.
    pub(super) fn end(&mut self, ring: &mut IoRing) -> bool {
        let totals = self.totals;
        self.put(ring, Kind::End, Totals::BYTES, |out| totals.write(out))
    }

    /// Writes the extents under construction; false when the ring has no room for all.
    pub(super) fn close_extents(&mut self, ring: &mut IoRing) -> bool {
        while ring.has_room() {
            let Some(extent) = self.open.pop() else { return true };
            self.write(ring, extent);
        }
        self.open.is_empty()
    }

    fn write(&mut self, ring: &mut IoRing, extent: ExtentBuilder) {
        let buffer = extent.finish(self.owner, self.extents);
        self.extents += 1;
        self.in_flight += 1;
        let offset = self.bytes;
        self.bytes += buffer.len() as u64;
        ring.write(&self.file, offset, vec![buffer], false, IoTag::Snapshot(super::run::WRITE).pack());
    }

    /// A write ended; its buffer can be used again.
    pub(super) fn written(&mut self, buffers: Vec<AlignedBuf>) {
        self.in_flight -= 1;
        for mut buffer in buffers {
            buffer.restore(self.extent_bytes);
            self.free.push(buffer);
        }
    }

    /// The snapshot is given up: what is under construction is not written.
    pub(super) fn discard(&mut self) {
        self.free.extend(self.open.drain(..).map(ExtentBuilder::into_buffer));
    }

    /// All buffers, when none is in flight any more.
    pub(super) fn into_buffers(self) -> Vec<AlignedBuf> {
        self.free
    }
}
