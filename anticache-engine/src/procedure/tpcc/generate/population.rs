//! The initial database (clause 4.3.3.1).

use super::random::Purpose;
use super::{Constants, Random, Scale, last_name};
use crate::catalog::row::RowBuf;
use crate::catalog::{Catalog, TableId};
use crate::error::CatalogError;
use crate::procedure::tpcc::{DISTRICTS, handles, params};

/// When everything was loaded: 26 August 2013, 0:00 UTC.
const LOADED_US: i64 = 1_377_475_200_000_000;
/// What every customer has paid when it is loaded, and owes to nobody.
const FIRST_PAYMENT_CENTS: i64 = 1000;
/// Longest row, in bytes.
const MAX_ROW_BYTES: usize = 1024;

/// The nine tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TpccTable {
    /// ITEM, the same at every warehouse.
    Item,
    /// WAREHOUSE.
    Warehouse,
    /// STOCK.
    Stock,
    /// DISTRICT.
    District,
    /// CUSTOMER.
    Customer,
    /// HISTORY.
    History,
    /// ORDERS.
    Orders,
    /// ORDER_LINE.
    OrderLine,
    /// NEW_ORDER.
    NewOrder,
}

impl TpccTable {
    /// All of them. The evictable ones come last but for NEW_ORDER, which is small.
    pub const ALL: [Self; 9] = [
        Self::Item,
        Self::Warehouse,
        Self::Stock,
        Self::District,
        Self::Customer,
        Self::NewOrder,
        Self::History,
        Self::Orders,
        Self::OrderLine,
    ];

    /// Name in the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Item => "item",
            Self::Warehouse => "warehouse",
            Self::Stock => "stock",
            Self::District => "district",
            Self::Customer => "customer",
            Self::History => "history",
            Self::Orders => "orders",
            Self::OrderLine => "order_line",
            Self::NewOrder => "new_order",
        }
    }
}

type Row = RowBuf<MAX_ROW_BYTES>;
type Rows<'population> = Box<dyn Iterator<Item = Vec<u8>> + 'population>;

/// What an order and its lines agree on.
#[derive(Debug, Clone, Copy)]
struct OrderHead {
    o_id: i32,
    c_id: i32,
    carrier_id: Option<i64>,
    ol_cnt: i64,
}

/// The rows of a freshly loaded database.
pub struct Population {
    scale: Scale,
    seed: u64,
    constants: Constants,
    warehouse: handles::Warehouse,
    district: handles::District,
    customer: handles::Customer,
    history: handles::History,
    new_orders: handles::NewOrders,
    orders: handles::Orders,
    order_line: handles::OrderLine,
    item: handles::Item,
    stock: handles::Stock,
}

impl Population {
    /// The database of a seed and a scale.
    ///
    /// # Errors
    /// When the catalog lacks a table or column of TPC-C's.
    pub fn new(catalog: &Catalog, scale: Scale, seed: u64) -> Result<Self, CatalogError> {
        Ok(Self {
            scale,
            seed,
            constants: Constants::new(seed),
            warehouse: handles::Warehouse::resolve(catalog)?,
            district: handles::District::resolve(catalog)?,
            customer: handles::Customer::resolve(catalog)?,
            history: handles::History::resolve(catalog)?,
            new_orders: handles::NewOrders::resolve(catalog)?,
            orders: handles::Orders::resolve(catalog)?,
            order_line: handles::OrderLine::resolve(catalog)?,
            item: handles::Item::resolve(catalog)?,
            stock: handles::Stock::resolve(catalog)?,
        })
    }

    /// Number of a table in the catalog.
    pub fn table_id(&self, table: TpccTable) -> TableId {
        match table {
            TpccTable::Item => self.item.table,
            TpccTable::Warehouse => self.warehouse.table,
            TpccTable::Stock => self.stock.table,
            TpccTable::District => self.district.table,
            TpccTable::Customer => self.customer.table,
            TpccTable::History => self.history.table,
            TpccTable::Orders => self.orders.table,
            TpccTable::OrderLine => self.order_line.table,
            TpccTable::NewOrder => self.new_orders.table,
        }
    }

    /// Serialized rows of a table at a warehouse; of ITEM all, whatever the warehouse.
    pub fn rows(&self, table: TpccTable, w_id: i16) -> Rows<'_> {
        match table {
            TpccTable::Item => self.items(),
            TpccTable::Warehouse => Box::new(std::iter::once(self.warehouse_row(w_id))),
            TpccTable::Stock => self.stocks(w_id),
            TpccTable::District => self.districts(w_id),
            TpccTable::Customer => self.customers(w_id),
            TpccTable::History => self.histories(w_id),
            TpccTable::Orders => self.orders(w_id),
            TpccTable::OrderLine => self.order_lines(w_id),
            TpccTable::NewOrder => self.new_orders(w_id),
        }
    }

    /// The rows of HISTORY, ORDERS and ORDER_LINE of a district as they would have come about, oldest first: each step is a payment, an order and its
    /// lines. Loading all districts step by step leaves them in the order in which a database that has grown has them.
    pub fn by_age(&self, w_id: i16, d_id: i8) -> impl Iterator<Item = Vec<(TpccTable, Vec<u8>)>> + Send {
        let mut histories = self.histories_of(w_id, d_id);
        let mut orders = self.orders_of(w_id, d_id);
        let mut lines = self.lines_of(w_id, d_id);
        std::iter::from_fn(move || {
            let mut rows = Vec::new();
            rows.extend(histories.next().map(|row| (TpccTable::History, row)));
            rows.extend(orders.next().map(|row| (TpccTable::Orders, row)));
            rows.extend(lines.next().into_iter().flatten().map(|row| (TpccTable::OrderLine, row)));
            (!rows.is_empty()).then_some(rows)
        })
    }

    /// Parameters of `tpcc_load` calls for a table at a warehouse, with up to `rows_per_call` rows each.
    pub fn load_calls(&self, table: TpccTable, w_id: i16, rows_per_call: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut rows = self.rows(table, w_id).peekable();
        std::iter::from_fn(move || {
            rows.peek()?;
            let mut call = params::Load::begin(self.table_id(table));
            rows.by_ref().take(rows_per_call).for_each(|row| params::Load::append(&mut call, &row));
            Some(call)
        })
    }

    fn random(&self, purpose: Purpose, w_id: i16, d_id: i8) -> Random {
        Random::new(self.seed, purpose, (w_id as u64) << 8 | d_id as u64)
    }

    fn items(&self) -> Rows<'_> {
        let columns = &self.item;
        let mut random = self.random(Purpose::Item, 0, 0);
        Box::new((1..=self.scale.items).map(move |i_id| {
            let mut row = Row::of_bytes(columns.row_bytes);
            row.integer(columns.i_id, i64::from(i_id))
                .integer(columns.i_im_id, random.uniform(1, 10_000))
                .integer(columns.i_price, random.uniform(100, 10_000))
                .text(columns.i_name, &random.a_string(14, 24))
                .text(columns.i_data, &random.data());
            row.as_slice().to_vec()
        }))
    }

    fn warehouse_row(&self, w_id: i16) -> Vec<u8> {
        let columns = &self.warehouse;
        let mut random = self.random(Purpose::Warehouse, w_id, 0);
        let customers = i64::from(DISTRICTS) * i64::from(self.scale.customers_per_district);
        let mut row = Row::of_bytes(columns.row_bytes);
        row.integer(columns.w_id, i64::from(w_id))
            .integer(columns.w_tax, random.uniform(0, 2000))
            .integer(columns.w_ytd, customers * FIRST_PAYMENT_CENTS)
            .text(columns.w_name, &random.a_string(6, 10));
        address(&mut row, columns.address(), &mut random);
        row.as_slice().to_vec()
    }

    fn stocks(&self, w_id: i16) -> Rows<'_> {
        let columns = &self.stock;
        let mut random = self.random(Purpose::Stock, w_id, 0);
        Box::new((1..=self.scale.items).map(move |i_id| {
            let mut row = Row::of_bytes(columns.row_bytes);
            row.integer(columns.s_w_id, i64::from(w_id))
                .integer(columns.s_i_id, i64::from(i_id))
                .integer(columns.s_quantity, random.uniform(10, 100));
            for d_id in 1..=DISTRICTS {
                if let Some(column) = columns.s_dist(d_id) {
                    row.text(column, &random.a_string(24, 24));
                }
            }
            row.text(columns.s_data, &random.data());
            row.as_slice().to_vec()
        }))
    }

    fn districts(&self, w_id: i16) -> Rows<'_> {
        let columns = &self.district;
        let mut random = self.random(Purpose::District, w_id, 0);
        Box::new((1..=DISTRICTS).map(move |d_id| {
            let mut row = Row::of_bytes(columns.row_bytes);
            row.integer(columns.d_w_id, i64::from(w_id))
                .integer(columns.d_id, i64::from(d_id))
                .integer(columns.d_tax, random.uniform(0, 2000))
                .integer(columns.d_ytd, i64::from(self.scale.customers_per_district) * FIRST_PAYMENT_CENTS)
                .integer(columns.d_next_o_id, i64::from(self.scale.orders_per_district) + 1)
                .text(columns.d_name, &random.a_string(6, 10));
            address(&mut row, columns.address(), &mut random);
            row.as_slice().to_vec()
        }))
    }

    /// (district, customer) of all customers of a warehouse.
    fn customer_ids(&self) -> impl Iterator<Item = (i8, i32)> + use<> {
        let customers = self.scale.customers_per_district;
        (1..=DISTRICTS).flat_map(move |d_id| (1..=customers).map(move |c_id| (d_id, c_id)))
    }

    fn customers(&self, w_id: i16) -> Rows<'_> {
        let mut random = self.random(Purpose::Customer, w_id, 0);
        Box::new(self.customer_ids().map(move |(d_id, c_id)| self.customer_row(&mut random, w_id, d_id, c_id)))
    }

    fn customer_row(&self, random: &mut Random, w_id: i16, d_id: i8, c_id: i32) -> Vec<u8> {
        let columns = &self.customer;
        let names = self.scale.last_names();
        let name = match i64::from(c_id) - 1 {
            first if first < names => first,
            _ => random.skewed(Constants::LAST_A, self.constants.last_load, 0, names - 1),
        };
        let mut row = Row::of_bytes(columns.row_bytes);
        row.integer(columns.c_w_id, i64::from(w_id))
            .integer(columns.c_d_id, i64::from(d_id))
            .integer(columns.c_id, i64::from(c_id))
            .text(columns.c_middle, b"OE")
            .text(columns.c_phone, &random.n_string(16))
            .integer(columns.c_since, LOADED_US)
            .text(columns.c_credit, if random.percent(10) { b"BC" } else { b"GC" })
            .integer(columns.c_credit_lim, 5_000_000)
            .integer(columns.c_discount, random.uniform(0, 5000))
            .integer(columns.c_balance, -FIRST_PAYMENT_CENTS)
            .integer(columns.c_ytd_payment, FIRST_PAYMENT_CENTS)
            .integer(columns.c_payment_cnt, 1)
            .text(columns.c_first, &random.a_string(8, 16))
            .text(columns.c_last, &last_name(name));
        address(&mut row, columns.address(), random);
        row.text(columns.c_data, &random.a_string(300, 500));
        row.as_slice().to_vec()
    }

    fn histories(&self, w_id: i16) -> Rows<'_> {
        Box::new((1..=DISTRICTS).flat_map(move |d_id| self.histories_of(w_id, d_id)))
    }

    fn histories_of(&self, w_id: i16, d_id: i8) -> impl Iterator<Item = Vec<u8>> + Send {
        let columns = &self.history;
        let mut random = self.random(Purpose::History, w_id, d_id);
        (1..=self.scale.customers_per_district).map(move |c_id| {
            let mut row = Row::of_bytes(columns.row_bytes);
            row.integer(columns.h_c_id, i64::from(c_id))
                .integer(columns.h_c_d_id, i64::from(d_id))
                .integer(columns.h_c_w_id, i64::from(w_id))
                .integer(columns.h_d_id, i64::from(d_id))
                .integer(columns.h_w_id, i64::from(w_id))
                .integer(columns.h_date, LOADED_US)
                .integer(columns.h_amount, FIRST_PAYMENT_CENTS)
                .text(columns.h_data, &random.a_string(12, 24));
            row.as_slice().to_vec()
        })
    }

    fn order_heads(&self, w_id: i16, d_id: i8) -> impl Iterator<Item = OrderHead> + use<> {
        let mut random = self.random(Purpose::Orders, w_id, d_id);
        let mut customers: Vec<i32> = (1..=self.scale.customers_per_district).collect();
        random.shuffle(&mut customers);
        let first_undelivered = self.scale.first_undelivered();
        (1..=self.scale.orders_per_district).zip(customers.into_iter().cycle()).map(move |(o_id, c_id)| OrderHead {
            o_id,
            c_id,
            carrier_id: (o_id < first_undelivered).then(|| random.uniform(1, 10)),
            ol_cnt: random.uniform(5, 15),
        })
    }

    fn orders(&self, w_id: i16) -> Rows<'_> {
        Box::new((1..=DISTRICTS).flat_map(move |d_id| self.orders_of(w_id, d_id)))
    }

    fn orders_of(&self, w_id: i16, d_id: i8) -> impl Iterator<Item = Vec<u8>> + Send {
        let columns = &self.orders;
        self.order_heads(w_id, d_id).map(move |head| {
            let mut row = Row::of_bytes(columns.row_bytes);
            row.integer(columns.o_w_id, i64::from(w_id))
                .integer(columns.o_d_id, i64::from(d_id))
                .integer(columns.o_id, i64::from(head.o_id))
                .integer(columns.o_c_id, i64::from(head.c_id))
                .integer(columns.o_entry_d, LOADED_US)
                .integer(columns.o_ol_cnt, head.ol_cnt)
                .integer(columns.o_all_local, 1);
            match head.carrier_id {
                Some(carrier_id) => row.integer(columns.o_carrier_id, carrier_id),
                None => row.null(columns.o_carrier_id),
            };
            row.as_slice().to_vec()
        })
    }

    fn order_lines(&self, w_id: i16) -> Rows<'_> {
        Box::new((1..=DISTRICTS).flat_map(move |d_id| self.lines_of(w_id, d_id).flatten()))
    }

    /// The lines of one order after the other.
    fn lines_of(&self, w_id: i16, d_id: i8) -> impl Iterator<Item = Vec<Vec<u8>>> + Send {
        let mut random = self.random(Purpose::OrderLine, w_id, d_id);
        self.order_heads(w_id, d_id).map(move |head| {
            let lines = (1..=head.ol_cnt).map(|number| self.order_line_row(&mut random, w_id, d_id, &head, number));
            lines.collect()
        })
    }

    fn order_line_row(&self, random: &mut Random, w_id: i16, d_id: i8, head: &OrderHead, number: i64) -> Vec<u8> {
        let columns = &self.order_line;
        let mut row = Row::of_bytes(columns.row_bytes);
        row.integer(columns.ol_w_id, i64::from(w_id))
            .integer(columns.ol_d_id, i64::from(d_id))
            .integer(columns.ol_o_id, i64::from(head.o_id))
            .integer(columns.ol_number, number)
            .integer(columns.ol_i_id, random.uniform(1, i64::from(self.scale.items)))
            .integer(columns.ol_supply_w_id, i64::from(w_id))
            .integer(columns.ol_quantity, 5)
            .text(columns.ol_dist_info, &random.a_string(24, 24));
        match head.carrier_id {
            Some(_) => row.integer(columns.ol_delivery_d, LOADED_US),
            None => row.null(columns.ol_delivery_d).integer(columns.ol_amount, random.uniform(1, 999_999)),
        };
        row.as_slice().to_vec()
    }

    fn new_orders(&self, w_id: i16) -> Rows<'_> {
        let columns = &self.new_orders;
        let undelivered = self.scale.first_undelivered()..=self.scale.orders_per_district;
        Box::new((1..=DISTRICTS).flat_map(move |d_id| {
            undelivered.clone().map(move |o_id| {
                let mut row = Row::of_bytes(columns.row_bytes);
                row.integer(columns.no_w_id, i64::from(w_id))
                    .integer(columns.no_d_id, i64::from(d_id))
                    .integer(columns.no_o_id, i64::from(o_id));
                row.as_slice().to_vec()
            })
        }))
    }
}

/// street_1, street_2, city, state, zip.
fn address(row: &mut Row, columns: handles::Address, random: &mut Random) {
    let [street_1, street_2, city, state, zip] = columns;
    for column in [street_1, street_2, city] {
        row.text(column, &random.a_string(10, 20));
    }
    row.text(state, &random.a_string(2, 2));
    let mut code = random.n_string(4);
    code.extend_from_slice(b"11111");
    row.text(zip, &code);
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::catalog::row::{Value, values};

    const SCHEMA: &str = include_str!("../../../../../workloads/schemas/tpcc.sql");
    const SMALL: Scale = Scale { warehouses: 2, items: 2000, customers_per_district: 300, orders_per_district: 300 };

    /// (table, column name) to all values of a warehouse.
    fn columns(population: &Population, catalog: &Catalog, w_id: i16) -> HashMap<String, Vec<Option<Vec<u8>>>> {
        let mut all: HashMap<String, Vec<Option<Vec<u8>>>> = HashMap::new();
        for table in TpccTable::ALL {
            let def = catalog.table(population.table_id(table));
            for row in population.rows(table, w_id) {
                for (column, value) in def.columns.iter().zip(values(def, &row).unwrap()) {
                    all.entry(column.name.clone()).or_default().push(match value {
                        Value::Null => None,
                        Value::Number(number) => Some(number.to_le_bytes().to_vec()),
                        Value::Text(text) => Some(text.to_vec()),
                    });
                }
            }
        }
        all
    }

    fn numbers(values: &[Option<Vec<u8>>]) -> Vec<i64> {
        let number = |value: &Vec<u8>| i64::from_le_bytes(value.as_slice().try_into().unwrap());
        values.iter().flatten().map(number).collect()
    }

    #[test]
    fn tables_have_the_sizes_and_ranges_of_the_clause() {
        let catalog = Catalog::from_sql(SCHEMA).unwrap();
        let population = Population::new(&catalog, SMALL, 11).unwrap();
        let all = columns(&population, &catalog, 2);
        for (column, rows) in [
            ("i_id", 2000),
            ("w_id", 1),
            ("s_i_id", 2000),
            ("d_id", 10),
            ("c_id", 3000),
            ("h_c_id", 3000),
            ("o_id", 3000),
            ("no_o_id", 900),
        ] {
            assert_eq!(all[column].len(), rows, "{column}");
        }
        for (column, low, high) in [
            ("i_price", 100, 10_000),
            ("i_im_id", 1, 10_000),
            ("s_quantity", 10, 100),
            ("w_tax", 0, 2000),
            ("d_tax", 0, 2000),
            ("d_next_o_id", 301, 301),
            ("c_discount", 0, 5000),
            ("o_carrier_id", 1, 10),
            ("o_ol_cnt", 5, 15),
            ("no_o_id", 211, 300),
            ("ol_i_id", 1, 2000),
            ("ol_quantity", 5, 5),
            ("ol_amount", 0, 999_999),
            ("ol_supply_w_id", 2, 2),
        ] {
            let found = numbers(&all[column]);
            assert!(found.iter().all(|value| (low..=high).contains(value)), "{column}");
        }
        for (column, shortest, longest) in [
            ("i_name", 14, 24),
            ("i_data", 26, 50),
            ("s_data", 26, 50),
            ("w_name", 6, 10),
            ("c_first", 8, 16),
            ("c_street_1", 10, 20),
            ("c_data", 300, 500),
            ("h_data", 12, 24),
            ("c_zip", 9, 9),
        ] {
            assert!(all[column].iter().flatten().all(|text| (shortest..=longest).contains(&text.len())), "{column}");
        }
        assert!(all["c_zip"].iter().flatten().all(|zip| zip.ends_with(b"11111")));
        assert_eq!(all["o_carrier_id"].iter().flatten().count(), 2100);
        assert_eq!(numbers(&all["o_ol_cnt"]).iter().sum::<i64>() as usize, all["ol_o_id"].len());
        let bad = all["c_credit"].iter().flatten().filter(|credit| *credit == b"BC").count();
        assert!((200..400).contains(&bad), "{bad} of 3000 with bad credit");
        let names: HashSet<_> = all["c_last"][..300].iter().flatten().collect();
        assert_eq!(names.len(), 300);
        let ordering: HashSet<i64> = numbers(&all["o_c_id"])[..300].iter().copied().collect();
        assert_eq!(ordering.len(), 300);
        assert_ne!(numbers(&all["o_c_id"])[..300], numbers(&all["o_c_id"])[300..600]);
    }

    #[test]
    fn the_specifications_scale_is_the_specifications() {
        let scale = Scale::new(1);
        assert_eq!((scale.first_undelivered(), scale.last_names(), scale.items), (2101, 1000, 100_000));
    }

    #[test]
    fn rows_follow_from_the_seed_in_any_order() {
        let catalog = Catalog::from_sql(SCHEMA).unwrap();
        let (one, same) = (Population::new(&catalog, SMALL, 5).unwrap(), Population::new(&catalog, SMALL, 5).unwrap());
        let other = Population::new(&catalog, SMALL, 6).unwrap();
        for table in TpccTable::ALL.into_iter().rev() {
            let rows: Vec<_> = one.rows(table, 1).collect();
            assert!(same.rows(table, 1).eq(rows.iter().cloned()));
            let differs = !other.rows(table, 1).eq(rows.iter().cloned());
            assert_eq!(differs, table != TpccTable::NewOrder, "{}", table.name());
        }
        let by_age: Vec<_> = (1..=DISTRICTS).flat_map(|d_id| one.by_age(2, d_id)).collect();
        assert_eq!(by_age.len(), 3000);
        for table in [TpccTable::History, TpccTable::Orders, TpccTable::OrderLine] {
            let of_table = by_age.iter().flatten().filter(|(other, _)| *other == table).map(|(_, row)| row);
            assert!(one.rows(table, 2).eq(of_table.cloned()), "{}", table.name());
        }
        let mut loaded = Vec::new();
        for call in one.load_calls(TpccTable::District, 1, 4) {
            let mut load = params::Load::decode(&call).unwrap();
            assert_eq!(load.table, one.table_id(TpccTable::District));
            while let Some(row) = load.next_row().unwrap() {
                loaded.push(row.to_vec());
            }
        }
        assert!(one.rows(TpccTable::District, 1).eq(loaded));
    }
}
