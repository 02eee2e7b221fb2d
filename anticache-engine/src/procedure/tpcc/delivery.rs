//! Delivery (clause 2.7): the oldest undelivered order of each of a warehouse's districts, all in one transaction.

use super::{DISTRICTS, NO_WAREHOUSE, handles, on, params, participants, refusal};
use crate::catalog::Catalog;
use crate::catalog::key::ShortKey;
use crate::error::CatalogError;
use crate::procedure::{FirstTuple, Participants, Procedure};
use crate::storage::ordered_index::Direction;
use crate::txn::{Abort, Matches, TupleRef, TxnContext};

/// Name on the wire.
pub const NAME: &str = "tpcc_delivery";

/// `tpcc_delivery`.
pub struct Delivery {
    warehouse: handles::Warehouse,
    new_orders: handles::NewOrders,
    orders: handles::Orders,
    order_line: handles::OrderLine,
    customer: handles::Customer,
}

/// What is delivered in one district.
#[derive(Clone, Copy)]
struct Due {
    o_id: i32,
    new_order: TupleRef,
    order: TupleRef,
    lines: Matches,
    customer: TupleRef,
}

impl Delivery {
    pub(super) fn resolve(catalog: &Catalog) -> Result<Self, CatalogError> {
        Ok(Self {
            warehouse: handles::Warehouse::resolve(catalog)?,
            new_orders: handles::NewOrders::resolve(catalog)?,
            orders: handles::Orders::resolve(catalog)?,
            order_line: handles::OrderLine::resolve(catalog)?,
            customer: handles::Customer::resolve(catalog)?,
        })
    }

    /// Looks up a district's oldest undelivered order, its lines and its customer, whom an index knows, and reads nothing of them: they may be evicted.
    fn due(&self, txn: &mut TxnContext<'_>, w_id: i16, d_id: i8) -> Result<Option<Due>, Abort> {
        let partition = on(txn, w_id)?;
        let district = ShortKey::new().i16(w_id).i8(d_id);
        let (table, by_id) = (self.new_orders.table, self.new_orders.by_id);
        let oldest = partition.scan(table, by_id, &district, &district, Direction::Ascending, 1)?;
        if oldest.is_empty() {
            return Ok(None);
        }
        let new_order = partition.matched(oldest, 0);
        let o_id = partition.integer(new_order, self.new_orders.no_o_id)? as i32;
        let key = district.i32(o_id);
        let order = partition.lookup(self.orders.table, &key).ok_or(refusal("a new order is not among the orders"))?;
        let (table, by_id) = (self.order_line.table, self.order_line.by_id);
        let lines = partition.scan(table, by_id, &key, &key, Direction::Ascending, usize::MAX)?;
        let c_id = partition.indexed_integer(order, self.orders.o_c_id)? as i32;
        let customer = partition.lookup(self.customer.table, &district.i32(c_id)).ok_or(super::NO_CUSTOMER)?;
        Ok(Some(Due { o_id, new_order, order, lines, customer }))
    }

    fn deliver(&self, txn: &mut TxnContext<'_>, input: &params::Delivery, due: &Due) -> Result<(), Abort> {
        let partition = on(txn, input.w_id)?;
        partition.set_integer(due.order, self.orders.o_carrier_id, i64::from(input.carrier_id))?;
        let mut amount_cents = 0;
        for at in 0..due.lines.len() {
            let line = partition.matched(due.lines, at);
            amount_cents += partition.integer(line, self.order_line.ol_amount)?;
            partition.set_integer(line, self.order_line.ol_delivery_d, input.date_us)?;
        }
        partition.delete(due.new_order)?;
        let customer = due.customer;
        partition.change_integer(customer, self.customer.c_balance, |cents| cents + amount_cents)?;
        partition.change_integer(customer, self.customer.c_delivery_cnt, |deliveries| deliveries + 1).map(|_| ())
    }
}

impl Procedure for Delivery {
    fn name(&self) -> &'static str {
        NAME
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(self.warehouse.table, params.get(..2)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        params::home(params).map_or(Participants::OWN, |w_id| participants(w_id, std::iter::empty(), partitions))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let input = params::Delivery::decode(params)?;
        on(txn, input.w_id)?.lookup(self.warehouse.table, &ShortKey::new().i16(input.w_id)).ok_or(NO_WAREHOUSE)?;
        let mut all = [None; DISTRICTS as usize];
        for (due, d_id) in all.iter_mut().zip(1..) {
            *due = self.due(txn, input.w_id, d_id)?;
        }
        for due in &all {
            let o_id = due.map_or(0, |due| due.o_id);
            if let Some(due) = due {
                self.deliver(txn, &input, due)?;
            }
            txn.reply(&o_id.to_le_bytes());
        }
        Ok(())
    }
}
