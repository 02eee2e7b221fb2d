//! Whole tables, evicted tuples included, for checks and tools: nothing is brought back into memory, and no transaction may run meanwhile.

use super::block::BlockView;
use super::block_table::{BlockState, Place};
use super::evicted_table::Location;
use crate::catalog::TableId;
use crate::error::BlockError;
use crate::io::aligned_buf;
use crate::partition::Partition;
use crate::storage::table::Table;

impl Partition {
    /// Hands out every row of a table, serialized, in no particular order. Reads blocks one after the other and waits for the disk.
    ///
    /// # Errors
    /// A block that cannot be read or is damaged.
    pub fn scan_rows(&self, table: TableId, mut row: impl FnMut(&[u8])) -> Result<(), BlockError> {
        let stored = &self.tables[usize::from(table)];
        let mut serialized = Vec::new();
        for id in stored.tuples().ids().filter(|&id| stored.tuples().is_live(id)) {
            serialized.clear();
            stored.serialize(id, &mut serialized);
            row(&serialized);
        }
        let Some(anticache) = &self.anticache else {
            return Ok(());
        };
        let mut buffer = aligned_buf(anticache.blocks.block_bytes());
        for state in anticache.blocks.iter().filter(|state| state.identity.table == table) {
            let block_id = state.identity.block_id;
            let bytes = match state.place {
                Place::Writing { operation, index } => &self.ring.buffers(operation)[index],
                Place::Unwritten => &anticache.unwritten[&block_id],
                Place::Stored => {
                    let offset = anticache.blocks.file_offset(block_id);
                    let read = anticache.blocks.file().read_at(&mut buffer, offset);
                    if read.as_ref().ok() != Some(&buffer.len()) {
                        return Err(BlockError::Read {
                            block_id,
                            problem: format!("{read:?} of {} bytes", buffer.len()),
                        });
                    }
                    &buffer
                }
            };
            rows_of_block(stored, state, bytes, &mut row)?;
        }
        Ok(())
    }
}

/// The rows of a block that are not holes.
fn rows_of_block(
    table: &Table,
    state: &BlockState,
    bytes: &[u8],
    row: &mut impl FnMut(&[u8]),
) -> Result<(), BlockError> {
    for tuple in BlockView::open(state.identity, bytes)?.all() {
        let tuple = tuple?;
        let here = Location { block_id: state.identity.block_id, offset: tuple.offset };
        if table.evicted().is_live(tuple.entry) && table.evicted().location(tuple.entry) == here {
            row(tuple.row);
        }
    }
    Ok(())
}
