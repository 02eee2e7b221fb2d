//! What a snapshot sees of a table (paper §3.6): its state at one moment, saved piece by piece while transactions go on.
//!
//! The snapshot passes over the slots and over the Evicted Table's entries from the lowest number to the highest that existed at its beginning. What it
//! has yet to reach is saved before it is changed, moved, evicted or brought back; what came after the beginning is exempt. In both cases
//! [`flag::SNAPSHOT_DONE`] stays on it until the snapshot passes, so afterwards no flag is left. A transaction that is rolled back needs no care: the
//! first change saves what was there before.

use std::collections::VecDeque;

use super::Table;
use crate::anticache::evicted_table::{EvictedId, Location};
use crate::catalog::TableId;
use crate::storage::tuples::{NO_TUPLE, TupleId, flag};

/// Slots or entries that one call visits at most, so that long stretches without tuples do not make it long.
const VISITS: u32 = 1 << 12;
/// Memory for what is saved ahead comes in pieces of so many bytes: several of the longest items.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that are kept for what will be saved, when what they held was written out.
const PIECES_KEPT: usize = 4;

/// How far a snapshot is with a table.
#[derive(Debug)]
pub(crate) struct Capture {
    table: TableId,
    /// Slots before this one are saved, or need not be; at the end [`NO_TUPLE`].
    next_tuple: TupleId,
    end_tuple: TupleId,
    next_entry: EvictedId,
    end_entry: EvictedId,
    /// The snapshot was given up: nothing is saved, flags are only taken away.
    discard: bool,
    /// Items saved ahead, each with its length before it.
    ahead: Ahead,
    scratch: Vec<u8>,
}

/// Items that were saved because their originals had to change, and wait to be written out. They lie in pieces of memory, none in two: what was written
/// out gives its memory back although more is always waiting, and growing copies nothing.
#[derive(Debug, Default)]
struct Ahead {
    /// The oldest first; the last one is being filled.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were taken.
    taken: usize,
    waiting_bytes: usize,
    kept: Vec<Vec<u8>>,
}

/// A tuple or an entry of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'table> {
    /// A tuple in memory: its serialized row.
    Row {
        /// Its table.
        table: TableId,
        /// Row.
        row: &'table [u8],
    },
    /// An evicted tuple.
    Entry {
        /// Its table.
        table: TableId,
        /// Number of its Evicted Table entry.
        id: EvictedId,
        /// Where it is.
        location: Location,
        /// Its indexed columns.
        image: &'table [u8],
    },
}

/// Bytes before a row: table and length.
const ROW_PREFIX_BYTES: usize = 4;
/// Bytes before an image: table, length, entry, block and offset.
const ENTRY_PREFIX_BYTES: usize = 16;
/// Set in the length of an entry waiting in [`Ahead`], where rows and entries are mixed. Rows have at most [`crate::catalog::MAX_ROW_BYTES`].
const ENTRY_BIT: u16 = 1 << 15;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_le_bytes(*two))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

impl<'table> Item<'table> {
    /// Bytes that it takes in a snapshot.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Row { row, .. } => ROW_PREFIX_BYTES + row.len(),
            Self::Entry { image, .. } => ENTRY_PREFIX_BYTES + image.len(),
        }
    }

    /// Its form in a snapshot: `table:2 length:2 row`, or `table:2 length:2 entry:4 block:4 offset:4 image`, where the length is that of row or image.
    pub fn write(&self, out: &mut [u8]) {
        match *self {
            Self::Row { table, row } => {
                out[..2].copy_from_slice(&table.to_le_bytes());
                out[2..4].copy_from_slice(&(row.len() as u16).to_le_bytes());
                out[ROW_PREFIX_BYTES..].copy_from_slice(row);
            }
            Self::Entry { table, id, location, image } => {
                out[..2].copy_from_slice(&table.to_le_bytes());
                out[2..4].copy_from_slice(&(image.len() as u16).to_le_bytes());
                out[4..8].copy_from_slice(&id.to_le_bytes());
                out[8..12].copy_from_slice(&location.block_id.to_le_bytes());
                out[12..16].copy_from_slice(&location.offset.to_le_bytes());
                out[ENTRY_PREFIX_BYTES..].copy_from_slice(image);
            }
        }
    }

    /// The row at the beginning of `bytes`, and what it takes.
    pub fn parse_row(bytes: &'table [u8]) -> Option<(Self, usize)> {
        let (table, length) = (u16_at(bytes, 0)?, usize::from(u16_at(bytes, 2)?));
        let row = bytes.get(ROW_PREFIX_BYTES..ROW_PREFIX_BYTES + length)?;
        Some((Self::Row { table, row }, ROW_PREFIX_BYTES + length))
    }

    /// The entry at the beginning of `bytes`, and what it takes.
    pub fn parse_entry(bytes: &'table [u8]) -> Option<(Self, usize)> {
        let (table, length) = (u16_at(bytes, 0)?, usize::from(u16_at(bytes, 2)?));
        let location = Location { block_id: u32_at(bytes, 8)?, offset: u32_at(bytes, 12)? };
        let image = bytes.get(ENTRY_PREFIX_BYTES..ENTRY_PREFIX_BYTES + length)?;
        Some((Self::Entry { table, id: u32_at(bytes, 4)?, location, image }, ENTRY_PREFIX_BYTES + length))
    }
}

impl Ahead {
    fn push(&mut self, item: &Item<'_>) {
        let bytes = item.bytes();
        if self.pieces.back().is_none_or(|piece| piece.len() + bytes > piece.capacity()) {
            self.pieces.push_back(self.kept.pop().unwrap_or_else(|| Vec::with_capacity(PIECE_BYTES)));
        }
        let Some(piece) = self.pieces.back_mut() else { return };
        let start = piece.len();
        piece.resize(start + bytes, 0);
        item.write(&mut piece[start..]);
        if matches!(item, Item::Entry { .. }) {
            piece[start + 3] |= (ENTRY_BIT >> 8) as u8;
        }
        self.waiting_bytes += bytes;
    }

    /// Hands out the items, oldest first, until one is not taken; true when none is left.
    fn drain(&mut self, mut put: impl FnMut(&Item<'_>) -> bool) -> bool {
        while let Some(piece) = self.pieces.front_mut() {
            while self.taken < piece.len() {
                let rest = &mut piece[self.taken..];
                let is_entry = rest[3] & (ENTRY_BIT >> 8) as u8 != 0;
                rest[3] &= !((ENTRY_BIT >> 8) as u8);
                let parsed = if is_entry { Item::parse_entry(rest) } else { Item::parse_row(rest) };
                let Some((item, bytes)) = parsed else { unreachable!("only items are pushed") };
                if !put(&item) {
                    rest[3] |= if is_entry { (ENTRY_BIT >> 8) as u8 } else { 0 };
                    return false;
                }
                self.taken += bytes;
                self.waiting_bytes -= bytes;
            }
            self.taken = 0;
            let written = self.pieces.pop_front();
            if let Some(mut piece) = written.filter(|_| self.kept.len() < PIECES_KEPT) {
                piece.clear();
                self.kept.push(piece);
            }
        }
        true
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Capture {
    fn awaits(&self, id: TupleId) -> bool {
        (self.next_tuple..self.end_tuple).contains(&id)
    }

    fn awaits_entry(&self, id: EvictedId) -> bool {
        (self.next_entry..self.end_entry).contains(&id)
    }
}

impl Table {
    /// A snapshot begins: what is in the table now belongs to it. `table` is this table's position in the catalog.
    pub(crate) fn begin_capture(&mut self, table: TableId) {
        self.capture = Some(Box::new(Capture {
            table,
            next_tuple: 0,
            end_tuple: self.tuples.ids().end,
            next_entry: 0,
            end_entry: self.evicted.len() as EvictedId,
            discard: false,
            ahead: Ahead::default(),
            scratch: Vec::new(),
        }));
    }

    /// The snapshot is given up; [`Table::capture`] only takes the flags away from now on.
    pub(crate) fn discard_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.discard = true;
            capture.ahead.clear();
        }
    }

    /// Bytes saved ahead that wait for [`Table::drain_capture`].
    #[inline]
    pub(crate) fn captured_ahead_bytes(&self) -> usize {
        self.capture.as_ref().map_or(0, |capture| capture.ahead.waiting_bytes)
    }

    /// Hands out what was saved ahead until `put` takes no more; true when nothing is left.
    pub(crate) fn drain_capture(&mut self, put: impl FnMut(&Item<'_>) -> bool) -> bool {
        self.capture.as_mut().is_none_or(|capture| capture.ahead.drain(put))
    }

    /// Hands out what the snapshot has yet to save, until `put` takes no more or enough was visited for one call. True when the snapshot has all of
    /// the table.
    pub(crate) fn capture(&mut self, mut put: impl FnMut(&Item<'_>) -> bool) -> bool {
        let Some(mut capture) = self.capture.take() else {
            return true;
        };
        let done = self.capture_tuples(&mut capture, &mut put)
            && self.capture_entries(&mut capture, &mut put)
            && capture.ahead.drain(put);
        self.capture = (!done).then_some(capture);
        done
    }

    fn capture_tuples(&mut self, capture: &mut Capture, put: &mut impl FnMut(&Item<'_>) -> bool) -> bool {
        let end = capture.end_tuple.min(self.tuples.ids().end);
        let stop = capture.next_tuple.saturating_add(VISITS).min(end);
        while capture.next_tuple < stop {
            let id = capture.next_tuple;
            let flags = self.tuples.flags(id);
            if flags & flag::SNAPSHOT_DONE != 0 {
                self.tuples.set_flags(id, flags & !flag::SNAPSHOT_DONE);
            } else if flags & flag::LIVE != 0 && !capture.discard {
                let table = capture.table;
                let row = if self.def.has_var() {
                    capture.scratch.clear();
                    self.serialize(id, &mut capture.scratch);
                    &capture.scratch
                } else {
                    self.tuples.row(id)
                };
                if !put(&Item::Row { table, row }) {
                    return false;
                }
            }
            capture.next_tuple += 1;
        }
        if capture.next_tuple >= end {
            capture.next_tuple = NO_TUPLE;
        }
        capture.next_tuple == NO_TUPLE
    }

    fn capture_entries(&mut self, capture: &mut Capture, put: &mut impl FnMut(&Item<'_>) -> bool) -> bool {
        let stop = capture.next_entry.saturating_add(VISITS).min(capture.end_entry);
        while capture.next_entry < stop {
            let id = capture.next_entry;
            if self.evicted.is_live(id) {
                if self.evicted.is_snapshot_done(id) {
                    self.evicted.set_snapshot_done(id, false);
                } else if !capture.discard {
                    let (location, image) = (self.evicted.location(id), self.evicted.image(id));
                    if !put(&Item::Entry { table: capture.table, id, location, image }) {
                        return false;
                    }
                }
            }
            capture.next_entry += 1;
        }
        capture.next_entry >= capture.end_entry
    }

    /// Must come before every change of a tuple in memory: saves it when the snapshot under way has yet to.
    #[inline]
    pub(super) fn before_change(&mut self, id: TupleId) {
        if self.capture.as_ref().is_some_and(|capture| capture.awaits(id)) {
            self.save_ahead(id);
        }
    }

    #[cold]
    fn save_ahead(&mut self, id: TupleId) {
        let flags = self.tuples.flags(id);
        let Some(mut capture) = self.capture.take_if(|capture| !capture.discard && flags & flag::SNAPSHOT_DONE == 0)
        else {
            return;
        };
        capture.scratch.clear();
        self.serialize(id, &mut capture.scratch);
        capture.ahead.push(&Item::Row { table: capture.table, row: &capture.scratch });
        self.tuples.set_flags(id, flags | flag::SNAPSHOT_DONE);
        self.capture = Some(capture);
    }

    /// Must come before every change of an Evicted Table entry, as [`Table::before_change`] before one of a tuple.
    #[inline]
    pub(super) fn before_entry_change(&mut self, id: EvictedId) {
        if let Some(capture) = &mut self.capture
            && capture.awaits_entry(id)
            && !capture.discard
            && !self.evicted.is_snapshot_done(id)
        {
            let (location, image) = (self.evicted.location(id), self.evicted.image(id));
            capture.ahead.push(&Item::Entry { table: capture.table, id, location, image });
            self.evicted.set_snapshot_done(id, true);
        }
    }

    /// A new tuple, or one that came to another slot, is not the snapshot's.
    #[inline]
    pub(super) fn exempt(&mut self, id: TupleId) {
        if self.capture.as_ref().is_some_and(|capture| capture.awaits(id)) {
            let flags = self.tuples.flags(id) | flag::SNAPSHOT_DONE;
            self.tuples.set_flags(id, flags);
        }
    }

    /// The same for an Evicted Table entry.
    #[inline]
    pub(super) fn exempt_entry(&mut self, id: EvictedId) {
        if self.capture.as_ref().is_some_and(|capture| capture.awaits_entry(id)) {
            self.evicted.set_snapshot_done(id, true);
        }
    }

    /// Flags for a tuple that moves: it is saved before it leaves the way of the snapshot, or comes to it saved.
    pub(super) fn flags_after_move(&mut self, old: TupleId, new: TupleId) -> u8 {
        self.before_change(old);
        let flags = self.tuples.flags(old) & !flag::SNAPSHOT_DONE;
        let awaited = self.capture.as_ref().is_some_and(|capture| capture.awaits(new));
        if awaited { flags | flag::SNAPSHOT_DONE } else { flags }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Items of any length come out as they went in, however few are taken at a time; memory follows what waits.
        #[test]
        fn items_saved_ahead_come_out_in_order(
            steps in prop::collection::vec((prop::collection::vec((any::<bool>(), 0..30_000usize), 0..20), 0..25usize), 1..20),
        ) {
            let mut ahead = Ahead::default();
            let (mut model, mut number) = (VecDeque::new(), 0u32);
            for (pushed, mut taken) in steps {
                for (is_entry, length) in pushed {
                    number += 1;
                    let bytes = vec![number as u8; length];
                    let location = Location { block_id: number, offset: 64 };
                    let item = match is_entry {
                        true => Item::Entry { table: 3, id: number, location, image: &bytes },
                        false => Item::Row { table: 2, row: &bytes },
                    };
                    ahead.push(&item);
                    let mut written = vec![0; item.bytes()];
                    item.write(&mut written);
                    model.push_back((is_entry, written));
                }
                let drained = ahead.drain(|item| {
                    if taken == 0 {
                        return false;
                    }
                    taken -= 1;
                    let mut written = vec![0; item.bytes()];
                    item.write(&mut written);
                    model.pop_front() == Some((matches!(item, Item::Entry { .. }), written))
                });
                prop_assert_eq!(drained, model.is_empty());
                let waiting: usize = model.iter().map(|(_, bytes)| bytes.len()).sum();
                prop_assert_eq!(ahead.waiting_bytes, waiting);
                // A piece may be half empty when a long item did not fit.
                let held: usize = ahead.pieces.iter().chain(&ahead.kept).map(Vec::capacity).sum();
                prop_assert!(held <= 2 * waiting + (PIECES_KEPT + 2) * PIECE_BYTES, "{held} bytes for {waiting}");
            }
        }
    }
}
