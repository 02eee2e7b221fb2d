//! The terminals: how many operations a second one core generates, submits and records when the system under test answers at once, and how late they start
//! what arrives in an open loop (`loadgen`'s own trial of its null system, as a specification says it); and how much of a processor MySQL's terminals take
//! beside what `mysqld` takes.

use std::path::Path;

use anyhow::Context;
use loadgen::arrivals::{OpenLoop, Process};
use loadgen::interrupt::Interrupt;
use loadgen::spec::Spec;
use loadgen::system::{self, BulkWork};
use loadgen::trial::{self, Status};
use loadgen::workload::Workload;

use crate::harness::{self, Report, last_cpu, median, schema};
use crate::mysqld;

/// Records of MySQL's terminals, and its buffer pool, which holds them all.
const MYSQL_RECORDS: u64 = 100_000;
const MYSQL_POOL_BYTES: u64 = 512 << 20;

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
    /// Leave out the terminals of MySQL.
    #[arg(long)]
    without_mysql: bool,
    /// MySQL's server [default: the one that set-up installs]
    #[arg(long)]
    mysqld: Option<std::path::PathBuf>,
}

struct Benchmark {
    name: &'static str,
    settings: String,
    spec: Spec,
    rates: Vec<f64>,
    /// In an open loop: lateness of a start in microseconds, the median and that of one in a hundred.
    late_us: [Vec<f64>; 2],
}

/// A trial on the last CPU.
fn specification(
    arguments: &Arguments,
    (system, endpoint): (&str, serde_json::Value),
    (benchmark, part): (&str, serde_json::Value),
    directory: &Path,
) -> anyhow::Result<Spec> {
    let mut json = serde_json::json!({
        "format": 1, "system": system, "endpoint": endpoint, "benchmark": benchmark, "terminals": arguments.terminals,
        "warmup_s": arguments.seconds / 4.0, "measure_s": arguments.seconds, "seed": 42,
        "client_cpus": last_cpu().to_string(), "schema": schema(&format!("{benchmark}.sql")),
    });
    json[benchmark] = part;
    let path = directory.join(format!("{benchmark}.json"));
    std::fs::write(&path, json.to_string()).with_context(|| path.display().to_string())?;
    Ok(Spec::read(&path, None)?)
}

/// A trial of the null system.
fn benchmark(
    arguments: &Arguments,
    (name, benchmark): (&'static str, &str),
    part: serde_json::Value,
    directory: &Path,
) -> anyhow::Result<Benchmark> {
    let settings = format!("null system, 1 core, {} terminals, {part}", arguments.terminals);
    let spec = specification(arguments, ("null", serde_json::json!({})), (benchmark, part), directory)?;
    Ok(Benchmark { name, settings, spec, rates: Vec::new(), late_us: Default::default() })
}

/// The same with Poisson arrivals instead of a closed loop.
fn in_open_loop(mut benchmark: Benchmark, arguments: &Arguments) -> Benchmark {
    let offered_txn_s = f64::from(arguments.offered);
    benchmark.spec.open_loop = Some(OpenLoop { process: Process::Poisson, offered_txn_s });
    benchmark.settings = format!("Poisson arrivals, {} txn/s offered, {}", arguments.offered, benchmark.settings);
    benchmark
}

fn ycsb(records: u64, mix: &str, read_share: f64) -> serde_json::Value {
    serde_json::json!({"records": records, "fields": 10, "field_bytes": 100, "mix": mix, "read_share": read_share,
        "skew": 1.0, "key_order": "clustered", "update_fields": 1, "verify_share": 0.01})
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    null_system(arguments, directory, report)?;
    if arguments.without_mysql { Ok(()) } else { mysql(arguments, directory, report) }
}

/// YCSB in MySQL's memory, mysqld on the first CPU and its terminals on the last.
fn mysql(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let directory = std::path::absolute(directory)?;
    let own = directory.join("mysqld");
    std::fs::create_dir_all(&own)?;
    let (mut server, port) = mysqld::start(arguments.mysqld.as_deref(), MYSQL_POOL_BYTES, &own)?;
    let spec = |mix: &str, read_share: f64| {
        let endpoint = serde_json::json!({"mysql_address": format!("127.0.0.1:{port}"), "mysql_user": "root"});
        specification(arguments, ("mysql", endpoint), ("ycsb", ycsb(MYSQL_RECORDS, mix, read_share)), &directory)
    };
    let mut all = [
        ("read-only", spec("read-only", 1.0)?, [vec![], vec![]]),
        ("50/50", spec("write-heavy", 0.5)?, [vec![], vec![]]),
    ];
    let interrupt = Interrupt::default();
    let system = server.wait_for(|| system::open(&all[0].1, &Workload::new(&all[0].1)))?;
    system.create_schema(&std::fs::read_to_string(schema("ycsb.sql"))?)?;
    system.load(BulkWork { threads: 2, interrupt: &interrupt }).with_context(|| server.last_words())?;
    for _ in 0..arguments.rounds {
        for (mix, spec, [shares, rates]) in &mut all {
            let before = (harness::process_cpu_s(), server.cpu_s()?);
            let result = trial::run(spec, &interrupt).result;
            anyhow::ensure!(result.status == Status::Ok, "MySQL, {mix}: {}", result.reason);
            shares.push((harness::process_cpu_s() - before.0) / (server.cpu_s()? - before.1));
            rates.push(result.throughput_txn_s);
        }
    }
    for (mix, _, [shares, rates]) in &all {
        let settings = format!(
            "MySQL 5.6, nothing synced, {MYSQL_RECORDS} records x 1000 B in memory, Zipf 1.0, {} terminals; mysqld on the first CPU, terminals on the last",
            arguments.terminals
        );
        report.add(&format!("terminals of MySQL, YCSB {mix}"), median(rates), "txn/s", None, &settings);
        report.add(&format!("terminals of MySQL, YCSB {mix}: CPU time"), median(shares), "of mysqld", None, &settings);
    }
    Ok(())
}

fn null_system(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let ycsb = |mix: &str, read_share: f64| ycsb(2_000_000, mix, read_share);
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
            report.add(&format!("lateness of a start ({quantile}), {name}"), median(late_us), "us", None, settings);
        }
    }
    Ok(())
}
