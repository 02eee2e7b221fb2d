//! `anticached`: the engine as a server.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anticache_engine::config::Config;
use anticache_engine::durability::log_reader::{LogSummary, Record, read_log};
use anticache_engine::io::files::KernelFiles;
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
    let summary = read_log(&KernelFiles::inspecting(), directory, partition, |record| {
        problem = writeln!(out, "{}", json_of(&record));
        if problem.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    problem.and_then(|()| out.flush())?;
    let LogSummary { segments, groups, records, dropped, torn, .. } = summary;
    let end = if torn { ", the last group torn" } else { "" };
    let given_up = if dropped > 0 { format!(", {dropped} given up at a restart") } else { String::new() };
    eprintln!("{records} transactions in {groups} groups and {segments} segments{given_up}{end}");
    Ok(())
}

fn json_of(record: &Record<'_>) -> serde_json::Value {
    let hex: String = record.params.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut line = serde_json::json!({"sequence": record.sequence, "procedure": record.procedure, "params": hex});
    if let Some(multi) = &record.multi {
        line["transaction"] = multi.transaction.into();
        line["participants"] = multi.participants.clone().into();
    }
    line
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
