//! One trial: warm-up, measured interval, results.

mod events;
mod open_loop;
mod recorder;
mod result;
#[cfg(test)]
mod tests;
mod transactions;
mod worker;

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anticache_engine::procedure::tpcc::ITEM_NOT_FOUND;

use crate::arrivals::OpenLoop;
use crate::cpus::{CpuList, process_cpu_time};
use crate::data_check;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::{self, ByServer, Connection, System, SystemError, one_terminal_each};
use crate::systems::null;
use crate::workload::Workload;

use events::EventRecorder;
use open_loop::{Arrivals, Arrived, OpenLoopResult, OpenTally};
use recorder::{Counts, Recorder, Spans, Tally, Timeline, TimelineSecond, common_pauses};
use result::{
    LatencySummary, RESULT_FORMAT, TpccResult, latency_log, response_log, tenths_csv, timeline_csv, write_file_by,
};
pub use result::{Status, TrialResult, to_json, write_file};
use transactions::Transactions;
use worker::{Outstanding, Shared, Stop, Worker};

/// Share of its CPUs from which on the client counts as the bottleneck (design §4.4).
const CLIENT_CPU_LIMIT: f64 = 0.9;
/// How often the main thread looks at signals and the display.
const TICK: Duration = Duration::from_millis(100);

/// How long a trial waits for a system that does not answer.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Time that outstanding transactions get after the end of a complete trial.
    drain: Duration,
    /// The same after a failure or an interrupt.
    drain_early: Duration,
    /// A terminal whose transaction is outstanding for so long hangs, and the trial has failed.
    hang: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        // Both complete limits are beyond MySQL's 50 s for a lock, after which it answers and the transaction is repeated.
        Patience { drain: seconds(60), drain_early: seconds(2), hang: seconds(90) }
    }
}

/// How the time of a trial ended.
enum End {
    Complete,
    Interrupted,
    Failed(SystemError),
}

impl From<SystemError> for End {
    fn from(error: SystemError) -> End {
        match error {
            SystemError::Interrupted => End::Interrupted,
            error => End::Failed(error),
        }
    }
}

/// Everything that a trial leaves.
pub struct Trial {
    pub result: TrialResult,
    pub interrupted: bool,
    tally: Tally,
    /// What was measured from arrivals on, in an open loop.
    open: Option<OpenTally>,
    types: &'static [&'static str],
    timeline: Vec<TimelineSecond>,
    /// `events.csv`, of systems that tell what they do.
    events: Option<String>,
    /// `transactions.csv`, where the specification asks for it.
    transactions: Option<Transactions>,
}

impl Trial {
    /// Writes the trial's files into a directory, `result.json` last: where it is, the others are whole.
    ///
    /// # Errors
    /// What the file system reports, with the path.
    pub fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write_file(&directory.join("timeline.csv"), timeline_csv(&self.timeline).as_bytes())?;
        write_file(&directory.join("tenths.csv"), tenths_csv(&self.timeline).as_bytes())?;
        if let Some(events) = &self.events {
            write_file(&directory.join("events.csv"), events.as_bytes())?;
        }
        if let Some(transactions) = &self.transactions {
            let path = directory.join("transactions.csv");
            write_file_by(&path, |file| transactions.write(self.types, file))?;
        }
        let log = latency_log(&self.tally, self.types, self.result.measured_s)?;
        write_file(&directory.join("latency.hdr"), &log)?;
        if let Some(open) = &self.open {
            let log = response_log(&open.response_us, self.result.measured_s)?;
            write_file(&directory.join("response.hdr"), &log)?;
        }
        write_file(&directory.join("result.json"), &to_json(&self.result)?)
    }
}

/// Runs a trial. Whatever goes wrong with the system is in the result; this never fails.
pub fn run(spec: &Spec, interrupt: &Interrupt) -> Trial {
    run_on(system::open, spec, interrupt, Patience::default())
}

/// Runs a trial of the system that `open` returns.
fn run_on(
    open: impl FnOnce(&Spec, &Workload) -> Result<Box<dyn System>, SystemError>,
    spec: &Spec,
    interrupt: &Interrupt,
    patience: Patience,
) -> Trial {
    let workload = Workload::new(spec);
    let cpus = spec.client_cpus.clone().unwrap_or_else(CpuList::available);
    let mut attempt = Attempt::new(spec, &workload, &cpus, interrupt, patience);
    let outcome = open(spec, &workload).and_then(|system| attempt.execute(system.as_ref()));
    attempt.conclude(outcome.map_or_else(End::from, |()| End::Complete))
}

/// A trial under way.
struct Attempt<'a> {
    spec: &'a Spec,
    workload: &'a Workload,
    cpus: &'a CpuList,
    interrupt: &'a Interrupt,
    patience: Patience,
    result: TrialResult,
    crew: Option<Crew>,
    events: Option<EventRecorder>,
    measure_started: Option<MeasureStart>,
}

/// The worker threads and what they share.
struct Crew {
    shared: Arc<Shared>,
    recorders: Vec<Arc<Mutex<Recorder>>>,
    /// One message per worker, when it ends.
    ended: Receiver<Result<(), SystemError>>,
    running: usize,
}

struct MeasureStart {
    cpu_time: Duration,
}

/// What the terminals did besides completing transactions in time.
#[derive(Default)]
struct Irregularities {
    /// Terminals that still wait after the drain.
    hanging_terminals: usize,
    /// Errors of workers after the measured interval.
    late_errors: Vec<SystemError>,
    /// The longest stall: the part of the measured interval in which no transaction was over.
    stall_ns: Option<Range<u64>>,
}

impl<'a> Attempt<'a> {
    fn new(
        spec: &'a Spec,
        workload: &'a Workload,
        cpus: &'a CpuList,
        interrupt: &'a Interrupt,
        patience: Patience,
    ) -> Attempt<'a> {
        let empty = Tally::new(workload.transaction_types().len());
        let mut result = TrialResult {
            format: RESULT_FORMAT,
            status: Status::Failed,
            reason: String::new(),
            flags: Vec::new(),
            throughput_txn_s: 0.0,
            committed: 0,
            aborted: Counts::new(),
            retried: Counts::new(),
            errors: Counts::new(),
            measured_s: 0.0,
            latency_us: LatencySummary::of(&empty.all_latencies_us()),
            latency_us_by_type: Default::default(),
            verified: 0,
            verify_failed: 0,
            client_cpu_share: 0.0,
            debug_build: cfg!(debug_assertions),
            counters_before: ByServer::new(),
            counters_after: ByServer::new(),
            server_settings: ByServer::new(),
            versions: Default::default(),
            tpcc: None,
            events: None,
            open_loop: None,
            transactions: None,
        };
        result.versions.insert("loadgen".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Attempt { spec, workload, cpus, interrupt, patience, result, crew: None, events: None, measure_started: None }
    }

    /// From inspecting the system to the end of the measured interval.
    fn execute(&mut self, system: &dyn System) -> Result<(), SystemError> {
        let versions = system.versions()?;
        self.result.versions.extend(versions.into_iter().map(|(server, version)| (server.to_owned(), version)));
        if let Some(changes) = &self.spec.engine_settings {
            system.change_settings(changes)?;
        }
        self.result.server_settings = system.settings()?;
        data_check::ends(system, self.workload)?;
        let progress = self.start_progress();
        self.start_workers(system)?;
        let spans = self.spans();
        let outcome = self.measure(system, spans, &progress);
        progress.finish(if outcome.is_ok() { "measured" } else { "ended early" });
        outcome
    }

    fn measure(&mut self, system: &dyn System, spans: Spans, progress: &Progress) -> Result<(), SystemError> {
        self.pause_until(spans.measure_start_ns, progress)?;
        self.measure_started = Some(MeasureStart { cpu_time: process_cpu_time() });
        self.result.counters_before = system.counters()?;
        self.pause_until(spans.measure_end_ns, progress)?;
        self.stop_clock();
        self.result.counters_after = system.counters()?;
        Ok(())
    }

    fn spans(&self) -> Spans {
        let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
        let measure_start_ns = nanoseconds(self.spec.warmup_s);
        Spans { measure_start_ns, measure_end_ns: measure_start_ns + nanoseconds(self.spec.measure_s) }
    }

    fn start_progress(&self) -> Progress {
        let total_s = (self.spec.warmup_s + self.spec.measure_s).ceil() as u64;
        Progress::start(format!("run {}", self.spec.system), total_s, "s")
    }

    /// Connects all groups of terminals, then starts them together.
    fn start_workers(&mut self, system: &dyn System) -> Result<(), SystemError> {
        let groups = match self.workload.pauses() {
            true => one_terminal_each(self.spec.terminals),
            false => system.terminal_groups(self.spec.terminals, self.cpus.count()),
        };
        let mut connected: Vec<(Range<u32>, Box<dyn Connection>)> = Vec::with_capacity(groups.len());
        for group in groups {
            if self.interrupt.requested() {
                return Err(SystemError::Interrupted);
            }
            connected.push((group.clone(), system.connect(group)?));
        }
        let spans = self.spans();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            spans,
            stop: Stop::default(),
            timeline: Mutex::new(Timeline::default()),
            outstanding: (0..self.spec.terminals).map(|_| Outstanding::default()).collect(),
            arrivals: self.spec.open_loop.map(|open_loop| Arrivals::new(open_loop, self.spec.seed, spans)),
        });
        // Before the terminals start: only what they cause is recorded.
        let source = system.event_source()?;
        self.events = source.map(|source| EventRecorder::start(source, &shared)).transpose()?;
        let (report, ended) = channel();
        let recorders = connected
            .into_iter()
            .map(|(group, connection)| self.start_worker(&shared, group, connection, report.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        self.crew = Some(Crew { shared, running: recorders.len(), recorders, ended });
        Ok(())
    }

    fn start_worker(
        &self,
        shared: &Arc<Shared>,
        group: Range<u32>,
        connection: Box<dyn Connection>,
        report: Sender<Result<(), SystemError>>,
    ) -> Result<Arc<Mutex<Recorder>>, SystemError> {
        let types = self.workload.transaction_types().len();
        let kept = transactions::share(self.spec.record_transactions, &group, self.spec.terminals);
        let recorder = Recorder::new(types, shared.spans).keeping(kept);
        let recorder = if shared.arrivals.is_some() { recorder.in_open_loop() } else { recorder };
        let recorder = Arc::new(Mutex::new(recorder));
        let streams = group.clone().map(|terminal| self.workload.terminal(terminal)).collect();
        let worker = Worker::new(Arc::clone(shared), connection, group.start, streams, Arc::clone(&recorder));
        std::thread::Builder::new()
            .name(format!("terminal {}", group.start))
            .spawn(move || {
                // The receiver outlives every worker but those that the end of the process cuts off.
                let _ = report.send(worker.run());
            })
            .map_err(|error| {
                SystemError::Data(format!("cannot start a thread for terminal {}: {error}", group.start))
            })?;
        Ok(recorder)
    }

    /// Sleeps until that moment of the trial's clock; returns early when a worker fails or the user
    /// interrupts.
    fn pause_until(&mut self, until_ns: u64, progress: &Progress) -> Result<(), SystemError> {
        let hang = self.patience.hang;
        let Some(crew) = &mut self.crew else {
            return Ok(());
        };
        loop {
            if self.interrupt.requested() {
                return Err(SystemError::Interrupted);
            }
            let now_ns = crew.shared.now_ns();
            if now_ns >= until_ns {
                return Ok(());
            }
            crew.look(now_ns, hang, progress)?;
            match crew.ended.recv_timeout(TICK.min(Duration::from_nanos(until_ns - now_ns))) {
                // A worker ends by itself only at the end of the measured interval.
                Ok(outcome) => {
                    crew.running -= 1;
                    outcome?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected)
                    if now_ns < crew.shared.spans.measure_end_ns && crew.running > 0 =>
                {
                    return Err(SystemError::Data("a terminal's thread ended without a reason".to_owned()));
                }
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Ends the measured interval: fixes how long it was and what the client used of its CPUs.
    fn stop_clock(&mut self) {
        let (Some(crew), Some(start)) = (&self.crew, self.measure_started.take()) else {
            return;
        };
        let spans = crew.shared.spans;
        let measured_ns = crew.shared.now_ns().min(spans.measure_end_ns).saturating_sub(spans.measure_start_ns);
        self.result.measured_s = measured_ns as f64 / 1e9;
        let used = process_cpu_time().saturating_sub(start.cpu_time).saturating_sub(crew.spun());
        let used_s = used.as_secs_f64();
        self.result.client_cpu_share = used_s / (self.result.measured_s.max(1e-9) * self.cpus.count() as f64);
    }

    /// Stops the workers, sums up and passes judgement.
    fn conclude(mut self, end: End) -> Trial {
        self.stop_clock();
        let types = self.workload.transaction_types();
        let mut tally = Tally::new(types.len());
        let mut timeline = Vec::new();
        let mut irregularities = Irregularities::default();
        let mut unmeasured_verify_failed = 0;
        let mut transactions = None;
        let mut arrivals = None;
        if let Some(mut crew) = self.crew.take() {
            let complete = matches!(end, End::Complete);
            irregularities.late_errors = crew.stop(self.patience, complete, self.interrupt);
            for error in &irregularities.late_errors {
                *self.result.errors.entry(error.kind()).or_default() += 1;
            }
            (timeline, unmeasured_verify_failed) = crew.sum_up(&mut tally, &mut irregularities);
            transactions = crew.transactions();
            arrivals = crew.arrivals();
        }
        self.result.transactions = transactions.as_ref().map(|kept| kept.summary.clone());
        let measured_s = self.result.measured_s;
        self.result.set_measured(&tally, types, measured_s);
        self.result.verify_failed += unmeasured_verify_failed;
        if let Workload::Tpcc(_) = self.workload {
            self.result.tpcc = Some(TpccResult::of(&tally, types, measured_s));
        }
        let open = arrivals.map(|(open_loop, arrived, open)| {
            self.result.open_loop = Some(OpenLoopResult::of(open_loop, arrived, &open, &tally, measured_s));
            open
        });
        let events = self.events.take().map(|events| {
            let (summary, csv) = events.finish(measured_s);
            self.result.events = Some(summary);
            csv
        });
        let interrupted = matches!(end, End::Interrupted);
        self.judge(end, &irregularities);
        Trial { result: self.result, interrupted, tally, open, types, timeline, events, transactions }
    }

    fn judge(&mut self, end: End, irregularities: &Irregularities) {
        let result = &mut self.result;
        if irregularities.hanging_terminals > 0 && !matches!(end, End::Complete) {
            result.flags.push("terminals_hanging".to_owned());
        }
        // A remark: the figures of the trial do not come from the events.
        if result.events.as_ref().is_some_and(|events| !events.is_whole()) {
            result.flags.push("events_lost".to_owned());
        }
        match end {
            End::Interrupted => {
                (result.status, result.reason) = (Status::Failed, "interrupted".to_owned());
                return;
            }
            End::Failed(error) => {
                *result.errors.entry(error.kind()).or_default() += 1;
                (result.status, result.reason) = (Status::Failed, error.to_string());
                return;
            }
            End::Complete => result.status = Status::Ok,
        }
        for (flag, reason) in result.open_loop.as_ref().map(OpenLoopResult::remarks).unwrap_or_default() {
            note(result, flag, &reason);
        }
        for (flag, reason) in doubts(result, irregularities, self.spec, self.cpus) {
            result.status = Status::Invalid;
            note(result, flag, &reason);
        }
    }
}

/// Adds a flag and its reason to a result.
fn note(result: &mut TrialResult, flag: &str, reason: &str) {
    result.flags.push(flag.to_owned());
    result.reason += if result.reason.is_empty() { "" } else { "; " };
    result.reason += reason;
}

/// Why a trial that ran to its end is not to be believed: (flag, reason).
fn doubts(
    result: &TrialResult,
    irregularities: &Irregularities,
    spec: &Spec,
    cpus: &CpuList,
) -> Vec<(&'static str, String)> {
    let mut doubts = irregularities.doubts(spec);
    if result.verify_failed > 0 {
        doubts.push(("verify_failed", format!("{} reads returned damaged records", result.verify_failed)));
    }
    // The only reason of a benchmark's own is TPC-C's unused item.
    for (reason, count) in result.aborted.iter().filter(|(reason, _)| *reason != ITEM_NOT_FOUND) {
        doubts.push(("missing_records", format!("{count} transactions met what is not loaded: {reason}")));
    }
    if result.committed == 0 {
        doubts.push(("nothing_committed", "no transaction committed in the measured interval".to_owned()));
    }
    // The null system is there to saturate the client.
    if result.client_cpu_share >= CLIENT_CPU_LIMIT && spec.adapter.name != null::ADAPTER.name {
        let percent = 100.0 * result.client_cpu_share;
        doubts.push((
            "client_saturated",
            format!("the terminals used {percent:.0} % of CPUs {cpus}: they are the bottleneck"),
        ));
    }
    if result.debug_build {
        doubts.push(("debug_build", "loadgen is a debug build".to_owned()));
    }
    for (server, settings) in &result.server_settings {
        if settings.get("debug_build") == Some(&true.into()) {
            doubts.push(("debug_build", format!("{server} is a debug build")));
        }
    }
    doubts
}

impl Irregularities {
    fn doubts(&self, spec: &Spec) -> Vec<(&'static str, String)> {
        let mut doubts = Vec::new();
        if let Some(stall_ns) = &self.stall_ns {
            let stall_s = (stall_ns.end - stall_ns.start) as f64 / 1e9;
            let from_s = stall_ns.start as f64 / 1e9 - spec.warmup_s;
            let message =
                format!("the system stalled: no transaction was over for {stall_s:.1} s from second {from_s:.1} on");
            doubts.push(("stalled", message));
        }
        let hanging = self.hanging_terminals;
        if hanging > 0 {
            let message = format!("{hanging} of {} terminals got no answer, even after the trial", spec.terminals);
            doubts.push(("terminals_hanging", message));
        }
        if let [first, ..] = self.late_errors.as_slice() {
            let count = self.late_errors.len();
            doubts.push(("late_errors", format!("{count} connections failed after the measured interval: {first}")));
        }
        doubts
    }
}

impl Crew {
    /// Updates the display and checks that the system still answers every terminal.
    fn look(&self, now_ns: u64, hang: Duration, progress: &Progress) -> Result<(), SystemError> {
        let committed: u64 = self.recorders.iter().map(|recorder| lock(recorder).committed_so_far).sum();
        let seconds = now_ns as f64 / 1e9;
        let warming = now_ns < self.shared.spans.measure_start_ns;
        let phase = if warming { "warming up" } else { "measuring" };
        let rate = committed as f64 / seconds.max(1e-3);
        progress.set(seconds as u64, format!("{phase}, {rate:.0} txn/s"));
        // Each for itself: that others are answered is no comfort to a terminal whose reply was lost.
        let submitted_ns = self.shared.outstanding.iter().filter_map(Outstanding::get).map(|(_, time_ns)| time_ns);
        let hanging = submitted_ns.filter(|time_ns| now_ns.saturating_sub(*time_ns) >= hang.as_nanos() as u64).count();
        if hanging > 0 {
            let (terminals, hang_s) = (self.shared.outstanding.len(), hang.as_secs_f64());
            let message = format!("the system hangs: {hanging} of {terminals} terminals got no answer for {hang_s} s");
            return Err(SystemError::Data(message));
        }
        Ok(())
    }

    /// Tells the workers to stop and waits for what is outstanding, for a limited time, which is short unless
    /// the trial is `complete` and nobody interrupts. Returns the errors of workers that ended meanwhile.
    fn stop(&mut self, patience: Patience, complete: bool, interrupt: &Interrupt) -> Vec<SystemError> {
        self.shared.stop.request();
        let start = Instant::now();
        let mut errors = Vec::new();
        loop {
            let hurry = !complete || interrupt.requested();
            let limit = if hurry { patience.drain_early } else { patience.drain };
            let left = limit.saturating_sub(start.elapsed());
            if self.running == 0 || left.is_zero() {
                return errors;
            }
            match self.ended.recv_timeout(left.min(TICK)) {
                Ok(outcome) => {
                    self.running -= 1;
                    errors.extend(outcome.err());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return errors,
            }
        }
    }

    /// Adds up all recorders, and looks which terminals hang and whether all stalled; returns the timeline
    /// and the wrong reads outside of the measured interval.
    fn sum_up(&self, tally: &mut Tally, irregularities: &mut Irregularities) -> (Vec<TimelineSecond>, u64) {
        // All locked together, so that every transaction is either recorded or outstanding; and before the
        // timeline, as the workers do.
        let mut recorders: Vec<_> = self.recorders.iter().map(|recorder| lock(recorder)).collect();
        let mut timeline = lock(&self.shared.timeline);
        let (spans, now_ns) = (self.shared.spans, self.shared.now_ns());
        let mut unmeasured_verify_failed = 0;
        let mut pauses_ns: Vec<_> = std::iter::once(spans.measure_start_ns..spans.measure_end_ns).collect();
        for recorder in &mut recorders {
            recorder.flush(now_ns, &mut timeline);
            tally.add(&recorder.measured);
            unmeasured_verify_failed += recorder.unmeasured_verify_failed;
            pauses_ns = common_pauses(&pauses_ns, recorder.pauses_ns(now_ns), spans.stalled_ns());
        }
        irregularities.stall_ns = pauses_ns.into_iter().max_by_key(|pause| pause.end - pause.start);
        for (type_index, submitted_ns) in self.shared.outstanding.iter().filter_map(Outstanding::get) {
            irregularities.hanging_terminals += 1;
            tally.record_outstanding(spans, now_ns, type_index, submitted_ns);
        }
        (timeline.lines(spans, now_ns), unmeasured_verify_failed)
    }

    /// CPU time of the measured interval in which terminals only waited for the moment of an arrival.
    fn spun(&self) -> Duration {
        let spun_ns = self.recorders.iter().filter_map(|recorder| Some(lock(recorder).open.as_ref()?.spun_ns));
        Duration::from_nanos(spun_ns.sum())
    }

    /// What arrived in an open loop, and what was measured of it; `None`: the loop is closed.
    fn arrivals(&self) -> Option<(OpenLoop, Arrived, OpenTally)> {
        let arrivals = self.shared.arrivals.as_ref()?;
        // As above: recorded, outstanding or not started.
        let recorders: Vec<_> = self.recorders.iter().map(|recorder| lock(recorder)).collect();
        let (spans, now_ns) = (self.shared.spans, self.shared.now_ns());
        let mut sum = OpenTally::new(spans);
        recorders.iter().filter_map(|recorder| recorder.open.as_ref()).for_each(|open| sum.add(open));
        let is_whole = now_ns >= spans.measure_end_ns;
        for hanging in self.shared.outstanding.iter().filter(|outstanding| is_whole && outstanding.get().is_some()) {
            sum.end(hanging.intended_ns(), now_ns);
        }
        let until_ns = now_ns.min(spans.measure_end_ns);
        let arrived = arrivals.end(until_ns, |intended_ns| {
            if is_whole {
                sum.end(intended_ns, until_ns);
            }
        });
        Some((arrivals.open_loop, arrived, sum))
    }

    /// Takes what the workers kept of single transactions; `None`: it was not asked for.
    fn transactions(&self) -> Option<Transactions> {
        let logs: Vec<_> = self.recorders.iter().filter_map(|recorder| lock(recorder).transactions.take()).collect();
        let spans = self.shared.spans;
        (!logs.is_empty()).then(|| Transactions::of(logs, spans.measure_start_ns, self.shared.now_ns()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
