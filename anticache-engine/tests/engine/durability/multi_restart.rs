//! A server of two partitions in a process of its own that is killed (SIGKILL) in the middle of transactions on both, and started again: money is where
//! it was acknowledged to be, and none is made or lost.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anticache_engine::client::{Client, Reply};
use anticache_engine::config::{Config, Log};
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::net::server::Server;

use crate::support::cluster::{Op, procedures};
use crate::support::database;

const PARTITIONS: u32 = 2;
const CLIENTS: i64 = 3;
/// About 1.5 MiB at each partition, whose budget is 1 MiB.
const ACCOUNTS: i64 = 6000;
const ROUNDS: u64 = 8;
/// Where the process that the test starts, which is this test program again, finds the database.
const DIRECTORY: &str = "ACCOUNTS_DIRECTORY";
const READY: &str = "accounts are served on ";
const OUTSTANDING: usize = 16;

/// What the test does in the process that it starts.
fn serve(directory: &Path) {
    let config =
        Config { partitions: PARTITIONS, log: Log::Sync, ..database::config(directory, u64::from(PARTITIONS) << 20) };
    std::fs::write(&config.schema, database::SCHEMA).unwrap();
    let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
    let server = Server::start_on(&files, &config, |_| Ok(procedures(&Arc::default(), PARTITIONS))).unwrap();
    println!("\n{READY}{}", server.address());
    // Killed before; unless the test that started it has died.
    std::thread::sleep(Duration::from_secs(120));
}

struct Process(Child, SocketAddr);

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start(directory: &Path) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "durability::multi_restart::a_killed_server_of_two_partitions_goes_on_where_it_was",
            "--nocapture",
        ])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix(READY)?.parse().ok());
    Process(child, address.expect("the server starts"))
}

fn connect(address: SocketAddr) -> Client {
    let mut client = Client::connect(address).unwrap();
    client.set_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

fn submit(client: &mut Client, token: u64, op: &Op) {
    let (procedure, params) = op.request(token);
    client.submit(token, op.base(i64::from(PARTITIONS)) as u32, procedure, &params);
}

/// Values by key, in the order asked for.
fn values(client: &mut Client, keys: Vec<i64>) -> Vec<i64> {
    let op = Op::Sum(keys);
    let (procedure, params) = op.request(0);
    let reply = client.call(op.base(i64::from(PARTITIONS)) as u32, procedure, &params).unwrap();
    let numbers = reply.chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().unwrap()));
    numbers.take(reply.len() / 8 - 1).collect()
}

/// A client's own two accounts, at different partitions.
fn own(client: i64) -> (i64, i64) {
    (ACCOUNTS + 2 * client, ACCOUNTS + 2 * client + 1)
}

/// What a client knows of the money that it has moved from the first to the second of its accounts, one by one.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    asked: i64,
    acknowledged: i64,
}

fn load(client: &mut Client) {
    for (token, key) in (0..).zip(0..ACCOUNTS + 2 * CLIENTS) {
        submit(client, token, &Op::Insert(key, if key < ACCOUNTS { 100 } else { 0 }));
        while client.outstanding() >= 100 {
            client.wait(&mut |_, reply| assert!(matches!(reply, Reply::Committed(_)), "{reply:?}")).unwrap();
        }
    }
    while client.outstanding() > 0 {
        client.wait(&mut |_, reply| assert!(matches!(reply, Reply::Committed(_)), "{reply:?}")).unwrap();
    }
}

/// Moves money about until the server dies.
fn work(address: SocketAddr, number: i64, known: &mut Known) {
    let mut client = connect(address);
    let (first, second) = own(number);
    for n in 0i64.. {
        let from = (n * 211 + number * 997) % ACCOUNTS;
        let op = match n % 4 {
            0 | 1 => Op::Spread(first, vec![second], 1),
            // On one partition, and on both.
            2 => Op::Spread(from, vec![(from + 2) % ACCOUNTS], n % 7),
            _ => Op::Spread(from, vec![(from + 1) % ACCOUNTS, (from + 1714) % ACCOUNTS], n % 5),
        };
        known.asked += i64::from(n % 4 < 2);
        submit(&mut client, (n % 4) as u64, &op);
        while client.outstanding() >= OUTSTANDING {
            let waited = client.wait(&mut |token, reply| match reply {
                Reply::Committed(_) => known.acknowledged += i64::from(token < 2),
                other => panic!("{other:?}"),
            });
            if waited.is_err() {
                return;
            }
        }
    }
}

/// Takes snapshots one after the other until the server dies; how many.
fn take_snapshots(address: SocketAddr) -> u64 {
    let mut client = connect(address);
    let mut taken = 0;
    while client.snapshot().is_ok() {
        taken += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    taken
}

/// Compares what is there with what was acknowledged; nobody else works meanwhile.
fn check(address: SocketAddr, known: &mut [Known]) {
    let mut client = connect(address);
    for (known, number) in known.iter_mut().zip(0..) {
        let (first, second) = own(number);
        let pair = values(&mut client, vec![first, second]);
        assert_eq!(pair[0], -pair[1], "half of a transaction");
        assert!((known.acknowledged..=known.asked).contains(&pair[1]), "{} is there of {known:?}", pair[1]);
        *known = Known { asked: pair[1], acknowledged: pair[1] };
    }
    let keys: Vec<i64> = (0..ACCOUNTS).collect();
    let total: i64 = keys.chunks(50).flat_map(|keys| values(&mut client, keys.to_vec())).sum();
    assert_eq!(total, ACCOUNTS * 100);
}

#[test]
fn a_killed_server_of_two_partitions_goes_on_where_it_was() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return serve(Path::new(&directory));
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut known = vec![Known::default(); CLIENTS as usize];
    let (mut snapshots, mut recovered, mut acknowledged) = (0, 0, 0);
    let started = Instant::now();
    for round in 0..ROUNDS {
        let server = start(directory.path());
        let address = server.1;
        if round == 0 {
            load(&mut connect(address));
        }
        check(address, &mut known);
        recovered += connect(address).stats().unwrap()["recovered_log_records"].as_u64().unwrap();
        let before: i64 = known.iter().map(|known| known.acknowledged).sum();
        std::thread::scope(|scope| {
            for (known, number) in known.iter_mut().zip(0..) {
                scope.spawn(move || work(address, number, known));
            }
            let taker = (round % 3 != 2).then(|| scope.spawn(move || take_snapshots(address)));
            std::thread::sleep(Duration::from_millis(150 + round * 37 % 200));
            drop(server);
            snapshots += taker.map_or(0, |taker| taker.join().unwrap());
        });
        acknowledged += known.iter().map(|known| known.acknowledged).sum::<i64>() - before;
    }
    let server = start(directory.path());
    check(server.1, &mut known);
    eprintln!(
        "{ROUNDS} kills in {:?}: {snapshots} snapshots, {recovered} replayed, {acknowledged} acknowledged",
        started.elapsed()
    );
    assert!(snapshots > 0 && recovered > 0 && acknowledged > 0);
}
