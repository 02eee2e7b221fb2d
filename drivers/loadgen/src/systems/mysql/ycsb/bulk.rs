//! Loading, counting and warming YCSB's table.

use std::ops::Range;

use mysql::prelude::Queryable;
use mysql::{Params, Statement, Value};

use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, SystemError};
use crate::systems::mysql::session::{MysqlServer, Session, Use};
use crate::ycsb::{YCSB_KEY, YCSB_TABLE, Ycsb};

/// Payload of one multi-row INSERT: large enough to amortise the round trip and the commit, small
/// enough for any `max_allowed_packet`.
const INSERT_BYTES: usize = 256 << 10;
/// Limit of the protocol for one prepared statement.
const MAX_PARAMETERS: usize = 65_535;
/// Keys of one warming query.
const WARM_KEYS: u64 = 256;

/// Loads the records into the fresh table and counts them.
pub fn load(server: &MysqlServer, ycsb: &Ycsb, work: BulkWork<'_>) -> Result<u64, SystemError> {
    let records = ycsb.spec.records;
    let rows = rows_per_insert(ycsb);
    let progress = Progress::start("load mysqld", records, "records");
    let chunks = Chunks {
        // Chunks of several threads between each other would leave InnoDB's pages half empty.
        order: Order::Ranges,
        total: records,
        chunk: rows as u64,
        threads: work.threads,
    };
    for_each_chunk(chunks, work.interrupt, || Loader::open(server, ycsb, rows, &progress))?;
    let elapsed_s = progress.elapsed_s();
    progress.finish(format!("{records} records in {elapsed_s:.1} s; counting"));
    verify_count(server, records)?;
    // The statistics date from the first rows: with them, a long IN list would scan the whole table,
    // and a kept data set carries them to every later deployment.
    server.connect(Use::Bulk)?.execute(&format!("ANALYZE TABLE {YCSB_TABLE}"))?;
    Ok(records)
}

fn rows_per_insert(ycsb: &Ycsb) -> usize {
    let by_size = INSERT_BYTES / (ycsb.layout.record_bytes() + 8);
    let by_parameters = MAX_PARAMETERS / (ycsb.layout.fields + 1);
    by_size.min(by_parameters).max(1)
}

fn verify_count(server: &MysqlServer, records: u64) -> Result<(), SystemError> {
    let query = format!("SELECT SQL_NO_CACHE COUNT(*), MIN({YCSB_KEY}), MAX({YCSB_KEY}) FROM {YCSB_TABLE}");
    let found: Option<(u64, Option<i64>, Option<i64>)> = server.connect(Use::Bulk)?.query_first(&query)?;
    let expected = (records, Some(0), Some(records as i64 - 1));
    if found == Some(expected) {
        return Ok(());
    }
    let message = format!("{YCSB_TABLE}: (count, lowest, highest key) is {found:?} after loading, not {expected:?}");
    Err(SystemError::Data(message))
}

struct Loader<'a> {
    session: Session,
    ycsb: &'a Ycsb,
    rows: usize,
    insert: Statement,
    progress: &'a Progress,
    record: Vec<u8>,
}

impl<'a> Loader<'a> {
    fn open(
        server: &MysqlServer,
        ycsb: &'a Ycsb,
        rows: usize,
        progress: &'a Progress,
    ) -> Result<Loader<'a>, SystemError> {
        let mut session = server.connect(Use::Bulk)?;
        let insert = session.prepare(&insert_text(ycsb, rows))?;
        Ok(Loader { session, ycsb, rows, insert, progress, record: Vec::new() })
    }

    fn parameters(&mut self, keys: Range<u64>) -> Params {
        let layout = self.ycsb.layout;
        let mut values = Vec::with_capacity(self.rows * (layout.fields + 1));
        for key in keys {
            self.record.clear();
            self.ycsb.push_initial_record(key as i64, &mut self.record);
            values.push(Value::from(key));
            values.extend(self.record.chunks_exact(layout.field_bytes).map(Value::from));
        }
        Params::Positional(values)
    }
}

impl ChunkWorker for Loader<'_> {
    fn work(&mut self, keys: Range<u64>) -> Result<(), SystemError> {
        let count = keys.end - keys.start;
        if count != self.rows as u64 {
            self.insert = self.session.prepare(&insert_text(self.ycsb, count as usize))?;
            self.rows = count as usize;
        }
        let parameters = self.parameters(keys);
        self.session.run(|connection| connection.exec_drop(&self.insert, parameters))?;
        self.progress.add(count);
        Ok(())
    }
}

fn insert_text(ycsb: &Ycsb, rows: usize) -> String {
    let row = format!("(?{})", ",?".repeat(ycsb.layout.fields));
    format!("INSERT INTO {YCSB_TABLE} VALUES {}", vec![row; rows].join(","))
}

/// Reads the hottest records, coldest of them first, as many as the buffer pool holds, so that a
/// trial starts from a pool like the one that a long run would leave. The paper's warm-up of 120 s
/// does the same on its scale; short trials cannot.
pub fn prewarm_buffer_pool(server: &MysqlServer, ycsb: &Ycsb, work: BulkWork<'_>) -> Result<String, SystemError> {
    let records = records_in_buffer_pool(server, ycsb)?;
    let progress = Progress::start("prewarm mysqld", records, "records");
    let chunks = Chunks { order: Order::Shared, total: records, chunk: WARM_KEYS, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || {
        let session = server.connect(Use::Bulk)?;
        Ok(Warmer { session, ycsb, records, progress: &progress })
    })?;
    let summary = format!("read the {records} hottest records in {:.1} s", progress.elapsed_s());
    progress.finish(&summary);
    Ok(format!("mysqld: {summary}"))
}

fn records_in_buffer_pool(server: &MysqlServer, ycsb: &Ycsb) -> Result<u64, SystemError> {
    let query = format!(
        "SELECT DATA_LENGTH, @@innodb_buffer_pool_size FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{YCSB_TABLE}'"
    );
    let Some((table_bytes, pool_bytes)) = server.connect(Use::Bulk)?.query_first::<(u64, u64)>(&query)? else {
        return Err(SystemError::Data(format!("mysqld has no table {YCSB_TABLE}: load the data set first")));
    };
    let records = ycsb.spec.records;
    let stored_bytes = (table_bytes / records).max(ycsb.layout.record_bytes() as u64);
    Ok(records.min(pool_bytes / stored_bytes))
}

struct Warmer<'a> {
    session: Session,
    ycsb: &'a Ycsb,
    records: u64,
    progress: &'a Progress,
}

impl ChunkWorker for Warmer<'_> {
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
        let count = chunk.end - chunk.start;
        let keys = keys_of(self.ycsb, self.records, chunk);
        let query = format!("SELECT SQL_NO_CACHE SUM(LENGTH(field0)) FROM {YCSB_TABLE} WHERE {YCSB_KEY} IN ({keys})");
        self.session.execute(&query)?;
        self.progress.add(count);
        Ok(())
    }
}

/// The keys of a chunk of the `hottest` hottest records, numbered from the coldest, with commas
/// between them.
pub fn keys_of(ycsb: &Ycsb, hottest: u64, chunk: Range<u64>) -> String {
    let keys: Vec<String> = chunk.map(|position| ycsb.key_of_rank(hottest - position).to_string()).collect();
    keys.join(",")
}
