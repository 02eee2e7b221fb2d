//! Eviction (paper §3.2): a special transaction that moves the coldest tuples into blocks.
//!
//! 1. share the blocks to write among the evictable tables, inversely to their accesses since the last eviction;
//! 2. for each block, pop tuples off the cold end of the table's chain and copy them into the block's buffer;
//! 3. for each of them, add an Evicted Table entry, point the index to it, free the slot;
//! 4. write all blocks, neighbouring ones in one sequential write; until it completes they are read from their buffers.

use std::time::Instant;

use super::block::{BlockBuilder, BlockIdentity};
use super::block_table::{BlockState, Place};
use super::evicted_table::Location;
use crate::catalog::TableId;
use crate::io::AlignedBuf;
use crate::io::ring::Completion;
use crate::partition::{IoTag, Partition};
use crate::storage::table::Table;
use crate::storage::tuples::flag;

/// Slots kept free ahead of demand when the budget is used up, so that evictions seldom interrupt a transaction.
const LOW_WATER_SLOTS: u64 = 64;

/// What an eviction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// It evicted so many blocks.
    Blocks(usize),
    /// All buffers are in use: wait for a write.
    NoBuffer,
    /// No table has a tuple that may be evicted, or anti-caching is off.
    Nothing,
}

/// Divides `blocks` among tables in inverse proportion to their accesses; only tables with something to evict get any.
///
/// Largest remainders get the blocks that rounding leaves over; ties go to the table with more tuples, then to the first.
pub fn shares(accesses_and_tuples: &[(u64, u64)], blocks: usize) -> Vec<usize> {
    let weight = |&(accesses, tuples): &(u64, u64)| {
        if tuples == 0 {
            0.0
        } else {
            1.0 / (accesses as f64 + 1.0)
        }
    };
    let total: f64 = accesses_and_tuples.iter().map(weight).sum();
    if total == 0.0 {
        return vec![0; accesses_and_tuples.len()];
    }
    let exact: Vec<f64> = accesses_and_tuples
        .iter()
        .map(|table| weight(table) / total * blocks as f64)
        .collect();
    let mut shares: Vec<usize> = exact.iter().map(|share| share.floor() as usize).collect();
    let mut order: Vec<usize> = (0..exact.len())
        .filter(|&table| accesses_and_tuples[table].1 > 0)
        .collect();
    order.sort_by(|&a, &b| {
        let remainder = |table: usize| exact[table] - exact[table].floor();
        remainder(b)
            .total_cmp(&remainder(a))
            .then(accesses_and_tuples[b].1.cmp(&accesses_and_tuples[a].1))
            .then(a.cmp(&b))
    });
    let left_over = blocks - shares.iter().sum::<usize>();
    for &table in order.iter().cycle().take(left_over) {
        shares[table] += 1;
    }
    shares
}

impl Partition {
    /// One eviction transaction.
    pub(crate) fn evict(&mut self) -> Evicted {
        let Some(anticache) = &self.anticache else {
            return Evicted::Nothing;
        };
        let count = anticache
            .blocks_per_eviction
            .min(anticache.buffers.available());
        if count == 0 || !self.ring.has_room() {
            return Evicted::NoBuffer;
        }
        let started = Instant::now();
        let accesses_and_tuples: Vec<_> = self
            .tables
            .iter()
            .map(|table| {
                (
                    table.accesses_since_eviction,
                    table.chain().map_or(0, super::chain::LruChain::len),
                )
            })
            .collect();
        let shares = shares(&accesses_and_tuples, count);
        let ids = self
            .anticache
            .as_mut()
            .map_or_else(Vec::new, |anticache| anticache.blocks.take_ids(count));
        let mut ids = ids.into_iter();
        let mut written: Vec<(u32, AlignedBuf)> = Vec::with_capacity(count);
        for (table, blocks) in shares.into_iter().enumerate() {
            for block_id in ids.by_ref().take(blocks) {
                written.extend(
                    self.construct_block(table as TableId, block_id)
                        .map(|buffer| (block_id, buffer)),
                );
            }
            self.tables[table].accesses_since_eviction = 0;
        }
        for unused in ids {
            if let Some(anticache) = &mut self.anticache {
                anticache.blocks.give_back(unused);
            }
        }
        let blocks = written.len();
        self.write_blocks(written);
        if blocks == 0 {
            return Evicted::Nothing;
        }
        self.counters.evictions += 1;
        let elapsed_us = started.elapsed().as_micros() as u64;
        self.counters.eviction_us += elapsed_us;
        self.counters.eviction_us_max = self.counters.eviction_us_max.max(elapsed_us);
        Evicted::Blocks(blocks)
    }

    /// Steps 2 and 3 for one block; `None` (and the id given back) when the table has nothing to evict.
    fn construct_block(&mut self, table_id: TableId, block_id: u32) -> Option<AlignedBuf> {
        let anticache = self.anticache.as_mut()?;
        let table = &mut self.tables[usize::from(table_id)];
        let identity = BlockIdentity {
            partition: anticache.partition,
            block_id,
            table: table_id,
            created_us: anticache.created_us(),
        };
        let mut builder = BlockBuilder::new(identity, anticache.buffers.take()?);
        let mut skipped = 0;
        while let Some(coldest) = table.chain().and_then(super::chain::LruChain::coldest) {
            if table.tuples().flags(coldest) & flag::UNSYNCED != 0 {
                // Its last write is not durable, which only the tuple's flags tell: it stays until it is.
                skipped += 1;
                if skipped > table.tuples().live() {
                    break;
                }
                table.touch(coldest);
                continue;
            }
            let Some(offset) = builder.push(table.tuples().row(coldest)) else {
                break;
            };
            table.evict(coldest, Location { block_id, offset }, &mut self.meter);
        }
        let tuples = builder.tuples();
        if tuples == 0 {
            anticache.buffers.give_back(builder.into_buffer());
            anticache.blocks.give_back(block_id);
            return None;
        }
        anticache.blocks.insert(
            block_id,
            BlockState {
                identity,
                tuples,
                holes: 0,
                place: Place::WriteFailed,
            },
        );
        self.counters.evicted_blocks += 1;
        self.counters.evicted_tuples += u64::from(tuples);
        let buffer = builder.finish();
        self.counters.evicted_bytes += buffer.len() as u64;
        Some(buffer)
    }

    /// Step 4. Runs of neighbouring ids become one write each.
    fn write_blocks(&mut self, written: Vec<(u32, AlignedBuf)>) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let mut written = written.into_iter().peekable();
        while let Some((first, buffer)) = written.next() {
            let (mut ids, mut buffers) = (vec![first], vec![buffer]);
            while let Some((id, buffer)) =
                written.next_if(|(id, _)| *id == first + ids.len() as u32)
            {
                ids.push(id);
                buffers.push(buffer);
            }
            let number = anticache.next_write;
            anticache.next_write = anticache.next_write.wrapping_add(1);
            let file = anticache.blocks.file().clone();
            let offset = anticache.blocks.file_offset(first);
            let operation =
                self.ring
                    .write(&file, offset, buffers, false, IoTag::Evict(number).pack());
            for (index, &id) in ids.iter().enumerate() {
                anticache.blocks.get_mut(id).place = Place::Writing { operation, index };
            }
            anticache.writes.insert(number, ids);
        }
    }

    /// An eviction's write ended.
    pub(crate) fn blocks_written(&mut self, number: u32, completion: Completion) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let ids = anticache.writes.remove(&number).unwrap_or_default();
        let place = if completion.result.is_ok() {
            Place::Stored
        } else {
            Place::WriteFailed
        };
        self.counters.write_errors += u64::from(completion.result.is_err());
        for id in ids {
            anticache.blocks.write_ended(id, place);
        }
        for buffer in completion.buffers {
            anticache.buffers.give_back(buffer);
        }
    }

    /// Between transactions: evicts when the budget is exceeded or nearly, and gives chunks back when other structures need their memory.
    pub(crate) fn keep_budget(&mut self) {
        if self.anticache.is_none() {
            return;
        }
        for index in 0..self.tables.len() {
            if self.tables[index].chain().is_some()
                && self.tables[index].tuples().allocated_bytes() > 0
            {
                self.make_room(
                    index,
                    LOW_WATER_SLOTS.min(self.tables[index].tuples().live() / 4),
                );
            }
        }
        while self.meter.is_over() {
            if !self.release_chunk() && !matches!(self.evict(), Evicted::Blocks(_)) {
                return;
            }
        }
    }

    /// Makes sure that `count` tuples can be added to a table, evicting what is coldest; false when that cannot be done now.
    pub(crate) fn make_room(&mut self, table: usize, count: u64) -> bool {
        loop {
            if self.tables[table].reserve(count, &mut self.meter) {
                return true;
            }
            if !matches!(self.evict(), Evicted::Blocks(_)) {
                return false;
            }
            if self.tables[table].tuples().free_slots() < count {
                // The eviction took from another table: its memory is of use here only after a chunk of it was given back.
                let chunk_bytes = self.tables[table].tuples().chunk_bytes();
                while !self.meter.fits(chunk_bytes) && self.release_chunk() {}
            }
        }
    }

    /// Gives back one chunk of the table with the most free slots.
    fn release_chunk(&mut self) -> bool {
        let free_bytes =
            |table: &Table| table.tuples().free_slots() * table.tuples().stride_bytes() as u64;
        let mut order: Vec<usize> = (0..self.tables.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(free_bytes(&self.tables[index])));
        let log = &mut self.log;
        for index in order {
            let released =
                self.tables[index].release_last_chunk(&mut self.meter, |tuple, flags| {
                    if let Some(log) = log {
                        log.moved(index as TableId, tuple, flags);
                    }
                });
            if released {
                self.counters.released_chunks += 1;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn a_hotter_table_gives_less() {
        assert_eq!(shares(&[(99, 10), (0, 10)], 101), [1, 100]);
        assert_eq!(shares(&[(5, 10), (5, 10)], 4), [2, 2]);
        assert_eq!(shares(&[(0, 0), (1000, 10)], 3), [0, 3]);
        assert_eq!(shares(&[(0, 0)], 3), [0]);
        assert_eq!(shares(&[(7, 10), (7, 20), (7, 20)], 1), [0, 1, 0]);
        assert_eq!(shares(&[], 3), Vec::<usize>::new());
    }
}
