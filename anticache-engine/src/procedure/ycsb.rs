//! YCSB's procedures (paper §4.1): read one record, update one record, and loading.
//!
//! Parameters are little-endian: `ycsb_read` key:8; `ycsb_update` key:8 field:2 bytes; `ycsb_load` count:4, then key:8 and all fields for each row.

use std::ops::Range;

use super::{FirstTuple, Procedure};
use crate::catalog::{Catalog, TableDef, TableId};
use crate::error::CatalogError;
use crate::txn::{Abort, TxnContext};

const TABLE: &str = "usertable";
const KEY_BYTES: usize = 8;

/// The procedures, when the catalog has a `usertable`.
///
/// # Errors
/// When its key is not one 8-byte column, or another column is a VARCHAR.
pub fn procedures(catalog: &Catalog) -> Result<Vec<Box<dyn Procedure>>, CatalogError> {
    let Some(table) = catalog.table_id(TABLE) else {
        return Ok(Vec::new());
    };
    let def = &catalog.tables()[usize::from(table)];
    if def.key_bytes != KEY_BYTES {
        return Err(CatalogError::Table {
            table: TABLE.to_owned(),
            problem: format!("its key takes {} bytes; YCSB's is one BIGINT ({KEY_BYTES})", def.key_bytes),
        });
    }
    if let Some(column) = def.columns.iter().find(|column| column.var.is_some()) {
        return Err(CatalogError::Table {
            table: TABLE.to_owned(),
            problem: format!("column `{}` is a VARCHAR; YCSB's fields have a fixed size", column.name),
        });
    }
    let row_bytes = def.row_bytes;
    Ok(vec![
        Box::new(Read { table, columns: KEY_BYTES..row_bytes }),
        Box::new(Update { table, fields: field_ranges(def) }),
        Box::new(Load { table, row_bytes }),
    ])
}

fn field_ranges(def: &TableDef) -> Vec<Range<usize>> {
    let fields = def.columns.iter().filter(|column| column.offset >= KEY_BYTES);
    fields.map(|column| column.offset..column.offset + column.column_type.bytes()).collect()
}

fn split_key(params: &[u8]) -> Result<(&[u8], &[u8]), Abort> {
    if params.len() < KEY_BYTES {
        return Err(Abort::user(format!("parameters of {} bytes; a key takes {KEY_BYTES}", params.len())));
    }
    Ok(params.split_at(KEY_BYTES))
}

/// Number of the field that an update sets, and the value.
fn field_and_value(update: &[u8]) -> Option<(usize, &[u8])> {
    let (number, value) = update.split_first_chunk::<2>()?;
    Some((usize::from(u16::from_le_bytes(*number)), value))
}

const NO_SUCH_KEY: Abort = Abort::User(std::borrow::Cow::Borrowed("no such key"));

struct Read {
    table: TableId,
    columns: Range<usize>,
}

impl Procedure for Read {
    fn name(&self) -> &'static str {
        "ycsb_read"
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple { table: self.table, key: params.get(..KEY_BYTES)?, columns: &self.columns })
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        if params.len() != KEY_BYTES {
            return Err(Abort::user(format!(
                "parameters of {} bytes; a read takes a key of {KEY_BYTES}",
                params.len()
            )));
        }
        let tuple = txn.lookup(self.table, params).ok_or(NO_SUCH_KEY)?;
        txn.reply_with_row(tuple, self.columns.clone())
    }
}

struct Update {
    table: TableId,
    fields: Vec<Range<usize>>,
}

impl Procedure for Update {
    fn name(&self) -> &'static str {
        "ycsb_update"
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        let (key, rest) = params.split_at_checked(KEY_BYTES)?;
        let columns = self.fields.get(field_and_value(rest)?.0)?;
        Some(FirstTuple { table: self.table, key, columns })
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let (key, rest) = split_key(params)?;
        let Some((number, value)) = field_and_value(rest) else {
            return Err(Abort::user(format!(
                "parameters of {} bytes; an update takes at least {}",
                params.len(),
                KEY_BYTES + 2
            )));
        };
        let Some(field) = self.fields.get(number) else {
            return Err(Abort::user(format!("field {number}; the table has {}", self.fields.len())));
        };
        if value.len() != field.len() {
            return Err(Abort::user(format!("a value of {} bytes for a field of {}", value.len(), field.len())));
        }
        let tuple = txn.lookup(self.table, key).ok_or(NO_SUCH_KEY)?;
        txn.update(tuple, field.start, value)
    }
}

struct Load {
    table: TableId,
    row_bytes: usize,
}

impl Procedure for Load {
    fn name(&self) -> &'static str {
        "ycsb_load"
    }

    fn first_tuple<'call>(&'call self, _params: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let Some((count, rows)) = params.split_first_chunk::<4>() else {
            return Err(Abort::user(format!("parameters of {} bytes; a load starts with a count of 4", params.len())));
        };
        let count = u32::from_le_bytes(*count) as usize;
        if rows.len() != count * self.row_bytes {
            return Err(Abort::user(format!("{} bytes for {count} rows of {}", rows.len(), self.row_bytes)));
        }
        for row in rows.chunks_exact(self.row_bytes) {
            txn.insert(self.table, row)?;
        }
        Ok(())
    }
}
