//! Partitions with TPC-C's tables, driven in one thread on any files, and what they have committed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::{AntiCaching, Compaction, Config, EvictFrom, Log, Merge};
use anticache_engine::durability::recovery::{Opened, Site};
use anticache_engine::durability::snapshot::keeper::{Keeper, Outcome};
use anticache_engine::error::{BlockError, StartError};
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::net::frame::{RequestHead, Status, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::partition::multi::{Coordinator, run_queued};
use anticache_engine::procedure::tpcc::consistency::{Checker, Report};
use anticache_engine::procedure::tpcc::generate::{Input, Population, Scale, TpccTable};
use anticache_engine::procedure::tpcc::{self, partition_of};
use anticache_engine::procedure::{FirstTuple, Participants, Procedure, ProcedureSet};
use anticache_engine::stats::Counters;
use anticache_engine::txn::{Abort, TxnContext};

use crate::support::replies::{Answer, Bytes, decode};

use super::reference::{Row, by_name};

pub const SEED: u64 = 20130826;
pub const SCHEMA: &str = include_str!("../../../../workloads/schemas/tpcc.sql");
const TOKEN_BYTES: usize = 8;

pub fn catalog() -> Catalog {
    Catalog::from_sql(SCHEMA).unwrap()
}

pub fn population(scale: Scale) -> Population {
    Population::new(&catalog(), scale, SEED).unwrap()
}

/// How a database is run.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    pub anticaching: AntiCaching,
    pub merge: Merge,
    pub log: Log,
    /// Of each partition.
    pub budget_bytes: u64,
    pub compaction: Compaction,
    pub partitions: u32,
    /// Whether STOCK and CUSTOMER are evictable too.
    pub evicts_all: bool,
    pub evict_from: EvictFrom,
}

impl Variant {
    pub const OFF: Self = Self::evicting(AntiCaching::Off, Merge::Tuple, Log::Off, 256 << 20);

    pub const fn evicting(anticaching: AntiCaching, merge: Merge, log: Log, budget_bytes: u64) -> Self {
        let (compaction, partitions, evicts_all) = (Compaction::Lazy, 1, false);
        let evict_from = EvictFrom::Coldest;
        Self { anticaching, merge, log, budget_bytes, compaction, partitions, evicts_all, evict_from }
    }

    pub const fn at(self, partitions: u32) -> Self {
        Self { partitions, ..self }
    }

    fn schema(&self) -> String {
        if !self.evicts_all {
            return SCHEMA.to_owned();
        }
        ["'partition by c_w_id", "'partition by s_w_id"]
            .into_iter()
            .fold(SCHEMA.to_owned(), |sql, table| sql.replace(table, &table.replacen('\'', "'evictable; ", 1)))
    }

    pub fn config(&self, data_dir: &Path) -> Config {
        let budget_bytes = self.budget_bytes * u64::from(self.partitions);
        Config {
            anticaching: self.anticaching,
            lru_sample_rate: 0.2,
            eviction_block_bytes: 4096,
            evict_from: self.evict_from,
            merge: self.merge,
            compaction: self.compaction,
            huge_pages: false,
            log: self.log,
            log_segment_bytes: 1 << 20,
            partitions: self.partitions,
            seed: 7,
            ..Config::new(data_dir.join("schema.sql"), data_dir.to_owned(), budget_bytes)
        }
    }
}

/// A transaction that has ended well, with the partitions that it wrote at; in the order of commit.
#[derive(Debug, Clone)]
pub struct Entry {
    pub token: u64,
    pub wrote_at: Vec<u32>,
}

pub type Journal = Arc<Mutex<Vec<Entry>>>;

/// One of TPC-C's procedures with a token behind its parameters, which goes into the journal.
struct Journaled {
    inner: Box<dyn Procedure>,
    partitions: u32,
    journal: Journal,
}

fn without_token(params: &[u8]) -> &[u8] {
    &params[..params.len().saturating_sub(TOKEN_BYTES)]
}

impl Procedure for Journaled {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        self.inner.first_tuple(without_token(params))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        self.inner.partitions(without_token(params), partitions)
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        self.inner.execute(txn, without_token(params))?;
        let token = u64::from_le_bytes(*params.last_chunk().unwrap());
        let reads = [tpcc::order_status::NAME, tpcc::stock_level::NAME].contains(&self.name());
        let wrote_at = if reads { Vec::new() } else { self.partitions(params, self.partitions).iter().collect() };
        // The executor commits what ends well: this is the order of commit.
        self.journal.lock().unwrap().push(Entry { token, wrote_at });
        Ok(())
    }
}

pub struct Database {
    pub partitions: Vec<Partition>,
    pub keeper: Keeper,
    /// What became of the snapshots.
    pub snapshots: Vec<Outcome>,
    site: Arc<Coordinator>,
    procedures: ProcedureSet,
    catalog: Catalog,
    scale: Scale,
    sink: Bytes,
    answers: Vec<Answer>,
    directory: Option<tempfile::TempDir>,
}

impl Database {
    /// A loaded database.
    pub fn load(variant: Variant, scale: Scale) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let data_dir = directory.path().join("data");
        std::fs::create_dir_all(&data_dir).unwrap();
        let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
        let mut database = Self::open(&files, &variant, &data_dir, scale, &Journal::default()).unwrap();
        database.directory = Some(directory);
        database.fill();
        database
    }

    /// What is in a directory, or an empty database. The journal is as it was: what is replayed was committed before.
    pub fn open(
        files: &Arc<dyn Files>,
        variant: &Variant,
        data_dir: &Path,
        scale: Scale,
        journal: &Journal,
    ) -> Result<Self, StartError> {
        let (config, schema) = (variant.config(data_dir), variant.schema());
        config.check().unwrap();
        let catalog = Catalog::from_sql(&schema).unwrap();
        let journaled = |inner| -> Box<dyn Procedure> {
            Box::new(Journaled { inner, partitions: variant.partitions, journal: Arc::clone(journal) })
        };
        let procedures = ProcedureSet::new(tpcc::procedures(&catalog).unwrap().into_iter().map(journaled).collect());
        let site = Site { files, config: &config, catalog: &catalog, schema: &schema, procedures: &procedures };
        let before = journal.lock().unwrap().clone();
        let opened = site.open();
        *journal.lock().unwrap() = before;
        let Opened { keeper, coordinator: site, partitions } = opened?;
        let (snapshots, sink, answers, directory) = (Vec::new(), Bytes::default(), Vec::new(), None);
        Ok(Self { partitions, keeper, snapshots, site, procedures, catalog, scale, sink, answers, directory })
    }

    /// Loads every warehouse where it belongs, and ITEM everywhere.
    pub fn fill(&mut self) {
        let (population, partitions) = (population(self.scale), self.partitions.len() as u32);
        for table in TpccTable::ALL {
            let places: Vec<(i16, u32)> = match table {
                TpccTable::Item => (0..partitions).map(|partition| (1, partition)).collect(),
                _ => (1..=self.scale.warehouses).map(|w_id| (w_id, partition_of(w_id, partitions))).collect(),
            };
            for (w_id, partition) in places {
                for call in population.load_calls(table, w_id, 50) {
                    let answer = self.call_at(partition, "tpcc_load", &call);
                    assert_eq!(answer.status, Status::Committed, "{}", answer.text());
                }
            }
        }
    }

    /// Sends a request; its reply comes when it comes.
    pub fn send(&mut self, partition: u32, token: u64, procedure: &str, params: &[u8]) {
        let number = self.procedures.number(procedure).unwrap();
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        write_request(&mut wire, token, number, &[params, &token.to_le_bytes()].concat());
        parse_requests(&wire, usize::MAX, &mut heads).unwrap();
        self.partitions[partition as usize].execute_batch(0, 0, &wire, &heads, &mut self.sink);
    }

    /// Sends it to its home.
    pub fn submit(&mut self, token: u64, input: &Input) {
        let mut params = Vec::new();
        input.encode(&mut params);
        let home = partition_of(input.home(), self.partitions.len() as u32);
        self.send(home, token, input.kind().procedure(), &params);
    }

    pub fn run_queued(&mut self) {
        run_queued(&self.site, &mut self.partitions.iter_mut().collect::<Vec<_>>());
    }

    pub fn poll(&mut self, partition: usize) {
        self.partitions[partition].poll(&mut self.sink);
        let ended = self.partitions[partition].snapshot_ended();
        let outcome = ended.and_then(|ended| self.keeper.part_ended(partition as u32, ended));
        if let Some(outcome) = outcome {
            let (generation, verdict) = (outcome.generation, outcome.verdict);
            self.partitions.iter_mut().for_each(|partition| partition.end_snapshot(generation, verdict));
            self.snapshots.push(outcome);
        }
    }

    fn poll_all(&mut self) {
        self.run_queued();
        (0..self.partitions.len()).for_each(|partition| self.poll(partition));
    }

    /// Begins a snapshot, unless one is under way or the disk refuses.
    pub fn begin_snapshot(&mut self) {
        if self.keeper.is_busy() {
            return;
        }
        let Ok(begun) = self.keeper.begin() else { return };
        self.site.barrier(move |partition| {
            partition.begin_snapshot(begun.generation, Arc::clone(&begun.files[partition.id() as usize]));
        });
    }

    /// The replies since the last call.
    pub fn answers(&mut self) -> Vec<Answer> {
        self.answers.append(&mut decode(&mut self.sink.0));
        std::mem::take(&mut self.answers)
    }

    fn await_answers(&mut self, count: usize) -> Vec<Answer> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.answers.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} replies", self.answers.len());
            self.poll_all();
            self.answers.append(&mut decode(&mut self.sink.0));
        }
        self.answers()
    }

    pub fn call_at(&mut self, partition: u32, procedure: &str, params: &[u8]) -> Answer {
        self.send(partition, 0, procedure, params);
        self.await_answers(1).remove(0)
    }

    /// Runs one transaction: its reply, or why it was aborted.
    pub fn execute(&mut self, input: &Input) -> Result<Vec<u8>, String> {
        self.submit(0, input);
        let answer = self.await_answers(1).remove(0);
        match answer.status {
            Status::Committed => Ok(answer.payload),
            Status::Aborted => Err(answer.text()),
            other => {
                let gauges: Vec<_> = self.partitions.iter().map(Partition::gauges).collect();
                panic!("{other:?}: {}; {input:?}; {gauges:?}", answer.text())
            }
        }
    }

    /// Runs transactions together; answers in the order in which they came, with the inputs' positions as tokens.
    pub fn execute_all(&mut self, inputs: &[Input]) -> Vec<Answer> {
        inputs.iter().zip(0..).for_each(|(input, token)| self.submit(token, input));
        self.await_answers(inputs.len())
    }

    pub fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.partitions.iter().all(Partition::is_idle) {
            self.poll_all();
            assert!(Instant::now() < deadline, "the partitions do not become idle");
        }
    }

    /// Each row of a table; of ITEM, those of the first partition.
    fn scan(&self, table: TpccTable, mut row: impl FnMut(&[u8])) -> Result<(), BlockError> {
        let id = self.catalog.table_id(table.name()).unwrap();
        let partitions = if table == TpccTable::Item { &self.partitions[..1] } else { &self.partitions[..] };
        partitions.iter().try_for_each(|partition| partition.scan_rows(id, &mut row).map(|_| ()))
    }

    /// Every row of every table, in the order of their serialized forms; evicted or not makes no difference. An error when the disk has no power any
    /// more.
    pub fn try_rows(&self) -> Result<BTreeMap<&'static str, Vec<Row>>, BlockError> {
        let rows = |table: TpccTable| {
            let def = self.catalog.table(self.catalog.table_id(table.name()).unwrap());
            let mut rows = Vec::new();
            self.scan(table, |row| rows.push(by_name(def, row)))?;
            rows.sort();
            Ok((table.name(), rows))
        };
        TpccTable::ALL.into_iter().map(rows).collect()
    }

    pub fn rows(&self) -> BTreeMap<&'static str, Vec<Row>> {
        self.try_rows().unwrap()
    }

    /// The structures of the engine, and the specification's conditions.
    pub fn check(&self) -> Report {
        for partition in &self.partitions {
            partition.tables().iter().for_each(|table| table.check().unwrap());
        }
        let mut checker = Checker::new(&self.catalog).unwrap();
        for table in TpccTable::ALL {
            let id = self.catalog.table_id(table.name()).unwrap();
            self.scan(table, |row| checker.add(id, row)).unwrap();
        }
        checker.finish(&self.scale)
    }

    pub fn counted(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.partitions.iter().map(|partition| count(partition.counters())).sum()
    }
}
