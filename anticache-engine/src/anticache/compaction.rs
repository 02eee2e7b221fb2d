//! Background compaction (paper §6.2): what is left in several blocks with holes is put together in fewer new blocks, one after the other, and never
//! comes into memory on the way.
//!
//! 1. look through the Block Table, some blocks at a time, for the blocks of each table that hold least; when holes were made since;
//! 2. choose a table of which several fit into fewer blocks, and read these one after the other, while no fetch waits for a buffer;
//! 3. copy the tuples that are not holes into the new block until it is full; their Evicted Table entries keep their numbers;
//! 4. write it;
//! 5. when it is stored, point to it the entries that still refer to where their tuple was copied from, and delete the blocks that nothing refers to
//!    any more; go on with the rest in the next new block.
//!
//! Until step 5 nothing has changed: a tuple merged back meanwhile is simply a hole in the new block, a fetch of an old block goes on as usual (and
//! keeps that block's tuples where they are), and a write error leaves everything as it was. A block that cannot be read, or in which anything
//! is damaged, is left alone from then on: its tuples stay where they are, and give their error to who reads them.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::FetchKey;
use super::block::{BLOCK_HEADER_BYTES, BlockBuilder, BlockIdentity, BlockTuple, BlockView};
use super::block_table::{BlockState, BlockTable, Place};
use super::evicted_table::{EvictedId, Location};
use super::eviction::WRITE_RETRY_INTERVAL;
use crate::error::BlockError;
use crate::events::{Amounts, EventKind};
use crate::io::ring::Completion;
use crate::partition::{IoTag, Partition};
use crate::stats::PauseKind;
use crate::storage::table::Table;

/// Blocks looked at in a turn.
const LOOKS_PER_TURN: usize = 256;
/// Blocks looked at for every hole made: what a search costs is bounded by what there is to find.
const LOOKS_PER_HOLE: usize = 16;
/// Most blocks that are compacted together.
const MOST_SOURCES: usize = 16;
/// Of so many blocks read, one at least is saved.
const SOURCES_PER_SAVED: usize = 4;
/// When there are more holes than one for so many tuples, fetches have to wait: else a busy disk would leave the file to grow, and its blocks to hold
/// less and less.
const URGENT_SHARE: u64 = 2;
/// Buffers that a compaction holds at most: the new block and the one being read.
const BUFFERS: usize = 2;

/// A block that has not much in it.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    identity: BlockIdentity,
    live_bytes: u64,
}

/// A tuple copied into the new block.
#[derive(Debug, Clone, Copy)]
struct Copied {
    entry: EvictedId,
    /// Position of its block among those taken.
    source: usize,
    from_offset: u32,
    to_offset: u32,
}

/// What the new block is waiting for.
#[derive(Debug)]
enum Stage {
    /// The next of its blocks to be read.
    Filling(BlockBuilder),
    /// That one is being read.
    Reading(BlockBuilder, BlockIdentity),
    /// It is being written; bytes used.
    Writing(u32),
}

/// A compaction under way.
#[derive(Debug)]
struct Run {
    identity: BlockIdentity,
    stage: Stage,
    /// Blocks to read, for this new block and those after it.
    sources: VecDeque<BlockIdentity>,
    is_full: bool,
    /// Blocks whose tuples were copied.
    taken: Vec<BlockIdentity>,
    copied: Vec<Copied>,
    /// When so many holes were made, it may keep fetches waiting.
    urgent_from: usize,
}

/// Looks for blocks with holes and compacts them, one new block at a time.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    /// Next block to look at.
    next_look: usize,
    /// The emptiest blocks of each table so far.
    candidates: Vec<Candidate>,
    /// Tuples in the blocks looked at, and how many more were.
    live: u64,
    holes: u64,
    /// Holes made since the last search that found nothing.
    holes_made: usize,
    run: Option<Run>,
    /// Damaged blocks, by id and creation time.
    damaged: HashSet<(u32, u64)>,
    /// When to go on after a failed write.
    retry_at: Option<Instant>,
}

impl Compactor {
    /// Tuples were merged back.
    pub(super) fn holes_were_made(&mut self, holes: u32) {
        self.holes_made += holes as usize;
    }

    /// Buffers that it does not hold and may yet need.
    pub(super) fn buffers_missing(&self) -> usize {
        let held = match self.run.as_ref().map(|run| &run.stage) {
            None => 0,
            Some(Stage::Filling(_) | Stage::Writing(_)) => 1,
            Some(Stage::Reading(..)) => 2,
        };
        BUFFERS - held
    }

    /// Whether a new block is being made.
    pub(super) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// When it goes on after a failure.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether it makes a pause after a failure.
    fn is_paused(&mut self) -> bool {
        self.retry_at = self.retry_at.filter(|&at| Instant::now() < at);
        self.retry_at.is_some()
    }

    /// Step 1, as far as a turn goes. The blocks to compact, and with how many holes made that is urgent, when all blocks were looked at.
    fn search(&mut self, blocks: &BlockTable) -> Option<(Vec<BlockIdentity>, usize)> {
        let capacity_bytes = (blocks.block_bytes() - BLOCK_HEADER_BYTES) as u64;
        let end = (self.next_look + LOOKS_PER_TURN).min(blocks.high_water());
        for block_id in std::mem::replace(&mut self.next_look, end)..end {
            if let Some(state) = blocks.find(block_id as u32) {
                self.live += u64::from(state.live());
                self.holes += u64::from(state.holes);
                self.consider(state, capacity_bytes);
            }
        }
        if end < blocks.high_water() {
            return None;
        }
        // Fetches may leave no time for it from now on, and make more holes.
        let urgent_from = self.holes_made + (self.live / URGENT_SHARE).saturating_sub(self.holes) as usize;
        let found = choose(std::mem::take(&mut self.candidates), capacity_bytes);
        (self.next_look, self.live, self.holes) = (0, 0, 0);
        if found.is_empty() {
            self.holes_made = 0;
        }
        Some((found, urgent_from))
    }

    /// Remembers a block when it is among the emptiest of its table.
    fn consider(&mut self, state: &BlockState, capacity_bytes: u64) {
        let candidate = Candidate { identity: state.identity, live_bytes: state.live_bytes() };
        let key = (state.identity.block_id, state.identity.created_us);
        if state.place != Place::Stored || 4 * candidate.live_bytes > 3 * capacity_bytes || self.damaged.contains(&key)
        {
            return;
        }
        let of_table = |other: &&mut Candidate| other.identity.table == state.identity.table;
        if self.candidates.iter_mut().filter(of_table).count() < MOST_SOURCES {
            return self.candidates.push(candidate);
        }
        let fullest = self.candidates.iter_mut().filter(of_table).max_by_key(|other| other.live_bytes);
        if let Some(fullest) = fullest.filter(|fullest| fullest.live_bytes > candidate.live_bytes) {
            *fullest = candidate;
        }
    }
}

/// The emptiest blocks of the table of which most can be saved; none when that is not worth its reads.
fn choose(mut candidates: Vec<Candidate>, capacity_bytes: u64) -> Vec<BlockIdentity> {
    candidates.sort_by_key(|candidate| (candidate.identity.table, candidate.live_bytes, candidate.identity.block_id));
    let mut best = (0, [].as_slice());
    for group in candidates.chunk_by(|a, b| a.identity.table == b.identity.table) {
        let mut sum_bytes = 0;
        for (at, candidate) in group.iter().enumerate() {
            sum_bytes += candidate.live_bytes;
            let (read, written) = (at + 1, sum_bytes.div_ceil(capacity_bytes).max(1) as usize);
            let saved = read.saturating_sub(written);
            if saved > best.0 && saved * SOURCES_PER_SAVED >= read {
                best = (saved, &group[..read]);
            }
        }
    }
    best.1.iter().map(|candidate| candidate.identity).collect()
}

/// Step 3: the tuples of a block that are not holes.
fn live_tuples<'block>(
    table: &Table,
    identity: BlockIdentity,
    bytes: &'block [u8],
) -> Result<Vec<BlockTuple<'block>>, BlockError> {
    let mut tuples = BlockView::open(identity, bytes)?.all().collect::<Result<Vec<_>, _>>()?;
    tuples.retain(|tuple| is_here(table, tuple.entry, identity.block_id, tuple.offset));
    Ok(tuples)
}

fn is_here(table: &Table, entry: EvictedId, block_id: u32, offset: u32) -> bool {
    table.evicted().is_live(entry) && table.evicted().location(entry) == Location { block_id, offset }
}

impl Partition {
    /// One step of background compaction, where it is configured.
    pub(crate) fn compact(&mut self) {
        let Some(anticache) = self.anticache.as_mut().filter(|anticache| anticache.retry_writes_at.is_none()) else {
            return;
        };
        let Some(compactor) = anticache.compactor.as_mut() else {
            return;
        };
        if compactor.is_paused() {
            return;
        }
        match &compactor.run {
            Some(Run { stage: Stage::Filling(_), urgent_from, .. }) => {
                if compactor.holes_made >= *urgent_from || anticache.queue.is_empty() {
                    self.read_next_source();
                }
            }
            Some(_) => {}
            None if compactor.holes_made * LOOKS_PER_HOLE < anticache.blocks.high_water() => {}
            None if compactor.holes_made == 0 || anticache.buffers.available() < BUFFERS => {}
            None => {
                anticache.again = true;
                if let Some((sources, urgent_from)) = compactor.search(&anticache.blocks)
                    && let Some(first) = sources.first()
                {
                    let (table, block_id) = (first.table, anticache.blocks.take_ids(1)[0]);
                    let identity = anticache.new_identity(block_id, table);
                    self.begin_compaction(identity, sources, urgent_from);
                }
            }
        }
    }

    fn begin_compaction(&mut self, identity: BlockIdentity, sources: Vec<BlockIdentity>, urgent_from: usize) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        let (Some(buffer), Some(compactor)) = (anticache.buffers.take(), &mut anticache.compactor) else {
            return anticache.blocks.give_back(identity.block_id);
        };
        let stage = Stage::Filling(BlockBuilder::new(identity, buffer));
        let (taken, copied) = (Vec::with_capacity(sources.len()), Vec::new());
        let sources = VecDeque::from(sources);
        compactor.run = Some(Run { identity, stage, sources, is_full: false, taken, copied, urgent_from });
    }

    /// Step 2 for the next block that is still as it was when it was chosen, or step 4 after the last.
    fn read_next_source(&mut self) {
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        if !self.ring.has_room() || anticache.buffers.available() == 0 {
            return;
        }
        let Some(mut run) = anticache.compactor.as_mut().and_then(|compactor| compactor.run.take()) else {
            return;
        };
        let Stage::Filling(builder) = run.stage else {
            return;
        };
        let (blocks, fetches) = (&anticache.blocks, &anticache.fetches);
        let unchanged = |identity: &BlockIdentity| {
            blocks.find(identity.block_id).is_some_and(|state| state.identity == *identity)
                && !fetches.contains_key(&FetchKey::whole(identity.block_id))
        };
        let mut next = std::iter::from_fn(|| run.sources.pop_front());
        let source = if run.is_full { None } else { next.find(unchanged) };
        let (Some(source), Some(buffer)) = (source, source.and_then(|_| anticache.buffers.take())) else {
            return self.write_compacted(Run { stage: Stage::Filling(builder), ..run });
        };
        let offset = blocks.file_offset(source.block_id);
        self.counters.compaction_read_bytes += buffer.len() as u64;
        self.ring.read(blocks.file(), offset, buffer, IoTag::CompactRead.pack());
        run.stage = Stage::Reading(builder, source);
        if let Some(compactor) = &mut anticache.compactor {
            compactor.run = Some(run);
        }
    }

    /// Step 4. What would save no block is dropped.
    fn write_compacted(&mut self, mut run: Run) {
        let (Some(anticache), Stage::Filling(builder)) = (&mut self.anticache, run.stage) else {
            return;
        };
        if run.taken.len() < 2 || builder.tuples() == 0 {
            anticache.buffers.give_back(builder.into_buffer());
            if let Some(compactor) = &mut anticache.compactor {
                // Its blocks are wanted at this moment; merging that will make holes.
                compactor.holes_made = 0;
            }
            return anticache.blocks.give_back(run.identity.block_id);
        }
        run.stage = Stage::Writing(builder.used_bytes());
        let buffer = builder.finish();
        self.counters.compaction_written_bytes += buffer.len() as u64;
        let offset = anticache.blocks.file_offset(run.identity.block_id);
        self.ring.write(anticache.blocks.file(), offset, vec![buffer], false, IoTag::CompactWrite.pack());
        if let Some(compactor) = &mut anticache.compactor {
            compactor.run = Some(run);
        }
    }

    /// Step 3: a block of the compaction was read.
    pub(crate) fn source_read(&mut self, mut completion: Completion) {
        let started = Instant::now();
        let (Some(anticache), Some(buffer)) = (&mut self.anticache, completion.buffers.pop()) else {
            return;
        };
        let Some(compactor) = &mut anticache.compactor else {
            return;
        };
        let Some(run) = &mut compactor.run else {
            return anticache.buffers.give_back(buffer);
        };
        let stage = std::mem::replace(&mut run.stage, Stage::Writing(0));
        let Stage::Reading(mut builder, source) = stage else {
            run.stage = stage;
            return anticache.buffers.give_back(buffer);
        };
        // One that was deleted meanwhile has nothing to give, and its place may be another's.
        if anticache.blocks.find(source.block_id).is_some_and(|state| state.identity == source) {
            let table = &self.tables[usize::from(source.table)];
            let read = completion
                .result
                .map_err(|error| BlockError::Read { block_id: source.block_id, problem: error.to_string() });
            match read.and_then(|()| live_tuples(table, source, &buffer)) {
                Ok(tuples) => {
                    run.copy(&mut builder, source, &tuples);
                    self.counters.compacted_blocks += 1;
                }
                Err(error) => {
                    eprintln!("anticached: left alone by compaction: {error}");
                    self.counters.block_errors += 1;
                    compactor.damaged.insert((source.block_id, source.created_us));
                }
            }
        }
        run.stage = Stage::Filling(builder);
        anticache.buffers.give_back(buffer);
        anticache.again = true;
        self.pauses.add(PauseKind::Compaction, started);
    }

    /// Step 5, when the new block is stored.
    pub(crate) fn compacted_block_written(&mut self, completion: Completion) {
        let started = Instant::now();
        let Some(anticache) = &mut self.anticache else {
            return;
        };
        completion.buffers.into_iter().for_each(|buffer| anticache.buffers.give_back(buffer));
        let Some(compactor) = &mut anticache.compactor else {
            return;
        };
        let Some(run) = compactor.run.take() else {
            return;
        };
        if let Err(error) = completion.result {
            eprintln!("anticached: a compacted block cannot be written: {error}; the blocks that it was made of stay");
            self.counters.write_errors += 1;
            compactor.retry_at = Some(Instant::now() + WRITE_RETRY_INTERVAL);
            return anticache.blocks.give_back(run.identity.block_id);
        }
        anticache.again = true;
        self.replace_sources(&run);
        if let (Some(anticache), false) = (&mut self.anticache, run.sources.is_empty()) {
            let block_id = anticache.blocks.take_ids(1)[0];
            let identity = anticache.new_identity(block_id, run.identity.table);
            self.begin_compaction(identity, run.sources.into(), run.urgent_from);
        }
        self.pauses.add(PauseKind::Compaction, started);
    }

    fn replace_sources(&mut self, run: &Run) {
        let (Some(anticache), Stage::Writing(used_bytes)) = (&mut self.anticache, &run.stage) else {
            return;
        };
        let new_id = run.identity.block_id;
        let table = &mut self.tables[usize::from(run.identity.table)];
        // A fetch of the whole block finds its tuples where they are: there they stay. One of sectors is asked for again by who waits for it.
        let replaceable: Vec<bool> = (run.taken.iter())
            .map(|source| {
                let state = anticache.blocks.find(source.block_id);
                state.is_some_and(|state| state.identity == *source)
                    && !anticache.fetches.contains_key(&FetchKey::whole(source.block_id))
            })
            .collect();
        let mut moved = vec![0; run.taken.len()];
        for tuple in run.copied.iter().filter(|tuple| replaceable[tuple.source]) {
            let block_id = run.taken[tuple.source].block_id;
            if is_here(table, tuple.entry, block_id, tuple.from_offset) {
                table.relocate_evicted(tuple.entry, Location { block_id: new_id, offset: tuple.to_offset });
                moved[tuple.source] += 1;
            }
        }
        let (tuples, live) = (run.copied.len() as u32, moved.iter().sum::<u32>());
        if live == 0 {
            return anticache.blocks.give_back(new_id);
        }
        let holes = tuples - live;
        let state = BlockState { identity: run.identity, tuples, holes, used_bytes: *used_bytes, place: Place::Stored };
        anticache.blocks.insert(new_id, state);
        for (source, moved) in run.taken.iter().zip(moved).filter(|&(_, moved)| moved > 0) {
            let state = anticache.blocks.get_mut(source.block_id);
            state.holes += moved;
            if state.holes >= state.tuples {
                anticache.remove_block(source.block_id, &mut self.meter);
            }
        }
        self.counters.compactions_background += 1;
        self.counters.compacted_tuples += u64::from(live);
        let (blocks, tuples, bytes) = (run.taken.len() as u32, u64::from(live), u64::from(*used_bytes));
        self.events.add(EventKind::Compaction, Amounts { block: new_id, blocks, tuples, bytes, took_us: 0 });
    }
}

impl Run {
    /// Copies tuples into the new block. When it is full, the rest is for the next.
    fn copy(&mut self, builder: &mut BlockBuilder, source: BlockIdentity, tuples: &[BlockTuple<'_>]) {
        self.taken.push(source);
        for tuple in tuples {
            let Some(to_offset) = builder.place_for(tuple.row.len()) else {
                self.is_full = true;
                self.sources.push_front(source);
                return;
            };
            builder.push(tuple.entry, tuple.row);
            let source = self.taken.len() - 1;
            self.copied.push(Copied { entry: tuple.entry, source, from_offset: tuple.offset, to_offset });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(table: u16, block_id: u32, live_bytes: u64) -> Candidate {
        Candidate { identity: BlockIdentity { partition: 0, block_id, table, created_us: 1 }, live_bytes }
    }

    fn chosen(candidates: &[(u16, u32, u64)]) -> Vec<u32> {
        let candidates = candidates.iter().map(|&(table, block_id, bytes)| candidate(table, block_id, bytes)).collect();
        choose(candidates, 100).iter().map(|identity| identity.block_id).collect()
    }

    #[test]
    fn the_table_of_which_most_blocks_are_saved_is_chosen_emptiest_first() {
        assert_eq!(chosen(&[]), [0; 0]);
        assert_eq!(chosen(&[(0, 1, 60), (0, 2, 41)]), [0; 0], "they need two blocks");
        assert_eq!(chosen(&[(0, 1, 60), (1, 2, 10), (0, 3, 40)]), [3, 1]);
        assert_eq!(chosen(&[(0, 1, 50), (0, 2, 50), (1, 3, 40), (1, 4, 30), (1, 5, 20), (1, 6, 50)]), [5, 4, 3]);
        assert_eq!(chosen(&[(0, 1, 0), (1, 2, 0)]), [0; 0], "of different tables");
        assert_eq!(chosen(&[(0, 1, 70), (0, 2, 70), (0, 3, 70), (0, 4, 70)]), [1, 2, 3, 4], "four become three");
        assert_eq!(
            chosen(&[(0, 1, 78), (0, 2, 78), (0, 3, 78), (0, 4, 78), (0, 5, 78)]),
            [0; 0],
            "five would become four"
        );
    }
}
