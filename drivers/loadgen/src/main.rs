//! `loadgen load|prewarm|quiesce|run|check|counters --spec FILE.json [--out DIR]`.
//!
//! Exit codes: 0 done (a trial's own status is in its `result.json`), 2 bad input, 3 `check` has found the data inconsistent, 130 interrupted,
//! 1 anything else.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anticache_engine::catalog::Catalog;
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use serde_json::json;

use loadgen::interrupt::{EXIT_INTERRUPTED, Interrupt};
use loadgen::spec::{Problem, Spec, SpecError};
use loadgen::system::{self, BulkWork, SystemError};
use loadgen::trial::{self, to_json, write_file};
use loadgen::workload::Workload;
use loadgen::{check, data_check, spec};

/// Loads, warms and drives one system under test.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create the tables anew, load the data set and check it.
    Load(Call),
    /// Fill the caches with the hottest records.
    Prewarm(Call),
    /// Have the servers write what they have put off, so that the next trial does not pay for the one before.
    Quiesce(Call),
    /// Run one trial and write result.json, timeline.csv and latency.hdr (in an open loop also response.hdr) into --out.
    Run(Call),
    /// Read all rows, check their consistency and print a checksum of each table; no transaction may run meanwhile.
    Check(Call),
    /// Print the servers' counters, settings and versions.
    Counters(Call),
}

#[derive(Args)]
struct Call {
    /// The specification (JSON).
    #[arg(long)]
    spec: PathBuf,
    /// File that stands for the specification's `endpoint`, for example the endpoint.json of a deployed system: it holds the passwords.
    #[arg(long)]
    endpoint: Option<PathBuf>,
    /// Existing directory for the results; `run` needs it, the others print JSON and write it there too.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Exit code for input that cannot be executed.
const EXIT_BAD_INPUT: u8 = 2;
/// Exit code when the data are not consistent.
const EXIT_INCONSISTENT: u8 = 3;

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // One line: the chain of causes, separated by colons.
            eprintln!("loadgen: {error:#}");
            if error.is::<SpecError>() {
                ExitCode::from(EXIT_BAD_INPUT)
            } else if matches!(error.downcast_ref(), Some(SystemError::Interrupted)) {
                ExitCode::from(EXIT_INTERRUPTED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install().context("cannot install signal handlers")?;
    match command {
        Command::Load(call) => load(&call, &interrupt),
        Command::Prewarm(call) => prewarm(&call, &interrupt),
        Command::Quiesce(call) => quiesce(&call, &interrupt),
        Command::Run(call) => run(&call, &interrupt),
        Command::Check(call) => check(&call, &interrupt),
        Command::Counters(call) => counters(&call),
    }
}

fn load(call: &Call, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let spec = call.read_spec()?;
    let Some(schema) = &spec.schema else {
        return Err(call.bad_input("schema", "absent", "needed by load", "the file with the tables' SQL DDL"));
    };
    let ddl = std::fs::read_to_string(schema).with_context(|| format!("cannot read {}", schema.display()))?;
    let workload = Workload::new(&spec);
    let system = system::open(&spec, &workload)?;
    let started = Instant::now();
    system.create_schema(&ddl)?;
    let records = system.load(BulkWork { threads: spec.loading_threads, interrupt })?;
    data_check::sample(system.as_ref(), &workload, spec.seed)?;
    call.report("load", &json!({"format": 1, "records": records, "seconds": started.elapsed().as_secs_f64()}))
}

fn prewarm(call: &Call, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let spec = call.read_spec()?;
    let workload = Workload::new(&spec);
    let system = system::open(&spec, &workload)?;
    data_check::is_loaded(system.as_ref(), &workload)?;
    let started = Instant::now();
    let summary = system.prewarm(BulkWork { threads: spec.loading_threads, interrupt })?;
    call.report("prewarm", &json!({"format": 1, "summary": summary, "seconds": started.elapsed().as_secs_f64()}))
}

fn quiesce(call: &Call, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let spec = call.read_spec()?;
    let system = system::open(&spec, &Workload::new(&spec))?;
    let started = Instant::now();
    let summary = system.quiesce(interrupt)?;
    call.report("quiesce", &json!({"format": 1, "summary": summary, "seconds": started.elapsed().as_secs_f64()}))
}

fn run(call: &Call, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let spec = call.read_spec()?;
    let Some(out) = &call.out else {
        return Err(call.bad_input("--out", "absent", "needed by run", "an existing directory"));
    };
    if let Some(cpus) = &spec.client_cpus {
        cpus.pin().with_context(|| format!("cannot pin this process to CPUs {cpus}"))?;
    }
    let trial = trial::run(&spec, interrupt);
    trial.write(out)?;
    let result = &trial.result;
    eprintln!("run {}: {:?} {:.0} txn/s {}", spec.system, result.status, result.throughput_txn_s, result.reason);
    Ok(if trial.interrupted { ExitCode::from(EXIT_INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn check(call: &Call, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let spec = call.read_spec()?;
    let workload = Workload::new(&spec);
    let system = system::open(&spec, &workload)?;
    let report = match &workload {
        Workload::Tpcc(tpcc) => check::tpcc(system.as_ref(), tpcc, interrupt)?,
        Workload::Ycsb(ycsb) => {
            let Some(schema) = &spec.schema else {
                return Err(call.bad_input("schema", "absent", "needed by check", "the file with the tables' SQL DDL"));
            };
            check::ycsb(system.as_ref(), ycsb, &Catalog::from_file(schema)?, interrupt)?
        }
    };
    for violation in &report.violations {
        eprintln!("check {}: {violation}", spec.system);
    }
    let consistent = report.consistent;
    call.report("check", &serde_json::to_value(report)?)?;
    Ok(if consistent { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INCONSISTENT) })
}

fn counters(call: &Call) -> anyhow::Result<ExitCode> {
    let spec = call.read_spec()?;
    let system = system::open(&spec, &Workload::new(&spec))?;
    let report = json!({
        "format": 1,
        "counters": system.counters()?,
        "settings": system.settings()?,
        "versions": system.versions()?,
    });
    call.report("counters", &report)
}

impl Call {
    /// Reads the specification and checks the directory for the results.
    fn read_spec(&self) -> Result<Spec, SpecError> {
        if let Some(out) = self.out.as_deref().filter(|out| !out.is_dir()) {
            let problem = Problem::new("--out", out.display(), "no such directory", "an existing directory");
            return Err(problem.in_file(Path::new("command line")));
        }
        spec::Spec::read(&self.spec, self.endpoint.as_deref())
    }

    fn bad_input(&self, key: &str, value: &str, problem: &str, allowed: &str) -> anyhow::Error {
        Problem::new(key, value, problem, allowed).in_file(&self.spec).into()
    }

    /// Prints a report and writes it as `<name>.json` into the directory for results, if there is one.
    fn report(&self, name: &str, report: &serde_json::Value) -> anyhow::Result<ExitCode> {
        let json = to_json(report)?;
        print!("{}", String::from_utf8_lossy(&json));
        if let Some(out) = &self.out {
            write_file(&out.join(format!("{name}.json")), &json)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
