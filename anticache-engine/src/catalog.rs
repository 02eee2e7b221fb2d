//! Tables as the engine knows them, from the SQL DDL that all systems share.
//!
//! What only the engine needs stands in the table's COMMENT, which MySQL keeps and ignores:
//! `COMMENT = 'evictable; partition by COLUMN'`. A table without `evictable` keeps no LRU chain and stays in memory (paper §3.1).
//!
//! Fixed-size types are served: integers, DECIMAL up to 18 digits, DATETIME/TIMESTAMP, DATE, CHAR(n). VARCHAR needs out-of-line storage, which
//! the engine does not have yet; a schema with it is refused.

use std::path::Path;

use sqlparser::ast::{
    ColumnOption, CreateTable, CreateTableOptions, DataType, ExactNumberInfo, Expr, SqlOption, Statement,
    TableConstraint,
};
use sqlparser::dialect::MySqlDialect;
use sqlparser::parser::Parser;

use crate::error::CatalogError;

/// Position of a table in the catalog.
pub type TableId = u16;

/// Longest row served, in bytes: a block of the smallest size must hold several.
pub const MAX_ROW_BYTES: usize = 8192;

/// A column's type; all are of fixed size in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// A signed integer of 1, 2, 4 or 8 bytes, little-endian.
    Integer {
        /// Width.
        bytes: usize,
    },
    /// A decimal as a scaled 8-byte integer.
    Decimal {
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
}

impl ColumnType {
    /// Bytes in the row.
    pub fn bytes(self) -> usize {
        match self {
            Self::Integer { bytes } | Self::Char { bytes } => bytes,
            Self::Decimal { .. } | Self::Timestamp => 8,
        }
    }
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name as in the DDL.
    pub name: String,
    /// Type.
    pub column_type: ColumnType,
    /// Offset in the row, in bytes. Key columns come first, in key order, so that the key is the row's prefix.
    pub offset: usize,
}

/// One table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDef {
    /// Name as in the DDL.
    pub name: String,
    /// Columns in the DDL's order.
    pub columns: Vec<Column>,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of the primary key, the row's prefix.
    pub key_bytes: usize,
    /// Column whose value modulo the number of partitions chooses the partition; `None` = every tuple at partition 0.
    pub partition_column: Option<usize>,
    /// Whether the table keeps an LRU chain and may be evicted.
    pub evictable: bool,
}

impl TableDef {
    /// The primary key of a row.
    #[inline]
    pub fn key<'row>(&self, row: &'row [u8]) -> &'row [u8] {
        &row[..self.key_bytes]
    }

    /// Position of a column by name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }
}

/// All tables of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    tables: Vec<TableDef>,
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
        let mut catalog = Self::default();
        for statement in Parser::parse_sql(&MySqlDialect {}, sql)? {
            let Statement::CreateTable(create) = statement else {
                return Err(CatalogError::Statement(statement.to_string()));
            };
            let table = table_def(&create)?;
            if catalog.table_id(&table.name).is_some() {
                return Err(problem(&table.name, "defined twice"));
            }
            catalog.tables.push(table);
        }
        if catalog.tables.is_empty() {
            return Err(CatalogError::Statement("nothing".to_owned()));
        }
        Ok(catalog)
    }

    /// All tables; a table's position is its [`TableId`].
    pub fn tables(&self) -> &[TableDef] {
        &self.tables
    }

    /// Id of a table by name.
    pub fn table_id(&self, name: &str) -> Option<TableId> {
        let position = self.tables.iter().position(|table| table.name.eq_ignore_ascii_case(name))?;
        TableId::try_from(position).ok()
    }
}

fn problem(table: &str, problem: impl Into<String>) -> CatalogError {
    CatalogError::Table { table: table.to_owned(), problem: problem.into() }
}

fn table_def(create: &CreateTable) -> Result<TableDef, CatalogError> {
    let name = create.name.to_string().trim_matches('`').to_owned();
    let mut columns = Vec::with_capacity(create.columns.len());
    for column in &create.columns {
        let column_type = column_type(&column.data_type).map_err(|what| {
            problem(&name, format!("column `{}` is {}: {what}", column.name.value, column.data_type))
        })?;
        columns.push(Column { name: column.name.value.clone(), column_type, offset: 0 });
    }
    let key = primary_key(create, &name)?;
    let mut key_columns = Vec::with_capacity(key.len());
    for key_column in &key {
        let found = columns.iter().position(|column| column.name.eq_ignore_ascii_case(key_column));
        key_columns.push(found.ok_or_else(|| problem(&name, format!("key column `{key_column}` does not exist")))?);
    }
    let (key_bytes, row_bytes) = lay_out(&mut columns, &key_columns);
    if row_bytes > MAX_ROW_BYTES {
        return Err(problem(&name, format!("a row is {row_bytes} bytes; at most {MAX_ROW_BYTES} are served")));
    }
    let comment = comment(create);
    let (evictable, partition_by) = parse_comment(&comment).map_err(|what| problem(&name, what))?;
    let partition_column = match partition_by {
        None => None,
        Some(wanted) => {
            let found = columns.iter().position(|column| column.name.eq_ignore_ascii_case(&wanted));
            let index =
                found.ok_or_else(|| problem(&name, format!("partitioning column `{wanted}` does not exist")))?;
            if !matches!(columns[index].column_type, ColumnType::Integer { .. }) {
                return Err(problem(&name, format!("partitioning column `{wanted}` is not an integer")));
            }
            Some(index)
        }
    };
    Ok(TableDef { name, columns, row_bytes, key_bytes, partition_column, evictable })
}

/// Gives every column its offset, key columns first; returns the bytes of the key and of the row.
fn lay_out(columns: &mut [Column], key_columns: &[usize]) -> (usize, usize) {
    let mut offset = 0;
    for &index in key_columns {
        columns[index].offset = offset;
        offset += columns[index].column_type.bytes();
    }
    let key_bytes = offset;
    for (index, column) in columns.iter_mut().enumerate() {
        if !key_columns.contains(&index) {
            column.offset = offset;
            offset += column.column_type.bytes();
        }
    }
    (key_bytes, offset)
}

fn column_type(data_type: &DataType) -> Result<ColumnType, String> {
    match data_type {
        DataType::TinyInt(_) | DataType::Bool | DataType::Boolean => Ok(ColumnType::Integer { bytes: 1 }),
        DataType::SmallInt(_) => Ok(ColumnType::Integer { bytes: 2 }),
        DataType::Int(_) | DataType::Integer(_) => Ok(ColumnType::Integer { bytes: 4 }),
        DataType::BigInt(_) => Ok(ColumnType::Integer { bytes: 8 }),
        DataType::Decimal(info) | DataType::Numeric(info) => decimal(info),
        DataType::Timestamp(..) | DataType::Datetime(_) | DataType::Date => Ok(ColumnType::Timestamp),
        DataType::Char(length) | DataType::Character(length) => {
            let text = length.as_ref().map_or("1".to_owned(), ToString::to_string);
            match text.parse::<usize>() {
                Ok(bytes) if bytes > 0 => Ok(ColumnType::Char { bytes }),
                _ => Err(format!("the length {text} is not a positive number")),
            }
        }
        _ => Err(
            "served are TINYINT, SMALLINT, INT, BIGINT, DECIMAL up to 18 digits, TIMESTAMP, DATETIME, DATE and CHAR(n)"
                .to_owned(),
        ),
    }
}

fn decimal(info: &ExactNumberInfo) -> Result<ColumnType, String> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => (10, 0),
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    match u32::try_from(scale) {
        Ok(scale) if precision <= 18 => Ok(ColumnType::Decimal { scale }),
        _ => Err(format!("{precision} digits; at most 18 are served")),
    }
}

fn primary_key(create: &CreateTable, table: &str) -> Result<Vec<String>, CatalogError> {
    let mut keys = Vec::new();
    for column in &create.columns {
        for option in &column.options {
            if let ColumnOption::Unique { is_primary: true, .. } = option.option {
                keys.push(vec![column.name.value.clone()]);
            }
        }
    }
    for constraint in &create.constraints {
        match constraint {
            TableConstraint::PrimaryKey { columns, .. } => {
                keys.push(columns.iter().map(|c| c.column.expr.to_string().trim_matches('`').to_owned()).collect());
            }
            other => {
                return Err(problem(
                    table,
                    format!("`{other}`: only a primary key is served, secondary indexes are not there yet"),
                ));
            }
        }
    }
    match keys.len() {
        1 => Ok(keys.remove(0)),
        0 => Err(problem(table, "it has no primary key")),
        _ => Err(problem(table, "it has more than one primary key")),
    }
}

fn comment(create: &CreateTable) -> String {
    let CreateTableOptions::Plain(options) = &create.table_options else {
        return String::new();
    };
    for option in options {
        match option {
            SqlOption::Comment(comment) => {
                return match comment {
                    sqlparser::ast::CommentDef::WithEq(text) | sqlparser::ast::CommentDef::WithoutEq(text) => {
                        text.clone()
                    }
                };
            }
            SqlOption::KeyValue { key, value: Expr::Value(value) } if key.value.eq_ignore_ascii_case("comment") => {
                return value.clone().into_string().unwrap_or_default();
            }
            _ => {}
        }
    }
    String::new()
}

/// Reads `evictable; partition by COLUMN`, either part optional.
fn parse_comment(comment: &str) -> Result<(bool, Option<String>), String> {
    let mut evictable = false;
    let mut partition_by = None;
    for part in comment.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        if part == "evictable" {
            evictable = true;
        } else if let Some(column) = part.strip_prefix("partition by ") {
            partition_by = Some(column.trim().to_owned());
        } else {
            return Err(format!("COMMENT has `{part}`; allowed are `evictable` and `partition by COLUMN`"));
        }
    }
    Ok((evictable, partition_by))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YCSB: &str = include_str!("../../workloads/schemas/ycsb.sql");

    #[test]
    fn reads_the_ycsb_schema() {
        let catalog = Catalog::from_sql(YCSB).unwrap();
        let table = &catalog.tables()[usize::from(catalog.table_id("usertable").unwrap())];
        assert_eq!((table.key_bytes, table.row_bytes, table.columns.len()), (8, 1008, 11));
        assert!(table.evictable);
        assert_eq!(table.partition_column, Some(0));
        assert_eq!(table.columns[table.column("field3").unwrap()].offset, 8 + 300);
    }

    #[test]
    fn key_columns_are_the_rows_prefix_in_key_order() {
        let catalog = Catalog::from_sql(
            "CREATE TABLE t (a INT, b CHAR(3), c SMALLINT, PRIMARY KEY (c, a)) COMMENT = 'partition by a'",
        )
        .unwrap();
        let table = &catalog.tables()[0];
        let offsets: Vec<_> = table.columns.iter().map(|c| c.offset).collect();
        assert_eq!((offsets, table.key_bytes, table.row_bytes), (vec![2, 6, 0], 6, 9));
        assert!(!table.evictable);
    }

    #[test]
    fn what_is_not_served_is_named() {
        for (sql, expected) in [
            ("CREATE TABLE t (a INT)", "no primary key"),
            ("CREATE TABLE t (a VARCHAR(9) PRIMARY KEY)", "column `a` is VARCHAR(9)"),
            ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "key column `b` does not exist"),
            ("CREATE TABLE t (a INT PRIMARY KEY) COMMENT = 'hot'", "COMMENT has `hot`"),
            ("CREATE TABLE t (a INT PRIMARY KEY) COMMENT = 'partition by z'", "partitioning column `z`"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b CHAR(9000))", "at most 8192"),
            ("CREATE TABLE t (a INT PRIMARY KEY); CREATE TABLE t (a INT PRIMARY KEY)", "defined twice"),
            ("CREATE TABLE t (a INT PRIMARY KEY, b INT, UNIQUE (b))", "secondary indexes"),
            ("DROP TABLE t", "only CREATE TABLE"),
            ("CREATE TABLE", "sql parser error"),
            ("", "nothing"),
        ] {
            let message = Catalog::from_sql(sql).unwrap_err().to_string();
            assert!(message.contains(expected), "{sql}: {message}");
        }
    }
}
