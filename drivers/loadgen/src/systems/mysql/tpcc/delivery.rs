//! Delivery (clause 2.7): the oldest undelivered order of each of a warehouse's districts, all in one transaction.

use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::params::Delivery;
use mysql::prelude::Queryable;

use super::{Attempt, Copies, NO_CUSTOMER};
use crate::systems::mysql::rows::{date, decimal};
use crate::systems::mysql::session::Failure;

const NO_ORDER: Failure = Failure::RollBack("a new order is not among the orders");

pub fn execute<C: Copies>(attempt: &mut Attempt<'_, C>, input: &Delivery) -> Result<(), Failure> {
    for d_id in 1..=DISTRICTS {
        let o_id = attempt.deliver(input, d_id)?;
        attempt.reply.number::<4>(o_id);
    }
    Ok(())
}

impl<C: Copies> Attempt<'_, C> {
    /// Delivers a district's oldest order. Returns its number; 0 = there is none.
    fn deliver(&mut self, input: &Delivery, d_id: i8) -> Result<i64, Failure> {
        let sql = self.sql;
        let Some(oldest) = self.first(&sql.oldest_new_order, (input.w_id, d_id))? else {
            return Ok(0);
        };
        let o_id = oldest.number("no_o_id");
        self.connection.exec_drop(&sql.delete_new_order, (input.w_id, d_id, o_id))?;
        self.connection.exec_drop(&sql.deliver_order, (input.carrier_id, input.w_id, d_id, o_id))?;
        let order = self.first(&sql.order_delivered, (input.w_id, d_id, o_id))?.ok_or(NO_ORDER)?;
        self.connection.exec_drop(&sql.deliver_lines, (date(input.date_us), input.w_id, d_id, o_id))?;
        let lines = sql.lines_delivered.all(self.connection, (input.w_id, d_id, o_id))?;
        let amount_cents = lines.iter().map(|line| line.number("ol_amount")).sum();
        let c_id = order.number("o_c_id");
        self.connection.exec_drop(&sql.deliver_customer, (decimal(amount_cents, 2), input.w_id, d_id, c_id))?;
        if self.connection.affected_rows() == 0 {
            return Err(NO_CUSTOMER);
        }
        if C::WHOLE_ROWS {
            // Only for its copy: MySQL alone needs nothing more of the customer.
            let customer = self.first(&sql.customer_delivered, (input.w_id, d_id, c_id))?.ok_or(NO_CUSTOMER)?;
            self.copies.write(sql.customer_delivered.table, customer.into_cells());
            self.copies.write(sql.order_delivered.table, order.into_cells());
            lines.into_iter().for_each(|line| self.copies.write(sql.lines_delivered.table, line.into_cells()));
            let key = [i64::from(input.w_id), i64::from(d_id), o_id];
            self.copies.delete(sql.oldest_new_order.table, &key);
        }
        Ok(o_id)
    }
}
