//! Whole trials of a system that answers late, not at all, or with an error.

use anticache_engine::catalog::{Catalog, TableId};

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::open_loop::OpenLoopResult;
use super::{Patience, Status, Trial, run_on};
use crate::interrupt::Interrupt;
use crate::spec::Spec;
use crate::system::{BulkWork, ByServer, Completion, Connection, Outcome, System, SystemError, evenly};
use crate::workload::Transaction;

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// What is wrong with a system. Times are milliseconds since its terminals connected.
#[derive(Debug, Clone, Default)]
struct Illness {
    /// Nothing is answered in this time.
    silence_ms: Range<u64>,
    /// From then on terminal 3 gets no answer.
    lost_from_ms: Option<u64>,
    /// From then on every connection is broken.
    broken_from_ms: Option<u64>,
    /// Every answer comes twice.
    twice: bool,
}

/// Answers every transaction after a millisecond, as far as it is well.
struct SickSystem(Illness);

struct SickConnection {
    illness: Illness,
    started: Instant,
    submitted: Vec<u32>,
}

impl SickConnection {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Waits for `nap`, then answers as far as it is well.
    fn answer(&mut self, nap: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        std::thread::sleep(nap);
        let now_ms = self.now_ms();
        if self.illness.broken_from_ms.is_some_and(|from_ms| now_ms >= from_ms) {
            return Err(SystemError::Data("the plug was pulled".to_owned()));
        }
        // Ends also when nobody reads the trial's result any longer.
        assert!(now_ms < 30_000, "a terminal waits for ever");
        if self.illness.silence_ms.contains(&now_ms) {
            return Ok(());
        }
        let lost = self.illness.lost_from_ms.is_some_and(|from_ms| now_ms >= from_ms);
        self.submitted.retain(|&terminal| {
            let answered = !(lost && terminal == 3);
            if answered {
                let outcome = Outcome::Committed;
                completions.push(Completion { terminal, outcome, verified: None, retries: Vec::new() });
            }
            !answered
        });
        if self.illness.twice {
            completions.extend_from_within(..);
        }
        Ok(())
    }
}

impl Connection for SickConnection {
    fn submit(&mut self, terminal: u32, _transaction: &Transaction<'_>) -> Result<(), SystemError> {
        self.submitted.push(terminal);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        while completions.is_empty() {
            self.answer(MILLISECOND, completions)?;
        }
        Ok(())
    }

    fn wait_for(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.answer(left.min(MILLISECOND), completions)?;
            if !completions.is_empty() || left.is_zero() {
                return Ok(());
            }
        }
    }
}

impl System for SickSystem {
    fn create_schema(&self, _ddl: &str) -> Result<(), SystemError> {
        Ok(())
    }

    fn load(&self, _work: BulkWork<'_>) -> Result<u64, SystemError> {
        Ok(0)
    }

    fn prewarm(&self, _work: BulkWork<'_>) -> Result<String, SystemError> {
        Ok(String::new())
    }

    fn terminal_groups(&self, terminals: u32, _cpus: usize) -> Vec<Range<u32>> {
        evenly(terminals, 2)
    }

    fn connect(&self, _terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        let (illness, started) = (self.0.clone(), Instant::now());
        Ok(Box::new(SickConnection { illness, started, submitted: Vec::new() }))
    }

    fn scan(&self, _catalog: &Catalog, _table: TableId, _on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        Ok(())
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::new())
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::new())
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        Ok(BTreeMap::new())
    }
}

/// A trial of 8 terminals on 2 connections: 0.2 s of warm-up, so many seconds measured, half a second to
/// complete what is under way; a terminal hangs after `hang`.
fn trial(illness: Illness, measure_s: f64, hang: Duration) -> Trial {
    trial_with(&json!({}), illness, measure_s, hang)
}

/// The same with more keys of the specification.
fn trial_with(more: &Value, illness: Illness, measure_s: f64, hang: Duration) -> Trial {
    let mut spec = json!({
        "format": 1, "system": "null", "benchmark": "ycsb",
        "ycsb": {
            "records": 1000, "fields": 10, "field_bytes": 100, "mix": "read-heavy", "read_share": 0.9,
            "skew": 1.0, "key_order": "clustered", "update_fields": 1, "verify_share": 0.0
        },
        "terminals": 8, "warmup_s": 0.2, "measure_s": measure_s, "seed": 42,
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), spec.to_string()).unwrap();
    let spec = Spec::read(file.path(), None).unwrap();
    let patience = Patience { drain: 500 * MILLISECOND, drain_early: 100 * MILLISECOND, hang };
    run_on(|_, _| Ok(Box::new(SickSystem(illness))), &spec, &Interrupt::default(), patience)
}

/// Asserts that a complete trial has these flags, and is valid without any; a debug build is its own doubt.
fn assert_doubts(trial: &Trial, expected: &[&str]) {
    let result = &trial.result;
    let flags: Vec<&str> = result.flags.iter().map(String::as_str).filter(|&flag| flag != "debug_build").collect();
    assert_eq!(flags, expected, "{}", result.reason);
    let valid = expected.is_empty() && !cfg!(debug_assertions);
    assert_eq!(result.status, if valid { Status::Ok } else { Status::Invalid });
}

fn committed_by_second(trial: &Trial) -> Vec<(i64, u64)> {
    trial.timeline.iter().map(|line| (line.second, line.committed)).collect()
}

#[test]
fn a_system_that_is_well_is_not_doubted() {
    let trial = trial(Illness::default(), 0.5, HOUR);
    assert_doubts(&trial, &[]);
    assert!(trial.transactions.is_none() && trial.result.transactions.is_none(), "nobody asked for them");
    assert!(trial.open.is_none() && trial.result.open_loop.is_none(), "the loop is closed");
    let latencies = trial.tally.all_latencies_us().len();
    // Eight may be under way at the end of the measured interval.
    assert!((trial.result.committed..=trial.result.committed + 8).contains(&latencies), "{latencies}");
}

#[test]
fn a_stall_in_the_measured_interval_is_a_doubt() {
    let trial = trial(Illness { silence_ms: 600..2000, ..Illness::default() }, 2.5, HOUR);
    assert_doubts(&trial, &["stalled"]);
    assert!(trial.result.reason.contains("no transaction was over for 1."), "{}", trial.result.reason);
    assert!(trial.result.committed > 0 && trial.result.latency_us.max > 1_300_000);
}

#[test]
fn a_stall_until_after_the_measured_interval_shows_everywhere() {
    let trial = trial(Illness { silence_ms: 700..2500, ..Illness::default() }, 2.0, HOUR);
    assert_doubts(&trial, &["stalled"]);
    let seconds = committed_by_second(&trial);
    assert!(seconds[0].1 > 0 && seconds[1].1 > 0, "{seconds:?}");
    assert_eq!(seconds.iter().map(|second| second.0).collect::<Vec<_>>(), [-1, 0, 1]);
    assert_eq!(seconds[2].1, 0, "the second of silence is a line");
    let latencies_us = trial.tally.all_latencies_us();
    assert_eq!(trial.result.committed + 8, latencies_us.len(), "the silence is a latency of every terminal");
    assert_eq!(latencies_us.count_between(1_500_000, 3_600_000_000), 8);
    assert!(trial.result.latency_us.p999 > 1_500_000);
}

#[test]
fn what_completes_late_is_measured_to_its_end() {
    // Too short for a stall: the latencies alone tell of it.
    let trial = trial(Illness { silence_ms: 600..1000, ..Illness::default() }, 0.5, HOUR);
    assert_doubts(&trial, &[]);
    assert_eq!(trial.result.committed + 8, trial.tally.all_latencies_us().len());
    assert!(trial.result.latency_us.max > 350_000, "{}", trial.result.latency_us.max);
}

#[test]
fn a_lost_reply_is_a_doubt() {
    let trial = trial(Illness { lost_from_ms: Some(400), ..Illness::default() }, 0.5, HOUR);
    assert_doubts(&trial, &["terminals_hanging"]);
    assert!(trial.result.reason.starts_with("1 of 8 terminals got no answer"), "{}", trial.result.reason);
    // What still hangs has the time that it has waited, here until 0.5 s after the end.
    assert!(trial.result.latency_us.max > 700_000, "{}", trial.result.latency_us.max);
}

#[test]
fn one_hanging_terminal_among_busy_ones_ends_the_trial() {
    let started = Instant::now();
    let trial = trial(Illness { lost_from_ms: Some(400), ..Illness::default() }, 20.0, 400 * MILLISECOND);
    assert!(started.elapsed() < Duration::from_secs(10));
    let result = &trial.result;
    assert_eq!((result.status, &result.flags[..]), (Status::Failed, &["terminals_hanging".to_owned()][..]));
    assert_eq!(result.reason, "the system hangs: 1 of 8 terminals got no answer for 0.4 s");
}

#[test]
fn an_error_after_the_measured_interval_is_a_doubt() {
    let illness = Illness { silence_ms: 600..60_000, broken_from_ms: Some(900), ..Illness::default() };
    let trial = trial(illness, 0.5, HOUR);
    assert_doubts(&trial, &["late_errors"]);
    assert_eq!(trial.result.errors["data"], 2);
    assert!(trial.result.reason.contains("the plug was pulled"), "{}", trial.result.reason);
}

#[test]
fn an_answer_too_many_ends_the_trial() {
    let trial = trial(Illness { twice: true, ..Illness::default() }, 20.0, HOUR);
    assert_eq!(trial.result.status, Status::Failed);
    assert!(trial.result.reason.ends_with("got an answer that it did not wait for"), "{}", trial.result.reason);
}

/// A trial of what arrives at a rate.
fn open_trial(arrival: &str, offered_txn_s: f64, illness: Illness, measure_s: f64) -> (Trial, OpenLoopResult) {
    let more = json!({"arrival": arrival, "offered_txn_s": offered_txn_s});
    let trial = trial_with(&more, illness, measure_s, HOUR);
    let open = trial.result.open_loop.clone().unwrap();
    (trial, open)
}

/// How many response times there are.
fn responses(trial: &Trial) -> u64 {
    trial.open.as_ref().unwrap().response_us.len()
}

/// The flags that the system is to blame for: what else the machine does must not fail a test.
fn flags(trial: &Trial) -> Vec<&str> {
    let flags = trial.result.flags.iter().map(String::as_str);
    flags.filter(|&flag| !["debug_build", "client_late"].contains(&flag)).collect()
}

#[test]
fn a_stall_is_in_the_response_times_of_all_that_arrived() {
    // Of 2000 transactions 200 arrive in the stall, and only eight are under way then.
    let illness = Illness { silence_ms: 500..600, ..Illness::default() };
    let (trial, open) = open_trial("fixed", 2000.0, illness, 1.0);
    // A machine that holds the client up at the end leaves more than a hundredth of the arrivals.
    let flags: Vec<_> = flags(&trial).into_iter().filter(|&flag| flag != "overloaded").collect();
    assert_eq!(flags, [""; 0], "{}", trial.result.reason);
    assert!(open.not_started < 150, "it caught up: {open:?}");
    let (service_us, response_us) = (&trial.result.latency_us, &open.response_us);
    assert!(response_us.p99 > 60_000 && response_us.max >= service_us.max, "{response_us:?}");
    assert!(response_us.p95 > 30_000 && service_us.p95 < 15_000, "a closed loop would see eight: {service_us:?}");
    assert!(service_us.max > 80_000, "and has them: {service_us:?}");
    assert!(open.latest_start_us > 60_000, "{open:?}");
    // Whoever is late, every arrival has a response time: those under way when the interval began or ended, too.
    assert_eq!(open.arrived, 2000, "{open:?}");
    let (responses, without_wait) = (responses(&trial), trial.result.committed + open.not_started);
    assert!((without_wait..=without_wait + 8).contains(&responses), "{responses} of {open:?}");
    assert!((2000..=2000 + open.backlog_at_start + 8).contains(&responses), "{responses} of {open:?}");
}

#[test]
fn too_much_is_an_overload_and_no_error() {
    // Eight terminals that are answered after a millisecond at the earliest.
    let (trial, open) = open_trial("poisson", 50_000.0, Illness::default(), 0.5);
    assert_eq!(flags(&trial), ["overloaded"]);
    assert_eq!(trial.result.status == Status::Ok, !cfg!(debug_assertions), "{}", trial.result.reason);
    assert!(trial.result.reason.starts_with("overloaded: "), "{}", trial.result.reason);
    assert!(open.achieved_txn_s < 9000.0 && open.arrived > 24_000, "{open:?}");
    assert!(open.not_started > open.backlog_at_start && open.backlog_at_start > 0, "{open:?}");
    // Half of the time's arrivals were not started, and count with what they have waited.
    assert!(open.response_us.p50 > 100_000 && trial.result.latency_us.p50 < 50_000, "{open:?}");
    assert!(responses(&trial) >= open.not_started + trial.result.committed);
}

#[test]
fn what_arrives_does_not_depend_on_the_system() {
    let slow = Illness { silence_ms: 100..600, ..Illness::default() };
    for arrival in ["fixed", "poisson"] {
        let (_, well) = open_trial(arrival, 1000.0, Illness::default(), 0.5);
        let (_, ill) = open_trial(arrival, 1000.0, slow.clone(), 0.5);
        assert_eq!(well.arrived, ill.arrived);
        assert!((400..600).contains(&well.arrived), "{}", well.arrived);
    }
}

#[test]
fn a_terminal_that_hangs_holds_up_nobody() {
    let (trial, open) = open_trial("fixed", 400.0, Illness { lost_from_ms: Some(400), ..Illness::default() }, 1.0);
    assert_eq!(flags(&trial), ["terminals_hanging"]);
    assert_eq!(open.arrived, 400);
    // All but its own, and what came while the machine held the client up at the end.
    assert!(trial.result.committed + open.not_started >= 390 && open.not_started < 30, "{open:?}");
    assert!(open.response_us.max > 1_000_000 && open.response_us.p99 < 500_000, "{open:?}");
}

#[test]
fn a_time_without_arrivals_is_no_stall() {
    let (trial, open) = open_trial("fixed", 0.8, Illness::default(), 2.5);
    assert_eq!(flags(&trial), [""; 0], "{}", trial.result.reason);
    assert_eq!((open.arrived, trial.result.committed), (2, 2));
    // Nobody waits for an answer for longer than the system takes.
    let (trial, _) = open_trial("fixed", 100.0, Illness { silence_ms: 600..2000, ..Illness::default() }, 2.5);
    assert_eq!(flags(&trial), ["stalled"]);
}
