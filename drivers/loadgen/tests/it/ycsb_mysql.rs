//! Terminals of YCSB that share a thread, on real servers: what they wrote is what they read, one that waits holds nobody up, and what goes wrong is told.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use loadgen::interrupt::Interrupt;
use loadgen::spec::Spec;
use loadgen::system::{BulkWork, Completion, Connection, Outcome, System, SystemError, open};
use loadgen::systems::mysql::session::Use;
use loadgen::systems::mysql::{MysqlSystem, session::Session};
use loadgen::systems::mysql_memcached::cache::Cache;
use loadgen::workload::{Transaction, Workload};
use loadgen::ycsb::{Ycsb, YcsbTransaction};
use serde_json::{Value, json};

use crate::common::Bench;
use crate::servers::{Memcached, Mysqld};

const TERMINALS: u32 = 8;
const RECORDS: i64 = 200;
const LAST_KEY: i64 = RECORDS - 1;

struct Trial {
    bench: Bench,
    spec: Spec,
    ycsb: Ycsb,
}

impl Trial {
    fn new(system: &str, framing: &str, endpoint: &Value) -> Trial {
        let mut bench = Bench::new();
        bench.set("/system", json!(system));
        bench.set("/endpoint", endpoint.clone());
        bench.set("/mysql_transaction", json!(framing));
        bench.set("/ycsb/records", json!(RECORDS));
        let spec = Spec::read(&bench.write_spec(), None).unwrap();
        let Workload::Ycsb(ycsb) = Workload::new(&spec) else { panic!("not YCSB") };
        Trial { bench, spec, ycsb }
    }

    /// The system with its records loaded, and cached where there is a cache.
    fn load(&self) -> Box<dyn System> {
        let system = open(&self.spec, &Workload::Ycsb(self.ycsb.clone())).unwrap();
        system.create_schema(&std::fs::read_to_string(Bench::schema("ycsb.sql")).unwrap()).unwrap();
        let interrupt = Interrupt::default();
        let work = || BulkWork { threads: 2, interrupt: &interrupt };
        assert_eq!(system.load(work()).unwrap(), RECORDS as u64);
        system.prewarm(work()).unwrap();
        system
    }

    /// A session of another client.
    fn session(&self) -> Session {
        let workload = Workload::Ycsb(self.ycsb.clone());
        MysqlSystem::open(&self.spec, workload).unwrap().server.connect(Use::Bulk).unwrap()
    }

    fn loaded_record(&self, key: i64) -> Vec<u8> {
        let mut record = Vec::new();
        self.ycsb.push_initial_record(key, &mut record);
        record
    }

    /// What MySQL has of a record.
    fn row(&self, session: &mut Session, key: i64) -> Vec<u8> {
        let fields: Vec<String> = (0..self.ycsb.layout.fields).map(|field| format!("field{field}")).collect();
        let query = format!("SELECT CONCAT({}) FROM usertable WHERE ycsb_key = {key}", fields.join(", "));
        session.query_first::<Vec<u8>>(&query).unwrap().unwrap()
    }
}

/// The ends of so many transactions.
fn ends(connection: &mut dyn Connection, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    while completions.len() < count {
        let mut more = Vec::new();
        connection.wait(&mut more).unwrap();
        completions.append(&mut more);
    }
    assert_eq!(completions.len(), count);
    completions
}

fn end(connection: &mut dyn Connection) -> Completion {
    ends(connection, 1).remove(0)
}

fn read(connection: &mut dyn Connection, terminal: u32, key: i64) {
    connection.submit(terminal, &Transaction::Ycsb(YcsbTransaction::Read { key, verify: true })).unwrap();
}

fn update(connection: &mut dyn Connection, terminal: u32, key: i64, field: u16, value: &[u8]) {
    connection.submit(terminal, &Transaction::Ycsb(YcsbTransaction::Update { key, field, value })).unwrap();
}

/// Runs a mixture of all terminals' streams at once; MySQL's rows must be those of a model afterwards, and the cache's documents those of the rows.
fn terminals_agree_with_a_model(trial: &Trial, cache: Option<&str>) {
    let system = trial.load();
    let mut connection = system.connect(0..TERMINALS).unwrap();
    let mut model: HashMap<i64, Vec<u8>> = (0..RECORDS).map(|key| (key, trial.loaded_record(key))).collect();
    let mut streams: Vec<_> = (0..TERMINALS).map(|terminal| trial.ycsb.terminal(terminal)).collect();
    for round in 0..60 {
        let mut written = HashMap::new();
        for (terminal, stream) in (0..).zip(&mut streams) {
            let transaction = match (stream.next(), round % 2) {
                (Transaction::Ycsb(YcsbTransaction::Read { key, .. }), 0) => {
                    YcsbTransaction::Read { key, verify: true }
                }
                (Transaction::Ycsb(YcsbTransaction::Read { key, .. } | YcsbTransaction::Update { key, .. }), _) => {
                    // Of two updates of a field nobody knows which is the later one.
                    let (key, field) = ((key + i64::from(terminal) * 25) % RECORDS, (round % 10) as u16);
                    let value = trial.loaded_record(key)[usize::from(field) * 100..][..100].to_vec();
                    let value: Vec<u8> = turned(trial, key, field, &value, round + terminal);
                    let value = written.entry((key, field)).or_insert(value);
                    model.get_mut(&key).unwrap()[usize::from(field) * 100..][..100].copy_from_slice(value);
                    update(connection.as_mut(), terminal, key, field, value);
                    continue;
                }
                (other, _) => panic!("{other:?}"),
            };
            connection.submit(terminal, &Transaction::Ycsb(transaction)).unwrap();
        }
        for completion in ends(connection.as_mut(), TERMINALS as usize) {
            assert_eq!(completion.outcome, Outcome::Committed);
            assert_ne!(completion.verified, Some(false), "{completion:?}");
        }
    }
    let mut session = trial.session();
    let mut cache = cache.map(|address| Cache::connect(address).unwrap());
    for (key, record) in &model {
        assert_eq!(trial.row(&mut session, *key), *record, "record {key}");
        if let Some(document) = cache.as_mut().and_then(|cache| cache.get(&format!("usertable:{key}")).unwrap()) {
            let document: Value = serde_json::from_slice(&document).unwrap();
            let fields = (0..10).map(|field| document[format!("field{field}")].as_str().unwrap()).collect::<String>();
            assert_eq!(fields.as_bytes(), record, "document of {key}");
        }
    }
}

/// Another intact value of a field: its characters turned by some places.
fn turned(trial: &Trial, key: i64, field: u16, value: &[u8], places: u32) -> Vec<u8> {
    let mut text = value[..92].to_vec();
    text.rotate_left(places as usize % 92);
    let mut name = key.to_le_bytes().to_vec();
    name.extend_from_slice(&field.to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&name), &text);
    text.extend_from_slice(format!("{sum:08x}").as_bytes());
    assert!(trial.ycsb.layout.verify_field(key, field, &text));
    text
}

#[test]
fn many_terminals_of_a_thread_write_and_read_what_a_model_says() {
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    for framing in ["autocommit", "explicit"] {
        terminals_agree_with_a_model(&Trial::new("mysql", framing, &endpoint), None);
        terminals_agree_with_a_model(&Trial::new("mysql-memcached", framing, &endpoint), Some(&cache.address()));
    }
}

#[test]
fn a_record_that_was_not_cached_is_filled_in_and_then_found() {
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    let trial = Trial::new("mysql-memcached", "autocommit", &endpoint);
    let system = trial.load();
    let mut direct = Cache::connect(&cache.address()).unwrap();
    direct.delete(&format!("usertable:{LAST_KEY}")).unwrap();
    let mut connection = system.connect(0..TERMINALS).unwrap();
    let seen = |system: &dyn System| {
        let counters = system.counters().unwrap().remove("loadgen").unwrap();
        ["cache_hits", "cache_misses", "cache_fills"].map(|name| counters[name].as_u64().unwrap())
    };
    read(connection.as_mut(), 3, LAST_KEY);
    assert_eq!(end(connection.as_mut()).verified, Some(true));
    assert_eq!(seen(system.as_ref()), [0, 1, 1]);
    read(connection.as_mut(), 5, LAST_KEY);
    assert_eq!(end(connection.as_mut()).verified, Some(true));
    assert_eq!(seen(system.as_ref()), [1, 1, 1]);
    // A document that is none is a damaged read, checked or not.
    direct.set(&format!("usertable:{LAST_KEY}"), b"{}").unwrap();
    connection.submit(0, &Transaction::Ycsb(YcsbTransaction::Read { key: LAST_KEY, verify: false })).unwrap();
    assert_eq!(end(connection.as_mut()).verified, Some(false));
}

#[test]
fn a_terminal_that_waits_for_a_row_lock_holds_no_other_up_and_repeats() {
    let server = Mysqld::start();
    for framing in ["autocommit", "explicit"] {
        let trial = Trial::new("mysql", framing, &server.endpoint());
        let system = trial.load();
        let mut rival = trial.session();
        // Terminals that connect from now on give up a lock after a second.
        rival.execute("SET GLOBAL innodb_lock_wait_timeout = 1").unwrap();
        let mut connection = system.connect(0..TERMINALS).unwrap();
        rival.execute("BEGIN; UPDATE usertable SET field0 = field0 WHERE ycsb_key = 7").unwrap();
        let value = trial.loaded_record(7)[..100].to_vec();
        let begun = Instant::now();
        update(connection.as_mut(), 0, 7, 0, &value);
        // InnoDB looks for waits that are over once a second.
        while begun.elapsed() < Duration::from_millis(2500) {
            read(connection.as_mut(), 1, 8);
            let other = end(connection.as_mut());
            assert_eq!((other.terminal, other.outcome), (1, Outcome::Committed));
        }
        rival.execute("ROLLBACK").unwrap();
        let waited = end(connection.as_mut());
        assert_eq!((waited.terminal, waited.outcome), (0, Outcome::Committed));
        let repeated = !waited.retries.is_empty() && waited.retries.iter().all(|&kind| kind == "1205");
        assert!(repeated, "{framing}: {:?} after {:?}", waited.retries, begun.elapsed());
    }
}

#[test]
fn missing_and_damaged_records_are_told() {
    let server = Mysqld::start();
    let trial = Trial::new("mysql", "explicit", &server.endpoint());
    let system = trial.load();
    let mut connection = system.connect(0..TERMINALS).unwrap();
    let missing = Outcome::Aborted("no such key".to_owned());
    read(connection.as_mut(), 0, RECORDS);
    assert_eq!(end(connection.as_mut()).outcome, missing);
    update(connection.as_mut(), 0, RECORDS, 1, &[b'x'; 100]);
    assert_eq!(end(connection.as_mut()).outcome, missing);
    let mut session = trial.session();
    session.execute("UPDATE usertable SET field3 = 'short' WHERE ycsb_key = 5").unwrap();
    session.execute("UPDATE usertable SET field4 = REVERSE(field4) WHERE ycsb_key = 6").unwrap();
    for (key, intact) in [(4, true), (5, false), (6, false)] {
        read(connection.as_mut(), 2, key);
        assert_eq!(end(connection.as_mut()).verified, Some(intact), "record {key}");
    }
}

#[test]
fn an_error_that_repeating_cannot_mend_and_a_dead_server_end_the_trial() {
    let server = Mysqld::start();
    let trial = Trial::new("mysql", "autocommit", &server.endpoint());
    let system = trial.load();
    let mut connection = system.connect(0..TERMINALS).unwrap();
    let mut completions = Vec::new();
    update(connection.as_mut(), 1, 3, 2, &[b'x'; 300]);
    let error = connection.wait(&mut completions).unwrap_err();
    assert!(matches!(&error, SystemError::Server { code, .. } if code == "1406"), "{error}");

    let mut connection = system.connect(0..TERMINALS).unwrap();
    let mut rival = trial.session();
    rival.execute("BEGIN; UPDATE usertable SET field0 = field0 WHERE ycsb_key = 7").unwrap();
    update(connection.as_mut(), 4, 7, 0, &[b'x'; 100]);
    drop(server);
    let error = connection.wait(&mut completions).unwrap_err();
    assert_eq!((error.kind().as_str(), completions.len()), ("mysqld lost", 0), "{error}");
}

#[test]
fn a_mix_without_updates_prepares_none() {
    let server = Mysqld::start();
    let mut trial = Trial::new("mysql", "autocommit", &server.endpoint());
    drop(trial.load());
    trial.bench.set("/ycsb/read_share", json!(1.0));
    let spec = Spec::read(&trial.bench.write_spec(), None).unwrap();
    let system = open(&spec, &Workload::new(&spec)).unwrap();
    let mut connection = system.connect(0..TERMINALS).unwrap();
    let prepared =
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'PREPARED_STMT_COUNT'";
    let count: Option<String> = trial.session().query_first(prepared).unwrap();
    assert_eq!(count.unwrap(), TERMINALS.to_string());
    let transaction = YcsbTransaction::Update { key: 1, field: 0, value: &[b'x'; 100] };
    assert!(connection.submit(0, &Transaction::Ycsb(transaction)).is_err());
}
