//! The engine, the drivers and the disk measured on one machine.
//!
//! `make bench`, or `cargo run --release -p anticache-bench -- all|ycsb|tcp|… [--help]`
//!
//! Variants take turns in one run, round by round, so that the machine's drift meets all of them; the medians over the rounds are shown, and ratios are
//! medians of the ratios within a round. `--json FILE` writes the list that `README.md` of this package describes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use harness::Report;

mod all;
mod counters;
mod counts;
mod disk;
mod driver;
mod drivers;
mod durability;
mod eviction;
mod growth;
mod harness;
mod machine;
mod memory;
mod multi;
mod mysqld;
mod own_memory;
#[cfg(feature = "peers")]
mod peers;
mod server;
mod stalls;
mod tcp;
mod tpcc;
mod ycsb;

#[derive(Parser)]
#[command(version, about = "The engine, the drivers and the disk measured on one machine")]
struct CommandLine {
    #[command(subcommand)]
    what: What,
    /// Where to write the results as JSON.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Where to put the databases.
    #[arg(long, global = true, default_value = "var/bench")]
    directory: PathBuf,
    /// Say nothing of the machine, and do not look whether it is quiet.
    #[arg(long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum What {
    /// Everything, as it is without options.
    All(all::Arguments),
    /// YCSB in memory, in process.
    Ycsb(ycsb::Arguments),
    /// YCSB in memory over TCP, beside the raw loopback; loading over TCP.
    Tcp(tcp::Arguments),
    /// YCSB larger than memory, and what a miss costs.
    Eviction(eviction::Arguments),
    /// The time between two transactions under eviction, merges and snapshots.
    Stalls(stalls::Arguments),
    /// Bytes of a tuple in memory and evicted, and the resident set.
    Memory(memory::Arguments),
    /// TPC-C in memory, in process.
    Tpcc(tpcc::Arguments),
    /// TPC-C larger than memory.
    Growth(growth::Arguments),
    /// Transactions on two partitions.
    Multi(multi::Arguments),
    /// The command log, snapshots, and recovery.
    Durability(durability::Arguments),
    /// The terminals, on a system that answers at once, and on MySQL beside what the server takes.
    Drivers(drivers::Arguments),
    /// Instructions and cache misses of a transaction, in a simulated processor (valgrind).
    Counts(counts::Arguments),
    /// The machine's own disk, and the emulated one against its model.
    Disk(disk::Arguments),
    /// YCSB in memory on other stores, beside the engine.
    #[cfg(feature = "peers")]
    Peers(peers::Arguments),
}

fn run(what: What, directory: &Path, json: Option<PathBuf>) -> anyhow::Result<()> {
    if let What::All(arguments) = what {
        return all::run(&arguments, directory, json);
    }
    let own = tempfile::tempdir_in(directory)?;
    let (directory, mut report) = (own.path(), Report::new(json));
    let report = &mut report;
    match &what {
        What::All(_) => unreachable!("taken apart before"),
        What::Ycsb(arguments) => ycsb::run(arguments, directory, report),
        What::Tcp(arguments) => tcp::run(arguments, directory, report),
        What::Eviction(arguments) => eviction::run(arguments, directory, report),
        What::Stalls(arguments) => stalls::run(arguments, directory, report),
        What::Memory(arguments) => memory::run(arguments, directory, report),
        What::Tpcc(arguments) => tpcc::run(arguments, directory, report),
        What::Growth(arguments) => growth::run(arguments, directory, report),
        What::Multi(arguments) => multi::run(arguments, directory, report),
        What::Durability(arguments) => durability::run(arguments, directory, report),
        What::Drivers(arguments) => drivers::run(arguments, directory, report),
        What::Counts(arguments) => counts::run(arguments, directory, report),
        What::Disk(arguments) => disk::run(arguments, directory, report),
        #[cfg(feature = "peers")]
        What::Peers(arguments) => peers::run(arguments, directory, report),
    }
}

fn main() -> ExitCode {
    match execute(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anticache-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(CommandLine { what, json, directory, quiet }: CommandLine) -> anyhow::Result<()> {
    let directory = std::fs::create_dir_all(&directory)
        .and_then(|()| directory.canonicalize())
        .with_context(|| format!("cannot make the directory {} for the databases", directory.display()))?;
    if !quiet {
        println!("{}", machine::describe(&directory));
        println!("counters: {}", counters::Counters::of_this_thread().describe());
        machine::warn();
    }
    run(what, &directory, json)
}
