//! TPC-C on MySQL and on MySQL + Memcached, with the real servers: what is loaded is the population, what the
//! transactions answer and leave behind is what an independent implementation of the specification says, and terminals
//! at the same time leave a consistent database.

use std::collections::BTreeMap;
use std::sync::Arc;

use anticache_engine::catalog::Catalog;
use anticache_engine::procedure::tpcc::ITEM_NOT_FOUND;
use anticache_engine::procedure::tpcc::consistency::{Checker, Report};
use anticache_engine::procedure::tpcc::generate::{Input, Mix, Population, Scale, Seeds, Terminal, TpccTable};
use anticache_engine::procedure::tpcc::params::{Line, NewOrder};
use loadgen::check::{self, TableSum};
use loadgen::interrupt::Interrupt;
use loadgen::spec::Spec;
use loadgen::system::{self, BulkWork, CacheDifferences, Outcome, System};
use loadgen::systems::mysql::MysqlSystem;
use loadgen::systems::mysql::tpcc::statements::{
    CUSTOMERS_BY_NAME, ITEMS, LOW_STOCK, NEWEST_ORDER, OLDEST_NEW_ORDER, STOCK,
};
use loadgen::systems::mysql::tpcc::{Copies, NoCopies, TpccConnection};
use loadgen::systems::mysql_memcached::MysqlMemcachedSystem;
use loadgen::systems::mysql_memcached::cache::{Cache, Change, Changed};
use loadgen::tpcc::Tpcc;
use loadgen::tpcc::data_set::DataSet;
use loadgen::workload::{Transaction, Workload};
use mysql::prelude::Queryable;
use serde_json::{Value, json};

use crate::common::{Bench, stderr};
use crate::reference::{Reference, Row, by_name};
use crate::served::Served;
use crate::servers::{Memcached, Mysqld};

const INPUTS: usize = 500;
/// Whole seconds, as terminals have them.
const START_US: i64 = 1_400_000_000_000_000;
const ITEM_COUNT: i32 = 120;

/// A specification and what follows from it.
pub struct Trial {
    pub bench: Bench,
    pub spec: Spec,
    pub tpcc: Tpcc,
    pub catalog: Arc<Catalog>,
}

impl Trial {
    pub fn new(system: &str, endpoint: Value) -> Trial {
        let mut bench = Bench::tpcc();
        bench.set("/system", json!(system));
        bench.set("/endpoint", endpoint);
        bench.set("/tpcc/items", json!(ITEM_COUNT));
        bench.set("/tpcc/access", json!("remote"));
        let spec = Spec::read(&bench.write_spec(), None).unwrap();
        let Workload::Tpcc(tpcc) = Workload::new(&spec) else {
            panic!("not TPC-C");
        };
        let catalog = Arc::clone(&tpcc.catalog);
        Trial { bench, spec, tpcc, catalog }
    }

    pub fn workload(&self) -> Workload {
        Workload::Tpcc(self.tpcc.clone())
    }

    pub fn scale(&self) -> Scale {
        self.tpcc.scale
    }

    pub fn population(&self) -> Population {
        Population::new(&self.catalog, self.scale(), self.tpcc.spec.population_seed).unwrap()
    }

    pub fn load(&self, system: &dyn System) -> u64 {
        system.create_schema(self.catalog.sql()).unwrap();
        let interrupt = Interrupt::default();
        let records = system.load(BulkWork { threads: 3, interrupt: &interrupt }).unwrap();
        let warmed = system.prewarm(BulkWork { threads: 3, interrupt: &interrupt }).unwrap();
        assert!(warmed.contains("newest 100 % of the orders"), "{warmed}");
        records
    }

    /// Inputs of a terminal for each district, taking turns, and orders with an item several times and with an unused
    /// one.
    fn inputs(&self) -> Vec<Input> {
        let seeds = Seeds { population: self.tpcc.spec.population_seed, inputs: 8 };
        let turns = 10 * self.scale().warehouses as usize;
        let terminal = |index| Terminal::new(self.scale(), Mix::WithRemote, seeds, index as u64);
        let mut terminals: Vec<_> = (0..turns).map(terminal).collect();
        let mut inputs: Vec<_> = (0..INPUTS).map(|at| terminals[at % turns].next(date(at))).collect();
        let line = |i_id, supply_w_id| Line { i_id, supply_w_id, quantity: 10 };
        let repeated = [line(5, 2), line(7, 1), line(5, 2), line(5, 1), line(5, 2)];
        let unused = [line(5, 1), line(6, 2), line(5, 1), line(ITEM_COUNT + 1, 1)];
        for lines in [&repeated[..], &unused, &[line(5, 2); 15], &unused[3..]] {
            inputs.push(Input::NewOrder(NewOrder::new(1, 2, 3, date(INPUTS), lines).unwrap()));
        }
        inputs
    }

    pub fn rows(&self, system: &dyn System) -> BTreeMap<&'static str, Vec<Row>> {
        let rows_of = |table: TpccTable| {
            let id = self.catalog.table_id(table.name()).unwrap();
            let mut rows = Vec::new();
            system.scan(&self.catalog, id, &mut |row| rows.push(by_name(self.catalog.table(id), row))).unwrap();
            rows.sort();
            (table.name(), rows)
        };
        TpccTable::ALL.into_iter().map(rows_of).collect()
    }

    /// The specification's conditions.
    pub fn check(&self, system: &dyn System) -> Report {
        let mut checker = Checker::new(&self.catalog).unwrap();
        for table in TpccTable::ALL {
            let id = self.catalog.table_id(table.name()).unwrap();
            system.scan(&self.catalog, id, &mut |row| checker.add(id, row)).unwrap();
        }
        checker.finish(&self.scale())
    }

    /// Executes transactions one after the other, comparing what terminals see, and in the end all rows.
    fn agrees_with_reference<C: Copies>(&self, system: &dyn System, mut connection: TpccConnection<C>) {
        let mut reference = Reference::load(&self.catalog, &self.population(), self.scale());
        let (mut rolled_back, mut retries) = (0, Vec::new());
        for (at, input) in self.inputs().iter().enumerate() {
            let before = matches!(at, INPUTS..).then(|| self.rows(system));
            let expected = reference.execute(input);
            match connection.execute(input, &mut retries).unwrap() {
                Outcome::Committed => assert_eq!(Ok(connection.reply()), expected.as_deref(), "{at}: {input:?}"),
                Outcome::Aborted(reason) => {
                    assert_eq!(reason, ITEM_NOT_FOUND, "{at}: {input:?}");
                    assert_eq!(Err(reason), expected);
                    rolled_back += 1;
                    assert!(before.is_none_or(|before| before == self.rows(system)), "{at} left something behind");
                }
            }
        }
        assert!(rolled_back >= 2 && retries.is_empty(), "{rolled_back} rolled back, {retries:?}");
        let (rows, expected) = (self.rows(system), reference.rows());
        for (table, expected) in &expected {
            assert_eq!(rows[table].len(), expected.len(), "rows of {table}");
            for (row, expected) in rows[table].iter().zip(expected) {
                assert_eq!(row, expected, "{table}");
            }
        }
        assert_eq!(self.check(system), Report::default());
    }

    /// Eight terminals at the same time, as in a trial.
    fn stays_consistent(&mut self, system: &dyn System) -> Value {
        self.bench.set("/terminals", json!(8));
        self.bench.set("/warmup_s", json!(0.2));
        self.bench.set("/measure_s", json!(2.0));
        let output = self.bench.call("run");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let result = self.bench.result();
        let harmless = |flag: &Value| flag == "debug_build" || flag == "client_saturated";
        assert!(result["flags"].as_array().unwrap().iter().all(harmless), "{result:#}");
        assert!(result["committed"].as_u64() > Some(50), "{result:#}");
        let kinds = result["latency_us_by_type"].as_object().unwrap();
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        assert!(result["retried"].is_object() && result["errors"] == json!({}), "{result:#}");
        assert_eq!(self.check(system), Report::default());
        result
    }

    /// The same eight terminals, each blocked by its transaction, when transactions arrive.
    fn answers_what_arrives(&mut self, system: &dyn System) {
        self.bench.set("/arrival", json!("poisson"));
        self.bench.set("/offered_txn_s", json!(60));
        let output = self.bench.call("run");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let result = self.bench.result();
        let harmless = ["debug_build", "client_saturated", "client_late", "overloaded"];
        assert!(
            result["flags"].as_array().unwrap().iter().all(|flag| harmless.iter().any(|own| flag == own)),
            "{result:#}"
        );
        let open = &result["open_loop"];
        assert!(open["arrived"].as_u64() > Some(70) && result["committed"].as_u64() > Some(50), "{result:#}");
        assert!(open["response_us"]["p50"].as_u64() >= result["latency_us"]["p50"].as_u64(), "{result:#}");
        assert_eq!(self.check(system), Report::default());
    }
}

fn date(at: usize) -> i64 {
    START_US + 1_000_000 * at as i64
}

/// The same seeds give the same database on every system.
fn loaded_is_the_population(trial: &Trial, system: &dyn System) {
    let records = trial.load(system);
    let population = trial.population();
    let mut expected_records = 0;
    for table in TpccTable::ALL {
        let id = trial.catalog.table_id(table.name()).unwrap();
        let mut rows = Vec::new();
        system.scan(&trial.catalog, id, &mut |row| rows.push(row.to_vec())).unwrap();
        let last = if table == TpccTable::Item { 1 } else { trial.scale().warehouses };
        let mut expected: Vec<_> = (1..=last).flat_map(|w_id| population.rows(table, w_id)).collect();
        expected_records += expected.len() as u64;
        rows.sort();
        expected.sort();
        assert!(rows == expected, "{}: {} rows, expected {}", table.name(), rows.len(), expected.len());
    }
    assert_eq!(records, expected_records);
    let (id, expected) = DataSet::wanted(&trial.tpcc.spec, &trial.catalog).row(&trial.catalog).unwrap();
    let mut rows = Vec::new();
    system.scan(&trial.catalog, id, &mut |row| rows.push(row.to_vec())).unwrap();
    assert_eq!(rows, [expected]);
}

/// (table, access, index, whether only the index is read) of each step of a query, all of whose parameters are 1 (or
/// `LAST` for a text).
fn plan(system: &MysqlSystem, query: &str) -> Vec<(String, String, String, bool)> {
    let query = query.replace("c_last = ?", "c_last = 'BARBARBAR'").replace("BETWEEN ? AND ?", "BETWEEN 21 AND 30");
    let mut number = 0;
    let numbered = query.chars().map(|symbol| {
        if symbol == '?' {
            number += 1;
        }
        if symbol == '?' { number.to_string() } else { symbol.to_string() }
    });
    let query: String = numbered.collect();
    let mut session = system.server.connect(loadgen::systems::mysql::session::Use::Bulk).unwrap();
    let rows: Vec<mysql::Row> = session.run(|connection| connection.query(format!("EXPLAIN {query}"))).unwrap();
    let text = |row: &mysql::Row, column: &str| row.get::<Option<String>, _>(column).unwrap().unwrap_or_default();
    let step = |row: &mysql::Row| {
        let only_index = text(row, "Extra").contains("Using index") && !text(row, "Extra").contains("Using index cond");
        (text(row, "table"), text(row, "type"), text(row, "key"), only_index)
    };
    rows.iter().map(step).collect()
}

/// Nothing scans a table, also where it is small, and keys are found in an index alone.
fn statements_use_their_indexes(system: &MysqlSystem) {
    let step = |table: &str, access: &str, key: &str, only_index| {
        (table.to_owned(), access.to_owned(), key.to_owned(), only_index)
    };
    let select =
        |(tables, condition): (&str, &str), columns: &str| format!("SELECT {columns} FROM {tables} {condition}");
    let one = |query: String| plan(system, &query).into_iter().next().unwrap();
    assert_eq!(one(select(ITEMS, "i_id, i_price")), step("item", "range", "PRIMARY", false));
    assert_eq!(one(select(STOCK, "s_i_id, s_quantity")), step("stock", "range", "PRIMARY", false));
    let by_name = one(select(("customer", CUSTOMERS_BY_NAME), "c_id"));
    assert_eq!(by_name, step("customer", "ref", "customer_by_name", true));
    assert_eq!(one(select(NEWEST_ORDER, "o_id")), step("orders", "ref", "orders_by_customer", true));
    let oldest = one(select(("new_order", OLDEST_NEW_ORDER), "no_o_id"));
    assert_eq!(oldest, step("new_order", "ref", "PRIMARY", true));
    let count = plan(system, LOW_STOCK);
    assert_eq!(count[0], step("order_line", "range", "PRIMARY", false));
    assert_eq!(count[1], step("stock", "eq_ref", "PRIMARY", false));
}

#[test]
fn mysql_loads_and_executes_what_the_specification_says() {
    let server = Mysqld::start();
    let mut trial = Trial::new("mysql", server.endpoint());
    let system = MysqlSystem::open(&trial.spec, trial.workload()).unwrap();
    loaded_is_the_population(&trial, &system);
    statements_use_their_indexes(&system);
    let session = system.transaction_session().unwrap();
    trial.agrees_with_reference(&system, TpccConnection::open(session, &trial.tpcc, NoCopies).unwrap());
    let result = trial.stays_consistent(&system);
    assert_eq!(result["server_settings"]["mysqld"]["session.tx_isolation"], "SERIALIZABLE");
    assert_eq!(result["server_settings"]["mysqld"]["session.autocommit"], 0);
    trial.answers_what_arrives(&system);
    // Loaded again it is the population again, whatever was there.
    loaded_is_the_population(&trial, &system);
}

#[test]
fn mysql_with_memcached_executes_the_same() {
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    let mut trial = Trial::new("mysql-memcached", endpoint);
    let system = MysqlMemcachedSystem::open(&trial.spec, trial.workload()).unwrap();
    loaded_is_the_population(&trial, &system);
    let prewarmed = system.cache_differences(&trial.catalog).unwrap().unwrap();
    // What is read from the cache, and nothing that is only written.
    let read = ["item", "warehouse", "customer", "orders", "order_line"];
    let rows = trial.rows(&system);
    let expected = read.iter().map(|table| rows[table].len() as u64).sum();
    assert_eq!(prewarmed, CacheDifferences { compared: expected, different: 0 });
    let connect = || {
        let session = system.mysql().transaction_session().unwrap();
        TpccConnection::open(session, &trial.tpcc, system.cached_rows(&trial.catalog).unwrap()).unwrap()
    };
    trial.agrees_with_reference(&system, connect());
    // One after the other, nothing can overtake: every document is its row's.
    let differences = system.cache_differences(&trial.catalog).unwrap().unwrap();
    assert_eq!(differences.different, 0);
    assert!(differences.compared > prewarmed.compared, "{differences:?}");
    let result = trial.stays_consistent(&system);
    let hits = |when: &str| result[when]["loadgen"]["cache_hits"].as_u64().unwrap();
    assert!(hits("counters_after") > hits("counters_before"), "{result:#}");
    let check = check::tpcc(&system, &trial.tpcc, &Interrupt::default()).unwrap();
    assert!(check.consistent && check.cache.is_some_and(|cache| cache.compared > 5000), "{check:?}");
    // A document that is changed behind the system's back is noticed, and so is one whose row is gone.
    let before = system.cache_differences(&trial.catalog).unwrap().unwrap();
    let client = memcache::connect(format!("memcache://{}", cache.address())).unwrap();
    client.set("item:7", "{}", 0).unwrap();
    client.set("new_order:1:1:1", "{}", 0).unwrap();
    let after = system.cache_differences(&trial.catalog).unwrap().unwrap();
    let expected = CacheDifferences { compared: before.compared + 1, different: before.different + 2 };
    assert_eq!(after, expected);
}

/// Loads a system, checks it, executes all inputs and checks it again: rows and checksum of every table.
fn checksums(trial: &Trial) -> [BTreeMap<String, TableSum>; 2] {
    let system = system::open(&trial.spec, &trial.workload()).unwrap();
    let interrupt = Interrupt::default();
    system.create_schema(trial.catalog.sql()).unwrap();
    system.load(BulkWork { threads: 3, interrupt: &interrupt }).unwrap();
    let check = || {
        let report = check::tpcc(system.as_ref(), &trial.tpcc, &interrupt).unwrap();
        assert!(report.consistent, "{report:?}");
        report.tables
    };
    let loaded = check();
    let mut connection = system.connect(0..1).unwrap();
    let mut completions = Vec::new();
    for (input, number) in trial.inputs().iter().zip(1..) {
        connection.submit(0, &Transaction::Tpcc(input)).unwrap();
        while completions.len() < number {
            connection.wait(&mut completions).unwrap();
        }
    }
    [loaded, check()]
}

#[test]
fn the_same_inputs_leave_the_same_rows_on_every_system() {
    let engine = Served::start(Bench::tpcc(), "tpcc.sql", &json!({"partitions": 2, "memory_budget_bytes": 64 << 20}));
    let endpoint = json!({"anticache_address": engine.address().to_string()});
    let expected = checksums(&Trial::new("anticache-lru", endpoint));
    assert_eq!(expected[0].len(), 10);
    assert_ne!(expected[0], expected[1]);
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    for system in ["mysql", "mysql-memcached"] {
        assert_eq!(checksums(&Trial::new(system, endpoint.clone())), expected, "{system}");
    }
}

/// What Memcached cannot store is deleted, so that no older version survives, and the answers to the others are not
/// mixed up.
#[test]
fn a_refused_document_takes_its_older_version_with_it() {
    let server = Memcached::start(64);
    let mut cache = Cache::connect(&server.address()).unwrap();
    let keys: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let set = |at: usize, value: &[u8]| Change::Set(keys[at].clone(), value.to_vec());
    let all: Vec<Change> = (0..3).map(|at| set(at, b"old")).collect();
    assert_eq!(cache.change(&all).unwrap(), Changed { filled: 0, refused: 0 });
    let too_long = vec![b'x'; 2 << 20];
    let add = |at: usize| Change::Add(keys[at].clone(), b"added".to_vec());
    let changes = [set(0, b"new"), set(1, &too_long), add(0), add(3), Change::Delete(keys[2].clone())];
    assert_eq!(cache.change(&changes).unwrap(), Changed { filled: 1, refused: 1 });
    let found = cache.get_many(&keys).unwrap();
    assert_eq!(found, [Some(b"new".to_vec()), None, None, Some(b"added".to_vec())]);
    assert_eq!(cache.change(&[add(1), add(3)]).unwrap(), Changed { filled: 1, refused: 0 });
}
