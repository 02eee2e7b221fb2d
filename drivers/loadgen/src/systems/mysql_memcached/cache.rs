//! What is asked of Memcached, through a connection that waits for the answers.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use memcache::exp::{Error, MetaCommand, MetaOp, ReturnCode};
use serde_json::{Map, Value};

use super::link::{Answer, Link};
use crate::system::{Address, SystemError};

/// Name of the server in errors, counters and settings.
pub const SERVER: &str = "memcached";
/// Where the server listens.
pub const ADDRESS: Address = ("memcached_address", |endpoint| endpoint.memcached_address.as_deref());

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Memcached answers from memory; one that takes this long is dead.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    Yes,
    /// Another value was there first (`add`), or another version is there (`replace`).
    No,
    /// The server could not, for example for want of memory in the item's slab class.
    Refused,
}

/// One of several changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Stores a value, in place of an older one.
    Set(String, Vec<u8>),
    /// Stores a value unless the key has one.
    Add(String, Vec<u8>),
    /// Removes a key.
    Delete(String),
}

impl Change {
    fn command(&self) -> MetaCommand {
        match self {
            Change::Set(key, value) => MetaCommand::new(MetaOp::Set, key.as_str()).value(value.as_slice()),
            Change::Add(key, value) => MetaCommand::new(MetaOp::Set, key.as_str()).flag("ME").value(value.as_slice()),
            Change::Delete(key) => MetaCommand::new(MetaOp::Delete, key.as_str()),
        }
    }
}

/// What became of several changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changed {
    /// Values added.
    pub filled: u64,
    /// Values that the server could not store.
    pub refused: u64,
}

/// One connection.
pub struct Cache {
    link: Link,
    address: String,
}

impl Cache {
    /// # Errors
    /// [`SystemError::Connect`] when nothing answers at the address.
    pub fn connect(address: &str) -> Result<Cache, SystemError> {
        let refuse = |error: std::io::Error| SystemError::Connect {
            server: SERVER,
            address: address.to_owned(),
            reason: error.to_string(),
        };
        let link = Link::new(stream(address)?, ANSWER_TIMEOUT).map_err(refuse)?;
        Ok(Cache { link, address: address.to_owned() })
    }

    /// The value of a key, if it is there.
    ///
    /// # Errors
    /// As every call here: [`SystemError::Lost`] when the connection broke, [`SystemError::Server`]
    /// when Memcached answers with an error.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, SystemError> {
        Ok(self.ask(MetaCommand::new(MetaOp::Get, key).flag("v"))?.value)
    }

    /// Stores a value, in place of an older one.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<Stored, SystemError> {
        self.store(MetaCommand::new(MetaOp::Set, key).value(value))
    }

    /// Stores a value unless the key has one.
    pub fn add(&mut self, key: &str, value: &[u8]) -> Result<Stored, SystemError> {
        self.store(MetaCommand::new(MetaOp::Set, key).flag("ME").value(value))
    }

    /// The value of a key and its version, if it is there.
    pub fn get_with_version(&mut self, key: &str) -> Result<Option<(Vec<u8>, u64)>, SystemError> {
        let Answer { header, value } = self.ask(MetaCommand::new(MetaOp::Get, key).flag("v").flag("c"))?;
        let version = header.flags().find_map(|flag| std::str::from_utf8(flag).ok()?.strip_prefix('c')?.parse().ok());
        Ok(value.zip(version))
    }

    /// Stores a value in place of a version of it, unless there is another one by now, or none.
    pub fn replace(&mut self, key: &str, value: &[u8], version: u64) -> Result<Stored, SystemError> {
        self.store(MetaCommand::new(MetaOp::Set, key).flag(format!("C{version}")).value(value))
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &str) -> Result<(), SystemError> {
        self.ask(MetaCommand::new(MetaOp::Delete, key)).map(drop)
    }

    /// The values of several keys, in their order, in one round trip.
    pub fn get_many(&mut self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, SystemError> {
        let commands: Vec<_> = keys.iter().map(|key| MetaCommand::new(MetaOp::Get, key.as_str()).flag("v")).collect();
        let answers = self.link.exchange(&commands).map_err(|error| self.error(error))?;
        answers.into_iter().map(|answer| Ok(answer.map_err(|error| self.error(error))?.value)).collect()
    }

    /// Changes several keys in one round trip; a key whose value is refused is deleted.
    pub fn change(&mut self, changes: &[Change]) -> Result<Changed, SystemError> {
        let commands: Vec<_> = changes.iter().map(Change::command).collect();
        let answers = self.link.exchange(&commands).map_err(|error| self.error(error))?;
        let mut changed = Changed::default();
        for (change, answer) in changes.iter().zip(answers) {
            match (change, answer) {
                (Change::Add(..), Ok(answer)) => changed.filled += u64::from(answer.header.rc() == ReturnCode::Hd),
                (_, Ok(_)) => {}
                (Change::Set(key, _) | Change::Add(key, _), Err(Error::Server(_))) => {
                    changed.refused += 1;
                    self.delete(key)?;
                }
                (_, Err(error)) => return Err(self.error(error)),
            }
        }
        Ok(changed)
    }

    fn store(&mut self, command: MetaCommand) -> Result<Stored, SystemError> {
        match self.answer(command) {
            Ok(answer) if answer.header.rc() == ReturnCode::Hd => Ok(Stored::Yes),
            Ok(_) => Ok(Stored::No),
            Err(Error::Server(_)) => Ok(Stored::Refused),
            Err(error) => Err(self.error(error)),
        }
    }

    fn ask(&mut self, command: MetaCommand) -> Result<Answer, SystemError> {
        self.answer(command).map_err(|error| self.error(error))
    }

    fn answer(&mut self, command: MetaCommand) -> Result<Answer, Error> {
        self.link.exchange(&[command])?.swap_remove(0)
    }

    fn error(&self, error: Error) -> SystemError {
        let address = self.address.clone();
        match error {
            Error::Io(io) if io.kind() == std::io::ErrorKind::WouldBlock => {
                SystemError::Lost { server: SERVER, address, reason: "no answer in time".to_owned() }
            }
            Error::Io(io) => SystemError::Lost { server: SERVER, address, reason: io.to_string() },
            Error::Server(message) | Error::Rejected(message) => {
                SystemError::Server { server: SERVER, address, code: "SERVER_ERROR".to_owned(), message }
            }
            other => SystemError::Lost { server: SERVER, address, reason: other.to_string() },
        }
    }
}

/// A new connection's socket.
///
/// # Errors
/// [`SystemError::Connect`] when nothing answers at the address.
pub fn stream(address: &str) -> Result<TcpStream, SystemError> {
    let refuse = |reason: String| SystemError::Connect { server: SERVER, address: address.to_owned(), reason };
    let resolved = address
        .to_socket_addrs()
        .map_err(|error| refuse(error.to_string()))?
        .next()
        .ok_or_else(|| refuse("the name has no address".to_owned()))?;
    let stream = TcpStream::connect_timeout(&resolved, CONNECT_TIMEOUT).map_err(|error| refuse(error.to_string()))?;
    stream.set_nodelay(true).map_err(|error| refuse(error.to_string()))?;
    Ok(stream)
}

/// Forgets everything.
///
/// # Errors
/// As [`stats`].
pub fn clear(address: &str) -> Result<(), SystemError> {
    lines(address, "flush_all", "OK").map(drop)
}

/// All of `stats`: numbers as numbers, the rest as text.
///
/// # Errors
/// [`SystemError::Connect`] when nothing answers at the address; else as [`Cache::get`].
pub fn stats(address: &str) -> Result<Map<String, Value>, SystemError> {
    let lines = lines(address, "stats", "END")?;
    let stat = |line: &String| {
        let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
        let number = value.parse::<u64>().map(Value::from);
        Some((name.to_owned(), number.unwrap_or_else(|_| Value::from(value))))
    };
    Ok(lines.iter().filter_map(stat).collect())
}

/// What a new connection answers to a command of the text protocol.
fn lines(address: &str, command: &str, last: &str) -> Result<Vec<String>, SystemError> {
    let mut cache = Cache::connect(address)?;
    cache.link.lines(command, last).map_err(|error| cache.error(error))
}

/// The numbers among `stats`.
///
/// # Errors
/// As [`stats`].
pub fn counters(address: &str) -> Result<Map<String, Value>, SystemError> {
    let mut stats = stats(address)?;
    stats.retain(|_, value| value.is_u64());
    Ok(stats)
}

/// What among `stats` is a setting.
///
/// # Errors
/// As [`stats`].
pub fn settings(address: &str) -> Result<Map<String, Value>, SystemError> {
    let mut stats = stats(address)?;
    stats.retain(|name, _| ["limit_maxbytes", "max_connections", "threads", "version"].contains(&name.as_str()));
    Ok(stats)
}

/// # Errors
/// As [`stats`].
pub fn version(address: &str) -> Result<String, SystemError> {
    Ok(stats(address)?.get("version").and_then(Value::as_str).unwrap_or_default().to_owned())
}
