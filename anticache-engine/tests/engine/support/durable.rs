//! A database of one partition on a simulated disk, with a model of what it must hold, for tests of snapshots and recovery.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anticache_engine::catalog::key::KeyBuf;
use anticache_engine::catalog::row::{RowBuf, Value, values};
use anticache_engine::catalog::{Catalog, Field, IndexId, TableDef};
use anticache_engine::config::Config;
use anticache_engine::durability::recovery::{Opened, Site};
use anticache_engine::durability::snapshot::keeper::{Keeper, Outcome};
use anticache_engine::error::{BlockError, StartError};
use anticache_engine::io::simulated::SimulatedDisk;
use anticache_engine::net::frame::{RequestHead, Status, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::procedure::{FirstTuple, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TupleRef, TxnContext};
use rand::Rng;

use super::replies::{Answer, Bytes, decode};

pub const SCHEMA: &str = "
    CREATE TABLE item (id BIGINT NOT NULL, owner INT NOT NULL, name VARCHAR(30) NOT NULL, note VARCHAR(1500), token BIGINT NOT NULL,
        filler CHAR(1000) NOT NULL, PRIMARY KEY (id), UNIQUE KEY by_name (name), KEY by_owner (owner)) COMMENT = 'evictable; partition by id';
    CREATE TABLE event (item BIGINT NOT NULL, token BIGINT NOT NULL, filler CHAR(100) NOT NULL) COMMENT = 'evictable; partition by item';
    CREATE TABLE tally (owner INT NOT NULL, items BIGINT NOT NULL, PRIMARY KEY (owner)) COMMENT = 'partition by owner';";
pub const OWNERS: i32 = 8;
const ITEM: u16 = 0;
const EVENT: u16 = 1;
const TALLY: u16 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub owner: i32,
    pub name: String,
    pub note: Option<String>,
    pub token: u64,
}

/// What the database must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub items: BTreeMap<i64, Item>,
    /// How often each event is there.
    pub events: BTreeMap<(i64, u64), u32>,
    pub tallies: BTreeMap<i32, i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Insert {
        id: i64,
        owner: i32,
        note: String,
    },
    Set {
        id: i64,
    },
    Note {
        id: i64,
        note: Option<String>,
    },
    Rename {
        id: i64,
        name: String,
    },
    Give {
        id: i64,
        owner: i32,
    },
    Delete {
        id: i64,
    },
    /// Changes two items and writes an event; aborts after that when told to.
    Pair {
        a: i64,
        b: i64,
        abort: bool,
    },
    Read {
        id: i64,
    },
    /// The tokens of all items of an owner.
    Owned {
        owner: i32,
    },
}

pub fn name_of(id: i64) -> String {
    format!("item {id}")
}

impl Op {
    fn procedure(&self) -> u16 {
        match self {
            Self::Insert { .. } => 0,
            Self::Set { .. } => 1,
            Self::Note { .. } => 2,
            Self::Rename { .. } => 3,
            Self::Give { .. } => 4,
            Self::Delete { .. } => 5,
            Self::Pair { .. } => 6,
            Self::Read { .. } => 7,
            Self::Owned { .. } => 8,
        }
    }

    pub fn writes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Owned { .. })
    }

    /// token:8, two numbers:8, text.
    fn params(&self, token: u64) -> Vec<u8> {
        let (a, b, text) = match self {
            Self::Insert { id, owner, note } => (*id, i64::from(*owner), note.as_str()),
            Self::Set { id } | Self::Delete { id } | Self::Read { id } => (*id, 0, ""),
            Self::Note { id, note } => (*id, i64::from(note.is_some()), note.as_deref().unwrap_or("")),
            Self::Rename { id, name } => (*id, 0, name.as_str()),
            Self::Give { id, owner } => (*id, i64::from(*owner), ""),
            Self::Pair { a, b, abort } => (*a, *b, if *abort { "abort" } else { "" }),
            Self::Owned { owner } => (0, i64::from(*owner), ""),
        };
        [&token.to_le_bytes(), &a.to_le_bytes(), &b.to_le_bytes(), text.as_bytes()].concat()
    }

    /// Applies a committed operation; what it answers.
    pub fn apply(&self, token: u64, model: &mut Model) -> Vec<u8> {
        let changed = |model: &mut Model, id: &i64| model.items.get_mut(id).expect("it committed").token = token;
        match self {
            Self::Insert { id, owner, note } => {
                let item = Item { owner: *owner, name: name_of(*id), note: Some(note.clone()), token };
                assert!(model.items.insert(*id, item).is_none(), "an id twice");
                *model.events.entry((*id, token)).or_default() += 1;
                *model.tallies.entry(*owner).or_default() += 1;
            }
            Self::Set { id } => changed(model, id),
            Self::Note { id, note } => {
                changed(model, id);
                model.items.get_mut(id).unwrap().note.clone_from(note);
            }
            Self::Rename { id, name } => {
                assert!(model.items.iter().all(|(other, item)| other == id || item.name != *name), "a name twice");
                changed(model, id);
                model.items.get_mut(id).unwrap().name.clone_from(name);
            }
            Self::Give { id, owner } => {
                changed(model, id);
                model.items.get_mut(id).unwrap().owner = *owner;
            }
            Self::Delete { id } => {
                let owner = model.items.remove(id).expect("it committed").owner;
                *model.tallies.get_mut(&owner).expect("inserted") -= 1;
            }
            Self::Pair { a, b, .. } => {
                changed(model, a);
                changed(model, b);
                *model.events.entry((*a, token)).or_default() += 1;
            }
            Self::Read { id } => return model.items[id].token.to_le_bytes().to_vec(),
            Self::Owned { owner } => {
                return model
                    .items
                    .values()
                    .filter(|item| item.owner == *owner)
                    .flat_map(|item| item.token.to_le_bytes())
                    .collect();
            }
        }
        Vec::new()
    }

    pub fn random(random: &mut impl Rng, ids: i64) -> Self {
        let id = random.random_range(0..ids);
        let note = |random: &mut dyn rand::RngCore| -> String {
            let length = if random.random_bool(0.3) { 1500 } else { 300 };
            (0..random.random_range(0..length)).map(|n| char::from(b'a' + (n % 26) as u8)).collect()
        };
        match random.random_range(0..14) {
            0..3 => Self::Insert { id, owner: random.random_range(0..OWNERS), note: note(random) },
            3..5 => Self::Set { id },
            5 | 6 => Self::Note { id, note: random.random_bool(0.8).then(|| note(random)) },
            7 => Self::Rename {
                id,
                name: name_of(if random.random_bool(0.5) { -id } else { random.random_range(0..ids) }),
            },
            8 => Self::Give { id, owner: random.random_range(0..OWNERS) },
            9 => Self::Delete { id },
            10 => Self::Pair { a: id, b: random.random_range(0..ids), abort: random.random_bool(0.4) },
            11 if random.random_bool(0.05) => Self::Owned { owner: random.random_range(0..OWNERS) },
            _ => Self::Read { id },
        }
    }
}

/// Tokens of the transactions that committed, in that order, replayed ones included.
pub type Journal = Arc<Mutex<Vec<u64>>>;

struct TestProcedure {
    number: u16,
    item: TableDef,
    fields: Fields,
    journal: Journal,
}

#[derive(Clone, Copy)]
struct Fields {
    id: Field,
    owner: Field,
    name: Field,
    note: Field,
    token: Field,
    filler: Field,
    by_owner: IndexId,
}

const NAMES: [&str; 9] = ["insert", "set", "note", "rename", "give", "delete", "pair", "read", "owned"];

impl Procedure for TestProcedure {
    fn name(&self) -> &'static str {
        NAMES[usize::from(self.number)]
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(ITEM, params.get(8..16)?))
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let number = |at: usize| i64::from_le_bytes(params[at..at + 8].try_into().unwrap());
        self.body(txn, number(0), number(8), number(16), &params[24..])?;
        // The executor commits what ends well: this is the order of commit.
        self.journal.lock().unwrap().push(number(0) as u64);
        Ok(())
    }
}

fn event_row(id: i64, token: i64) -> Vec<u8> {
    let mut row = id.to_le_bytes().to_vec();
    row.extend_from_slice(&token.to_le_bytes());
    row.resize(116, b' ');
    row
}

impl TestProcedure {
    fn find(&self, txn: &mut TxnContext<'_>, id: i64) -> Result<TupleRef, Abort> {
        txn.lookup(ITEM, &id.to_le_bytes()).ok_or(Abort::user("missing"))
    }

    fn change_tally(txn: &mut TxnContext<'_>, owner: i64, by: i64) -> Result<(), Abort> {
        let key = KeyBuf::new().i32(owner as i32);
        let Some(tally) = txn.lookup(TALLY, &key) else {
            return txn.insert(TALLY, &[&(owner as i32).to_le_bytes()[..], &by.to_le_bytes()].concat()).map(|_| ());
        };
        let items = i64::from_le_bytes(txn.row(tally)?[4..12].try_into().unwrap()) + by;
        txn.update(tally, 4, &items.to_le_bytes())
    }

    fn body(&self, txn: &mut TxnContext<'_>, token: i64, a: i64, b: i64, text: &[u8]) -> Result<(), Abort> {
        let fields = self.fields;
        match self.number {
            0 => {
                let mut row = RowBuf::<4000>::new(&self.item);
                row.integer(fields.id, a).integer(fields.owner, b).text(fields.name, name_of(a).as_bytes());
                row.text(fields.note, text).integer(fields.token, token).text(fields.filler, b"filler");
                txn.insert(ITEM, row.as_slice())?;
                txn.insert(EVENT, &event_row(a, token))?;
                Self::change_tally(txn, b, 1)
            }
            5 => {
                let tuple = self.find(txn, a)?;
                let owner = txn.integer(tuple, fields.owner)?;
                txn.delete(tuple)?;
                Self::change_tally(txn, owner, -1)
            }
            6 => {
                let (first, second) = (self.find(txn, a)?, self.find(txn, b)?);
                txn.set_integer(first, fields.token, token)?;
                txn.insert(EVENT, &event_row(a, token))?;
                txn.set_integer(second, fields.token, token)?;
                if text.is_empty() { Ok(()) } else { Err(Abort::user("as asked")) }
            }
            8 => {
                let owner = KeyBuf::new().i32(b as i32);
                let matches = txn.lookup_all(ITEM, fields.by_owner, &owner);
                for at in 0..matches.len() {
                    let token = txn.integer(txn.matched(matches, at), fields.token)?;
                    txn.reply(&token.to_le_bytes());
                }
                Ok(())
            }
            number => {
                let tuple = self.find(txn, a)?;
                match number {
                    2 if b == 0 => txn.set_null(tuple, fields.note)?,
                    2 => txn.set_text(tuple, fields.note, text)?,
                    3 => txn.set_text(tuple, fields.name, text)?,
                    4 => txn.set_integer(tuple, fields.owner, b)?,
                    7 => {
                        let token = txn.integer(tuple, fields.token)?;
                        txn.reply(&token.to_le_bytes());
                        return Ok(());
                    }
                    _ => {}
                }
                txn.set_integer(tuple, fields.token, token)
            }
        }
    }
}

pub fn procedures(catalog: &Catalog, journal: &Journal) -> ProcedureSet {
    let item = &catalog.tables()[0];
    let field = |name: &str| item.field(name).unwrap();
    let fields = Fields {
        id: field("id"),
        owner: field("owner"),
        name: field("name"),
        note: field("note"),
        token: field("token"),
        filler: field("filler"),
        by_owner: item.index("by_owner").unwrap(),
    };
    let procedure = |number: u16| -> Box<dyn Procedure> {
        Box::new(TestProcedure { number, item: item.clone(), fields, journal: Arc::clone(journal) })
    };
    ProcedureSet::new((0..NAMES.len() as u16).map(procedure).collect())
}

pub fn config() -> Config {
    Config {
        lru_sample_rate: 0.2,
        eviction_block_bytes: 4096,
        huge_pages: false,
        log_segment_bytes: 1 << 20,
        snapshot_interval_s: 0,
        snapshot_log_bytes: 1 << 30,
        seed: 7,
        ..Config::new(PathBuf::from("/schema.sql"), PathBuf::from("/data"), 3 << 20)
    }
}

/// The database, as long as its process lives.
pub struct Process {
    pub keeper: Keeper,
    pub partition: Partition,
    sink: Bytes,
    /// What became of the snapshots.
    pub outcomes: Vec<Outcome>,
}

impl Process {
    pub fn start(disk: &SimulatedDisk, config: &Config, journal: &Journal) -> Result<Self, StartError> {
        Self::start_with(disk, config, SCHEMA, journal)
    }

    pub fn start_with(
        disk: &SimulatedDisk,
        config: &Config,
        schema: &str,
        journal: &Journal,
    ) -> Result<Self, StartError> {
        let catalog = Catalog::from_sql(schema).unwrap();
        let procedures = procedures(&Catalog::from_sql(SCHEMA).unwrap(), journal);
        let files = disk.files();
        let site = Site { files: &files, config, catalog: &catalog, schema, procedures: &procedures };
        let Opened { keeper, mut partitions, .. } = site.open()?;
        let partition = partitions.remove(0);
        Ok(Self { keeper, partition, sink: Bytes::default(), outcomes: Vec::new() })
    }

    /// Begins a snapshot unless one is under way, or the disk refuses.
    pub fn begin_snapshot(&mut self) -> bool {
        if self.keeper.is_busy() {
            return false;
        }
        let Ok(mut begun) = self.keeper.begin() else { return false };
        self.partition.begin_snapshot(begun.generation, begun.files.remove(0));
        true
    }

    /// Takes a snapshot to its end.
    pub fn snapshot(&mut self) -> Outcome {
        assert!(self.begin_snapshot());
        self.finish_snapshot()
    }

    /// Waits for the end of the snapshot that was begun last.
    pub fn finish_snapshot(&mut self) -> Outcome {
        let before = self.outcomes.len();
        for _ in 0..100_000 {
            self.poll();
            if let Some(outcome) = self.outcomes.get(before) {
                return outcome.clone();
            }
        }
        panic!("the snapshot does not end");
    }

    pub fn poll(&mut self) {
        self.partition.poll(&mut self.sink);
        if let Some(ended) = self.partition.snapshot_ended()
            && let Some(outcome) = self.keeper.part_ended(0, ended)
        {
            self.partition.end_snapshot(outcome.generation, outcome.verdict);
            self.outcomes.push(outcome);
        }
    }

    pub fn submit(&mut self, ops: &[(u64, Op)]) {
        let (mut wire, mut heads) = (Vec::new(), Vec::<RequestHead>::new());
        for (token, op) in ops {
            write_request(&mut wire, *token, op.procedure(), &op.params(*token));
        }
        parse_requests(&wire, usize::MAX, &mut heads).unwrap();
        self.partition.execute_batch(0, 0, &wire, &heads, &mut self.sink);
    }

    /// The replies so far.
    pub fn answers(&mut self) -> Vec<Answer> {
        decode(&mut self.sink.0)
    }

    /// Runs operations to their end.
    pub fn run(&mut self, ops: &[(u64, Op)]) -> Vec<Answer> {
        self.submit(ops);
        let mut answers = Vec::new();
        for _ in 0..1_000_000 {
            answers.extend(self.answers());
            if answers.len() == ops.len() {
                return answers;
            }
            self.poll();
        }
        panic!("{} of {} replies: {:?}", answers.len(), ops.len(), self.partition.gauges());
    }

    /// What it holds, with everything checked; an error when the disk has no power any more.
    pub fn state(&self) -> Result<Model, BlockError> {
        let mut model = Model::default();
        let tables = self.partition.tables();
        tables.iter().for_each(|table| table.check().unwrap());
        self.partition.scan_rows(ITEM, |row| {
            let values = values(tables[0].def(), row).unwrap();
            let [
                Value::Number(id),
                Value::Number(owner),
                Value::Text(name),
                ref note,
                Value::Number(token),
                Value::Text(filler),
            ] = values[..]
            else {
                panic!("{values:?}");
            };
            assert!(filler.starts_with(b"filler  "));
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let note = if let Value::Text(note) = note { Some(text(note)) } else { None };
            let item = Item { owner: owner as i32, name: text(name), note, token: token as u64 };
            assert!(model.items.insert(id, item).is_none(), "item {id} twice");
        })?;
        let mut events = BTreeMap::new();
        self.partition.scan_rows(EVENT, |row| {
            let number = |at: usize| i64::from_le_bytes(row[at..at + 8].try_into().unwrap());
            *events.entry((number(0), number(8) as u64)).or_default() += 1;
        })?;
        model.events = events;
        self.partition.scan_rows(TALLY, |row| {
            let owner = i32::from_le_bytes(row[..4].try_into().unwrap());
            model.tallies.insert(owner, i64::from_le_bytes(row[4..12].try_into().unwrap()));
        })?;
        let meter = self.partition.meter();
        assert!(meter.used_bytes() <= meter.budget_bytes() + (256 << 10), "{} bytes in use", meter.used_bytes());
        Ok(model)
    }
}

/// What was asked of a database and what it answered, over all its lives.
#[derive(Default)]
pub struct History {
    pub journal: Journal,
    pub ops: HashMap<u64, Op>,
    /// The state at the beginning of the journal.
    pub base: Model,
    pub answers: HashMap<u64, Answer>,
    next_token: u64,
}

impl History {
    /// New operations, remembered.
    pub fn invent(&mut self, count: usize, mut op: impl FnMut() -> Op) -> Vec<(u64, Op)> {
        let ops: Vec<_> = (self.next_token..).take(count).map(|token| (token, op())).collect();
        self.next_token += count as u64;
        self.ops.extend(ops.iter().cloned());
        ops
    }

    pub fn learn(&mut self, answers: Vec<Answer>) {
        self.answers.extend(answers.into_iter().map(|answer| (answer.token, answer)));
    }

    fn committed(&self, token: u64) -> Option<&Answer> {
        self.answers.get(&token).filter(|answer| answer.status == Status::Committed)
    }

    /// Finds the state `found` after a crash among the states that are allowed, and goes on from there. Allowed are those after a beginning of the
    /// journal that contains every acknowledged write and every write that an acknowledged read has seen; every acknowledged answer must be the one that
    /// the operations before it, in the order of commit, give.
    pub fn must_hold(&mut self, found: &Model) -> Result<(), String> {
        let journal = std::mem::take(&mut *self.journal.lock().unwrap());
        let position: HashMap<u64, usize> = journal.iter().enumerate().map(|(at, token)| (*token, at)).collect();
        let mut model = self.base.clone();
        let (mut needed, mut matching) = (0, None);
        for (at, token) in journal.iter().enumerate() {
            let op = &self.ops[token];
            let expected = op.apply(*token, &mut model);
            if let Some(answer) = self.committed(*token) {
                if answer.payload != expected {
                    return Err(format!("{op:?} answered {:?}, expected {expected:?}", answer.payload));
                }
                let seen = expected.chunks_exact(8).map(|token| u64::from_le_bytes(token.try_into().unwrap()));
                let seen = seen.filter_map(|token| position.get(&token)).max().map_or(0, |at| at + 1);
                needed = needed.max(if op.writes() { at + 1 } else { seen });
            }
        }
        let mut model = self.base.clone();
        for at in 0..=journal.len() {
            if at >= needed && model == *found {
                matching = Some(at);
                break;
            }
            if let Some(token) = journal.get(at) {
                self.ops[token].apply(*token, &mut model);
            }
        }
        let Some(_) = matching else {
            let mut model = self.base.clone();
            journal[..needed].iter().for_each(|token| drop(self.ops[token].apply(*token, &mut model)));
            return Err(format!("of {} commits {needed} must be there: {}", journal.len(), difference(&model, found)));
        };
        self.base = model;
        self.answers.clear();
        Ok(())
    }
}

/// What is different, in few words.
pub fn difference(expected: &Model, found: &Model) -> String {
    let items = expected.items.iter().filter(|(id, item)| found.items.get(id) != Some(item)).take(3);
    let items: Vec<_> = items
        .map(|(id, item)| format!("item {id} {:?} for {:?}", brief(found.items.get(id)), brief(Some(item))))
        .collect();
    let extra: Vec<_> = found.items.keys().filter(|id| !expected.items.contains_key(id)).take(3).collect();
    format!(
        "{} and {} items, {} and {} events; {items:?}; not expected {extra:?}; tallies {:?} and {:?}",
        expected.items.len(),
        found.items.len(),
        expected.events.len(),
        found.events.len(),
        expected.tallies,
        found.tallies
    )
}

fn brief(item: Option<&Item>) -> Option<(i32, &str, Option<usize>, u64)> {
    item.map(|item| (item.owner, item.name.as_str(), item.note.as_ref().map(String::len), item.token))
}

pub fn is_off(disk: &SimulatedDisk) -> bool {
    disk.files().list(Path::new("/data")).is_err()
}
