//! Figure 11a (paper §5.5): one block of the coldest tuples out of memory and back, by the engine's own steps, past the page cache.
//!
//! - construct: the tuples copied into the block, Evicted Table and indexes updated, slots freed;
//! - write: until the disk has answered that it has the block (its own write cache may hold it, as always in the engine);
//! - sync: until the block is out of that cache, so that the fetch comes from where a cold block lies; no step of the paper's;
//! - fetch: the block read into an empty buffer;
//! - merge: block-merge, every tuple back; tuple-merge, one.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anticache_engine::anticache::block::{BlockBuilder, BlockIdentity, BlockView};
use anticache_engine::anticache::block_table::{BlockState, BlockTable, Place as BlockPlace};
use anticache_engine::anticache::evicted_table::EvictedId;
use anticache_engine::anticache::{eviction, fetch};
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::io::ring::{Completion, IoRing};
use anticache_engine::io::{AlignedBuf, aligned_buf};
use anticache_engine::stats::Counters;

use crate::result::Repetition;
use crate::spec::{EvictionSteps, Merged, Request};
use crate::tables::{Filled, keyed_definition};
use crate::trial::{Ended, Place, Watch, ms_since};

/// Blocks of tuples that the table has at least.
const BLOCKS_IN_MEMORY: u64 = 4;

struct Bench {
    filled: Filled,
    blocks: BlockTable,
    ring: IoRing,
    buffer: Option<AlignedBuf>,
    counters: Counters,
    whole: bool,
}

/// Repeats the way of a block; `tuples_per_block` says how many go.
///
/// # Errors
/// When the disk or its file system refuses (direct I/O, io_uring, space), the tuples do not fit, or the trial has to end.
pub fn measure(
    spec: &EvictionSteps,
    request: &Request,
    place: &Place,
    watch: &Watch<'_>,
) -> Result<Vec<Repetition>, Ended> {
    let path = place.directory.join("blocks.db");
    let mut bench = Bench::new(spec, request, place, watch)?;
    // The first time, the file system looks for room for the block, and memory comes from the kernel.
    bench.out_and_back()?;
    let found = watch.repeat(request.measure_s, |_| bench.out_and_back());
    drop(bench);
    let removed = std::fs::remove_file(&path);
    let found = found?;
    removed.map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    Ok(found)
}

impl Bench {
    fn new(spec: &EvictionSteps, request: &Request, place: &Place, watch: &Watch<'_>) -> Result<Self, Ended> {
        let def = keyed_definition(&request.ddl)?;
        let block_bytes = spec.block_bytes as usize;
        let capacity = BlockBuilder::capacity(block_bytes, def.row_bytes) as u64;
        if capacity == 0 {
            let row_bytes = def.row_bytes;
            return Err(Ended::Failed(format!("a block of {block_bytes} bytes holds no row of {row_bytes} bytes")));
        }
        let (path, files) = (place.directory.join("blocks.db"), KernelFiles::new());
        let blocks = BlockTable::create(&files, &path, block_bytes)
            .map_err(|error| format!("cannot create the block file {}: {error}", path.display()))?;
        let ring = files.ring(4).map_err(|error| error.to_string())?;
        let tuples = spec.tuples.max(BLOCKS_IN_MEMORY * capacity);
        let filled = Filled::new(def, true, place.budget_bytes, tuples, watch, |number, row| {
            row[..8].copy_from_slice(&number.to_le_bytes());
        })?;
        let (whole, buffer) = (spec.merged == Merged::Block, Some(aligned_buf(block_bytes)));
        Ok(Self { filled, blocks, ring, buffer, counters: Counters::default(), whole })
    }

    /// One repetition: each step timed; then everything as before, with other tuples the coldest.
    fn out_and_back(&mut self) -> Result<Repetition, Ended> {
        let started = Instant::now();
        let (state, block) = self.construct()?;
        let construct_ms = ms_since(started);
        let (identity, tuples) = (state.identity, u64::from(state.tuples));
        let wanted = wanted_of(identity, &block)?;
        let (file, offset) = (Arc::clone(self.blocks.file()), self.blocks.file_offset(identity.block_id));
        let (mut buffer, write_ms) = self.timed("write", |ring| ring.write(&file, offset, vec![block], false, 0))?;
        self.blocks.write_ended(identity.block_id, BlockPlace::Stored);
        let (_, sync_ms) = self.timed("sync", |ring| ring.fsync(&file, 0))?;
        let mut block = buffer.pop().unwrap_or_else(|| aligned_buf(self.blocks.block_bytes()));
        block.fill(0);
        let (mut buffer, fetch_ms) = self.timed("fetch", |ring| ring.read(&file, offset, block, 0))?;
        let block = buffer.pop().unwrap_or_else(|| aligned_buf(self.blocks.block_bytes()));
        let started = Instant::now();
        self.merge(identity.block_id, &block, &[wanted], self.whole)?;
        let merge_ms = ms_since(started);
        if !self.whole {
            self.merge(identity.block_id, &block, &[], true)?;
        }
        self.buffer = Some(block);
        self.filled.rotate(tuples);
        Ok(Repetition::from([
            ("construct_ms", construct_ms),
            ("write_ms", write_ms),
            ("sync_ms", sync_ms),
            ("fetch_ms", fetch_ms),
            ("merge_ms", merge_ms),
            ("elapsed_ms", construct_ms + write_ms + fetch_ms + merge_ms),
            ("tuples_per_block", tuples as f64),
        ]))
    }

    /// Moves the coldest tuples into a block, as an eviction does.
    fn construct(&mut self) -> Result<(BlockState, AlignedBuf), Ended> {
        let buffer = self.buffer.take().unwrap_or_else(|| aligned_buf(self.blocks.block_bytes()));
        let block_id = self.blocks.take_ids(1)[0];
        let created_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let identity = BlockIdentity { partition: 0, block_id, table: 0, created_us };
        let mut builder = BlockBuilder::new(identity, buffer);
        let Filled { table, meter } = &mut self.filled;
        eviction::fill(&mut builder, table, meter, &mut Vec::new());
        let (tuples, used_bytes) = (builder.tuples(), builder.used_bytes());
        let state = BlockState { identity, tuples, holes: 0, used_bytes, place: BlockPlace::Unwritten };
        self.blocks.insert(block_id, state);
        Ok((state, builder.finish()))
    }

    /// Brings tuples back; the block is deleted when none is left in it.
    fn merge(&mut self, block_id: u32, block: &AlignedBuf, wanted: &[EvictedId], whole: bool) -> Result<(), Ended> {
        let Filled { table, meter } = &mut self.filled;
        let state = *self.blocks.get(block_id);
        let merged = BlockView::open(state.identity, block)
            .and_then(|view| fetch::merge(table, meter, &mut self.counters, view, block_id, wanted, whole))
            .map_err(|error| format!("the block was not read as it was written: {error}"))?;
        if let Some(problem) = merged.problem {
            return Err(Ended::Failed(format!("a tuple of the block cannot be merged: {problem}")));
        }
        let expected = if whole { state.live() } else { wanted.len() as u32 };
        if merged.tuples != expected {
            return Err(Ended::Failed(format!("{} of {expected} tuples were merged: no memory", merged.tuples)));
        }
        let state = self.blocks.get_mut(block_id);
        state.holes += merged.tuples;
        if state.holes == state.tuples {
            self.blocks.remove(block_id);
        }
        Ok(())
    }

    /// Starts an operation and waits for its end; returns its buffers and how long it took, in milliseconds.
    fn timed<T>(&mut self, step: &str, start: impl FnOnce(&mut IoRing) -> T) -> Result<(Vec<AlignedBuf>, f64), Ended> {
        let mut done: Vec<Completion> = Vec::with_capacity(1);
        let started = Instant::now();
        start(&mut self.ring);
        while done.is_empty() {
            self.ring.wait(&mut done).map_err(|error| format!("{step} of a block: {error}"))?;
        }
        let elapsed_ms = ms_since(started);
        let completion = done.swap_remove(0);
        completion.result.map_err(|error| format!("{step} of a block: {error}"))?;
        Ok((completion.buffers.into_vec(), elapsed_ms))
    }
}

/// The tuple in the middle of a block: what a transaction is to want of it.
fn wanted_of(identity: BlockIdentity, block: &AlignedBuf) -> Result<EvictedId, Ended> {
    let unread = |error| Ended::Failed(format!("the block just made cannot be read: {error}"));
    let view = BlockView::open(identity, block).map_err(unread)?;
    let middle = view.all().nth(view.tuples() as usize / 2);
    middle.map_or_else(|| Err(Ended::Failed("the block is empty".to_owned())), |tuple| Ok(tuple.map_err(unread)?.entry))
}
