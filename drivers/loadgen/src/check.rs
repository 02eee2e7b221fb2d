//! `loadgen check`: whether what a system holds is consistent, and a checksum of each table, by which systems and moments can be compared.
//!
//! For TPC-C the twelve conditions of clause 3.3.2, for YCSB the checksums that every record carries. All rows of all tables pass through: no
//! transaction may run meanwhile. The conditions need memory here, not at the server: 64 bytes for an order with all its lines and 48 for a customer, in
//! hash tables that are between 44 and 88 % full: at most 150 and 110 bytes, half as much again while one grows. A warehouse as it is loaded takes 8 MB
//! at most, and so do 50,000 orders since.

use std::collections::BTreeMap;
use std::time::Instant;

use anticache_engine::catalog::row::{Value, values};
use anticache_engine::catalog::{Catalog, TableDef, TableId};
use anticache_engine::procedure::tpcc::consistency::Checker;
use anticache_engine::procedure::tpcc::generate::TpccTable;
use serde::Serialize;

use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::row_hash::RowSum;
use crate::system::{CacheDifferences, System, SystemError};
use crate::tpcc::goods::Goods;
use crate::tpcc::{Tpcc, data_set};
use crate::ycsb::{YCSB_TABLE, Ycsb};

/// Version of the format of `check.json`.
const CHECK_FORMAT: u32 = 1;
/// Violations that are listed; all are counted.
const LISTED: usize = 40;
/// Names under which violations that no clause numbers are counted.
const REPLICAS: &str = "replicas";
const ROWS: &str = "rows";
const RECORDS: &str = "records";
const GOODS: &str = "goods";
/// Rows between two looks at the signals.
const LOOK_EVERY: u64 = 4096;

/// The content of `check.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckReport {
    pub format: u32,
    pub benchmark: &'static str,
    pub consistent: bool,
    /// At most 40.
    pub violations: Vec<String>,
    /// How many there are, by clause (`3.3.2.1` …) or by what else is checked (`replicas`, `rows`, `goods`, `records`); conditions that hold are left out.
    pub violations_by_condition: BTreeMap<String, u64>,
    pub tables: BTreeMap<String, TableSum>,
    /// Cached documents beside the rows that they stand for, where there is a cache. Those that differ are the system's window of staleness, not an
    /// inconsistency of what it has committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheDifferences>,
    pub seconds: f64,
}

/// What a table holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableSum {
    pub rows: u64,
    /// Sum modulo 2^64 of the XXH3-64 of the serialized rows, in hexadecimal.
    pub checksum: String,
}

/// Reads all tables of a TPC-C database and checks the conditions of clause 3.3.2, that rows which never come or go are all there, that replicas
/// are equal, and what [`Goods`] says of ITEM and STOCK.
///
/// # Errors
/// When the data cannot be read, or are not those of the specification.
pub fn tpcc(system: &dyn System, tpcc: &Tpcc, interrupt: &Interrupt) -> Result<CheckReport, SystemError> {
    data_set::check(system, tpcc)?;
    let catalog = &tpcc.catalog;
    let broken = |error: &dyn std::fmt::Display| SystemError::Data(error.to_string());
    let mut checker = Checker::new(catalog).map_err(|error| broken(&error))?;
    let mut goods = Goods::new(tpcc).map_err(|error| broken(&error))?;
    let mut items = RowSum::default();
    let mut check = Check::start("tpcc", loaded_rows(tpcc), interrupt);
    for (table, id) in catalog.tables().iter().zip(0..) {
        if table.replicated
            && let Some(difference) = system.compare_replicas(catalog, id)?
        {
            check.violated(REPLICAS, difference);
        }
        let sum = check.scan(system, catalog, id, |_, row| {
            checker.add(id, row);
            goods.add(id, row);
            Ok(())
        })?;
        if table.name == TpccTable::Item.name() {
            items = sum;
        }
        if let Some(wanted) = fixed_rows(tpcc, &table.name).filter(|wanted| *wanted != sum.rows) {
            check.violated(ROWS, format!("{} has {} rows, not {wanted}", table.name, sum.rows));
        }
    }
    goods.violations(items).into_iter().for_each(|violation| check.violated(GOODS, violation));
    check.report.cache = system.cache_differences(catalog)?;
    let report = checker.finish(&tpcc.scale);
    for (count, condition) in report.counts.iter().zip(1..).filter(|(count, _)| **count > 0) {
        check.report.violations_by_condition.insert(format!("3.3.2.{condition}"), *count);
    }
    let texts = report.violations.iter().map(ToString::to_string);
    check.report.violations.extend(texts);
    Ok(check.finish())
}

/// Rows of a table that no transaction adds to or takes from.
fn fixed_rows(tpcc: &Tpcc, table: &str) -> Option<u64> {
    let [warehouses, items, customers] =
        [tpcc.spec.warehouses, tpcc.spec.items, tpcc.spec.customers_per_district].map(u64::from);
    Some(match table {
        "warehouse" => warehouses,
        "district" => 10 * warehouses,
        "customer" => 10 * warehouses * customers,
        "item" => items,
        "stock" => warehouses * items,
        _ => return None,
    })
}

/// Rows as loaded, for the estimate; a database that has run since has more.
fn loaded_rows(tpcc: &Tpcc) -> u64 {
    let fixed = ["warehouse", "district", "customer", "item", "stock"];
    let fixed: u64 = fixed.iter().filter_map(|table| fixed_rows(tpcc, table)).sum();
    let [customers, orders] = [tpcc.spec.customers_per_district, tpcc.spec.orders_per_district].map(u64::from);
    fixed + 10 * u64::from(tpcc.spec.warehouses) * (customers + 11 * orders + orders * 3 / 10)
}

/// Reads all records of a YCSB database and checks the checksums that each carries, and that none is missing.
///
/// # Errors
/// When the data cannot be read.
pub fn ycsb(
    system: &dyn System,
    ycsb: &Ycsb,
    catalog: &Catalog,
    interrupt: &Interrupt,
) -> Result<CheckReport, SystemError> {
    let records = ycsb.spec.records;
    let id = catalog.table_id(YCSB_TABLE);
    let id = id.ok_or_else(|| SystemError::Data(format!("the schema has no table `{YCSB_TABLE}`")))?;
    let table = catalog.table(id);
    let mut check = Check::start("ycsb", records, interrupt);
    let mut fields = Vec::with_capacity(ycsb.layout.record_bytes());
    let sum = check.scan(system, catalog, id, |check, row| {
        match key_of(table, row, &mut fields) {
            Ok(key) if !(0..records as i64).contains(&key) => {
                check.violated(RECORDS, format!("record {key}: there are 0 to {}", records - 1));
            }
            Ok(key) if ycsb.layout.verify_record(key, &fields) => {}
            Ok(key) => check.violated(RECORDS, format!("record {key} is damaged: its checksums do not fit")),
            Err(problem) => check.violated(RECORDS, problem),
        }
        Ok(())
    })?;
    if sum.rows != records {
        check.violated(ROWS, format!("{YCSB_TABLE} has {} rows, not {records}", sum.rows));
    }
    Ok(check.finish())
}

/// The key of a record; its fields are put one after the other.
fn key_of(table: &TableDef, row: &[u8], fields: &mut Vec<u8>) -> Result<i64, String> {
    fields.clear();
    let mut key = None;
    for (position, value) in values(table, row)?.into_iter().enumerate() {
        match value {
            Value::Number(number) if position == 0 => key = Some(number),
            Value::Text(text) => fields.extend_from_slice(text),
            other => return Err(format!("a row of {} bytes has {other:?} in column {position}", row.len())),
        }
    }
    key.ok_or_else(|| format!("a row of {} bytes without a key", row.len()))
}

/// A check under way.
struct Check<'a> {
    report: CheckReport,
    progress: Progress,
    interrupt: &'a Interrupt,
    started: Instant,
}

impl<'a> Check<'a> {
    fn start(benchmark: &'static str, rows: u64, interrupt: &'a Interrupt) -> Check<'a> {
        let report = CheckReport {
            format: CHECK_FORMAT,
            benchmark,
            consistent: false,
            violations: Vec::new(),
            violations_by_condition: BTreeMap::new(),
            tables: BTreeMap::new(),
            cache: None,
            seconds: 0.0,
        };
        Check { report, progress: Progress::start("check", rows, "rows"), interrupt, started: Instant::now() }
    }

    fn violated(&mut self, condition: &str, violation: String) {
        *self.report.violations_by_condition.entry(condition.to_owned()).or_default() += 1;
        if self.report.violations.len() < LISTED {
            self.report.violations.push(violation);
        }
    }

    /// Passes all rows of a table to `on_row`, and sums them up.
    fn scan(
        &mut self,
        system: &dyn System,
        catalog: &Catalog,
        table: TableId,
        mut on_row: impl FnMut(&mut Self, &[u8]) -> Result<(), SystemError>,
    ) -> Result<RowSum, SystemError> {
        let def = catalog.table(table);
        let (mut sum, mut failure) = (RowSum::default(), None);
        system.scan(catalog, table, &mut |row| {
            // A scan cannot be ended from here; what is left of it is passed over.
            if failure.is_some() {
                return;
            }
            sum.add(row);
            if sum.rows % LOOK_EVERY == 0 {
                self.progress.add(LOOK_EVERY);
                if self.interrupt.requested() {
                    failure = Some(SystemError::Interrupted);
                }
            }
            let outcome = match def.split(row) {
                Ok(_) => on_row(self, row),
                Err(problem) => Err(SystemError::Data(format!("a row of {}: {problem}", def.name))),
            };
            failure = failure.take().or(outcome.err());
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let table = TableSum { rows: sum.rows, checksum: format!("{:016x}", sum.checksum) };
        self.report.tables.insert(def.name.clone(), table);
        Ok(sum)
    }

    fn finish(mut self) -> CheckReport {
        self.report.violations.truncate(LISTED);
        self.report.consistent = self.report.violations_by_condition.is_empty();
        self.report.seconds = self.started.elapsed().as_secs_f64();
        let rows: u64 = self.report.tables.values().map(|table| table.rows).sum();
        let found: u64 = self.report.violations_by_condition.values().sum();
        self.progress.finish(format!("{rows} rows in {:.1} s, {found} violations", self.report.seconds));
        self.report
    }
}
