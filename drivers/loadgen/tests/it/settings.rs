//! Settings that a running engine is given before a trial.

use crate::common::Bench;
use crate::served::Served;
use serde_json::{Value, json};

#[test]
fn a_running_engine_gets_the_trials_settings() {
    let budget = json!({"memory_budget_bytes": 8 << 20});
    let mut served = Served::start(Bench::new(), "ycsb.sql", &budget);
    served.succeed("load");
    served.bench.set("/engine_settings", json!({"merge": "block", "hole_threshold": 1, "eviction_blocks": 1}));
    let result = served.succeed("run");
    let settings = &result["server_settings"]["anticached"];
    let shown = ["merge", "hole_threshold", "eviction_blocks", "fetch"].map(|name| settings[name].clone());
    assert_eq!(shown, [json!("block"), json!(1.0), json!(1), json!("block")]);
    served.bench.set("/engine_settings", json!({"merge": "block", "fetch": "sectors"}));
    served.call("run");
    let result: Value = crate::common::read_json(&served.bench.path("result.json"));
    assert_eq!(result["status"], "failed");
    let reason = result["reason"].as_str().unwrap();
    assert!(reason.contains("`fetch` = sectors"), "{reason}");
    served.stop();
}
