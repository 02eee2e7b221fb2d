//! YCSB on the engine: loading, prewarming, terminals.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anticache_engine::client::Client;

use super::{AnticacheSystem, BulkClient, LOAD_OUTSTANDING, SERVER, complete, count, system_error, tuples};
use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, Completion, Connection, SystemError};
use crate::workload::Transaction;
use crate::ycsb::{KeyOrder, RecordLayout, Ycsb, YcsbTransaction};

/// Records of one loading round of a thread, shared out to the partitions.
const LOAD_RECORDS: u64 = 256;
/// Prewarming reads that are outstanding: as many as fig06 has terminals.
const PREWARM_OUTSTANDING: usize = 64;
/// Steps from the coldest to the hottest record of prewarming. Inside of one the keys ascend, as they lie
/// in the blocks, so that reads that need the same block share its fetch; in the order of the ranks alone
/// nearly every record would cost a whole block.
const PREWARM_STEPS: u64 = 16;

/// Loads all records in ascending order of their keys, oldest first.
pub(super) fn load(system: &AnticacheSystem, ycsb: &Ycsb, work: BulkWork<'_>) -> Result<u64, SystemError> {
    let records = ycsb.spec.records;
    system.check_empty()?;
    let progress = Progress::start("load anticached", records, "records");
    let chunks = Chunks { order: Order::Shared, total: records, chunk: LOAD_RECORDS, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || Loader::open(system, ycsb, &progress))?;
    let elapsed_s = progress.elapsed_s();
    progress.finish(format!("{records} records in {elapsed_s:.1} s; counting"));
    let found = tuples(&system.stats()?);
    if found != records {
        return Err(SystemError::Data(format!("{SERVER} holds {found} tuples after loading, not {records}")));
    }
    Ok(records)
}

/// Memory is the primary storage: loading in order of age has left the newest records in it, which are
/// the hottest where the keys are clustered. Where they are scattered the hottest are read, coldest of
/// them first, as many as are in memory at a time: the others are evicted for them.
pub(super) fn prewarm(system: &AnticacheSystem, ycsb: &Ycsb, work: BulkWork<'_>) -> Result<String, SystemError> {
    let stats = system.stats()?;
    if ycsb.spec.key_order == KeyOrder::Clustered {
        return Ok(format!("{SERVER}: loading left the newest, hottest records in memory"));
    }
    if count(&stats, "tuples_evicted") == 0 {
        return Ok(format!("{SERVER}: all records are in memory"));
    }
    let hottest = count(&stats, "tuples_resident").min(ycsb.spec.records);
    let progress = Progress::start("prewarm anticached", hottest, "records");
    read_hottest(system, ycsb, hottest, work, &progress)?;
    let summary = format!("read the {hottest} hottest records in {:.1} s", progress.elapsed_s());
    progress.finish(&summary);
    Ok(format!("{SERVER}: {summary}, it holds {} in memory", count(&system.stats()?, "tuples_resident")))
}

fn read_hottest(
    system: &AnticacheSystem,
    ycsb: &Ycsb,
    hottest: u64,
    work: BulkWork<'_>,
    progress: &Progress,
) -> Result<(), SystemError> {
    let (mut bulk, read) = BulkClient::open(system, "ycsb_read")?;
    let step = hottest.div_ceil(PREWARM_STEPS).max(1);
    for first in (0..hottest).step_by(step as usize) {
        let positions = first..hottest.min(first + step);
        let mut keys: Vec<i64> = positions.map(|position| ycsb.key_of_rank(hottest - position)).collect();
        keys.sort_unstable();
        for key in keys {
            if work.interrupt.requested() {
                return Err(SystemError::Interrupted);
            }
            bulk.client.submit(0, bulk.client.partition_of(key), read, &key.to_le_bytes());
            bulk.wait_until_at_most(PREWARM_OUTSTANDING - 1)?;
            progress.add(1);
        }
        // The next step is hotter: all of this one comes before it.
        bulk.wait_until_at_most(0)?;
    }
    Ok(())
}

/// What a terminal waits for.
#[derive(Clone, Copy)]
struct Pending {
    key: i64,
    /// Whether the reply is a record to be checked.
    verify: bool,
}

/// The connection of a group of terminals; a request's token is its terminal.
pub(super) struct YcsbConnection {
    address: SocketAddr,
    client: Client,
    read: u16,
    update: u16,
    layout: RecordLayout,
    first_terminal: u32,
    pending: Vec<Pending>,
    parameters: Vec<u8>,
}

impl YcsbConnection {
    pub(super) fn open(
        system: &AnticacheSystem,
        ycsb: &Ycsb,
        terminals: Range<u32>,
    ) -> Result<YcsbConnection, SystemError> {
        let client = system.terminals_client(terminals.len())?;
        let procedure = |name| client.procedure(name).map_err(|error| system_error(system.address, &error));
        Ok(YcsbConnection {
            address: system.address,
            read: procedure("ycsb_read")?,
            update: procedure("ycsb_update")?,
            client,
            layout: ycsb.layout,
            first_terminal: terminals.start,
            pending: vec![Pending { key: 0, verify: false }; terminals.len()],
            parameters: Vec::new(),
        })
    }
}

impl YcsbConnection {
    fn complete(&mut self, limit: Option<Duration>, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let (pending, layout, first_terminal) = (&self.pending, self.layout, self.first_terminal);
        complete(&mut self.client, self.address, limit, completions, |terminal, ended| {
            let Pending { key, verify } = pending[(terminal - first_terminal) as usize];
            Ok(ended.ok().filter(|_| verify).map(|record| layout.verify_record(key, record)))
        })
    }
}

impl Connection for YcsbConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Ycsb(transaction) = *transaction else {
            return Err(SystemError::Data(format!("{SERVER}: a transaction of another benchmark than YCSB")));
        };
        self.parameters.clear();
        let (key, verify, procedure) = match transaction {
            YcsbTransaction::Read { key, verify } => (key, verify, self.read),
            YcsbTransaction::Update { key, .. } => (key, false, self.update),
        };
        self.parameters.extend_from_slice(&key.to_le_bytes());
        if let YcsbTransaction::Update { field, value, .. } = transaction {
            self.parameters.extend_from_slice(&field.to_le_bytes());
            self.parameters.extend_from_slice(value);
        }
        self.pending[(terminal - self.first_terminal) as usize] = Pending { key, verify };
        let partition = self.client.partition_of(key);
        self.client.submit(u64::from(terminal), partition, procedure, &self.parameters);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.complete(None, completions)
    }

    fn wait_for(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.complete(Some(limit), completions)
    }
}

/// One loading thread.
struct Loader<'a> {
    bulk: BulkClient,
    procedure: u16,
    ycsb: &'a Ycsb,
    progress: &'a Progress,
    /// Per partition: the number of records so far, and the request's parameters.
    batches: Vec<(u32, Vec<u8>)>,
}

impl<'a> Loader<'a> {
    fn open(system: &AnticacheSystem, ycsb: &'a Ycsb, progress: &'a Progress) -> Result<Loader<'a>, SystemError> {
        let (bulk, procedure) = BulkClient::open(system, "ycsb_load")?;
        let batches = vec![(0, Vec::new()); bulk.client.partitions() as usize];
        Ok(Loader { bulk, procedure, ycsb, progress, batches })
    }
}

impl ChunkWorker for Loader<'_> {
    fn work(&mut self, keys: Range<u64>) -> Result<(), SystemError> {
        let count = keys.end - keys.start;
        for key in keys {
            let key = key as i64;
            let (records, parameters) = &mut self.batches[self.bulk.client.partition_of(key) as usize];
            if *records == 0 {
                // Room for the count, which is known at the end.
                parameters.clear();
                parameters.extend_from_slice(&[0; 4]);
            }
            *records += 1;
            parameters.extend_from_slice(&key.to_le_bytes());
            self.ycsb.push_initial_record(key, parameters);
        }
        for (partition, (records, parameters)) in self.batches.iter_mut().enumerate() {
            if *records > 0 {
                parameters[..4].copy_from_slice(&records.to_le_bytes());
                self.bulk.client.submit(0, partition as u32, self.procedure, parameters);
                *records = 0;
            }
        }
        self.bulk.wait_until_at_most(LOAD_OUTSTANDING)?;
        self.progress.add(count);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SystemError> {
        self.bulk.wait_until_at_most(0)
    }
}
