//! The terminals: how many operations a second one core generates, submits and records when the system under test answers at once. `loadgen`'s own trial
//! of its null system, as a specification says it.

use std::path::Path;

use anyhow::Context;
use loadgen::interrupt::Interrupt;
use loadgen::spec::Spec;
use loadgen::trial::{self, Status};

use crate::harness::{self, Report, last_cpu, median, schema};

#[derive(clap::Args)]
pub struct Arguments {
    /// Seconds of each measurement, after a quarter of it that does not count.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Times that each benchmark has its turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Terminals.
    #[arg(long, default_value_t = 64)]
    terminals: u32,
}

struct Benchmark {
    name: &'static str,
    settings: String,
    spec: Spec,
    rates: Vec<f64>,
}

/// A trial of the null system on the last CPU.
fn benchmark(
    arguments: &Arguments,
    (name, benchmark): (&'static str, &str),
    part: serde_json::Value,
    directory: &Path,
) -> anyhow::Result<Benchmark> {
    let mut json = serde_json::json!({
        "format": 1, "system": "null", "benchmark": benchmark, "terminals": arguments.terminals,
        "warmup_s": arguments.seconds / 4.0, "measure_s": arguments.seconds, "seed": 42,
        "client_cpus": last_cpu().to_string(), "schema": schema(&format!("{benchmark}.sql")),
    });
    json[benchmark] = part;
    let path = directory.join(format!("{benchmark}.json"));
    std::fs::write(&path, json.to_string()).with_context(|| path.display().to_string())?;
    let settings = format!("null system, 1 core, {} terminals, {}", arguments.terminals, json[benchmark]);
    Ok(Benchmark { name, settings, spec: Spec::read(&path, None)?, rates: Vec::new() })
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let ycsb = |mix: &str, read_share: f64| {
        serde_json::json!({"records": 2_000_000, "fields": 10, "field_bytes": 100, "mix": mix, "read_share": read_share,
            "skew": 1.0, "key_order": "clustered", "update_fields": 1, "verify_share": 0.01})
    };
    let tpcc = serde_json::json!({"warehouses": 10, "items": 100_000, "customers_per_district": 3000,
        "orders_per_district": 3000, "population_seed": 1, "access": "home-warehouse", "wait_factor": 0.0});
    let mut all = [
        benchmark(arguments, ("YCSB read-only", "ycsb"), ycsb("read-only", 1.0), directory)?,
        benchmark(arguments, ("YCSB 50/50", "ycsb"), ycsb("write-heavy", 0.5), directory)?,
        benchmark(arguments, ("TPC-C full mix", "tpcc"), tpcc, directory)?,
    ];
    // After the specifications were checked against the CPUs that there are.
    harness::bind_to_last();
    for _ in 0..arguments.rounds {
        for benchmark in &mut all {
            let result = trial::run(&benchmark.spec, &Interrupt::default()).result;
            anyhow::ensure!(result.status == Status::Ok, "{}: {}", benchmark.name, result.reason);
            benchmark.rates.push(result.throughput_txn_s);
        }
    }
    for Benchmark { name, settings, rates, .. } in &all {
        report.add(&format!("terminals of the null system, {name}"), median(rates), "txn/s", None, settings);
    }
    Ok(())
}
