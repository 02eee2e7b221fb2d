//! One trial: a measurement repeated for its time, within its limit.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use crate::result::{MicroResult, Repetition};
use crate::spec::{Measurement, Request};
use crate::{eviction_steps, index_update, lru_chain};

/// Why a trial gives no figures.
#[derive(Debug)]
pub enum Ended {
    /// Somebody asked it to stop.
    Interrupted,
    /// What failed, with which value, and what to do.
    Failed(String),
}

impl From<String> for Ended {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// Where trials run.
pub struct Place {
    /// For the block file.
    pub directory: PathBuf,
    /// What a table may take.
    pub budget_bytes: u64,
}

impl Place {
    /// Creates the directory.
    ///
    /// # Errors
    /// What the system says, with the path.
    pub fn prepare(directory: &Path, budget_bytes: u64) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { directory: directory.to_owned(), budget_bytes })
    }
}

/// How long a trial may go on.
pub struct Watch<'a> {
    started: Instant,
    limit: Duration,
    stop: &'a dyn Fn() -> bool,
}

impl Watch<'_> {
    /// To be asked often; `done` says how far the repetition is.
    ///
    /// # Errors
    /// When the trial is to end. It never does less than it was asked for and calls that a result.
    pub fn check(&self, done: impl Fn() -> String) -> Result<(), Ended> {
        if (self.stop)() {
            return Err(Ended::Interrupted);
        }
        if self.started.elapsed() <= self.limit {
            return Ok(());
        }
        let limit_s = self.limit.as_secs_f64();
        Err(Ended::Failed(format!(
            "not done within micro.limit_s = {limit_s} s: {}; fewer tuples would take less time, a higher limit allows it more",
            done()
        )))
    }

    /// Repeats until `measure_s` have passed, at least once; each repetition is told its number.
    ///
    /// # Errors
    /// The first repetition's that fails.
    pub fn repeat(
        &self,
        measure_s: f64,
        mut repetition: impl FnMut(u64) -> Result<Repetition, Ended>,
    ) -> Result<Vec<Repetition>, Ended> {
        let (started, mut found) = (Instant::now(), Vec::new());
        while found.is_empty() || started.elapsed().as_secs_f64() < measure_s {
            self.check(|| format!("{} repetitions are", found.len()))?;
            found.push(repetition(found.len() as u64)?);
        }
        Ok(found)
    }
}

/// Milliseconds since `start`.
pub fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Runs a trial; whatever goes wrong is in the result. `stop` tells whether somebody wants it to end.
pub fn run(request: &Request, place: &Place, stop: &dyn Fn() -> bool) -> MicroResult {
    let limit = Duration::from_secs_f64(request.measurement.limit_s());
    let watch = Watch { started: Instant::now(), limit, stop };
    let measured = match &request.measurement {
        Measurement::LruChain(lru) => lru_chain::measure(lru, request, place, &watch),
        Measurement::EvictionSteps(steps) => eviction_steps::measure(steps, request, place, &watch),
        Measurement::IndexUpdate(update) => index_update::measure(update, request, place, &watch),
    };
    let settings = json!({
        "directory": place.directory, "memory_budget_bytes": place.budget_bytes, "direct_io": true,
    });
    match measured {
        Ok(found) => MicroResult::of(&found, watch.started.elapsed().as_secs_f64(), settings),
        Err(Ended::Interrupted) => MicroResult::failed("interrupted".to_owned()),
        Err(Ended::Failed(reason)) => MicroResult::failed(reason),
    }
}
