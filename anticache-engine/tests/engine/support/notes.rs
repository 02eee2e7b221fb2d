//! Tables of one shape but for what matters to eviction: variable-length data, no primary key, not evictable. Procedures take a table, an id and
//! a value; the value says what the text is.

use std::sync::Arc;

use anticache_engine::catalog::row::RowBuf;
use anticache_engine::catalog::{Catalog, Field, TableDef};
use anticache_engine::config::Config;
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::procedure::{FirstTuple, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};

use super::database::Database;

/// Rows of 500 bytes and a little, evictable: `A`, `B`, `C`; `NOTES`, `EVENTS` and `TRAIL` have texts of up to 1000 bytes, `EVENTS` has no
/// primary key but another unique index, `TRAIL` no index at all; `FIXED` is not evictable.
pub const SCHEMA: &str = "
    CREATE TABLE a (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, text CHAR(492) NOT NULL) COMMENT = 'evictable; partition by id';
    CREATE TABLE b (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, text CHAR(492) NOT NULL) COMMENT = 'evictable; partition by id';
    CREATE TABLE c (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, text CHAR(492) NOT NULL) COMMENT = 'evictable; partition by id';
    CREATE TABLE notes (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, text VARCHAR(1000) NOT NULL) COMMENT = 'evictable; partition by id';
    CREATE TABLE events (id BIGINT NOT NULL, value BIGINT NOT NULL, text VARCHAR(1000) NOT NULL, UNIQUE KEY by_id (id))
        COMMENT = 'evictable; partition by id';
    CREATE TABLE fixed (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, text CHAR(492) NOT NULL) COMMENT = 'partition by id';
    CREATE TABLE trail (id BIGINT NOT NULL, value BIGINT NOT NULL, text VARCHAR(1000) NOT NULL) COMMENT = 'evictable; partition by id';";
pub const A: u16 = 0;
pub const B: u16 = 1;
pub const C: u16 = 2;
pub const NOTES: u16 = 3;
pub const EVENTS: u16 = 4;
pub const FIXED: u16 = 5;
pub const TRAIL: u16 = 6;

/// Adds a row.
pub const PUT: u16 = 0;
/// The sum of the values of all rows with these ids, whose texts must be theirs.
pub const SUM: u16 = 1;
/// Gives all rows with an id another value, and its text.
pub const SET: u16 = 2;
/// Removes all rows with an id.
pub const DROP: u16 = 3;

/// What a row says that has this value: up to 1000 bytes.
pub fn text_of(value: i64) -> Vec<u8> {
    let len = value.unsigned_abs() as usize * 37 % 1001;
    (0..len).map(|at| b'a' + ((value.unsigned_abs() as usize + at) % 26) as u8).collect()
}

/// A value whose text is empty.
pub const SILENT: i64 = 0;
/// A value whose text has 999 bytes: 27 × 37.
pub const LONG: i64 = 27;

struct Shape {
    def: TableDef,
    value: Field,
    text: Field,
}

type Body = fn(&[Shape], &mut TxnContext<'_>, u16, &[i64]) -> Result<(), Abort>;

struct Notes {
    name: &'static str,
    shapes: Arc<Vec<Shape>>,
    body: Body,
}

impl Procedure for Notes {
    fn name(&self) -> &'static str {
        self.name
    }

    fn first_tuple<'call>(&'call self, _params: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let (table, numbers) = super::database::unpack(params);
        (self.body)(&self.shapes, txn, table, &numbers)
    }
}

fn put(shapes: &[Shape], txn: &mut TxnContext<'_>, table: u16, n: &[i64]) -> Result<(), Abort> {
    let shape = &shapes[usize::from(table)];
    let mut row = RowBuf::<2000>::new(&shape.def);
    row.integer(shape.def.field("id").unwrap(), n[0]).integer(shape.value, n[1]);
    let text = text_of(n[1]);
    row.text(shape.text, if shape.text.var.is_some() { &text } else { b"" });
    txn.insert(table, row.as_slice()).map(|_| ())
}

fn sum(shapes: &[Shape], txn: &mut TxnContext<'_>, table: u16, n: &[i64]) -> Result<(), Abort> {
    let shape = &shapes[usize::from(table)];
    let found: Vec<_> = n.iter().map(|id| txn.lookup_all(table, 0, &id.to_le_bytes())).collect();
    let mut sum = 0;
    for matches in found {
        for at in 0..matches.len() {
            let tuple = txn.matched(matches, at);
            let value = txn.integer(tuple, shape.value)?;
            if shape.text.var.is_some() && txn.text(tuple, shape.text)? != text_of(value) {
                return Err(Abort::user(format!("the text of value {value} is another's")));
            }
            sum += value;
        }
    }
    txn.reply(&sum.to_le_bytes());
    Ok(())
}

fn set(shapes: &[Shape], txn: &mut TxnContext<'_>, table: u16, n: &[i64]) -> Result<(), Abort> {
    let shape = &shapes[usize::from(table)];
    let matches = txn.lookup_all(table, 0, &n[0].to_le_bytes());
    for at in 0..matches.len() {
        let tuple = txn.matched(matches, at);
        txn.set_integer(tuple, shape.value, n[1])?;
        if shape.text.var.is_some() {
            txn.set_text(tuple, shape.text, &text_of(n[1]))?;
        }
    }
    Ok(())
}

fn remove(_: &[Shape], txn: &mut TxnContext<'_>, table: u16, n: &[i64]) -> Result<(), Abort> {
    let matches = txn.lookup_all(table, 0, &n[0].to_le_bytes());
    for at in 0..matches.len() {
        let tuple = txn.matched(matches, at);
        txn.delete(tuple)?;
    }
    Ok(())
}

/// A database with these tables and procedures; of its 3 MiB, the first steps of all structures take about half.
pub fn database(change: impl FnOnce(&mut Config)) -> Database {
    database_on(Arc::new(KernelFiles::new()), change)
}

/// The same on any files.
pub fn database_on(files: Arc<dyn Files>, change: impl FnOnce(&mut Config)) -> Database {
    let catalog = Catalog::from_sql(SCHEMA).unwrap();
    let shape = |def: &TableDef| {
        let field = |name| def.field(name).unwrap();
        Shape { def: def.clone(), value: field("value"), text: field("text") }
    };
    let shapes: Arc<Vec<Shape>> = Arc::new(catalog.tables().iter().map(shape).collect());
    let all: [(&'static str, Body); 4] = [("put", put), ("sum", sum), ("set", set), ("drop", remove)];
    let procedures = all.map(|(name, body)| {
        let shapes = Arc::clone(&shapes);
        Box::new(Notes { name, shapes, body }) as Box<dyn Procedure>
    });
    Database::create_on(files, SCHEMA, ProcedureSet::new(procedures.into()), |config| {
        config.memory_budget_bytes = 3 << 20;
        change(config);
    })
}

/// A request.
pub fn request(procedure: u16, table: u16, numbers: &[i64]) -> (u64, u16, Vec<u8>) {
    (0, procedure, super::database::params(table, numbers))
}
