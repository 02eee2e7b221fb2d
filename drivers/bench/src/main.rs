//! The engine measured, in process and over loopback TCP.
//!
//! `make bench`, or `cargo run --release -p anticache-bench -- all|ycsb|tpcc|multi|durability|eviction|growth [--help]`
//!
//! Variants take turns in one run, round by round, so that the machine's drift meets all of them; the medians over the rounds are shown, and ratios are
//! medians of the ratios within a round. `--json FILE` writes the list that the project's README describes under "Benchmarks".

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Parser, Subcommand};
use harness::Report;

mod durability;
mod eviction;
mod growth;
mod harness;
mod multi;
#[cfg(feature = "peers")]
mod peers;
mod tpcc;
mod ycsb;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Where to write the results as JSON.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Where to put the databases.
    #[arg(long, global = true, default_value = "var/bench")]
    directory: PathBuf,
}

#[derive(Subcommand)]
enum What {
    /// Everything, as it is without options.
    All,
    /// YCSB in memory, in process and over TCP.
    Ycsb(ycsb::Arguments),
    /// TPC-C in memory, in process.
    Tpcc(tpcc::Arguments),
    /// Transactions on two partitions.
    Multi(multi::Arguments),
    /// The command log, snapshots, and recovery.
    Durability(durability::Arguments),
    /// Eviction, merges and compaction: YCSB larger than memory.
    Eviction(eviction::Arguments),
    /// TPC-C larger than memory.
    Growth(growth::Arguments),
    /// YCSB in memory on other stores, beside the engine.
    #[cfg(feature = "peers")]
    Peers(peers::Arguments),
}

impl What {
    fn run(&self, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
        let own = tempfile::tempdir_in(directory)?;
        match self {
            Self::All => unreachable!("taken apart before"),
            Self::Ycsb(arguments) => ycsb::run(arguments, own.path(), report),
            Self::Tpcc(arguments) => tpcc::run(arguments, own.path(), report),
            Self::Multi(arguments) => multi::run(arguments, own.path(), report),
            Self::Durability(arguments) => durability::run(arguments, own.path(), report),
            Self::Eviction(arguments) => eviction::run(arguments, own.path(), report),
            Self::Growth(arguments) => growth::run(arguments, own.path(), report),
            #[cfg(feature = "peers")]
            Self::Peers(arguments) => peers::run(arguments, own.path(), report),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if cfg!(debug_assertions) {
        eprintln!("warning: debug assertions are on; these figures mean nothing");
    }
    let all = ["ycsb", "tpcc", "multi", "durability", "eviction", "growth"];
    let peers = if cfg!(feature = "peers") { &["peers"][..] } else { &[] };
    let chosen = match arguments.what {
        What::All => all.iter().chain(peers).map(|name| Arguments::parse_from(["bench", name]).what).collect(),
        one => vec![one],
    };
    std::fs::create_dir_all(&arguments.directory)
        .with_context(|| format!("cannot make the directory {} for the databases", arguments.directory.display()))?;
    let mut report = Report::default();
    for what in chosen {
        // A thread of its own, so that one's choice of CPUs is not the next one's.
        std::thread::scope(|scope| scope.spawn(|| what.run(&arguments.directory, &mut report)).join())
            .map_err(|_| anyhow::anyhow!("a benchmark has panicked"))??;
    }
    arguments.json.map_or(Ok(()), |path| report.write(&path))
}
