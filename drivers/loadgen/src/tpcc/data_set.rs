//! The one row of `data_set`: what a database was loaded with, written when all else is there.
//!
//! It is written into the database, not beside it, so that it moves with the data: a copied data directory says for itself what it holds.

use anticache_engine::catalog::row::{RowBuf, Value, values};
use anticache_engine::catalog::{Catalog, TableId};
use anticache_engine::error::CatalogError;

use super::{Tpcc, TpccSpec};
use crate::row_hash::hash_of;
use crate::system::{System, SystemError};

/// Name of the table.
pub const DATA_SET_TABLE: &str = "data_set";
/// Version of the way in which rows follow from the seed. It changes when the same seed gives other rows.
pub const DATA_SET_FORMAT: i64 = 1;
/// Longest serialized row, in bytes.
const MAX_ROW_BYTES: usize = 64;
/// The columns, the last of which is text.
const NUMBERS: [&str; 6] = [
    "ds_format",
    "ds_warehouses",
    "ds_items",
    "ds_customers_per_district",
    "ds_orders_per_district",
    "ds_population_seed",
];
const SCHEMA: &str = "ds_schema";

/// What a database was loaded with, or what a trial wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSet {
    /// In the order of `NUMBERS`; the seed as its 64 bits.
    numbers: [i64; NUMBERS.len()],
    /// [`schema_hash`] of the tables.
    schema: String,
}

impl DataSet {
    /// What a specification wants.
    pub fn wanted(spec: &TpccSpec, catalog: &Catalog) -> DataSet {
        let numbers = [
            DATA_SET_FORMAT,
            i64::from(spec.warehouses),
            i64::from(spec.items),
            i64::from(spec.customers_per_district),
            i64::from(spec.orders_per_district),
            spec.population_seed.cast_signed(),
        ];
        DataSet { numbers, schema: schema_hash(catalog.sql()) }
    }

    /// The table and its serialized row, for the end of loading.
    ///
    /// # Errors
    /// When the schema has no such table or it lacks a column.
    pub fn row(&self, catalog: &Catalog) -> Result<(TableId, Vec<u8>), CatalogError> {
        let id = table_id(catalog)?;
        let table = catalog.table(id);
        let mut row = RowBuf::<MAX_ROW_BYTES>::new(table);
        for (name, number) in NUMBERS.iter().zip(self.numbers) {
            row.integer(table.field(name)?, number);
        }
        row.text(table.field(SCHEMA)?, self.schema.as_bytes());
        Ok((id, row.as_slice().to_vec()))
    }

    fn read(catalog: &Catalog, table: TableId, row: &[u8]) -> Result<DataSet, String> {
        let table = catalog.table(table);
        let values = values(table, row)?;
        let value = |name: &str| table.column(name).and_then(|column| values.get(column));
        let mut numbers = [0; NUMBERS.len()];
        for (name, number) in NUMBERS.iter().zip(&mut numbers) {
            *number = match value(name) {
                Some(Value::Number(found)) => *found,
                _ => return Err(format!("it has no number {name}")),
            };
        }
        match value(SCHEMA) {
            Some(Value::Text(text)) => Ok(DataSet { numbers, schema: String::from_utf8_lossy(text).into_owned() }),
            _ => Err(format!("it has no text {SCHEMA}")),
        }
    }

    /// Every difference between what is loaded and what is wanted, with both values; `None`: there is none.
    fn difference(&self, wanted: &DataSet) -> Option<String> {
        let whats =
            ["format of the rows", "warehouses", "items", "customers per district", "orders per district", "seed"];
        let numbers = whats.iter().zip(self.numbers.iter().zip(wanted.numbers));
        let mut differences: Vec<_> = numbers
            .filter(|(_, (loaded, wanted))| **loaded != *wanted)
            .map(|(what, (loaded, wanted))| match *what {
                "seed" => (format!("seed {}", loaded.cast_unsigned()), wanted.cast_unsigned().to_string()),
                "format of the rows" => (format!("format {loaded} of the rows"), wanted.to_string()),
                what => (format!("{loaded} {what}"), wanted.to_string()),
            })
            .collect();
        if self.schema != wanted.schema {
            differences.push((format!("a schema with hash {}", self.schema), wanted.schema.clone()));
        }
        let texts = differences.into_iter().map(|(loaded, wanted)| format!("{loaded}, this trial wants {wanted}"));
        let text = texts.collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then_some(text)
    }
}

fn table_id(catalog: &Catalog) -> Result<TableId, CatalogError> {
    let problem = "loadgen needs it to record what it has loaded".to_owned();
    catalog.table_id(DATA_SET_TABLE).ok_or(CatalogError::Table { table: DATA_SET_TABLE.to_owned(), problem })
}

/// Checks that a schema has the table, with its columns and at every partition.
///
/// # Errors
/// What is missing.
pub fn check_catalog(catalog: &Catalog) -> Result<(), CatalogError> {
    let table = catalog.table(table_id(catalog)?);
    let fields = NUMBERS.iter().chain([&SCHEMA]).try_for_each(|name| table.field(name).map(|_| ()));
    fields?;
    let problem = |problem: &str| Err(CatalogError::Table { table: table.name.clone(), problem: problem.to_owned() });
    match (table.replicated, table.max_serialized_bytes() <= MAX_ROW_BYTES) {
        (false, _) => problem("it must be replicated: every partition says what was loaded"),
        (_, false) => problem("its rows are longer than those that loadgen writes"),
        _ => Ok(()),
    }
}

/// Hash of a DDL text, in hexadecimal, that comments (`--` to the end of a line, outside of quotes) and white space do not change.
pub fn schema_hash(ddl: &str) -> String {
    let words: Vec<&str> = ddl.lines().map(without_comment).flat_map(str::split_whitespace).collect();
    format!("{:016x}", hash_of(words.join(" ").as_bytes()))
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, symbol) in line.char_indices() {
        match quote {
            Some(open) if open == symbol => quote = None,
            None if matches!(symbol, '\'' | '"' | '`') => quote = Some(symbol),
            None if line[at..].starts_with("--") => return &line[..at],
            _ => {}
        }
    }
    line
}

/// Checks that the database of a system was loaded to its end and with what the trial wants.
///
/// # Errors
/// [`SystemError::Data`] naming every difference with both values.
pub fn check(system: &dyn System, tpcc: &Tpcc) -> Result<(), SystemError> {
    let catalog = &tpcc.catalog;
    let wanted = DataSet::wanted(&tpcc.spec, catalog);
    let problem = |what: String| SystemError::Data(format!("TPC-C's data: {what}"));
    let (table, _) = wanted.row(catalog).map_err(|error| problem(error.to_string()))?;
    let mut rows = Vec::new();
    if let Some(difference) = system.compare_replicas(catalog, table)? {
        return Err(problem(format!("{difference}: load again")));
    }
    system.scan(catalog, table, &mut |row| rows.push(row.to_vec()))?;
    let row = match rows.as_slice() {
        [] => return Err(problem("not loaded to its end: load the data set first".to_owned())),
        [row] => row,
        rows => return Err(problem(format!("{} rows in {DATA_SET_TABLE}, not one: load again", rows.len()))),
    };
    let loaded = DataSet::read(catalog, table, row)
        .map_err(|what| problem(format!("the row of {DATA_SET_TABLE}: {what}: load again")))?;
    match loaded.difference(&wanted) {
        Some(difference) => Err(problem(format!("loaded for {difference}: load again"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CATALOG, SPEC};
    use super::*;

    #[test]
    fn a_row_is_read_back() {
        let spec = TpccSpec { population_seed: u64::MAX - 5, ..SPEC };
        let wanted = DataSet::wanted(&spec, &CATALOG);
        let (table, row) = wanted.row(&CATALOG).unwrap();
        assert_eq!(CATALOG.table(table).name, DATA_SET_TABLE);
        assert_eq!(DataSet::read(&CATALOG, table, &row), Ok(wanted.clone()));
        assert_eq!(wanted.difference(&wanted), None);
        assert!(DataSet::read(&CATALOG, table, &row[1..]).is_err());
    }

    #[test]
    fn differences_are_named_with_both_values() {
        let loaded = DataSet::wanted(&SPEC, &CATALOG);
        for (spec, expected) in [
            (TpccSpec { warehouses: 4, ..SPEC }, "2 warehouses, this trial wants 4"),
            (TpccSpec { items: 70, ..SPEC }, "100 items, this trial wants 70"),
            (
                TpccSpec { customers_per_district: 20, orders_per_district: 20, ..SPEC },
                "30 customers per district, this trial wants 20; 30 orders per district, this trial wants 20",
            ),
            (TpccSpec { population_seed: u64::MAX, ..SPEC }, "seed 3, this trial wants 18446744073709551615"),
        ] {
            assert_eq!(loaded.difference(&DataSet::wanted(&spec, &CATALOG)).unwrap(), expected);
        }
        let other = DataSet { schema: "00000000000000ff".to_owned(), ..loaded.clone() };
        let difference = loaded.difference(&other).unwrap();
        assert_eq!(
            difference,
            format!("a schema with hash {}, this trial wants 00000000000000ff", schema_hash(CATALOG.sql()))
        );
    }

    #[test]
    fn only_what_counts_changes_the_schemas_hash() {
        let hash = schema_hash("-- it's a table\nCREATE TABLE t (a INT) COMMENT = 'x -- y';\n");
        assert_eq!(hash, schema_hash("CREATE   TABLE t\n  (a INT) -- \"one\n\n COMMENT = 'x -- y';"));
        assert_ne!(hash, schema_hash("CREATE TABLE t (a INT) COMMENT = 'x -- z';"));
        assert_ne!(hash, schema_hash("CREATE TABLE t (b INT) COMMENT = 'x -- y';"));
    }
}
