//! Whether a system holds what was written to it: a system that loses updates is not compared.

use std::collections::{HashMap, HashSet};

use anyhow::ensure;

use super::data::{Mix, Operation, loaded_row};
use super::store::Peer;
use crate::harness::ycsb::{FIELD_BYTES, ROW_BYTES};

/// Records read back of each kind: the hottest, those of recent operations, and others evenly over all of them.
const SAMPLED: usize = 1000;

/// Keys that are read back.
fn sample(records: u64, mix: &Mix, done: usize) -> HashSet<i64> {
    let records = records as i64;
    let hottest = (0..records).rev().take(SAMPLED);
    let recent = (done.saturating_sub(SAMPLED)..done).map(|number| mix.operation(number).key);
    let spread = (0..records).step_by((records as usize / SAMPLED).max(1));
    hottest.chain(recent).chain(spread).collect()
}

/// The last updates of each field of the sampled keys, one of each lane: which of the lanes came last is not known.
fn last_updates(sampled: &HashSet<i64>, mix: &Mix, done: &[usize]) -> HashMap<(i64, u16), Vec<Operation>> {
    let mut last: HashMap<_, Vec<_>> = HashMap::new();
    for (lane, &executed) in done.iter().enumerate() {
        let cycle = mix.cycle() / done.len();
        let numbers = (executed.saturating_sub(cycle)..executed).map(|turn| lane + turn * done.len());
        let operations =
            numbers.map(|number| mix.operation(number)).filter(|operation| sampled.contains(&operation.key));
        let updates = operations.filter_map(|operation| Some(((operation.key, operation.field?), operation)));
        for (field, operation) in updates.collect::<HashMap<_, _>>() {
            last.entry(field).or_default().push(operation);
        }
    }
    last
}

/// Reads records back, hot and cold, and compares each of their fields with the last update that it got, or with what was loaded. `done` are the
/// operations of the updating mix that each lane has executed.
///
/// # Errors
/// When fields differ: how many, and the first.
pub fn check(peer: &mut dyn Peer, records: u64, mix: &Mix, done: &[usize]) -> anyhow::Result<()> {
    let sampled = sample(records, mix, done.iter().sum());
    let last = last_updates(&sampled, mix, done);
    ensure!(!last.is_empty(), "no record that is read back was updated: more seconds, or fewer records");
    let (mut row, mut different) = ([0; ROW_BYTES], Vec::new());
    for &key in &sampled {
        peer.read(key, &mut row)?;
        let loaded = loaded_row(key);
        for (field, (held, loaded)) in (0..).zip(row.chunks(FIELD_BYTES).zip(loaded.chunks(FIELD_BYTES))) {
            let as_written = match last.get(&(key, field)) {
                Some(updates) => updates.iter().any(|&update| mix.value(update) == held),
                None => held == loaded,
            };
            if !as_written {
                different.push((key, field));
            }
        }
    }
    let first = different.first();
    ensure!(
        first.is_none(),
        "{} fields of {} records are not as written; the first: {first:?}",
        different.len(),
        sampled.len()
    );
    Ok(())
}
