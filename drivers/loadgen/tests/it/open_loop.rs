//! An open loop on the engine, whose terminals share a pipelined connection.

use serde_json::{Value, json};

use crate::common::Bench;
use crate::served::Served;

/// Flags that the engine is to blame for: what else the machine does must not fail a test.
fn flags(result: &Value) -> Vec<&str> {
    assert_ne!(result["status"], "failed", "{}", result["reason"]);
    let flags = result["flags"].as_array().unwrap().iter().filter_map(Value::as_str);
    flags.filter(|flag| !["debug_build", "client_saturated", "client_late"].contains(flag)).collect()
}

#[test]
fn the_engine_answers_what_arrives() {
    for partitions in [1, 2] {
        let settings = json!({"partitions": partitions, "memory_budget_bytes": 8 << 20});
        let mut served = Served::start(Bench::new(), "ycsb.sql", &settings);
        served.succeed("load");
        served.bench.set("/ycsb/verify_share", json!(1.0));
        served.bench.set("/arrival", json!("poisson"));
        // So few that terminals are free all the time, then more than eight of them can have under way.
        served.bench.set("/offered_txn_s", json!(500));
        let result = served.succeed("run");
        let open = &result["open_loop"];
        assert_eq!(flags(&result), [""; 0], "{result:#}");
        let (arrived, committed) = (open["arrived"].as_u64().unwrap(), result["committed"].as_u64().unwrap());
        assert!(arrived.abs_diff(committed) <= 16, "{arrived} arrived, {committed} committed");
        assert!(result["verified"].as_u64() > Some(0) && result["verify_failed"] == 0, "{result:#}");
        assert!(open["response_us"]["p50"].as_u64() >= result["latency_us"]["p50"].as_u64(), "{result:#}");

        served.bench.set("/offered_txn_s", json!(2_000_000));
        let result = served.succeed("run");
        assert_eq!(flags(&result), ["overloaded"], "{result:#}");
        assert!(result["open_loop"]["not_started"].as_u64() > Some(100_000), "{result:#}");
        assert!(result["verified"].as_u64() > Some(0) && result["verify_failed"] == 0, "{result:#}");
        served.stop();
    }
}

#[test]
fn tpcc_arrives_as_well() {
    let settings = json!({"partitions": 2, "memory_budget_bytes": 64 << 20});
    let mut served = Served::start(Bench::tpcc(), "tpcc.sql", &settings);
    served.bench.set("/tpcc/access", json!("remote"));
    served.bench.set("/arrival", json!("fixed"));
    served.bench.set("/offered_txn_s", json!(400));
    served.bench.set("/measure_s", json!(1));
    served.succeed("load");
    let result = served.succeed("run");
    assert_eq!(flags(&result), [""; 0], "{result:#}");
    assert_eq!(result["open_loop"]["arrived"], 400);
    let by_type: Vec<u64> =
        result["committed_by_type"].as_object().unwrap().values().filter_map(Value::as_u64).collect();
    assert!(by_type.iter().all(|&count| count > 0) && by_type.len() == 5, "{by_type:?}");
    assert_eq!(served.succeed("check")["consistent"], true);
    served.stop();
}
