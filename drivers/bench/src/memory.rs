//! Memory: what a tuple of fixed size takes beyond its payload, in memory and evicted, and whether the kernel's account of this process agrees with the
//! engine's.
//!
//! The same records are loaded twice: with memory for all of them, and with an eighth of it. What the evictions have freed is the difference of the
//! resident sets; what they claim is the difference of what the engine accounts for.

use std::path::Path;

use anticache_engine::stats::Gauges;
use anyhow::Context;

use crate::driver::{Driver, directory};
use crate::eviction::config;
use crate::harness::ycsb::{LOAD, ROW_BYTES, load_calls};
use crate::harness::{self, Report};
use crate::own_memory;

/// Columns of a row: its key, and its fields.
const PAYLOAD_BYTES: f64 = (8 + ROW_BYTES) as f64;

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// How many times the budget the data are, where most of them are evicted.
    #[arg(long, default_value_t = 8.0)]
    ratio: f64,
    /// A key of the configuration and its value, as JSON or a word.
    #[arg(long = "set")]
    settings: Vec<String>,
}

/// A loaded database, by the engine's account and by the kernel's.
struct Loaded {
    gauges: Gauges,
    /// What the process has grown by, in bytes; and by the rows alone, without what an empty database takes.
    grown: f64,
    grown_by_rows: f64,
}

impl Loaded {
    fn new(arguments: &Arguments, ratio: f64, parent: &Path) -> anyhow::Result<Self> {
        let config = config(arguments.records, ratio, &arguments.settings, &directory(parent, &format!("{ratio}x"))?)?;
        let before = resident_bytes()?;
        let mut driver: Driver = Driver::open(&config)?;
        let empty = resident_bytes()?;
        driver.call(load_calls(arguments.records, 16).map(|params| (LOAD, params)))?;
        let after = resident_bytes()?;
        let (grown, grown_by_rows) = ((after - before) as f64, (after - empty) as f64);
        Ok(Self { gauges: driver.partition.gauges(), grown, grown_by_rows })
    }

    fn accounted(&self) -> f64 {
        self.gauges.memory_total_bytes as f64
    }
}

/// The process's resident set, to the byte: what `/proc/self/statm` says lags behind.
fn resident_bytes() -> anyhow::Result<i64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").context("/proc/self/smaps_rollup")?;
    parse_resident_bytes(&text).context("/proc/self/smaps_rollup says nothing of the resident set")
}

/// What is in memory and what was swapped out of it.
fn parse_resident_bytes(text: &str) -> Option<i64> {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()
    };
    Some((of("Rss:")? + of("Swap:")?) << 10)
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    own_memory::run(report)?;
    let resident = Loaded::new(arguments, 0.8, parent)?;
    let evicted = Loaded::new(arguments, arguments.ratio, parent)?;
    let records = arguments.records as f64;
    anyhow::ensure!(resident.gauges.tuples_evicted == 0, "not all tuples fit in memory: {:?}", resident.gauges);
    anyhow::ensure!(evicted.gauges.tuples_evicted > 0, "all tuples fit in memory: {:?}", evicted.gauges);
    let settings = format!(
        "{} records x {ROW_BYTES} B and a key of 8 B, aLRU, one hash index, log off{}",
        arguments.records,
        arguments.settings.iter().map(|setting| format!(", {setting}")).collect::<String>()
    );
    let mut add = |name: &str, value: f64, unit: &str, peer: Option<(&str, f64)>| {
        report.add(&format!("memory: {name}"), value, unit, peer, &settings);
    };
    let gauges = &resident.gauges;
    let tuple = (gauges.memory_tuples_bytes + gauges.memory_index_bytes) as f64 / records;
    add("a tuple in memory beyond its payload, with its index entry", tuple - PAYLOAD_BYTES, "B", None);
    add("of it the index", gauges.memory_index_bytes as f64 / records, "B", None);
    let by_kernel = resident.grown_by_rows / records;
    add(
        "the same by the resident set",
        by_kernel - PAYLOAD_BYTES,
        "B",
        Some(("the engine's account", by_kernel / tuple)),
    );
    let gauges = &evicted.gauges;
    let index = gauges.memory_index_bytes as f64 / records;
    let entry = gauges.memory_evicted_table_bytes as f64 / gauges.tuples_evicted as f64;
    add("an evicted tuple, with its index entry", entry + index, "B", None);
    add("of it the Evicted Table", entry, "B", None);
    for (name, loaded) in [("all in memory", &resident), ("mostly evicted", &evicted)] {
        let peer = ("what the engine accounts for", loaded.grown / loaded.accounted());
        add(&format!("resident set, {name}"), loaded.grown / 1e6, "MB", Some(peer));
    }
    let peer = ("the budget", evicted.grown / gauges.memory_budget_bytes as f64);
    add("resident set, mostly evicted, against the budget", evicted.grown / 1e6, "MB", Some(peer));
    let (freed, claimed) = (resident.grown - evicted.grown, resident.accounted() - evicted.accounted());
    add("freed by evictions", freed / 1e6, "MB", Some(("what they claim", freed / claimed)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_set_is_read_with_what_was_swapped() {
        let text = "55d0-7ffd ---p 0 00:00 0  [rollup]\nRss:  2048 kB\nPss: 9 kB\nSwapPss: 7 kB\nSwap:   4 kB\n";
        assert_eq!(parse_resident_bytes(text), Some((2048 + 4) << 10));
        assert_eq!(parse_resident_bytes("Rss: 1 kB\n"), None);
        assert!(resident_bytes().unwrap() > 100_000);
    }
}
