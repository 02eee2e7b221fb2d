//! Eviction (paper §3.2): a special transaction that moves the coldest tuples into blocks.
//!
//! 1. choose the table of the next block ([`super::shares`]);
//! 2. pop tuples off the cold end of the table's chain and copy them into the block's buffer;
//! 3. for each of these, add an Evicted Table entry, point the index to it, free the slot;
//! 4. when all blocks of the eviction are constructed, write them, neighbouring ones in one sequential write; until it completes they are read from their buffers.
//!
//! Steps 2 and 3 are taken a block at a time, with transactions in between: each block is a transaction of its own, after which every tuple is in
//! one place. A transaction that finds no memory waits for as many blocks as it needs, not for the whole eviction.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::AntiCache;
use super::block::BlockBuilder;
use super::block_table::{BlockState, Place};
use super::chain::LruChain;
use super::evicted_table::Location;
use super::shares::{coldest_table, least_accessed_table};
use crate::catalog::TableId;
use crate::config::EvictFrom;
use crate::events::{Amounts, EventKind, Events};
use crate::io::AlignedBuf;
use crate::io::ring::Completion;
use crate::partition::{IoTag, Partition};
use crate::stats::Counters;
use crate::storage::index::TOGETHER;
use crate::storage::meter::MemoryMeter;
use crate::storage::table::Table;
use crate::storage::tuples::{NO_TUPLE, TupleId, flag};

/// How long after a failed write of blocks it is tried again.
pub(super) const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Tuples with writes that are not durable that the construction of a block passes over, before it rather waits for the log.
const MOST_UNSYNCED: u64 = 4096;

/// What a step of an eviction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// It constructed a block.
    Block,
    /// All buffers are in use: wait for the disk.
    Wait,
    /// Of the tuples that need not stay, the last writes are not durable: wait for the log.
    Unsynced,
    /// No table has a tuple that may be evicted, or anti-caching is off.
    Nothing,
}

/// Who asks for an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A check between transactions.
    Check,
    /// A transaction or a merge that finds no memory.
    Demand,
}

/// An eviction whose blocks are being constructed.
#[derive(Debug)]
pub(crate) struct Eviction {
    cause: Cause,
    /// The only table that gives blocks; `None` = whichever [`super::shares`] says.
    table: Option<TableId>,
    /// The ids of the blocks to construct.
    ids: VecDeque<u32>,
    /// The blocks constructed; their buffers are with the unwritten blocks.
    constructed: Vec<u32>,
    tuples: u64,
    /// How long the executor was busy with it so far.
    took_us: u64,
}

impl AntiCache {
    fn begin_eviction(&mut self, cause: Cause, blocks: usize, table: Option<TableId>) {
        let ids = self.blocks.take_ids(blocks).into();
        self.eviction = Some(Eviction { cause, table, ids, constructed: Vec::new(), tuples: 0, took_us: 0 });
    }

    /// Table and id of the next block to construct; `None` when there is none left in the eviction under way.
    fn next_block(&mut self, tables: &mut [Table]) -> Option<(TableId, u32)> {
        let eviction = self.eviction.as_mut()?;
        let only = eviction.table;
        let id = eviction.ids.pop_front()?;
        let table = only.or_else(|| match self.evict_from {
            EvictFrom::Coldest => coldest_table(tables),
            EvictFrom::InverseAccesses => least_accessed_table(&mut self.shares, tables),
        });
        if table.is_none() {
            self.blocks.give_back(id);
        }
        Some((table?, id))
    }

    /// Ends the eviction under way: counts it and returns the ids of its blocks, which are not written yet.
    fn end_eviction(&mut self, counters: &mut Counters, events: &mut Events) -> Vec<u32> {
        let Some(eviction) = self.eviction.take() else {
            return Vec::new();
        };
        for unused in eviction.ids {
            self.blocks.give_back(unused);
        }
        if !eviction.constructed.is_empty() {
            counters.evictions += 1;
            counters.evictions_by_check += u64::from(eviction.cause == Cause::Check);
            counters.evictions_on_demand += u64::from(eviction.cause == Cause::Demand);
            let blocks = eviction.constructed.len();
            let bytes = (blocks * self.blocks.block_bytes()) as u64;
            let (took_us, tuples) = (eviction.took_us, eviction.tuples);
            let amounts = Amounts { took_us, blocks: blocks as u32, tuples, bytes, ..Amounts::default() };
            events.add(EventKind::Eviction, amounts);
        }
        eviction.constructed
    }
}

impl Partition {
    /// One step of an eviction: constructs a block, and writes them all when it was the last. Begins an eviction when none is under way.
    pub(crate) fn evict(&mut self, cause: Cause) -> Evicted {
        // A snapshot has to save what is evicted.
        let snapshot_is_behind = self.snapshot_delays_evictions();
        let Some(anticache) = self.anticache.as_mut().filter(|anticache| anticache.retry_writes_at.is_none()) else {
            return Evicted::Nothing;
        };
        if snapshot_is_behind || anticache.buffers.available() == 0 || !self.ring.has_room() {
            return Evicted::Wait;
        }
        let (started, tuples) = (Instant::now(), self.counters.evicted_tuples);
        if anticache.eviction.is_none() {
            let count = anticache.blocks_per_eviction.min(anticache.buffers.available());
            anticache.begin_eviction(cause, count, None);
        }
        let mut unsynced = false;
        let mut constructed = self.construct_next(&mut unsynced);
        if !constructed {
            // The tables whose turn it was have only tuples that must stay; another may have others.
            self.finish_eviction();
            constructed = (0..self.tables.len() as TableId).any(|table| {
                if let Some(anticache) = &mut self.anticache {
                    anticache.begin_eviction(cause, 1, Some(table));
                }
                self.construct_next(&mut unsynced)
            });
        }
        let elapsed_us = started.elapsed().as_micros() as u64;
        if let Some(eviction) = self.anticache.as_mut().and_then(|anticache| anticache.eviction.as_mut()) {
            eviction.tuples += self.counters.evicted_tuples - tuples;
            eviction.took_us += elapsed_us;
            if eviction.ids.is_empty() {
                self.finish_eviction();
            }
        }
        if !constructed {
            // Once the log has failed, no group becomes durable any more.
            return if unsynced && !self.has_failed() { Evicted::Unsynced } else { Evicted::Nothing };
        }
        if let Some(anticache) = &mut self.anticache {
            // The blocks that follow are constructed, and what else is due is found, when transactions had their turn.
            anticache.again = true;
        }
        let elapsed_us = started.elapsed().as_micros() as u64;
        self.counters.eviction_us += elapsed_us;
        self.counters.eviction_us_max = self.counters.eviction_us_max.max(elapsed_us);
        Evicted::Block
    }

    /// Constructs the next block of the eviction under way; a table that has nothing to evict is passed over. False when it was the last.
    fn construct_next(&mut self, unsynced: &mut bool) -> bool {
        loop {
            let tables = &mut self.tables;
            let Some((table, id)) = self.anticache.as_mut().and_then(|anticache| anticache.next_block(tables)) else {
                return false;
            };
            let buffer = self.construct_block(table, id, unsynced);
            if let (Some(buffer), Some(anticache)) = (buffer, &mut self.anticache) {
                anticache.unwritten.insert(id, buffer);
                if let Some(eviction) = &mut anticache.eviction {
                    eviction.constructed.push(id);
                }
                return true;
            }
        }
    }

    /// Step 4, for the blocks constructed so far; what the eviction had left to do is dropped.
    pub(crate) fn finish_eviction(&mut self) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let ids = anticache.end_eviction(&mut self.counters, &mut self.events);
        let written = ids.into_iter().filter_map(|id| Some((id, anticache.unwritten.remove(&id)?))).collect();
        self.write_blocks(written);
    }

    /// Steps 2 and 3 for one block, setting `unsynced` when a tuple had to stay for its log group; `None` (and the id given back) when the table
    /// has nothing to evict.
    fn construct_block(&mut self, table_id: TableId, block_id: u32, unsynced: &mut bool) -> Option<AlignedBuf> {
        let anticache = self.anticache.as_mut()?;
        let table = &mut self.tables[usize::from(table_id)];
        let identity = anticache.new_identity(block_id, table_id);
        let mut builder = BlockBuilder::new(identity, anticache.buffers.take()?);
        *unsynced |= fill(&mut builder, table, &mut self.meter, &mut anticache.scratch);
        let tuples = builder.tuples();
        if tuples == 0 {
            anticache.buffers.give_back(builder.into_buffer());
            anticache.blocks.give_back(block_id);
            return None;
        }
        let used_bytes = builder.used_bytes();
        anticache
            .blocks
            .insert(block_id, BlockState { identity, tuples, holes: 0, used_bytes, place: Place::Unwritten });
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
            (anticache.retry_writes_at, anticache.write_problem) = (None, None);
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
            anticache.write_problem = Some(error.to_string());
            // What an eviction under way has constructed is written with the rest.
            anticache.end_eviction(&mut self.counters, &mut self.events);
        }
        for (id, buffer) in ids.into_iter().zip(completion.buffers) {
            let needed = anticache.blocks.write_ended(id, place) && place == Place::Unwritten;
            anticache.keep_or_give_back(id, buffer, needed, &mut self.meter);
        }
    }
}

/// How many tuples the prefetching is ahead of the construction of a block.
const AHEAD: usize = 8;

/// Walks along a chain from its cold end, ahead of the construction of a block: the cache misses of cold tuples overlap instead of following each
/// other.
struct Lookahead(TupleId);

impl Lookahead {
    fn new(table: &Table) -> Self {
        let mut lookahead = Self(table.chain().and_then(LruChain::coldest).unwrap_or(NO_TUPLE));
        (0..AHEAD).for_each(|_| lookahead.step(table));
        lookahead
    }

    /// Asks for one more tuple.
    fn step(&mut self, table: &Table) {
        let (tuples, id) = (table.tuples(), self.0);
        if id != NO_TUPLE {
            tuples.prefetch(id);
            tuples.prefetch_columns(id, &(0..usize::MAX));
            self.0 = tuples.next(id);
            tuples.prefetch_links(self.0);
        }
    }
}

/// Steps 2 and 3 for one block: moves the table's coldest tuples into `builder` until it is full. `scratch` is for the rows of tables with VARCHAR
/// columns. Returns whether a tuple had to stay for its log group.
pub fn fill(builder: &mut BlockBuilder, table: &mut Table, meter: &mut MemoryMeter, scratch: &mut Vec<u8>) -> bool {
    let block_id = builder.identity().block_id;
    let (mut skipped, mut skipped_unsynced, mut ends) = (0, 0, false);
    let mut lookahead = Lookahead::new(table);
    while !ends {
        let mut evicted: SmallVec<[_; TOGETHER]> = SmallVec::new();
        let mut next = table.chain().and_then(LruChain::coldest);
        while let Some(id) = next.filter(|_| evicted.len() < TOGETHER) {
            lookahead.step(table);
            next = Some(table.tuples().next(id)).filter(|&next| next != NO_TUPLE);
            let flags = table.tuples().flags(id);
            if flags & (flag::UNSYNCED | flag::PINNED) != 0 {
                // A waiting transaction needs it, or its last write is not durable, which only the tuple's flags tell: it stays until then.
                skipped += 1;
                skipped_unsynced += u64::from(flags & flag::UNSYNCED != 0);
                ends = skipped > table.tuples().live() || skipped_unsynced > MOST_UNSYNCED;
                if ends {
                    break;
                }
                table.touch(id);
                continue;
            }
            let has_var = table.def().has_var();
            if has_var {
                scratch.clear();
                table.serialize(id, scratch);
            }
            let row_bytes = if has_var { scratch.len() } else { table.def().row_bytes };
            let Some(offset) = builder.place_for(row_bytes) else {
                ends = true;
                break;
            };
            let entry = table.enter_evicted(id, Location { block_id, offset });
            builder.push(entry, if has_var { scratch.as_slice() } else { table.tuples().row(id) });
            evicted.push((id, entry));
        }
        ends |= evicted.is_empty();
        table.lead_to_evicted(&evicted);
        evicted.iter().for_each(|&(id, _)| table.forget_evicted(id));
    }
    table.account(meter);
    skipped_unsynced > 0
}
