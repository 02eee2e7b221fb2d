//! SQLite, built in by the crate `rusqlite`.

use anyhow::{Context, ensure};
use rusqlite::{Connection, params};

use super::data::{Row, Value, loaded_row};
use super::store::{Embedded, Store};
use super::{VERSIONS, locked_version};
use crate::harness::ycsb::{FIELD_BYTES, FIELDS};

const ROWS_PER_TRANSACTION: usize = 10_000;

pub struct Sqlite {
    connection: Connection,
    read: String,
    updates: Vec<String>,
}

fn fields(each: impl Fn(u16) -> String) -> String {
    (0..FIELDS).map(each).collect::<Vec<_>>().join(", ")
}

impl Sqlite {
    pub fn load(count: u64) -> anyhow::Result<Embedded<Self>> {
        let connection = Connection::open_in_memory()?;
        connection.set_prepared_statement_cache_capacity(32);
        let columns = fields(|field| format!("field{field} TEXT NOT NULL"));
        connection.execute_batch(&format!("CREATE TABLE usertable (ycsb_key INTEGER PRIMARY KEY, {columns})"))?;
        let insert = format!("INSERT INTO usertable VALUES (?, {})", fields(|_| "?".to_owned()));
        let mut insert = connection.prepare(&insert)?;
        connection.execute_batch("BEGIN")?;
        for key in 0..count as i64 {
            insert.raw_bind_parameter(1, key)?;
            let row = loaded_row(key);
            for (number, field) in (2..).zip(row.chunks(FIELD_BYTES)) {
                insert.raw_bind_parameter(number, std::str::from_utf8(field)?)?;
            }
            insert.raw_execute()?;
            if (key as usize).is_multiple_of(ROWS_PER_TRANSACTION) {
                connection.execute_batch("COMMIT; BEGIN")?;
            }
        }
        connection.execute_batch("COMMIT")?;
        drop(insert);
        let settings = format!(
            "SQLite {} (rusqlite {}), :memory:, prepared statements, a transaction for each of them",
            rusqlite::version(),
            locked_version(VERSIONS, "rusqlite")
        );
        let read = format!("SELECT {} FROM usertable WHERE ycsb_key = ?", fields(|field| format!("field{field}")));
        let update = |field| format!("UPDATE usertable SET field{field} = ? WHERE ycsb_key = ?");
        let updates = (0..FIELDS).map(update).collect();
        Ok(Embedded { store: Self { connection, read, updates }, settings })
    }
}

impl Store for Sqlite {
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        let mut statement = self.connection.prepare_cached(&self.read)?;
        let mut rows = statement.query([key])?;
        let held = rows.next()?.with_context(|| format!("record {key} is not there"))?;
        for (number, field) in row.chunks_mut(FIELD_BYTES).enumerate() {
            let text = held.get_ref(number)?.as_bytes()?;
            ensure!(text.len() == FIELD_BYTES, "record {key} has a field of {} bytes", text.len());
            field.copy_from_slice(text);
        }
        Ok(())
    }

    fn update(&mut self, key: i64, field: u16, value: &Value) -> anyhow::Result<()> {
        let mut statement = self.connection.prepare_cached(&self.updates[usize::from(field)])?;
        let changed = statement.execute(params![std::str::from_utf8(value)?, key])?;
        ensure!(changed == 1, "record {key} is not there");
        Ok(())
    }
}
