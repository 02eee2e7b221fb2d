//! TPC-C's procedures (revision 5.11, clauses 2.4 to 2.8; paper §4.1), loading, data and input generation, and the consistency conditions.
//!
//! Everything that a terminal decides or draws is a parameter (ids, dates, amounts, the carrier), so that the command log replays it. Parameters and
//! replies are little-endian; amounts are cents, taxes and discounts ten-thousandths, dates microseconds since 1970. `text` is a length:1 and as
//! many bytes; CHAR columns come with their padding.
//!
//! ```text
//! tpcc_new_order     params | c_w_id:2 c_d_id:1 c_id:4 o_entry_d:8 lines:1 | lines times: i_id:4 supply_w_id:2 quantity:1 |
//!                    reply  | o_id:4 total:8 w_tax:2 d_tax:2 c_discount:2 c_last:text c_credit:2 |
//!                           | lines times: s_quantity:2 brand_generic:1 i_price:4 ol_amount:4 i_name:text |
//! tpcc_payment       params | c_w_id:2 c_d_id:1 c_id:4 w_id:2 d_id:1 h_amount:4 h_date:8 | c_id = 0: c_last, the rest |
//!                    reply  | warehouse's address | district's address | c_id:4 c_first:text c_middle:2 c_last:text | customer's address |
//!                           | c_phone:16 c_since:8 c_credit:2 c_credit_lim:8 c_discount:2 c_balance:8 | bad credit: 200 bytes of c_data: text |
//!                   address | street_1:text street_2:text city:text state:2 zip:9 |
//! tpcc_order_status  params | c_w_id:2 c_d_id:1 c_id:4 | c_id = 0: c_last, the rest |
//!                    reply  | c_id:4 c_balance:8 c_first:text c_middle:2 c_last:text | o_id:4 o_entry_d:8 o_carrier_id:1 (0: none yet) lines:1 |
//!                           | lines times: ol_i_id:4 ol_supply_w_id:2 ol_quantity:2 ol_amount:4 ol_delivery_d:8 (0: not yet) |
//! tpcc_delivery      params | w_id:2 o_carrier_id:1 ol_delivery_d:8 |
//!                    reply  | for each of the ten districts: o_id:4 (0: skipped, nothing was undelivered) |
//! tpcc_stock_level   params | w_id:2 d_id:1 threshold:2 |
//!                    reply  | low_stock:4 |
//! tpcc_load          params | table:2 rows:4 | rows times: length:4, the serialized row |
//! ```
//!
//! The replies hold what the specification's terminals display (clauses 2.4.3, 2.5.3, 2.6.3, 2.7.3, 2.8.3) and do not know from their input. A
//! New-Order with an unused item number ends with the reason [`ITEM_NOT_FOUND`].
//!
//! A warehouse with all that belongs to it is at the partition [`partition_of`] it; ITEM is at every partition, and read at the home warehouse's.
//! Each access names its warehouse through `on`, so New-Order and Payment reach other warehouses wherever they are. A call is sent to the partition
//! of its home warehouse.

use super::{Participants, Procedure};
use crate::catalog::Catalog;
use crate::error::CatalogError;
use crate::txn::{Abort, TxnContext};

pub mod consistency;
mod customer;
pub mod delivery;
pub mod generate;
mod handles;
pub mod load;
pub mod new_order;
pub mod order_status;
pub mod params;
pub mod payment;
mod reply;
pub mod stock_level;

/// Districts of a warehouse (clause 1.2.1).
pub const DISTRICTS: i8 = 10;
/// Why a New-Order with an unused item number is rolled back (clause 2.4.2.3).
pub const ITEM_NOT_FOUND: &str = "item not found";

/// The partition, of so many, that has a warehouse: its number mod theirs.
#[inline]
pub fn partition_of(w_id: i16, partitions: u32) -> u32 {
    u32::from(w_id as u16) % partitions
}

/// The partitions of a home warehouse and others.
fn participants(home: i16, others: impl Iterator<Item = i16>, partitions: u32) -> Participants {
    let own = Participants::OWN.and(partition_of(home, partitions));
    others.filter(|&w_id| w_id != home).fold(own, |all, w_id| all.and(partition_of(w_id, partitions)))
}

/// The context at the partition that has the warehouse. A transaction at one partition was let in because all its warehouses are there.
///
/// # Errors
/// As [`TxnContext::at`].
#[inline]
fn on<'txn, 'run>(txn: &'txn mut TxnContext<'run>, w_id: i16) -> Result<&'txn mut TxnContext<'run>, Abort> {
    if txn.is_alone() { Ok(txn) } else { txn.at(partition_of(w_id, txn.partitions())) }
}

/// A key of STOCK.
#[inline]
fn stock_key(w_id: i16, i_id: i32) -> [u8; 6] {
    let ([a, b], [c, d, e, f]) = (w_id.to_le_bytes(), i_id.to_le_bytes());
    [a, b, c, d, e, f]
}

const fn refusal(reason: &'static str) -> Abort {
    Abort::User(std::borrow::Cow::Borrowed(reason))
}

const NO_WAREHOUSE: Abort = refusal("no such warehouse");
const NO_DISTRICT: Abort = refusal("no such district");
const NO_CUSTOMER: Abort = refusal("no such customer");

/// The procedures, when the catalog has a table `warehouse`.
///
/// # Errors
/// When a table, a column or an index of TPC-C's is missing or has another key.
pub fn procedures(catalog: &Catalog) -> Result<Vec<Box<dyn Procedure>>, CatalogError> {
    if catalog.table_id("warehouse").is_none() {
        return Ok(Vec::new());
    }
    Ok(vec![
        Box::new(new_order::NewOrder::resolve(catalog)?),
        Box::new(payment::Payment::resolve(catalog)?),
        Box::new(order_status::OrderStatus::resolve(catalog)?),
        Box::new(delivery::Delivery::resolve(catalog)?),
        Box::new(stock_level::StockLevel::resolve(catalog)?),
        Box::new(load::Load::new(catalog)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = include_str!("../../../../workloads/schemas/tpcc.sql");

    #[test]
    fn the_schema_has_what_the_procedures_need() {
        let all = procedures(&Catalog::from_sql(SCHEMA).unwrap()).unwrap();
        let names: Vec<_> = all.iter().map(|procedure| procedure.name()).collect();
        assert_eq!(
            names,
            ["tpcc_new_order", "tpcc_payment", "tpcc_order_status", "tpcc_delivery", "tpcc_stock_level", "tpcc_load"]
        );
        let other = Catalog::from_sql("CREATE TABLE t (a INT PRIMARY KEY)").unwrap();
        assert!(procedures(&other).unwrap().is_empty());
    }

    #[test]
    fn a_schema_that_does_not_fit_is_named() {
        for (from, to, expected) in [
            ("CREATE TABLE stock", "CREATE TABLE stocks", "`stock`: TPC-C needs it"),
            ("s_ytd INT", "s_year INT", "a column `s_ytd`"),
            ("PRIMARY KEY (i_id)", "PRIMARY KEY (i_id, i_im_id)", "its key takes 8 bytes; TPC-C's takes 4"),
            ("c_first) USING BTREE", "c_first) USING HASH", "`customer_by_name` is Hash"),
            ("o_c_id, o_id) USING BTREE", "o_c_id) USING BTREE", "Ordered with keys of 7 bytes"),
            ("i_name VARCHAR(24)", "i_name VARCHAR(51)", "`i_name` takes 51 bytes; at most 50"),
            ("c_data VARCHAR(500)", "c_data VARCHAR(501)", "`c_data` takes 501 bytes; at most 500"),
            ("o_entry_d DATETIME", "o_entry_d CHAR(20)", "`o_entry_d` is text; TPC-C's is a number or a date"),
            ("ol_dist_info CHAR(24)", "ol_dist_info BIGINT", "`ol_dist_info` is no text; TPC-C's is CHAR or VARCHAR"),
            (
                "o_all_local TINYINT NOT NULL",
                "o_all_local TINYINT NOT NULL, o_note CHAR(50)",
                "bytes; at most 64 are served",
            ),
        ] {
            assert!(SCHEMA.contains(from), "{from}");
            let catalog = Catalog::from_sql(&SCHEMA.replace(from, to)).unwrap();
            let message = procedures(&catalog).map(|_| ()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_call_names_its_partitions() {
        let line = |supply_w_id| params::Line { i_id: 1, supply_w_id, quantity: 1 };
        let lines = [line(3), line(4), line(3), line(2), line(4)];
        let mut call = Vec::new();
        params::NewOrder::new(3, 1, 1, 0, &lines).unwrap().encode(&mut call);
        let catalog = Catalog::from_sql(SCHEMA).unwrap();
        let new_order = new_order::NewOrder::resolve(&catalog).unwrap();
        let at = |procedure: &dyn Procedure, call: &[u8], partitions| -> Vec<u32> {
            procedure.partitions(call, partitions).iter().collect()
        };
        assert_eq!(at(&new_order, &call, 1), [0]);
        assert_eq!(at(&new_order, &call, 2), [0, 1]);
        assert_eq!(at(&new_order, &call, 3), [0, 1, 2]);
        assert_eq!(at(&new_order, &call, 16), [2, 3, 4]);
        assert_eq!(new_order.partitions(&call[1..], 16), Participants::OWN);
        call.clear();
        let customer = params::CustomerBy::Id(1);
        params::Payment { w_id: 3, d_id: 1, c_w_id: 9, c_d_id: 1, customer, amount_cents: 1, date_us: 0 }
            .encode(&mut call);
        let payment = payment::Payment::resolve(&catalog).unwrap();
        assert_eq!(at(&payment, &call, 2), [1]);
        assert_eq!(at(&payment, &call, 3), [0]);
        assert_eq!(at(&payment, &call, 4), [1, 3]);
        for (call, procedure) in [
            (vec![5, 0], Box::new(delivery::Delivery::resolve(&catalog).unwrap()) as Box<dyn Procedure>),
            (vec![5, 0, 1], Box::new(stock_level::StockLevel::resolve(&catalog).unwrap())),
            (vec![5, 0, 1], Box::new(order_status::OrderStatus::resolve(&catalog).unwrap())),
        ] {
            let mut call = call;
            assert_eq!(procedure.partitions(&call[..1], 4), Participants::OWN, "{}", procedure.name());
            call.resize(32, 1);
            assert_eq!(at(&*procedure, &call, 4), [1], "{}", procedure.name());
        }
    }
}
