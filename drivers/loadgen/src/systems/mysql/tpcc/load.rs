//! Loading: `LOAD DATA LOCAL INFILE`, whose file is a stream made on the way.
//!
//! That is the fastest way in that MySQL 5.6 has: no statement per row, and the server parses in one thread while the client makes rows in another.
//! Rows come in the order of the primary key, a warehouse after the other, so that pages are full; secondary indexes are built after the data, sorted.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use anticache_engine::catalog::row::values;
use anticache_engine::catalog::{TableDef, TableId};
use anticache_engine::procedure::tpcc::generate::{Population, TpccTable};
use mysql::LocalInfileHandler;
use mysql::prelude::Queryable;

use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, SystemError};
use crate::systems::mysql::rows::push_infile;
use crate::systems::mysql::session::{MysqlServer, Session, Use};
use crate::tpcc::Tpcc;
use crate::tpcc::data_set::{DATA_SET_TABLE, DataSet};

/// Text that is handed to the connection at a time.
const STREAM_BYTES: usize = 64 << 10;

/// Rows of one table, of one warehouse where it has them.
#[derive(Debug, Clone, Copy)]
struct Part {
    table: TpccTable,
    w_id: i16,
}

/// All parts; tables that take longest come first, so that the threads end together.
fn parts(warehouses: i16) -> Vec<Part> {
    const LONGEST_FIRST: [TpccTable; 9] = [
        TpccTable::OrderLine,
        TpccTable::Stock,
        TpccTable::Customer,
        TpccTable::Item,
        TpccTable::Orders,
        TpccTable::History,
        TpccTable::NewOrder,
        TpccTable::District,
        TpccTable::Warehouse,
    ];
    let of_table = |table| {
        let last = if table == TpccTable::Item { 1 } else { warehouses };
        (1..=last).map(move |w_id| Part { table, w_id })
    };
    LONGEST_FIRST.into_iter().flat_map(of_table).collect()
}

/// Loads all tables, fresh and empty, and counts them.
///
/// # Errors
/// What mysqld refuses; [`SystemError::Data`] when a table has other rows afterwards than it was given.
pub fn load(server: &MysqlServer, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<u64, SystemError> {
    let population = Population::new(&tpcc.catalog, tpcc.scale, tpcc.spec.population_seed)
        .map_err(|error| SystemError::Data(error.to_string()))?;
    let population = Arc::new(population);
    let parts = parts(tpcc.scale.warehouses);
    drop_secondary_indexes(server, tpcc)?;
    let progress = Progress::start("load mysqld", parts.len() as u64, "tables of a warehouse");
    let chunks = Chunks { order: Order::Shared, total: parts.len() as u64, chunk: 1, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || {
        let session = bulk_session(server)?;
        Ok(Loader { session, tpcc, population: &population, parts: &parts, progress: &progress })
    })?;
    let loaded_s = progress.elapsed_s();
    complete_tables(server, tpcc, work)?;
    let records = verify_counts(server, tpcc, &population)?;
    record_data_set(server, tpcc)?;
    let all_s = progress.elapsed_s();
    progress.finish(format!("{records} records in {loaded_s:.1} s, with indexes and statistics in {all_s:.1} s"));
    Ok(records)
}

/// A session that loads rows of which it is known that no two have the same key.
fn bulk_session(server: &MysqlServer) -> Result<Session, SystemError> {
    let mut session = server.connect(Use::Bulk)?;
    session.execute("SET SESSION unique_checks = 0")?;
    Ok(session)
}

/// Names and columns of a table's secondary indexes.
fn secondary_indexes(table: &TableDef) -> impl Iterator<Item = (&str, String)> {
    table.indexes.iter().filter(|index| index.name != "PRIMARY").map(|index| {
        let columns = index.parts[..index.own_parts].iter().map(|part| table.columns[part.column].name.as_str());
        (index.name.as_str(), columns.collect::<Vec<_>>().join(","))
    })
}

fn drop_secondary_indexes(server: &MysqlServer, tpcc: &Tpcc) -> Result<(), SystemError> {
    let mut session = server.connect(Use::Bulk)?;
    for table in tpcc.catalog.tables() {
        for (index, _) in secondary_indexes(table) {
            session.execute(&format!("ALTER TABLE {} DROP KEY {index}", table.name))?;
        }
    }
    Ok(())
}

/// One loading thread.
struct Loader<'a> {
    session: Session,
    tpcc: &'a Tpcc,
    population: &'a Arc<Population>,
    parts: &'a [Part],
    progress: &'a Progress,
}

impl ChunkWorker for Loader<'_> {
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
        for part in &self.parts[chunk.start as usize..chunk.end as usize] {
            self.load(*part)?;
            self.progress.add(1);
        }
        Ok(())
    }
}

impl Loader<'_> {
    fn load(&mut self, part: Part) -> Result<(), SystemError> {
        let (population, catalog) = (Arc::clone(self.population), Arc::clone(&self.tpcc.catalog));
        let handler = LocalInfileHandler::new(move |_, stream| {
            let table = catalog.table(population.table_id(part.table));
            write_rows(table, population.rows(part.table, part.w_id), stream)
        });
        load_stream(&mut self.session, part.table.name(), handler)
    }
}

/// Writes the row that says what is loaded, last of all.
fn record_data_set(server: &MysqlServer, tpcc: &Tpcc) -> Result<(), SystemError> {
    let row = DataSet::wanted(&tpcc.spec, &tpcc.catalog).row(&tpcc.catalog);
    let (id, row) = row.map_err(|error| SystemError::Data(error.to_string()))?;
    let catalog = Arc::clone(&tpcc.catalog);
    let handler =
        LocalInfileHandler::new(move |_, stream| write_rows(catalog.table(id), std::iter::once(row.clone()), stream));
    load_stream(&mut bulk_session(server)?, DATA_SET_TABLE, handler)
}

/// Loads what a handler streams into a table. LOCAL makes warnings of errors, so a warning is one.
fn load_stream(session: &mut Session, table: &str, handler: LocalInfileHandler) -> Result<(), SystemError> {
    session.connection.set_local_infile_handler(Some(handler));
    // The name is never opened: the handler stands for the file.
    let statement = format!("LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET latin1");
    let warnings = session.run(|connection| Ok(connection.query_iter(statement)?.warnings()))?;
    session.connection.set_local_infile_handler(None);
    if warnings > 0 {
        let first: Option<(String, u32, String)> = session.query_first("SHOW WARNINGS")?;
        let first = first.map_or_else(String::new, |(_, code, message)| format!("{code}: {message}"));
        return Err(SystemError::Data(format!("loading {table}: {warnings} warnings, the first {first}")));
    }
    Ok(())
}

/// Writes serialized rows as text, tabs between columns and a line feed behind each row.
fn write_rows(table: &TableDef, rows: impl Iterator<Item = Vec<u8>>, stream: &mut impl Write) -> io::Result<()> {
    let mut text = Vec::with_capacity(2 * STREAM_BYTES);
    for row in rows {
        let values = values(table, &row).map_err(io::Error::other)?;
        for (position, (column, value)) in table.columns.iter().zip(values).enumerate() {
            if position > 0 {
                text.push(b'\t');
            }
            push_infile(column.column_type, value, &mut text);
        }
        text.push(b'\n');
        if text.len() >= STREAM_BYTES {
            stream.write_all(&text)?;
            text.clear();
        }
    }
    stream.write_all(&text)
}

/// Builds the secondary indexes and the optimizer's statistics, which date from the empty tables otherwise.
fn complete_tables(server: &MysqlServer, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<(), SystemError> {
    let tables = tpcc.catalog.tables();
    let chunks = Chunks { order: Order::Shared, total: tables.len() as u64, chunk: 1, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || {
        let session = server.connect(Use::Bulk)?;
        Ok(Completer { session, tables })
    })
}

struct Completer<'a> {
    session: Session,
    tables: &'a [TableDef],
}

impl ChunkWorker for Completer<'_> {
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
        for table in &self.tables[chunk.start as usize..chunk.end as usize] {
            for (index, columns) in secondary_indexes(table) {
                self.session.execute(&format!("ALTER TABLE {} ADD KEY {index} ({columns})", table.name))?;
            }
            self.session.execute(&format!("ANALYZE TABLE {}", table.name))?;
        }
        Ok(())
    }
}

/// Rows of a table at one warehouse, of ITEM at all; of ORDER_LINE only the population itself knows.
fn expected_rows(tpcc: &Tpcc, population: &Population, table: TpccTable) -> u64 {
    let (scale, districts) = (tpcc.scale, anticache_engine::procedure::tpcc::DISTRICTS as u64);
    let warehouses = scale.warehouses as u64;
    let orders = scale.orders_per_district as u64;
    let undelivered = orders + 1 - scale.first_undelivered() as u64;
    warehouses
        * match table {
            TpccTable::Item => return scale.items as u64,
            TpccTable::Warehouse => 1,
            TpccTable::Stock => scale.items as u64,
            TpccTable::District => districts,
            TpccTable::Customer | TpccTable::History => districts * scale.customers_per_district as u64,
            TpccTable::Orders => districts * orders,
            TpccTable::NewOrder => districts * undelivered,
            TpccTable::OrderLine => return order_lines(tpcc, population),
        }
}

/// The sum of O_OL_CNT over all orders.
fn order_lines(tpcc: &Tpcc, population: &Population) -> u64 {
    let id: TableId = population.table_id(TpccTable::Orders);
    let table = tpcc.catalog.table(id);
    let Ok(ol_cnt) = table.field("o_ol_cnt") else {
        return 0;
    };
    let rows = (1..=tpcc.scale.warehouses).flat_map(|w_id| population.rows(TpccTable::Orders, w_id));
    rows.map(|row| u64::from(row[ol_cnt.offset])).sum()
}

fn verify_counts(server: &MysqlServer, tpcc: &Tpcc, population: &Population) -> Result<u64, SystemError> {
    let mut session = server.connect(Use::Bulk)?;
    let mut records = 0;
    for table in TpccTable::ALL {
        let query = format!("SELECT SQL_NO_CACHE COUNT(*) FROM {}", table.name());
        let found: u64 = session.query_first(&query)?.unwrap_or(0);
        let expected = expected_rows(tpcc, population, table);
        if found != expected {
            let message = format!("{} has {found} rows after loading, not {expected}", table.name());
            return Err(SystemError::Data(message));
        }
        records += found;
    }
    Ok(records)
}
