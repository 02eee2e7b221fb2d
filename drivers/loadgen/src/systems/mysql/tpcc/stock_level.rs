//! Stock-Level (clause 2.8): how many of the items in a district's last twenty orders are low on stock.

use anticache_engine::procedure::tpcc::params::StockLevel;
use mysql::prelude::Queryable;

use super::{Attempt, Copies, NO_DISTRICT};
use crate::systems::mysql::session::Failure;

/// Orders that are looked at (clause 2.8.2.2).
const ORDERS: i64 = 20;

pub fn execute<C: Copies>(attempt: &mut Attempt<'_, C>, input: &StockLevel) -> Result<(), Failure> {
    let sql = attempt.sql;
    let district = attempt.first(&sql.district_newest, (input.w_id, input.d_id))?.ok_or(NO_DISTRICT)?;
    let next = district.number("d_next_o_id");
    let parameters = (input.w_id, input.w_id, input.d_id, next - ORDERS, next - 1, input.threshold);
    let low: Option<i64> = attempt.connection.exec_first(&sql.low_stock, parameters)?;
    attempt.reply.number::<4>(low.unwrap_or(0));
    Ok(())
}
