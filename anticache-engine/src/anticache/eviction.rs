//! Eviction (paper §3.2): a special transaction that moves the coldest tuples into blocks.
//!
//! 1. share the blocks to write among the evictable tables, inversely to their accesses since the last eviction;
//! 2. for each block, pop tuples off the cold end of the table's chain and copy them into the block's buffer;
//! 3. for each of them, add an Evicted Table entry, point the index to it, free the slot;
//! 4. write all blocks, neighbouring ones in one sequential write; until it completes they are read from their buffers.

use std::time::{Duration, Instant};

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

/// How long after a failed write of blocks it is tried again.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What an eviction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// It evicted so many blocks.
    Blocks(usize),
    /// All buffers are in use, or the tuples' last writes are not durable: wait for the disk.
    Wait,
    /// No table has a tuple that may be evicted, or anti-caching is off.
    Nothing,
}

/// Whether there is room for more tuples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is.
    Made,
    /// Not before the disk has done something.
    Wait,
    /// Nothing is left that may be evicted.
    Nothing,
}

/// A table's part in the division of blocks.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Tuples looked up since the last eviction.
    pub accesses: u64,
    /// Whether it has anything to evict.
    pub evictable: bool,
    /// What rounding left over at earlier evictions, in blocks; updated.
    pub credit: f64,
    /// Blocks to evict now; set.
    pub blocks: usize,
}

/// Divides `blocks` among the evictable tables in inverse proportion to their accesses. Whole blocks cannot be divided, so each table keeps
/// its fraction as credit for the next eviction: over time the proportion holds, and no table is drained because it is merely second.
pub fn divide(shares: &mut [Share], blocks: usize) {
    let weight = |share: &Share| if share.evictable { 1.0 / (share.accesses as f64 + 1.0) } else { 0.0 };
    let total: f64 = shares.iter().map(weight).sum();
    if total == 0.0 {
        return;
    }
    for _ in 0..blocks {
        for share in shares.iter_mut() {
            share.credit += weight(share) / total;
        }
        let best =
            shares.iter_mut().filter(|share| share.evictable).reduce(|a, b| if b.credit > a.credit { b } else { a });
        if let Some(best) = best {
            best.credit -= 1.0;
            best.blocks += 1;
        }
    }
}

fn low_water_slots(table: &Table) -> u64 {
    LOW_WATER_SLOTS.min(table.tuples().live() / 4)
}

impl Partition {
    /// One eviction transaction.
    pub(crate) fn evict(&mut self) -> Evicted {
        // A snapshot has to save what is evicted.
        let snapshot_is_behind = self.snapshot_is_behind();
        let Some(anticache) = self.anticache.as_ref().filter(|anticache| anticache.retry_writes_at.is_none()) else {
            return Evicted::Nothing;
        };
        if snapshot_is_behind {
            return Evicted::Wait;
        }
        let count = anticache.blocks_per_eviction.min(anticache.buffers.available());
        if count == 0 || !self.ring.has_room() {
            return Evicted::Wait;
        }
        let started = Instant::now();
        let mut shares: Vec<Share> = self
            .tables
            .iter()
            .map(|table| Share {
                accesses: table.accesses_since_eviction,
                evictable: table.chain().is_some_and(|chain| !chain.is_empty()),
                credit: table.eviction_credit,
                blocks: 0,
            })
            .collect();
        divide(&mut shares, count);
        let ids = self.anticache.as_mut().map_or_else(Vec::new, |anticache| anticache.blocks.take_ids(count));
        let mut ids = ids.into_iter();
        let mut written: Vec<(u32, AlignedBuf)> = Vec::with_capacity(count);
        let mut unsynced = false;
        for (table, share) in shares.into_iter().enumerate() {
            for block_id in ids.by_ref().take(share.blocks) {
                written.extend(
                    self.construct_block(table as TableId, block_id, &mut unsynced).map(|buffer| (block_id, buffer)),
                );
            }
            self.tables[table].accesses_since_eviction = 0;
            self.tables[table].eviction_credit = share.credit;
        }
        for unused in ids {
            if let Some(anticache) = &mut self.anticache {
                anticache.blocks.give_back(unused);
            }
        }
        if written.is_empty() {
            // The tables whose turn it was have only tuples that must stay; another may have others.
            for table in 0..self.tables.len() {
                let Some(anticache) = self.anticache.as_mut().filter(|_| written.is_empty()) else { break };
                let block_id = anticache.blocks.take_ids(1)[0];
                written.extend(
                    self.construct_block(table as TableId, block_id, &mut unsynced).map(|buffer| (block_id, buffer)),
                );
            }
        }
        let blocks = written.len();
        self.write_blocks(written);
        if blocks == 0 {
            // Once the log has failed, no group becomes durable any more.
            return if unsynced && !self.has_failed() { Evicted::Wait } else { Evicted::Nothing };
        }
        self.counters.evictions += 1;
        let elapsed_us = started.elapsed().as_micros() as u64;
        self.counters.eviction_us += elapsed_us;
        self.counters.eviction_us_max = self.counters.eviction_us_max.max(elapsed_us);
        Evicted::Blocks(blocks)
    }

    /// Steps 2 and 3 for one block, setting `unsynced` when a tuple had to stay for its log group; `None` (and the id given back) when the table has nothing to evict.
    fn construct_block(&mut self, table_id: TableId, block_id: u32, unsynced: &mut bool) -> Option<AlignedBuf> {
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
            let flags = table.tuples().flags(coldest);
            if flags & (flag::UNSYNCED | flag::PINNED) != 0 {
                *unsynced |= flags & flag::UNSYNCED != 0;
                // A waiting transaction needs it, or its last write is not durable, which only the tuple's flags tell: it stays until then.
                skipped += 1;
                if skipped > table.tuples().live() {
                    break;
                }
                table.touch(coldest);
                continue;
            }
            let row_bytes = if table.def().has_var() {
                anticache.scratch.clear();
                table.serialize(coldest, &mut anticache.scratch);
                anticache.scratch.len()
            } else {
                table.def().row_bytes
            };
            let Some(offset) = builder.place_for(row_bytes) else {
                break;
            };
            let entry = table.evict(coldest, Location { block_id, offset }, &mut self.meter);
            let row = if table.def().has_var() { &anticache.scratch } else { table.tuples().row(coldest) };
            builder.push(entry, row);
            table.forget_evicted(coldest);
        }
        let tuples = builder.tuples();
        if tuples == 0 {
            anticache.buffers.give_back(builder.into_buffer());
            anticache.blocks.give_back(block_id);
            return None;
        }
        anticache.blocks.insert(block_id, BlockState { identity, tuples, holes: 0, place: Place::Unwritten });
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
            while let Some((id, buffer)) = written.next_if(|(id, _)| *id == first + ids.len() as u32) {
                ids.push(id);
                buffers.push(buffer);
            }
            let number = anticache.next_write;
            anticache.next_write = anticache.next_write.wrapping_add(1);
            let file = anticache.blocks.file().clone();
            let offset = anticache.blocks.file_offset(first);
            let operation = self.ring.write(&file, offset, buffers, false, IoTag::Evict(number).pack());
            for (index, &id) in ids.iter().enumerate() {
                anticache.blocks.get_mut(id).place = Place::Writing { operation, index };
            }
            anticache.writes.insert(number, ids);
        }
    }

    /// Writes again, from time to time, the blocks whose write failed.
    pub(crate) fn retry_writes(&mut self) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        if anticache.retry_writes_at.is_none_or(|at| Instant::now() < at) || !anticache.writes.is_empty() {
            return;
        }
        if anticache.unwritten.is_empty() {
            eprintln!("anticached: the evicted blocks are written now; evicting again");
            anticache.retry_writes_at = None;
            return;
        }
        let mut ids: Vec<u32> = anticache.unwritten.keys().copied().collect();
        ids.sort_unstable();
        // As many as there may be writes in flight of their own; the others follow when these have ended.
        ids.truncate(anticache.blocks_per_eviction);
        let again = ids.into_iter().filter_map(|id| Some((id, anticache.unwritten.remove(&id)?))).collect();
        self.write_blocks(again);
    }

    /// An eviction's write ended.
    pub(crate) fn blocks_written(&mut self, number: u32, completion: Completion) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let ids = anticache.writes.remove(&number).unwrap_or_default();
        let place = if completion.result.is_ok() { Place::Stored } else { Place::Unwritten };
        if let Err(error) = completion.result {
            self.counters.write_errors += 1;
            if anticache.retry_writes_at.is_none() {
                eprintln!(
                    "anticached: evicted blocks {ids:?} cannot be written: {error}; they stay in memory and are tried again every {} s, and \
                     nothing more is evicted until then",
                    WRITE_RETRY_INTERVAL.as_secs()
                );
            }
            anticache.retry_writes_at = Some(Instant::now() + WRITE_RETRY_INTERVAL);
        }
        for (id, buffer) in ids.into_iter().zip(completion.buffers) {
            let needed = anticache.blocks.write_ended(id, place) && place == Place::Unwritten;
            anticache.keep_or_give_back(id, buffer, needed, &mut self.meter);
        }
    }

    /// Between transactions: evicts when the budget is exceeded or nearly, and gives chunks back when other structures need their memory.
    pub(crate) fn keep_budget(&mut self) {
        if self.anticache.is_none() {
            return;
        }
        for index in 0..self.tables.len() {
            if self.tables[index].chain().is_some() && self.tables[index].tuples().allocated_bytes() > 0 {
                self.make_room(index, low_water_slots(&self.tables[index]));
            }
        }
        while self.meter.is_over() {
            if !self.release_chunk(None) && !matches!(self.evict(), Evicted::Blocks(_)) {
                return;
            }
        }
    }

    /// Makes sure that `count` tuples can be added to a table, evicting what is coldest.
    pub(crate) fn make_room(&mut self, table: usize, count: u64) -> Room {
        loop {
            if self.tables[table].reserve(count, &mut self.meter) {
                return Room::Made;
            }
            // Memory that another table has left over, a whole chunk of it, is used before anything more is evicted. When the budget is exceeded,
            // free slots of this table do not help either, but a chunk of them does.
            let spared = (!self.meter.is_over()).then_some(table);
            if self.release_chunk(spared) {
                continue;
            }
            match self.evict() {
                Evicted::Blocks(_) => {}
                Evicted::Wait => return Room::Wait,
                Evicted::Nothing if self.unpin_all() => {}
                Evicted::Nothing => return Room::Nothing,
            }
        }
    }

    /// Gives back one chunk, or one slab of variable-length data, of the table with the most free memory. With `spared`: of the others, for that table's good, and leaving them what they
    /// would otherwise want back at once.
    fn release_chunk(&mut self, spared: Option<usize>) -> bool {
        let mut order: Vec<usize> = (0..self.tables.len()).filter(|&index| Some(index) != spared).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.tables[index].free_bytes()));
        let log = &mut self.log;
        for index in order {
            let kept = if spared.is_some() { low_water_slots(&self.tables[index]) } else { 0 };
            let kept = kept.max(self.tables[index].wanted_slots());
            let released = self.tables[index].release_last_chunk(kept, &mut self.meter, |tuple, flags| {
                if let Some(log) = log {
                    log.moved(index as TableId, tuple, flags);
                }
            });
            if released || !self.tables[index].is_hungry() && self.tables[index].release_slab(&mut self.meter) {
                self.counters.released_chunks += 1;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Share, divide};

    fn blocks(tables: &[(u64, bool)], rounds: usize, per_round: usize) -> Vec<usize> {
        let share = |&(accesses, evictable): &(u64, bool)| Share { accesses, evictable, credit: 0.0, blocks: 0 };
        let mut shares: Vec<Share> = tables.iter().map(share).collect();
        for _ in 0..rounds {
            divide(&mut shares, per_round);
        }
        shares.iter().map(|share| share.blocks).collect()
    }

    #[test]
    fn a_hotter_table_gives_less() {
        assert_eq!(blocks(&[(99, true), (0, true)], 1, 101), [1, 100]);
        assert_eq!(blocks(&[(5, true), (5, true)], 1, 4), [2, 2]);
        assert_eq!(blocks(&[(0, false), (1000, true)], 1, 3), [0, 3]);
        assert_eq!(blocks(&[(0, false)], 1, 3), [0]);
        assert_eq!(blocks(&[], 1, 3), Vec::<usize>::new());
    }

    #[test]
    fn single_blocks_keep_the_proportion_over_time() {
        assert_eq!(blocks(&[(3, true), (0, true)], 100, 1), [20, 80]);
    }
}
