//! Payment (clause 2.5): a customer pays, at any warehouse and district.

use std::io::Write;

use super::handles::{Address, MAX_DATA_BYTES};
use super::reply::Reply;
use super::{NO_DISTRICT, NO_WAREHOUSE, customer, handles, on, params, participants};
use crate::catalog::Catalog;
use crate::catalog::key::ShortKey;
use crate::catalog::row::RowBuf;
use crate::error::CatalogError;
use crate::procedure::{FirstTuple, Participants, Procedure};
use crate::txn::{Abort, TupleRef, TxnContext};

/// Name on the wire.
pub const NAME: &str = "tpcc_payment";
/// Bytes of `c_data` that are displayed (clause 2.5.3.3).
const SHOWN_DATA_BYTES: usize = 200;
/// What stands between the two names in `h_data` (clause 2.5.2.2).
const NAME_GAP: &[u8] = b"    ";

/// `tpcc_payment`.
pub struct Payment {
    warehouse: handles::Warehouse,
    district: handles::District,
    customer: handles::Customer,
    history: handles::History,
}

impl Payment {
    pub(super) fn resolve(catalog: &Catalog) -> Result<Self, CatalogError> {
        Ok(Self {
            warehouse: handles::Warehouse::resolve(catalog)?,
            district: handles::District::resolve(catalog)?,
            customer: handles::Customer::resolve(catalog)?,
            history: handles::History::resolve(catalog)?,
        })
    }

    /// Updates the customer, and replies with what is known of it. Returns its number.
    fn pay(
        &self,
        txn: &mut TxnContext<'_>,
        input: &params::Payment,
        customer: TupleRef,
        reply: &mut Reply,
    ) -> Result<i32, Abort> {
        let columns = &self.customer;
        let partition = on(txn, input.c_w_id)?;
        let amount_cents = i64::from(input.amount_cents);
        let c_id = partition.integer(customer, columns.c_id)?;
        let balance_cents = partition.change_integer(customer, columns.c_balance, |cents| cents - amount_cents)?;
        partition.change_integer(customer, columns.c_ytd_payment, |cents| cents + amount_cents)?;
        partition.change_integer(customer, columns.c_payment_cnt, |payments| payments + 1)?;

        reply.number::<4>(c_id);
        reply.text(partition.text(customer, columns.c_first)?);
        reply.raw(partition.text(customer, columns.c_middle)?);
        reply.text(partition.text(customer, columns.c_last)?);
        address(partition, customer, columns.address(), reply)?;
        reply.raw(partition.text(customer, columns.c_phone)?);
        reply.number::<8>(partition.integer(customer, columns.c_since)?);
        reply.raw(partition.text(customer, columns.c_credit)?);
        reply.number::<8>(partition.integer(customer, columns.c_credit_lim)?);
        reply.number::<2>(partition.integer(customer, columns.c_discount)?);
        reply.number::<8>(balance_cents);
        if partition.text(customer, columns.c_credit)? == b"BC" {
            let mut data = [0; MAX_DATA_BYTES];
            let used = noted(&mut data, input, c_id, partition.text(customer, columns.c_data)?);
            partition.set_text(customer, columns.c_data, &data[..used])?;
            reply.text(&data[..used.min(SHOWN_DATA_BYTES)]);
        }
        Ok(c_id as i32)
    }

    fn record(&self, txn: &mut TxnContext<'_>, input: &params::Payment, c_id: i32, names: &[u8]) -> Result<(), Abort> {
        let columns = &self.history;
        let mut row = RowBuf::<{ handles::History::MOST_BYTES }>::of_bytes(columns.row_bytes);
        row.integer(columns.h_c_id, i64::from(c_id))
            .integer(columns.h_c_d_id, i64::from(input.c_d_id))
            .integer(columns.h_c_w_id, i64::from(input.c_w_id))
            .integer(columns.h_d_id, i64::from(input.d_id))
            .integer(columns.h_w_id, i64::from(input.w_id))
            .integer(columns.h_date, input.date_us)
            .integer(columns.h_amount, i64::from(input.amount_cents))
            .text(columns.h_data, names);
        on(txn, input.w_id)?.insert(columns.table, row.as_slice()).map(|_| ())
    }
}

/// Puts a note of the payment in front of a bad-credit customer's data and cuts what grows too long (clause 2.5.2.2). Returns the bytes used.
fn noted(data: &mut [u8; MAX_DATA_BYTES], input: &params::Payment, c_id: i64, before: &[u8]) -> usize {
    let mut rest = &mut data[..];
    let (units, cents) = (input.amount_cents / 100, (input.amount_cents % 100).abs());
    // A note always fits: at most six numbers of eleven digits.
    let _ = write!(rest, "{c_id} {} {} {} {} {units}.{cents:02}|", input.c_d_id, input.c_w_id, input.d_id, input.w_id);
    let kept = before.len().min(rest.len());
    rest[..kept].copy_from_slice(&before[..kept]);
    let left = rest.len() - kept;
    MAX_DATA_BYTES - left
}

fn address(txn: &TxnContext<'_>, tuple: TupleRef, columns: Address, reply: &mut Reply) -> Result<(), Abort> {
    let [street_1, street_2, city, state, zip] = columns;
    for column in [street_1, street_2, city] {
        reply.text(txn.text(tuple, column)?);
    }
    for column in [state, zip] {
        reply.raw(txn.text(tuple, column)?);
    }
    Ok(())
}

impl Procedure for Payment {
    fn name(&self) -> &'static str {
        NAME
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(self.customer.table, params.get(..7)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        params::Payment::decode(params)
            .map_or(Participants::OWN, |input| participants(input.w_id, std::iter::once(input.c_w_id), partitions))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let input = params::Payment::decode(params)?;
        let amount_cents = i64::from(input.amount_cents);
        let home_key = ShortKey::new().i16(input.w_id);
        let columns = &self.customer;
        let customer = customer::find(txn, columns, input.c_w_id, input.c_d_id, &input.customer)?;
        let texts = [columns.c_first, columns.c_last, columns.c_street_1, columns.c_street_2, columns.c_city];
        on(txn, input.c_w_id)?.prefetch_texts(customer, &texts);
        let home = on(txn, input.w_id)?;
        let warehouse = home.lookup(self.warehouse.table, &home_key).ok_or(NO_WAREHOUSE)?;
        let district = home.lookup(self.district.table, &home_key.i8(input.d_id)).ok_or(NO_DISTRICT)?;
        for (tuple, ytd) in [(warehouse, self.warehouse.w_ytd), (district, self.district.d_ytd)] {
            home.change_integer(tuple, ytd, |cents| cents + amount_cents)?;
        }
        let mut reply = Reply::new();
        address(home, warehouse, self.warehouse.address(), &mut reply)?;
        address(home, district, self.district.address(), &mut reply)?;
        let mut names = Names::default();
        names.push(home.text(warehouse, self.warehouse.w_name)?);
        names.push(NAME_GAP);
        names.push(home.text(district, self.district.d_name)?);
        let c_id = self.pay(txn, &input, customer, &mut reply)?;
        self.record(txn, &input, c_id, names.as_slice())?;
        txn.reply(reply.as_slice());
        Ok(())
    }
}

/// `h_data` under construction: at most 24 bytes.
#[derive(Default)]
struct Names {
    bytes: [u8; 24],
    len: usize,
}

impl Names {
    fn push(&mut self, text: &[u8]) {
        let kept = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + kept].copy_from_slice(&text[..kept]);
        self.len += kept;
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_payments_push_the_oldest_out() {
        let customer = params::CustomerBy::Id(7);
        let input =
            params::Payment { w_id: 1, d_id: 2, c_w_id: 3, c_d_id: 4, customer, amount_cents: 123_405, date_us: 0 };
        let mut data = [0; MAX_DATA_BYTES];
        let used = noted(&mut data, &input, 7, b"before");
        assert_eq!(&data[..used], b"7 4 3 2 1 1234.05|before");
        let full = [b'x'; MAX_DATA_BYTES];
        assert_eq!(noted(&mut data, &input, 7, &full), MAX_DATA_BYTES);
        assert_eq!(&data[..19], b"7 4 3 2 1 1234.05|x");
        assert_eq!(noted(&mut data, &input, 7, &full[..MAX_DATA_BYTES - 18]), MAX_DATA_BYTES);
    }
}
