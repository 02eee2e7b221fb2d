//! `anticached`: the engine as a server.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anticache_engine::config::Config;
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
