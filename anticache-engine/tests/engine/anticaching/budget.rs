//! Memory for values of any length: transactions that fit are served, whatever sizes they want at once and whoever had the memory before.

use anticache_engine::catalog::row::RowBuf;
use anticache_engine::catalog::{Catalog, Field, TableDef};
use anticache_engine::config::AntiCaching;
use anticache_engine::net::frame::Status;
use anticache_engine::procedure::{FirstTuple, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};

use crate::support::database::{Database, params, unpack};

const SCHEMA: &str = "
    CREATE TABLE page (id BIGINT PRIMARY KEY, body VARCHAR(4000) NOT NULL) COMMENT = 'evictable; partition by id';
    CREATE TABLE note (id BIGINT PRIMARY KEY, body VARCHAR(4000) NOT NULL) COMMENT = 'evictable; partition by id';";
const PAGE: u16 = 0;
const NOTE: u16 = 1;

const ADD: u16 = 0;
const CUT: u16 = 1;

struct Texts {
    name: &'static str,
    def: TableDef,
    body: Field,
}

impl Procedure for Texts {
    fn name(&self) -> &'static str {
        self.name
    }

    fn first_tuple<'call>(&'call self, _: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    /// Adds rows, or gives them other texts: pairs of an id and the length of its text, all in one transaction.
    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let (table, numbers) = unpack(params);
        numbers.chunks_exact(2).try_for_each(|pair| {
            let text = vec![b't'; pair[1] as usize];
            if self.name == "add" {
                let mut row = RowBuf::<4100>::new(&self.def);
                row.integer(self.def.field("id").unwrap(), pair[0]).text(self.body, &text);
                return txn.insert(table, row.as_slice()).map(drop);
            }
            let tuple = txn.lookup(table, &pair[0].to_le_bytes()).ok_or(Abort::user("missing"))?;
            txn.set_text(tuple, self.body, &text)
        })
    }
}

fn texts(anticaching: AntiCaching) -> Database {
    let catalog = Catalog::from_sql(SCHEMA).unwrap();
    let def = &catalog.tables()[0];
    let all = ["add", "cut"]
        .map(|name| Box::new(Texts { name, def: def.clone(), body: def.field("body").unwrap() }) as Box<dyn Procedure>);
    Database::of(SCHEMA, ProcedureSet::new(all.into()), |config| {
        (config.memory_budget_bytes, config.eviction_block_bytes, config.anticaching) =
            (4 << 20, 16 << 10, anticaching);
    })
}

/// What was got for texts of one length is not given away for those of another, and got again, for ever.
#[test]
fn many_texts_of_two_lengths_find_room_together() {
    let mut database = texts(AntiCaching::Lru);
    for id in 0..2000 {
        let answer = database.run_one(ADD, params(PAGE, &[id, 2500]));
        assert_eq!(answer.status, Status::Committed, "{id}: {}", answer.text());
    }
    let many = (10_000..10_060).flat_map(|id| [id, 3500]).chain((11_000..11_040).flat_map(|id| [id, 900]));
    let answer = database.run_one(ADD, params(PAGE, &many.collect::<Vec<_>>()));
    assert_eq!(answer.status, Status::Committed, "{}", answer.text());
    database.settle();
    database.check();
}

/// What texts have left is there for another table at once.
#[test]
fn memory_of_shortened_texts_is_there_for_others() {
    let mut database = texts(AntiCaching::Off);
    let mut ids = 0..;
    let rows =
        ids.by_ref().take_while(|&id| database.run_one(ADD, params(PAGE, &[id, 3500])).status == Status::Committed);
    let rows = rows.count() as i64;
    assert!(rows > 100, "{rows} rows");
    for id in 0..rows {
        let answer = database.run_one(CUT, params(PAGE, &[id, 0]));
        assert_eq!(answer.status, Status::Committed, "{id}: {}", answer.text());
    }
    // So that not one of the cells which are left is free.
    let mut ids = 0..rows;
    while database.partition.tables()[usize::from(PAGE)].values().unwrap().free_cells(3500) > 0 {
        let answer = database.run_one(CUT, params(PAGE, &[ids.next().unwrap(), 3500]));
        assert_eq!(answer.status, Status::Committed, "{}", answer.text());
    }
    let answer = database.run_one(ADD, params(NOTE, &[0, 3500]));
    assert_eq!(answer.status, Status::Committed, "{}", answer.text());
}
