//! What a running transaction has changed, so that it can be rolled back (user abort, or the end of a pre-pass).

use super::tuples::TupleId;
use super::var_heap::VarRef;
use crate::catalog::TableId;

/// One change, newest last.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// Bytes `[offset, offset + len)` of a row were overwritten; the image before is in the arena at `image`.
    Update {
        /// Table.
        table: TableId,
        /// Tuple.
        tuple: TupleId,
        /// Offset in the row.
        offset: u32,
        /// Bytes overwritten.
        len: u32,
        /// Position of the image in the arena.
        image: u32,
    },
    /// A number that no index has was set.
    Number {
        /// Table.
        table: TableId,
        /// Its width.
        bytes: u8,
        /// Tuple.
        tuple: TupleId,
        /// Offset in the row.
        offset: u32,
        /// Its value before.
        before: i64,
    },
    /// A VARCHAR column refers to another cell; the one before is freed when the transaction commits.
    Value {
        /// Table.
        table: TableId,
        /// Tuple.
        tuple: TupleId,
        /// Position among the VARCHAR columns.
        var: u8,
        /// Reference before.
        old: VarRef,
        /// Reference now.
        new: VarRef,
    },
    /// A tuple was added.
    Insert {
        /// Table.
        table: TableId,
        /// Tuple.
        tuple: TupleId,
    },
    /// A tuple was detached; its slot, with the row, is freed when the transaction commits.
    Delete {
        /// Table.
        table: TableId,
        /// Tuple.
        tuple: TupleId,
    },
}

/// The undo log of the one transaction that runs at a partition. Its memory is kept from transaction to transaction.
#[derive(Debug, Default)]
pub struct UndoLog {
    changes: Vec<Change>,
    arena: Vec<u8>,
}

impl UndoLog {
    /// Whether nothing was changed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Keeps `image` and returns its position.
    #[inline]
    pub fn keep(&mut self, image: &[u8]) -> u32 {
        let position = self.arena.len();
        self.arena.extend_from_slice(image);
        position as u32
    }

    /// Records a change.
    #[inline]
    pub fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The changes, oldest first.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Takes the newest change.
    pub fn pop(&mut self) -> Option<Change> {
        self.changes.pop()
    }

    /// A kept image.
    pub fn image(&self, position: u32, len: u32) -> &[u8] {
        &self.arena[position as usize..][..len as usize]
    }

    /// Forgets everything (the transaction ended).
    #[inline]
    pub fn clear(&mut self) {
        self.changes.clear();
        self.arena.clear();
    }
}
