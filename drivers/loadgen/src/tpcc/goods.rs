//! What must hold of ITEM and STOCK, of which clause 3.3.2 says nothing, though every New-Order changes ten rows of STOCK: an update that is lost there
//! breaks none of its conditions.
//!
//! ITEM is as it was loaded, which the orders' prices and names come from. What New-Orders took from a warehouse's stock (clause 2.4.2.2) is what their
//! lines say: orders that were loaded have not changed any stock, so these are the lines of those entered since. The units on stock stay within 10 to
//! 100, as loaded and as refilled.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anticache_engine::catalog::row::number;
use anticache_engine::catalog::{Catalog, Field, TableId};
use anticache_engine::error::CatalogError;
use anticache_engine::procedure::tpcc::generate::{Population, TpccTable};

use super::Tpcc;
use crate::row_hash::RowSum;

/// Units of an item at a warehouse: clauses 4.3.3.1 and 2.4.2.2.
const ON_STOCK: RangeInclusive<i64> = 10..=100;
/// What STOCK counts, in the order of [`Taken`].
const COUNTED: [&str; 3] = ["S_YTD", "S_ORDER_CNT", "S_REMOTE_CNT"];

/// Units, lines, and lines of other warehouses' orders.
type Taken = [i64; COUNTED.len()];

#[derive(Default)]
struct Warehouse {
    by_stock: Taken,
    by_lines: Taken,
    /// Items whose units are not [`ON_STOCK`]: how many, and the first with its units.
    out_of_range: u64,
    first: Option<(i64, i64)>,
}

/// Takes rows, and in the end says what does not hold.
pub struct Goods {
    stock: TableId,
    order_line: TableId,
    stock_fields: [Field; 6],
    line_fields: [Field; 4],
    orders_loaded: i64,
    items_loaded: RowSum,
    warehouses: BTreeMap<i64, Warehouse>,
}

impl Goods {
    /// # Errors
    /// When the catalog lacks a table or column of TPC-C's.
    pub fn new(tpcc: &Tpcc) -> Result<Goods, CatalogError> {
        let catalog = &tpcc.catalog;
        let population = Population::new(catalog, tpcc.scale, tpcc.spec.population_seed)?;
        let (stock, order_line) = (population.table_id(TpccTable::Stock), population.table_id(TpccTable::OrderLine));
        let mut items_loaded = RowSum::default();
        population.rows(TpccTable::Item, 1).for_each(|row| items_loaded.add(&row));
        let stock_columns = ["s_w_id", "s_i_id", "s_quantity", "s_ytd", "s_order_cnt", "s_remote_cnt"];
        Ok(Goods {
            stock_fields: fields(catalog, stock, stock_columns)?,
            line_fields: fields(catalog, order_line, ["ol_w_id", "ol_o_id", "ol_supply_w_id", "ol_quantity"])?,
            stock,
            order_line,
            orders_loaded: i64::from(tpcc.spec.orders_per_district),
            items_loaded,
            warehouses: BTreeMap::new(),
        })
    }

    /// Takes a serialized row of a table, as long as its table's fixed part at least.
    pub fn add(&mut self, table: TableId, row: &[u8]) {
        if table == self.stock {
            let [w_id, i_id, units, taken @ ..] = self.stock_fields.map(|field| value(row, field));
            let warehouse = self.warehouses.entry(w_id).or_default();
            add(&mut warehouse.by_stock, taken);
            if !ON_STOCK.contains(&units) {
                warehouse.out_of_range += 1;
                warehouse.first.get_or_insert((i_id, units));
            }
        } else if table == self.order_line {
            let [w_id, o_id, supply_w_id, units] = self.line_fields.map(|field| value(row, field));
            if o_id > self.orders_loaded {
                let remote = i64::from(supply_w_id != w_id);
                add(&mut self.warehouses.entry(supply_w_id).or_default().by_lines, [units, 1, remote]);
            }
        }
    }

    /// What does not hold, of a database whose table ITEM has this sum.
    pub fn violations(&self, items: RowSum) -> Vec<String> {
        let mut violations = Vec::new();
        if items != self.items_loaded {
            let (loaded, found) = (self.items_loaded.checksum, items.checksum);
            violations
                .push(format!("ITEM has checksum {found:016x}, loaded was {loaded:016x}: no transaction changes it"));
        }
        for (w_id, warehouse) in &self.warehouses {
            for ((column, stock), lines) in COUNTED.iter().zip(warehouse.by_stock).zip(warehouse.by_lines) {
                if stock != lines {
                    let texts = "the lines entered since loading say";
                    violations.push(format!("warehouse {w_id}: the sum of {column} is {stock}, {texts} {lines}"));
                }
            }
            if let Some((i_id, units)) = warehouse.first {
                let items = warehouse.out_of_range;
                let range = format!("{} to {}", ON_STOCK.start(), ON_STOCK.end());
                violations.push(format!(
                    "warehouse {w_id}: S_QUANTITY of {items} items is not {range}, of item {i_id} it is {units}"
                ));
            }
        }
        violations
    }
}

fn fields<const COUNT: usize>(
    catalog: &Catalog,
    table: TableId,
    columns: [&str; COUNT],
) -> Result<[Field; COUNT], CatalogError> {
    let table = catalog.table(table);
    let mut fields = [table.field(columns[0])?; COUNT];
    for (field, column) in fields.iter_mut().zip(columns) {
        *field = table.field(column)?;
    }
    Ok(fields)
}

fn value(row: &[u8], field: Field) -> i64 {
    number(&row[field.offset..field.offset + field.bytes])
}

fn add(sum: &mut Taken, more: Taken) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}
