//! Fetch and merge (paper §3.4): bringing evicted tuples back without blocking the partition.
//!
//! 1. a pre-pass asks for tuples; those of one block, or of one of its sectors, share one fetch, also with other transactions;
//! 2. the block, or the sectors in which these tuples lie, is read into a staging buffer, or taken from the buffer in which it still waits to be
//!    written; many reads are in flight;
//! 3. its header is checked, and room made for the tuples that will be merged;
//! 4. tuple-merge brings back the wanted tuples and leaves stale entries (holes); block-merge, and tuple-merge at a block whose holes have
//!    passed the threshold (lazy compaction), bring back every live tuple, the unwanted ones at the cold end, and delete the block;
//! 5. transactions whose last block this was become ready.

use std::ops::Range;
use std::time::Instant;

use super::block::{BlockTuple, BlockView, TUPLE_PREFIX_BYTES};
use super::block_table::{BlockState, Place};
use super::evicted_table::{EvictedId, Location};
use super::{AntiCache, Fetch, FetchKey, Few, Room};
use crate::catalog::TableId;
use crate::config::{FetchUnit, Merge};
use crate::error::BlockError;
use crate::events::{Amounts, EventKind};
use crate::io::ring::Completion;
use crate::io::{AlignedBuf, DIRECT_IO_ALIGN_BYTES};
use crate::partition::{Age, IoTag, Partition, WaitingId};
use crate::stats::{Counters, PauseKind};
use crate::storage::meter::MemoryMeter;
use crate::storage::region::{lines_of, prefetch};
use crate::storage::table::{Refused, Table};
use crate::storage::tuples::TupleId;

/// Tuples after which the merging of blocks lets transactions run before it goes on; one block is always merged.
const MOST_MERGED: u32 = 1024;

/// Merges whose memory is prefetched together.
const MERGE_WINDOW: usize = 16;
/// Lines of a tuple that are; the processor's own prefetcher follows the checksum from there.
const LINES_AHEAD: usize = 4;

/// What a merge brought back.
#[derive(Debug, Default)]
pub struct Merged {
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// The tuples that transactions wait for, with the entries that they had in the Evicted Table.
    pub wanted: Few<(EvictedId, TupleId)>,
    /// All tuples.
    pub tuples: u32,
    /// Why one of them could not be brought back.
    pub problem: Option<BlockError>,
    /// Whether one of them found no memory, and the rest was left for later.
    pub is_short: bool,
}

impl Partition {
    /// Step 1.
    pub(crate) fn request_fetches(&mut self, waiter: WaitingId, wanted: &[(TableId, EvictedId)]) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let mut pending = 0;
        for &(table, evicted_id) in wanted {
            let key = anticache.key_for(self.tables[usize::from(table)].evicted().location(evicted_id));
            let fetch = anticache.fetches.entry(key).or_insert_with(|| {
                anticache.queue.push_back(key);
                Fetch { table, wanted: Few::new(), waiters: Few::new(), read: None, waits_since: None }
            });
            fetch.wanted.push((evicted_id, waiter));
            // Nobody else asks for anything in between.
            if fetch.waiters.last() != Some(&waiter) {
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
        while let Some(&key) = self.anticache.as_ref().and_then(|anticache| anticache.queue.front()) {
            if !self.start_fetch(key) {
                return;
            }
            if let Some(anticache) = &mut self.anticache {
                anticache.queue.pop_front();
            }
        }
    }

    /// Step 2 for one fetch; false when it has to wait.
    fn start_fetch(&mut self, key: FetchKey) -> bool {
        let Some(anticache) = &mut self.anticache else {
            return true;
        };
        let place = anticache.blocks.find(key.block_id).map(|state| state.place);
        let wanted = anticache.wanted_part(key, &self.tables);
        match (place, wanted) {
            (Some(Place::Stored), Some(part)) => {
                let Some(buffer) = self.ring.has_room().then(|| anticache.take_for(key)).flatten() else {
                    return false;
                };
                let part = if key.sector.is_some() { part } else { 0..buffer.len() };
                let (file, offset) = (anticache.blocks.file(), anticache.blocks.file_offset(key.block_id));
                let tag = IoTag::Fetch(key.pack()).pack();
                self.ring.read_some(file, offset + part.start as u64, buffer, part.len(), tag);
                self.counters.fetched_blocks += 1;
                self.counters.fetched_bytes += part.len() as u64;
                let created_us = anticache.blocks.get(key.block_id).identity.created_us;
                if let Some(fetch) = anticache.fetches.get_mut(&key) {
                    fetch.read = Some((part, created_us));
                }
                self.events.add(EventKind::Fetch, Amounts { block: key.block_id, blocks: 1, ..Amounts::default() });
                true
            }
            (Some(Place::Writing { .. } | Place::Unwritten), Some(_)) => {
                let started = Instant::now();
                let is_done = !self.defers_merge() && self.merge_fetched(key, None);
                if is_done {
                    self.pauses.add(PauseKind::Merge, started);
                }
                is_done
            }
            // What was wanted of it is in memory or elsewhere.
            (_, None) | (None, _) => {
                self.end_fetch(key);
                true
            }
        }
    }

    /// Ends a fetch; who waits for it runs again and sees where its tuples are.
    fn end_fetch(&mut self, key: FetchKey) {
        let fetch = self.anticache.as_mut().and_then(|anticache| anticache.fetches.remove(&key));
        self.release_waiters(fetch.map(|fetch| fetch.waiters).unwrap_or_default(), None);
    }

    /// A read ended.
    pub(crate) fn fetched(&mut self, packed_key: u64, mut completion: Completion) {
        let (key, buffer) = (FetchKey::unpack(packed_key), completion.buffers.pop());
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        match (completion.result, buffer) {
            (Ok(()), Some(buffer)) => anticache.backlog.push_back((key, buffer)),
            (result, buffer) => {
                if let Some(buffer) = buffer {
                    anticache.give_back_of(key, buffer);
                }
                let problem = result.err().map_or_else(|| "no buffer".to_owned(), |error| error.to_string());
                self.fetch_failed(key, &BlockError::Read { block_id: key.block_id, problem });
            }
        }
    }

    /// Whether so much was merged in this turn that transactions shall run first.
    fn defers_merge(&mut self) -> bool {
        let Some(anticache) = self.anticache.as_mut().filter(|anticache| anticache.merged >= MOST_MERGED) else {
            return false;
        };
        anticache.again = true;
        true
    }

    /// Steps 3 to 5 for the blocks that were read.
    pub(crate) fn retry_merges(&mut self) {
        if self.anticache.as_ref().is_none_or(|anticache| anticache.backlog.is_empty()) {
            return;
        }
        let (started, before) = (Instant::now(), (self.counters.merged_tuples, self.counters.evicted_blocks));
        self.merge_backlog();
        if before != (self.counters.merged_tuples, self.counters.evicted_blocks) {
            self.pauses.add(PauseKind::Merge, started);
        }
    }

    fn merge_backlog(&mut self) {
        let mut near = 0;
        while !self.defers_merge() {
            if near == 0 {
                near = self.bring_merges_near();
            }
            near = near.saturating_sub(1);
            let Some((key, buffer)) = self.anticache.as_mut().and_then(|anticache| anticache.backlog.pop_front())
            else {
                return;
            };
            let is_done = self.reads_again(key) || self.merge_fetched(key, Some(&buffer));
            if let Some(anticache) = &mut self.anticache {
                if is_done {
                    anticache.give_back_of(key, buffer);
                } else {
                    return anticache.backlog.push_front((key, buffer));
                }
            }
        }
    }

    /// Brings near what the next merges will touch first, for several at once as the executor does it for transactions; for how many. One tuple of each:
    /// of sectors seldom more are wanted, and the tuples of a block follow each other.
    fn bring_merges_near(&self) -> usize {
        let Some(anticache) = &self.anticache else { return 0 };
        let mut merges = [None; MERGE_WINDOW];
        for ((key, buffer), merge) in anticache.backlog.iter().zip(&mut merges) {
            let Some(fetch) = anticache.fetches.get(key) else { continue };
            let (Some(&(entry, _)), Some((part, _))) = (fetch.wanted.first(), &fetch.read) else { continue };
            let table = &self.tables[usize::from(fetch.table)];
            table.evicted().prefetch(entry);
            *merge = Some((table, entry, part.start, &buffer[..]));
        }
        for (table, entry, start, read) in
            merges.into_iter().flatten().filter(|(table, entry, ..)| table.evicted().is_live(*entry))
        {
            table.prefetch_entry_of(entry);
            let offset = table.evicted().location(entry).offset as usize;
            if let Some(tuple) = offset.checked_sub(start).and_then(|at| read.get(at..)) {
                lines_of(tuple).take(LINES_AHEAD).for_each(prefetch);
            }
        }
        anticache.backlog.len().min(MERGE_WINDOW)
    }

    /// Steps 3 to 5 for what was `read`, or a block that is on its way to disk; false when there is no room for its tuples now. Room is made for their
    /// slots; when a text finds none, what was merged so far is kept, and room is made for that, before anybody else can take it.
    fn merge_fetched(&mut self, key: FetchKey, read: Option<&AlignedBuf>) -> bool {
        let is_from_buffer = read.is_none();
        // Merges in a row that brought nothing back: one may be short of memory for each text of its first row.
        let mut in_vain = 0;
        // Where there is no room for all of a block, what is wanted of it must do.
        let mut may_be_whole = key.sector.is_none();
        loop {
            match self.make_room_for(key, may_be_whole) {
                Room::Made => {}
                Room::AfterOthers | Room::Nothing if may_be_whole => {
                    may_be_whole = false;
                    continue;
                }
                Room::Wait => return false,
                Room::AfterOthers => {
                    self.postpone_fetch(key);
                    return true;
                }
                Room::Nothing => {
                    self.refuse_oldest(key);
                    return true;
                }
            }
            let Some(anticache) = &mut self.anticache else {
                return true;
            };
            let Some(fetch) = anticache.fetches.get(&key) else {
                return true;
            };
            let state = *anticache.blocks.get(key.block_id);
            let whole = may_be_whole && anticache.merges_whole(&state);
            let view = match (read, &fetch.read, state.place) {
                (Some(buffer), Some((part, _)), _) if key.sector.is_some() => {
                    Ok(BlockView::of_part(state.identity, &buffer[..part.len()], part.start))
                }
                (Some(buffer), ..) => BlockView::open(state.identity, buffer),
                (None, _, Place::Writing { operation, index }) => {
                    BlockView::open(state.identity, &self.ring.buffers(operation)[index])
                }
                (None, _, Place::Unwritten) => BlockView::open(state.identity, &anticache.unwritten[&key.block_id]),
                (None, _, Place::Stored) => {
                    unreachable!("making room reaps no completion, so a write cannot end in it")
                }
            };
            let table = &mut self.tables[usize::from(fetch.table)];
            let result = view.and_then(|view| {
                merge(table, &mut self.meter, &mut self.counters, view, key.block_id, &fetch.entries(), whole)
            });
            in_vain = if result.as_ref().is_ok_and(|merged| merged.tuples == 0) { in_vain + 1 } else { 0 };
            let may_go_on = in_vain <= table.def().var_offsets.len();
            if self.end_merge(key, whole, may_go_on, result) {
                self.counters.fetched_from_buffer += u64::from(is_from_buffer);
                return true;
            }
        }
    }

    /// Starts over with a fetch when what is wanted now is not in what was read: other sectors, or it is not in this block any more.
    fn reads_again(&mut self, key: FetchKey) -> bool {
        let Some(anticache) = &mut self.anticache else {
            return false;
        };
        let Some((part, created_us)) = anticache.fetches.get(&key).and_then(|fetch| fetch.read.clone()) else {
            return false;
        };
        let is_same = anticache.blocks.find(key.block_id).is_some_and(|state| state.identity.created_us == created_us);
        let is_read = |needed: Range<usize>| part.start <= needed.start && needed.end <= part.end;
        if is_same && anticache.wanted_part(key, &self.tables).is_some_and(is_read) {
            return false;
        }
        anticache.queue.push_front(key);
        anticache.again = true;
        true
    }

    /// Room for the tuples of a block that are wanted; for all of them if they `may_be` merged, but then nobody else gives up anything for it.
    fn make_room_for(&mut self, key: FetchKey, may_be_whole: bool) -> Room {
        let Some(anticache) = &self.anticache else {
            return Room::Made;
        };
        let Some(fetch) = anticache.fetches.get(&key) else {
            return Room::Made;
        };
        let state = anticache.blocks.get(key.block_id);
        let whole = may_be_whole && anticache.merges_whole(state);
        let count = if whole { u64::from(state.live()) } else { fetch.distinct() };
        let (table, age) = (usize::from(fetch.table), if whole { Age::NEW } else { self.oldest(&fetch.waiters) });
        // Two groups later all is durable that was not: what is not now was written again, and may be again and again.
        let groups = self.log.as_ref().map_or(0, |log| log.groups_written);
        let patient = fetch.waits_since.is_none_or(|since| groups < since + 2);
        let room = match self.make_room(table, count, age, patient) {
            // What tables have kept for transactions may be what this block needs.
            Room::Nothing | Room::AfterOthers if !whole && self.forget_wants() => {
                self.make_room(table, count, age, patient)
            }
            room => room,
        };
        let fetch = self.anticache.as_mut().and_then(|anticache| anticache.fetches.get_mut(&key));
        if let Some(fetch) = fetch.filter(|_| room == Room::Wait) {
            fetch.waits_since.get_or_insert(groups);
        }
        room
    }

    fn no_memory(&self, block_id: u32) -> BlockError {
        let budget_bytes = self.meter.budget_bytes();
        BlockError::Read {
            block_id,
            problem: format!("no room in the memory budget of {budget_bytes} bytes, and nothing can be evicted"),
        }
    }

    /// Step 5, and the block's holes. False when there is more to merge, for which room has to be made: if the merging
    /// `may_go_on`.
    fn end_merge(&mut self, key: FetchKey, whole: bool, may_go_on: bool, result: Result<Merged, BlockError>) -> bool {
        let block_id = key.block_id;
        let Some(anticache) = &mut self.anticache else {
            return true;
        };
        let Some(fetch) = anticache.fetches.remove(&key) else {
            return true;
        };
        let mut merged = match result {
            Ok(merged) => merged,
            Err(error) => {
                self.block_failed(block_id);
                self.release_waiters(fetch.waiters, Some(&error));
                return true;
            }
        };
        let is_done = !merged.is_short || !may_go_on;
        let tuples = u64::from(merged.tuples);
        self.events
            .add(EventKind::Merge, Amounts { block: block_id, tuples, took_us: merged.took_us, ..Amounts::default() });
        anticache.merged += merged.tuples;
        let state = anticache.blocks.get_mut(block_id);
        state.holes += merged.tuples;
        if let Some(compactor) = &mut anticache.compactor {
            compactor.holes_were_made(merged.tuples);
        }
        self.hungry |= merged.is_short;
        if state.holes >= state.tuples {
            anticache.remove_block(block_id, &mut self.meter);
        }
        self.counters.compactions += u64::from(is_done && whole && anticache.merge == Merge::Tuple);
        // Each waiter keeps what it wanted itself: with what the others wanted it might keep more than fits.
        merged.wanted.sort_unstable();
        for &(entry, waiter) in &fetch.wanted {
            if let Ok(at) = merged.wanted.binary_search_by_key(&entry, |&(entry, _)| entry) {
                self.pin(waiter, fetch.table, merged.wanted[at].1);
            }
        }
        if let Some(error) = merged.problem {
            self.block_failed(block_id);
            self.release_waiters(fetch.waiters, Some(&error));
        } else if is_done {
            self.release_waiters(fetch.waiters, None);
        } else if let Some(anticache) = &mut self.anticache {
            anticache.fetches.insert(key, fetch);
            return false;
        }
        true
    }

    /// Gives a fetch up for which there is no room before older transactions have ended: who waits for it will run, and ask for it, again.
    fn postpone_fetch(&mut self, key: FetchKey) {
        let fetch = self.anticache.as_mut().and_then(|anticache| anticache.fetches.remove(&key));
        let waiters = fetch.map(|fetch| fetch.waiters).unwrap_or_default();
        waiters.iter().for_each(|&id| self.rob(id));
        self.release_waiters(waiters, None);
    }

    /// Ends a fetch for which there is no room, whatever others give up: the oldest of its waiters needs too much, the others may fit without it.
    fn refuse_oldest(&mut self, key: FetchKey) {
        let error = self.no_memory(key.block_id);
        self.block_failed(key.block_id);
        let Some(fetch) = self.anticache.as_mut().and_then(|anticache| anticache.fetches.remove(&key)) else {
            return;
        };
        let oldest = self.oldest(&fetch.waiters);
        let (refused, others): (Few<_>, Few<_>) =
            fetch.waiters.into_iter().partition(|&id| self.oldest(&[id]) == oldest);
        others.iter().for_each(|&id| self.rob(id));
        self.release_waiters(others, None);
        self.release_waiters(refused, Some(&error));
    }

    /// A block could not be had.
    fn block_failed(&mut self, block_id: u32) {
        self.counters.block_errors += 1;
        self.events.add(EventKind::BlockError, Amounts { block: block_id, ..Amounts::default() });
    }

    fn fetch_failed(&mut self, key: FetchKey, error: &BlockError) {
        self.block_failed(key.block_id);
        let fetch = self.anticache.as_mut().and_then(|anticache| anticache.fetches.remove(&key));
        if let Some(fetch) = fetch {
            self.release_waiters(fetch.waiters, Some(error));
        }
    }

    fn release_waiters(&mut self, waiters: Few<WaitingId>, error: Option<&BlockError>) {
        for id in waiters {
            let Some(waiting) = &mut self.waiting[id] else {
                continue;
            };
            if let Some(error) = error {
                waiting.problem.get_or_insert_with(|| error.to_string());
            }
            waiting.blocks_pending -= 1;
            if waiting.blocks_pending == 0 {
                self.blocks_came(id);
            }
        }
    }
}

impl AntiCache {
    /// What is read for a tuple that is wanted.
    fn key_for(&self, location: Location) -> FetchKey {
        if self.fetch_unit == FetchUnit::Sectors && !self.merges_whole(self.blocks.get(location.block_id)) {
            FetchKey::sector_of(location)
        } else {
            FetchKey::whole(location.block_id)
        }
    }

    /// The sectors of a block in which the tuples lie that a fetch is to bring: of one by sectors, from the sector in which they all begin to the last that
    /// the longest row could reach from the last of them, because a tuple's length is not known before it was read. None when all of them are in memory or
    /// elsewhere.
    fn wanted_part(&self, key: FetchKey, tables: &[Table]) -> Option<Range<usize>> {
        let fetch = self.fetches.get(&key)?;
        let table = &tables[usize::from(fetch.table)];
        let offset_of = |entry: EvictedId| {
            let location = table.evicted().is_live(entry).then(|| table.evicted().location(entry))?;
            key.leads_to(location).then_some(location.offset as usize)
        };
        let offsets = || fetch.wanted.iter().filter_map(|&(entry, _)| offset_of(entry));
        let (first, last) = (offsets().min()?, offsets().max()?);
        let longest = TUPLE_PREFIX_BYTES + table.def().max_serialized_bytes();
        let end = (last + longest).next_multiple_of(DIRECT_IO_ALIGN_BYTES).min(self.blocks.block_bytes());
        Some(first / DIRECT_IO_ALIGN_BYTES * DIRECT_IO_ALIGN_BYTES..end)
    }

    /// Whether a fetch merges every tuple: block-merge always; tuple-merge when the holes found have passed the threshold, unless they are
    /// compacted in the background.
    fn merges_whole(&self, state: &BlockState) -> bool {
        let lazily = self.compactor.is_none();
        match self.merge {
            Merge::Block => true,
            Merge::Tuple => lazily && f64::from(state.holes) > self.hole_threshold * f64::from(state.tuples),
        }
    }
}

/// Step 4 for a block whose header was checked: all of it, or the `wanted` tuples, which come in ascending order. Room has been made for them.
///
/// # Errors
/// When a wanted tuple is not what was written; nothing is merged then.
pub fn merge(
    table: &mut Table,
    meter: &mut MemoryMeter,
    counters: &mut Counters,
    view: BlockView<'_>,
    block_id: u32,
    wanted: &[EvictedId],
    whole: bool,
) -> Result<Merged, BlockError> {
    let started = Instant::now();
    let mut merged = Merged::default();
    // A whole block is checked before anything of it is merged. Where an unwanted tuple is damaged, the wanted ones may still be had.
    let tuples = if whole { view.all().collect::<Result<Vec<_>, _>>() } else { Ok(Vec::new()) };
    match tuples {
        Ok(tuples) if whole => {
            // Backwards, because each goes to the cold end: the coldest tuple of the block is put there last.
            for tuple in tuples.into_iter().rev() {
                let here = Location { block_id, offset: tuple.offset };
                let is_here = table.evicted().is_live(tuple.entry) && table.evicted().location(tuple.entry) == here;
                if is_here && !merged.is_short {
                    merged.bring_back(table, meter, tuple, wanted.binary_search(&tuple.entry).is_ok());
                }
            }
        }
        checked => {
            counters.block_errors += u64::from(checked.is_err());
            // Those merged before room ran out are not here any more.
            let is_here = |entry: &EvictedId| {
                let location = table.evicted().is_live(*entry).then(|| table.evicted().location(*entry));
                location.is_some_and(|location| location.block_id == block_id && view.covers(location.offset))
            };
            let tuples: Few<BlockTuple<'_>> = (wanted.iter().copied().filter(is_here))
                .map(|entry| {
                    let tuple = view.tuple(table.evicted().location(entry).offset)?;
                    Ok(BlockTuple { entry, ..tuple })
                })
                .collect::<Result<_, BlockError>>()?;
            for tuple in tuples {
                if !merged.is_short {
                    merged.bring_back(table, meter, tuple, true);
                }
            }
        }
    }
    counters.merged_tuples += u64::from(merged.tuples);
    counters.merged_wanted += merged.wanted.len() as u64;
    let elapsed_us = started.elapsed().as_micros() as u64;
    merged.took_us = elapsed_us;
    counters.merge_us += elapsed_us;
    counters.merge_us_max = counters.merge_us_max.max(elapsed_us);
    Ok(merged)
}

impl Merged {
    /// Merges one tuple. One that finds no memory stays evicted.
    fn bring_back(&mut self, table: &mut Table, meter: &mut MemoryMeter, tuple: BlockTuple<'_>, wanted: bool) {
        match table.unevict(tuple.entry, tuple.row, wanted, meter) {
            Ok(id) => {
                self.tuples += 1;
                if wanted {
                    self.wanted.push((tuple.entry, id));
                }
            }
            Err(Refused::NeedMemory) => self.is_short = true,
            Err(refused) => {
                let problem = BlockError::Row { offset: tuple.offset, problem: format!("{refused:?}") };
                self.problem.get_or_insert(problem);
            }
        }
    }
}
