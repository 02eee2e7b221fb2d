//! The five transactions once more, from the specification's text, on plain maps: what the procedures must answer and leave behind.

use std::collections::BTreeMap;

use anticache_engine::catalog::Catalog;
use anticache_engine::catalog::row::{Value, values};
use anticache_engine::procedure::tpcc::generate::{Input, Population, Scale, TpccTable};
use anticache_engine::procedure::tpcc::params::{CustomerBy, Delivery, NewOrder, OrderStatus, Payment, StockLevel};

/// A column's value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Val {
    Null,
    Number(i64),
    Text(Vec<u8>),
}

/// A row by column names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row(pub BTreeMap<String, Val>);

impl Row {
    fn number(&self, column: &str) -> i64 {
        match &self.0[column] {
            Val::Number(number) => *number,
            other => panic!("{column} is {other:?}"),
        }
    }

    fn number_or_0(&self, column: &str) -> i64 {
        if self.0[column] == Val::Null { 0 } else { self.number(column) }
    }

    fn text(&self, column: &str) -> &[u8] {
        match &self.0[column] {
            Val::Text(text) => text,
            other => panic!("{column} is {other:?}"),
        }
    }

    fn set(&mut self, column: &str, value: i64) {
        *self.0.get_mut(column).unwrap() = Val::Number(value);
    }

    fn add(&mut self, column: &str, value: i64) {
        self.set(column, self.number(column) + value);
    }
}

/// A row by column names.
pub fn by_name(table: &anticache_engine::catalog::TableDef, serialized: &[u8]) -> Row {
    let values = values(table, serialized).unwrap();
    let owned = values.iter().map(|value| match *value {
        Value::Null => Val::Null,
        Value::Number(number) => Val::Number(number),
        Value::Text(text) => Val::Text(text.to_vec()),
    });
    Row(table.columns.iter().map(|column| column.name.clone()).zip(owned).collect())
}

/// Rows by primary key; those of HISTORY by their number.
type Rows = BTreeMap<Vec<i64>, Row>;

#[derive(Clone)]
pub struct Reference {
    tables: BTreeMap<&'static str, Rows>,
    histories: i64,
}

fn key_columns(table: TpccTable) -> &'static [&'static str] {
    match table {
        TpccTable::Item => &["i_id"],
        TpccTable::Warehouse => &["w_id"],
        TpccTable::Stock => &["s_w_id", "s_i_id"],
        TpccTable::District => &["d_w_id", "d_id"],
        TpccTable::Customer => &["c_w_id", "c_d_id", "c_id"],
        TpccTable::History => &[],
        TpccTable::Orders => &["o_w_id", "o_d_id", "o_id"],
        TpccTable::OrderLine => &["ol_w_id", "ol_d_id", "ol_o_id", "ol_number"],
        TpccTable::NewOrder => &["no_w_id", "no_d_id", "no_o_id"],
    }
}

#[derive(Default)]
struct Reply(Vec<u8>);

impl Reply {
    fn number(&mut self, bytes: usize, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes()[..bytes]);
    }

    fn text(&mut self, text: &[u8]) {
        self.0.push(u8::try_from(text.len()).unwrap());
        self.0.extend_from_slice(text);
    }

    fn address(&mut self, row: &Row, prefix: &str) {
        for column in ["street_1", "street_2", "city"] {
            self.text(row.text(&format!("{prefix}_{column}")));
        }
        for column in ["state", "zip"] {
            self.0.extend_from_slice(row.text(&format!("{prefix}_{column}")));
        }
    }
}

fn has_original(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).contains("ORIGINAL")
}

fn row<const N: usize>(columns: [(&str, Val); N]) -> Row {
    Row(columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn n(value: impl Into<i64>) -> Val {
    Val::Number(value.into())
}

impl Reference {
    pub fn load(catalog: &Catalog, population: &Population, scale: Scale) -> Self {
        let mut reference = Self { tables: BTreeMap::new(), histories: 0 };
        for table in TpccTable::ALL {
            let def = catalog.table(population.table_id(table));
            let warehouses = if table == TpccTable::Item { 1..=1 } else { 1..=scale.warehouses };
            reference.tables.insert(table.name(), Rows::new());
            for serialized in warehouses.flat_map(|w_id| population.rows(table, w_id)) {
                reference.insert(table, by_name(def, &serialized));
            }
        }
        reference
    }

    /// All rows, as `Database::rows` gives them.
    pub fn rows(&self) -> BTreeMap<&'static str, Vec<Row>> {
        let sorted = |rows: &Rows| {
            let mut rows: Vec<_> = rows.values().cloned().collect();
            rows.sort();
            rows
        };
        self.tables.iter().map(|(&name, rows)| (name, sorted(rows))).collect()
    }

    fn insert(&mut self, table: TpccTable, row: Row) {
        let mut key: Vec<i64> = key_columns(table).iter().map(|column| row.number(column)).collect();
        if table == TpccTable::History {
            self.histories += 1;
            key.push(self.histories);
        }
        assert!(self.tables.get_mut(table.name()).unwrap().insert(key, row).is_none());
    }

    fn get(&self, table: TpccTable, key: &[i64]) -> Option<&Row> {
        self.tables[table.name()].get(key)
    }

    fn row(&mut self, table: TpccTable, key: &[i64]) -> &mut Row {
        self.tables.get_mut(table.name()).unwrap().get_mut(key).unwrap()
    }

    fn district_rows(&self, table: TpccTable, w_id: i64, d_id: i64) -> impl Iterator<Item = (&Vec<i64>, &Row)> {
        self.tables[table.name()].range(vec![w_id, d_id]..vec![w_id, d_id + 1])
    }

    pub fn execute(&mut self, input: &Input) -> Result<Vec<u8>, String> {
        match input {
            Input::NewOrder(input) => self.new_order(input),
            Input::Payment(input) => Ok(self.payment(input)),
            Input::OrderStatus(input) => Ok(self.order_status(input)),
            Input::Delivery(input) => Ok(self.delivery(input)),
            Input::StockLevel(input) => Ok(self.stock_level(input)),
        }
    }

    fn customer(&self, w_id: i16, d_id: i8, by: &CustomerBy) -> Vec<i64> {
        let (w_id, d_id) = (i64::from(w_id), i64::from(d_id));
        match by {
            CustomerBy::Id(c_id) => vec![w_id, d_id, i64::from(*c_id)],
            CustomerBy::LastName(name) => {
                let mut found: Vec<_> = self
                    .district_rows(TpccTable::Customer, w_id, d_id)
                    .filter(|(_, row)| row.text("c_last") == name.as_slice())
                    .map(|(key, row)| (row.text("c_first"), key))
                    .collect();
                found.sort();
                let position = (found.len() as f64 / 2.0).ceil() as usize;
                found[position - 1].1.clone()
            }
        }
    }

    fn new_order(&mut self, input: &NewOrder) -> Result<Vec<u8>, String> {
        let (w_id, d_id, c_id) = (i64::from(input.w_id), i64::from(input.d_id), i64::from(input.c_id));
        if input.lines().iter().any(|line| self.get(TpccTable::Item, &[line.i_id.into()]).is_none()) {
            return Err("item not found".to_owned());
        }
        let w_tax = self.row(TpccTable::Warehouse, &[w_id]).number("w_tax");
        let district = self.row(TpccTable::District, &[w_id, d_id]);
        let (d_tax, o_id) = (district.number("d_tax"), district.number("d_next_o_id"));
        district.add("d_next_o_id", 1);
        let customer = self.get(TpccTable::Customer, &[w_id, d_id, c_id]).unwrap().clone();
        let discount = customer.number("c_discount");
        let lines = input.lines();
        let all_local = lines.iter().all(|line| line.supply_w_id == input.w_id);
        self.insert(
            TpccTable::Orders,
            row([
                ("o_w_id", n(w_id)),
                ("o_d_id", n(d_id)),
                ("o_id", n(o_id)),
                ("o_c_id", n(c_id)),
                ("o_entry_d", n(input.entry_d_us)),
                ("o_carrier_id", Val::Null),
                ("o_ol_cnt", n(lines.len() as i64)),
                ("o_all_local", n(i64::from(all_local))),
            ]),
        );
        self.insert(TpccTable::NewOrder, row([("no_w_id", n(w_id)), ("no_d_id", n(d_id)), ("no_o_id", n(o_id))]));
        let (mut sum_cents, mut shown) = (0i128, Reply::default());
        for (line, number) in lines.iter().zip(1i64..) {
            sum_cents += i128::from(self.order_line(
                input,
                o_id,
                number,
                line.i_id,
                line.supply_w_id,
                line.quantity,
                &mut shown,
            ));
        }
        // sum(OL_AMOUNT) · (1 − C_DISCOUNT) · (1 + W_TAX + D_TAX), to the nearest cent.
        let exact = sum_cents * i128::from(10_000 - discount) * i128::from(10_000 + w_tax + d_tax);
        let mut reply = Reply::default();
        reply.number(4, o_id);
        reply.number(8, ((2 * exact + 100_000_000) / 200_000_000) as i64);
        reply.number(2, w_tax);
        reply.number(2, d_tax);
        reply.number(2, discount);
        reply.text(customer.text("c_last"));
        reply.0.extend_from_slice(customer.text("c_credit"));
        reply.0.extend_from_slice(&shown.0);
        Ok(reply.0)
    }

    #[expect(clippy::too_many_arguments)]
    fn order_line(
        &mut self,
        order: &NewOrder,
        o_id: i64,
        number: i64,
        i_id: i32,
        supply_w_id: i16,
        quantity: i8,
        shown: &mut Reply,
    ) -> i64 {
        let (i_id, supply, quantity) = (i64::from(i_id), i64::from(supply_w_id), i64::from(quantity));
        let item = self.get(TpccTable::Item, &[i_id]).unwrap().clone();
        let stock = self.row(TpccTable::Stock, &[supply, i_id]);
        if stock.number("s_quantity") - quantity >= 10 {
            stock.add("s_quantity", -quantity);
        } else {
            stock.add("s_quantity", 91 - quantity);
        }
        stock.add("s_ytd", quantity);
        stock.add("s_order_cnt", 1);
        if supply_w_id != order.w_id {
            stock.add("s_remote_cnt", 1);
        }
        let amount_cents = quantity * item.number("i_price");
        let brand = has_original(item.text("i_data")) && has_original(stock.text("s_data"));
        shown.number(2, stock.number("s_quantity"));
        shown.0.push(if brand { b'B' } else { b'G' });
        shown.number(4, item.number("i_price"));
        shown.number(4, amount_cents);
        shown.text(item.text("i_name"));
        let info = stock.text(&format!("s_dist_{:02}", order.d_id)).to_vec();
        self.insert(
            TpccTable::OrderLine,
            row([
                ("ol_w_id", n(order.w_id)),
                ("ol_d_id", n(order.d_id)),
                ("ol_o_id", n(o_id)),
                ("ol_number", n(number)),
                ("ol_i_id", n(i_id)),
                ("ol_supply_w_id", n(supply)),
                ("ol_delivery_d", Val::Null),
                ("ol_quantity", n(quantity)),
                ("ol_amount", n(amount_cents)),
                ("ol_dist_info", Val::Text(info)),
            ]),
        );
        amount_cents
    }

    fn payment(&mut self, input: &Payment) -> Vec<u8> {
        let (w_id, d_id, cents) = (i64::from(input.w_id), i64::from(input.d_id), i64::from(input.amount_cents));
        let mut reply = Reply::default();
        let warehouse = self.row(TpccTable::Warehouse, &[w_id]);
        warehouse.add("w_ytd", cents);
        reply.address(warehouse, "w");
        let w_name = warehouse.text("w_name").to_vec();
        let district = self.row(TpccTable::District, &[w_id, d_id]);
        district.add("d_ytd", cents);
        reply.address(district, "d");
        let names = [w_name.as_slice(), b"    ", district.text("d_name")].concat();

        let key = self.customer(input.c_w_id, input.c_d_id, &input.customer);
        let customer = self.row(TpccTable::Customer, &key);
        customer.add("c_balance", -cents);
        customer.add("c_ytd_payment", cents);
        customer.add("c_payment_cnt", 1);
        reply.number(4, customer.number("c_id"));
        reply.text(customer.text("c_first"));
        reply.0.extend_from_slice(customer.text("c_middle"));
        reply.text(customer.text("c_last"));
        reply.address(customer, "c");
        reply.0.extend_from_slice(customer.text("c_phone"));
        reply.number(8, customer.number("c_since"));
        reply.0.extend_from_slice(customer.text("c_credit"));
        reply.number(8, customer.number("c_credit_lim"));
        reply.number(2, customer.number("c_discount"));
        reply.number(8, customer.number("c_balance"));
        if customer.text("c_credit") == b"BC" {
            let (c_id, amount) = (customer.number("c_id"), format!("{}.{:02}", cents / 100, cents % 100));
            let note = format!("{c_id} {} {} {d_id} {w_id} {amount}|", input.c_d_id, input.c_w_id);
            let mut data = [note.as_bytes(), customer.text("c_data")].concat();
            data.truncate(500);
            reply.text(&data[..data.len().min(200)]);
            customer.0.insert("c_data".to_owned(), Val::Text(data));
        }
        self.insert(
            TpccTable::History,
            row([
                ("h_c_id", n(key[2])),
                ("h_c_d_id", n(key[1])),
                ("h_c_w_id", n(key[0])),
                ("h_d_id", n(d_id)),
                ("h_w_id", n(w_id)),
                ("h_date", n(input.date_us)),
                ("h_amount", n(cents)),
                ("h_data", Val::Text(names)),
            ]),
        );
        reply.0
    }

    fn order_status(&mut self, input: &OrderStatus) -> Vec<u8> {
        let (w_id, d_id) = (i64::from(input.w_id), i64::from(input.d_id));
        let key = self.customer(input.w_id, input.d_id, &input.customer);
        let customer = self.get(TpccTable::Customer, &key).unwrap();
        let mut reply = Reply::default();
        reply.number(4, customer.number("c_id"));
        reply.number(8, customer.number("c_balance"));
        reply.text(customer.text("c_first"));
        reply.0.extend_from_slice(customer.text("c_middle"));
        reply.text(customer.text("c_last"));
        let of_customer = |(_, row): &(&Vec<i64>, &Row)| row.number("o_c_id") == key[2];
        let orders = self.district_rows(TpccTable::Orders, w_id, d_id).filter(of_customer);
        let (_, order) = orders.max_by_key(|(_, row)| row.number("o_id")).unwrap();
        let o_id = order.number("o_id");
        reply.number(4, o_id);
        reply.number(8, order.number("o_entry_d"));
        reply.number(1, order.number_or_0("o_carrier_id"));
        reply.number(1, order.number("o_ol_cnt"));
        for number in 1..=order.number("o_ol_cnt") {
            let line = self.get(TpccTable::OrderLine, &[w_id, d_id, o_id, number]).unwrap();
            reply.number(4, line.number("ol_i_id"));
            reply.number(2, line.number("ol_supply_w_id"));
            reply.number(2, line.number("ol_quantity"));
            reply.number(4, line.number("ol_amount"));
            reply.number(8, line.number_or_0("ol_delivery_d"));
        }
        reply.0
    }

    fn delivery(&mut self, input: &Delivery) -> Vec<u8> {
        let w_id = i64::from(input.w_id);
        let mut reply = Reply::default();
        for d_id in 1..=10 {
            let oldest = self.district_rows(TpccTable::NewOrder, w_id, d_id).next().map(|(key, _)| key.clone());
            let Some(key) = oldest else {
                reply.number(4, 0);
                continue;
            };
            reply.number(4, key[2]);
            self.tables.get_mut("new_order").unwrap().remove(&key);
            let order = self.row(TpccTable::Orders, &key);
            order.set("o_carrier_id", input.carrier_id.into());
            let (c_id, ol_cnt) = (order.number("o_c_id"), order.number("o_ol_cnt"));
            let mut sum_cents = 0;
            for number in 1..=ol_cnt {
                let line = self.row(TpccTable::OrderLine, &[w_id, d_id, key[2], number]);
                line.set("ol_delivery_d", input.date_us);
                sum_cents += line.number("ol_amount");
            }
            let customer = self.row(TpccTable::Customer, &[w_id, d_id, c_id]);
            customer.add("c_balance", sum_cents);
            customer.add("c_delivery_cnt", 1);
        }
        reply.0
    }

    fn stock_level(&mut self, input: &StockLevel) -> Vec<u8> {
        let (w_id, d_id) = (i64::from(input.w_id), i64::from(input.d_id));
        let next = self.get(TpccTable::District, &[w_id, d_id]).unwrap().number("d_next_o_id");
        let recent = self.tables["order_line"].range(vec![w_id, d_id, next - 20]..vec![w_id, d_id, next]);
        let items: std::collections::BTreeSet<i64> = recent.map(|(_, line)| line.number("ol_i_id")).collect();
        let is_low = |i_id: &&i64| {
            let stock = self.get(TpccTable::Stock, &[w_id, **i_id]).unwrap();
            stock.number("s_quantity") < i64::from(input.threshold)
        };
        let mut reply = Reply::default();
        reply.number(4, items.iter().filter(is_low).count() as i64);
        reply.0
    }
}
