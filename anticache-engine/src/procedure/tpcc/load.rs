//! Loading rows made by [`super::generate`], or by anybody else.

use super::params;
use crate::catalog::Catalog;
use crate::procedure::{FirstTuple, Procedure};
use crate::txn::{Abort, TxnContext};

/// Name on the wire.
pub const NAME: &str = "tpcc_load";

/// `tpcc_load`.
pub struct Load {
    tables: usize,
}

impl Load {
    pub(super) fn new(catalog: &Catalog) -> Self {
        Self { tables: catalog.tables().len() }
    }
}

impl Procedure for Load {
    fn name(&self) -> &'static str {
        NAME
    }

    fn first_tuple<'call>(&'call self, _params: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let mut load = params::Load::decode(params)?;
        if usize::from(load.table) >= self.tables {
            return Err(Abort::user(format!("{NAME}: table {}; there are {}", load.table, self.tables)));
        }
        while let Some(row) = load.next_row()? {
            txn.insert(load.table, row)?;
        }
        Ok(())
    }
}
