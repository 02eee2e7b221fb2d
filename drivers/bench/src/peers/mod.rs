//! The same YCSB work on stores that one could pick instead of the engine: in process, and over loopback TCP. See `README.md` of this package.
//!
//! All systems hold the same records and execute the same operations, and take turns round by round. Afterwards records are read back from each:
//! one that does not hold what was written to it is not compared.

use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::config::AntiCaching;
use anyhow::{Context, ensure};
use clap::ValueEnum;

use self::data::Mix;
use self::store::Peer;
use crate::harness::ycsb::ROW_BYTES;
use crate::harness::{self, Report, median, ratio};

mod check;
mod data;
mod engine;
mod lmdb;
mod mysql;
mod redb;
mod redis;
mod rocksdb;
mod sqlite;
mod store;

/// The mixes and their shares of reads.
const MIXES: [(&str, f64); 2] = [("read-only", 1.0), ("write-heavy (50/50)", 0.5)];
/// The one that changes records.
const UPDATING: usize = 1;
/// What the others are compared with.
const BASE: &str = "anticache-alru";

/// What is compared; the engine itself always takes part.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    Lmdb,
    Rocksdb,
    Redb,
    Sqlite,
    Redis,
    Mysql,
}

const IN_PROCESS: [Name; 4] = [Name::Lmdb, Name::Rocksdb, Name::Redb, Name::Sqlite];
const OVER_TCP: [Name; 2] = [Name::Redis, Name::Mysql];

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes. Systems that are compared are in memory together: about 10 kB for each record.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every system has its turn, after one that is not counted.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests under way over TCP, separated by commas: what is compared is measured with each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024], value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    outstanding: Vec<usize>,
    /// Only these beside the engine, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Name>,
    /// All but these.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Name>,
    /// MySQL's server [default: the one that set-up installs]
    #[arg(long)]
    mysqld: Option<std::path::PathBuf>,
}

impl Arguments {
    fn takes(&self, name: Name) -> bool {
        (self.only.is_empty() || self.only.contains(&name)) && !self.without.contains(&name)
    }

    /// Starts a system and loads the records.
    fn load(&self, name: Name, directory: &Path) -> anyhow::Result<Box<dyn Peer>> {
        let records = self.records;
        Ok(match name {
            Name::Lmdb => Box::new(lmdb::Lmdb::load(records, directory)?),
            Name::Rocksdb => Box::new(rocksdb::Rocks::load(records, directory)?),
            Name::Redb => Box::new(redb::Redb::load(records, directory)?),
            Name::Sqlite => Box::new(sqlite::Sqlite::load(records)?),
            Name::Redis => Box::new(redis::Redis::load(records, directory)?),
            Name::Mysql => Box::new(mysql::load(self.mysqld.as_deref(), records, directory)?),
        })
    }
}

/// The lock file, which says what was compiled.
const VERSIONS: &str = include_str!("../../../../Cargo.lock");

/// Version of a package; of several, the last.
fn locked_version<'lock>(lock: &'lock str, package: &str) -> &'lock str {
    let version = lock.split("[[package]]").filter_map(|entry| {
        let rest = entry.trim_start().strip_prefix(&format!("name = \"{package}\"\nversion = \""))?;
        rest.split('"').next()
    });
    version.last().unwrap_or("of unknown version")
}

/// A system in the comparison.
struct Contestant {
    name: String,
    peer: Box<dyn Peer>,
    /// Operations that each of its lanes has executed, of each mix.
    done: Vec<Vec<usize>>,
    /// Transactions per second: of each mix, of each round.
    rates: Vec<Vec<f64>>,
}

impl Contestant {
    fn new(name: &str, load: impl FnOnce() -> anyhow::Result<Box<dyn Peer>>) -> anyhow::Result<Self> {
        eprintln!("peers: {name}: starting and loading");
        let started = Instant::now();
        let peer = load().with_context(|| format!("{name} cannot take part"))?;
        eprintln!("peers: {name}: ready after {:.1} s", started.elapsed().as_secs_f64());
        let done = MIXES.map(|_| vec![0; peer.lanes()]).into();
        let rates = MIXES.map(|_| Vec::new()).into();
        Ok(Self { name: name.to_owned(), peer, done, rates })
    }

    /// Executes operations for some time; transactions per second.
    fn measure(&mut self, number: usize, mix: &Mix, duration: Duration) -> anyhow::Result<f64> {
        let done = &mut self.done[number];
        let (before, started) = (done.iter().sum::<usize>(), Instant::now());
        self.peer.run(mix, done, duration).with_context(|| format!("{}, {}", self.name, MIXES[number].0))?;
        Ok((done.iter().sum::<usize>() - before) as f64 / started.elapsed().as_secs_f64())
    }
}

/// Lets all have their turns, checks what they hold, and reports; the first is what the others are compared with.
fn compare(
    place: &str,
    contestants: &mut [&mut Contestant],
    mixes: &[Mix],
    arguments: &Arguments,
    report: &mut Report,
) -> anyhow::Result<()> {
    let duration = Duration::from_secs_f64(arguments.seconds);
    contestants.iter_mut().for_each(|contestant| contestant.rates.iter_mut().for_each(Vec::clear));
    for (number, mix) in mixes.iter().enumerate() {
        for round in 0..=arguments.rounds {
            eprintln!("peers: {place}, {}: round {round} of {}", MIXES[number].0, arguments.rounds);
            for contestant in contestants.iter_mut() {
                let rate = contestant.measure(number, mix, duration)?;
                if round > 0 {
                    contestant.rates[number].push(rate);
                }
            }
        }
    }
    let mut sound = Vec::new();
    for contestant in contestants {
        match check::check(&mut *contestant.peer, arguments.records, &mixes[UPDATING], &contestant.done[UPDATING]) {
            Ok(()) => sound.push(&*contestant),
            Err(problem) => eprintln!("peers: {} is NOT compared: {problem:#}", contestant.name),
        }
    }
    ensure!(sound.first().is_some_and(|first| first.name == BASE), "the engine does not hold what was written to it");
    for (number, (mix, _)) in MIXES.iter().enumerate() {
        for contestant in &sound {
            let (rates, base) = (&contestant.rates[number], &sound[0].rates[number]);
            let settings = format!(
                "{}; {} records x {ROW_BYTES} B, Zipf 1.0, in memory, nothing synced, {} s",
                contestant.peer.settings(),
                arguments.records,
                arguments.seconds
            );
            let name = format!("peers, {place}, {mix}: {}", contestant.name);
            report.add(&name, median(rates), "txn/s", Some((BASE, ratio(rates, base))), &settings);
        }
    }
    Ok(())
}

fn contestants(
    names: &[Name],
    engines: Vec<Contestant>,
    arguments: &Arguments,
    directory: &Path,
) -> anyhow::Result<Vec<Contestant>> {
    let mut contestants = engines;
    for &name in names.iter().filter(|&&name| arguments.takes(name)) {
        let value = name.to_possible_value().context("every system has a name")?;
        let own = directory.join(value.get_name());
        std::fs::create_dir_all(&own)?;
        contestants.push(Contestant::new(value.get_name(), || arguments.load(name, &own))?);
    }
    Ok(contestants)
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let directory = std::path::absolute(directory)?;
    let records = arguments.records;
    let mixes =
        MIXES.map(|(_, read_share)| Mix::draw(records, read_share)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let engine = |name: &str, anticaching| {
        let own = directory.join(name);
        std::fs::create_dir_all(&own)?;
        Contestant::new(name, || Ok(Box::new(engine::InProcess::load(anticaching, records, &own)?)))
    };
    let engines = vec![engine(BASE, AntiCaching::Alru)?, engine("anticache-off", AntiCaching::Off)?];
    let mut stores = contestants(&IN_PROCESS, engines, arguments, &directory)?;
    compare("in process", &mut stores.iter_mut().collect::<Vec<_>>(), &mixes, arguments, report)?;
    drop(stores);
    let server = |name: &str, sleeps_at_once| {
        let own = directory.join("over-tcp").join(name);
        Contestant::new(name, || Ok(Box::new(engine::OverTcp::load(sleeps_at_once, records, &own)?)))
    };
    // Who waits looks for work for a while by default; the servers of others do not.
    let engines = vec![server(BASE, false)?, server("anticache-alru, asleep at once", true)?];
    let mut servers = contestants(&OVER_TCP, engines, arguments, &directory)?;
    for (number, &outstanding) in arguments.outstanding.iter().enumerate() {
        let place = format!("over TCP, {outstanding} outstanding");
        let mut taking_part: Vec<_> = servers.iter_mut().collect();
        // One that has a connection for each request is measured once.
        taking_part.retain_mut(|contestant| contestant.peer.set_outstanding(outstanding) || number == 0);
        compare(&place, &mut taking_part, &mixes, arguments, report)?;
    }
    Ok(())
}
