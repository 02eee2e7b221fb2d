//! A server that the benchmark starts for itself and stops again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::harness;

/// The CPU of every server; its client has the last one.
const SERVER_CPU: usize = 0;
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a log's end that a message shows.
const LAST_WORDS_BYTES: u64 = 2000;

/// A port of 127.0.0.1 that nobody listens on.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A process on the servers' CPU; ends with this value, and with the benchmark however that ends.
pub struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a program; what it prints goes to a log in `directory`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &Path, arguments: &[String], directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join("server.log");
        let output = File::create(&log)?;
        // A child begins on the CPUs of who started it.
        harness::bind(SERVER_CPU);
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn();
        harness::bind_to_last();
        let child = child.with_context(|| format!("setpriv (Debian package util-linux) for {}", program.display()))?;
        Ok(Self { child, log })
    }

    /// Tries until the server answers.
    ///
    /// # Errors
    /// When it ends, or does not answer in time.
    pub fn wait_for<T, E: std::fmt::Display>(
        &mut self,
        mut connect: impl FnMut() -> Result<T, E>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        loop {
            let error = match connect() {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("it has ended: {status}. {}", self.last_words());
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("no answer in {} s: {error}. {}", START_TIMEOUT.as_secs(), self.last_words());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Seconds that processors have worked for it so far.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        // Behind the name, which may hold anything: the 12th and 13th field, in ticks.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let ticks: Vec<u64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
        anyhow::ensure!(ticks.len() == 2, "{path} has no CPU time: {stat}");
        Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// The end of its log.
    pub fn last_words(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut log = File::open(&self.log)?;
            let from = log.metadata()?.len().saturating_sub(LAST_WORDS_BYTES);
            log.seek(SeekFrom::Start(from))?;
            let mut end = Vec::new();
            log.read_to_end(&mut end)?;
            Ok(String::from_utf8_lossy(&end).into_owned())
        };
        format!("The end of the server's log:\n{}", read().unwrap_or_else(|error| error.to_string()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data are thrown away, so nothing is lost by not asking first.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("warning: the server with pid {} could not be stopped: {error}", self.child.id());
        }
    }
}
