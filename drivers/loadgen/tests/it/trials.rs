//! Whole trials without a server: of the null system, interrupted ones, and ones whose server is not there.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Bench, signal, stderr};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_null_trial_leaves_complete_and_consistent_files() {
    let mut bench = Bench::new();
    bench.set("/record_transactions", json!(1000));
    let output = bench.call("run");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));

    let result = bench.result();
    // A debug build measures, but says that it must not be believed.
    let debug = cfg!(debug_assertions);
    assert_eq!(result["status"], if debug { "invalid" } else { "ok" });
    assert_eq!(result["flags"], if debug { json!(["debug_build"]) } else { json!([]) });
    assert_eq!(result["debug_build"], debug);
    assert_eq!(result["measured_s"], 0.5);
    let committed = result["committed"].as_u64().unwrap();
    assert!(committed > 1000, "{committed}");
    let throughput = result["throughput_txn_s"].as_f64().unwrap();
    assert!((throughput - committed as f64 / 0.5).abs() < 1.0, "{throughput} of {committed}");
    for name in ["latency_us", "counters_before", "counters_after", "server_settings", "versions", "errors"] {
        assert!(result[name].is_object(), "{name}");
    }
    for name in ["read", "update"] {
        assert!(result["latency_us_by_type"][name]["p50"].is_u64(), "{name}");
    }
    assert!(result["client_cpu_share"].as_f64().unwrap() > 0.0);

    assert_eq!(timeline_of(&bench, 0..), committed, "the timeline's measured seconds add up");
    assert!(timeline_of(&bench, ..0) > 0, "the warm-up is in the timeline");
    let log = std::fs::read_to_string(bench.path("latency.hdr")).unwrap();
    assert!(log.contains("Tag=read,") && log.contains("Tag=update,"), "{log}");
    assert!(result.get("open_loop").is_none() && !bench.path("response.hdr").exists(), "the loop is closed");
    assert_single_transactions(&bench, &result);
}

/// Asserts that as many transactions as were asked for stand in `transactions.csv`, in the order of submission.
fn assert_single_transactions(bench: &Bench, result: &Value) {
    let csv = std::fs::read_to_string(bench.path("transactions.csv")).unwrap();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["start_us", "latency_us", "type", "terminal", "outcome"]);
    let kept = lines.len() as u64 - 1;
    assert_eq!(result["transactions"]["recorded"], kept);
    assert_eq!(result["transactions"]["lost"], result["committed"].as_u64().unwrap() - kept);
    // Every worker has its share, one that was slower has not used it up.
    assert!((1..=1000 + 8).contains(&kept), "{kept}");
    let starts: Vec<i64> = lines[1..].iter().map(|line| line[0].parse().unwrap()).collect();
    assert!(starts.is_sorted() && starts.iter().all(|start_us| *start_us < 500_000));
    assert!(lines[1..].iter().all(|line| ["read", "update"].contains(&line[2]) && line[4] == "committed"));
}

/// The client alone: what it can start in time, and what it leaves.
#[test]
fn a_null_trial_in_an_open_loop_keeps_its_rate() {
    for arrival in ["fixed", "poisson"] {
        let mut bench = Bench::new();
        bench.set("/arrival", json!(arrival));
        bench.set("/offered_txn_s", json!(20_000));
        bench.set("/measure_s", json!(1));
        let output = bench.call("run");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let result = bench.result();
        let open = &result["open_loop"];
        assert!(!flags(&result).contains(&"overloaded"), "{result:#}");
        assert_eq!((&open["arrival"], &open["offered_txn_s"]), (&json!(arrival), &json!(20_000.0)));
        let arrived = open["arrived"].as_u64().unwrap();
        // Four standard deviations of so many Poisson arrivals; a fixed rate has them all.
        let slack = if arrival == "fixed" { 0 } else { 566 };
        assert!((20_000 - slack..=20_000 + slack).contains(&arrived), "{arrived}");
        let achieved = open["achieved_txn_s"].as_f64().unwrap();
        assert!((achieved / arrived as f64 - 1.0).abs() < 0.01, "{open:#}");
        // Service takes no time, so what a response takes is the client's own lateness.
        for name in ["p50", "p99", "max"] {
            let (late, response) = (&open["client_late_us"][name], &open["response_us"][name]);
            assert!(late.as_u64().unwrap() <= response.as_u64().unwrap() + 1, "{open:#}");
        }
        let log = std::fs::read_to_string(bench.path("response.hdr")).unwrap();
        assert!(log.contains("Tag=response,"), "{log}");
        assert!(!std::fs::read_to_string(bench.path("latency.hdr")).unwrap().contains("response"));
    }
}

/// Sum of the committed transactions of the timeline's seconds in a range.
fn timeline_of(bench: &Bench, seconds: impl std::ops::RangeBounds<i64>) -> u64 {
    let csv = std::fs::read_to_string(bench.path("timeline.csv")).unwrap();
    let (header, lines) = csv.split_once('\n').unwrap();
    assert_eq!(header, "second,committed,aborted,retried,latency_us_p50,latency_us_p99");
    lines
        .lines()
        .map(|line| line.split(',').map(|value| value.parse::<i64>().unwrap()).collect::<Vec<_>>())
        .filter(|columns| seconds.contains(&columns[0]))
        .map(|columns| columns[1] as u64)
        .sum()
}

#[test]
fn load_prewarm_and_counters_of_the_null_system_print_json() {
    let mut bench = Bench::new();
    let schema = bench.path("schema.sql");
    std::fs::write(&schema, "CREATE TABLE usertable (ycsb_key BIGINT)").unwrap();
    bench.set("/schema", json!(schema));
    for command in ["load", "prewarm", "counters"] {
        let output = bench.call(command);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["format"], 1);
        assert_eq!(report, crate::common::read_json(&bench.path(&format!("{command}.json"))));
    }
}

fn start_long_trial(bench: &mut Bench) -> Child {
    bench.set("/measure_s", json!(600));
    bench.command("run").stderr(Stdio::piped()).spawn().expect("loadgen starts")
}

#[test]
fn an_interrupted_trial_keeps_what_it_measured() {
    for number in [Signal::INT, Signal::TERM] {
        let mut bench = Bench::new();
        let mut child = start_long_trial(&mut bench);
        std::thread::sleep(Duration::from_millis(1500));
        let interrupted = Instant::now();
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(interrupted.elapsed() < Duration::from_secs(5));

        let result = bench.result();
        assert_eq!((&result["status"], &result["reason"]), (&json!("failed"), &json!("interrupted")));
        let measured_s = result["measured_s"].as_f64().unwrap();
        assert!(measured_s > 0.3 && measured_s < 5.0, "{measured_s}");
        assert!(result["committed"].as_u64().unwrap() > 0);
        assert!(timeline_of(&bench, 0..) > 0);
    }
}

/// Flags of a trial, without that of a debug build.
fn flags(result: &Value) -> Vec<&str> {
    assert_ne!(result["status"], "failed", "{}", result["reason"]);
    let flags = result["flags"].as_array().unwrap().iter().filter_map(Value::as_str);
    flags.filter(|&flag| flag != "debug_build").collect()
}

#[test]
fn terminals_that_pause_submit_as_often_as_they_may() {
    let mut bench = Bench::tpcc();
    bench.set("/terminals", json!(16));
    bench.set("/measure_s", json!(2));
    // About 21 ms for a transaction.
    bench.set("/tpcc/wait_factor", json!(0.001));
    let output = bench.call("run");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let result = bench.result();
    assert_eq!(flags(&result), [""; 0], "{result:#}");
    // 16 × 2 s ÷ 21 ms = 1524; a busy machine wakes them late, but nothing lets them submit early.
    let committed = result["committed"].as_u64().unwrap();
    assert!((300..2000).contains(&committed), "{committed}");
    assert!(result["latency_us"]["p50"].as_u64().unwrap() < 10_000, "pauses are no latency: {result:#}");
}

#[test]
fn terminals_that_still_pause_at_the_end_neither_hang_nor_stall() {
    let mut bench = Bench::tpcc();
    bench.set("/measure_s", json!(1.5));
    bench.set("/tpcc/wait_factor", json!(10));
    let started = Instant::now();
    assert_eq!(bench.call("run").status.code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(15), "20 s is the shortest pause");
    assert_eq!(flags(&bench.result()), ["nothing_committed"]);

    let mut child = start_long_trial(&mut bench);
    std::thread::sleep(Duration::from_millis(1500));
    let interrupted = Instant::now();
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(interrupted.elapsed() < Duration::from_secs(5));
    assert_eq!(bench.result()["reason"], "interrupted");
}

#[test]
fn a_server_that_is_not_there_is_a_failed_trial_with_its_reason() {
    // A port that was free a moment ago: nothing listens on it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let cases = [
        ("mysql", json!({"mysql_address": address}), "mysqld"),
        ("mysql-memcached", json!({"mysql_address": address, "memcached_address": address}), "memcached"),
    ];
    let cases = cases.into_iter().chain([("anticache-lru", json!({"anticache_address": address}), "anticached")]);
    for (system, endpoint, server) in cases {
        let mut bench = Bench::new();
        bench.set("/system", json!(system));
        bench.set("/endpoint", endpoint);
        let output = bench.call("run");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let result = bench.result();
        assert_eq!(result["status"], "failed");
        let reason = result["reason"].as_str().unwrap();
        let expected = format!("{server} at {address}: cannot connect");
        assert!(reason.starts_with(&expected) && !reason.contains('\n'), "{reason}");
        assert_eq!(result["errors"][format!("{server} unreachable")], 1);

        let output = bench.call("counters");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
}

#[test]
fn progress_is_plain_lines_when_stderr_is_no_terminal() {
    let mut bench = Bench::new();
    let mut child = start_long_trial(&mut bench);
    std::thread::sleep(Duration::from_millis(6500));
    signal(&child, Signal::INT);
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    assert!(text.contains("/601 s, measuring, ") && text.contains("ETA 59"), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text:?}");
}
