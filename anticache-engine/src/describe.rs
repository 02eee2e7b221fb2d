//! A partition's data structures in a readable form: where tuples lie, how the chain links them, which block holds what. The notebooks draw the paper's
//! figures 2 to 5 from it, and it answers "why is this tuple not in memory" at a small database. Nothing is changed by looking.

use serde_json::{Value, json};

use crate::anticache::block::{BLOCK_HEADER_BYTES, BlockView, TUPLE_PREFIX_BYTES};
use crate::anticache::block_table::{BlockState, Place};
use crate::anticache::evicted_table::Location;
use crate::catalog::key::IndexKind;
use crate::catalog::{Column, ColumnType, TableDef, row};
use crate::partition::Partition;
use crate::storage::table::Table;
use crate::storage::tuples::{NO_TUPLE, TupleId, flag};

/// Most tuples of a chain, entries of an Evicted Table and blocks that are shown of each table.
pub const MAX_SHOWN: usize = 1000;

impl Partition {
    /// At most `limit` tuples, entries and blocks of every table, with everything that says how they are laid out.
    pub fn describe(&self, limit: usize) -> Value {
        let limit = limit.min(MAX_SHOWN);
        let tables = self.tables().iter().enumerate().map(|(id, table)| self.describe_table(id as u16, table, limit));
        let gauges = serde_json::to_value(self.gauges()).unwrap_or_default();
        json!({
            "partition": self.id(),
            "layout": layout(),
            "transaction_states": STATES.map(|(from, event, to)| json!({"from": from, "event": event, "to": to})),
            "tables": tables.collect::<Vec<_>>(),
            "gauges": gauges,
        })
    }

    fn describe_table(&self, id: u16, table: &Table, limit: usize) -> Value {
        let blocks = self.anticache.as_ref().map_or_else(Vec::new, |anticache| {
            let of_table = anticache.blocks.iter().filter(|state| state.identity.table == id).take(limit);
            of_table.map(|state| self.describe_block(table, state)).collect()
        });
        let evicted = (0..table.evicted().len() as u32).filter(|&entry| table.evicted().is_live(entry)).take(limit);
        json!({
            "name": table.def().name,
            "evictable": table.def().evictable,
            "columns": table.def().columns.iter().map(column).collect::<Vec<_>>(),
            "indexes": table.def().indexes.iter().zip(table.indexes()).map(|(def, index)| json!({
                "name": def.name, "kind": if def.kind == IndexKind::Hash { "hash" } else { "ordered" }, "unique": def.unique,
                "key_bytes": def.key_bytes, "entries": index.len(), "bytes": index.allocated_bytes(),
            })).collect::<Vec<_>>(),
            "row_bytes": table.def().row_bytes,
            "tuple_bytes": table.tuples().tuple_bytes(),
            "resident": table.tuples().live(),
            "evicted": table.evicted().live(),
            "chain": chain(table, limit),
            "evicted_table": evicted.map(|entry| {
                let Location { block_id, offset } = table.evicted().location(entry);
                json!({"entry": entry, "block": block_id, "offset": offset, "key": key(table.def(), table.evicted().image(entry))})
            }).collect::<Vec<_>>(),
            "blocks": blocks,
        })
    }

    fn describe_block(&self, table: &Table, state: &BlockState) -> Value {
        let identity = state.identity;
        let place = match state.place {
            Place::Writing { .. } => "being written",
            Place::Stored => "stored",
            Place::Unwritten => "in memory",
        };
        let tuples = self.block_bytes(state).and_then(|bytes| {
            let view = BlockView::open(state.identity, &bytes)?;
            view.all()
                .map(|tuple| {
                    let tuple = tuple?;
                    let here = Location { block_id: identity.block_id, offset: tuple.offset };
                    let entries = table.evicted();
                    let live = entries.is_live(tuple.entry) && entries.location(tuple.entry) == here;
                    let bytes = tuple.row.len();
                    Ok(json!({"offset": tuple.offset, "bytes": bytes, "entry": tuple.entry, "hole": !live, "key": key(table.def(), tuple.row)}))
                })
                .collect::<Result<Vec<_>, _>>()
        });
        json!({
            "block": identity.block_id, "created_us": identity.created_us, "place": place, "tuples": state.tuples, "holes": state.holes,
            "contents": tuples.map_or_else(|error| json!({"error": error.to_string()}), Value::from),
        })
    }
}

/// Sizes and offsets of headers, as the code has them.
fn layout() -> Value {
    json!({
        "tuple_header_bytes": {"flags": 1, "next": size_of::<TupleId>(), "previous": size_of::<TupleId>()},
        "flags": {
            "live": flag::LIVE, "unsynced_even": flag::UNSYNCED_EVEN, "unsynced_odd": flag::UNSYNCED_ODD, "pinned": flag::PINNED,
            "snapshot_done": flag::SNAPSHOT_DONE, "marked": flag::MARKED,
            "probation": flag::PROBATION,
        },
        "block_header_bytes": BLOCK_HEADER_BYTES,
        "block_tuple_prefix_bytes": TUPLE_PREFIX_BYTES,
        "evicted_location_bytes": 8,
    })
}

/// The life of a transaction (paper Fig. 5): state, what happens, next state. `partition` says what each step does.
const STATES: [(&str, &str, &str); 11] = [
    ("queued", "its turn", "executing"),
    ("executing", "finished, read only", "replied"),
    ("executing", "finished, has written", "waiting for its log group"),
    ("waiting for its log group", "group durable", "replied"),
    ("executing", "aborted by its procedure", "replied"),
    ("executing", "looks up an evicted tuple", "pre-pass"),
    ("executing", "no memory for a tuple", "evicting"),
    ("evicting", "room made", "executing"),
    ("pre-pass", "reads an evicted tuple, or ends", "rolled back, blocks requested"),
    ("rolled back, blocks requested", "last block merged", "queued"),
    ("rolled back, blocks requested", "a block cannot be had", "failed"),
];

fn column(column: &Column) -> Value {
    let kind = match column.column_type {
        ColumnType::Integer { .. } => "integer",
        ColumnType::Decimal { .. } => "decimal",
        ColumnType::Timestamp => "timestamp",
        ColumnType::Char { .. } => "char",
        ColumnType::VarChar { .. } => "varchar, out of line",
    };
    let bytes = column.column_type.bytes();
    json!({"name": column.name, "type": kind, "offset": column.offset, "bytes": bytes, "nullable": column.null_bit.is_some()})
}

/// The chain from its coldest tuple.
fn chain(table: &Table, limit: usize) -> Value {
    let Some(chain) = table.chain() else {
        return Value::Null;
    };
    let id_or_null = |id: TupleId| if id == NO_TUPLE { Value::Null } else { id.into() };
    let mut tuples = Vec::new();
    let mut at = chain.coldest();
    while let Some(id) = at.filter(|_| tuples.len() < limit) {
        let (next, previous) = (table.tuples().next(id), table.tuples().prev(id));
        tuples.push(json!({
            "tuple": id, "flags": table.tuples().flags(id), "next": id_or_null(next), "previous": id_or_null(previous),
            "key": key(table.def(), table.tuples().row(id)),
        }));
        at = Some(next).filter(|&next| next != NO_TUPLE);
    }
    json!({"coldest": chain.coldest(), "hottest": chain.hottest(), "length": chain.len(), "tuples": tuples})
}

/// The primary key of a row, or of an image of indexed columns: its columns' values.
fn key(def: &TableDef, bytes: &[u8]) -> Value {
    let Some(primary) = def.indexes.first().filter(|_| def.key_bytes > 0) else {
        return Value::Null;
    };
    let value = |part: &crate::catalog::key::KeyPart| {
        let column = &def.columns[part.column];
        let bytes = &bytes[column.offset..column.offset + part.bytes];
        if part.number {
            Value::from(row::number(bytes))
        } else {
            Value::from(String::from_utf8_lossy(bytes).trim_end())
        }
    };
    Value::from_iter(primary.parts.iter().map(value))
}
