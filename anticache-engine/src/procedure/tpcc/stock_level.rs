//! Stock-Level (clause 2.8): how many of the items in a district's last twenty orders are low on stock.

use super::{NO_DISTRICT, handles, on, params, participants, refusal, stock_key};
use crate::catalog::Catalog;
use crate::catalog::key::ShortKey;
use crate::error::CatalogError;
use crate::procedure::{FirstTuple, Participants, Procedure};
use crate::storage::ordered_index::Direction;
use crate::txn::{Abort, KeyHash, TxnContext};

/// Name on the wire.
pub const NAME: &str = "tpcc_stock_level";
/// Orders that are looked at (clause 2.8.2.2).
const ORDERS: i32 = 20;
const MAX_LINES: usize = ORDERS as usize * params::MAX_LINES;
/// Rows of STOCK whose cache misses overlap.
const PREFETCH_WINDOW: usize = 32;

/// `tpcc_stock_level`.
pub struct StockLevel {
    district: handles::District,
    order_line: handles::OrderLine,
    stock: handles::Stock,
}

impl StockLevel {
    pub(super) fn resolve(catalog: &Catalog) -> Result<Self, CatalogError> {
        Ok(Self {
            district: handles::District::resolve(catalog)?,
            order_line: handles::OrderLine::resolve(catalog)?,
            stock: handles::Stock::resolve(catalog)?,
        })
    }

    /// The items of the district's last orders, ascending, each once. All lines are looked up before the first is read.
    fn items<'items>(
        &self,
        txn: &mut TxnContext<'_>,
        input: &params::StockLevel,
        items: &'items mut [i32; MAX_LINES],
    ) -> Result<&'items [i32], Abort> {
        let district_key = ShortKey::new().i16(input.w_id).i8(input.d_id);
        let partition = on(txn, input.w_id)?;
        let district = partition.lookup(self.district.table, &district_key).ok_or(NO_DISTRICT)?;
        let next = partition.integer(district, self.district.d_next_o_id)? as i32;
        let (first, last) = (district_key.i32(next.saturating_sub(ORDERS)), district_key.i32(next.saturating_sub(1)));
        let lines = partition.scan(
            self.order_line.table,
            self.order_line.by_id,
            &first,
            &last,
            Direction::Ascending,
            MAX_LINES + 1,
        )?;
        let Some(items) = items.get_mut(..lines.len()) else {
            return Err(refusal("the district's last orders have more lines than TPC-C allows"));
        };
        for (at, item) in items.iter_mut().enumerate() {
            let line = partition.matched(lines, at);
            *item = partition.integer(line, self.order_line.ol_i_id)? as i32;
        }
        items.sort_unstable();
        let mut distinct = 0;
        for at in 0..items.len() {
            if at == 0 || items[at] != items[at - 1] {
                items[distinct] = items[at];
                distinct += 1;
            }
        }
        Ok(&items[..distinct])
    }

    /// How many of the items are low on stock. All of them are looked up, also when the first is evicted.
    fn count_low(&self, txn: &mut TxnContext<'_>, input: &params::StockLevel, items: &[i32]) -> Result<u32, Abort> {
        let (partition, table) = (on(txn, input.w_id)?, self.stock.table);
        let mut expected = [KeyHash::default(); PREFETCH_WINDOW];
        let (mut low, mut all_here) = (0, true);
        for items in items.chunks(PREFETCH_WINDOW) {
            for (&i_id, expected) in items.iter().zip(&mut expected) {
                *expected = partition.prefetch_key(table, &stock_key(input.w_id, i_id));
            }
            for &expected in &expected[..items.len()] {
                partition.prefetch_tuple(table, expected, &[]);
            }
            for (&i_id, &expected) in items.iter().zip(&expected) {
                let stock = partition.lookup_expected(table, &stock_key(input.w_id, i_id), expected);
                let stock = stock.ok_or(refusal("no stock of an ordered item"))?;
                match partition.integer(stock, self.stock.s_quantity) {
                    Ok(quantity) => low += u32::from(quantity < i64::from(input.threshold)),
                    Err(Abort::Evicted) => all_here = false,
                    Err(other) => return Err(other),
                }
            }
        }
        if all_here { Ok(low) } else { Err(Abort::Evicted) }
    }
}

impl Procedure for StockLevel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(self.district.table, params.get(..3)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        params::home(params).map_or(Participants::OWN, |w_id| participants(w_id, std::iter::empty(), partitions))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let input = params::StockLevel::decode(params)?;
        let mut items = [0; MAX_LINES];
        let items = self.items(txn, &input, &mut items)?;
        let low = self.count_low(txn, &input, items)?;
        txn.reply(&low.to_le_bytes());
        Ok(())
    }
}
