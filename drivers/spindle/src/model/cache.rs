//! The write cache: which sectors are dirty, since which flush, and which are on their way to the platters.

use std::collections::BTreeMap;

/// A run of dirty sectors, keyed in the map by its first.
#[derive(Debug, Clone, Copy)]
struct Extent {
    end: u64,
    /// The number of flushes that had arrived when the sectors became dirty.
    epoch: u64,
}

/// A run of sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub end: u64,
}

impl Run {
    pub fn new(first: u64, sectors: u32) -> Run {
        Run { first, end: first + u64::from(sectors) }
    }

    pub fn sectors(&self) -> u32 {
        (self.end - self.first) as u32
    }

    pub fn overlaps(&self, other: &Run) -> bool {
        self.first < other.end && other.first < self.end
    }

    pub fn contains(&self, other: &Run) -> bool {
        self.first <= other.first && other.end <= self.end
    }
}

/// How many extents are looked at on either side of the head, so that a choice costs the same however full the cache is.
const NEIGHBOURS_SEEN: usize = 64;

/// The write cache's contents. The data themselves are the caller's.
#[derive(Debug)]
pub(super) struct WriteCache {
    capacity_sectors: u64,
    dirty: BTreeMap<u64, Extent>,
    dirty_sectors: u64,
    /// Dirty sectors by epoch, to know when a flush is done.
    by_epoch: BTreeMap<u64, u64>,
    /// Room given to writes whose data are on the way.
    reserved_sectors: u64,
    in_flight: Option<Run>,
    epoch: u64,
    /// When the cache last became dirty.
    dirty_since_ns: u64,
}

impl WriteCache {
    pub fn new(capacity_sectors: u64) -> WriteCache {
        WriteCache {
            capacity_sectors,
            dirty: BTreeMap::new(),
            dirty_sectors: 0,
            by_epoch: BTreeMap::new(),
            reserved_sectors: 0,
            in_flight: None,
            epoch: 0,
            dirty_since_ns: 0,
        }
    }

    /// Nothing is dirty; something may be in flight.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    pub fn in_flight(&self) -> Option<Run> {
        self.in_flight
    }

    pub fn dirty_since_ns(&self) -> u64 {
        self.dirty_since_ns
    }

    /// Takes room for a write, if there is any. A write larger than the cache is let in when the cache is empty.
    pub fn reserve(&mut self, sectors: u64) -> bool {
        let in_flight = self.in_flight.map_or(0, |run| u64::from(run.sectors()));
        let used = self.dirty_sectors + in_flight + self.reserved_sectors;
        let fits = used + sectors <= self.capacity_sectors || used == 0;
        if fits {
            self.reserved_sectors += sectors;
        }
        fits
    }

    /// Takes room even if there is none: the cache is about to be emptied.
    pub fn reserve_regardless(&mut self, sectors: u64) {
        self.reserved_sectors += sectors;
    }

    /// Gives up the room of all writes whose data have not arrived.
    pub fn release_reserved(&mut self) {
        self.reserved_sectors = 0;
    }

    /// The data of a write that had room reserved have arrived. Sectors already dirty keep their epoch: they are due as before.
    pub fn insert(&mut self, run: Run, now_ns: u64) {
        self.reserved_sectors -= u64::from(run.sectors());
        if self.is_clean() {
            self.dirty_since_ns = now_ns;
        }
        let mut position = self.extent_before(run.first + 1).map_or(run.first, |(_, extent)| run.first.max(extent.end));
        while position < run.end {
            let next = self.dirty.range(position..).next().map(|(first, extent)| (*first, *extent));
            let gap_end = next.map_or(run.end, |(first, _)| first.min(run.end));
            if position < gap_end {
                self.insert_gap(Run { first: position, end: gap_end });
            }
            position = match next {
                Some((first, extent)) if first < run.end => extent.end,
                _ => run.end,
            };
        }
    }

    fn insert_gap(&mut self, gap: Run) {
        let epoch = self.epoch;
        self.dirty_sectors += u64::from(gap.sectors());
        *self.by_epoch.entry(epoch).or_default() += u64::from(gap.sectors());
        let mut run = gap;
        if let Some((first, before)) =
            self.extent_before(gap.first).filter(|(_, e)| e.end == gap.first && e.epoch == epoch)
        {
            run.first = first;
            run.end = run.end.max(before.end);
        }
        if let Some(after) = self.dirty.get(&gap.end).copied().filter(|after| after.epoch == epoch) {
            self.dirty.remove(&gap.end);
            run.end = after.end;
        }
        self.dirty.insert(run.first, Extent { end: run.end, epoch });
    }

    /// The last extent that begins before the sector.
    fn extent_before(&self, sector: u64) -> Option<(u64, Extent)> {
        self.dirty.range(..sector).next_back().map(|(first, extent)| (*first, *extent))
    }

    /// Whether every sector of the run is in the cache, dirty or on its way out.
    pub fn covers(&self, run: &Run) -> bool {
        let mut position = run.first;
        while position < run.end {
            let dirty_end = self.extent_before(position + 1).map_or(0, |(_, extent)| extent.end);
            let leaving_end = self.in_flight.filter(|r| r.first <= position).map_or(0, |r| r.end);
            let end = dirty_end.max(leaving_end);
            if end <= position {
                return false;
            }
            position = end;
        }
        true
    }

    /// A flush arrives. Returns its number: it is done when [`WriteCache::flushed`] says so.
    pub fn mark(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    /// Whether all that was dirty when the flush arrived is on the platters.
    pub fn flushed(&self, mark: u64) -> bool {
        self.in_flight.is_none() && self.by_epoch.first_key_value().is_none_or(|(epoch, _)| *epoch > mark)
    }

    /// Where a destage may begin: first sectors of runs near `position`, of extents that the flush `up_to` waits for.
    pub fn destage_candidates(&self, position: u64, up_to: u64, found: &mut Vec<u64>) {
        found.clear();
        let eligible = |(first, extent): (&u64, &Extent)| {
            (extent.epoch <= up_to && self.begins_run(*first, up_to)).then_some(*first)
        };
        found.extend(self.dirty.range(position..).take(NEIGHBOURS_SEEN).filter_map(eligible).take(NEIGHBOURS_SEEN / 4));
        found.extend(
            self.dirty.range(..position).rev().take(NEIGHBOURS_SEEN).filter_map(eligible).take(NEIGHBOURS_SEEN / 4),
        );
        if found.is_empty() {
            found
                .extend(self.dirty.iter().filter(|(_, extent)| extent.epoch <= up_to).map(|(first, _)| *first).take(1));
        }
    }

    /// Only the head of a contiguous run competes, so that the run is written in order.
    fn begins_run(&self, first: u64, up_to: u64) -> bool {
        self.extent_before(first).is_none_or(|(_, before)| before.end < first || before.epoch > up_to)
    }

    /// Takes a run that begins with the dirty extent at `first`, through whatever is dirty behind it.
    pub fn begin_destage(&mut self, first: u64, most_sectors: u64) -> Run {
        debug_assert!(self.in_flight.is_none(), "two destages at once");
        let limit = first + most_sectors;
        let mut end = first;
        while let Some(extent) = self.dirty.remove(&end) {
            let taken_end = extent.end.min(limit);
            self.forget(extent.epoch, taken_end - end);
            if taken_end < extent.end {
                self.dirty.insert(taken_end, extent);
            }
            end = taken_end;
            if end == limit {
                break;
            }
        }
        let run = Run { first, end };
        self.in_flight = Some(run);
        run
    }

    fn forget(&mut self, epoch: u64, sectors: u64) {
        self.dirty_sectors -= sectors;
        if let Some(left) = self.by_epoch.get_mut(&epoch) {
            *left -= sectors;
            if *left == 0 {
                self.by_epoch.remove(&epoch);
            }
        }
    }

    /// The run in flight is on the platters.
    pub fn end_destage(&mut self) -> Option<Run> {
        self.in_flight.take()
    }

    /// The first dirty sector, if any.
    pub fn first_dirty(&self) -> Option<u64> {
        self.dirty.keys().next().copied()
    }

    /// Power is gone.
    pub fn clear(&mut self) {
        *self = WriteCache { epoch: self.epoch, ..WriteCache::new(self.capacity_sectors) };
    }
}
