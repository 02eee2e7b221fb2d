//! YCSB's two transactions in SQL.

pub mod bulk;

use mysql::prelude::Queryable;
use mysql::{Conn, Row, Statement, Value};

use super::session::{Ended, Session};
use crate::system::{Completion, Connection, Outcome, SystemError};
use crate::workload::Transaction;
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
                let read = session.transaction(retries, |connection| self.read(connection, key))?;
                Ok(match read {
                    Ended::Committed(Some(row)) => {
                        KeyResult::Done { verified: verify.then(|| verify_row(self.layout, key, &row)) }
                    }
                    _ => KeyResult::NoSuchKey,
                })
            }
            YcsbTransaction::Update { key, field, value } => {
                let update = self.update_statement(session, field)?;
                let matched = session.transaction(retries, |connection| {
                    connection.exec_drop(&update, (value, key))?;
                    Ok::<_, mysql::Error>(connection.affected_rows())
                })?;
                let done = matched != Ended::Committed(0);
                Ok(if done { KeyResult::Done { verified: None } } else { KeyResult::NoSuchKey })
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

/// One terminal's connection.
pub struct YcsbConnection {
    session: Session,
    statements: YcsbStatements,
    completed: Option<Completion>,
}

impl YcsbConnection {
    /// Prepares the statements on a session for transactions.
    pub fn open(mut session: Session, ycsb: &Ycsb) -> Result<YcsbConnection, SystemError> {
        let statements = YcsbStatements::prepare(&mut session, ycsb)?;
        Ok(YcsbConnection { session, statements, completed: None })
    }
}

impl Connection for YcsbConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Ycsb(transaction) = transaction else {
            return Err(SystemError::Data("a transaction of another benchmark on a connection for YCSB".to_owned()));
        };
        let mut retries = Vec::new();
        let result = self.statements.execute(&mut self.session, transaction, &mut retries)?;
        self.completed = Some(result.completion(terminal, retries));
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        completions.extend(self.completed.take());
        Ok(())
    }
}

/// What became of a transaction on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyResult {
    Done { verified: Option<bool> },
    NoSuchKey,
}

impl KeyResult {
    /// The completion that the terminal gets.
    pub fn completion(self, terminal: u32, retries: Vec<&'static str>) -> Completion {
        let (outcome, verified) = match self {
            KeyResult::Done { verified } => (Outcome::Committed, verified),
            KeyResult::NoSuchKey => (Outcome::Aborted("no such key".to_owned()), None),
        };
        Completion { terminal, outcome, verified, retries }
    }
}
