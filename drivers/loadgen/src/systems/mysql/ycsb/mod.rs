//! YCSB's two transactions in SQL.

pub mod bulk;

use std::io::ErrorKind;
use std::time::Duration;

use super::MysqlSystem;
use super::session::{Session, retryable};
use super::wire::{self, Answer, Parameter};
use crate::system::{Completion, Outcome, SystemError};
use crate::systems::sockets::Socket;
use crate::systems::terminals::Terminal;
use crate::ycsb::{RecordLayout, YCSB_KEY, YCSB_TABLE, Ycsb, YcsbTransaction};

/// The newest protocol that [`wire`] speaks is the one before this version.
const NEWER_PROTOCOL: (u16, u16, u16) = (5, 7, 5);

/// What a terminal's connection to mysqld is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    Update,
    Read,
    Commit,
    RollBack,
}

/// One terminal's connection to mysqld: a transaction is one statement or two, repeated as a whole until no deadlock or lock wait limit hits it. On an
/// explicit connection a `COMMIT` ends it; with autocommit each statement is a transaction of its own.
pub struct YcsbSession {
    session: Session,
    socket: Socket,
    read: u32,
    /// Per field; none where nothing is updated.
    update: Vec<u32>,
    answer_limit: Duration,
    step: Step,
    key: i64,
    /// The transaction's first statement as a request, to be repeated.
    first: Vec<u8>,
    first_step: Step,
    /// Whether the row is read when it was updated.
    read_back: bool,
    request: Vec<u8>,
    found: bool,
    /// The fields of the row that was read last, one after another.
    record: Vec<u8>,
    retries: Vec<&'static str>,
}

impl YcsbSession {
    /// Connects, and prepares the statements that the mix needs.
    ///
    /// # Errors
    /// What the server says, for instance that it has as many statements as it may have.
    pub fn open(system: &MysqlSystem, ycsb: &Ycsb) -> Result<YcsbSession, SystemError> {
        let mut session = system.transaction_session()?;
        let version = session.connection.server_version();
        if version >= NEWER_PROTOCOL {
            let (major, minor, patch) = version;
            let problem =
                format!("mysqld is version {major}.{minor}.{patch}: YCSB's terminals speak the protocol of 5.6");
            return Err(SystemError::Data(problem));
        }
        let updated = if ycsb.spec.read_share < 1.0 { ycsb.layout.fields } else { 0 };
        let update = |field| format!("UPDATE {YCSB_TABLE} SET field{field} = ? WHERE {YCSB_KEY} = ?");
        Ok(YcsbSession {
            read: session.prepare(&format!("SELECT * FROM {YCSB_TABLE} WHERE {YCSB_KEY} = ?"))?.id(),
            update: (0..updated)
                .map(|field| Ok(session.prepare(&update(field))?.id()))
                .collect::<Result<_, SystemError>>()?,
            socket: session.socket()?,
            session,
            answer_limit: system.server.answer_limit(),
            step: Step::Idle,
            key: 0,
            first: Vec::new(),
            first_step: Step::Idle,
            read_back: false,
            request: Vec::new(),
            found: false,
            record: Vec::new(),
            retries: Vec::new(),
        })
    }

    /// See `Terminal::socket`.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Begins to read a record.
    ///
    /// # Errors
    /// As everything here: [`SystemError::Server`] for an error that mysqld reports, [`SystemError::Lost`] for a connection that broke.
    pub fn begin_read(&mut self, key: i64) -> Result<(), SystemError> {
        wire::execute(self.read, &[Parameter::Integer(key)], &mut self.first);
        self.begin(Step::Read, key)
    }

    /// Begins to overwrite a field; `read_back`: the record is read in the same transaction.
    ///
    /// # Errors
    /// As [`YcsbSession::begin_read`].
    pub fn begin_update(&mut self, key: i64, field: u16, value: &[u8], read_back: bool) -> Result<(), SystemError> {
        let Some(&statement) = self.update.get(usize::from(field)) else {
            return Err(SystemError::Data(format!(
                "field{field} is to be updated in a mix without updates, or is none"
            )));
        };
        wire::execute(statement, &[Parameter::Text(value), Parameter::Integer(key)], &mut self.first);
        self.read_back = read_back;
        self.begin(Step::Update, key)
    }

    fn begin(&mut self, step: Step, key: i64) -> Result<(), SystemError> {
        self.key = key;
        self.first_step = step;
        self.start()
    }

    fn start(&mut self) -> Result<(), SystemError> {
        self.step = self.first_step;
        self.socket.send(&self.first).map_err(|error| self.session.broken(&error))
    }

    fn send(&mut self, step: Step) -> Result<(), SystemError> {
        match step {
            Step::Commit => wire::query("COMMIT", &mut self.request),
            Step::RollBack => wire::query("ROLLBACK", &mut self.request),
            _ => wire::execute(self.read, &[Parameter::Integer(self.key)], &mut self.request),
        }
        self.step = step;
        self.socket.send(&self.request).map_err(|error| self.session.broken(&error))
    }

    /// Goes on with what has come. When the transaction has committed: whether the record is there, its fields in [`YcsbSession::record`] if it was read.
    ///
    /// # Errors
    /// As [`YcsbSession::begin_read`].
    pub fn go_on(&mut self) -> Result<Option<bool>, SystemError> {
        // With autocommit a statement is a transaction.
        let end = self.session.is_explicit().then_some(Step::Commit);
        let received = self.socket.receive().map_err(|error| self.session.broken(&error))?;
        let malformed = |problem: wire::Malformed| self.session.lost(problem.to_string());
        let Some(answer) = wire::answer(received).map_err(malformed)? else { return Ok(None) };
        let next = match (self.step, answer) {
            (Step::Update, Answer::Done { affected_rows }) => {
                self.found = affected_rows > 0;
                if self.found && self.read_back { Some(Step::Read) } else { end }
            }
            (Step::Read, Answer::Rows(row)) => {
                self.record.clear();
                self.found = row.is_some();
                row.map_or(Ok(()), |row| row.push_texts(&mut self.record)).map_err(malformed)?;
                end
            }
            (Step::Commit, Answer::Done { .. }) => None,
            // The transaction begins again.
            (Step::RollBack, Answer::Done { .. }) => Some(self.first_step),
            (_, Answer::Failed { code, message }) => match retryable(code) {
                Some(kind) => {
                    self.retries.push(kind);
                    // 1205 rolls back the statement only, so locks of the transaction may still be held.
                    Some(Step::RollBack)
                }
                None => return Err(self.session.failed(code, message)),
            },
            (step, answer) => return Err(self.session.lost(format!("no answer to {step:?}: {answer:?}"))),
        };
        self.socket.clear();
        match (self.step, next) {
            (_, None) => {
                self.step = Step::Idle;
                Ok(Some(self.found))
            }
            (Step::RollBack, Some(_)) => self.start().map(|()| None),
            (_, Some(step)) => self.send(step).map(|()| None),
        }
    }

    /// The fields of the record that was read last, one after another.
    pub fn record(&self) -> &[u8] {
        &self.record
    }

    /// See `Terminal::take_retries`.
    pub fn take_retries(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.retries)
    }

    /// See `Terminal::overdue`.
    pub fn overdue(&self, waited: Duration) -> Option<SystemError> {
        (waited > self.answer_limit && self.step != Step::Idle)
            .then(|| self.session.broken(&ErrorKind::TimedOut.into()))
    }
}

/// A terminal of MySQL alone.
pub struct YcsbTerminal {
    mysql: YcsbSession,
    layout: RecordLayout,
    /// Whether the transaction reads a record that is to be checked.
    verify: bool,
}

impl YcsbTerminal {
    /// # Errors
    /// As [`YcsbSession::open`].
    pub fn open(system: &MysqlSystem, ycsb: &Ycsb) -> Result<YcsbTerminal, SystemError> {
        Ok(YcsbTerminal { mysql: YcsbSession::open(system, ycsb)?, layout: ycsb.layout, verify: false })
    }
}

impl Terminal for YcsbTerminal {
    fn socket(&self) -> &Socket {
        self.mysql.socket()
    }

    fn begin(&mut self, transaction: &YcsbTransaction<'_>, _shared: &mut Vec<u8>) -> Result<(), SystemError> {
        match *transaction {
            YcsbTransaction::Read { key, verify } => {
                self.verify = verify;
                self.mysql.begin_read(key)
            }
            YcsbTransaction::Update { key, field, value } => {
                self.verify = false;
                self.mysql.begin_update(key, field, value, false)
            }
        }
    }

    fn go_on(&mut self, _shared: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
        Ok(self.mysql.go_on()?.map(|found| match found {
            true => KeyResult::Done {
                verified: self.verify.then(|| self.layout.verify_record(self.mysql.key, self.mysql.record())),
            },
            false => KeyResult::NoSuchKey,
        }))
    }

    fn take_retries(&mut self) -> Vec<&'static str> {
        self.mysql.take_retries()
    }

    fn overdue(&self, waited: Duration) -> Option<SystemError> {
        self.mysql.overdue(waited)
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
