//! Filling the buffer pool with what a long run leaves in it.

use anticache_engine::procedure::tpcc::DISTRICTS;

use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::system::{BulkWork, SystemError};
use crate::systems::mysql::session::{MysqlServer, Session, Use};
use crate::tpcc::Tpcc;

/// Share of the pool that is filled: the rest is for undo, new rows, and pages that half-full neighbours need.
const FILLED_SHARE: f64 = 0.95;

/// Reads of the tables that do not grow and that the transactions reach everywhere, the smallest first. Conditions force the rows themselves to be
/// read, and of customers the index by name as well.
const EVERYWHERE: [(&str, &str, &str); 6] = [
    ("warehouse", "DATA_LENGTH", "SELECT SUM(LENGTH(w_name)) FROM warehouse FORCE INDEX (PRIMARY)"),
    ("district", "DATA_LENGTH", "SELECT SUM(LENGTH(d_name)) FROM district FORCE INDEX (PRIMARY)"),
    ("item", "DATA_LENGTH", "SELECT SUM(LENGTH(i_data)) FROM item FORCE INDEX (PRIMARY)"),
    ("customer", "INDEX_LENGTH", "SELECT SUM(LENGTH(c_first)) FROM customer FORCE INDEX (customer_by_name)"),
    ("customer", "DATA_LENGTH", "SELECT SUM(LENGTH(c_data)) FROM customer FORCE INDEX (PRIMARY)"),
    ("stock", "DATA_LENGTH", "SELECT SUM(LENGTH(s_data)) FROM stock FORCE INDEX (PRIMARY)"),
];
/// Tables that grow: only their newest rows are used.
const GROWING: [&str; 3] = ["orders", "order_line", "new_order"];

/// Reads the tables that transactions reach everywhere, as far as the pool holds them, and then each district's newest orders, so many that they fit.
///
/// # Errors
/// What mysqld refuses; [`SystemError::Data`] when nothing is loaded.
pub fn prewarm_buffer_pool(server: &MysqlServer, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<String, SystemError> {
    let mut session = server.connect(Use::Bulk)?;
    let pool_bytes: f64 = session.query_first("SELECT @@innodb_buffer_pool_size + 0e0")?.unwrap_or(0.0);
    let mut left_bytes = pool_bytes * FILLED_SHARE;
    let progress = Progress::start("prewarm mysqld", EVERYWHERE.len() as u64 + 1, "tables and indexes");
    let mut read_bytes = 0.0;
    for (table, length, query) in EVERYWHERE {
        stop_if_asked(work.interrupt)?;
        let bytes = size_bytes(&mut session, table, length)?;
        if bytes <= left_bytes {
            session.execute(query)?;
            read_bytes += bytes;
        }
        // What does not fit leaves no room for the orders either: terminals would push them out at once.
        left_bytes -= bytes;
        progress.add(1);
    }
    let newest_share = warm_newest_orders(&mut session, tpcc, left_bytes, work.interrupt)?;
    let summary = format!(
        "read {:.0} MiB of tables that do not grow and the newest {:.0} % of the orders, pool {:.0} MiB, in {:.1} s",
        read_bytes / f64::from(1 << 20),
        100.0 * newest_share,
        pool_bytes / f64::from(1 << 20),
        progress.elapsed_s()
    );
    progress.finish(&summary);
    Ok(format!("mysqld: {summary}"))
}

fn stop_if_asked(interrupt: &Interrupt) -> Result<(), SystemError> {
    if interrupt.requested() { Err(SystemError::Interrupted) } else { Ok(()) }
}

fn size_bytes(session: &mut Session, table: &str, length: &str) -> Result<f64, SystemError> {
    let query = format!(
        "SELECT {length} + 0e0 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
    );
    let found: Option<f64> = session.query_first(&query)?;
    found.ok_or_else(|| SystemError::Data(format!("mysqld has no table {table}: load the data set first")))
}

/// Reads the newest orders of each district, their lines and new orders. Returns the share of all orders.
fn warm_newest_orders(
    session: &mut Session,
    tpcc: &Tpcc,
    left_bytes: f64,
    interrupt: &Interrupt,
) -> Result<f64, SystemError> {
    let mut all_bytes = 0.0;
    for table in GROWING {
        all_bytes += size_bytes(session, table, "DATA_LENGTH + INDEX_LENGTH")?;
    }
    let share = (left_bytes / all_bytes.max(1.0)).clamp(0.0, 1.0);
    for w_id in 1..=tpcc.scale.warehouses {
        stop_if_asked(interrupt)?;
        for d_id in 1..=DISTRICTS {
            warm_district(session, w_id, d_id, share)?;
        }
    }
    Ok(share)
}

fn warm_district(session: &mut Session, w_id: i16, d_id: i8, share: f64) -> Result<(), SystemError> {
    let query = format!("SELECT d_next_o_id FROM district WHERE d_w_id = {w_id} AND d_id = {d_id}");
    let next: i64 = session.query_first(&query)?.unwrap_or(1);
    let oldest = next - (next as f64 * share).ceil() as i64;
    let of_district = |prefix: &str| format!("{prefix}_w_id = {w_id} AND {prefix}_d_id = {d_id} AND {prefix}_o_id");
    session.execute(&format!(
        "SELECT SUM(ol_quantity) FROM order_line FORCE INDEX (PRIMARY) WHERE {} >= {oldest}",
        of_district("ol")
    ))?;
    session.execute(&format!(
        "SELECT SUM(o_ol_cnt) FROM orders FORCE INDEX (PRIMARY) WHERE o_w_id = {w_id} AND o_d_id = {d_id} AND o_id >= {oldest}"
    ))?;
    session.execute(&format!(
        "SELECT SUM(o_id) FROM orders FORCE INDEX (orders_by_customer) WHERE o_w_id = {w_id} AND o_d_id = {d_id}"
    ))?;
    session.execute(&format!("SELECT SUM(no_o_id) FROM new_order WHERE {} >= {oldest}", of_district("no")))
}
