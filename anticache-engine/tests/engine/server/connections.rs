//! The server over loopback TCP: the native client, malformed frames, a full disk, graceful stop.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anticache_engine::client::{Client, ClientError, Reply};
use anticache_engine::config::Config;
use anticache_engine::net::frame::{
    HELLO_MAGIC, PROTOCOL_VERSION, SCAN_PROCEDURE, SNAPSHOT_PROCEDURE, STATS_PROCEDURE, write_request,
};
use anticache_engine::net::server::Server;
use anticache_engine::secret::NONCE_BYTES;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::support::served::{WATCHDOG, serve, stop, write_config};

const RECORDS: i64 = 4000;

/// A connection of its own to partition 0, after the handshake.
fn raw_connection(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.write_all(&HELLO_MAGIC).unwrap();
    stream.write_all(&PROTOCOL_VERSION.to_le_bytes()).unwrap();
    stream.write_all(&0u16.to_le_bytes()).unwrap();
    stream.write_all(&[0; NONCE_BYTES]).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut welcome = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut welcome).unwrap();
    stream
}

/// The tokens of whole reply frames.
fn tokens(mut frames: &[u8]) -> Vec<u64> {
    let mut tokens = Vec::new();
    while let Some((length, rest)) = frames.split_first_chunk() {
        let (frame, behind) = rest.split_at(u32::from_le_bytes(*length) as usize);
        tokens.push(u64::from_le_bytes(frame[..8].try_into().unwrap()));
        frames = behind;
    }
    tokens
}

fn row(key: i64) -> Vec<u8> {
    let mut row = key.to_le_bytes().to_vec();
    row.extend((0..1000).map(|n| b'a' + ((key + n) % 26) as u8));
    row
}

fn load(client: &mut Client) {
    let procedure = client.procedure("ycsb_load").unwrap();
    let partitions = i64::from(client.partitions());
    for first in (0..RECORDS).step_by(100) {
        for partition in 0..partitions {
            let keys: Vec<i64> = (first..first + 100).filter(|key| key % partitions == partition).collect();
            let mut params = (keys.len() as u32).to_le_bytes().to_vec();
            keys.iter().for_each(|&key| params.extend(row(key)));
            client.call(partition as u32, procedure, &params).unwrap();
        }
    }
}

#[test]
fn serves_reads_and_updates_larger_than_memory_and_stops_gracefully() {
    let served = serve("", &serde_json::json!({}));
    let mut client = Client::connect(served.address).unwrap();
    load(&mut client);
    let (read, update) = (client.procedure("ycsb_read").unwrap(), client.procedure("ycsb_update").unwrap());
    for key in (0..RECORDS).step_by(3) {
        let mut params = key.to_le_bytes().to_vec();
        params.extend_from_slice(&4u16.to_le_bytes());
        params.extend_from_slice(&[b'Z'; 100]);
        client.submit(key as u64, client.partition_of(key), update, &params);
    }
    while client.wait(&mut |token, reply| assert_eq!(reply, Reply::Committed(&[]), "key {token}")).unwrap() > 0 {}
    for key in 0..RECORDS {
        client.submit(key as u64, client.partition_of(key), read, &key.to_le_bytes());
    }
    let mut seen = 0;
    let mut check = |token: u64, reply: Reply<'_>| {
        let key = token as i64;
        let mut expected = row(key)[8..].to_vec();
        if key % 3 == 0 {
            expected[400..500].fill(b'Z');
        }
        assert_eq!(reply, Reply::Committed(&expected), "key {key}");
        seen += 1;
    };
    while client.wait(&mut check).unwrap() > 0 {}
    assert_eq!(seen, RECORDS);
    let stats = client.stats().unwrap();
    let count = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"));
    assert!(count("evicted_tuples") > RECORDS as u64 / 2 && count("merged_tuples") > 0 && count("fetched_blocks") > 0);
    assert!(count("memory_total_bytes") <= count("memory_budget_bytes"));
    assert_eq!(count("tuples_resident") + count("tuples_evicted"), RECORDS as u64);
    assert_eq!(stats["settings"]["anticaching"], "alru");
    let missing = client.call(0, read, &(RECORDS + 2).to_le_bytes()).unwrap_err();
    assert_eq!(missing.to_string(), "aborted: no such key");
    let unknown = client.call(0, 99, &[]).unwrap_err();
    assert!(unknown.to_string().contains("no procedure has the number 99"));
    stop(served);
}

#[test]
fn a_data_directory_has_one_server_at_a_time() {
    let served = serve("", &serde_json::json!({}));
    let mut client = Client::connect(served.address).unwrap();
    load(&mut client);
    let config = Config::from_file(&served.directory.path().join("anticached.json")).unwrap();
    let refused = Server::start(&config).map(Server::stop).unwrap_err().to_string();
    assert!(refused.contains("another server") && refused.contains("/data"), "{refused}");
    let read = client.procedure("ycsb_read").unwrap();
    for key in 0..RECORDS {
        let found = client.call(client.partition_of(key), read, &key.to_le_bytes()).unwrap();
        assert_eq!(found, row(key)[8..], "key {key}");
    }
    let directory = std::sync::Arc::clone(&served.directory);
    drop(client);
    stop(served);
    // The one in this process keeps its directory to itself until it has stopped.
    let first = Server::start(&config).unwrap();
    assert!(Server::start(&config).is_err());
    first.stop();
    Server::start(&config).unwrap().stop();
    drop(directory);
}

/// The most memory that a process has had, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn who_asks_for_much_and_does_not_read_it_is_answered_bit_by_bit() {
    const PAGES: u64 = 400;
    let served = serve("", &serde_json::json!({"partitions": 1, "memory_budget_bytes": 8 << 20}));
    let mut client = Client::connect(served.address).unwrap();
    load(&mut client);
    let mut stream = raw_connection(served.address);
    let mut wire = Vec::new();
    // A mebibyte each, in one write of a few kilobytes.
    (0..PAGES).for_each(|token| write_request(&mut wire, token, SCAN_PROCEDURE, &[0; 10]));
    stream.write_all(&wire).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    client.stats().unwrap();
    let peak_bytes = peak_bytes(served.child.id());
    assert!(peak_bytes < 200 << 20, "{peak_bytes} bytes for what nobody reads");
    let mut frames = first.to_vec();
    stream.read_to_end(&mut frames).unwrap();
    assert!(frames.len() as u64 > PAGES << 19, "{} bytes", frames.len());
    assert_eq!(tokens(&frames), (0..PAGES).collect::<Vec<_>>());
    stop(served);
}

/// Both have asked before the server looks at either: one for thousands of answers about the partition, the other for one transaction.
#[test]
fn who_asks_for_much_about_a_partition_does_not_hold_up_the_others() {
    const QUESTIONS: u64 = 3000;
    let served = serve("", &serde_json::json!({"partitions": 1}));
    let read = Client::connect(served.address).unwrap().procedure("ycsb_read").unwrap();
    let (mut curious, mut other) = (raw_connection(served.address), raw_connection(served.address));
    let (mut questions, mut transaction) = (Vec::new(), Vec::new());
    (0..QUESTIONS).for_each(|token| write_request(&mut questions, token, STATS_PROCEDURE, &[]));
    write_request(&mut transaction, 0, read, &0i64.to_le_bytes());
    kill_process(Pid::from_child(&served.child), Signal::STOP).unwrap();
    curious.write_all(&questions).unwrap();
    curious.shutdown(Shutdown::Write).unwrap();
    other.write_all(&transaction).unwrap();
    kill_process(Pid::from_child(&served.child), Signal::CONT).unwrap();
    let mut frames = Vec::new();
    curious.read_to_end(&mut frames).unwrap();
    assert_eq!(tokens(&frames), (0..QUESTIONS).collect::<Vec<_>>());
    let text = String::from_utf8_lossy(&frames);
    let aborted = |at: Option<usize>| text[at.unwrap()..].chars().nth("\"aborted\":".len());
    assert_eq!(aborted(text.rfind("\"aborted\":")), Some('1'), "the missing key was noticed before the last answer");
    stop(served);
}

/// With work that grows with the square of them, the watchdog comes first.
#[test]
fn a_flood_of_wishes_for_snapshots_is_answered_in_order() {
    const WISHES: u64 = 300_000;
    let served = serve("", &serde_json::json!({"partitions": 1}));
    let mut stream = raw_connection(served.address);
    let mut wire = Vec::new();
    (0..WISHES).for_each(|token| write_request(&mut wire, token, SNAPSHOT_PROCEDURE, &[]));
    let mut writer = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        writer.write_all(&wire)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut frames = Vec::new();
    stream.read_to_end(&mut frames).unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(tokens(&frames), (0..WISHES).collect::<Vec<_>>());
    stop(served);
}

#[test]
fn a_malformed_frame_closes_its_connection_only() {
    let served = serve("", &serde_json::json!({}));
    let mut good = Client::connect(served.address).unwrap();
    load(&mut good);
    for bad in [vec![0xFF; 64], vec![0; 64], 3u32.to_le_bytes().to_vec()] {
        let mut stream = raw_connection(served.address);
        stream.write_all(&bad).unwrap();
        let mut rest = Vec::new();
        assert!(matches!(stream.read_to_end(&mut rest), Ok(0) | Err(_)), "the server closes it without an answer");
    }
    let mut stranger = TcpStream::connect(served.address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(stranger.read_to_end(&mut Vec::new()), Ok(0) | Err(_)));
    let read = good.procedure("ycsb_read").unwrap();
    assert_eq!(good.call(0, read, &0i64.to_le_bytes()).unwrap(), row(0)[8..]);
    stop(served);
}

/// Reads and synced writes, some of evicted tuples, then the client ends its side at once, properly or with a malformed frame: every
/// request before that is answered.
#[test]
fn a_client_that_ends_its_side_still_gets_its_replies() {
    let served = serve("", &serde_json::json!({"partitions": 1}));
    let mut client = Client::connect(served.address).unwrap();
    load(&mut client);
    let (read, update) = (client.procedure("ycsb_read").unwrap(), client.procedure("ycsb_update").unwrap());
    for malformed in [false, true] {
        let mut stream = raw_connection(served.address);
        let mut wire = Vec::new();
        for token in 0..600u64 {
            let mut params = (token as i64 * 7 % RECORDS).to_le_bytes().to_vec();
            if token % 3 == 0 {
                params.extend_from_slice(&0u16.to_le_bytes());
                params.extend_from_slice(&[b'Q'; 100]);
            }
            write_request(&mut wire, token, if token % 3 == 0 { update } else { read }, &params);
        }
        if malformed {
            wire.extend_from_slice(&[0xFF; 4]);
        }
        stream.write_all(&wire).unwrap();
        if malformed {
            // What is still on its way when the server has read the malformed part must not cost the replies either.
            std::thread::sleep(Duration::from_millis(100));
            stream.write_all(&vec![0; 1 << 20]).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).unwrap();
        let mut tokens = tokens(&replies);
        tokens.sort_unstable();
        assert_eq!(tokens, (0..600).collect::<Vec<_>>(), "malformed: {malformed}");
    }
    assert_eq!(client.stats().unwrap()["waiting"], 0);
    stop(served);
}

/// More replies than the server keeps for one connection before it stops reading: the client reads while it writes.
#[test]
fn a_client_may_have_any_number_of_requests_outstanding() {
    let served =
        serve("", &serde_json::json!({"partitions": 1, "anticaching": "off", "memory_budget_bytes": 64 << 20}));
    let mut client = Client::connect(served.address).unwrap();
    client.set_timeout(Some(WATCHDOG / 2)).unwrap();
    load(&mut client);
    let read = client.procedure("ycsb_read").unwrap();
    // 60 MB of replies to reads; behind them 60 MB of requests, which the server does not take before the replies are read.
    let requests = 60_000;
    (0..requests).for_each(|token| client.submit(token, 0, read, &5i64.to_le_bytes()));
    (0..6_000).for_each(|token| client.submit(token, 0, read, &[0; 10_000]));
    let (mut committed, mut others) = (0, 0);
    let mut count = |_, reply: Reply<'_>| match reply {
        Reply::Committed(_) => committed += 1,
        _ => others += 1,
    };
    while client.wait(&mut count).unwrap() > 0 {}
    assert_eq!((committed, others), (requests, 6_000));
    stop(served);
}

/// Who has a moment of its own to keep waits up to it, on one connection and on several.
#[test]
fn a_client_may_wait_for_a_limited_time() {
    for partitions in [1, 2] {
        // What writes is answered when its log group is durable, which collects for half a second.
        let settings = serde_json::json!({"partitions": partitions, "log_group_interval_us": 500_000});
        let served = serve("", &settings);
        let mut client = Client::connect(served.address).unwrap();
        let procedure = client.procedure("ycsb_load").unwrap();
        let limit = Duration::from_millis(50);
        let mut committed = 0;
        let mut count = |_: u64, reply: Reply<'_>| committed += u32::from(matches!(reply, Reply::Committed(_)));
        let asked = Instant::now();
        assert_eq!(client.wait_for(WATCHDOG, &mut count).unwrap(), 0, "nothing is outstanding");
        assert!(asked.elapsed() < limit);
        let mut params = 1u32.to_le_bytes().to_vec();
        params.extend(row(5));
        client.submit(1, client.partition_of(5), procedure, &params);
        let asked = Instant::now();
        assert_eq!(client.wait_for(limit, &mut count).unwrap(), 0);
        assert!(asked.elapsed() >= limit, "{:?}", asked.elapsed());
        assert_eq!(client.wait_for(Duration::ZERO, &mut count).unwrap(), 0);
        assert_eq!(client.outstanding(), 1, "sent, and still waited for");
        assert_eq!(client.wait_for(WATCHDOG, &mut count).unwrap(), 1);
        assert!(asked.elapsed() < WATCHDOG / 2, "the reply ends the wait: {:?}", asked.elapsed());
        assert_eq!(committed, 1);
        stop(served);
    }
}

/// What was submitted reaches the server although nobody waits; a server that is gone is told to who waits.
#[test]
fn a_client_may_send_before_it_waits() {
    for partitions in [1_u32, 2] {
        let served = serve("", &serde_json::json!({"partitions": partitions}));
        let mut client = Client::connect(served.address).unwrap();
        let mut observer = Client::connect(served.address).unwrap();
        let procedure = client.procedure("ycsb_load").unwrap();
        client.send_every(2);
        let submit = |client: &mut Client, key: i64| {
            let mut params = 1u32.to_le_bytes().to_vec();
            params.extend(row(key));
            client.submit(key as u64, client.partition_of(key), procedure, &params);
        };
        (0..2 * i64::from(partitions)).for_each(|key| submit(&mut client, key));
        let asked = Instant::now();
        while observer.stats().unwrap()["tuples_resident"] != 2 * partitions {
            assert!(asked.elapsed() < WATCHDOG, "{}", observer.stats().unwrap());
        }
        submit(&mut client, 100);
        let mut tokens = Vec::new();
        while client.wait(&mut |token, _| tokens.push(token)).unwrap() > 0 {}
        tokens.sort_unstable();
        let loaded = (0..2 * u64::from(partitions)).chain([100]).collect::<Vec<_>>();
        assert_eq!(tokens, loaded, "the last one is sent by the wait");
        stop(served);
        (0..8).for_each(|key| submit(&mut client, key));
        assert!(matches!(client.wait(&mut |_, _| {}), Err(ClientError::Broken { .. })));
    }
}

/// Keys and index entries alone need more than the budget: loading ends with the reason instead of exceeding it.
#[test]
fn a_budget_smaller_than_the_indexes_refuses_more_rows() {
    let served = serve("", &serde_json::json!({"partitions": 1, "log": "off", "memory_budget_bytes": 1 << 20}));
    let mut client = Client::connect(served.address).unwrap();
    let procedure = client.procedure("ycsb_load").unwrap();
    let refused = (0..100_000).step_by(50).find_map(|first| {
        let mut params = 50u32.to_le_bytes().to_vec();
        (first..first + 50).for_each(|key| params.extend(row(key)));
        client.call(0, procedure, &params).err()
    });
    let text = refused.expect("an index entry takes 7 bytes and an Evicted Table entry 16").to_string();
    assert!(text.contains("memory budget of 1048576 bytes is used up"), "{text}");
    let stats = client.stats().unwrap();
    let count = |name: &str| stats[name].as_u64().unwrap();
    assert!(count("tuples_evicted") > 20_000, "{stats}");
    // The last growth step of each structure is taken before it can be refused.
    assert!(count("memory_total_bytes") <= count("memory_budget_bytes") + 4 * (64 << 10), "{stats}");
    stop(served);
}

#[test]
fn a_partition_that_does_not_exist_is_refused_by_name() {
    let served = serve("", &serde_json::json!({"partitions": 1}));
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.write_all(&HELLO_MAGIC).unwrap();
    stream.write_all(&[2, 0, 7, 0]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("partition 7; this server has 1"));
}

/// A file-size limit stands for a full disk: the write of a log segment is refused by the system.
#[test]
fn a_refused_log_write_fails_the_writes_and_everything_after_it() {
    let changes = serde_json::json!({"partitions": 1, "anticaching": "off", "memory_budget_bytes": 64 << 20});
    // 1.5 MiB in units of 512 bytes: the first segment fits; the log cannot grow into a larger one.
    let served = serve("trap '' XFSZ; ulimit -f 3000;", &changes);
    let mut client = Client::connect(served.address).unwrap();
    let procedure = client.procedure("ycsb_load").unwrap();
    let mut refused = None;
    for first in (0..20_000).step_by(1600) {
        let mut params = 1600u32.to_le_bytes().to_vec();
        (first..first + 1600).for_each(|key| params.extend(row(key)));
        if let Err(error) = client.call(0, procedure, &params) {
            refused = Some(error);
            break;
        }
    }
    let text = refused.expect("1600 rows do not fit in what the limit allows").to_string();
    assert!(text.starts_with("failed: ") && text.contains("command log") && text.contains("File too large"), "{text}");
    let again = client.call(0, client.procedure("ycsb_read").unwrap(), &0i64.to_le_bytes()).unwrap_err();
    assert!(matches!(&again, ClientError::NotCommitted(text) if text.contains("command log")), "{again}");
}

fn refused(changes: &serde_json::Value, prepare: impl FnOnce(&Path)) -> String {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    prepare(directory.path());
    let config = write_config(directory.path(), changes);
    let output =
        Command::new(env!("CARGO_BIN_EXE_anticached")).arg("serve").arg("--config").arg(config).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().filter(|line| !line.contains("warning")).count(), 1, "one clear line: {text}");
    text
}

#[test]
fn bad_configurations_are_refused_in_one_line() {
    let nothing = |_: &Path| ();
    assert!(refused(&serde_json::json!({"alpha": 1}), nothing).contains("unknown field `alpha`"));
    assert!(
        refused(&serde_json::json!({"memory_budget_bytes": 5}), nothing)
            .contains("`memory_budget_bytes` = 5: at least")
    );
    assert!(refused(&serde_json::json!({"max_connections": 0}), nothing).contains("`max_connections` = 0: 1 to 65536"));
    assert!(refused(&serde_json::json!({"schema": "/nowhere.sql"}), nothing).contains("schema /nowhere.sql"));
    assert!(refused(&serde_json::json!({"cpus": [1023]}), nothing).contains("bind a thread to CPU 1023"));
    let leftovers = |directory: &Path| {
        std::fs::create_dir(directory.join("data")).unwrap();
        std::fs::write(directory.join("data/old"), "x").unwrap();
    };
    assert!(refused(&serde_json::json!({}), leftovers).contains("it holds `old`"));
}

/// Each may make the server keep megabytes: there is a limit, which is named, and who goes makes room.
#[test]
fn more_connections_than_allowed_are_refused_by_name() {
    let served = serve("", &serde_json::json!({"max_connections": 5}));
    let mut clients = vec![Client::connect(served.address).unwrap(), Client::connect(served.address).unwrap()];
    // With two partitions a client has two connections; the third gets one of them.
    for _ in 0..3 {
        let error = Client::connect(served.address).err().unwrap().to_string();
        assert!(error.contains("5 connections are open, and `max_connections` allows no more"), "{error}");
    }
    assert!(clients[0].stats().unwrap()["refused_connections"].as_u64() >= Some(3));
    clients.pop();
    let deadline = Instant::now() + WATCHDOG;
    while let Err(error) = Client::connect(served.address).map(|client| clients.push(client)) {
        assert!(Instant::now() < deadline, "{error}");
    }
    clients.iter_mut().for_each(|client| drop(client.stats().unwrap()));
    stop(served);
}

#[test]
fn a_port_in_use_is_named() {
    let served = serve("", &serde_json::json!({}));
    let listen = served.address.to_string();
    let text = refused(&serde_json::json!({"listen": listen}), |_| ());
    assert!(text.contains(&format!("listen on {listen}")) && text.contains("in use"), "{text}");
    assert!(served.directory.path().exists());
}

#[test]
fn a_client_notices_that_the_server_died() {
    let mut served = serve("", &serde_json::json!({}));
    let mut client = Client::connect(served.address).unwrap();
    let read = client.procedure("ycsb_read").unwrap();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let error = client.call(0, read, &0i64.to_le_bytes()).unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    assert!(matches!(Client::connect(served.address), Err(ClientError::Connect { .. })));
}

/// The block file reaches the file-size limit: nothing more is evicted, what was acknowledged is read right or refused with the reason. When
/// the limit is gone, the blocks are written after all and everything works again.
#[test]
fn a_refused_block_write_loses_nothing_and_is_named() {
    let changes = serde_json::json!({"partitions": 1, "log": "off"});
    let served = serve("trap '' XFSZ; ulimit -S -f 2000;", &changes);
    let mut client = Client::connect(served.address).unwrap();
    let (load, read) = (client.procedure("ycsb_load").unwrap(), client.procedure("ycsb_read").unwrap());
    let mut refused = None;
    let mut acknowledged = 0;
    while refused.is_none() && acknowledged < RECORDS {
        let mut params = 50u32.to_le_bytes().to_vec();
        (acknowledged..acknowledged + 50).for_each(|key| params.extend(row(key)));
        match client.call(0, load, &params) {
            Ok(_) => acknowledged += 50,
            Err(error) => refused = Some(error.to_string()),
        }
    }
    let refused = refused.expect("1 MB on disk and 2 MiB of memory cannot hold 4 MB");
    assert!(refused.contains("memory budget") && refused.contains("nothing can be evicted"), "{refused}");
    let mut right = 0;
    for key in 0..acknowledged {
        match client.call(0, read, &key.to_le_bytes()) {
            Ok(reply) => {
                assert_eq!(reply, row(key)[8..], "key {key}");
                right += 1;
            }
            Err(error) => assert!(error.to_string().contains("nothing can be evicted"), "key {key}: {error}"),
        }
    }
    assert!(right > acknowledged / 3, "{right} of {acknowledged}");
    assert!(client.stats().unwrap()["write_errors"].as_u64() > Some(0));
    let unlimited = Rlimit { current: None, maximum: None };
    prlimit(Some(Pid::from_child(&served.child)), Resource::Fsize, unlimited).unwrap();
    let deadline = Instant::now() + WATCHDOG / 2;
    for key in 0..acknowledged {
        let reply = loop {
            match client.call(0, read, &key.to_le_bytes()) {
                Ok(reply) => break reply,
                Err(error) => assert!(Instant::now() < deadline, "key {key}: {error}: {}", client.stats().unwrap()),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(reply, row(key)[8..], "key {key}");
    }
    let stats = client.stats().unwrap();
    assert!(stats["memory_total_bytes"].as_u64() <= stats["memory_budget_bytes"].as_u64(), "{stats}");
    stop(served);
}
