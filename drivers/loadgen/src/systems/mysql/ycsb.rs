//! YCSB's two transactions in SQL.

use mysql::prelude::Queryable;
use mysql::{Conn, Row, Statement, Value};

use super::KeyResult;
use super::session::Session;
use crate::system::SystemError;
use crate::ycsb::{RecordLayout, YCSB_KEY, YCSB_TABLE, Ycsb, YcsbTransaction};

/// Prepared statements of one connection.
pub struct YcsbStatements {
    layout: RecordLayout,
    read: Statement,
    /// Per field; prepared at the first use, so that many terminals do not exhaust the server's limit.
    update: Vec<Option<Statement>>,
}

impl YcsbStatements {
    pub fn prepare(session: &mut Session, ycsb: &Ycsb) -> Result<YcsbStatements, SystemError> {
        Ok(YcsbStatements {
            layout: ycsb.layout,
            read: session.prepare(&format!("SELECT * FROM {YCSB_TABLE} WHERE {YCSB_KEY} = ?"))?,
            update: vec![None; ycsb.layout.fields],
        })
    }

    /// Executes one transaction until it commits; see [`Session::transaction`].
    pub fn execute(
        &mut self,
        session: &mut Session,
        transaction: &YcsbTransaction<'_>,
        retries: &mut Vec<&'static str>,
    ) -> Result<KeyResult, SystemError> {
        match *transaction {
            YcsbTransaction::Read { key, verify } => {
                let row = session.transaction(retries, |connection| self.read(connection, key))?;
                Ok(row.map_or(KeyResult::NoSuchKey, |row| {
                    let verified = verify.then(|| verify_row(self.layout, key, &row));
                    KeyResult::Done { verified }
                }))
            }
            YcsbTransaction::Update { key, field, value } => {
                let update = self.update_statement(session, field)?;
                let matched = session.transaction(retries, |connection| {
                    connection.exec_drop(&update, (value, key))?;
                    Ok(connection.affected_rows())
                })?;
                Ok(if matched == 0 { KeyResult::NoSuchKey } else { KeyResult::Done { verified: None } })
            }
        }
    }

    /// The row of a key: its key column, then the fields.
    pub fn read(&self, connection: &mut Conn, key: i64) -> mysql::Result<Option<Row>> {
        connection.exec_first(&self.read, (key,))
    }

    /// The statement that updates one field.
    pub fn update_statement(&mut self, session: &mut Session, field: u16) -> Result<Statement, SystemError> {
        let slot = &mut self.update[field as usize];
        if let Some(statement) = slot {
            return Ok(statement.clone());
        }
        let text = format!("UPDATE {YCSB_TABLE} SET field{field} = ? WHERE {YCSB_KEY} = ?");
        Ok(slot.insert(session.prepare(&text)?).clone())
    }
}

/// Whether a row of the table is the intact record `key`.
pub fn verify_row(layout: RecordLayout, key: i64, row: &Row) -> bool {
    row.len() == layout.fields + 1
        && (0..layout.fields).all(|field| layout.verify_field(key, field as u16, field_of(row, field)))
}

/// The bytes of a field; empty when the column holds something else than text.
pub fn field_of(row: &Row, field: usize) -> &[u8] {
    match row.as_ref(field + 1) {
        Some(Value::Bytes(bytes)) => bytes,
        _ => &[],
    }
}
