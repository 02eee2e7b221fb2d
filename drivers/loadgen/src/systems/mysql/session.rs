//! Connections to mysqld, the framing of transactions and the retries.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use mysql::consts::CapabilityFlags;
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder};
use serde_json::{Map, Value};

use crate::spec::{Endpoint, MysqlTransaction, SecretText};
use crate::system::SystemError;
use crate::systems::sockets::Socket;

/// Name of the server in errors, counters and settings.
pub const SERVER: &str = "mysqld";

/// Database of the harness.
pub const DEFAULT_DATABASE: &str = "anticache_eval";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that stops acknowledging packets (power cut, network down) is given up after this time.
const PEER_TIMEOUT_MS: u32 = 10_000;
/// What an answer may take beyond the longest legitimate wait, which is the one for a row lock.
const ANSWER_SLACK: Duration = Duration::from_secs(10);
/// Limit of a question about counters or settings.
const INSPECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of bulk statements, such as counting all rows on a slow disk.
const BULK_TIMEOUT: Duration = Duration::from_secs(3600);

/// What a connection is for; decides its session settings and time limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Terminals: framed as the specification says.
    Transactions(MysqlTransaction),
    /// Loading, counting: autocommit, patient.
    Bulk,
    /// Counters and settings: autocommit, quick or not at all.
    Inspection,
}

/// Where mysqld is and how to log in.
#[derive(Debug, Clone)]
pub struct MysqlServer {
    pub address: String,
    pub database: String,
    user: String,
    password: SecretText,
    /// `innodb_lock_wait_timeout` as the server reports it.
    lock_wait: Duration,
}

impl MysqlServer {
    /// Takes the address from the endpoint and asks the server for its lock wait limit.
    ///
    /// # Errors
    /// [`SystemError::Connect`] when it does not answer.
    pub fn open(endpoint: &Endpoint) -> Result<MysqlServer, SystemError> {
        let or = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_owned());
        let mut server = MysqlServer {
            address: or(&endpoint.mysql_address, ""),
            database: or(&endpoint.mysql_database, DEFAULT_DATABASE),
            user: or(&endpoint.mysql_user, "root"),
            password: endpoint.mysql_password.clone().unwrap_or_default(),
            lock_wait: Duration::ZERO,
        };
        let mut session = server.connect_without_database(Use::Inspection)?;
        let seconds: Option<u64> = session.query_first("SELECT @@innodb_lock_wait_timeout")?;
        server.lock_wait = Duration::from_secs(seconds.unwrap_or(50));
        Ok(server)
    }

    /// Connects to the harness's database.
    ///
    /// # Errors
    /// [`SystemError::Connect`] when the server does not answer, [`SystemError::Server`] when it refuses.
    pub fn connect(&self, purpose: Use) -> Result<Session, SystemError> {
        self.connect_to(Some(&self.database), purpose)
    }

    /// How long a terminal waits for an answer: longer than for any row lock.
    pub fn answer_limit(&self) -> Duration {
        self.lock_wait + ANSWER_SLACK
    }

    /// Connects without a database: for creating it, or where it does not matter.
    ///
    /// # Errors
    /// As [`MysqlServer::connect`].
    pub fn connect_without_database(&self, purpose: Use) -> Result<Session, SystemError> {
        self.connect_to(None, purpose)
    }

    fn connect_to(&self, database: Option<&str>, purpose: Use) -> Result<Session, SystemError> {
        match Conn::new(self.options(database, purpose)) {
            Ok(connection) => Ok(Session { connection, address: self.address.clone(), purpose }),
            Err(mysql::Error::MySqlError(error)) => Err(reported(&self.address, error.code, error.message)),
            Err(error) => {
                Err(SystemError::Connect { server: SERVER, address: self.address.clone(), reason: reason(&error) })
            }
        }
    }

    fn options(&self, database: Option<&str>, purpose: Use) -> Opts {
        let (host, port) = self.address.rsplit_once(':').unwrap_or((&self.address, "3306"));
        let autocommit = purpose != Use::Transactions(MysqlTransaction::Explicit);
        let answer_timeout = match purpose {
            Use::Transactions(_) => self.answer_limit(),
            Use::Bulk => BULK_TIMEOUT,
            Use::Inspection => INSPECTION_TIMEOUT,
        };
        OptsBuilder::new()
            .ip_or_hostname(Some(host))
            .tcp_port(port.parse().unwrap_or(3306))
            .prefer_socket(false)
            .user(Some(&self.user))
            .pass(Some(self.password.reveal()).filter(|password| !password.is_empty()))
            .db_name(database)
            .tcp_connect_timeout(Some(CONNECT_TIMEOUT))
            .tcp_keepalive_time_ms(Some(PEER_TIMEOUT_MS))
            .tcp_user_timeout_ms(Some(PEER_TIMEOUT_MS))
            .read_timeout(Some(answer_timeout))
            .write_timeout(Some(answer_timeout))
            // An UPDATE reports the rows it matched: none means that the key does not exist.
            .additional_capabilities(CapabilityFlags::CLIENT_FOUND_ROWS)
            // Adapters hold their statements themselves; a cache could close one under them.
            .stmt_cache_size(0)
            .init(vec![
                // The tables' character set: no conversion on the way.
                "SET NAMES latin1".to_owned(),
                "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE".to_owned(),
                // DATETIME columns hold UTC, as the engine's dates do; nothing may depend on where the server stands.
                "SET SESSION time_zone = '+00:00'".to_owned(),
                format!("SET SESSION autocommit = {}", u8::from(autocommit)),
            ])
            .into()
    }
}

/// Why the statements of a transaction did not reach their end.
#[derive(Debug)]
pub enum Failure {
    /// An error of mysqld; deadlocks and lock wait limits are repeated.
    Mysql(mysql::Error),
    /// An error that ends the trial.
    System(SystemError),
    /// The benchmark's logic wants nothing of it to remain, for this reason.
    RollBack(&'static str),
}

impl From<mysql::Error> for Failure {
    fn from(error: mysql::Error) -> Failure {
        Failure::Mysql(error)
    }
}

impl From<SystemError> for Failure {
    fn from(error: SystemError) -> Failure {
        Failure::System(error)
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended<T> {
    Committed(T),
    /// See [`Failure::RollBack`].
    RolledBack(&'static str),
}

/// One connection.
pub struct Session {
    pub connection: Conn,
    address: String,
    purpose: Use,
}

impl Session {
    /// Prepares a statement.
    ///
    /// # Errors
    /// As every call here: [`SystemError::Server`] for an error that mysqld reports,
    /// [`SystemError::Lost`] for a connection that broke.
    pub fn prepare(&mut self, statement: &str) -> Result<mysql::Statement, SystemError> {
        self.connection.prep(statement).map_err(|error| system_error(&self.address, &error))
    }

    /// The connection's socket, for a thread that serves many. From then on no call of the session may speak to the server: it would not wait for the answer.
    pub fn socket(&self) -> Result<Socket, SystemError> {
        let descriptor = self.connection.as_raw_fd();
        // SAFETY: the connection, borrowed here, owns the open descriptor; it is duplicated before the borrow ends.
        let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        duplicate.and_then(|duplicate| Socket::new(TcpStream::from(duplicate))).map_err(|error| self.broken(&error))
    }

    /// The error of a socket that broke.
    pub fn broken(&self, error: &io::Error) -> SystemError {
        self.lost(io_reason(error))
    }

    /// The error of a connection that is of no use any longer.
    pub fn lost(&self, reason: String) -> SystemError {
        lost(&self.address, reason)
    }

    /// The error of what mysqld reports by that number.
    pub fn failed(&self, code: u16, message: String) -> SystemError {
        reported(&self.address, code, message)
    }

    /// Whether each transaction is ended by a `COMMIT`.
    pub fn is_explicit(&self) -> bool {
        self.purpose == Use::Transactions(MysqlTransaction::Explicit)
    }

    /// Executes statements given as text and ignores their results.
    pub fn execute(&mut self, statements: &str) -> Result<(), SystemError> {
        self.connection.query_drop(statements).map_err(|error| system_error(&self.address, &error))
    }

    /// First row of a query.
    pub fn query_first<T: mysql::prelude::FromRow>(&mut self, query: &str) -> Result<Option<T>, SystemError> {
        self.connection.query_first(query).map_err(|error| system_error(&self.address, &error))
    }

    /// Runs `body` outside a client-framed transaction (autocommit connections).
    pub fn run<T>(&mut self, body: impl FnOnce(&mut Conn) -> mysql::Result<T>) -> Result<T, SystemError> {
        body(&mut self.connection).map_err(|error| system_error(&self.address, &error))
    }

    /// Runs the statements of `body` and a `COMMIT` on an explicit connection, repeated as a whole until no deadlock or lock wait limit hits it; each
    /// repetition is appended to `retries`. `body` may give up: [`Ended::RolledBack`].
    pub fn transaction<T>(
        &mut self,
        retries: &mut Vec<&'static str>,
        mut body: impl FnMut(&mut Conn) -> Result<T, Failure>,
    ) -> Result<Ended<T>, SystemError> {
        debug_assert!(self.is_explicit(), "a COMMIT where every statement commits by itself");
        loop {
            let connection = &mut self.connection;
            let mut attempt = || {
                let value = body(connection)?;
                connection.query_drop("COMMIT")?;
                Ok(value)
            };
            let error = match attempt() {
                Ok(value) => return Ok(Ended::Committed(value)),
                Err(Failure::System(error)) => return Err(error),
                Err(Failure::RollBack(reason)) => {
                    self.execute("ROLLBACK")?;
                    return Ok(Ended::RolledBack(reason));
                }
                Err(Failure::Mysql(error)) => error,
            };
            let kind = match &error {
                mysql::Error::MySqlError(error) => retryable(error.code),
                _ => None,
            };
            let Some(kind) = kind else {
                return Err(system_error(&self.address, &error));
            };
            retries.push(kind);
            // 1205 rolls back the statement only, so locks of the transaction may still be held.
            self.execute("ROLLBACK")?;
        }
    }

    /// Rows of a `SHOW … STATUS` or `SHOW … VARIABLES` statement.
    pub fn show(&mut self, statement: &str) -> Result<Map<String, Value>, SystemError> {
        let rows: Vec<(String, String)> = self.run(|connection| connection.query(statement))?;
        Ok(rows.into_iter().map(|(name, value)| (name, Value::from(value))).collect())
    }
}

/// Errors after which the same transaction may succeed, by number: the SQLSTATE of a lock wait limit
/// is the unspecific HY000.
pub fn retryable(code: u16) -> Option<&'static str> {
    match code {
        1205 => Some("1205"),
        1213 => Some("1213"),
        _ => None,
    }
}

/// Numbers by which mysqld announces that it is about to cut the connection: shutdown, killed
/// connection, broken packets.
const CUT_OFF: [u16; 7] = [1053, 1152, 1156, 1158, 1159, 1160, 1161];

fn system_error(address: &str, error: &mysql::Error) -> SystemError {
    match error {
        mysql::Error::MySqlError(error) => reported(address, error.code, error.message.clone()),
        _ => lost(address, reason(error)),
    }
}

fn reported(address: &str, code: u16, message: String) -> SystemError {
    if CUT_OFF.contains(&code) {
        return lost(address, message);
    }
    SystemError::Server { server: SERVER, address: address.to_owned(), code: code.to_string(), message }
}

fn lost(address: &str, reason: String) -> SystemError {
    SystemError::Lost { server: SERVER, address: address.to_owned(), reason }
}

/// One line about an error of the client library or the operating system.
fn reason(error: &mysql::Error) -> String {
    match error {
        mysql::Error::IoError(io) => io_reason(io),
        mysql::Error::DriverError(mysql::DriverError::CouldNotConnect(Some((_, description, _)))) => {
            description.clone()
        }
        other => other.to_string().replace('\n', " "),
    }
}

/// One line about an error of a server's socket.
pub fn io_reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
        ErrorKind::UnexpectedEof => "closed by the server".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mysql_error(code: u16) -> mysql::Error {
        mysql::Error::MySqlError(mysql::MySqlError { state: "HY000".to_owned(), message: "m".to_owned(), code })
    }

    #[test]
    fn deadlocks_and_lock_waits_are_told_by_number() {
        assert_eq!(retryable(1205), Some("1205"));
        assert_eq!(retryable(1213), Some("1213"));
        assert_eq!(retryable(1114), None);
    }

    #[test]
    fn a_shutdown_counts_as_a_lost_connection_and_a_full_table_does_not() {
        assert_eq!(system_error("a:1", &mysql_error(1053)).kind(), "mysqld lost");
        assert_eq!(system_error("a:1", &mysql_error(1114)).kind(), "mysqld 1114");
    }
}
