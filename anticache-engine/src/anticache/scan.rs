//! Whole tables, evicted tuples included, for checks and tools: nothing is brought back into memory.
//!
//! A scan is read page by page and is no transaction: what changes between two pages may be seen twice or not at all. Its users let nothing else run.

use super::block::BlockView;
use super::block_table::{BlockState, Place};
use super::evicted_table::Location;
use crate::catalog::TableId;
use crate::error::BlockError;
use crate::io::{AlignedBuf, aligned_buf};
use crate::partition::Partition;

/// Where a page begins: a slot of tuple memory, or with this bit set a block.
const BLOCKS: u64 = 1 << 63;
/// Bytes of resident rows after which a page ends.
const PAGE_BYTES: usize = 1 << 20;

impl Partition {
    /// Appends the rows of a table from `cursor` on (0 = the beginning) to `page`, each as length:4 and its serialized form, and returns where to go
    /// on; `None` = that was the end. A page is about a mebibyte of rows in memory, or a block. Waits for the disk.
    ///
    /// # Errors
    /// A block that cannot be read or is damaged.
    pub fn scan_page(&self, table: TableId, cursor: u64, page: &mut Vec<u8>) -> Result<Option<u64>, BlockError> {
        if cursor & BLOCKS != 0 {
            return self.scan_blocks(table, (cursor & !BLOCKS) as usize, page);
        }
        let tuples = self.tables[usize::from(table)].tuples();
        let start = page.len();
        for id in tuples.ids().skip(cursor as usize).filter(|&id| tuples.is_live(id)) {
            let at = page.len();
            if at - start >= PAGE_BYTES {
                return Ok(Some(u64::from(id)));
            }
            page.extend_from_slice(&[0; 4]);
            self.tables[usize::from(table)].serialize(id, page);
            let length = (page.len() - at - 4) as u32;
            page[at..at + 4].copy_from_slice(&length.to_le_bytes());
        }
        Ok(Some(BLOCKS))
    }

    /// One block of the table, the first with an id of at least `from`.
    fn scan_blocks(&self, table: TableId, from: usize, page: &mut Vec<u8>) -> Result<Option<u64>, BlockError> {
        let blocks = self.anticache.as_ref().map(|anticache| &anticache.blocks);
        let of_table = |state: &&BlockState| state.identity.table == table && state.identity.block_id as usize >= from;
        let Some(state) = blocks.and_then(|blocks| blocks.iter().find(of_table)) else {
            return Ok(None);
        };
        let entries = self.tables[usize::from(table)].evicted();
        for tuple in BlockView::open(state.identity, &self.block_bytes(state)?)?.all() {
            let tuple = tuple?;
            let here = Location { block_id: state.identity.block_id, offset: tuple.offset };
            if entries.is_live(tuple.entry) && entries.location(tuple.entry) == here {
                page.extend_from_slice(&(tuple.row.len() as u32).to_le_bytes());
                page.extend_from_slice(tuple.row);
            }
        }
        Ok(Some(BLOCKS | (u64::from(state.identity.block_id) + 1)))
    }

    /// A copy of a block, from wherever it is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn block_bytes(&self, state: &BlockState) -> Result<AlignedBuf, BlockError> {
        let block_id = state.identity.block_id;
        let missing = || BlockError::Read { block_id, problem: "there is no Block Table".to_owned() };
        let anticache = self.anticache.as_ref().ok_or_else(missing)?;
        match state.place {
            Place::Writing { operation, index } => Ok(self.ring.buffers(operation)[index].clone()),
            Place::Unwritten => Ok(anticache.unwritten[&block_id].clone()),
            Place::Stored => {
                let mut buffer = aligned_buf(anticache.blocks.block_bytes());
                let read = anticache.blocks.file().read_at(&mut buffer, anticache.blocks.file_offset(block_id));
                if matches!(read, Ok(bytes) if bytes == buffer.len()) {
                    return Ok(buffer);
                }
                Err(BlockError::Read { block_id, problem: format!("{read:?} of {} bytes", buffer.len()) })
            }
        }
    }

    /// Hands out every row of a table, serialized, in no particular order.
    ///
    /// # Errors
    /// As [`Partition::scan_page`].
    pub fn scan_rows(&self, table: TableId, mut row: impl FnMut(&[u8])) -> Result<(), BlockError> {
        let (mut cursor, mut page) = (Some(0), Vec::new());
        while let Some(from) = cursor {
            page.clear();
            cursor = self.scan_page(table, from, &mut page)?;
            rows_of_page(&page).for_each(&mut row);
        }
        Ok(())
    }
}

/// The rows of a page.
pub fn rows_of_page(page: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = page;
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (row, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some(row)
    })
}
