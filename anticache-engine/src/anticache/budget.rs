//! The memory budget: what is done when it is used up, or nearly.
//!
//! Between transactions a check sees to it that every table has a few free slots, and that no more of the budget is filled than
//! `eviction_threshold` allows; it constructs at most one block at a time, so that transactions run in between. A transaction or a merge that finds
//! no memory all the same has as many blocks constructed as it needs: that is the hard limit.

use std::collections::HashMap;
use std::time::Instant;

use super::eviction::{Cause, Evicted};
use crate::catalog::TableId;
use crate::partition::{Age, Partition};
use crate::stats::PauseKind;
use crate::storage::table::Table;
use crate::storage::tuples::flag;

/// Slots kept free ahead of demand when the budget is used up, so that evictions seldom interrupt a transaction.
const LOW_WATER_SLOTS: u64 = 64;

/// Whether there is room for more tuples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is.
    Made,
    /// Not before the disk has done something.
    Wait,
    /// Not before transactions that are older have ended.
    AfterOthers,
    /// Nothing is left that may be evicted.
    Nothing,
}

fn low_water_slots(table: &Table) -> u64 {
    LOW_WATER_SLOTS.min(table.tuples().live() / 4)
}

/// Free slots that a table keeps when it gives memory to another: enough that it does not want it back at once.
fn kept_slots(table: &Table) -> u64 {
    let tuples = table.tuples();
    let released = tuples.chunks_to_gain() as u64 * u64::from(tuples.slots_per_chunk());
    low_water_slots(table) + (released / 2).min(tuples.live() / 4)
}

impl Partition {
    /// Between transactions: one step of an eviction when a check finds that it is time, or one is under way. More only when other structures have
    /// grown beyond the budget.
    pub(crate) fn keep_budget(&mut self) {
        if self.anticache.is_none() {
            return;
        }
        let now = self.clock();
        self.tables.iter_mut().for_each(|table| table.tell_time(now));
        let started = Instant::now();
        let before = (self.counters.evicted_blocks, self.counters.released_chunks);
        while self.meter.is_over() {
            if !self.release_memory(None, 0) && self.evict(Cause::Demand) != Evicted::Block {
                break;
            }
        }
        let evicted = self.counters.evicted_blocks > before.0;
        if !evicted && self.should_evict(started) {
            self.evict(Cause::Check);
        }
        if before != (self.counters.evicted_blocks, self.counters.released_chunks) {
            self.pauses.add(PauseKind::Eviction, started);
        }
    }

    /// Whether an eviction is under way, or the check that is due at `now` finds that there should be one.
    fn should_evict(&mut self, now: Instant) -> bool {
        let Some(anticache) = &mut self.anticache else {
            return false;
        };
        let is_due = anticache.check_is_due(now);
        let (under_way, limit_bytes) = (anticache.eviction.is_some(), anticache.limit_bytes);
        let mut lowering = anticache.lowering || is_due;
        lowering &= limit_bytes.is_some_and(|limit_bytes| self.filled_bytes() > limit_bytes);
        if let Some(anticache) = &mut self.anticache {
            anticache.lowering = lowering;
        }
        under_way || lowering || (is_due && !self.has_low_water())
    }

    /// Bytes of the budget that hold something: what is in use, without free slots and free cells.
    fn filled_bytes(&self) -> u64 {
        let free_bytes: u64 = self.tables.iter().map(Table::free_bytes).sum();
        self.meter.used_bytes().saturating_sub(free_bytes)
    }

    /// Whether every table that may evict has its few free slots, or gets them without an eviction.
    fn has_low_water(&mut self) -> bool {
        (0..self.tables.len()).all(|index| {
            let table = &self.tables[index];
            let slots = low_water_slots(table);
            table.chain().is_none() || table.tuples().allocated_bytes() == 0 || self.find_room(index, slots)
        })
    }

    /// Makes sure that `count` tuples can be added to a table for a transaction of an age, evicting what is coldest, and what younger ones keep. Who
    /// is `patient` waits as long as there is something that can be evicted once it is durable; who is not takes from the younger ones before that,
    /// and leaves it to older ones.
    pub(crate) fn make_room(&mut self, table: usize, count: u64, age: Age, patient: bool) -> Room {
        loop {
            if self.find_room(table, count) {
                return Room::Made;
            }
            match self.evict(Cause::Demand) {
                Evicted::Block => {}
                Evicted::Wait => return Room::Wait,
                Evicted::Unsynced if patient => return Room::Wait,
                Evicted::Unsynced if self.rob_youngest(age) => {}
                Evicted::Unsynced if self.an_older_one_keeps_tuples(age) => return Room::AfterOthers,
                Evicted::Unsynced => return Room::Wait,
                Evicted::Nothing if self.rob_youngest(age) => {}
                Evicted::Nothing if self.an_older_one_keeps_tuples(age) => return Room::AfterOthers,
                Evicted::Nothing => return Room::Nothing,
            }
        }
    }

    /// Makes sure of it without evicting anything: memory that something else has left over is used.
    fn find_room(&mut self, table: usize, count: u64) -> bool {
        loop {
            if self.tables[table].reserve(count, &mut self.meter) {
                return true;
            }
            // When the budget is exceeded, free slots of this table do not help either, but a chunk of them does.
            let wanting = (!self.meter.is_over()).then_some(table);
            if !self.release_memory(wanting, count) {
                return false;
            }
        }
    }

    /// Gives back some chunks of a table, when it keeps enough free slots. Who keeps track of the tuples moved follows them.
    fn release_chunks(&mut self, table: usize, kept: u64) -> bool {
        let (log, mut pinned) = (&mut self.log, HashMap::new());
        let released = self.tables[table].release_chunks(kept, &mut self.meter, |old, new, flags| {
            if let Some(log) = log.as_mut().filter(|_| flags & flag::UNSYNCED != 0) {
                log.moved(table as TableId, new, flags);
            }
            if flags & flag::PINNED != 0 {
                // From one chunk that is released it may have come to another.
                match pinned.values_mut().find(|place| **place == old) {
                    Some(place) => *place = new,
                    None => drop(pinned.insert(old, new)),
                }
            }
        });
        if !pinned.is_empty() {
            self.repin(table as TableId, &pinned);
        }
        released
    }

    /// Gives back some chunks, or one slab of variable-length data, of the table with the most free memory. With `wanting`: for that table's good,
    /// which itself keeps `count` free slots; the others keep what they would otherwise want back at once.
    fn release_memory(&mut self, wanting: Option<usize>, count: u64) -> bool {
        let mut order: Vec<usize> = (0..self.tables.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.tables[index].free_bytes()));
        for index in order {
            let table = &self.tables[index];
            let kept = match wanting {
                None => 0,
                // What it wants is memory for a value, or else nothing of its slots can be spared.
                Some(wanting) if wanting == index && !table.wants_value_memory() => u64::MAX,
                Some(wanting) if wanting == index => kept_slots(table).max(count),
                Some(_) => kept_slots(table),
            };
            let kept = kept.max(table.wanted_slots());
            let released = self.release_chunks(index, kept);
            // Its own slabs, for another value: not the one just made for the value before in the same row.
            let kept_slabs = u32::from(wanting == Some(index) && self.tables[index].wants_value_memory());
            // What another table keeps for a transaction stays there.
            let spares_values = wanting == Some(index) || !self.tables[index].is_hungry();
            if released || spares_values && self.tables[index].release_slab(kept_slabs, &mut self.meter) {
                self.counters.released_chunks += 1;
                return true;
            }
        }
        // At last the free slab of each size class that it kept: it asks again for what it still needs of these.
        let released = wanting.is_some_and(|wanting| {
            self.tables[wanting].wants_value_memory() && self.tables[wanting].release_slab(0, &mut self.meter)
        });
        self.counters.released_chunks += u64::from(released);
        released
    }
}
