//! Order-Status (clause 2.6): a customer's newest order and its lines.

use super::reply::Reply;
use super::{customer, handles, on, params, participants, refusal};
use crate::catalog::Catalog;
use crate::catalog::key::ShortKey;
use crate::error::CatalogError;
use crate::procedure::{FirstTuple, Participants, Procedure};
use crate::storage::ordered_index::Direction;
use crate::txn::{Abort, Matches, TupleRef, TxnContext};

/// Name on the wire.
pub const NAME: &str = "tpcc_order_status";

/// `tpcc_order_status`.
pub struct OrderStatus {
    customer: handles::Customer,
    orders: handles::Orders,
    order_line: handles::OrderLine,
}

impl OrderStatus {
    pub(super) fn resolve(catalog: &Catalog) -> Result<Self, CatalogError> {
        Ok(Self {
            customer: handles::Customer::resolve(catalog)?,
            orders: handles::Orders::resolve(catalog)?,
            order_line: handles::OrderLine::resolve(catalog)?,
        })
    }

    /// The customer's newest order and its lines. The order's number is in an index, and the customer's too, so they are known without the tuples:
    /// one pre-pass finds the customer, the order and its lines, evicted or not.
    fn newest_order(
        &self,
        txn: &mut TxnContext<'_>,
        input: &params::OrderStatus,
        customer: TupleRef,
    ) -> Result<(TupleRef, Matches), Abort> {
        let partition = on(txn, input.w_id)?;
        let district = ShortKey::new().i16(input.w_id).i8(input.d_id);
        let c_id = partition.indexed_integer(customer, self.customer.c_id)?;
        let of_customer = district.i32(c_id as i32);
        let (table, by_customer) = (self.orders.table, self.orders.by_customer);
        let newest = partition.scan(table, by_customer, &of_customer, &of_customer, Direction::Descending, 1)?;
        if newest.is_empty() {
            return Err(refusal("the customer has no order"));
        }
        let order = partition.matched(newest, 0);
        let key = district.i32(partition.indexed_integer(order, self.orders.o_id)? as i32);
        let (table, by_id) = (self.order_line.table, self.order_line.by_id);
        let lines = partition.scan(table, by_id, &key, &key, Direction::Ascending, params::MAX_LINES)?;
        Ok((order, lines))
    }

    fn show_order(
        &self,
        partition: &TxnContext<'_>,
        order: TupleRef,
        lines: Matches,
        reply: &mut Reply,
    ) -> Result<(), Abort> {
        reply.number::<4>(partition.integer(order, self.orders.o_id)?);
        reply.number::<8>(partition.integer(order, self.orders.o_entry_d)?);
        let delivered = !partition.is_null(order, self.orders.o_carrier_id)?;
        reply.number::<1>(if delivered { partition.integer(order, self.orders.o_carrier_id)? } else { 0 });
        reply.number::<1>(lines.len() as i64);
        let columns = &self.order_line;
        for at in 0..lines.len() {
            let line = partition.matched(lines, at);
            reply.number::<4>(partition.integer(line, columns.ol_i_id)?);
            reply.number::<2>(partition.integer(line, columns.ol_supply_w_id)?);
            reply.number::<2>(partition.integer(line, columns.ol_quantity)?);
            reply.number::<4>(partition.integer(line, columns.ol_amount)?);
            let delivered = !partition.is_null(line, columns.ol_delivery_d)?;
            reply.number::<8>(if delivered { partition.integer(line, columns.ol_delivery_d)? } else { 0 });
        }
        Ok(())
    }
}

impl Procedure for OrderStatus {
    fn name(&self) -> &'static str {
        NAME
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(self.customer.table, params.get(..7)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        params::home(params).map_or(Participants::OWN, |w_id| participants(w_id, std::iter::empty(), partitions))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let input = params::OrderStatus::decode(params)?;
        let customer = customer::find(txn, &self.customer, input.w_id, input.d_id, &input.customer)?;
        let (order, lines) = self.newest_order(txn, &input, customer)?;
        let mut reply = Reply::new();
        let partition = on(txn, input.w_id)?;
        reply.number::<4>(partition.integer(customer, self.customer.c_id)?);
        reply.number::<8>(partition.integer(customer, self.customer.c_balance)?);
        reply.text(partition.text(customer, self.customer.c_first)?);
        reply.raw(partition.text(customer, self.customer.c_middle)?);
        reply.text(partition.text(customer, self.customer.c_last)?);
        self.show_order(partition, order, lines, &mut reply)?;
        txn.reply(reply.as_slice());
        Ok(())
    }
}
