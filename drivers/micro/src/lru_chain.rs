//! Figure 10 (paper §5.4): what it costs to keep the LRU chain. Tuples are found by their key, one field is overwritten, and the tuple moves to
//! the hot end (α = 1).
//!
//! The paper gives the number of updates, 100,000, and neither the number of tuples nor what an update is. Here it is what a transaction does to the
//! table: look-up in the hash index, 100 bytes written; nothing of the transaction itself, whose time would hide the chain's.

use std::time::Instant;

use anticache_engine::anticache::single_chain::SingleChain;
use anticache_engine::storage::table::Found;
use loadgen::streams::{Purpose, stream};
use loadgen::ycsb::{KeyChooser, KeyOrder};
use rand::RngExt;

use crate::result::Repetition;
use crate::spec::{Chain, LruChain, Request};
use crate::tables::{Filled, keyed_definition};
use crate::trial::{Ended, Place, Watch, ms_since};

/// Updates between two looks at the watch.
const LOOK_EVERY: usize = 512;

/// The same for drawing them, which takes less.
const DRAWN_TOGETHER: usize = 1 << 16;

/// An update: a key, and which field is overwritten.
type Update = ([u8; 8], usize);

struct Bench {
    filled: Filled,
    /// Offset and bytes of each field.
    fields: Vec<(usize, usize)>,
    single: Option<SingleChain>,
}

/// Repeats `updates` updates; `walked_per_update` counts the links that a singly-linked chain made follow.
///
/// # Errors
/// When the tuples do not fit, or the trial has to end.
pub fn measure(spec: &LruChain, request: &Request, place: &Place, watch: &Watch<'_>) -> Result<Vec<Repetition>, Ended> {
    let mut bench = Bench::new(spec, request, place, watch)?;
    // The newest tuple is the hottest, so the chain begins in the order that it tends to.
    let chooser = KeyChooser::new(spec.tuples, spec.skew, KeyOrder::Clustered);
    watch.repeat(request.measure_s, |number| {
        let mut random = stream(request.seed, Purpose::Operations, number);
        let fields = bench.fields.len();
        let mut draw = || (chooser.key(&mut random).to_le_bytes(), random.random_range(0..fields));
        let mut updates: Vec<Update> = Vec::with_capacity(spec.updates as usize);
        while (updates.len() as u64) < spec.updates {
            watch.check(|| format!("{} of {} updates are drawn", updates.len(), spec.updates))?;
            let some = (spec.updates as usize - updates.len()).min(DRAWN_TOGETHER);
            updates.extend(std::iter::repeat_with(&mut draw).take(some));
        }
        bench.look_up(&updates)?;
        let started = Instant::now();
        let walked = bench.update(&updates, watch)?;
        let mut times = Repetition::from([("elapsed_ms", ms_since(started))]);
        if spec.chain == Chain::Single {
            times.insert("walked_per_update", walked as f64 / spec.updates as f64);
        }
        Ok(times)
    })
}

impl Bench {
    fn new(spec: &LruChain, request: &Request, place: &Place, watch: &Watch<'_>) -> Result<Self, Ended> {
        let def = keyed_definition(&request.ddl)?;
        let fields = def.columns.iter().filter(|column| column.offset >= def.key_bytes);
        let fields = fields.map(|column| (column.offset, column.column_type.bytes())).collect();
        let keeps_chain = spec.chain == Chain::Double;
        let mut filled = Filled::new(def, keeps_chain, place.budget_bytes, spec.tuples, watch, |number, row| {
            row[..8].copy_from_slice(&number.to_le_bytes());
        })?;
        let single = (spec.chain == Chain::Single).then(|| {
            let mut chain = SingleChain::default();
            let ids: Vec<_> = filled.table.tuples().ids().filter(|&id| filled.table.tuples().is_live(id)).collect();
            ids.into_iter().for_each(|id| chain.push_hot(filled.table.tuples_mut(), id));
            chain
        });
        Ok(Self { filled, fields, single })
    }

    /// Finds every tuple that will be updated: with each chain the caches begin alike.
    fn look_up(&self, updates: &[Update]) -> Result<(), Ended> {
        let table = &self.filled.table;
        let lost = updates.iter().find(|(key, _)| !matches!(table.find(key), Some(Found::Resident(_))));
        lost.map_or(Ok(()), |(key, _)| Err(Ended::Failed(format!("key {} is lost", i64::from_le_bytes(*key)))))
    }

    /// Updates the tuples; returns how many links were followed.
    fn update(&mut self, updates: &[Update], watch: &Watch<'_>) -> Result<u64, Ended> {
        let Filled { table, meter } = &mut self.filled;
        let value = [b'y'; 256];
        let mut walked = 0;
        for (number, some) in updates.chunks(LOOK_EVERY).enumerate() {
            watch.check(|| format!("{} of {} updates are", number * LOOK_EVERY, updates.len()))?;
            for (key, field) in some {
                let Some(Found::Resident(id)) = table.find(key) else {
                    return Err(Ended::Failed(format!("key {} is lost", i64::from_le_bytes(*key))));
                };
                let (offset, bytes) = self.fields[*field];
                let overwritten = table.overwrite(id, offset, &value[..bytes.min(value.len())], meter);
                debug_assert!(overwritten.is_ok(), "a field is no key");
                table.touch(id);
                if let Some(chain) = &mut self.single {
                    walked += chain.touch(table.tuples_mut(), id);
                }
            }
        }
        Ok(walked)
    }
}
