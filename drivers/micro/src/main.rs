//! `anticache-micro run --spec FILE.json --out DIR (--endpoint FILE.json | --directory DIR)` and `anticache-micro serve`.
//!
//! Exit codes are loadgen's: 0 done (a trial's own status is in its `result.json`), 2 bad input, 130 interrupted, 1 anything else.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod eviction_steps;
mod index_update;
mod lru_chain;
mod remote;
mod result;
mod spec;
mod tables;
mod trial;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use loadgen::interrupt::{EXIT_INTERRUPTED, Interrupt};
use loadgen::spec::{Problem, SpecError};
use loadgen::trial::{to_json, write_file};

use result::MicroResult;
use spec::Spec;
use trial::Place;

/// Measures parts of the engine from inside (paper §5.4, §5.5).
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one trial and write result.json into --out.
    Run(Call),
    /// Run the trials that others ask for, one after another, until SIGTERM: so that all of them are in one control group.
    Serve(Serve),
}

#[derive(Args)]
struct Call {
    /// The specification (JSON).
    #[arg(long)]
    spec: PathBuf,
    /// File that says where a server is (`micro_address`), which then runs the trial.
    #[arg(long, conflicts_with = "directory", required_unless_present = "directory")]
    endpoint: Option<PathBuf>,
    /// Where this process keeps its block file when it runs the trial itself.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Bytes that its table, with indexes and Evicted Table, may take then.
    #[arg(long, default_value_t = 1 << 28)]
    memory_budget_bytes: u64,
    /// Existing directory for the result.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args)]
struct Serve {
    /// Where the block file lies: on the disk under test.
    #[arg(long)]
    directory: PathBuf,
    /// Address to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// Bytes that a trial's table, with indexes and Evicted Table, may take.
    #[arg(long)]
    memory_budget_bytes: u64,
}

/// Exit code for input that cannot be executed.
const EXIT_BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("anticache-micro: {error:#}");
            if error.is::<SpecError>() { ExitCode::from(EXIT_BAD_INPUT) } else { ExitCode::FAILURE }
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install().context("cannot install signal handlers")?;
    if cfg!(debug_assertions) {
        eprintln!("anticache-micro: warning: this is a debug build; do not measure it");
    }
    match command {
        Command::Run(call) => run(&call, &interrupt),
        Command::Serve(serve) => {
            let place = Place::prepare(&serve.directory, serve.memory_budget_bytes)?;
            remote::serve(&place, serve.listen, &interrupt)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run(call: &Call, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    if !call.out.is_dir() {
        let problem = Problem::new("--out", call.out.display(), "no such directory", "an existing directory");
        return Err(problem.in_file(Path::new("command line")).into());
    }
    let spec = Spec::read(&call.spec, call.endpoint.as_deref())?;
    let request = spec.request()?;
    let result = match (&spec.micro_address, &call.directory) {
        (Some(address), _) => remote::ask(address, &request, interrupt),
        (None, Some(directory)) => {
            let place = Place::prepare(directory, call.memory_budget_bytes)?;
            serde_json::to_value(trial::run(&request, &place, &|| interrupt.requested()))?
        }
        (None, None) => {
            let allowed = "the address of `anticache-micro serve`, as deploy.yml leaves it";
            let problem = Problem::new("micro_address", "absent", "the endpoint names no server", allowed);
            return Err(problem.in_file(call.endpoint.as_deref().unwrap_or(&call.spec)).into());
        }
    };
    write_file(&call.out.join("result.json"), &to_json(&result)?)?;
    let shown = MicroResult::shown(&result);
    eprintln!("run {}: {shown}", request.measurement.name());
    Ok(if interrupt.requested() { ExitCode::from(EXIT_INTERRUPTED) } else { ExitCode::SUCCESS })
}
