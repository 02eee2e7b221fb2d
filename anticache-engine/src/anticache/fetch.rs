//! Fetch and merge (paper §3.4): bringing evicted tuples back without blocking the partition.
//!
//! 1. a pre-pass asks for tuples; those of one block share one fetch, also with other transactions;
//! 2. the block is read into a staging buffer, or taken from the buffer in which it still waits to be written; many reads are in flight;
//! 3. its header is checked, and room made for the tuples that will be merged;
//! 4. tuple-merge brings back the wanted tuples and leaves stale entries (holes); block-merge, and tuple-merge at a block whose holes have
//!    passed the threshold (lazy compaction), bring back every live tuple, the unwanted ones at the cold end, and delete the block;
//! 5. transactions whose last block this was become ready.

use std::time::Instant;

use super::Fetch;
use super::block::{BlockTuple, BlockView};
use super::block_table::{BlockState, Place};
use super::evicted_table::{EvictedId, Location};
use super::eviction::Room;
use crate::catalog::TableId;
use crate::config::Merge;
use crate::error::BlockError;
use crate::io::ring::Completion;
use crate::partition::{IoTag, Partition, WaitingId};
use crate::stats::Counters;
use crate::storage::meter::MemoryMeter;
use crate::storage::table::{Refused, Table};
use crate::storage::tuples::TupleId;

/// What a merge brought back.
#[derive(Default)]
struct Merged {
    /// The tuples that transactions wait for.
    wanted: Vec<TupleId>,
    /// All tuples.
    tuples: u32,
    /// Whether a wanted one found no memory.
    short: bool,
    /// Why one of them could not be brought back.
    problem: Option<BlockError>,
}

impl Partition {
    /// Step 1.
    pub(crate) fn request_fetches(&mut self, waiter: WaitingId, wanted: &[(TableId, EvictedId)]) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let mut pending = 0;
        for &(table, evicted_id) in wanted {
            let block_id = self.tables[usize::from(table)].evicted().location(evicted_id).block_id;
            let fetch = anticache.fetches.entry(block_id).or_insert_with(|| {
                anticache.queue.push_back(block_id);
                Fetch { table, wanted: Vec::new(), waiters: Vec::new() }
            });
            if !fetch.wanted.contains(&evicted_id) {
                fetch.wanted.push(evicted_id);
            }
            if fetch.waiters.last() != Some(&waiter) && !fetch.waiters.contains(&waiter) {
                fetch.waiters.push(waiter);
                pending += 1;
            }
        }
        if let Some(waiting) = &mut self.waiting[waiter] {
            waiting.blocks_pending = pending;
        }
    }

    /// Step 2: starts as many reads as there are buffers.
    pub(crate) fn start_fetches(&mut self) {
        loop {
            let Some(anticache) = &mut self.anticache else {
                return;
            };
            let Some(&block_id) = anticache.queue.front() else {
                return;
            };
            match anticache.blocks.get(block_id).place {
                Place::Writing { .. } | Place::Unwritten => {
                    if !self.merge_from_write_buffer(block_id) {
                        return;
                    }
                }
                Place::Stored => {
                    if anticache.buffers.available() <= anticache.reserved_for_eviction || !self.ring.has_room() {
                        return;
                    }
                    let Some(buffer) = anticache.buffers.take() else {
                        return;
                    };
                    let offset = anticache.blocks.file_offset(block_id);
                    self.ring.read(anticache.blocks.file(), offset, buffer, IoTag::Fetch(block_id).pack());
                    self.counters.fetched_blocks += 1;
                }
            }
            if let Some(anticache) = &mut self.anticache {
                anticache.queue.pop_front();
            }
        }
    }

    /// Step 2 for a block that is on its way to disk; false when there is no room for its tuples now.
    fn merge_from_write_buffer(&mut self, block_id: u32) -> bool {
        match self.make_room_for(block_id) {
            Room::Made => {}
            Room::Wait => return false,
            Room::Nothing => {
                self.fetch_failed(block_id, &self.no_memory(block_id));
                return true;
            }
        }
        let Some(anticache) = &mut self.anticache else {
            return true;
        };
        let place = anticache.blocks.get(block_id).place;
        let Some(fetch) = anticache.fetches.remove(&block_id) else {
            return true;
        };
        self.counters.fetched_from_buffer += 1;
        let state = *anticache.blocks.get(block_id);
        let whole = merges_whole(anticache.merge, anticache.hole_threshold, &state);
        let bytes = match place {
            Place::Writing { operation, index } => &self.ring.buffers(operation)[index],
            Place::Unwritten => &anticache.unwritten[&block_id],
            Place::Stored => unreachable!("making room reaps no completion, so a write cannot end in it"),
        };
        let table = &mut self.tables[usize::from(fetch.table)];
        let result = merge(table, &mut self.meter, &mut self.counters, &state, bytes, &fetch.wanted, whole);
        self.end_fetch(block_id, fetch, whole, result);
        true
    }

    /// A read ended.
    pub(crate) fn block_read(&mut self, block_id: u32, mut completion: Completion) {
        let buffer = completion.buffers.pop();
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        match (completion.result, buffer) {
            (Ok(()), Some(buffer)) => anticache.backlog.push_back((block_id, buffer)),
            (result, buffer) => {
                if let Some(buffer) = buffer {
                    anticache.buffers.give_back(buffer);
                }
                let problem = result.err().map_or_else(|| "no buffer".to_owned(), |error| error.to_string());
                self.fetch_failed(block_id, &BlockError::Read { block_id, problem });
            }
        }
    }

    /// Steps 3 to 5 for the blocks that were read.
    pub(crate) fn retry_merges(&mut self) {
        loop {
            let Some(anticache) = &mut self.anticache else {
                return;
            };
            let Some(&(block_id, _)) = anticache.backlog.front() else {
                return;
            };
            let room = self.make_room_for(block_id);
            if room == Room::Wait {
                return;
            }
            if room == Room::Nothing {
                self.fetch_failed(block_id, &self.no_memory(block_id));
            }
            let Some(anticache) = &mut self.anticache else {
                return;
            };
            let Some((block_id, buffer)) = anticache.backlog.pop_front() else {
                return;
            };
            let Some(fetch) = anticache.fetches.remove(&block_id) else {
                anticache.buffers.give_back(buffer);
                continue;
            };
            let state = *anticache.blocks.get(block_id);
            let whole = merges_whole(anticache.merge, anticache.hole_threshold, &state);
            let table = &mut self.tables[usize::from(fetch.table)];
            let result = merge(table, &mut self.meter, &mut self.counters, &state, &buffer, &fetch.wanted, whole);
            anticache.buffers.give_back(buffer);
            self.end_fetch(block_id, fetch, whole, result);
        }
    }

    fn make_room_for(&mut self, block_id: u32) -> Room {
        let Some(anticache) = &self.anticache else {
            return Room::Made;
        };
        let Some(fetch) = anticache.fetches.get(&block_id) else {
            return Room::Made;
        };
        let state = anticache.blocks.get(block_id);
        let whole = merges_whole(anticache.merge, anticache.hole_threshold, state);
        let count = if whole { u64::from(state.tuples - state.holes) } else { fetch.wanted.len() as u64 };
        let table = usize::from(fetch.table);
        match self.make_room(table, count) {
            // What tables have kept for transactions may be what this block needs.
            Room::Nothing if self.forget_wants() => self.make_room(table, count),
            room => room,
        }
    }

    fn no_memory(&self, block_id: u32) -> BlockError {
        let budget_bytes = self.meter.budget_bytes();
        BlockError::Read {
            block_id,
            problem: format!("no room in the memory budget of {budget_bytes} bytes, and nothing can be evicted"),
        }
    }

    /// Step 5, and the block's holes.
    fn end_fetch(&mut self, block_id: u32, fetch: Fetch, whole: bool, result: Result<Merged, BlockError>) {
        let merged = match result {
            Ok(merged) => merged,
            Err(error) => {
                self.counters.block_errors += 1;
                return self.release_waiters(fetch.waiters, Some(&error));
            }
        };
        if let Some(anticache) = &mut self.anticache {
            let state = anticache.blocks.get_mut(block_id);
            state.holes += merged.tuples;
            self.counters.compactions += u64::from(whole && anticache.merge == Merge::Tuple);
            if state.holes >= state.tuples {
                anticache.remove_block(block_id, &mut self.meter);
            }
        }
        self.hungry |= merged.short;
        if let Some(error) = merged.problem {
            self.counters.block_errors += 1;
            return self.release_waiters(fetch.waiters, Some(&error));
        }
        // Each waiter pins all of them: which one wanted which is not worth remembering.
        for &waiter in &fetch.waiters {
            for &tuple in &merged.wanted {
                self.pin(waiter, fetch.table, tuple);
            }
        }
        self.release_waiters(fetch.waiters, None);
    }

    fn fetch_failed(&mut self, block_id: u32, error: &BlockError) {
        self.counters.block_errors += 1;
        let fetch = self.anticache.as_mut().and_then(|anticache| anticache.fetches.remove(&block_id));
        if let Some(fetch) = fetch {
            self.release_waiters(fetch.waiters, Some(error));
        }
    }

    fn release_waiters(&mut self, waiters: Vec<WaitingId>, error: Option<&BlockError>) {
        for id in waiters {
            let Some(waiting) = &mut self.waiting[id] else {
                continue;
            };
            if let Some(error) = error {
                waiting.problem.get_or_insert_with(|| error.to_string());
            }
            waiting.blocks_pending -= 1;
            if waiting.blocks_pending == 0 {
                self.ready.push_back(id);
            }
        }
    }
}

/// Whether a fetch merges every tuple: block-merge always; tuple-merge when the holes found have passed the threshold.
fn merges_whole(merge: Merge, hole_threshold: f64, state: &BlockState) -> bool {
    match merge {
        Merge::Block => true,
        Merge::Tuple => f64::from(state.holes) > hole_threshold * f64::from(state.tuples),
    }
}

/// Steps 3 and 4. Room has been made for the tuples.
fn merge(
    table: &mut Table,
    meter: &mut MemoryMeter,
    counters: &mut Counters,
    state: &BlockState,
    bytes: &[u8],
    wanted: &[EvictedId],
    whole: bool,
) -> Result<Merged, BlockError> {
    let started = Instant::now();
    let view = BlockView::open(state.identity, bytes)?;
    let mut merged = Merged::default();
    // A whole block is checked before anything of it is merged. Where an unwanted tuple is damaged, the wanted ones may still be had.
    let tuples = if whole { view.all().collect::<Result<Vec<_>, _>>() } else { Ok(Vec::new()) };
    match tuples {
        Ok(tuples) if whole => {
            // Backwards, because each goes to the cold end: the coldest tuple of the block is put there last.
            for tuple in tuples.into_iter().rev() {
                let here = Location { block_id: state.identity.block_id, offset: tuple.offset };
                if table.evicted().is_live(tuple.entry) && table.evicted().location(tuple.entry) == here {
                    merged.bring_back(table, meter, tuple, wanted.contains(&tuple.entry));
                }
            }
        }
        checked => {
            counters.block_errors += u64::from(checked.is_err());
            let tuples: Vec<BlockTuple<'_>> = wanted
                .iter()
                .map(|&entry| view.tuple(table.evicted().location(entry).offset))
                .collect::<Result<_, _>>()?;
            for (&entry, tuple) in wanted.iter().zip(tuples) {
                merged.bring_back(table, meter, BlockTuple { entry, ..tuple }, true);
            }
        }
    }
    counters.merged_tuples += u64::from(merged.tuples);
    counters.merged_wanted += merged.wanted.len() as u64;
    let elapsed_us = started.elapsed().as_micros() as u64;
    counters.merge_us += elapsed_us;
    counters.merge_us_max = counters.merge_us_max.max(elapsed_us);
    Ok(merged)
}

impl Merged {
    /// Merges one tuple. One that finds no memory stays evicted: a transaction that wants it will ask again.
    fn bring_back(&mut self, table: &mut Table, meter: &mut MemoryMeter, tuple: BlockTuple<'_>, hot: bool) {
        match table.unevict(tuple.entry, tuple.row, hot, meter) {
            Ok(id) => {
                self.tuples += 1;
                if hot {
                    self.wanted.push(id);
                }
            }
            Err(Refused::NeedMemory) => self.short |= hot,
            Err(refused) => {
                let problem = BlockError::Row { offset: tuple.offset, problem: format!("{refused:?}") };
                self.problem.get_or_insert(problem);
            }
        }
    }
}
