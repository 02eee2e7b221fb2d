//! MySQL 5.6, the server that set-up installs: on a core of its own, prepared statements, a thread for each connection.

use std::fmt::Write;
use std::path::Path;

use ::mysql::consts::CapabilityFlags;
use ::mysql::prelude::Queryable;
use ::mysql::{Conn, Opts, OptsBuilder, Row as Answer, Statement, Value as Cell};
use anyhow::{Context, ensure};

use super::data::{Row, Value, loaded_row};
use super::store::{Store, Terminals};
use super::{VERSIONS, locked_version};
use crate::harness::schema;
use crate::harness::ycsb::{FIELD_BYTES, FIELDS};
use crate::mysqld;

pub const CONNECTIONS: usize = 16;
/// Buffer pool for a record: all of them fit, with what pages leave empty.
const RECORD_POOL_BYTES: u64 = 1600;
const LEAST_POOL_BYTES: u64 = 128 << 20;
const ROWS_PER_INSERT: u64 = 1000;

/// One connection and its prepared statements.
pub struct Terminal {
    connection: Conn,
    read: Statement,
    updates: Vec<Statement>,
}

impl Terminal {
    fn connect(options: &Opts) -> anyhow::Result<Self> {
        let mut connection = Conn::new(options.clone())?;
        let fields = (0..FIELDS).map(|field| format!("field{field}")).collect::<Vec<_>>().join(", ");
        let read = connection.prep(format!("SELECT {fields} FROM usertable WHERE ycsb_key = ?"))?;
        let update = |field| connection.prep(format!("UPDATE usertable SET field{field} = ? WHERE ycsb_key = ?"));
        let updates = (0..FIELDS).map(update).collect::<Result<_, _>>()?;
        Ok(Self { connection, read, updates })
    }
}

fn load_records(connection: &mut Conn, records: u64) -> anyhow::Result<()> {
    connection.query_drop(std::fs::read_to_string(schema("ycsb.sql"))?)?;
    for first in (0..records).step_by(ROWS_PER_INSERT as usize) {
        let mut statement = String::from("INSERT INTO usertable VALUES ");
        for key in first..(first + ROWS_PER_INSERT).min(records) {
            write!(statement, "{}({key}", if key == first { "" } else { "," })?;
            for field in loaded_row(key as i64).chunks(FIELD_BYTES) {
                write!(statement, ",'{}'", std::str::from_utf8(field)?)?;
            }
            statement.push(')');
        }
        connection.query_drop(statement)?;
    }
    Ok(())
}

pub fn load(mysqld: Option<&Path>, records: u64, directory: &Path) -> anyhow::Result<Terminals<Terminal>> {
    let pool_bytes = (records * RECORD_POOL_BYTES).max(LEAST_POOL_BYTES);
    let (mut server, port) = mysqld::start(mysqld, pool_bytes, directory)?;
    let options = OptsBuilder::new().ip_or_hostname(Some("127.0.0.1")).tcp_port(port).prefer_socket(false);
    // An update reports the rows that it matched, also where it writes what is there.
    let options = options.init(vec!["SET NAMES latin1"]).additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS);
    let mut connection = server.wait_for(|| Conn::new(options.clone()))?;
    connection.query_drop("CREATE DATABASE bench DEFAULT CHARACTER SET latin1")?;
    let options: Opts = options.db_name(Some("bench")).into();
    let mut loader = Conn::new(options.clone())?;
    load_records(&mut loader, records).with_context(|| server.last_words())?;
    let version: Option<String> = loader.query_first("SELECT @@version")?;
    let connections = (0..CONNECTIONS).map(|_| Terminal::connect(&options)).collect::<Result<_, _>>()?;
    let settings = format!(
        "MySQL {} (crate mysql {}), buffer pool of {} MB, innodb_flush_log_at_trx_commit 0, no doublewrite, no binary log, no query cache, \
         prepared statements, autocommit, {CONNECTIONS} connections with 1 outstanding each",
        version.unwrap_or_default(),
        locked_version(VERSIONS, "mysql"),
        pool_bytes / 1_000_000
    );
    Ok(Terminals { connections, settings, server })
}

/// Whether InnoDB has rolled the statement back because of another one, and it may be repeated.
fn is_to_be_repeated<T>(outcome: &::mysql::Result<T>) -> bool {
    matches!(outcome, Err(::mysql::Error::MySqlError(error)) if matches!(error.code, 1205 | 1213))
}

impl Store for Terminal {
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        let answer: Option<Answer> = self.connection.exec_first(&self.read, (key,))?;
        let answer = answer.with_context(|| format!("record {key} is not there"))?;
        for (number, field) in row.chunks_mut(FIELD_BYTES).enumerate() {
            match answer.as_ref(number) {
                Some(Cell::Bytes(held)) if held.len() == FIELD_BYTES => field.copy_from_slice(held),
                other => anyhow::bail!("record {key} has {other:?} in field {number}"),
            }
        }
        Ok(())
    }

    fn update(&mut self, key: i64, field: u16, value: &Value) -> anyhow::Result<()> {
        let statement = &self.updates[usize::from(field)];
        let mut outcome = self.connection.exec_drop(statement, (value.as_slice(), key));
        while is_to_be_repeated(&outcome) {
            outcome = self.connection.exec_drop(statement, (value.as_slice(), key));
        }
        outcome?;
        ensure!(self.connection.affected_rows() == 1, "record {key} is not there");
        Ok(())
    }
}
