//! Choosing a customer, by number or by last name.

use super::handles::{self, MAX_NAME_BYTES};
use super::params::CustomerBy;
use super::{NO_CUSTOMER, on};
use crate::catalog::key::ShortKey;
use crate::storage::ordered_index::Direction;
use crate::txn::{Abort, TupleRef, TxnContext};

/// The customer. By last name: all who have it, ordered by first name, the one at position ⌈n/2⌉ (clauses 2.5.2.2, 2.6.2.2).
pub(super) fn find(
    txn: &mut TxnContext<'_>,
    customers: &handles::Customer,
    w_id: i16,
    d_id: i8,
    by: &CustomerBy,
) -> Result<TupleRef, Abort> {
    let district = ShortKey::new().i16(w_id).i8(d_id);
    match by {
        CustomerBy::Id(c_id) => on(txn, w_id)?.lookup(customers.table, &district.i32(*c_id)).ok_or(NO_CUSTOMER),
        CustomerBy::LastName(name) => {
            let prefix = district.varchar(name.as_slice(), MAX_NAME_BYTES);
            let partition = on(txn, w_id)?;
            let found = partition.scan(
                customers.table,
                customers.by_name,
                &prefix,
                &prefix,
                Direction::Ascending,
                usize::MAX,
            )?;
            if found.is_empty() {
                return Err(NO_CUSTOMER);
            }
            Ok(partition.matched(found, found.len().div_ceil(2) - 1))
        }
    }
}
