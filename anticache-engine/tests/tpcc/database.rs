//! A partition with TPC-C's tables, driven in process.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::catalog::row::{Value, values};
use anticache_engine::config::{AntiCaching, Config, Log, Merge};
use anticache_engine::net::frame::{RequestHead, Status, parse_requests, write_request};
use anticache_engine::partition::{Partition, ReplySink};
use anticache_engine::procedure::ProcedureSet;
use anticache_engine::procedure::tpcc::consistency::{Checker, Report};
use anticache_engine::procedure::tpcc::generate::{Input, Population, Scale, TpccTable};

use crate::reference::{Row, Val};

pub const SEED: u64 = 20130826;

#[derive(Default)]
struct Bytes(Vec<u8>);

impl ReplySink for Bytes {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

pub fn catalog() -> Catalog {
    Catalog::from_sql(include_str!("../../../workloads/schemas/tpcc.sql")).unwrap()
}

pub fn population(scale: Scale) -> Population {
    Population::new(&catalog(), scale, SEED).unwrap()
}

/// A row by column names.
pub fn by_name(table: &anticache_engine::catalog::TableDef, serialized: &[u8]) -> Row {
    let values = values(table, serialized).unwrap();
    let owned = values.iter().map(|value| match *value {
        Value::Null => Val::Null,
        Value::Number(number) => Val::Number(number),
        Value::Text(text) => Val::Text(text.to_vec()),
    });
    Row(table.columns.iter().map(|column| column.name.clone()).zip(owned).collect())
}

/// How a database is run.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    pub anticaching: AntiCaching,
    pub merge: Merge,
    pub log: Log,
    pub budget_bytes: u64,
}

impl Variant {
    pub const OFF: Self =
        Self { anticaching: AntiCaching::Off, merge: Merge::Tuple, log: Log::Off, budget_bytes: 256 << 20 };

    pub const fn evicting(anticaching: AntiCaching, merge: Merge, log: Log, budget_bytes: u64) -> Self {
        Self { anticaching, merge, log, budget_bytes }
    }
}

pub struct Answer {
    pub token: u64,
    pub status: Status,
    pub payload: Vec<u8>,
}

pub struct Database {
    pub partition: Partition,
    procedures: ProcedureSet,
    catalog: Catalog,
    scale: Scale,
    sink: Bytes,
    _directory: tempfile::TempDir,
}

impl Database {
    /// A loaded database.
    pub fn load(variant: Variant, scale: Scale) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = config(variant, directory.path());
        config.check().unwrap();
        std::fs::create_dir_all(&config.data_dir).unwrap();
        let catalog = catalog();
        let procedures = ProcedureSet::for_catalog(&catalog).unwrap();
        let partition = Partition::create(0, &config, &catalog, procedures.clone(), &config.data_dir).unwrap();
        let mut database =
            Self { partition, procedures, catalog, scale, sink: Bytes::default(), _directory: directory };
        let population = population(scale);
        for table in TpccTable::ALL {
            let warehouses = if table == TpccTable::Item { 1..=1 } else { 1..=scale.warehouses };
            for call in warehouses.flat_map(|w_id| population.load_calls(table, w_id, 50).collect::<Vec<_>>()) {
                let answer = database.call("tpcc_load", &call);
                assert_eq!(answer.status, Status::Committed, "{}", String::from_utf8_lossy(&answer.payload));
            }
        }
        database
    }

    pub fn call(&mut self, procedure: &str, params: &[u8]) -> Answer {
        let number = self.procedures.number(procedure).unwrap();
        self.run(&[(0, number, params.to_vec())]).remove(0)
    }

    /// Runs one transaction: its reply, or why it was aborted.
    pub fn execute(&mut self, input: &Input) -> Result<Vec<u8>, String> {
        let mut params = Vec::new();
        input.encode(&mut params);
        let answer = self.call(input.kind().procedure(), &params);
        match answer.status {
            Status::Committed => Ok(answer.payload),
            Status::Aborted => Err(String::from_utf8(answer.payload).unwrap()),
            other => panic!(
                "{other:?}: {}; {input:?}; {:?} {:?}",
                String::from_utf8_lossy(&answer.payload),
                self.partition.gauges(),
                self.partition.tables().iter().map(|t| (t.def().name.clone(), t.tuples().live(), t.tuples().allocated_bytes(), t.values().map(|v| (v.allocated_bytes(), v.used_bytes())), t.index_bytes(), t.evicted().allocated_bytes(), t.free_bytes())).collect::<Vec<_>>()
            ),
        }
    }

    /// Runs transactions as one batch; answers in the order in which they came.
    pub fn execute_all(&mut self, inputs: &[Input]) -> Vec<Answer> {
        let requests: Vec<_> = inputs
            .iter()
            .zip(0..)
            .map(|(input, token)| {
                let mut params = Vec::new();
                input.encode(&mut params);
                (token, self.procedures.number(input.kind().procedure()).unwrap(), params)
            })
            .collect();
        self.run(&requests)
    }

    fn run(&mut self, requests: &[(u64, u16, Vec<u8>)]) -> Vec<Answer> {
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        for (token, procedure, params) in requests {
            write_request(&mut wire, *token, *procedure, params);
        }
        parse_requests(&wire, usize::MAX, &mut heads).unwrap();
        self.partition.execute_batch(0, 0, &wire, &heads, &mut self.sink);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut answers = Vec::new();
        loop {
            decode(&mut self.sink.0, &mut answers);
            self.partition.poll(&mut self.sink);
            if answers.len() == requests.len() {
                return answers;
            }
            assert!(Instant::now() < deadline, "{} of {} replies", answers.len(), requests.len());
        }
    }

    pub fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.partition.is_idle() {
            self.partition.poll(&mut self.sink);
            assert!(Instant::now() < deadline, "the partition does not become idle");
        }
    }

    fn scan(&self, table: TpccTable, row: impl FnMut(&[u8])) {
        let id = self.catalog.table_id(table.name()).unwrap();
        self.partition.scan_rows(id, row).unwrap();
    }

    /// Every row of every table, in the order of their serialized forms; evicted or not makes no difference.
    pub fn rows(&self) -> BTreeMap<&'static str, Vec<Row>> {
        let rows = |table: TpccTable| {
            let def = self.catalog.table(self.catalog.table_id(table.name()).unwrap());
            let mut rows = Vec::new();
            self.scan(table, |row| rows.push(by_name(def, row)));
            rows.sort();
            (table.name(), rows)
        };
        TpccTable::ALL.into_iter().map(rows).collect()
    }

    /// The structures of the engine, and the specification's conditions.
    pub fn check(&self) -> Report {
        for table in self.partition.tables() {
            table.check().unwrap();
        }
        let mut checker = Checker::new(&self.catalog).unwrap();
        for table in TpccTable::ALL {
            let id = self.catalog.table_id(table.name()).unwrap();
            self.scan(table, |row| checker.add(id, row));
        }
        checker.finish(&self.scale)
    }
}

fn config(variant: Variant, directory: &Path) -> Config {
    Config {
        anticaching: variant.anticaching,
        lru_sample_rate: 0.2,
        eviction_block_bytes: 4096,
        merge: variant.merge,
        huge_pages: false,
        log: variant.log,
        log_segment_bytes: 1 << 20,
        seed: 7,
        ..Config::new(directory.join("schema.sql"), directory.join("data"), variant.budget_bytes)
    }
}

fn decode(wire: &mut Vec<u8>, answers: &mut Vec<Answer>) {
    let mut at = 0;
    while at < wire.len() {
        let length = u32::from_le_bytes(wire[at..at + 4].try_into().unwrap()) as usize;
        answers.push(Answer {
            token: u64::from_le_bytes(wire[at + 4..at + 12].try_into().unwrap()),
            status: Status::from_wire(wire[at + 12]).unwrap(),
            payload: wire[at + 13..at + 4 + length].to_vec(),
        });
        at += 4 + length;
    }
    wire.clear();
}
