//! YCSB over loopback TCP, all in memory: server and client on one core each, beside the raw loopback with requests and replies of the same sizes. Loading
//! over the wire, too.

use std::path::Path;
use std::time::Instant;

use anticache_engine::client::{Client, Reply};
use anticache_engine::config::{AntiCaching, Config, DEFAULT_IDLE_POLL_US, Log};
use anticache_engine::net::frame::{REPLY_HEADER_BYTES, REQUEST_FIXED_BYTES};
use anticache_engine::net::server::Server;
use anyhow::Context;

use crate::driver::directory;
use crate::harness::ycsb::{ROW_BYTES, draw, load_calls};
use crate::harness::{self, Report, median, ratio};
use crate::ycsb::in_memory;
use echo::{Echo, Sizes};

mod echo;

/// Requests drawn for each mix; a run cycles through them.
const DRAWN: usize = 1 << 20;
const OUTSTANDING: [usize; 4] = [1, 16, 64, 1024];
/// Rows of the load whose time is reported.
const TIMED_ROWS: u64 = 1_000_000;
/// Rows of a loading call, and calls outstanding.
const ROWS: u64 = 100;
const CALLS: usize = 16;
/// A read's request and reply: the length of a frame, its fixed part, the key; the row.
const READ: Sizes = Sizes { request: 4 + REQUEST_FIXED_BYTES + 8, reply: REPLY_HEADER_BYTES + ROW_BYTES };
const SERVER_CPU: usize = 0;
/// The servers: name, log, and for how long a partition looks for work before it sleeps (`idle_poll_us`).
const SITES: [(&str, Log, u64); 3] = [
    ("log off", Log::Off, DEFAULT_IDLE_POLL_US),
    ("log synced", Log::Sync, DEFAULT_IDLE_POLL_US),
    ("log off, asleep at once", Log::Off, 0),
];

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A server in this process, and its client.
struct Site {
    server: Server,
    client: Client,
}

impl Site {
    fn start(log: Log, idle_poll_us: u64, records: u64, data_dir: &Path) -> anyhow::Result<Self> {
        let defaults = in_memory(AntiCaching::Alru, log, records, data_dir);
        let config = Config { cpus: vec![SERVER_CPU], idle_poll_us, ..defaults };
        let server = Server::start(&config)?;
        let client = Client::connect(server.address())?;
        Ok(Self { server, client })
    }

    /// Loads the table; seconds until the timed rows were acknowledged, or all of them where they are fewer.
    fn load(&mut self, records: u64) -> anyhow::Result<f64> {
        let started = Instant::now();
        let load = self.client.procedure("ycsb_load")?;
        let timed_calls = records.min(TIMED_ROWS).div_ceil(ROWS);
        let (mut acknowledged, mut timed_s) = (0, None);
        let mut submitted = load_calls(records, ROWS);
        loop {
            for params in submitted.by_ref().take(CALLS - self.client.outstanding()) {
                self.client.submit(0, 0, load, &params);
            }
            match wait(&mut self.client)? {
                0 => break,
                arrived => acknowledged += arrived as u64,
            }
            if acknowledged >= timed_calls {
                timed_s.get_or_insert_with(|| started.elapsed().as_secs_f64());
            }
        }
        timed_s.context("not every row was acknowledged")
    }

    /// Transactions per second with so many outstanding.
    fn measure(
        &mut self,
        requests: &[(u16, Vec<u8>)],
        first: usize,
        outstanding: usize,
        seconds: f64,
    ) -> anyhow::Result<f64> {
        let mut next = requests.iter().cycle().skip(first);
        let mut submit = |client: &mut Client, count: usize| {
            for (procedure, params) in next.by_ref().take(count) {
                client.submit(0, 0, *procedure, params);
            }
        };
        submit(&mut self.client, outstanding);
        let (started, mut done) = (Instant::now(), 0);
        while started.elapsed().as_secs_f64() < seconds {
            let arrived = wait(&mut self.client)?;
            done += arrived;
            submit(&mut self.client, arrived);
        }
        let rate = done as f64 / started.elapsed().as_secs_f64();
        while wait(&mut self.client)? > 0 {}
        Ok(rate)
    }
}

/// Waits for replies; how many came, none when nothing is outstanding.
fn wait(client: &mut Client) -> anyhow::Result<usize> {
    let mut refused = None;
    let arrived = client.wait(&mut |_, reply| match reply {
        Reply::Committed(row) => {
            std::hint::black_box(row);
        }
        Reply::Aborted(reason) | Reply::Failed(reason) => refused = Some(reason.to_owned()),
    })?;
    refused.map_or(Ok(arrived), |reason| Err(anyhow::anyhow!("a transaction has not committed: {reason}")))
}

/// Who answers.
enum Work {
    Raw,
    /// A site, with the requests of a mix.
    Engine {
        site: usize,
        mix: usize,
    },
}

/// What is measured, and its rates for each number outstanding.
struct Series {
    name: &'static str,
    work: Work,
    /// The series that it is held against.
    peer: Option<usize>,
    settings: String,
    rates: [Vec<f64>; OUTSTANDING.len()],
}

/// An update's reply is shorter than what the raw loopback answers, so only reads are held against it.
fn all_series(records: u64) -> [Series; 5] {
    let engine = |name, site: usize, mix, peer| {
        let settings = settings(records, site);
        Series { name, work: Work::Engine { site, mix }, peer, settings, rates: Default::default() }
    };
    let raw_settings = format!(
        "requests of {} B, replies of {} B, blocking sockets, TCP_NODELAY, a core for each side",
        READ.request, READ.reply
    );
    [
        Series { name: "raw loopback", work: Work::Raw, peer: None, settings: raw_settings, rates: Default::default() },
        engine("over TCP, read-only, log off", 0, 0, Some(0)),
        engine("over TCP, 50/50, log off", 0, 1, None),
        engine("over TCP, 50/50, log synced", 1, 1, Some(2)),
        engine("over TCP, read-only, log off, asleep at once", 2, 0, Some(0)),
    ]
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let records = arguments.records;
    let mut sites = Vec::new();
    for (number, (name, log, idle_poll_us)) in SITES.into_iter().enumerate() {
        let mut site = Site::start(log, idle_poll_us, records, &directory(parent, name)?)?;
        let seconds = site.load(records)?;
        let settings = settings(records, number) + &format!(", {ROWS} rows a call, {CALLS} calls outstanding");
        let rows = records.min(TIMED_ROWS);
        report.add(&format!("over TCP, load of {rows} rows, {name}"), seconds, "s", None, &settings);
        sites.push(site);
    }
    let mixes = [draw(records, 1.0, DRAWN)?, draw(records, 0.5, DRAWN)?];
    let mut all = all_series(records);
    let mut echo = Echo::start(READ, SERVER_CPU)?;
    for round in 0..=arguments.rounds {
        for (number, outstanding) in OUTSTANDING.into_iter().enumerate() {
            for series in &mut all {
                let rate = match series.work {
                    Work::Raw => echo.measure(outstanding, arguments.seconds)?,
                    Work::Engine { site, mix } => {
                        sites[site].measure(&mixes[mix], round * 1000, outstanding, arguments.seconds)?
                    }
                };
                if round > 0 {
                    series.rates[number].push(rate);
                }
            }
        }
    }
    show(&all, report);
    sites.into_iter().for_each(|site| site.server.stop());
    Ok(())
}

fn settings(records: u64, site: usize) -> String {
    let (name, _, idle_poll_us) = SITES[site];
    format!(
        "server and client on one core each, loopback, {records} records x {ROW_BYTES} B, Zipf 1.0, in memory, aLRU, {name}, looks for work for \
         {idle_poll_us} us before it sleeps"
    )
}

fn show(all: &[Series], report: &mut Report) {
    for (number, outstanding) in OUTSTANDING.into_iter().enumerate() {
        for series in all {
            let name = |series: &Series| format!("{}: {outstanding} outstanding", series.name);
            let rates = &series.rates[number];
            let peer = series.peer.map(|peer| (name(&all[peer]), ratio(rates, &all[peer].rates[number])));
            let peer = peer.as_ref().map(|(name, ratio)| (name.as_str(), *ratio));
            let unit = if matches!(series.work, Work::Raw) { "/s" } else { "txn/s" };
            report.add(&name(series), median(rates), unit, peer, &series.settings);
        }
    }
    for series in all {
        let name = |series: &Series| format!("{}: round trip, 1 outstanding", series.name);
        let us = |series: &Series| series.rates[0].iter().map(|rate| 1e6 / rate).collect::<Vec<_>>();
        let peer = series.peer.map(|peer| (name(&all[peer]), ratio(&us(series), &us(&all[peer]))));
        let peer = peer.as_ref().map(|(name, ratio)| (name.as_str(), *ratio));
        report.add(&name(series), median(&us(series)), "us", peer, &series.settings);
    }
}
