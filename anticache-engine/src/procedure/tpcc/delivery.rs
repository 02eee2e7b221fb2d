//! Delivery (clause 2.7): the oldest undelivered order of each of a warehouse's districts, all in one transaction.

use smallvec::SmallVec;

use super::{DISTRICTS, NO_WAREHOUSE, handles, on, params, participants, refusal};
use crate::catalog::Catalog;
use crate::catalog::key::ShortKey;
use crate::error::CatalogError;
use crate::procedure::{FirstTuple, Participants, Procedure};
use crate::storage::ordered_index::Direction;
use crate::txn::{Abort, KeyHash, Matches, TupleRef, TxnContext};

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

/// The oldest undelivered order of a district, whose index entries are on their way into the processor's cache.
struct Oldest {
    d_id: i8,
    o_id: i32,
    new_order: TupleRef,
    /// Of the order, and the beginning of its lines'.
    key: ShortKey,
    hash: KeyHash,
}

/// What is delivered in one district.
struct Due {
    d_id: i8,
    o_id: i32,
    new_order: TupleRef,
    order: TupleRef,
    lines: Matches,
    customer_key: ShortKey,
    customer: KeyHash,
}

/// At most one for each district.
type PerDistrict<T> = SmallVec<[T; DISTRICTS as usize]>;

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

    /// Looks up each district's oldest undelivered order in NEW_ORDER, and brings the index entries of the orders and of their lines near.
    fn oldest(&self, txn: &mut TxnContext<'_>, w_id: i16) -> Result<PerDistrict<Oldest>, Abort> {
        let partition = on(txn, w_id)?;
        let mut all = PerDistrict::new();
        for d_id in 1..=DISTRICTS {
            let district = ShortKey::new().i16(w_id).i8(d_id);
            let (table, by_id) = (self.new_orders.table, self.new_orders.by_id);
            let found = partition.scan(table, by_id, &district, &district, Direction::Ascending, 1)?;
            if !found.is_empty() {
                let new_order = partition.matched(found, 0);
                let o_id = partition.integer(new_order, self.new_orders.no_o_id)? as i32;
                let key = district.i32(o_id);
                all.push(Oldest { d_id, o_id, new_order, key, hash: partition.prefetch_key(self.orders.table, &key) });
            }
        }
        let keys: PerDistrict<_> = all.iter().map(|oldest| oldest.key).collect();
        partition.prefetch_scans(self.order_line.table, self.order_line.by_id, &keys);
        Ok(all)
    }

    /// Looks up the orders, their lines and their customers, whom an index knows, and reads nothing of them: they may be evicted.
    fn due(
        &self,
        txn: &mut TxnContext<'_>,
        w_id: i16,
        oldest: PerDistrict<Oldest>,
    ) -> Result<PerDistrict<(Due, TupleRef)>, Abort> {
        let partition = on(txn, w_id)?;
        oldest.iter().for_each(|oldest| partition.prefetch_tuple(self.orders.table, oldest.hash, &[]));
        let mut all: PerDistrict<Due> = PerDistrict::new();
        for Oldest { d_id, o_id, new_order, key, hash } in oldest {
            let order = partition.lookup_expected(self.orders.table, &key, hash);
            let order = order.ok_or(refusal("a new order is not among the orders"))?;
            let (table, by_id) = (self.order_line.table, self.order_line.by_id);
            let lines = partition.scan(table, by_id, &key, &key, Direction::Ascending, usize::MAX)?;
            let c_id = partition.indexed_integer(order, self.orders.o_c_id)? as i32;
            let customer_key = ShortKey::new().i16(w_id).i8(d_id).i32(c_id);
            let customer = partition.prefetch_key(self.customer.table, &customer_key);
            all.push(Due { d_id, o_id, new_order, order, lines, customer_key, customer });
        }
        let counts =
            self.customer.c_balance.offset..self.customer.c_delivery_cnt.offset + self.customer.c_delivery_cnt.bytes;
        for due in &all {
            partition.prefetch_tuple(self.customer.table, due.customer, std::slice::from_ref(&counts));
        }
        all.into_iter()
            .map(|due| {
                let customer = partition.lookup_expected(self.customer.table, &due.customer_key, due.customer);
                Ok((due, customer.ok_or(super::NO_CUSTOMER)?))
            })
            .collect()
    }

    fn deliver(
        &self,
        txn: &mut TxnContext<'_>,
        input: &params::Delivery,
        due: &Due,
        customer: TupleRef,
    ) -> Result<(), Abort> {
        let partition = on(txn, input.w_id)?;
        partition.set_integer(due.order, self.orders.o_carrier_id, i64::from(input.carrier_id))?;
        let mut amount_cents = 0;
        for at in 0..due.lines.len() {
            let line = partition.matched(due.lines, at);
            amount_cents += partition.integer(line, self.order_line.ol_amount)?;
            partition.set_integer(line, self.order_line.ol_delivery_d, input.date_us)?;
        }
        partition.delete(due.new_order)?;
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
        let oldest = self.oldest(txn, input.w_id)?;
        let mut o_ids = [0; DISTRICTS as usize];
        for (due, customer) in self.due(txn, input.w_id, oldest)? {
            self.deliver(txn, &input, &due, customer)?;
            o_ids[due.d_id as usize - 1] = due.o_id;
        }
        for o_id in o_ids {
            txn.reply(&i32::to_le_bytes(o_id));
        }
        Ok(())
    }
}
