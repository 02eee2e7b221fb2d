//! What a system has to do to take part.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::data::{Mix, Row, Value};
use crate::harness::ycsb::ROW_BYTES;
use crate::server::Server;

/// Operations between two looks at the clock, where one takes about a microsecond.
const BETWEEN_LOOKS: usize = 256;

/// Requests under way while records are loaded, by a client that does not wait for each answer.
pub const LOADS_OUTSTANDING: usize = 64;

/// A system with the records loaded.
pub trait Peer {
    /// What it is and how it is set.
    fn settings(&self) -> String;

    /// Streams of operations that run side by side: of `n`, stream `i` executes the operations `i`, `i + n`, `i + 2n`, ….
    fn lanes(&self) -> usize {
        1
    }

    /// Has it keep so many requests under way from now on; answers whether it takes more than one from a connection, and so does.
    fn set_outstanding(&mut self, _outstanding: usize) -> bool {
        false
    }

    /// Executes operations for some time; `done` counts those of each lane, which goes on where it stopped.
    ///
    /// # Errors
    /// When one fails.
    fn run(&mut self, mix: &Mix, done: &mut [usize], duration: Duration) -> anyhow::Result<()>;

    /// Copies a record out.
    ///
    /// # Errors
    /// When it is not there.
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()>;
}

/// One caller's access to a store that does one operation at a time; each is a transaction of its own.
pub trait Store {
    /// Copies a record out.
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()>;

    /// Writes one field of a record.
    fn update(&mut self, key: i64, field: u16, value: &Value) -> anyhow::Result<()>;
}

/// Copies what a store holds of a record.
///
/// # Errors
/// When there is none or it is of another length.
pub fn copy_row(key: i64, held: Option<&[u8]>, row: &mut Row) -> anyhow::Result<()> {
    let held = held.with_context(|| format!("record {key} is not there"))?;
    anyhow::ensure!(held.len() == ROW_BYTES, "record {key} has {} bytes", held.len());
    row.copy_from_slice(held);
    Ok(())
}

/// Writes one field into a record that was copied out.
pub fn set_field(row: &mut Row, field: u16, value: &Value) {
    row[usize::from(field) * value.len()..][..value.len()].copy_from_slice(value);
}

/// One lane's operations, from where it stopped.
fn run_lane(
    store: &mut impl Store,
    mix: &Mix,
    (lane, lanes): (usize, usize),
    done: &mut usize,
    (duration, between_looks): (Duration, usize),
) -> anyhow::Result<()> {
    let (started, mut row) = (Instant::now(), [0; ROW_BYTES]);
    while started.elapsed() < duration {
        for _ in 0..between_looks {
            let operation = mix.operation(lane + *done * lanes);
            match operation.field {
                None => store.read(operation.key, &mut row)?,
                Some(field) => store.update(operation.key, field, mix.value(operation))?,
            }
            black_box(&row);
            *done += 1;
        }
    }
    Ok(())
}

/// A store in this process, used by one thread.
pub struct Embedded<S> {
    pub store: S,
    pub settings: String,
}

impl<S: Store> Peer for Embedded<S> {
    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn run(&mut self, mix: &Mix, done: &mut [usize], duration: Duration) -> anyhow::Result<()> {
        run_lane(&mut self.store, mix, (0, 1), &mut done[0], (duration, BETWEEN_LOOKS))
    }

    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        self.store.read(key, row)
    }
}

/// Connections to a server whose client waits for each answer: a thread for each of them.
pub struct Terminals<S> {
    pub connections: Vec<S>,
    pub settings: String,
    /// Stopped when this is dropped, after the connections.
    pub server: Server,
}

impl<S: Store + Send> Peer for Terminals<S> {
    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn lanes(&self) -> usize {
        self.connections.len()
    }

    fn run(&mut self, mix: &Mix, done: &mut [usize], duration: Duration) -> anyhow::Result<()> {
        let lanes = self.connections.len();
        std::thread::scope(|scope| {
            let terminals = self.connections.iter_mut().zip(done).enumerate().map(|(lane, (connection, done))| {
                scope.spawn(move || run_lane(connection, mix, (lane, lanes), done, (duration, 1)))
            });
            let terminals: Vec<_> = terminals.collect();
            terminals.into_iter().try_for_each(|terminal| terminal.join().expect("a terminal does not panic"))
        })
        .with_context(|| self.server.last_words())
    }

    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        self.connections[0].read(key, row)
    }
}
