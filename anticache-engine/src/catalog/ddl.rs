//! Reads CREATE TABLE statements as MySQL understands them.
//!
//! Served are TINYINT, SMALLINT, INT, BIGINT, DECIMAL up to 18 digits, TIMESTAMP, DATETIME, DATE, CHAR(n), VARCHAR(n), NULL and NOT NULL, a primary key,
//! UNIQUE and plain indexes, each `USING HASH` or `USING BTREE`. What is not served is an error that names it: a system under test that ignores a
//! part of the schema would be faster than the others for no good reason.

use sqlparser::ast::{
    ColumnOption, CreateTable, CreateTableOptions, DataType, ExactNumberInfo, Expr, IndexColumn, IndexOption,
    IndexType, SqlOption, Statement, TableConstraint,
};
use sqlparser::dialect::MySqlDialect;
use sqlparser::parser::Parser;

use super::key::{IndexDef, IndexKind, KeyPart, MAX_KEY_BYTES};
use super::{Column, ColumnType, MAX_ROW_BYTES, MAX_VARCHAR_BYTES, MAX_VARCHAR_COLUMNS, TableDef};
use crate::error::CatalogError;

/// Most indexes of a table.
const MAX_INDEXES: usize = 16;

/// The tables of a DDL text.
pub(super) fn tables(sql: &str) -> Result<Vec<TableDef>, CatalogError> {
    let mut tables: Vec<TableDef> = Vec::new();
    for statement in Parser::parse_sql(&MySqlDialect {}, sql)? {
        let Statement::CreateTable(create) = statement else {
            return Err(CatalogError::Statement(statement.to_string()));
        };
        let table = table_def(&create)?;
        if tables.iter().any(|other| other.name.eq_ignore_ascii_case(&table.name)) {
            return Err(problem(&table.name, "defined twice"));
        }
        tables.push(table);
    }
    if tables.is_empty() {
        return Err(CatalogError::Statement("nothing".to_owned()));
    }
    Ok(tables)
}

fn problem(table: &str, problem: impl Into<String>) -> CatalogError {
    CatalogError::Table { table: table.to_owned(), problem: problem.into() }
}

/// An index as declared.
struct Declared {
    name: String,
    primary: bool,
    unique: bool,
    kind: IndexKind,
    columns: Vec<usize>,
}

fn table_def(create: &CreateTable) -> Result<TableDef, CatalogError> {
    let name = unquoted(&create.name.to_string());
    let mut columns = columns(create, &name)?;
    let declared = indexes(create, &name, &columns)?;
    for index in &declared {
        for &column in &index.columns {
            if index.primary {
                columns[column].null_bit = None;
            }
            if columns[column].null_bit.is_some() {
                return Err(problem(
                    &name,
                    format!("index `{}` has a column that may be NULL, `{}`", index.name, columns[column].name),
                ));
            }
        }
    }
    let primary = declared.iter().find(|index| index.primary).map_or(&[][..], |index| &index.columns);
    let layout = lay_out(&mut columns, primary, &declared);
    let (evictable, partition_by, replicated) = parse_comment(&comment(create)).map_err(|what| problem(&name, what))?;
    let mut table = TableDef {
        partition_column: partition_column(&name, &columns, partition_by)?,
        name,
        row_bytes: layout.row_bytes,
        key_bytes: layout.key_bytes,
        indexes: Vec::with_capacity(declared.len()),
        indexed_bytes: layout.indexed_bytes,
        image_bytes: layout.image_bytes,
        var_max_bytes: layout.var_max_bytes,
        var_offsets: layout.var_offsets,
        var_image_offsets: layout.var_image_offsets,
        null_offset: layout.null_offset,
        columns,
        replicated,
        evictable,
    };
    if table.max_serialized_bytes() > MAX_ROW_BYTES {
        let bytes = table.max_serialized_bytes();
        return Err(problem(&table.name, format!("a row is {bytes} bytes; at most {MAX_ROW_BYTES} are served")));
    }
    for index in &declared {
        let def = index_def(&table, index, primary)?;
        table.indexes.push(def);
    }
    Ok(table)
}

fn columns(create: &CreateTable, table: &str) -> Result<Vec<Column>, CatalogError> {
    if create.query.is_some() || create.like.is_some() || create.clone.is_some() {
        return Err(problem(table, "LIKE and AS SELECT are not served: name its columns"));
    }
    if create.columns.is_empty() {
        return Err(problem(table, "it has no columns"));
    }
    let mut columns: Vec<Column> = Vec::with_capacity(create.columns.len());
    let (mut nulls, mut vars) = (0, 0u8);
    for column in &create.columns {
        if columns.iter().any(|other| other.name.eq_ignore_ascii_case(&column.name.value)) {
            return Err(problem(table, format!("column `{}` is defined twice", column.name.value)));
        }
        let column_type = column_type(&column.data_type).map_err(|what| {
            problem(table, format!("column `{}` is {}: {what}", column.name.value, column.data_type))
        })?;
        let mut nullable = true;
        for option in &column.options {
            match &option.option {
                ColumnOption::NotNull | ColumnOption::Unique { is_primary: true, .. } => nullable = false,
                ColumnOption::Null | ColumnOption::Comment(_) | ColumnOption::CharacterSet(_) => {}
                other => {
                    return Err(problem(table, format!("column `{}`: `{other}` is not served", column.name.value)));
                }
            }
        }
        let var = matches!(column_type, ColumnType::VarChar { .. }).then_some(vars);
        vars += u8::from(var.is_some());
        let null_bit = nullable.then_some(nulls);
        nulls += usize::from(nullable);
        columns.push(Column { name: column.name.value.clone(), column_type, offset: 0, null_bit, var });
        if usize::from(vars) > MAX_VARCHAR_COLUMNS {
            return Err(problem(table, format!("more than {MAX_VARCHAR_COLUMNS} VARCHAR columns")));
        }
    }
    Ok(columns)
}

struct Layout {
    key_bytes: usize,
    indexed_bytes: usize,
    image_bytes: usize,
    null_offset: usize,
    row_bytes: usize,
    var_max_bytes: Vec<usize>,
    var_offsets: Vec<usize>,
    var_image_offsets: Vec<Option<usize>>,
}

/// Gives every column its offset: the primary key, other indexed columns of fixed size, the rest, the null bits.
fn lay_out(columns: &mut [Column], primary: &[usize], indexes: &[Declared]) -> Layout {
    let indexed = |column: usize| indexes.iter().any(|index| index.columns.contains(&column));
    let is_var = |column: &Column| column.var.is_some();
    let mut offset = 0;
    let mut place = |column: &mut Column| {
        column.offset = offset;
        offset += column.column_type.bytes();
        offset
    };
    let key_bytes = primary.iter().map(|&index| place(&mut columns[index])).last().unwrap_or(0);
    let mut indexed_bytes = key_bytes;
    for (index, column) in columns.iter_mut().enumerate() {
        if indexed(index) && !primary.contains(&index) && !is_var(column) {
            indexed_bytes = place(column);
        }
    }
    let mut null_offset = indexed_bytes;
    for (index, column) in columns.iter_mut().enumerate() {
        if is_var(column) || !indexed(index) {
            null_offset = place(column);
        }
    }
    let null_bits = columns.iter().filter(|column| column.null_bit.is_some()).count();
    let mut layout = Layout {
        key_bytes,
        indexed_bytes,
        image_bytes: indexed_bytes,
        null_offset,
        row_bytes: null_offset + null_bits.div_ceil(8),
        var_max_bytes: Vec::new(),
        var_offsets: Vec::new(),
        var_image_offsets: Vec::new(),
    };
    for (index, column) in columns.iter_mut().enumerate() {
        if let ColumnType::VarChar { max_bytes } = column.column_type {
            layout.var_max_bytes.push(max_bytes);
            layout.var_offsets.push(column.offset);
            layout.var_image_offsets.push(indexed(index).then_some(layout.image_bytes));
            layout.image_bytes += if indexed(index) { KeyPart::var_bytes(max_bytes) } else { 0 };
        }
    }
    // A primary key makes its columns NOT NULL after they were numbered: the bits in use are numbered without gaps.
    for (bit, column) in columns.iter_mut().filter(|column| column.null_bit.is_some()).enumerate() {
        column.null_bit = Some(bit);
    }
    layout
}

fn index_def(table: &TableDef, index: &Declared, primary: &[usize]) -> Result<IndexDef, CatalogError> {
    let refuse = |what: String| Err(problem(&table.name, format!("index `{}`: {what}", index.name)));
    let part = |&column: &usize| {
        let image_offset = table.columns[column].var.and_then(|var| table.var_image_offsets[usize::from(var)]);
        KeyPart::new(column, &table.columns[column], image_offset)
    };
    let mut parts: Vec<KeyPart> = index.columns.iter().map(part).collect();
    let own_parts = parts.len();
    if index.primary && parts.iter().any(|part| table.columns[part.column].var.is_some()) {
        return refuse("a VARCHAR column in the primary key is not served".to_owned());
    }
    if !index.unique && table.key_bytes == 0 {
        return refuse("it is not unique, and the table has no primary key to tell its tuples apart".to_owned());
    }
    if !index.unique && index.kind == IndexKind::Ordered {
        parts.extend(primary.iter().filter(|column| !index.columns.contains(column)).map(part));
    }
    let def = IndexDef::new(index.name.clone(), index.kind, index.unique, parts, own_parts);
    if def.entry_bytes > MAX_KEY_BYTES {
        return refuse(format!("a key takes {} bytes; at most {MAX_KEY_BYTES} are served", def.entry_bytes));
    }
    Ok(def)
}

fn partition_column(
    table: &str,
    columns: &[Column],
    partition_by: Option<String>,
) -> Result<Option<usize>, CatalogError> {
    let Some(wanted) = partition_by else {
        return Ok(None);
    };
    let found = columns.iter().position(|column| column.name.eq_ignore_ascii_case(&wanted));
    let index = found.ok_or_else(|| problem(table, format!("partitioning column `{wanted}` does not exist")))?;
    if !matches!(columns[index].column_type, ColumnType::Integer { .. }) {
        return Err(problem(table, format!("partitioning column `{wanted}` is not an integer")));
    }
    Ok(Some(index))
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
            text_bytes(&text, MAX_ROW_BYTES).map(|bytes| ColumnType::Char { bytes })
        }
        DataType::Varchar(length) | DataType::CharacterVarying(length) => {
            let text = length.as_ref().map_or("no".to_owned(), ToString::to_string);
            text_bytes(&text, MAX_VARCHAR_BYTES).map(|max_bytes| ColumnType::VarChar { max_bytes })
        }
        _ => Err(
            "served are TINYINT, SMALLINT, INT, BIGINT, DECIMAL up to 18 digits, TIMESTAMP, DATETIME, DATE, CHAR(n) and VARCHAR(n)"
                .to_owned(),
        ),
    }
}

fn text_bytes(length: &str, most: usize) -> Result<usize, String> {
    match length.parse::<usize>() {
        Ok(bytes) if (1..=most).contains(&bytes) => Ok(bytes),
        _ => Err(format!("the length is {length}; 1 to {most} is served")),
    }
}

fn decimal(info: &ExactNumberInfo) -> Result<ColumnType, String> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => (10, 0),
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    if !(1..=18).contains(&precision) {
        return Err(format!("{precision} digits; 1 to 18 are served"));
    }
    match u32::try_from(scale) {
        Ok(scale) if u64::from(scale) <= precision => {
            Ok(ColumnType::Decimal { bytes: if precision <= 9 { 4 } else { 8 }, scale })
        }
        _ => Err(format!("{scale} digits behind the point of {precision}")),
    }
}

fn unquoted(name: &str) -> String {
    name.trim_matches('`').to_owned()
}

fn indexes(create: &CreateTable, table: &str, columns: &[Column]) -> Result<Vec<Declared>, CatalogError> {
    let mut indexes: Vec<Declared> = Vec::new();
    for (position, column) in create.columns.iter().enumerate() {
        let is_key = |option: &ColumnOption| matches!(option, ColumnOption::Unique { is_primary: true, .. });
        if column.options.iter().any(|option| is_key(&option.option)) {
            let name = "PRIMARY".to_owned();
            indexes.push(Declared {
                name,
                primary: true,
                unique: true,
                kind: IndexKind::Hash,
                columns: vec![position],
            });
        }
    }
    for constraint in &create.constraints {
        indexes.push(match constraint {
            TableConstraint::PrimaryKey { columns: keys, index_type, index_options, .. } => {
                let kind = kind(index_type.as_ref(), index_options, IndexKind::Hash, table, "PRIMARY")?;
                let columns = key_columns(keys, columns, table, "PRIMARY")?;
                Declared { name: "PRIMARY".to_owned(), primary: true, unique: true, kind, columns }
            }
            TableConstraint::Unique { name, index_name, columns: keys, index_type, index_options, .. } => {
                let name = index_name.as_ref().or(name.as_ref()).map_or(String::new(), |name| name.value.clone());
                let kind = kind(index_type.as_ref(), index_options, IndexKind::Ordered, table, &name)?;
                let columns = key_columns(keys, columns, table, &name)?;
                Declared { name, primary: false, unique: true, kind, columns }
            }
            TableConstraint::Index { name, columns: keys, index_type, index_options, .. } => {
                let name = name.as_ref().map_or(String::new(), |name| name.value.clone());
                let kind = kind(index_type.as_ref(), index_options, IndexKind::Ordered, table, &name)?;
                let columns = key_columns(keys, columns, table, &name)?;
                Declared { name, primary: false, unique: false, kind, columns }
            }
            other => {
                return Err(problem(table, format!("`{other}` is not served; primary, unique and plain keys are")));
            }
        });
    }
    if indexes.iter().filter(|index| index.primary).count() > 1 {
        return Err(problem(table, "it has more than one primary key"));
    }
    indexes.sort_by_key(|index| !index.primary);
    for (position, index) in indexes.iter().enumerate() {
        if index.name.is_empty() || indexes[..position].iter().any(|other| other.name == index.name) {
            return Err(problem(table, format!("an index needs a name of its own; `{}` is not", index.name)));
        }
    }
    if indexes.len() > MAX_INDEXES {
        return Err(problem(table, format!("{} indexes; at most {MAX_INDEXES} are served", indexes.len())));
    }
    Ok(indexes)
}

/// The kind that the DDL asks for, before or behind the columns, or the usual one.
fn kind(
    before: Option<&IndexType>,
    behind: &[IndexOption],
    usual: IndexKind,
    table: &str,
    index: &str,
) -> Result<IndexKind, CatalogError> {
    let mut wanted = before;
    for option in behind {
        match option {
            IndexOption::Using(kind) => wanted = Some(kind),
            IndexOption::Comment(_) => {}
        }
    }
    match wanted {
        None => Ok(usual),
        Some(IndexType::Hash) => Ok(IndexKind::Hash),
        Some(IndexType::BTree) => Ok(IndexKind::Ordered),
        Some(other) => Err(problem(table, format!("index `{index}`: USING {other}; HASH and BTREE are served"))),
    }
}

fn key_columns(keys: &[IndexColumn], columns: &[Column], table: &str, index: &str) -> Result<Vec<usize>, CatalogError> {
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let name = unquoted(&key.column.expr.to_string());
        let column = columns.iter().position(|column| column.name.eq_ignore_ascii_case(&name));
        let column = column.ok_or_else(|| problem(table, format!("key column `{name}` does not exist")))?;
        if key.column.options.asc == Some(false) {
            return Err(problem(table, format!("index `{index}`: `{name} DESC`; ascending columns are served")));
        }
        if found.contains(&column) {
            return Err(problem(table, format!("index `{index}` has the column `{name}` twice")));
        }
        found.push(column);
    }
    Ok(found)
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

/// Reads `evictable`, `partition by COLUMN` and `replicated`, in any order, separated by semicolons.
fn parse_comment(comment: &str) -> Result<(bool, Option<String>, bool), String> {
    let (mut evictable, mut partition_by, mut replicated) = (false, None, false);
    for part in comment.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        if part == "evictable" {
            evictable = true;
        } else if part == "replicated" {
            replicated = true;
        } else if let Some(column) = part.strip_prefix("partition by ") {
            partition_by = Some(column.trim().to_owned());
        } else {
            return Err(format!(
                "COMMENT has `{part}`; allowed are `evictable`, `replicated` and `partition by COLUMN`"
            ));
        }
    }
    if replicated && partition_by.is_some() {
        return Err("COMMENT has both `replicated` and `partition by`; a table is either".to_owned());
    }
    Ok((evictable, partition_by, replicated))
}
