//! TPC-C from loading to the check of its consistency, on the engine.

use anticache_engine::catalog::Catalog;
use anticache_engine::procedure::tpcc::generate::{Population, TpccTable};
use anticache_engine::procedure::tpcc::params::Load;
use loadgen::tpcc::TpccSpec;
use serde_json::{Value, json};

use crate::common::Bench;
use crate::served::Served;

/// Rows of a warehouse with 100 items, 30 customers and 30 orders a district, but for the lines and the items.
const ROWS: u64 = 1 + 100 + 10 * (1 + 30 + 30 + 30 + 9);

fn served(settings: &Value) -> Served {
    Served::start(Bench::tpcc(), "tpcc.sql", settings)
}

fn roomy(partitions: u32) -> Value {
    json!({"partitions": partitions, "memory_budget_bytes": 64 << 20})
}

/// Flags of a trial that say something of the system.
fn flags(result: &Value) -> Vec<&str> {
    assert_ne!(result["status"], "failed", "{}", result["reason"]);
    let flags = result["flags"].as_array().unwrap().iter().filter_map(Value::as_str);
    flags.filter(|flag| !["debug_build", "client_saturated"].contains(flag)).collect()
}

fn population(bench: &Bench) -> (Catalog, Population) {
    let spec: TpccSpec = serde_json::from_value(bench.spec["tpcc"].clone()).unwrap();
    let catalog = Catalog::from_file(&Bench::schema("tpcc.sql")).unwrap();
    let population = Population::new(&catalog, spec.scale(), spec.population_seed).unwrap();
    (catalog, population)
}

/// Adds a row that belongs to nothing.
fn add_row(served: &Served, partition: u32, table: TpccTable, row: &[u8]) {
    let (_, population) = population(&served.bench);
    let mut call = Load::begin(population.table_id(table));
    Load::append(&mut call, row);
    let mut client = served.client();
    let procedure = client.procedure("tpcc_load").unwrap();
    client.call(partition, procedure, &call).unwrap();
}

#[test]
fn what_is_loaded_and_run_is_consistent() {
    for (partitions, access) in [(1, "home-warehouse"), (2, "remote")] {
        let mut served = served(&roomy(partitions));
        served.bench.set("/tpcc/access", json!(access));
        served.bench.set("/measure_s", json!(1));
        let loaded = served.succeed("load")["records"].as_u64().unwrap();
        let check = served.succeed("check");
        let lines = check["tables"]["order_line"]["rows"].as_u64().unwrap();
        assert_eq!(loaded, 2 * ROWS + 100 + lines);
        assert_eq!((&check["consistent"], &check["violations"]), (&json!(true), &json!([])));
        assert_eq!(
            (check["tables"]["item"]["rows"].as_u64(), check["tables"]["data_set"]["rows"].as_u64()),
            (Some(100), Some(1))
        );
        assert_eq!(check["tables"].as_object().unwrap().len(), 10);
        served.succeed("prewarm");

        let result = served.succeed("run");
        assert_eq!(flags(&result), [""; 0], "{}", result["reason"]);
        let committed = result["committed"].as_u64().unwrap();
        let by_type: u64 = result["committed_by_type"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert!(committed > 500 && by_type == committed, "{committed}, {by_type}");
        assert_eq!((&result["verified"], &result["verify_failed"]), (&json!(committed), &json!(0)));
        let aborted = result["aborted"].as_object().unwrap();
        assert!(aborted.keys().eq(["item not found"]), "{aborted:?}");
        let share = result["new_order_share"].as_f64().unwrap();
        assert!((0.38..0.48).contains(&share), "{share}");
        let new_orders = result["committed_by_type"]["new_order"].as_f64().unwrap();
        assert!((result["new_orders_per_minute"].as_f64().unwrap() / (60.0 * new_orders) - 1.0).abs() < 1e-6);
        assert!(result["latency_us_by_type"]["stock_level"]["p99"].as_u64() > Some(0));

        let after = served.succeed("check");
        let rows = |check: &Value, table: &str| check["tables"][table]["rows"].as_u64().unwrap();
        assert!(rows(&after, "orders") > rows(&check, "orders") + 200);
        assert_eq!(after["tables"]["item"], check["tables"]["item"]);
        assert_ne!(after["tables"]["stock"]["checksum"], check["tables"]["stock"]["checksum"]);
        served.stop();
    }
}

#[test]
fn the_same_seed_loads_the_same_rows_whatever_the_threads_and_partitions() {
    let sums = |partitions, threads: u32, seed: u64| {
        let mut served = served(&roomy(partitions));
        served.bench.set("/loading_threads", json!(threads));
        served.bench.set("/tpcc/population_seed", json!(seed));
        served.succeed("load");
        let tables = served.succeed("check")["tables"].clone();
        served.stop();
        tables
    };
    let one = sums(1, 1, 3);
    assert_eq!(sums(2, 3, 3), one);
    assert_ne!(sums(1, 1, 4), one);
}

#[test]
fn evictions_are_recorded_beside_the_trial() {
    // Room for what is static and for some of the orders: those that are entered push older ones out. Pauses bound how many there are, on any machine:
    // what is evicted still takes memory for its keys.
    let mut served = served(&json!({"memory_budget_bytes": 5 << 20, "eviction_block_bytes": 4096}));
    served.bench.set("/terminals", json!(16));
    served.bench.set("/tpcc/orders_per_district", json!(250));
    served.bench.set("/tpcc/wait_factor", json!(0.001));
    served.bench.set("/warmup_s", json!(0.5));
    served.bench.set("/measure_s", json!(2));
    served.succeed("load");
    let result = served.succeed("run");
    assert_eq!(flags(&result), [""; 0], "{}", result["reason"]);
    let csv = std::fs::read_to_string(served.bench.path("events.csv")).unwrap();
    let (header, lines) = csv.split_once('\n').unwrap();
    assert_eq!(header, "second,partition,kind,tuples,blocks,bytes,took_us");
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(result["events"]["recorded"], lines.len());
    let seconds: Vec<f64> = lines.iter().map(|line| line[0].parse().unwrap()).collect();
    assert!(seconds.is_sorted() && seconds[0] < 0.0 && seconds[0] > -2.0, "{:?}", seconds.first());
    assert!(seconds.last().is_some_and(|second| (1.0..2.0).contains(second)), "{:?}", seconds.last());
    let evicted = |column: usize| -> u64 {
        let evictions = lines.iter().filter(|line| line[2] == "eviction");
        evictions.map(|line| line[column].parse::<u64>().unwrap()).sum()
    };
    let counted = |name: &str| {
        let count = |when: &str| result[when]["anticached"][name].as_u64().unwrap();
        (count("counters_after"), count("counters_after") - count("counters_before"))
    };
    // The events have the warm-up besides the interval, and the counters loading besides both.
    for (column, name) in [(3, "evicted_tuples"), (4, "evicted_blocks"), (5, "evicted_bytes")] {
        let (all, measured) = counted(name);
        let evicted = evicted(column);
        assert!(measured > 0 && (measured / 2..=all).contains(&evicted), "{name}: {measured} to {all}, {evicted} told");
    }
    served.succeed("check");
    served.stop();
}

#[test]
fn damage_is_found_and_named() {
    let served = served(&roomy(2));
    served.succeed("load");
    let (_, population) = population(&served.bench);
    // A second payment of a customer's: more than W_YTD, D_YTD and C_BALANCE know of.
    let payment = population.rows(TpccTable::History, 2).next().unwrap();
    add_row(&served, 0, TpccTable::History, &payment);
    let (code, said) = served.call("check");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("clause 3.3.2.8, warehouse 2: W_YTD is 300000, the sum of H_AMOUNT 301000"), "{said}");
    let check = crate::common::read_json(&served.bench.path("check.json"));
    assert_eq!(check["violations_by_condition"], json!({"3.3.2.8": 1, "3.3.2.9": 1, "3.3.2.10": 1}));
    assert_eq!((&check["consistent"], check["violations"].as_array().unwrap().len()), (&json!(false), 3));

    // A replica that has more than the others, and a row that no load has made.
    let mut item = population.rows(TpccTable::Item, 1).next().unwrap();
    item[..4].copy_from_slice(&101_i32.to_le_bytes());
    add_row(&served, 1, TpccTable::Item, &item);
    let mut warehouse = population.rows(TpccTable::Warehouse, 1).next().unwrap();
    warehouse[..2].copy_from_slice(&3_i16.to_le_bytes());
    add_row(&served, 1, TpccTable::Warehouse, &warehouse);
    let (code, said) = served.call("check");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("item is not the same at every partition: 100 rows at 0, 101 at 1"), "{said}");
    assert!(said.contains("warehouse has 3 rows, not 2"), "{said}");
    served.stop();
}

#[test]
fn another_data_set_is_refused_with_both_values() {
    let mut served = served(&roomy(1));
    for command in ["run", "prewarm", "check"] {
        let (code, said) = served.call(command);
        let said = if command == "run" { served.bench.result()["reason"].to_string() } else { said };
        assert!(said.contains("not loaded to its end") && (command == "run") == (code == Some(0)), "{command}: {said}");
    }
    served.succeed("load");
    let (code, said) = served.call("load");
    assert!(code == Some(1) && said.contains("tuples already"), "{said}");
    for (key, value, expected) in [
        ("warehouses", 4, "loaded for 2 warehouses, this trial wants 4: load again"),
        ("items", 99, "100 items, this trial wants 99"),
        ("customers_per_district", 20, "30 customers per district, this trial wants 20"),
        ("orders_per_district", 40, "30 orders per district, this trial wants 40"),
        ("population_seed", 5, "seed 3, this trial wants 5"),
    ] {
        let pointer = format!("/tpcc/{key}");
        let before = served.bench.spec.pointer(&pointer).unwrap().clone();
        served.bench.set(&pointer, json!(value));
        for command in ["run", "prewarm", "check"] {
            let (_, said) = served.call(command);
            let said = if command == "run" { served.bench.result()["reason"].to_string() } else { said };
            assert!(said.contains(expected), "{command} with {key} = {value}: {said}");
        }
        served.bench.set(&pointer, before);
    }
    // The same tables but for a length.
    let schema = served.bench.path("longer.sql");
    let ddl = std::fs::read_to_string(Bench::schema("tpcc.sql")).unwrap();
    std::fs::write(&schema, ddl.replace("w_name VARCHAR(10)", "w_name VARCHAR(11)")).unwrap();
    served.bench.set("/schema", json!(schema));
    let (code, said) = served.call("prewarm");
    assert!(code == Some(1) && said.contains("loaded for a schema with hash"), "{said}");
    served.bench.set("/schema", json!(Bench::schema("tpcc.sql")));
    served.succeed("prewarm");
    served.stop();
}

#[test]
fn memory_for_less_than_the_static_tables_is_refused_with_the_need() {
    let mut small = served(&json!({"memory_budget_bytes": 4 << 20}));
    small.bench.set("/tpcc/items", json!(20_000));
    let (code, said) = small.call("load");
    assert_eq!(code, Some(1), "{said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    let after = |word: &str| words[words.iter().position(|other| *other == word).expect(word) + 1];
    let needed_bytes: u64 = after("about").parse().unwrap();
    assert!(said.contains("its budget is 4194304: give it more"), "{said}");
    small.stop();
    // What was asked for is enough, with some for what is evictable.
    let mut enough = served(&json!({"memory_budget_bytes": needed_bytes + needed_bytes / 5 + (1 << 20)}));
    enough.bench.set("/tpcc/items", json!(20_000));
    enough.succeed("load");
    enough.stop();
}

#[test]
fn what_a_transaction_does_not_find_ends_the_trial() {
    let served = served(&roomy(1));
    let (catalog, population) = population(&served.bench);
    // All but many customers, and the row that says that all is there.
    for table in TpccTable::ALL {
        for w_id in 1..=if table == TpccTable::Item { 1 } else { 2 } {
            for (at, row) in population.rows(table, w_id).enumerate() {
                if table != TpccTable::Customer || !(5..250).contains(&at) {
                    add_row(&served, 0, table, &row);
                }
            }
        }
    }
    let spec: TpccSpec = serde_json::from_value(served.bench.spec["tpcc"].clone()).unwrap();
    let (table, row) = loadgen::tpcc::data_set::DataSet::wanted(&spec, &catalog).row(&catalog).unwrap();
    let mut call = Load::begin(table);
    Load::append(&mut call, &row);
    let mut client = served.client();
    let procedure = client.procedure("tpcc_load").unwrap();
    client.call(0, procedure, &call).unwrap();
    served.call("run");
    let result = served.bench.result();
    assert_eq!(result["status"], "failed");
    let reason = result["reason"].as_str().unwrap();
    assert!(reason.contains("no such customer") && reason.contains("not what the trial wants"), "{reason}");
    served.stop();
}

#[test]
fn records_of_ycsb_are_checked_one_by_one() {
    let served = Served::start(Bench::new(), "ycsb.sql", &json!({"partitions": 2, "memory_budget_bytes": 3 << 20}));
    served.succeed("load");
    let check = served.succeed("check");
    assert_eq!((&check["consistent"], &check["tables"]["usertable"]["rows"]), (&json!(true), &json!(1000)));
    let mut client = served.client();
    let update = client.procedure("ycsb_update").unwrap();
    let params = [&7_i64.to_le_bytes()[..], &3_u16.to_le_bytes(), &[b'x'; 100]].concat();
    client.call(client.partition_of(7), update, &params).unwrap();
    let (code, said) = served.call("check");
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("record 7 is damaged"), "{said}");
    let report = crate::common::read_json(&served.bench.path("check.json"));
    assert_eq!(report["violations_by_condition"], json!({"records": 1}));
    assert_ne!(report["tables"], check["tables"]);
    served.stop();
}
