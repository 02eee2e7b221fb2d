//! What the tools show: descriptions, events, scans and snapshots of a running server, and the check of the data directory that it leaves.

use std::path::Path;
use std::process::{Command, Output};

use anticache_engine::client::Client;
use anticache_engine::events::Stream;
use anticache_engine::net::frame::{FIRST_ADMIN_PROCEDURE, SNAPSHOT_PROCEDURE};

use crate::support::served::{Served, serve, stop};

const ROWS: i64 = 6000;
const ROW_BYTES: usize = 1008;

/// A server with one partition that has evicted most of its rows.
fn filled() -> (Served, Client) {
    let served = serve("", &serde_json::json!({"partitions": 1, "memory_budget_bytes": 3 << 20}));
    let mut client = Client::connect(served.address).unwrap();
    let load = client.procedure("ycsb_load").unwrap();
    for first in (0..ROWS).step_by(100) {
        let mut params = 100u32.to_le_bytes().to_vec();
        for key in first..first + 100 {
            params.extend_from_slice(&key.to_le_bytes());
            params.resize(params.len() + ROW_BYTES - 8, (key % 251) as u8);
        }
        client.call(0, load, &params).unwrap();
    }
    (served, client)
}

fn read(client: &mut Client, key: i64) {
    let procedure = client.procedure("ycsb_read").unwrap();
    let row = client.call(0, procedure, &key.to_le_bytes()).unwrap();
    assert!(row.len() == ROW_BYTES - 8 && row.iter().all(|&byte| i64::from(byte) == key % 251), "row {key}");
}

fn anticached(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anticached")).args(arguments).output().unwrap()
}

fn check(data: &Path) -> Output {
    anticached(&["--check", data.to_str().unwrap()])
}

#[test]
fn a_description_agrees_with_itself() {
    let (served, mut client) = filled();
    read(&mut client, 3);
    let described = client.describe(0, 1000).unwrap();
    let table = &described["tables"][0];
    assert_eq!(table["resident"].as_i64().unwrap() + table["evicted"].as_i64().unwrap(), ROWS);
    let chain = table["chain"]["tuples"].as_array().unwrap();
    assert_eq!(chain[0]["tuple"], table["chain"]["coldest"]);
    for pair in chain.windows(2) {
        assert_eq!((&pair[0]["next"], &pair[1]["previous"]), (&pair[1]["tuple"], &pair[0]["tuple"]));
    }
    let known =
        described["layout"]["flags"].as_object().unwrap().values().fold(0, |all, flag| all | flag.as_u64().unwrap());
    let flags: Vec<u64> = chain.iter().map(|tuple| tuple["flags"].as_u64().unwrap()).collect();
    assert!(
        flags.iter().any(|flags| flags & 32 != 0) && flags.iter().all(|flags| flags & !known == 0),
        "{known} {flags:?}"
    );
    let blocks = table["blocks"].as_array().unwrap();
    for entry in table["evicted_table"].as_array().unwrap() {
        let block = blocks.iter().find(|block| block["block"] == entry["block"]).unwrap();
        let contents = block["contents"].as_array().unwrap();
        let tuple = contents.iter().find(|tuple| tuple["offset"] == entry["offset"]).unwrap();
        assert_eq!((&tuple["entry"], &tuple["hole"], &tuple["key"]), (&entry["entry"], &false.into(), &entry["key"]));
    }
    let holes: usize = blocks
        .iter()
        .map(|block| block["contents"].as_array().unwrap().iter().filter(|tuple| tuple["hole"] == true).count())
        .sum();
    assert_eq!(holes as u64, blocks.iter().map(|block| block["holes"].as_u64().unwrap()).sum::<u64>());
    assert!(holes >= 1, "row 3 was brought back");
    assert_eq!(described["layout"]["block_header_bytes"], 64);
    stop(served);
}

#[test]
fn settings_change_while_the_server_runs() {
    let (served, mut client) = filled();
    let settings = |client: &mut Client| client.stats().unwrap()["settings"].clone();
    assert_eq!(settings(&mut client)["merge"], "tuple");
    client
        .change_settings(&serde_json::json!({"merge": "block", "lru_sample_rate": 1.0, "eviction_blocks": 1}))
        .unwrap();
    let now = settings(&mut client);
    let shown = [&now["merge"], &now["alpha"], &now["eviction_blocks"], &now["blocks_per_eviction"]];
    assert_eq!(shown.map(ToString::to_string), ["\"block\"", "1.0", "1", "1"]);
    let before = client.stats().unwrap();
    (0..200).for_each(|key| read(&mut client, key));
    let after = client.stats().unwrap();
    let count = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert!(count("merged_tuples") > count("merged_wanted"), "unwanted tuples are merged with their block");
    assert_eq!(count("sampled"), count("committed"), "every transaction updates the chain");
    for (wrong, named) in [
        (serde_json::json!({"eviction_block_bytes": 4096}), "`eviction_block_bytes` cannot be changed"),
        (serde_json::json!({"hole_threshold": 0.25, "merge": "all"}), "`merge` = \"all\": unknown variant"),
        (serde_json::json!({"eviction_blocks": -1}), "`eviction_blocks` = -1: invalid value"),
        (serde_json::json!({"fetch": "sectors"}), "`fetch` = sectors"),
        (serde_json::json!({"lru_sample_rate": 2.0}), "`lru_sample_rate` = 2"),
    ] {
        let error = client.change_settings(&wrong).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert_eq!(settings(&mut client), now, "nothing was changed");
    }
    client.change_settings(&serde_json::json!({"merge": "tuple", "fetch": "sectors"})).unwrap();
    (200..400).for_each(|key| read(&mut client, key));
    let bytes = client.stats().unwrap()["fetched_bytes"].as_u64().unwrap() - after["fetched_bytes"].as_u64().unwrap();
    let blocks =
        client.stats().unwrap()["fetched_blocks"].as_u64().unwrap() - after["fetched_blocks"].as_u64().unwrap();
    let block_bytes = now["eviction_block_bytes"].as_u64().unwrap();
    assert!(blocks > 0 && bytes < blocks * block_bytes, "{bytes} bytes of {blocks} blocks");
    stop(served);
}

#[test]
fn events_tell_what_the_counters_count() {
    let (served, mut client) = filled();
    (0..40).for_each(|key| read(&mut client, key));
    let stats = client.stats().unwrap();
    let all = |client: &mut Client, stream| -> Vec<serde_json::Value> {
        let (mut events, mut from) = (Vec::new(), 0);
        loop {
            let page = client.events(0, stream, from).unwrap();
            let new = page["events"].as_array().unwrap().clone();
            if new.is_empty() {
                return events;
            }
            events.extend(new);
            from = page["next"].as_u64().unwrap();
        }
    };
    let count =
        |events: &[serde_json::Value], kind: &str| events.iter().filter(|event| event["kind"] == kind).count() as u64;
    let maintenance = all(&mut client, Stream::Maintenance);
    assert_eq!(count(&maintenance, "eviction"), stats["evictions"].as_u64().unwrap());
    let tuples: u64 = maintenance.iter().map(|event| event["tuples"].as_u64().unwrap()).sum();
    assert_eq!(tuples, stats["evicted_tuples"].as_u64().unwrap());
    let traffic = all(&mut client, Stream::Traffic);
    assert_eq!(count(&traffic, "restart"), stats["restarted"].as_u64().unwrap());
    assert_eq!(count(&traffic, "fetch"), stats["fetched_blocks"].as_u64().unwrap());
    assert!(maintenance.windows(2).all(|pair| pair[0]["at_us"].as_u64() <= pair[1]["at_us"].as_u64()));
    let address = served.address.to_string();
    let printed = anticached(&["events", "--address", &address]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap().lines().count(), maintenance.len());
    let described = anticached(&["describe", "--address", &address, "--limit", "3"]);
    let described: serde_json::Value = serde_json::from_slice(&described.stdout).unwrap();
    assert_eq!(described["tables"][0]["chain"]["tuples"].as_array().unwrap().len(), 3);
    let refused = anticached(&["events", "--address", &address, "--partition", "7"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("partition 7; the server has 1"));
    stop(served);
}

/// The keys that a scan finds, with rows that belong to them.
fn scanned_keys(client: &mut Client) -> Vec<i64> {
    let mut keys = Vec::new();
    client
        .scan(0, 0, |row| {
            let key = i64::from_le_bytes(row[..8].try_into().unwrap());
            assert!(row.len() == ROW_BYTES && row[8..].iter().all(|&byte| i64::from(byte) == key % 251));
            keys.push(key);
        })
        .unwrap();
    keys
}

#[test]
fn a_scan_reads_every_row_once_and_brings_nothing_back() {
    let (served, mut client) = filled();
    let evicted = |client: &mut Client| client.stats().unwrap()["tuples_evicted"].clone();
    // An eviction that the loading began may go on between two pages, and a row be seen on both sides of it.
    let settled = (0..100).find_map(|_| {
        let before = evicted(&mut client);
        let keys = scanned_keys(&mut client);
        (evicted(&mut client) == before).then_some(keys)
    });
    let mut keys = settled.expect("evictions end when nothing is loaded any more, and a scan brings nothing back");
    keys.sort_unstable();
    assert_eq!(keys, (0..ROWS).collect::<Vec<_>>());
    let error = client.scan(0, 9, |_| ()).unwrap_err().to_string();
    assert!(error.contains("table 9; there are 1"), "{error}");
    stop(served);
}

/// Requests to the partition itself with parameters of any length and content are answered, and the connection goes on.
#[test]
fn malformed_requests_to_the_partition_are_answered() {
    let (served, mut client) = filled();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for round in 0..400 {
        let procedure = FIRST_ADMIN_PROCEDURE + (round % 15) as u16;
        if procedure == SNAPSHOT_PROCEDURE {
            continue;
        }
        let params: Vec<u8> = (0..next() % 14).map(|_| next() as u8 % 3).collect();
        if let Err(error) = client.call(0, procedure, &params) {
            let error = error.to_string();
            let known = ["parameters of", "no procedure has", "table ", "no JSON object"];
            assert!(known.iter().any(|known| error.contains(known)), "{error}");
        }
    }
    read(&mut client, 1);
    stop(served);
}

#[test]
fn a_data_directory_is_checked_to_the_byte() {
    let (served, mut client) = filled();
    let generation: serde_json::Value =
        serde_json::from_slice(&client.call(0, SNAPSHOT_PROCEDURE, &[]).unwrap()).unwrap();
    assert_eq!(generation["generation"], 1);
    read(&mut client, 5);
    let data = served.directory.path().join("data");
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    kill(served, &data, kept.path());
    let sound = check(kept.path());
    let text = String::from_utf8(sound.stdout).unwrap();
    assert!(sound.status.success() && text.contains("snapshot 1, log Sync"), "{text}");
    assert!(text.contains("evicted in"), "{text}");
    for (name, place) in [("snapshot-0000-00000001.db", 0.5), ("blocks-0000.db", 0.1), ("MANIFEST", 0.5)] {
        let path = kept.path().join(name);
        let whole = std::fs::read(&path).unwrap();
        let mut damaged = whole.clone();
        let at = (whole.len() as f64 * place) as usize;
        damaged[at] ^= 4;
        std::fs::write(&path, &damaged).unwrap();
        let found = check(kept.path());
        let text = String::from_utf8(found.stderr).unwrap();
        assert_eq!(found.status.code(), Some(2), "{name}");
        assert!(text.contains(name) && text.lines().count() == 1, "{name}: {text}");
        std::fs::remove_file(&path).unwrap();
        let text = String::from_utf8(check(kept.path()).stderr).unwrap();
        assert!(text.contains(name), "{name}: {text}");
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(check(kept.path()).status.success());
    let nothing = check(&kept.path().join("nothing"));
    assert_eq!(nothing.status.code(), Some(2));
}

/// Kills the server and keeps what it leaves.
fn kill(mut served: Served, data: &Path, kept: &Path) {
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    for entry in std::fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, kept.join(path.file_name().unwrap())).unwrap();
    }
}
