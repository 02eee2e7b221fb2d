//! Payment (clause 2.5): a customer pays, at any warehouse and district.

use anticache_engine::procedure::tpcc::params::Payment;
use mysql::prelude::Queryable;

use super::statements::{CUSTOMER_ADDRESS, DISTRICT_ADDRESS, Fields, WAREHOUSE_ADDRESS};
use super::{Attempt, Copies, NO_CUSTOMER, NO_DISTRICT, NO_WAREHOUSE};
use crate::systems::mysql::rows::{Cell, decimal};
use crate::systems::mysql::session::Failure;

/// Bytes of `c_data` that are stored, and that are displayed (clauses 1.3.1, 2.5.3.3).
const MAX_DATA_BYTES: usize = 500;
const SHOWN_DATA_BYTES: usize = 200;
/// What stands between the two names in `h_data` (clause 2.5.2.2).
const NAME_GAP: &[u8] = b"    ";
/// Longest `h_data` (clause 1.3.1).
const MAX_NAMES_BYTES: usize = 24;

pub fn execute<C: Copies>(attempt: &mut Attempt<'_, C>, input: &Payment) -> Result<(), Failure> {
    let sql = attempt.sql;
    let c_id = attempt.customer_number(input.c_w_id, input.c_d_id, &input.customer)?;
    let customer = attempt.pay_customer(input, c_id)?;

    let amount = decimal(i64::from(input.amount_cents), 2);
    attempt.connection.exec_drop(&sql.pay_district, (&amount, input.w_id, input.d_id))?;
    let district = attempt.first(&sql.district_paid, (input.w_id, input.d_id))?.ok_or(NO_DISTRICT)?;
    attempt.connection.exec_drop(&sql.pay_warehouse, (&amount, input.w_id))?;
    let warehouse = attempt.first(&sql.warehouse_paid, (input.w_id,))?.ok_or(NO_WAREHOUSE)?;

    let mut names = [warehouse.text("w_name"), NAME_GAP, district.text("d_name")].concat();
    names.truncate(MAX_NAMES_BYTES);
    let paid_by = [i64::from(c_id), i64::from(input.c_d_id), i64::from(input.c_w_id)];
    let paid_at = [i64::from(input.d_id), i64::from(input.w_id)];
    let payment = [input.date_us, i64::from(input.amount_cents)];
    let numbers = paid_by.into_iter().chain(paid_at).chain(payment).map(Cell::Number);
    let row: Vec<Cell> = numbers.chain([Cell::Text(names)]).collect();
    sql.insert_history.execute(attempt.connection, &[row])?;

    attempt.show(c_id, &warehouse, &district, &customer);
    if C::WHOLE_ROWS {
        for (select, row) in
            [(&sql.warehouse_paid, warehouse), (&sql.district_paid, district), (&sql.customer_to_pay, customer)]
        {
            attempt.copies.write(select.table, row.into_cells());
        }
    }
    Ok(())
}

/// A note of the payment in front of a bad-credit customer's data; what grows too long is cut (clause 2.5.2.2).
fn noted(input: &Payment, c_id: i32, before: &[u8]) -> Vec<u8> {
    let (units, cents) = (input.amount_cents / 100, (input.amount_cents % 100).abs());
    let (c_d_id, c_w_id, d_id, w_id) = (input.c_d_id, input.c_w_id, input.d_id, input.w_id);
    let mut data = format!("{c_id} {c_d_id} {c_w_id} {d_id} {w_id} {units}.{cents:02}|").into_bytes();
    data.extend_from_slice(before);
    data.truncate(MAX_DATA_BYTES);
    data
}

impl<'a, C: Copies> Attempt<'a, C> {
    /// Updates the customer. Returns the row as it is then.
    fn pay_customer(&mut self, input: &Payment, c_id: i32) -> Result<Fields<'a>, Failure> {
        let key = (input.c_w_id, input.c_d_id, c_id);
        let mut customer = self.first(&self.sql.customer_to_pay, key)?.ok_or(NO_CUSTOMER)?;
        let amount_cents = i64::from(input.amount_cents);
        for (column, more) in [("c_balance", -amount_cents), ("c_ytd_payment", amount_cents), ("c_payment_cnt", 1)] {
            customer.set(column, Cell::Number(customer.number(column) + more));
        }
        let balance = decimal(customer.number("c_balance"), 2);
        let paid = decimal(customer.number("c_ytd_payment"), 2);
        let payments = customer.number("c_payment_cnt");
        let (w_id, d_id, c_id) = key;
        if customer.text("c_credit") == b"BC" {
            let data = noted(input, c_id, customer.text("c_data"));
            let parameters = (balance, paid, payments, &data, w_id, d_id, c_id);
            self.connection.exec_drop(&self.sql.pay_and_note_customer, parameters)?;
            customer.set("c_data", Cell::Text(data));
        } else {
            self.connection.exec_drop(&self.sql.pay_customer, (balance, paid, payments, w_id, d_id, c_id))?;
        }
        Ok(customer)
    }

    fn show(&mut self, c_id: i32, warehouse: &Fields<'_>, district: &Fields<'_>, customer: &Fields<'_>) {
        let reply = &mut *self.reply;
        reply.address(warehouse, WAREHOUSE_ADDRESS);
        reply.address(district, DISTRICT_ADDRESS);
        reply.number::<4>(i64::from(c_id));
        reply.text(customer.text("c_first"));
        reply.raw(customer.text("c_middle"));
        reply.text(customer.text("c_last"));
        reply.address(customer, CUSTOMER_ADDRESS);
        reply.raw(customer.text("c_phone"));
        reply.number::<8>(customer.number("c_since"));
        reply.raw(customer.text("c_credit"));
        reply.number::<8>(customer.number("c_credit_lim"));
        reply.number::<2>(customer.number("c_discount"));
        reply.number::<8>(customer.number("c_balance"));
        if customer.text("c_credit") == b"BC" {
            let data = customer.text("c_data");
            reply.text(&data[..data.len().min(SHOWN_DATA_BYTES)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use anticache_engine::procedure::tpcc::params::CustomerBy;

    use super::*;

    #[test]
    fn notes_of_payments_push_the_oldest_out() {
        let customer = CustomerBy::Id(7);
        let input = Payment { w_id: 1, d_id: 2, c_w_id: 3, c_d_id: 4, customer, amount_cents: 123_405, date_us: 0 };
        assert_eq!(noted(&input, 7, b"before"), b"7 4 3 2 1 1234.05|before");
        let full = noted(&input, 7, &[b'x'; 500]);
        assert_eq!((full.len(), &full[..19]), (500, &b"7 4 3 2 1 1234.05|x"[..]));
    }
}
