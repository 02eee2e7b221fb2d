//! `spindle`: an emulated disk from the command line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use spindle::control::{self, Command};
use spindle::daemon::disk::Mode;
use spindle::device::Mkfs;
use spindle::layout::Layout;
use spindle::lifecycle::{self, MountOptions, SWITCH_LIMIT, Status};
use spindle::profile::Profile;
use spindle::selftest;

/// An emulated disk: a file with a mechanical model in front of it, served as a block device.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make the directory of a new disk (sparse image, spindle.json); an equal one that exists is kept
    Create {
        directory: PathBuf,
        /// Size of the disk: bytes, or with KiB, MiB, GiB, TiB
        #[arg(long, value_parser = parse_bytes)]
        region_bytes: u64,
        /// A name of `spindle profiles`, or the path of a profile
        #[arg(long, default_value = "hdd-7200")]
        profile: String,
        /// Seed of the model
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Bring the disk up in mode bypass: daemon, loop device, file system; prints the block device
    Mount {
        directory: PathBuf,
        /// Where to mount the file system
        #[arg(long, required_unless_present = "raw", conflicts_with = "raw")]
        at: Option<PathBuf>,
        /// Which file system to make
        #[arg(long, value_enum, default_value = "keep")]
        mkfs: Mkfs,
        /// Stop at the block device
        #[arg(long)]
        raw: bool,
        /// Mount without barriers, so that a power cut can destroy the file system: shows that a test can fail
        #[arg(long)]
        no_barriers_for_tests: bool,
    },
    /// Switch between bypass and model
    Mode {
        directory: PathBuf,
        #[arg(value_enum)]
        mode: ModeName,
        /// Turn the drive's write cache on or off
        #[arg(long, value_enum)]
        write_cache: Option<Switch>,
    },
    /// Print statistics
    Stats {
        directory: PathBuf,
        /// Start the counters anew afterwards
        #[arg(long)]
        reset: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Cut the power: the write cache is lost, everything fails
    Powercut { directory: PathBuf },
    /// Give it back: the file system is mounted anew and recovers; mode bypass
    Poweron { directory: PathBuf },
    /// Take the disk down, in whatever state it is
    Unmount { directory: PathBuf },
    /// Say what there is of the disk now
    Status {
        directory: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The daemon itself, in the foreground
    Serve {
        directory: PathBuf,
        /// In a session of its own
        #[arg(long, hide = true)]
        background: bool,
    },
    /// Compare the disk on this machine with its model in virtual time, on a scratch disk
    Selftest {
        /// A disk, whose profile and region are taken; the scratch disk is made in its directory (otherwise: here)
        directory: Option<PathBuf>,
        /// Another profile
        #[arg(long)]
        profile: Option<String>,
        /// Another region
        #[arg(long, value_parser = parse_bytes)]
        region_bytes: Option<u64>,
        /// Shorter (about 12 s instead of 80) and with a tolerance of 10 % instead of 5 %
        #[arg(long)]
        quick: bool,
        /// Write the results there
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// List the built-in profiles
    Profiles,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Bypass,
    Model,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        unit => return Err(format!("unit {unit:?} is not one of KiB, MiB, GiB, TiB")),
    };
    let number: u64 = text[..digits].parse().map_err(|_| "not a number of bytes".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too many bytes".to_owned())
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            // One line: the causes follow each other.
            eprintln!("Error: {}", format!("{error:#}").replace('\n', "; "));
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Create { directory, region_bytes, profile, seed } => {
            Layout::create(&directory, &profile, region_bytes, seed)?;
        }
        Verb::Mount { directory, at, mkfs, raw: _, no_barriers_for_tests } => {
            let options = MountOptions { at, mkfs, barriers: !no_barriers_for_tests };
            println!("{}", lifecycle::mount(&Layout::open(&directory)?, &options)?.display());
        }
        Verb::Mode { directory, mode, write_cache } => {
            let mode = match mode {
                ModeName::Bypass => Mode::Bypass,
                ModeName::Model => Mode::Model,
            };
            let command = Command::Mode { mode, write_cache: write_cache.map(|switch| switch == Switch::On) };
            control::send(&Layout::open(&directory)?, &command, SWITCH_LIMIT)?;
        }
        Verb::Stats { directory, reset, json } => stats(&Layout::open(&directory)?, reset, json)?,
        Verb::Powercut { directory } => {
            let answer = control::send(&Layout::open(&directory)?, &Command::PowerCut, SWITCH_LIMIT)?;
            println!("power is off; the write cache lost {} bytes", answer["lost_bytes"]);
        }
        Verb::Poweron { directory } => {
            println!("{}", lifecycle::power_on(&Layout::open(&directory)?)?.display());
        }
        Verb::Unmount { directory } => lifecycle::unmount(&Layout::open(&directory)?)?,
        Verb::Status { directory, json } => status(&Layout::open(&directory)?, json)?,
        Verb::Serve { directory, background } => serve(&directory, background)?,
        Verb::Selftest { directory, profile, region_bytes, quick, json } => {
            let options = selftest::Options { directory, profile, region_bytes, quick, json };
            return Ok(if selftest::run(&options)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Verb::Profiles => Profile::built_in().iter().for_each(|name| println!("{name}")),
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(directory: &std::path::Path, background: bool) -> Result<()> {
    let layout = Layout::open(directory)?;
    if background {
        // The terminal's and the caller's other files are not the daemon's.
        spindle::daemon::scheduling::keep_no_inherited_files();
        rustix::process::setsid().context("cannot make a session")?;
    }
    std::env::set_current_dir("/").context("/")?;
    spindle::daemon::serve::serve(&layout)
}

fn stats(layout: &Layout, reset: bool, json: bool) -> Result<()> {
    let stats = control::send(layout, &Command::Stats { reset }, Duration::from_secs(10))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&stats)?);
        return Ok(());
    }
    let Some(entries) = stats.as_object() else { bail!("the daemon's statistics are no object: {stats}") };
    for (name, value) in entries {
        match value.as_object() {
            Some(inner) => inner.iter().for_each(|(inner, value)| println!("{:32} {value}", format!("{name}.{inner}"))),
            None => println!("{name:32} {value}"),
        }
    }
    Ok(())
}

fn status(layout: &Layout, json: bool) -> Result<()> {
    let status = Status::of(layout)?;
    if json {
        println!("{}", serde_json::to_string(&status)?);
        return Ok(());
    }
    let join = |paths: &[PathBuf]| paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
    let daemon = match (status.daemon, status.pid) {
        (lifecycle::Daemon::Answers, Some(pid)) => format!("up (daemon {pid})"),
        (lifecycle::Daemon::Answers, None) => "up".to_owned(),
        (lifecycle::Daemon::Silent, _) => "the daemon does not answer; spindle unmount cleans up".to_owned(),
        (lifecycle::Daemon::Absent, _) if status.fuse_mounted || !status.devices.is_empty() => {
            "the daemon died; spindle unmount cleans up".to_owned()
        }
        (lifecycle::Daemon::Absent, _) => "down".to_owned(),
    };
    let root = status.directory.display();
    println!("{root}: {daemon}; device: {}; mounted at: {}", join(&status.devices), join(&status.mountpoints));
    Ok(())
}
