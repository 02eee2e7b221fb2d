//! Order-Status (clause 2.6): a customer's newest order.

use anticache_engine::procedure::tpcc::params::OrderStatus;

use super::statements::Fields;
use super::{Attempt, Copies, NO_CUSTOMER};
use crate::systems::mysql::session::Failure;

const NO_ORDER: Failure = Failure::RollBack("the customer has no order");

pub fn execute<C: Copies>(attempt: &mut Attempt<'_, C>, input: &OrderStatus) -> Result<(), Failure> {
    let sql = attempt.sql;
    let c_id = attempt.customer_number(input.w_id, input.d_id, &input.customer)?;
    let newest = attempt.first(&sql.newest_order, (input.w_id, input.d_id, c_id))?;
    let (w_id, d_id) = (i64::from(input.w_id), i64::from(input.d_id));
    let customer_key = [w_id, d_id, i64::from(c_id)];
    // Without an order it may be that there is no such customer.
    let order_key = newest.map(|newest| [w_id, d_id, newest.number("o_id")]);
    if C::WHOLE_ROWS {
        let order = order_key.map(|key| (sql.order_shown.table, key.to_vec()));
        let customer = (sql.customer_shown.table, customer_key.to_vec());
        attempt.copies.look_up(&order.into_iter().chain([customer]).collect::<Vec<_>>())?;
    }
    let order = match order_key {
        Some(key) => Some((key, attempt.read_through(&sql.order_shown, &key)?.ok_or(NO_ORDER)?)),
        None => None,
    };
    let lines = match &order {
        Some((key, order)) => attempt.lines_shown(key, order)?,
        None => Vec::new(),
    };
    let customer = attempt.read_through(&sql.customer_shown, &customer_key)?.ok_or(NO_CUSTOMER)?;
    let (_, order) = order.ok_or(NO_ORDER)?;
    attempt.show_order(&customer, &order, &lines);
    Ok(())
}

impl<'a, C: Copies> Attempt<'a, C> {
    /// The lines of an order: their copies if all have one.
    fn lines_shown(&mut self, order_key: &[i64; 3], order: &Fields<'_>) -> Result<Vec<Fields<'a>>, Failure> {
        let select = &self.sql.lines_shown;
        if C::WHOLE_ROWS {
            let key = |number| [&order_key[..], &[number]].concat();
            let keys: Vec<_> = (1..=order.number("o_ol_cnt")).map(|number| (select.table, key(number))).collect();
            self.copies.look_up(&keys)?;
            let copies: Option<Vec<_>> = keys.iter().map(|(table, key)| self.copies.take(*table, key)).collect();
            if let Some(copies) = copies {
                return Ok(copies.into_iter().map(|cells| select.fields(cells)).collect());
            }
        }
        let lines = select.all(self.connection, order_key.to_vec())?;
        lines.iter().for_each(|line| self.copies.fill(select.table, line.cells()));
        Ok(lines)
    }

    fn show_order(&mut self, customer: &Fields<'_>, order: &Fields<'_>, lines: &[Fields<'_>]) {
        let reply = &mut *self.reply;
        reply.number::<4>(customer.number("c_id"));
        reply.number::<8>(customer.number("c_balance"));
        reply.text(customer.text("c_first"));
        reply.raw(customer.text("c_middle"));
        reply.text(customer.text("c_last"));
        reply.number::<4>(order.number("o_id"));
        reply.number::<8>(order.number("o_entry_d"));
        reply.number::<1>(order.number("o_carrier_id"));
        reply.number::<1>(lines.len() as i64);
        for line in lines {
            reply.number::<4>(line.number("ol_i_id"));
            reply.number::<2>(line.number("ol_supply_w_id"));
            reply.number::<2>(line.number("ol_quantity"));
            reply.number::<4>(line.number("ol_amount"));
            reply.number::<8>(line.number("ol_delivery_d"));
        }
    }
}
