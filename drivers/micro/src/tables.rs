//! Tables in memory, filled: the engine's own, within a memory budget.

use anticache_engine::anticache::chain::LruChain;
use anticache_engine::catalog::{Catalog, TableDef};
use anticache_engine::storage::meter::MemoryMeter;
use anticache_engine::storage::table::{Refused, Table};
use anticache_engine::storage::tuples::TupleId;

use crate::trial::{Ended, Watch};

/// Tuples inserted between two looks at the watch.
const LOOK_EVERY: u64 = 4096;

/// A table with the meter that its memory is counted on.
pub struct Filled {
    pub table: Table,
    pub meter: MemoryMeter,
}

/// The first table of a DDL.
///
/// # Errors
/// What the engine does not serve.
pub fn definition(ddl: &str) -> Result<TableDef, Ended> {
    let catalog = Catalog::from_sql(ddl).map_err(|error| format!("the schema is refused: {error}"))?;
    let first = catalog.tables().first().ok_or_else(|| Ended::Failed("the schema has no table".to_owned()))?;
    if first.has_var() {
        return Err(Ended::Failed(format!("table {} has VARCHAR columns; here a tuple is one fixed row", first.name)));
    }
    Ok(first.clone())
}

/// The first table of a DDL whose primary key is one BIGINT.
///
/// # Errors
/// As [`definition`], or that the key is another.
pub fn keyed_definition(ddl: &str) -> Result<TableDef, Ended> {
    let def = definition(ddl)?;
    if def.key_bytes != 8 || def.columns.len() < 2 {
        return Err(Ended::Failed(format!("table {} needs one BIGINT as its key, and other columns", def.name)));
    }
    Ok(def)
}

impl Filled {
    /// Inserts `tuples` rows, coldest first. `row` fills the bytes of one, given its number; `linked` is told each id.
    ///
    /// # Errors
    /// When they do not fit in the budget, or the trial is to end.
    pub fn new(
        def: TableDef,
        keeps_chain: bool,
        budget_bytes: u64,
        tuples: u64,
        watch: &Watch<'_>,
        mut row: impl FnMut(u64, &mut [u8]),
    ) -> Result<Self, Ended> {
        let mut meter = MemoryMeter::new(budget_bytes, 0);
        let mut bytes = vec![b'x'; def.row_bytes];
        let table = Table::new(def, keeps_chain.then(LruChain::default), budget_bytes, &mut meter);
        let mut table = table.map_err(|error| format!("no address space for a table: {error}"))?;
        for number in 0..tuples {
            if number % LOOK_EVERY == 0 {
                watch.check(|| format!("{number} of {tuples} tuples are inserted"))?;
            }
            row(number, &mut bytes);
            table.insert(&bytes, &mut meter).map_err(|refused| match refused {
                Refused::NeedMemory => Ended::Failed(format!(
                    "only {number} of {tuples} tuples fit in the memory budget of {budget_bytes} bytes: raise \
                     memory_budget_bytes or lower the tuples or the block size"
                )),
                other => Ended::Failed(format!("tuple {number} is refused: {other:?}")),
            })?;
        }
        Ok(Self { table, meter })
    }

    /// Makes the coldest tuples the hottest, so that the next ones are the coldest.
    pub fn rotate(&mut self, tuples: u64) {
        for _ in 0..tuples {
            if let Some(coldest) = self.table.chain().and_then(|chain| chain.coldest()) {
                self.table.touch(coldest);
            }
        }
    }

    /// The `count` coldest tuples, from the coldest on.
    pub fn coldest(&self, count: u64) -> Vec<TupleId> {
        let first = self.table.chain().and_then(|chain| chain.coldest());
        let tuples = self.table.tuples();
        std::iter::successors(first, |&id| Some(tuples.next(id))).take(count as usize).collect()
    }
}
