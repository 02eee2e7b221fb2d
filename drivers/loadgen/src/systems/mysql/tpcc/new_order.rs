//! New-Order (clause 2.4): an order of 5 to 15 lines is entered.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anticache_engine::procedure::tpcc::ITEM_NOT_FOUND;
use anticache_engine::procedure::tpcc::params::{Line, MAX_LINES, NewOrder};
use mysql::prelude::Queryable;
use mysql::{Params, Value};

use super::reply::Reply;
use super::statements::{Fields, STOCK_DISTRICT};
use super::{Attempt, Copies, NO_CUSTOMER, NO_DISTRICT, NO_WAREHOUSE};
use crate::systems::mysql::rows::Cell;
use crate::systems::mysql::session::Failure;

/// Stock is filled up by this much when fewer than [`LEAST_STOCK`] units would be left (clause 2.4.2.2).
const REFILL: i64 = 91;
const LEAST_STOCK: i64 = 10;
/// What an item's and a stock's data both have in goods of a brand (clause 2.4.2.2).
const ORIGINAL: &[u8] = b"ORIGINAL";
/// Ten-thousandths of a tax or a discount in the whole.
const WHOLE: i64 = 10_000;

type Items<'a> = HashMap<i32, Fields<'a>>;
/// By supplying warehouse and item.
type Stocks<'a> = BTreeMap<(i16, i32), Fields<'a>>;

/// Lines that could be entered.
#[derive(Default)]
struct Lines {
    rows: Vec<Vec<Cell>>,
    amount_cents: i64,
    shown: Reply,
}

/// All statements but those on an unused item and its line are executed before it is rolled back, as clause 2.4.2.3 wants it.
pub fn execute<C: Copies>(attempt: &mut Attempt<'_, C>, input: &NewOrder) -> Result<(), Failure> {
    let sql = attempt.sql;
    let customer_key = [i64::from(input.w_id), i64::from(input.d_id), i64::from(input.c_id)];
    attempt.look_up_what_is_only_read(input, &customer_key)?;
    let items = attempt.items(input.lines())?;
    let customer = attempt.read_through(&sql.customer_credit, &customer_key)?.ok_or(NO_CUSTOMER)?;
    let (o_id, d_tax) = attempt.next_order(input)?;
    let stocks = attempt.stocks(input, &items)?;
    attempt.enter(input, o_id)?;
    let lines = attempt.lines(input, o_id, &items, stocks)?;
    if let Some(insert) = lines.rows.len().checked_sub(1).and_then(|at| sql.insert_lines.get(at)) {
        insert.execute(attempt.connection, &lines.rows)?;
        lines.rows.iter().for_each(|row| attempt.copies.write(insert.table, row.clone()));
    }
    let warehouse = attempt.read_through(&sql.warehouse_tax, &customer_key[..1])?.ok_or(NO_WAREHOUSE)?;
    if lines.rows.len() < input.lines().len() {
        return Err(Failure::RollBack(ITEM_NOT_FOUND));
    }
    let (w_tax, discount) = (warehouse.number("w_tax"), customer.number("c_discount"));
    let exact = lines.amount_cents * (WHOLE - discount) * (WHOLE + w_tax + d_tax);
    let reply = &mut *attempt.reply;
    reply.number::<4>(o_id);
    // Rounded half up to whole cents.
    reply.number::<8>((exact + WHOLE * WHOLE / 2) / (WHOLE * WHOLE));
    reply.number::<2>(w_tax);
    reply.number::<2>(d_tax);
    reply.number::<2>(discount);
    reply.text(customer.text("c_last"));
    reply.raw(customer.text("c_credit"));
    reply.raw(lines.shown.as_slice());
    Ok(())
}

fn contains_original(data: &[u8]) -> bool {
    data.windows(ORIGINAL.len()).any(|window| window == ORIGINAL)
}

/// So many parameters for a list of [`MAX_LINES`]: the first again where there are fewer.
fn padded(numbers: &BTreeSet<i32>) -> impl Iterator<Item = Value> {
    let first = numbers.first().copied().unwrap_or(0);
    let padding = std::iter::repeat_n(first, MAX_LINES - numbers.len());
    numbers.iter().copied().chain(padding).map(Value::from)
}

impl<'a, C: Copies> Attempt<'a, C> {
    fn look_up_what_is_only_read(&mut self, input: &NewOrder, customer_key: &[i64; 3]) -> Result<(), Failure> {
        if !C::WHOLE_ROWS {
            return Ok(());
        }
        let sql = self.sql;
        let items: BTreeSet<i32> = input.lines().iter().map(|line| line.i_id).collect();
        let mut rows: Vec<_> = items.into_iter().map(|i_id| (sql.items.table, vec![i64::from(i_id)])).collect();
        rows.push((sql.warehouse_tax.table, customer_key[..1].to_vec()));
        rows.push((sql.customer_credit.table, customer_key.to_vec()));
        Ok(self.copies.look_up(&rows)?)
    }

    /// The items that exist.
    fn items(&mut self, lines: &[Line]) -> Result<Items<'a>, Failure> {
        let select = &self.sql.items;
        let mut found = Items::new();
        let mut missing = BTreeSet::new();
        for line in lines {
            match self.copies.take(select.table, &[i64::from(line.i_id)]) {
                Some(cells) => drop(found.insert(line.i_id, select.fields(cells))),
                None if found.contains_key(&line.i_id) => {}
                None => drop(missing.insert(line.i_id)),
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        for row in select.all(self.connection, Params::Positional(padded(&missing).collect()))? {
            self.copies.fill(select.table, row.cells());
            found.insert(row.number("i_id") as i32, row);
        }
        Ok(found)
    }

    /// Takes the district's next order number. Returns it and the district's tax.
    fn next_order(&mut self, input: &NewOrder) -> Result<(i64, i64), Failure> {
        let select = &self.sql.district_to_enter;
        let mut district = self.first(select, (input.w_id, input.d_id))?.ok_or(NO_DISTRICT)?;
        let (o_id, d_tax) = (district.number("d_next_o_id"), district.number("d_tax"));
        self.connection.exec_drop(&self.sql.enter_in_district, (o_id + 1, input.w_id, input.d_id))?;
        if C::WHOLE_ROWS {
            district.set("d_next_o_id", Cell::Number(o_id + 1));
            self.copies.write(select.table, district.into_cells());
        }
        Ok((o_id, d_tax))
    }

    /// Locks and reads the stock of all items that exist.
    fn stocks(&mut self, input: &NewOrder, items: &Items<'_>) -> Result<Stocks<'a>, Failure> {
        let district = usize::try_from(input.d_id - 1).ok();
        let select = district.and_then(|district| self.sql.stock.get(district)).ok_or(NO_DISTRICT)?;
        let mut wanted: BTreeMap<i16, BTreeSet<i32>> = BTreeMap::new();
        for line in input.lines().iter().filter(|line| items.contains_key(&line.i_id)) {
            wanted.entry(line.supply_w_id).or_default().insert(line.i_id);
        }
        let mut stocks = Stocks::new();
        for (w_id, items) in &wanted {
            let parameters = std::iter::once(Value::from(*w_id)).chain(padded(items)).collect();
            for row in select.all(self.connection, Params::Positional(parameters))? {
                stocks.insert((*w_id, row.number("s_i_id") as i32), row);
            }
        }
        Ok(stocks)
    }

    /// Adds the order's rows in ORDERS and NEW_ORDER.
    fn enter(&mut self, input: &NewOrder, o_id: i64) -> Result<(), Failure> {
        let lines = input.lines();
        let all_local = lines.iter().all(|line| line.supply_w_id == input.w_id);
        let [w_id, d_id] = [i64::from(input.w_id), i64::from(input.d_id)].map(Cell::Number);
        let new_order = vec![w_id.clone(), d_id.clone(), Cell::Number(o_id)];
        let order = vec![
            w_id,
            d_id,
            Cell::Number(o_id),
            Cell::Number(i64::from(input.c_id)),
            Cell::Number(input.entry_d_us),
            Cell::Null,
            Cell::Number(lines.len() as i64),
            Cell::Number(i64::from(all_local)),
        ];
        for (insert, row) in [(&self.sql.insert_order, order), (&self.sql.insert_new_order, new_order)] {
            insert.execute(self.connection, std::slice::from_ref(&row))?;
            self.copies.write(insert.table, row);
        }
        Ok(())
    }

    /// Takes the lines up to the first unused item from stock, each from what the line before it has left, and puts together their rows and what is
    /// shown of them.
    fn lines(
        &mut self,
        input: &NewOrder,
        o_id: i64,
        items: &Items<'_>,
        mut stocks: Stocks<'_>,
    ) -> Result<Lines, Failure> {
        let mut lines = Lines::default();
        for (line, number) in input.lines().iter().zip(1..) {
            let Some(item) = items.get(&line.i_id) else {
                break;
            };
            let no_stock = Failure::RollBack("the supplying warehouse has no stock of an item");
            let stock = stocks.get_mut(&(line.supply_w_id, line.i_id)).ok_or(no_stock)?;
            take(stock, line, input.w_id);
            let (price_cents, quantity) = (item.number("i_price"), i64::from(line.quantity));
            let amount_cents = quantity * price_cents;
            let brand = contains_original(item.text("i_data")) && contains_original(stock.text("s_data"));
            lines.amount_cents += amount_cents;
            let keys = [i64::from(input.w_id), i64::from(input.d_id), o_id, number];
            let mut row: Vec<Cell> = keys.into_iter().map(Cell::Number).collect();
            row.extend([i64::from(line.i_id), i64::from(line.supply_w_id)].map(Cell::Number));
            row.extend([Cell::Null, Cell::Number(quantity), Cell::Number(amount_cents)]);
            row.push(Cell::Text(stock.text(STOCK_DISTRICT[input.d_id as usize - 1]).to_vec()));
            lines.rows.push(row);

            lines.shown.number::<2>(stock.number("s_quantity"));
            lines.shown.raw(if brand { b"B" } else { b"G" });
            lines.shown.number::<4>(price_cents);
            lines.shown.number::<4>(amount_cents);
            lines.shown.text(item.text("i_name"));
        }
        for ((w_id, i_id), stock) in stocks {
            let changed = ["s_quantity", "s_ytd", "s_order_cnt", "s_remote_cnt"].map(|column| stock.number(column));
            let [quantity, ytd, orders, remote] = changed;
            self.connection.exec_drop(&self.sql.take_stock, (quantity, ytd, orders, remote, w_id, i_id))?;
            if C::WHOLE_ROWS {
                self.copies.write(self.sql.stock[0].table, stock.into_cells());
            }
        }
        Ok(lines)
    }
}

/// Takes a line's units from stock (clause 2.4.2.2).
fn take(stock: &mut Fields<'_>, line: &Line, home: i16) {
    let quantity = i64::from(line.quantity);
    let before = stock.number("s_quantity");
    let refill = if before >= quantity + LEAST_STOCK { 0 } else { REFILL };
    stock.set("s_quantity", Cell::Number(before - quantity + refill));
    for (column, more) in
        [("s_ytd", quantity), ("s_order_cnt", 1), ("s_remote_cnt", i64::from(line.supply_w_id != home))]
    {
        stock.set(column, Cell::Number(stock.number(column) + more));
    }
}
