//! Tables as the engine knows them, from the SQL DDL that all systems share (`ddl.rs` reads it).
//!
//! What only the engine needs stands in the table's COMMENT, which MySQL keeps and ignores:
//! `COMMENT = 'evictable; partition by COLUMN'` or `'replicated'`. A table without `evictable` keeps no LRU chain and stays in memory (paper §3.1).
//!
//! ```text
//! row, fixed part     | primary-key columns, in key order | other indexed columns | other columns | null bits |
//! row, serialized     | fixed part, references zero | for each VARCHAR column, in the DDL's order: length:2 bytes |
//! indexed columns     | the fixed part's indexed columns, its prefix | each indexed VARCHAR, padded | : all that the indexes need of an evicted tuple
//! ```
//!
//! Integers, decimals (scaled) and timestamps (microseconds) are signed little-endian numbers, CHAR is padded with blanks, a VARCHAR column is a
//! 4-byte reference into the table's memory for variable-length data.

use std::path::Path;

use crate::error::CatalogError;

mod ddl;
pub mod key;
pub mod row;

use key::IndexDef;

/// Position of a table in the catalog.
pub type TableId = u16;
/// Position of an index in its table; 0 is the primary key's, where the table has one.
pub type IndexId = usize;

/// Longest row served, in bytes of its serialized form.
pub const MAX_ROW_BYTES: usize = 8192;
/// Longest VARCHAR served.
pub const MAX_VARCHAR_BYTES: usize = 4096;
/// Most VARCHAR columns of a table.
pub const MAX_VARCHAR_COLUMNS: usize = 64;
/// Bytes of a reference to variable-length data.
pub const VAR_REF_BYTES: usize = 4;

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// A signed integer of 1, 2, 4 or 8 bytes.
    Integer {
        /// Width.
        bytes: usize,
    },
    /// A decimal as a scaled integer of 4 bytes (up to 9 digits) or 8 (up to 18).
    Decimal {
        /// Width.
        bytes: usize,
        /// Digits behind the point.
        scale: u32,
    },
    /// Microseconds since 1970 as an 8-byte integer.
    Timestamp,
    /// Text of exactly this many bytes, padded with blanks.
    Char {
        /// Length.
        bytes: usize,
    },
    /// Text of up to this many bytes, out of line.
    VarChar {
        /// Greatest length.
        max_bytes: usize,
    },
}

impl ColumnType {
    /// Bytes in the row's fixed part.
    pub fn bytes(self) -> usize {
        match self {
            Self::Integer { bytes } | Self::Decimal { bytes, .. } | Self::Char { bytes } => bytes,
            Self::Timestamp => 8,
            Self::VarChar { .. } => VAR_REF_BYTES,
        }
    }

    /// Whether it is a number, which indexes order by value.
    pub fn is_number(self) -> bool {
        matches!(self, Self::Integer { .. } | Self::Decimal { .. } | Self::Timestamp)
    }
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name as in the DDL.
    pub name: String,
    /// Type.
    pub column_type: ColumnType,
    /// Offset in the row's fixed part, in bytes.
    pub offset: usize,
    /// Number of its null bit; `None` = NOT NULL.
    pub null_bit: Option<usize>,
    /// Position among the table's VARCHAR columns.
    pub var: Option<u8>,
}

/// How a procedure reaches a column: resolved by name once, used without looking anything up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Offset in the row's fixed part.
    pub offset: usize,
    /// Bytes in the fixed part.
    pub bytes: usize,
    /// Position among the VARCHAR columns.
    pub var: Option<u8>,
    /// Byte of the row and mask of its null bit.
    pub null: Option<(usize, u8)>,
}

/// One table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDef {
    /// Name as in the DDL.
    pub name: String,
    /// Columns in the DDL's order.
    pub columns: Vec<Column>,
    /// Bytes of a row's fixed part.
    pub row_bytes: usize,
    /// Bytes of the primary key, the row's prefix; 0 without one.
    pub key_bytes: usize,
    /// Indexes; the first is the primary key's when `key_bytes` > 0.
    pub indexes: Vec<IndexDef>,
    /// Bytes of the row's prefix that holds all indexed columns of fixed size.
    pub indexed_bytes: usize,
    /// Bytes of the indexed columns as the Evicted Table keeps them: `indexed_bytes` and the padded VARCHARs behind them.
    pub image_bytes: usize,
    /// Greatest length of each VARCHAR column.
    pub var_max_bytes: Vec<usize>,
    /// Offset in the row of each VARCHAR column's reference.
    pub var_offsets: Vec<usize>,
    /// Where in the indexed columns' image each VARCHAR column is; `None` = no index uses it.
    pub var_image_offsets: Vec<Option<usize>>,
    /// Offset of the null bits.
    pub null_offset: usize,
    /// Column whose value modulo the number of partitions chooses the partition; `None` = every tuple at partition 0, unless `replicated`.
    pub partition_column: Option<usize>,
    /// Whether every partition has all tuples.
    pub replicated: bool,
    /// Whether the table keeps an LRU chain and may be evicted.
    pub evictable: bool,
}

impl TableDef {
    /// The primary key of a row (or of an image of indexed columns): empty without one.
    #[inline]
    pub fn key<'row>(&self, row: &'row [u8]) -> &'row [u8] {
        &row[..self.key_bytes]
    }

    /// Position of a column by name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// A column for procedures, by name.
    ///
    /// # Errors
    /// When the table has no such column.
    pub fn field(&self, name: &str) -> Result<Field, CatalogError> {
        let index = self.column(name).ok_or_else(|| CatalogError::Table {
            table: self.name.clone(),
            problem: format!("a procedure needs a column `{name}`, which it does not have"),
        })?;
        let column = &self.columns[index];
        let null = column.null_bit.map(|bit| (self.null_offset + bit / 8, 1u8 << (bit % 8)));
        Ok(Field { offset: column.offset, bytes: column.column_type.bytes(), var: column.var, null })
    }

    /// Position of an index by name (`PRIMARY` for the primary key's).
    ///
    /// # Errors
    /// When the table has no such index.
    pub fn index(&self, name: &str) -> Result<IndexId, CatalogError> {
        self.indexes.iter().position(|index| index.name.eq_ignore_ascii_case(name)).ok_or_else(|| CatalogError::Table {
            table: self.name.clone(),
            problem: format!("a procedure needs an index `{name}`, which it does not have"),
        })
    }

    /// Whether it has variable-length columns.
    #[inline]
    pub fn has_var(&self) -> bool {
        !self.var_max_bytes.is_empty()
    }

    /// Longest serialized row, in bytes.
    pub fn max_serialized_bytes(&self) -> usize {
        self.row_bytes + self.var_max_bytes.iter().map(|max| 2 + max).sum::<usize>()
    }

    /// Splits a serialized row into its fixed part and the values of its VARCHAR columns.
    ///
    /// # Errors
    /// What does not fit.
    pub fn split<'row>(&self, serialized: &'row [u8]) -> Result<(&'row [u8], VarValues<'row>), String> {
        let Some((fixed, rest)) = serialized.split_at_checked(self.row_bytes) else {
            return Err(format!(
                "a row of {} bytes for table {}, whose rows have {}{}",
                serialized.len(),
                self.name,
                self.row_bytes,
                if self.has_var() { " and variable-length data" } else { "" }
            ));
        };
        let mut left = rest;
        for (var, &max) in self.var_max_bytes.iter().enumerate() {
            let length = left.first_chunk::<2>().map(|bytes| usize::from(u16::from_le_bytes(*bytes)));
            match length.filter(|&length| length <= max).and_then(|length| left.get(2 + length..)) {
                Some(rest) => left = rest,
                None => {
                    return Err(format!(
                        "a row of table {}: variable-length column {var} has {length:?} bytes of {} left; at most {max} are allowed",
                        self.name,
                        left.len().saturating_sub(2)
                    ));
                }
            }
        }
        if !left.is_empty() {
            return Err(format!(
                "a row of {} bytes for table {}, {} bytes too long",
                serialized.len(),
                self.name,
                left.len()
            ));
        }
        Ok((fixed, VarValues { rest }))
    }
}

/// The values of a serialized row's VARCHAR columns, in their order.
#[derive(Debug, Clone, Copy)]
pub struct VarValues<'row> {
    rest: &'row [u8],
}

impl<'row> Iterator for VarValues<'row> {
    type Item = &'row [u8];

    #[inline]
    fn next(&mut self) -> Option<&'row [u8]> {
        let (length, rest) = self.rest.split_first_chunk::<2>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        self.rest = rest;
        Some(value)
    }
}

/// All tables of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    tables: Vec<TableDef>,
    sql: String,
}

impl Catalog {
    /// Reads a DDL file.
    ///
    /// # Errors
    /// [`CatalogError`] naming the file, the table and what is not served.
    pub fn from_file(path: &Path) -> Result<Self, CatalogError> {
        let sql =
            std::fs::read_to_string(path).map_err(|source| CatalogError::Read { path: path.to_owned(), source })?;
        Self::from_sql(&sql)
    }

    /// Parses DDL.
    ///
    /// # Errors
    /// As [`Catalog::from_file`].
    pub fn from_sql(sql: &str) -> Result<Self, CatalogError> {
        Ok(Self { tables: ddl::tables(sql)?, sql: sql.to_owned() })
    }

    /// The DDL that it was read from.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// All tables; a table's position is its [`TableId`].
    pub fn tables(&self) -> &[TableDef] {
        &self.tables
    }

    /// A table.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn table(&self, id: TableId) -> &TableDef {
        &self.tables[usize::from(id)]
    }

    /// Id of a table by name.
    pub fn table_id(&self, name: &str) -> Option<TableId> {
        let position = self.tables.iter().position(|table| table.name.eq_ignore_ascii_case(name))?;
        TableId::try_from(position).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::key::IndexKind;
    use super::*;

    const YCSB: &str = include_str!("../../../workloads/schemas/ycsb.sql");
    const TPCC: &str = include_str!("../../../workloads/schemas/tpcc.sql");

    #[test]
    fn reads_the_ycsb_schema() {
        let catalog = Catalog::from_sql(YCSB).unwrap();
        let table = catalog.table(catalog.table_id("usertable").unwrap());
        assert_eq!((table.key_bytes, table.row_bytes, table.columns.len()), (8, 1008, 11));
        assert_eq!((table.indexed_bytes, table.image_bytes, table.max_serialized_bytes()), (8, 8, 1008));
        assert!(table.evictable);
        assert_eq!(table.partition_column, Some(0));
        assert_eq!(table.columns[table.column("field3").unwrap()].offset, 8 + 300);
    }

    #[test]
    fn reads_the_tpcc_schema() {
        let catalog = Catalog::from_sql(TPCC).unwrap();
        let names = |wanted: fn(&TableDef) -> bool| -> Vec<&str> {
            catalog.tables().iter().filter(|table| wanted(table)).map(|table| table.name.as_str()).collect()
        };
        assert_eq!(catalog.tables().len(), 10);
        assert_eq!(names(|table| table.evictable), ["history", "orders", "order_line"]);
        assert_eq!(names(|table| table.replicated), ["item", "data_set"]);
        assert_eq!(names(|table| table.key_bytes == 0), ["history"]);
        assert!(catalog.tables().iter().all(|table| table.replicated || table.partition_column.is_some()));
        let customer = catalog.table(catalog.table_id("customer").unwrap());
        let by_name = &customer.indexes[customer.index("customer_by_name").unwrap()];
        assert_eq!(
            (by_name.kind, by_name.unique, by_name.own_parts, by_name.parts.len()),
            (IndexKind::Ordered, false, 4, 5)
        );
        assert_eq!(by_name.entry_bytes, 2 + 1 + 18 + 18 + 4);
        assert_eq!(customer.image_bytes, customer.key_bytes + 18 + 18);
        let orders = catalog.table(catalog.table_id("orders").unwrap());
        assert_eq!(orders.field("o_carrier_id").unwrap().null, Some((orders.null_offset, 1)));
        assert_eq!((orders.indexed_bytes, orders.image_bytes), (11, 11));
    }

    #[test]
    fn key_columns_are_the_rows_prefix_in_key_order() {
        let catalog = Catalog::from_sql(
            "CREATE TABLE t (a INT, b CHAR(3) NOT NULL, d DATE NOT NULL, c SMALLINT, PRIMARY KEY (c, a), KEY by_date (d)) COMMENT = 'partition by a'",
        )
        .unwrap();
        let table = &catalog.tables()[0];
        let offsets: Vec<_> = table.columns.iter().map(|c| c.offset).collect();
        assert_eq!((offsets, table.key_bytes, table.indexed_bytes, table.row_bytes), (vec![2, 14, 6, 0], 6, 14, 17));
        assert!(!table.evictable);
        assert_eq!(table.indexes[0].contiguous, Some(0));
        assert_eq!((table.indexes[1].kind, table.indexes[1].contiguous), (IndexKind::Ordered, Some(6)));
    }

    #[test]
    fn null_bits_and_variable_columns_have_their_places() {
        let sql = "CREATE TABLE t (a INT, b INT, c VARCHAR(10), d VARCHAR(5) NOT NULL, PRIMARY KEY (a), UNIQUE KEY k USING HASH (d))";
        let catalog = Catalog::from_sql(sql).unwrap();
        let table = &catalog.tables()[0];
        assert_eq!((table.row_bytes, table.indexed_bytes, table.image_bytes), (4 + 4 + 4 + 4 + 1, 4, 4 + 7));
        assert_eq!((table.field("b").unwrap().null, table.field("c").unwrap().null), (Some((16, 1)), Some((16, 2))));
        assert_eq!((table.field("c").unwrap().var, table.field("d").unwrap().var), (Some(0), Some(1)));
        let row = [&[0; 17][..], &[3, 0], b"abc", &[0, 0]].concat();
        let (_, values) = table.split(&row).unwrap();
        assert_eq!(values.collect::<Vec<_>>(), [b"abc".as_slice(), b""]);
        for (cut, expected) in [(16, "a row of 16 bytes"), (18, "variable-length column 0"), (23, "column 1 has None")]
        {
            assert!(table.split(&row[..cut]).unwrap_err().contains(expected), "{:?}", table.split(&row[..cut]));
        }
        assert!(table.split(&[row.as_slice(), &[0]].concat()).unwrap_err().contains("1 bytes too long"));
        assert!(table.split(&[&[0; 17][..], &[0, 0, 6, 0], b"abcdef"].concat()).unwrap_err().contains("at most 5"));
    }

    #[test]
    fn what_is_not_served_is_named() {
        for (sql, expected) in [
            ("CREATE TABLE t (a BLOB)", "column `a` is BLOB"),
            ("CREATE TABLE t (a VARCHAR(9) PRIMARY KEY)", "VARCHAR column in the primary key"),
            ("CREATE TABLE t (a VARCHAR(9000))", "1 to 4096"),
            ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "key column `b` does not exist"),
            ("CREATE TABLE t (a INT PRIMARY KEY) COMMENT = 'hot'", "COMMENT has `hot`"),
            ("CREATE TABLE t (a INT PRIMARY KEY) COMMENT = 'replicated; partition by a'", "a table is either"),
            ("CREATE TABLE t (a INT PRIMARY KEY) COMMENT = 'partition by z'", "partitioning column `z`"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b CHAR(9000))", "1 to 8192"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b CHAR(8190))", "at most 8192"),
            ("CREATE TABLE t (a INT PRIMARY KEY); CREATE TABLE t (a INT PRIMARY KEY)", "defined twice"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b INT, UNIQUE KEY k (b))", "may be NULL, `b`"),
            ("CREATE TABLE t (a INT NOT NULL, KEY k (a))", "has no primary key to tell"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL, KEY (b))", "an index needs a name of its own"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(200) NOT NULL, KEY k (b))", "at most 128 are served"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL, KEY k (b DESC))", "`b DESC`"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL DEFAULT 3)", "`DEFAULT 3` is not served"),
            ("CREATE TABLE t (a INT PRIMARY KEY, FOREIGN KEY (a) REFERENCES u (b))", "is not served"),
            ("CREATE TABLE t (a INT PRIMARY KEY, A INT)", "column `A` is defined twice"),
            ("CREATE TABLE t", "it has no columns"),
            ("CREATE TABLE t ()", "it has no columns"),
            ("CREATE TABLE t LIKE u", "LIKE"),
            ("CREATE TABLE t (a INT PRIMARY KEY) AS SELECT 1", "AS SELECT"),
            ("CREATE TABLE t (a DECIMAL(5,7))", "7 digits behind the point of 5"),
            ("CREATE TABLE t (a DECIMAL(5,4294967295))", "digits behind the point of 5"),
            ("CREATE TABLE t (a DECIMAL(5,-1))", "column `a`"),
            ("CREATE TABLE t (a DECIMAL(0))", "column `a`"),
            ("CREATE TABLE t (a INT NOT NULL, PRIMARY KEY ())", "sql parser error"),
            ("CREATE TABLE t (a CHAR(18446744073709551616))", "sql parser error"),
            ("DROP TABLE t", "only CREATE TABLE"),
            ("CREATE TABLE", "sql parser error"),
            ("", "nothing"),
        ] {
            let message = Catalog::from_sql(sql).map(|_| ()).unwrap_err().to_string();
            assert!(message.contains(expected), "{sql}: {message}");
        }
    }
}
