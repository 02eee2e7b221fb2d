//! The terminals: how many operations a second one core generates, submits and records when the system under test answers at once, and how late they start
//! what arrives in an open loop. `loadgen`'s own trial of its null system, as a specification says it.

use std::path::Path;

use anyhow::Context;
use loadgen::arrivals::{OpenLoop, Process};
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
    /// Rate of the open loop (Poisson), in transactions per second.
    #[arg(long, default_value_t = 300_000)]
    offered: u32,
}

struct Benchmark {
    name: &'static str,
    settings: String,
    spec: Spec,
    rates: Vec<f64>,
    /// In an open loop: lateness of a start in microseconds, the median and that of one in a hundred.
    late_us: [Vec<f64>; 2],
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
    Ok(Benchmark { name, settings, spec: Spec::read(&path, None)?, rates: Vec::new(), late_us: Default::default() })
}

/// The same with Poisson arrivals instead of a closed loop.
fn in_open_loop(mut benchmark: Benchmark, arguments: &Arguments) -> Benchmark {
    let offered_txn_s = f64::from(arguments.offered);
    benchmark.spec.open_loop = Some(OpenLoop { process: Process::Poisson, offered_txn_s });
    benchmark.settings = format!("Poisson arrivals, {} txn/s offered, {}", arguments.offered, benchmark.settings);
    benchmark
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
        in_open_loop(
            benchmark(arguments, ("YCSB 50/50, open loop", "ycsb"), ycsb("write-heavy", 0.5), directory)?,
            arguments,
        ),
    ];
    // After the specifications were checked against the CPUs that there are.
    harness::bind_to_last();
    for _ in 0..arguments.rounds {
        for benchmark in &mut all {
            let result = trial::run(&benchmark.spec, &Interrupt::default()).result;
            anyhow::ensure!(result.status == Status::Ok, "{}: {}", benchmark.name, result.reason);
            benchmark.rates.push(result.throughput_txn_s);
            if let Some(open) = &result.open_loop {
                anyhow::ensure!(
                    !result.flags.contains(&"overloaded".to_owned()),
                    "{}: {}",
                    benchmark.name,
                    result.reason
                );
                benchmark.late_us[0].push(open.client_late_us.p50 as f64);
                benchmark.late_us[1].push(open.client_late_us.p99 as f64);
            }
        }
    }
    for Benchmark { name, settings, rates, late_us, .. } in &all {
        report.add(&format!("terminals of the null system, {name}"), median(rates), "txn/s", None, settings);
        for (quantile, late_us) in ["p50", "p99"].into_iter().zip(late_us).filter(|(_, late_us)| !late_us.is_empty()) {
            report.add(&format!("lateness of a start ({quantile}), {name}"), median(late_us), "µs", None, settings);
        }
    }
    Ok(())
}
