//! Figure 11b (paper §5.5): what eviction does to the indexes of a block's tuples. For each of the coldest tuples an Evicted Table entry is made, and
//! every index entry pointed to it.
//!
//! With no index only the Evicted Table's entry is left. All indexes are alike: unique, of one BIGINT each, whose values have no order in common with
//! the chain's. Bringing the tuples back, which copies their rows as well, is not timed.

use std::fmt::Write as _;
use std::time::Instant;

use anticache_engine::anticache::evicted_table::Location;
use anticache_engine::storage::index::TOGETHER;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::result::Repetition;
use crate::spec::{IndexKind, IndexUpdate, MOST_INDEXES, Request};
use crate::tables::{Filled, definition};
use crate::trial::{Ended, Place, Watch, ms_since};

/// CHAR columns that make a row 1 KB long together with the keys.
const TEXTS: [usize; 4] = [240; 4];

/// A table of 1 KB rows with so many indexes.
fn ddl(indexes: u32, kind: IndexKind) -> String {
    let using = match kind {
        IndexKind::Hash => "HASH",
        IndexKind::Ordered => "BTREE",
    };
    let mut columns: Vec<String> = (0..MOST_INDEXES).map(|key| format!("k{key} BIGINT NOT NULL")).collect();
    columns.extend(TEXTS.iter().enumerate().map(|(text, bytes)| format!("t{text} CHAR({bytes}) NOT NULL")));
    let mut ddl = format!("CREATE TABLE indexed ({}", columns.join(", "));
    for index in 0..indexes {
        // Writing to a string cannot fail.
        let _ = match index {
            0 => write!(ddl, ", PRIMARY KEY (k0) USING {using}"),
            _ => write!(ddl, ", UNIQUE KEY i{index} (k{index}) USING {using}"),
        };
    }
    ddl + ") COMMENT = 'evictable'"
}

/// Repeats the update for the `updates` coldest tuples, which become the hottest.
///
/// # Errors
/// When the tuples do not fit, or the trial has to end.
pub fn measure(
    spec: &IndexUpdate,
    request: &Request,
    place: &Place,
    watch: &Watch<'_>,
) -> Result<Vec<Repetition>, Ended> {
    let def = definition(&ddl(spec.indexes, spec.index_kind))?;
    let mut random = SplitMix64::seed_from_u64(request.seed);
    let mut filled = Filled::new(def, true, place.budget_bytes, spec.tuples, watch, |_, row| {
        // Keys of 64 random bits: that two are equal is as good as impossible, and would be refused.
        row[..8 * MOST_INDEXES as usize].chunks_exact_mut(8).for_each(|key| random.fill_bytes(key));
    })?;
    repetition(&mut filled, spec.updates)?;
    watch.repeat(request.measure_s, |_| repetition(&mut filled, spec.updates))
}

fn repetition(filled: &mut Filled, updates: u64) -> Result<Repetition, Ended> {
    let ids = filled.coldest(updates);
    let Filled { table, meter } = filled;
    let mut evicted = Vec::with_capacity(ids.len());
    let started = Instant::now();
    // As an eviction takes them.
    for together in ids.chunks(TOGETHER) {
        let first = evicted.len();
        for &id in together {
            let location = Location { block_id: 0, offset: evicted.len() as u32 };
            evicted.push((id, table.enter_evicted(id, location)));
        }
        table.lead_to_evicted(&evicted[first..]);
    }
    let times = Repetition::from([("elapsed_ms", ms_since(started))]);
    for (id, entry) in evicted {
        let row = table.tuples().row(id).to_vec();
        table.forget_evicted(id);
        table.unevict(entry, &row, true, meter).map_err(|refused| format!("a tuple cannot come back: {refused:?}"))?;
    }
    Ok(times)
}
