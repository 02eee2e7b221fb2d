//! `anticached`: the engine as a server.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anticache_engine::config::Config;
use anticache_engine::durability::log_reader::{LogSummary, read_log};
use anticache_engine::net::server::Server;
use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Parser)]
#[command(version, about = "A main-memory OLTP engine with anti-caching")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT.
    Serve {
        /// Configuration, JSON.
        #[arg(long)]
        config: PathBuf,
    },
    /// Print the transactions of a command log, one JSON object per line, and fail if it is more than torn at its end.
    Log {
        /// The data directory.
        directory: PathBuf,
        /// Which partition's.
        #[arg(long, default_value_t = 0)]
        partition: u32,
    },
    /// Check a configuration and its schema without starting anything.
    Check {
        /// Configuration, JSON.
        #[arg(long)]
        config: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve { config } => serve(&config),
        Command::Check { config } => check(&config),
        Command::Log { directory, partition } => print_log(&directory, partition),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anticached: {error}");
            ExitCode::from(2)
        }
    }
}

fn check(path: &std::path::Path) -> anyhow::Result<()> {
    let config = Config::from_file(path)?;
    let catalog = anticache_engine::catalog::Catalog::from_file(&config.schema)?;
    config.check_against(&catalog)?;
    println!(
        "{}: tables {}",
        path.display(),
        catalog.tables().iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// One line per transaction, its parameters in hexadecimal, then a summary on standard error.
fn print_log(directory: &std::path::Path, partition: u32) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut problem = Ok(());
    let summary = read_log(directory, partition, |sequence, procedure, params| {
        let hex: String = params.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = serde_json::json!({"sequence": sequence, "procedure": procedure, "params": hex});
        problem = std::mem::replace(&mut problem, Ok(())).and_then(|()| writeln!(out, "{line}"));
    })?;
    problem.and_then(|()| out.flush())?;
    let LogSummary { segments, groups, records, torn } = summary;
    let end = if torn { ", the last group torn" } else { "" };
    eprintln!("{records} transactions in {groups} groups and {segments} segments{end}");
    Ok(())
}

fn serve(path: &std::path::Path) -> anyhow::Result<()> {
    let config = Config::from_file(path)?;
    if cfg!(debug_assertions) {
        eprintln!("anticached: warning: this is a debug build; do not measure it");
    }
    anticache_engine::allocator::return_freed_memory();
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    let server = Server::start(&config)?;
    println!("anticached ready on {}", server.address());
    std::io::stdout().flush()?;
    loop {
        if signals.pending().next().is_some() {
            server.stop();
            return Ok(());
        }
        if server.is_broken() {
            anyhow::bail!("a thread has ended unexpectedly; see above");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
