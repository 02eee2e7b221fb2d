//! The tables and columns of the schema, resolved by name once when the server starts.

use crate::catalog::key::IndexKind;
use crate::catalog::{Catalog, ColumnType, Field, IndexId, TableDef, TableId};
use crate::error::CatalogError;

/// Longest text column but for those of [`LONG_TEXTS`], in bytes; the replies' buffer counts on it.
pub(super) const MAX_TEXT_BYTES: usize = 50;
/// Text columns that may be longer, and how long.
const LONG_TEXTS: [(&str, usize); 1] = [("c_data", MAX_DATA_BYTES)];
/// Longest `c_data` (clause 1.3.1).
pub(super) const MAX_DATA_BYTES: usize = 500;
/// Longest `c_last`, and `c_first` as well.
pub(super) const MAX_NAME_BYTES: usize = 16;

fn problem(table: &str, problem: String) -> CatalogError {
    CatalogError::Table { table: table.to_owned(), problem }
}

/// A table whose primary key takes `key_bytes`, and whose texts fit.
fn table<'catalog>(
    catalog: &'catalog Catalog,
    name: &str,
    key_bytes: usize,
) -> Result<(TableId, &'catalog TableDef), CatalogError> {
    let id = catalog.table_id(name).ok_or_else(|| problem(name, "TPC-C needs it; it is not there".to_owned()))?;
    let def = catalog.table(id);
    if def.key_bytes != key_bytes {
        return Err(problem(name, format!("its key takes {} bytes; TPC-C's takes {key_bytes}", def.key_bytes)));
    }
    for column in &def.columns {
        let bytes = match column.column_type {
            ColumnType::VarChar { max_bytes } => max_bytes,
            ColumnType::Char { bytes } => bytes,
            _ => continue,
        };
        let long = LONG_TEXTS.iter().find(|(long, _)| column.name.eq_ignore_ascii_case(long));
        let most = long.map_or(MAX_TEXT_BYTES, |&(_, most)| most);
        if bytes > most {
            return Err(problem(
                name,
                format!("column `{}` takes {bytes} bytes; at most {most} are served", column.name),
            ));
        }
    }
    Ok((id, def))
}

/// An ordered index whose own columns take `key_bytes`.
fn ordered(def: &TableDef, name: &str, key_bytes: usize) -> Result<IndexId, CatalogError> {
    let id = def.index(name)?;
    let index = &def.indexes[id];
    if index.kind != IndexKind::Ordered || index.key_bytes != key_bytes {
        let found = format!("{:?} with keys of {} bytes", index.kind, index.key_bytes);
        return Err(problem(
            &def.name,
            format!("index `{name}` is {found}; TPC-C's is ordered (USING BTREE) with {key_bytes}"),
        ));
    }
    Ok(id)
}

/// A column of numbers, or of text.
fn column(def: &TableDef, name: &str, text: bool) -> Result<Field, CatalogError> {
    let field = def.field(name)?;
    let is_text = def
        .column(name)
        .is_some_and(|at| matches!(def.columns[at].column_type, ColumnType::Char { .. } | ColumnType::VarChar { .. }));
    if is_text == text {
        return Ok(field);
    }
    let (found, wanted) = if is_text { ("text", "a number or a date") } else { ("no text", "CHAR or VARCHAR") };
    Err(problem(&def.name, format!("column `{name}` is {found}; TPC-C's is {wanted}")))
}

/// Whether the procedures' buffer has room for a row that they insert.
fn fits(def: &TableDef, most_bytes: usize) -> Result<(), CatalogError> {
    let bytes = def.max_serialized_bytes();
    if bytes <= most_bytes {
        return Ok(());
    }
    Err(problem(&def.name, format!("a row takes up to {bytes} bytes; at most {most_bytes} are served")))
}

/// A struct of column handles: fields are named as the columns are. `inserts`: bytes of the procedures' buffer for a row.
macro_rules! handles {
    ($(#[$doc:meta])* $name:ident, $table:literal, key $key_bytes:literal, $(inserts $most_bytes:literal,)?
     numbers [$($number:ident)*], texts [$($text:ident)*], indexes [$($handle:ident = $index:literal $index_bytes:expr;)*]) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub(super) struct $name {
            pub table: TableId,
            /// Bytes of a row's fixed part.
            pub row_bytes: usize,
            $(pub $number: Field,)*
            $(pub $text: Field,)*
            $(pub $handle: IndexId,)*
        }

        impl $name {
            $(pub(super) const MOST_BYTES: usize = $most_bytes;)?

            pub(super) fn resolve(catalog: &Catalog) -> Result<Self, CatalogError> {
                let (table, def) = table(catalog, $table, $key_bytes)?;
                $(fits(def, $most_bytes)?;)?
                Ok(Self {
                    table,
                    row_bytes: def.row_bytes,
                    $($number: column(def, stringify!($number), false)?,)*
                    $($text: column(def, stringify!($text), true)?,)*
                    $($handle: ordered(def, $index, $index_bytes)?,)*
                })
            }
        }
    };
}

handles!(
    /// WAREHOUSE.
    Warehouse, "warehouse", key 2,
    numbers [w_id w_tax w_ytd],
    texts [w_name w_street_1 w_street_2 w_city w_state w_zip],
    indexes []
);

handles!(
    /// DISTRICT.
    District, "district", key 3,
    numbers [d_w_id d_id d_tax d_ytd d_next_o_id],
    texts [d_name d_street_1 d_street_2 d_city d_state d_zip],
    indexes []
);

handles!(
    /// CUSTOMER.
    Customer, "customer", key 7,
    numbers [c_w_id c_d_id c_id c_since c_credit_lim c_discount c_balance c_ytd_payment c_payment_cnt c_delivery_cnt],
    texts [c_first c_middle c_last c_street_1 c_street_2 c_city c_state c_zip c_phone c_credit c_data],
    indexes [by_name = "customer_by_name" 2 + 1 + 2 * (MAX_NAME_BYTES + 2);]
);

handles!(
    /// HISTORY.
    History, "history", key 0, inserts 128,
    numbers [h_c_id h_c_d_id h_c_w_id h_d_id h_w_id h_date h_amount],
    texts [h_data],
    indexes []
);

handles!(
    /// NEW_ORDER.
    NewOrders, "new_order", key 7, inserts 64,
    numbers [no_w_id no_d_id no_o_id],
    texts [],
    indexes [by_id = "PRIMARY" 7;]
);

handles!(
    /// ORDERS.
    Orders, "orders", key 7, inserts 64,
    numbers [o_w_id o_d_id o_id o_c_id o_entry_d o_carrier_id o_ol_cnt o_all_local],
    texts [],
    indexes [by_customer = "orders_by_customer" 11;]
);

handles!(
    /// ORDER_LINE.
    OrderLine, "order_line", key 8, inserts 96,
    numbers [ol_w_id ol_d_id ol_o_id ol_number ol_i_id ol_supply_w_id ol_delivery_d ol_quantity ol_amount],
    texts [ol_dist_info],
    indexes [by_id = "PRIMARY" 8;]
);

handles!(
    /// ITEM.
    Item, "item", key 4,
    numbers [i_id i_im_id i_price],
    texts [i_name i_data],
    indexes []
);

handles!(
    /// STOCK.
    Stock, "stock", key 6,
    numbers [s_w_id s_i_id s_quantity s_ytd s_order_cnt s_remote_cnt],
    texts [s_dist_01 s_dist_02 s_dist_03 s_dist_04 s_dist_05 s_dist_06 s_dist_07 s_dist_08 s_dist_09 s_dist_10 s_data],
    indexes []
);

impl Stock {
    /// S_DIST_xx of the district with this number.
    #[inline]
    pub(super) fn s_dist(&self, d_id: i8) -> Option<Field> {
        let all = [
            self.s_dist_01,
            self.s_dist_02,
            self.s_dist_03,
            self.s_dist_04,
            self.s_dist_05,
            self.s_dist_06,
            self.s_dist_07,
            self.s_dist_08,
            self.s_dist_09,
            self.s_dist_10,
        ];
        all.get(usize::try_from(d_id).ok()?.checked_sub(1)?).copied()
    }
}

/// street_1, street_2, city, state, zip.
pub(super) type Address = [Field; 5];

impl Warehouse {
    pub(super) fn address(&self) -> Address {
        [self.w_street_1, self.w_street_2, self.w_city, self.w_state, self.w_zip]
    }
}

impl District {
    pub(super) fn address(&self) -> Address {
        [self.d_street_1, self.d_street_2, self.d_city, self.d_state, self.d_zip]
    }
}

impl Customer {
    pub(super) fn address(&self) -> Address {
        [self.c_street_1, self.c_street_2, self.c_city, self.c_state, self.c_zip]
    }
}
