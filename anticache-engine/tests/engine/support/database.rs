//! A partition driven in process, for tests.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::{Config, Log};
use anticache_engine::io::files::{Files, KernelFiles, create_directory};
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::procedure::{FirstTuple, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};

use super::replies::{Answer, Bytes, decode};

/// Two tables; rows of 508 bytes, so that a block of 4096 holds seven.
pub const SCHEMA: &str = "
    CREATE TABLE cold (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, filler CHAR(492) NOT NULL) COMMENT = 'evictable; partition by id';
    CREATE TABLE other (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, filler CHAR(492) NOT NULL) COMMENT = 'evictable; partition by id';";
pub const ROW_BYTES: usize = 508;
pub const COLD: u16 = 0;
pub const OTHER: u16 = 1;

pub fn config(directory: &Path, budget_bytes: u64) -> Config {
    Config {
        lru_sample_rate: 0.2,
        eviction_block_bytes: 4096,
        log: Log::Off,
        log_segment_bytes: 1 << 20,
        snapshot_interval_s: 0,
        snapshot_log_bytes: 0,
        seed: 7,
        ..Config::new(directory.join("schema.sql"), directory.join("data"), budget_bytes)
    }
}

pub struct Database {
    pub partition: Partition,
    pub directory: tempfile::TempDir,
    sink: Bytes,
}

impl Database {
    pub fn create(change: impl FnOnce(&mut Config)) -> Self {
        Self::of(SCHEMA, procedures(), change)
    }

    /// With another schema and other procedures.
    pub fn of(schema: &str, procedures: ProcedureSet, change: impl FnOnce(&mut Config)) -> Self {
        Self::create_on(Arc::new(KernelFiles::new()), schema, procedures, change)
    }

    /// On any files.
    pub fn create_on(
        files: Arc<dyn Files>,
        schema: &str,
        procedures: ProcedureSet,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut config = config(directory.path(), 1 << 20);
        change(&mut config);
        config.check().unwrap();
        create_directory(&*files, &config.data_dir).unwrap();
        let catalog = Catalog::from_sql(schema).unwrap();
        let partition = Partition::create_on(&files, 0, &config, &catalog, procedures, &config.data_dir).unwrap();
        Self { partition, directory, sink: Bytes::default() }
    }

    /// Runs requests as one batch and waits for all replies; they come in the order in which they were released.
    pub fn run(&mut self, requests: &[(u64, u16, Vec<u8>)]) -> Vec<Answer> {
        let mut answers = self.execute(requests);
        answers.append(&mut self.answers(requests.len() - answers.len()));
        answers
    }

    /// Runs requests as one batch; the replies that wait for nothing.
    pub fn execute(&mut self, requests: &[(u64, u16, Vec<u8>)]) -> Vec<Answer> {
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        for (token, procedure, params) in requests {
            write_request(&mut wire, *token, *procedure, params);
        }
        parse_requests(&wire, usize::MAX, &mut heads).unwrap();
        self.partition.execute_batch(0, 0, &wire, &heads, &mut self.sink);
        decode(&mut self.sink.0)
    }

    /// Waits for the next `count` replies.
    pub fn answers(&mut self, count: usize) -> Vec<Answer> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut answers = Vec::new();
        loop {
            answers.append(&mut decode(&mut self.sink.0));
            self.partition.poll(&mut self.sink);
            if answers.len() == count {
                return answers;
            }
            assert!(
                Instant::now() < deadline,
                "{} of {count} replies; {:?} {:?}",
                answers.len(),
                self.partition.gauges(),
                self.partition.counters()
            );
        }
    }

    pub fn run_one(&mut self, procedure: u16, params: Vec<u8>) -> Answer {
        self.run(&[(0, procedure, params)]).remove(0)
    }

    /// Polls although nothing happens.
    pub fn poll(&mut self, times: usize) {
        (0..times).for_each(|_| self.partition.poll(&mut self.sink));
    }

    /// Lets everything under way end.
    pub fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.partition.is_idle() {
            self.partition.poll(&mut self.sink);
            assert!(Instant::now() < deadline, "the partition does not become idle");
        }
        assert!(self.sink.0.is_empty());
    }

    pub fn check(&self) {
        for table in self.partition.tables() {
            table.check().unwrap();
        }
        let meter = self.partition.meter();
        assert!(!meter.is_over(), "{} of {} bytes in use", meter.used_bytes(), meter.budget_bytes());
    }
}

pub fn row(id: i64, value: i64) -> Vec<u8> {
    let mut row = id.to_le_bytes().to_vec();
    row.extend_from_slice(&value.to_le_bytes());
    row.resize(ROW_BYTES, (id % 251) as u8);
    row
}

pub const INSERT: u16 = 0;
pub const READ: u16 = 1;
pub const ADD: u16 = 2;
pub const DELETE: u16 = 3;
pub const TRANSFER: u16 = 4;
pub const SUM: u16 = 5;
pub const SHUFFLE: u16 = 6;

/// Parameters: a table, then numbers.
pub fn params(table: u16, numbers: &[i64]) -> Vec<u8> {
    let mut params = table.to_le_bytes().to_vec();
    params.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    params
}

pub fn unpack(params: &[u8]) -> (u16, Vec<i64>) {
    let table = u16::from_le_bytes(params[..2].try_into().unwrap());
    (table, params[2..].chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().unwrap())).collect())
}

type Body = fn(&mut TxnContext<'_>, u16, &[i64]) -> Result<(), Abort>;

struct TestProcedure {
    name: &'static str,
    body: Body,
}

impl Procedure for TestProcedure {
    fn name(&self) -> &'static str {
        self.name
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(u16::from_le_bytes([params[0], params[1]]), params.get(2..10)?))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let (table, numbers) = unpack(params);
        (self.body)(txn, table, &numbers)
    }
}

fn value_of(txn: &TxnContext<'_>, tuple: anticache_engine::txn::TupleRef) -> Result<i64, Abort> {
    let row = txn.row(tuple)?;
    assert!(
        row[16..].iter().all(|&byte| i64::from(byte) == i64::from_le_bytes(row[..8].try_into().unwrap()) % 251),
        "a damaged row"
    );
    Ok(i64::from_le_bytes(row[8..16].try_into().unwrap()))
}

fn find(txn: &mut TxnContext<'_>, table: u16, id: i64) -> Result<anticache_engine::txn::TupleRef, Abort> {
    txn.lookup(table, &id.to_le_bytes()).ok_or(Abort::user("missing"))
}

/// insert(id, value), read(id), add(id, amount), delete(id), transfer(from, to, amount; aborts *after* its writes when the amount is negative),
/// sum(id...), shuffle(a, b, new, sign; updates, inserts and deletes in turn, aborts at the end when the sign is negative): each in one
/// transaction.
pub fn procedures() -> ProcedureSet {
    let all: [(&'static str, Body); 7] = [
        ("insert", |txn, table, n| txn.insert(table, &row(n[0], n[1])).map(|_| ())),
        ("read", |txn, table, n| {
            let tuple = find(txn, table, n[0])?;
            let value = value_of(txn, tuple)?;
            txn.reply(&value.to_le_bytes());
            Ok(())
        }),
        ("add", |txn, table, n| {
            let tuple = find(txn, table, n[0])?;
            let value = value_of(txn, tuple)? + n[1];
            txn.update(tuple, 8, &value.to_le_bytes())
        }),
        ("delete", |txn, table, n| {
            let tuple = find(txn, table, n[0])?;
            txn.delete(tuple)
        }),
        ("transfer", |txn, table, n| {
            let (from, to) = (find(txn, table, n[0])?, find(txn, table, n[1])?);
            let left = value_of(txn, from)? - n[2];
            txn.update(from, 8, &left.to_le_bytes())?;
            let arrived = value_of(txn, to)? + n[2];
            txn.update(to, 8, &arrived.to_le_bytes())?;
            if n[2] < 0 { Err(Abort::user("negative amount")) } else { Ok(()) }
        }),
        ("sum", |txn, table, n| {
            // All look-ups come before the first read, so that one pre-pass finds every evicted tuple.
            let tuples: Vec<_> = n.iter().filter_map(|id| txn.lookup(table, &id.to_le_bytes())).collect();
            let mut sum = 0;
            for tuple in tuples {
                sum += value_of(txn, tuple)?;
            }
            txn.reply(&sum.to_le_bytes());
            Ok(())
        }),
        ("shuffle", |txn, table, n| {
            let (first, second) = (find(txn, table, n[0])?, find(txn, table, n[1])?);
            let value = value_of(txn, first)? + 1;
            txn.update(first, 8, &value.to_le_bytes())?;
            txn.insert(table, &row(n[2], value))?;
            txn.delete(first)?;
            if n[0] != n[1] {
                txn.delete(second)?;
            }
            txn.insert(table, &row(n[0], value))?;
            if n[3] < 0 { Err(Abort::user("negative")) } else { Ok(()) }
        }),
    ];
    ProcedureSet::new(
        all.into_iter().map(|(name, body)| Box::new(TestProcedure { name, body }) as Box<dyn Procedure>).collect(),
    )
}
