//! What the system did besides transactions, recorded beside the terminals: `events.csv`.

use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::lock;
use super::worker::Shared;
use crate::system::{EventSource, SystemError, SystemEvent};

/// Time between two looks. The engine keeps 32,768 events of a stream and tells 4096 at a time.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long the end of a trial waits for the last events.
const PATIENCE: Duration = Duration::from_secs(5);

/// How complete `events.csv` is; in `result.json` under `events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EventSummary {
    pub recorded: u64,
    /// Events that came and went between two looks.
    pub lost: u64,
    /// Why nothing was recorded from some moment on; empty: it was to the end.
    pub problem: String,
}

impl EventSummary {
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.problem.is_empty()
    }
}

#[derive(Default)]
struct Log {
    events: Vec<SystemEvent>,
    lost: u64,
    problem: Option<SystemError>,
}

/// The recording thread.
pub struct EventRecorder {
    log: Arc<Mutex<Log>>,
    /// Start of the measured interval, in microseconds since 1970.
    measure_start_us: u64,
    stop: Sender<()>,
    ended: Receiver<()>,
}

impl EventRecorder {
    /// Records from now on until [`EventRecorder::finish`].
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(mut source: Box<dyn EventSource>, shared: &Shared) -> Result<EventRecorder, SystemError> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let until_start_ns = shared.spans.measure_start_ns.saturating_sub(shared.now_ns());
        let measure_start_us = since_1970.as_micros() as u64 + until_start_ns / 1000;
        let log = Arc::new(Mutex::new(Log::default()));
        let (stop, stopped) = channel::<()>();
        let (end, ended) = channel();
        let shared_log = Arc::clone(&log);
        let record = move || {
            loop {
                let last = stopped.recv_timeout(INTERVAL) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
                // What is left at the end may be more than the system tells at a time.
                while look(source.as_mut(), &shared_log) && last {}
                if last || lock(&shared_log).problem.is_some() {
                    break;
                }
            }
            // Nobody waits for it when the end of the process was quicker.
            let _ = end.send(());
        };
        std::thread::Builder::new()
            .name("events".to_owned())
            .spawn(record)
            .map_err(|error| SystemError::Data(format!("cannot start a thread that records events: {error}")))?;
        Ok(EventRecorder { log, measure_start_us, stop, ended })
    }

    /// Ends the recording; returns the events up to the end of the measured interval as CSV.
    pub fn finish(self, measured_s: f64) -> (EventSummary, String) {
        let _ = self.stop.send(());
        let in_time = self.ended.recv_timeout(PATIENCE).is_ok();
        let log = lock(&self.log);
        let problem = match (&log.problem, in_time) {
            (Some(problem), _) => problem.to_string(),
            (None, false) => "the system did not tell its last events in time".to_owned(),
            (None, true) => String::new(),
        };
        let lines: Vec<_> = log
            .events
            .iter()
            .map(|event| ((event.at_us.cast_signed() - self.measure_start_us.cast_signed()) as f64 / 1e6, event))
            .filter(|(second, _)| *second < measured_s)
            .collect();
        let summary = EventSummary { recorded: lines.len() as u64, lost: log.lost, problem };
        (summary, events_csv(&lines))
    }
}

/// Looks once; whether there was anything new.
fn look(source: &mut dyn EventSource, log: &Mutex<Log>) -> bool {
    let mut events = Vec::new();
    let outcome = source.poll(&mut events);
    let mut log = lock(log);
    let found = !events.is_empty();
    log.events.append(&mut events);
    match outcome {
        Ok(lost) => log.lost += lost,
        Err(error) => log.problem = Some(error),
    }
    found && log.problem.is_none()
}

/// The content of `events.csv`, in the order of time.
fn events_csv(lines: &[(f64, &SystemEvent)]) -> String {
    let mut lines = lines.to_vec();
    lines.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let mut csv = String::from("second,partition,kind,tuples,blocks,bytes,took_us\n");
    for (second, SystemEvent { partition, kind, tuples, blocks, bytes, took_us, .. }) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(csv, "{second:.6},{partition},{kind},{tuples},{blocks},{bytes},{took_us}");
    }
    csv
}

#[cfg(test)]
mod tests {
    use super::super::recorder::{Spans, Timeline};
    use super::super::worker::Stop;
    use super::*;

    /// Tells one event per look, as if it happened now, and so many in the end.
    struct Source {
        left: u32,
        lost: u64,
        breaks: bool,
    }

    impl EventSource for Source {
        fn poll(&mut self, events: &mut Vec<SystemEvent>) -> Result<u64, SystemError> {
            if self.left == 0 {
                return if self.breaks { Err(SystemError::Data("cut".to_owned())) } else { Ok(0) };
            }
            self.left -= 1;
            let at_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
            let kind = "eviction".to_owned();
            events.push(SystemEvent { at_us, partition: 1, kind, tuples: 2, blocks: 3, bytes: 4, took_us: 5 });
            Ok(std::mem::take(&mut self.lost))
        }
    }

    fn recorded(source: Source, measured_s: f64) -> (EventSummary, String) {
        let shared = Shared {
            started: std::time::Instant::now(),
            spans: Spans { measure_start_ns: 3_600_000_000_000, measure_end_ns: 3_601_000_000_000 },
            stop: Stop::default(),
            timeline: Mutex::new(Timeline::default()),
            outstanding: Vec::new(),
            arrivals: None,
        };
        EventRecorder::start(Box::new(source), &shared).unwrap().finish(measured_s)
    }

    #[test]
    fn everything_that_is_left_is_read_in_the_end() {
        let (summary, csv) = recorded(Source { left: 50, lost: 7, breaks: false }, 1.0);
        assert_eq!(summary, EventSummary { recorded: 50, lost: 7, problem: String::new() });
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!((lines[0], lines.len()), ("second,partition,kind,tuples,blocks,bytes,took_us", 51));
        assert!(lines[1].starts_with("-3") && lines[1].ends_with(",1,eviction,2,3,4,5"), "{}", lines[1]);
    }

    #[test]
    fn what_comes_after_the_measured_interval_is_left_out() {
        let (summary, csv) = recorded(Source { left: 50, lost: 0, breaks: false }, -7200.0);
        assert_eq!((summary.recorded, csv.lines().count()), (0, 1));
    }

    #[test]
    fn a_connection_that_breaks_is_told() {
        let (summary, _) = recorded(Source { left: 3, lost: 0, breaks: true }, 1.0);
        assert_eq!(summary, EventSummary { recorded: 3, lost: 0, problem: "cut".to_owned() });
        assert!(!summary.is_whole());
    }
}
