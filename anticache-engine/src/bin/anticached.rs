//! `anticached`: the engine as a server.

use std::io::Write;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anticache_engine::client::Client;
use anticache_engine::config::Config;
use anticache_engine::durability::log_reader::{LogSummary, Record, read_log};
use anticache_engine::durability::verify::verify;
use anticache_engine::events::Stream;
use anticache_engine::io::files::KernelFiles;
use anticache_engine::net::frame::SNAPSHOT_PROCEDURE;
use anticache_engine::net::server::Server;
use anticache_engine::secret::Secret;
use clap::{Args, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Parser)]
#[command(version, about = "A main-memory OLTP engine with anti-caching", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Check a data directory: read everything that recovery would read, change nothing, and fail if something is missing or wrong.
    #[arg(long, value_name = "DIRECTORY", exclusive = true)]
    check: Option<PathBuf>,
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
    /// Print the data structures of a running server's partition as JSON: tuples, LRU chains, Evicted Tables, blocks.
    Describe {
        #[command(flatten)]
        server: ServerArguments,
        /// At most so many of each kind.
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Print the events of a running server's partition, one JSON object per line.
    Events {
        #[command(flatten)]
        server: ServerArguments,
        /// Fetches, merges and restarts instead of evictions, compactions, snapshots and errors.
        #[arg(long)]
        traffic: bool,
    },
    /// Have a running server take a snapshot, and wait until it is durable.
    Snapshot {
        #[command(flatten)]
        server: ServerArguments,
    },
}

#[derive(Args)]
struct ServerArguments {
    /// Where it listens.
    #[arg(long)]
    address: SocketAddr,
    /// File with its secret, if it has one.
    #[arg(long)]
    secret_file: Option<PathBuf>,
    /// Which partition.
    #[arg(long, default_value_t = 0)]
    partition: u32,
}

impl ServerArguments {
    fn connect(&self) -> anyhow::Result<Client> {
        let secret = self.secret_file.as_deref().map(Secret::from_file).transpose()?;
        let client = Client::connect_with(self.address, secret.as_ref())?;
        let partitions = client.partitions();
        anyhow::ensure!(self.partition < partitions, "partition {}; the server has {partitions}", self.partition);
        Ok(client)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (arguments.command, arguments.check) {
        (_, Some(directory)) => check_data(&directory),
        (Some(Command::Serve { config }), _) => serve(&config),
        (Some(Command::Check { config }), _) => check(&config),
        (Some(Command::Log { directory, partition }), _) => print_log(&directory, partition),
        (Some(Command::Describe { server, limit }), _) => describe(&server, limit),
        (Some(Command::Events { server, traffic }), _) => print_events(&server, traffic),
        (Some(Command::Snapshot { server }), _) => snapshot(&server),
        (None, None) => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anticached: {error}");
            ExitCode::from(2)
        }
    }
}

fn check_data(directory: &std::path::Path) -> anyhow::Result<()> {
    let (manifest, partitions) = verify(&KernelFiles::inspecting(), directory)?;
    println!("{}: snapshot {}, log {:?}", directory.display(), manifest.generation, manifest.log);
    for (id, found) in partitions.iter().enumerate() {
        println!(
            "partition {id}: {} tuples, {} evicted in {} blocks, {} bytes; {} transactions in {} bytes of log{}",
            found.totals.rows,
            found.totals.entries,
            found.totals.blocks,
            found.snapshot_bytes,
            found.log_records,
            found.log_bytes,
            if found.log_is_torn { ", the last group torn" } else { "" }
        );
    }
    Ok(())
}

fn describe(server: &ServerArguments, limit: u32) -> anyhow::Result<()> {
    let described = server.connect()?.describe(server.partition, limit)?;
    println!("{}", serde_json::to_string_pretty(&described)?);
    Ok(())
}

fn print_events(server: &ServerArguments, traffic: bool) -> anyhow::Result<()> {
    let (mut client, mut from) = (server.connect()?, 0);
    let stream = if traffic { Stream::Traffic } else { Stream::Maintenance };
    loop {
        let page = client.events(server.partition, stream, from)?;
        if page["lost"].as_u64().is_some_and(|lost| lost > 0) {
            eprintln!("anticached: {} older events are not kept any more", page["lost"]);
        }
        let events = page["events"].as_array().cloned().unwrap_or_default();
        if events.is_empty() {
            return Ok(());
        }
        events.iter().for_each(|event| println!("{event}"));
        from = page["next"].as_u64().unwrap_or(u64::MAX);
    }
}

fn snapshot(server: &ServerArguments) -> anyhow::Result<()> {
    let reply = server.connect()?.call(server.partition, SNAPSHOT_PROCEDURE, &[])?;
    println!("{}", String::from_utf8_lossy(&reply));
    Ok(())
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
