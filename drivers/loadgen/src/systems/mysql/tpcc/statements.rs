//! The prepared statements of a connection, and the rows that they answer.

use anticache_engine::catalog::{Catalog, Column, ColumnType, TableDef, TableId};
use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::params::MAX_LINES;
use mysql::prelude::Queryable;
use mysql::{Conn, Params, Statement};

use crate::system::SystemError;
use crate::systems::mysql::rows::{self, Cell};
use crate::systems::mysql::session::{Failure, Session};

pub const WAREHOUSE_ADDRESS: [&str; 5] = ["w_street_1", "w_street_2", "w_city", "w_state", "w_zip"];
pub const DISTRICT_ADDRESS: [&str; 5] = ["d_street_1", "d_street_2", "d_city", "d_state", "d_zip"];
pub const CUSTOMER_ADDRESS: [&str; 5] = ["c_street_1", "c_street_2", "c_city", "c_state", "c_zip"];
/// The columns of a stock's row for each district.
pub const STOCK_DISTRICT: [&str; DISTRICTS as usize] = [
    "s_dist_01",
    "s_dist_02",
    "s_dist_03",
    "s_dist_04",
    "s_dist_05",
    "s_dist_06",
    "s_dist_07",
    "s_dist_08",
    "s_dist_09",
    "s_dist_10",
];
const CHANGED_STOCK: [&str; 4] = ["s_quantity", "s_ytd", "s_order_cnt", "s_remote_cnt"];

const ORDERS: [&str; 8] =
    ["o_w_id", "o_d_id", "o_id", "o_c_id", "o_entry_d", "o_carrier_id", "o_ol_cnt", "o_all_local"];
const NEW_ORDER: [&str; 3] = ["no_w_id", "no_d_id", "no_o_id"];
const ORDER_LINE: [&str; 10] = [
    "ol_w_id",
    "ol_d_id",
    "ol_o_id",
    "ol_number",
    "ol_i_id",
    "ol_supply_w_id",
    "ol_delivery_d",
    "ol_quantity",
    "ol_amount",
    "ol_dist_info",
];
const HISTORY: [&str; 8] = ["h_c_id", "h_c_d_id", "h_c_w_id", "h_d_id", "h_w_id", "h_date", "h_amount", "h_data"];

/// A query for rows of one table.
pub struct Select {
    statement: Statement,
    pub table: TableId,
    columns: Vec<Column>,
}

impl Select {
    /// The row of this query with these cells, which a copy of it had.
    pub fn fields(&self, cells: Vec<Cell>) -> Fields<'_> {
        Fields { columns: &self.columns, cells }
    }

    /// The first row.
    pub fn first(&self, connection: &mut Conn, parameters: impl Into<Params>) -> Result<Option<Fields<'_>>, Failure> {
        let row = connection.exec_first::<mysql::Row, _, _>(&self.statement, parameters)?;
        row.map(|row| self.decode(row)).transpose()
    }

    /// All rows.
    pub fn all(&self, connection: &mut Conn, parameters: impl Into<Params>) -> Result<Vec<Fields<'_>>, Failure> {
        let rows = connection.exec::<mysql::Row, _, _>(&self.statement, parameters)?;
        rows.into_iter().map(|row| self.decode(row)).collect()
    }

    fn decode(&self, row: mysql::Row) -> Result<Fields<'_>, Failure> {
        let types = self.columns.iter().map(|column| column.column_type);
        Ok(Fields { columns: &self.columns, cells: rows::cells(types, row)? })
    }
}

/// A row of a query.
pub struct Fields<'select> {
    columns: &'select [Column],
    cells: Vec<Cell>,
}

impl Fields<'_> {
    fn position(&self, column: &str) -> usize {
        let position = self.columns.iter().position(|other| other.name == column);
        position.unwrap_or_else(|| panic!("{column} was not selected"))
    }

    /// A number; 0 for NULL.
    ///
    /// # Panics
    /// As every call here, if the query does not select the column.
    pub fn number(&self, column: &str) -> i64 {
        if let Cell::Number(number) = self.cells[self.position(column)] { number } else { 0 }
    }

    /// A text.
    pub fn text(&self, column: &str) -> &[u8] {
        if let Cell::Text(text) = &self.cells[self.position(column)] { text } else { &[] }
    }

    pub fn set(&mut self, column: &str, cell: Cell) {
        let position = self.position(column);
        self.cells[position] = cell;
    }

    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub fn into_cells(self) -> Vec<Cell> {
        self.cells
    }
}

/// An INSERT of one or more rows with all columns of a table.
pub struct Insert {
    statement: Statement,
    pub table: TableId,
    types: Vec<ColumnType>,
}

impl Insert {
    /// Inserts as many rows as the statement was prepared for.
    pub fn execute(&self, connection: &mut Conn, rows: &[Vec<Cell>]) -> Result<(), Failure> {
        let parameters = rows.iter().flat_map(|row| {
            self.types.iter().zip(row).map(|(&column_type, cell)| rows::parameter(column_type, cell.value()))
        });
        Ok(connection.exec_drop(&self.statement, Params::Positional(parameters.collect()))?)
    }
}

/// All statements of the five transactions.
pub struct Statements {
    pub warehouse_tax: Select,
    pub warehouse_paid: Select,
    pub pay_warehouse: Statement,
    pub district_to_enter: Select,
    pub enter_in_district: Statement,
    pub district_paid: Select,
    pub pay_district: Statement,
    pub district_newest: Select,
    pub customers_by_name: Select,
    pub customer_credit: Select,
    pub customer_to_pay: Select,
    pub pay_customer: Statement,
    pub pay_and_note_customer: Statement,
    pub customer_shown: Select,
    pub customer_delivered: Select,
    pub deliver_customer: Statement,
    pub items: Select,
    /// For each district.
    pub stock: Vec<Select>,
    pub take_stock: Statement,
    pub low_stock: Statement,
    pub insert_order: Insert,
    pub insert_new_order: Insert,
    /// For 1, 2 … lines.
    pub insert_lines: Vec<Insert>,
    pub insert_history: Insert,
    pub newest_order: Select,
    pub order_shown: Select,
    pub lines_shown: Select,
    pub oldest_new_order: Select,
    pub delete_new_order: Statement,
    pub deliver_order: Statement,
    pub order_delivered: Select,
    pub deliver_lines: Statement,
    pub lines_delivered: Select,
}

const OF_WAREHOUSE: &str = "WHERE w_id = ?";
const OF_DISTRICT: &str = "WHERE d_w_id = ? AND d_id = ?";
const OF_CUSTOMER: &str = "WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?";
const OF_ORDER: &str = "WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?";
const OF_LINES: &str = "WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?";

/// The query of New-Order for the price and texts of up to [`MAX_LINES`] items. A list of single values is looked up value by value in the primary
/// key; hints keep the optimizer from scanning a table that it thinks is small.
pub const ITEMS: (&str, &str) = ("item FORCE INDEX (PRIMARY)", "WHERE i_id IN (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
/// As [`ITEMS`], of one warehouse's stock; rows are locked in the key's order.
pub const STOCK: (&str, &str) =
    ("stock FORCE INDEX (PRIMARY)", "WHERE s_w_id = ? AND s_i_id IN (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) FOR UPDATE");
/// The order of first names is that of their bytes, as in the engine; the index has the order of the table's collation, which knows no case.
pub const CUSTOMERS_BY_NAME: &str =
    "WHERE c_w_id = ? AND c_d_id = ? AND c_last = ? ORDER BY c_first COLLATE latin1_bin, c_id";
pub const NEWEST_ORDER: (&str, &str) = (
    "orders FORCE INDEX (orders_by_customer)",
    "WHERE o_w_id = ? AND o_d_id = ? AND o_c_id = ? ORDER BY o_id DESC LIMIT 1",
);
pub const OLDEST_NEW_ORDER: &str = "WHERE no_w_id = ? AND no_d_id = ? ORDER BY no_o_id LIMIT 1 FOR UPDATE";
/// Stock-Level's count; lines first, because there are few.
pub const LOW_STOCK: &str = "SELECT COUNT(DISTINCT s_i_id) FROM order_line STRAIGHT_JOIN stock FORCE INDEX (PRIMARY) \
     ON s_w_id = ? AND s_i_id = ol_i_id \
     WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id BETWEEN ? AND ? AND s_quantity < ?";

/// Prepares statements; queries select whole rows where copies of rows are kept.
struct Preparing<'a> {
    session: &'a mut Session,
    catalog: &'a Catalog,
    whole_rows: bool,
}

impl Preparing<'_> {
    fn table(&self, name: &str) -> Result<(TableId, &TableDef), SystemError> {
        let lacks = || SystemError::Data(format!("the schema lacks table {name}, which TPC-C needs"));
        self.catalog.table_id(name).map(|id| (id, self.catalog.table(id))).ok_or_else(lacks)
    }

    /// A query for rows that may be copied.
    fn row(&mut self, table: &str, columns: &[&str], condition: &str) -> Result<Select, SystemError> {
        self.select((table, condition), columns, self.whole_rows)
    }

    fn select(
        &mut self,
        (tables, condition): (&str, &str),
        needed: &[&str],
        whole: bool,
    ) -> Result<Select, SystemError> {
        let name = tables.split_once(' ').map_or(tables, |(table, _)| table);
        let (table, def) = self.table(name)?;
        let column = |name: &&str| {
            let column = def.column(name).map(|position| def.columns[position].clone());
            column
                .ok_or_else(|| SystemError::Data(format!("table {} lacks column {name}, which TPC-C needs", def.name)))
        };
        let needed: Vec<Column> = needed.iter().map(column).collect::<Result<_, _>>()?;
        let columns = if whole { def.columns.clone() } else { needed };
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let text = format!("SELECT {} FROM {tables} {condition}", names.join(","));
        Ok(Select { statement: self.session.prepare(&text)?, table, columns })
    }

    /// An INSERT of so many rows; `columns` are all of the table, in its order.
    fn insert(&mut self, table: &str, columns: &[&str], rows: usize) -> Result<Insert, SystemError> {
        let (id, def) = self.table(table)?;
        if !def.columns.iter().map(|column| column.name.as_str()).eq(columns.iter().copied()) {
            let message = format!("table {table} of the schema has other columns than TPC-C's: {}", columns.join(", "));
            return Err(SystemError::Data(message));
        }
        let types = def.columns.iter().map(|column| column.column_type).collect();
        let row = format!("({})", vec!["?"; columns.len()].join(","));
        let text = format!("INSERT INTO {table} ({}) VALUES {}", columns.join(","), vec![row; rows].join(","));
        Ok(Insert { statement: self.session.prepare(&text)?, table: id, types })
    }

    fn change(&mut self, text: &str) -> Result<Statement, SystemError> {
        self.session.prepare(text)
    }

    /// A stock's row with the text for a district.
    fn stock(&mut self, s_dist: &'static str) -> Result<Select, SystemError> {
        let columns: Vec<&str> = ["s_i_id", "s_data", s_dist].into_iter().chain(CHANGED_STOCK).collect();
        self.select(STOCK, &columns, self.whole_rows)
    }
}

impl Statements {
    /// Prepares them.
    ///
    /// # Errors
    /// [`SystemError::Data`] for what the schema lacks, else what mysqld refuses.
    pub fn prepare(session: &mut Session, catalog: &Catalog, whole_rows: bool) -> Result<Statements, SystemError> {
        let mut sql = Preparing { session, catalog, whole_rows };
        let for_update = |condition: &str| format!("{condition} FOR UPDATE");
        let warehouse_paid = [&["w_name"], &WAREHOUSE_ADDRESS[..]].concat();
        let district_paid = [&["d_name"], &DISTRICT_ADDRESS[..]].concat();
        let customer_to_pay = [
            &["c_first", "c_middle", "c_last"],
            &CUSTOMER_ADDRESS[..],
            &["c_phone", "c_since", "c_credit", "c_credit_lim", "c_discount"],
            &["c_balance", "c_ytd_payment", "c_payment_cnt", "c_data"],
        ]
        .concat();
        let line_shown = ["ol_number", "ol_i_id", "ol_supply_w_id", "ol_quantity", "ol_amount", "ol_delivery_d"];
        let pay_customer = "UPDATE customer SET c_balance = ?, c_ytd_payment = ?, c_payment_cnt = ?";
        Ok(Statements {
            warehouse_tax: sql.row("warehouse", &["w_tax"], OF_WAREHOUSE)?,
            warehouse_paid: sql.row("warehouse", &warehouse_paid, OF_WAREHOUSE)?,
            // Without the cast the parameter, a text, would make the sum a double.
            pay_warehouse: sql
                .change(&format!("UPDATE warehouse SET w_ytd = w_ytd + CAST(? AS DECIMAL(12,2)) {OF_WAREHOUSE}"))?,
            district_to_enter: sql.row("district", &["d_tax", "d_next_o_id"], &for_update(OF_DISTRICT))?,
            enter_in_district: sql.change(&format!("UPDATE district SET d_next_o_id = ? {OF_DISTRICT}"))?,
            district_paid: sql.row("district", &district_paid, OF_DISTRICT)?,
            pay_district: sql
                .change(&format!("UPDATE district SET d_ytd = d_ytd + CAST(? AS DECIMAL(12,2)) {OF_DISTRICT}"))?,
            district_newest: sql.select(("district", OF_DISTRICT), &["d_next_o_id"], false)?,
            customers_by_name: sql.select(("customer", CUSTOMERS_BY_NAME), &["c_id"], false)?,
            customer_credit: sql.row("customer", &["c_discount", "c_last", "c_credit"], OF_CUSTOMER)?,
            customer_to_pay: sql.row("customer", &customer_to_pay, &for_update(OF_CUSTOMER))?,
            pay_customer: sql.change(&format!("{pay_customer} {OF_CUSTOMER}"))?,
            pay_and_note_customer: sql.change(&format!("{pay_customer}, c_data = ? {OF_CUSTOMER}"))?,
            customer_shown: sql.row(
                "customer",
                &["c_id", "c_balance", "c_first", "c_middle", "c_last"],
                OF_CUSTOMER,
            )?,
            customer_delivered: sql.row("customer", &["c_id"], OF_CUSTOMER)?,
            deliver_customer: sql.change(&format!(
                "UPDATE customer SET c_balance = c_balance + CAST(? AS DECIMAL(12,2)), \
                 c_delivery_cnt = c_delivery_cnt + 1 {OF_CUSTOMER}"
            ))?,
            items: sql.select(ITEMS, &["i_id", "i_price", "i_name", "i_data"], whole_rows)?,
            stock: STOCK_DISTRICT.into_iter().map(|s_dist| sql.stock(s_dist)).collect::<Result<_, _>>()?,
            take_stock: sql.change(
                "UPDATE stock SET s_quantity = ?, s_ytd = ?, s_order_cnt = ?, s_remote_cnt = ? \
                 WHERE s_w_id = ? AND s_i_id = ?",
            )?,
            low_stock: sql.change(LOW_STOCK)?,
            insert_order: sql.insert("orders", &ORDERS, 1)?,
            insert_new_order: sql.insert("new_order", &NEW_ORDER, 1)?,
            insert_lines: (1..=MAX_LINES)
                .map(|rows| sql.insert("order_line", &ORDER_LINE, rows))
                .collect::<Result<_, _>>()?,
            insert_history: sql.insert("history", &HISTORY, 1)?,
            newest_order: sql.select(NEWEST_ORDER, &["o_id"], false)?,
            order_shown: sql.row("orders", &["o_id", "o_entry_d", "o_carrier_id", "o_ol_cnt"], OF_ORDER)?,
            lines_shown: sql.row("order_line", &line_shown, &format!("{OF_LINES} ORDER BY ol_number"))?,
            oldest_new_order: sql.select(("new_order", OLDEST_NEW_ORDER), &["no_o_id"], false)?,
            delete_new_order: sql.change("DELETE FROM new_order WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?")?,
            deliver_order: sql.change(&format!("UPDATE orders SET o_carrier_id = ? {OF_ORDER}"))?,
            order_delivered: sql.row("orders", &["o_c_id"], OF_ORDER)?,
            deliver_lines: sql.change(&format!("UPDATE order_line SET ol_delivery_d = ? {OF_LINES}"))?,
            lines_delivered: sql.row("order_line", &["ol_amount"], OF_LINES)?,
        })
    }
}
