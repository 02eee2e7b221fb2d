//! New-Order (clause 2.4): an order of 5 to 15 lines is entered.

use super::reply::Reply;
use super::{
    ITEM_NOT_FOUND, NO_CUSTOMER, NO_DISTRICT, NO_WAREHOUSE, handles, on, params, participants, refusal, stock_key,
};
use crate::catalog::key::ShortKey;
use crate::catalog::row::RowBuf;
use crate::catalog::{Catalog, Field};
use crate::error::CatalogError;
use crate::procedure::{FirstTuple, Participants, Procedure};
use crate::txn::{Abort, KeyHash, TupleRef, TxnContext};

/// Name on the wire.
pub const NAME: &str = "tpcc_new_order";
/// Stock is filled up by this much when fewer than [`LEAST_STOCK`] units would be left (clause 2.4.2.2).
const REFILL: i64 = 91;
const LEAST_STOCK: i64 = 10;
/// What an item's and a stock's data both have in goods of a brand (clause 2.4.2.2).
const ORIGINAL: &[u8; 8] = b"ORIGINAL";
/// Ten-thousandths of a tax or a discount in the whole.
const WHOLE: i64 = 10_000;
/// Offset of the total in the reply.
const TOTAL_OFFSET: usize = 4;

/// `tpcc_new_order`.
pub struct NewOrder {
    warehouse: handles::Warehouse,
    district: handles::District,
    customer: handles::Customer,
    new_orders: handles::NewOrders,
    orders: handles::Orders,
    order_line: handles::OrderLine,
    item: handles::Item,
    stock: handles::Stock,
}

/// What all lines of an order have in common.
struct Order<'input> {
    input: &'input params::NewOrder,
    o_id: i64,
    s_dist: Field,
}

/// Where the home warehouse, its district and the customer are.
struct Home {
    warehouse: TupleRef,
    district: TupleRef,
    customer: TupleRef,
    s_dist: Field,
}

/// Where a line's item and stock are.
#[derive(Clone, Copy)]
struct Goods {
    item: TupleRef,
    stock: TupleRef,
    /// Whether the item's data says so; then it depends on the stock's.
    may_be_of_brand: bool,
}

/// Those of all lines; `None` for an item that does not exist.
type AllGoods = [Option<Goods>; params::MAX_LINES];
/// Each line's item and stock, on their way into the processor's cache.
type Expected = [(KeyHash, KeyHash); params::MAX_LINES];

impl NewOrder {
    pub(super) fn resolve(catalog: &Catalog) -> Result<Self, CatalogError> {
        Ok(Self {
            warehouse: handles::Warehouse::resolve(catalog)?,
            district: handles::District::resolve(catalog)?,
            customer: handles::Customer::resolve(catalog)?,
            new_orders: handles::NewOrders::resolve(catalog)?,
            orders: handles::Orders::resolve(catalog)?,
            order_line: handles::OrderLine::resolve(catalog)?,
            item: handles::Item::resolve(catalog)?,
            stock: handles::Stock::resolve(catalog)?,
        })
    }

    /// Brings the index entries of every line's item and stock near.
    fn expect_goods(&self, txn: &mut TxnContext<'_>, input: &params::NewOrder) -> Result<Expected, Abort> {
        let mut expected = [(KeyHash::default(), KeyHash::default()); params::MAX_LINES];
        for (line, expected) in input.lines().iter().zip(&mut expected) {
            expected.0 = on(txn, input.w_id)?.prefetch_key(self.item.table, &line.i_id.to_le_bytes());
            expected.1 =
                on(txn, line.supply_w_id)?.prefetch_key(self.stock.table, &stock_key(line.supply_w_id, line.i_id));
        }
        Ok(expected)
    }

    /// Looks up every line's item and stock; first all tuples are brought near, then their texts.
    fn goods(
        &self,
        txn: &mut TxnContext<'_>,
        input: &params::NewOrder,
        expected: &Expected,
        s_dist: Field,
    ) -> Result<AllGoods, Abort> {
        let counts = self.stock.s_ytd.offset..self.stock.s_order_cnt.offset + self.stock.s_order_cnt.bytes;
        let columns = [s_dist.offset..s_dist.offset + s_dist.bytes, counts];
        for (line, &(item, stock)) in input.lines().iter().zip(expected) {
            on(txn, input.w_id)?.prefetch_tuple(self.item.table, item, &[]);
            on(txn, line.supply_w_id)?.prefetch_tuple(self.stock.table, stock, &columns);
        }
        let mut goods = [None; params::MAX_LINES];
        for ((line, &(item, stock)), goods) in input.lines().iter().zip(expected).zip(&mut goods) {
            let home = on(txn, input.w_id)?;
            let Some(item) = home.lookup_expected(self.item.table, &line.i_id.to_le_bytes(), item) else {
                continue;
            };
            home.prefetch_texts(item, &[self.item.i_name, self.item.i_data]);
            let supplier = on(txn, line.supply_w_id)?;
            let stock = supplier.lookup_expected(self.stock.table, &stock_key(line.supply_w_id, line.i_id), stock);
            let stock = stock.ok_or(refusal("the supplying warehouse has no stock of an item"))?;
            *goods = Some(Goods { item, stock, may_be_of_brand: false });
        }
        for (line, goods) in input.lines().iter().zip(&mut goods) {
            let Some(goods) = goods else { continue };
            goods.may_be_of_brand = contains_original(on(txn, input.w_id)?.text(goods.item, self.item.i_data)?);
            if goods.may_be_of_brand {
                on(txn, line.supply_w_id)?.prefetch_texts(goods.stock, &[self.stock.s_data]);
            }
        }
        Ok(goods)
    }

    fn home(&self, txn: &mut TxnContext<'_>, input: &params::NewOrder) -> Result<Home, Abort> {
        let home = on(txn, input.w_id)?;
        let warehouse_key = ShortKey::new().i16(input.w_id);
        let district_key = warehouse_key.i8(input.d_id);
        let customer = home.lookup(self.customer.table, &district_key.i32(input.c_id)).ok_or(NO_CUSTOMER)?;
        let warehouse = home.lookup(self.warehouse.table, &warehouse_key).ok_or(NO_WAREHOUSE)?;
        let district = home.lookup(self.district.table, &district_key).ok_or(NO_DISTRICT)?;
        let s_dist = self.stock.s_dist(input.d_id).ok_or(NO_DISTRICT)?;
        Ok(Home { warehouse, district, customer, s_dist })
    }

    /// Enters the order; the total goes in front of what is known of the warehouse, the district and the customer.
    fn head<'input>(
        &self,
        txn: &mut TxnContext<'_>,
        input: &'input params::NewOrder,
        Home { warehouse, district, customer, s_dist }: Home,
        reply: &mut Reply,
    ) -> Result<(Order<'input>, i64), Abort> {
        let home = on(txn, input.w_id)?;
        let o_id = home.change_integer(district, self.district.d_next_o_id, |o_id| o_id + 1)? - 1;
        let w_tax = home.integer(warehouse, self.warehouse.w_tax)?;
        let d_tax = home.integer(district, self.district.d_tax)?;
        let discount = home.integer(customer, self.customer.c_discount)?;
        reply.number::<4>(o_id);
        reply.number::<8>(0);
        reply.number::<2>(w_tax);
        reply.number::<2>(d_tax);
        reply.number::<2>(discount);
        reply.text(home.text(customer, self.customer.c_last)?);
        reply.raw(home.text(customer, self.customer.c_credit)?);
        self.enter(txn, input, o_id)?;
        Ok((Order { input, o_id, s_dist }, (WHOLE - discount) * (WHOLE + w_tax + d_tax)))
    }

    /// Adds the order's rows in ORDERS and NEW_ORDER.
    fn enter(&self, txn: &mut TxnContext<'_>, input: &params::NewOrder, o_id: i64) -> Result<(), Abort> {
        let (w_id, d_id) = (i64::from(input.w_id), i64::from(input.d_id));
        let lines = input.lines();
        let all_local = lines.iter().all(|line| line.supply_w_id == input.w_id);
        let mut row = RowBuf::<{ handles::Orders::MOST_BYTES }>::of_bytes(self.orders.row_bytes);
        row.integer(self.orders.o_w_id, w_id)
            .integer(self.orders.o_d_id, d_id)
            .integer(self.orders.o_id, o_id)
            .integer(self.orders.o_c_id, i64::from(input.c_id))
            .integer(self.orders.o_entry_d, input.entry_d_us)
            .null(self.orders.o_carrier_id)
            .integer(self.orders.o_ol_cnt, lines.len() as i64)
            .integer(self.orders.o_all_local, i64::from(all_local));
        on(txn, input.w_id)?.insert(self.orders.table, row.as_slice())?;
        let mut row = RowBuf::<{ handles::NewOrders::MOST_BYTES }>::of_bytes(self.new_orders.row_bytes);
        row.integer(self.new_orders.no_w_id, w_id)
            .integer(self.new_orders.no_d_id, d_id)
            .integer(self.new_orders.no_o_id, o_id);
        on(txn, input.w_id)?.insert(self.new_orders.table, row.as_slice()).map(|_| ())
    }

    /// Takes a line's units from stock and adds its row. Returns its amount in cents.
    fn line(
        &self,
        txn: &mut TxnContext<'_>,
        order: &Order<'_>,
        number: usize,
        Goods { item, stock, may_be_of_brand }: Goods,
        reply: &mut Reply,
    ) -> Result<i64, Abort> {
        let line = order.input.lines()[number];
        let quantity = i64::from(line.quantity);
        let home = on(txn, order.input.w_id)?;
        let price_cents = home.integer(item, self.item.i_price)?;
        let amount_cents = quantity * price_cents;

        let supplier = on(txn, line.supply_w_id)?;
        let stock_left = self.take(supplier, order, line, stock)?;
        let brand = may_be_of_brand && contains_original(supplier.text(stock, self.stock.s_data)?);
        let columns = &self.order_line;
        let mut row = RowBuf::<{ handles::OrderLine::MOST_BYTES }>::of_bytes(columns.row_bytes);
        row.integer(columns.ol_w_id, i64::from(order.input.w_id))
            .integer(columns.ol_d_id, i64::from(order.input.d_id))
            .integer(columns.ol_o_id, order.o_id)
            .integer(columns.ol_number, number as i64 + 1)
            .integer(columns.ol_i_id, i64::from(line.i_id))
            .integer(columns.ol_supply_w_id, i64::from(line.supply_w_id))
            .null(columns.ol_delivery_d)
            .integer(columns.ol_quantity, quantity)
            .integer(columns.ol_amount, amount_cents)
            .text(columns.ol_dist_info, supplier.text(stock, order.s_dist)?);
        let home = on(txn, order.input.w_id)?;
        home.insert(columns.table, row.as_slice())?;

        reply.number::<2>(stock_left);
        reply.raw(if brand { b"B" } else { b"G" });
        reply.number::<4>(price_cents);
        reply.number::<4>(amount_cents);
        reply.text(home.text(item, self.item.i_name)?);
        Ok(amount_cents)
    }

    /// Updates the stock (clause 2.4.2.2). Returns the units left.
    fn take(
        &self,
        supplier: &mut TxnContext<'_>,
        order: &Order<'_>,
        line: params::Line,
        stock: TupleRef,
    ) -> Result<i64, Abort> {
        let columns = &self.stock;
        let quantity = i64::from(line.quantity);
        let left = supplier.change_integer(stock, columns.s_quantity, |before| {
            let refill = if before >= quantity + LEAST_STOCK { 0 } else { REFILL };
            before - quantity + refill
        })?;
        supplier.change_integer(stock, columns.s_ytd, |sold| sold + quantity)?;
        supplier.change_integer(stock, columns.s_order_cnt, |orders| orders + 1)?;
        if line.supply_w_id != order.input.w_id {
            supplier.change_integer(stock, columns.s_remote_cnt, |orders| orders + 1)?;
        }
        Ok(left)
    }
}

#[inline]
fn contains_original(data: &[u8]) -> bool {
    data.windows(ORIGINAL.len()).any(|window| window == ORIGINAL)
}

impl Procedure for NewOrder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(self.customer.table, params.get(..7)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        params::NewOrder::decode(params).map_or(Participants::OWN, |input| {
            participants(input.w_id, input.lines().iter().map(|line| line.supply_w_id), partitions)
        })
    }

    /// Everything is looked up before anything is read, so that one pre-pass finds what is evicted at all partitions. An unused item number is met where the specification meets it: after the lines before it were executed (clause 2.4.2.3).
    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let input = params::NewOrder::decode(params)?;
        let expected = self.expect_goods(txn, &input)?;
        let home = self.home(txn, &input)?;
        let goods = self.goods(txn, &input, &expected, home.s_dist)?;
        let mut reply = Reply::new();
        let (order, factor) = self.head(txn, &input, home, &mut reply)?;
        let mut amount_cents = 0;
        for (number, goods) in goods.iter().enumerate().take(input.lines().len()) {
            let goods = goods.ok_or(refusal(ITEM_NOT_FOUND))?;
            amount_cents += self.line(txn, &order, number, goods, &mut reply)?;
        }
        // Rounded half up to whole cents.
        let total_cents = (amount_cents * factor + WHOLE * WHOLE / 2) / (WHOLE * WHOLE);
        reply.set_number::<8>(TOTAL_OFFSET, total_cents);
        txn.reply(reply.as_slice());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::contains_original;

    #[test]
    fn original_is_found_anywhere() {
        assert!(
            contains_original(b"ORIGINAL") && contains_original(b"xxORIGINALyy") && contains_original(b"xORIGINAL")
        );
        assert!(!contains_original(b"ORIGINA") && !contains_original(b"") && !contains_original(b"xxORIGINAyyLzz"));
    }
}
