//! TPC-C on one and several partitions: every reply and the final database against an independent implementation, and the specification's consistency conditions,
//! with most of what is evictable evicted and without anti-caching.

mod database;
mod recovery;
mod reference;

use anticache_engine::config::{AntiCaching, Compaction, EvictFrom, Log, Merge};
use anticache_engine::net::frame::Status;
use anticache_engine::procedure::tpcc::ITEM_NOT_FOUND;
use anticache_engine::procedure::tpcc::consistency::Report;
use anticache_engine::procedure::tpcc::generate::{Input, Mix, Scale, Seeds, Terminal, TransactionKind};
use anticache_engine::procedure::tpcc::params::{
    CustomerBy, Delivery, Line, NewOrder, OrderStatus, Payment, StockLevel,
};
use database::{Database, SEED, Variant, catalog, population};
use reference::Reference;

const SCALE: Scale = Scale { warehouses: 2, items: 200, customers_per_district: 40, orders_per_district: 40 };
const START_US: i64 = 1_400_000_000_000_000;
/// Holds what cannot be evicted and a small part of the rest.
const TIGHT_BYTES: u64 = 5 << 19;
/// For two warehouses to which less is added.
const TIGHTER_BYTES: u64 = 9 << 18;
/// For one of several partitions with a warehouse each.
const TIGHT_PARTITION_BYTES: u64 = 5 << 18;
/// When hardly anything cannot be evicted.
const SMALLEST_BYTES: u64 = 1 << 20;
/// The same, with the buffers that are kept for snapshots of a database with a log.
const TIGHT_LOGGED_BYTES: u64 = TIGHT_BYTES + (5 << 16);

/// Inputs of a terminal for each district, taking turns.
fn inputs(scale: Scale, mix: Mix, count: usize) -> Vec<Input> {
    let terminals = 10 * scale.warehouses as u64;
    let mut terminals: Vec<_> =
        (0..terminals).map(|index| Terminal::new(scale, mix, Seeds::both(SEED), index)).collect();
    let turns = terminals.len();
    (0..count).map(|at| terminals[at % turns].next(START_US + 1000 * at as i64)).collect()
}

/// Runs transactions one after the other on both, and compares every reply and in the end every row.
fn agrees_with_reference(variant: Variant, mix: Mix, count: usize) -> Database {
    let scale = Scale { warehouses: 2.max(variant.partitions as i16), ..SCALE };
    let mut database = Database::load(variant, scale);
    let mut reference = Reference::load(&catalog(), &population(scale), scale);
    let mut rolled_back = 0;
    for (at, input) in inputs(scale, mix, count).iter().enumerate() {
        let expected = reference.execute(input);
        rolled_back += usize::from(expected.is_err());
        let restarted = database.counted(|counters| counters.restarted);
        assert_eq!(database.execute(input), expected, "transaction {at}, {input:?}");
        let restarts = database.counted(|counters| counters.restarted) - restarted;
        // Which stock Stock-Level needs depends on lines; everything else is found in one pre-pass, at however many partitions.
        let most = if variant.evicts_all && input.kind() == TransactionKind::StockLevel { 2 } else { 1 };
        assert!(restarts <= most, "transaction {at} took {restarts} pre-passes; {input:?}");
    }
    assert!(rolled_back > 0);
    database.settle();
    let (rows, expected) = (database.rows(), reference.rows());
    for (table, expected) in &expected {
        assert_eq!(rows[table].len(), expected.len(), "rows of {table}");
        for (row, expected) in rows[table].iter().zip(expected) {
            assert_eq!(row, expected, "{table}");
        }
    }
    assert_eq!(database.check(), Report::default());
    database
}

/// Most of the evictable tuples are on disk, and transactions had to go and get some.
fn assert_evicted(database: &Database) {
    let tables = || database.partitions.iter().flat_map(|partition| partition.tables());
    let of = |each: fn(&anticache_engine::storage::table::Table) -> u64| -> u64 {
        tables().filter(|table| table.def().evictable).map(each).sum()
    };
    let (resident, evicted) = (of(|table| table.tuples().live()), of(|table| table.evicted().live()));
    assert!(evicted > resident, "{evicted} evicted, {resident} resident, {:?}", database.partitions[0].gauges());
    for partition in &database.partitions {
        let counters = partition.counters();
        assert!(counters.restarted > 25 && counters.merged_tuples > 100, "{counters:?}");
    }
}

#[test]
fn agrees_with_the_reference_without_anti_caching() {
    agrees_with_reference(Variant::OFF, Mix::WithRemote, 6000);
}

#[test]
fn agrees_with_the_reference_with_block_merge() {
    let variant = Variant::evicting(AntiCaching::Alru, Merge::Block, Log::Off, TIGHT_BYTES);
    assert_evicted(&agrees_with_reference(variant, Mix::HomeOnly, 4000));
}

#[test]
fn agrees_with_the_reference_with_tuple_merge() {
    let variant = Variant::evicting(AntiCaching::Alru, Merge::Tuple, Log::Off, TIGHT_BYTES);
    assert_evicted(&agrees_with_reference(variant, Mix::WithRemote, 4000));
}

#[test]
fn agrees_with_the_reference_with_lru_and_a_synced_log() {
    let variant = Variant::evicting(AntiCaching::Lru, Merge::Tuple, Log::Sync, TIGHT_LOGGED_BYTES);
    assert_evicted(&agrees_with_reference(variant, Mix::WithRemote, 4000));
}

/// Warehouses on several partitions: replies and rows are those of one.
fn agrees_at(partitions: u32, mix: Mix, count: usize, change: impl FnOnce(&mut Variant)) -> Database {
    let mut variant =
        Variant::evicting(AntiCaching::Alru, Merge::Tuple, Log::Off, TIGHT_PARTITION_BYTES).at(partitions);
    change(&mut variant);
    let database = agrees_with_reference(variant, mix, count);
    let multi = database.counted(|counters| counters.multi_partition);
    let least = if mix == Mix::WithRemote { count / 25 } else { count / 3 };
    assert!(multi as usize > least, "{multi} of {count} transactions took place at several partitions");
    database
}

#[test]
fn two_partitions_agree_without_anti_caching() {
    agrees_at(2, Mix::Remote(50), 3000, |variant| *variant = Variant::OFF.at(2));
}

#[test]
fn two_partitions_agree_with_the_specifications_remote_share() {
    assert_evicted(&agrees_at(2, Mix::WithRemote, 3000, |_| {}));
}

#[test]
fn two_partitions_agree_with_half_of_all_remote_and_background_compaction() {
    assert_evicted(&agrees_at(2, Mix::Remote(50), 3000, |variant| {
        (variant.anticaching, variant.compaction) = (AntiCaching::Lru, Compaction::Background);
        variant.evict_from = EvictFrom::InverseAccesses;
    }));
}

#[test]
fn three_partitions_agree_with_block_merge_and_a_synced_log() {
    assert_evicted(&agrees_at(3, Mix::Remote(50), 2000, |variant| {
        (variant.merge, variant.log) = (Merge::Block, Log::Sync);
        variant.evict_from = EvictFrom::InverseAccesses;
        variant.budget_bytes += 5 << 15;
    }));
}

/// With stock and customers on disk too, New-Order and Payment meet evicted tuples at all their partitions, and all in one pass.
#[test]
fn three_partitions_agree_with_everything_evictable() {
    for merge in [Merge::Tuple, Merge::Block] {
        let database = agrees_at(3, Mix::Remote(50), 1500, |variant| {
            (variant.merge, variant.evicts_all, variant.budget_bytes) = (merge, true, SMALLEST_BYTES);
        });
        assert_evicted(&database);
    }
}

/// Transactions that wait for blocks are overtaken by others: replies differ from run to run, the conditions hold all the same.
#[test]
fn many_outstanding_transactions_stay_consistent() {
    for (merge, log, mix, partitions, bytes) in [
        (Merge::Tuple, Log::Off, Mix::WithRemote, 1, TIGHT_BYTES),
        (Merge::Block, Log::Off, Mix::HomeOnly, 1, TIGHT_BYTES),
        (Merge::Tuple, Log::Sync, Mix::HomeOnly, 1, TIGHT_LOGGED_BYTES),
        (Merge::Tuple, Log::Sync, Mix::WithRemote, 2, TIGHTER_BYTES),
        (Merge::Block, Log::Off, Mix::Remote(50), 2, TIGHTER_BYTES),
    ] {
        let scale = Scale { warehouses: 2 * partitions as i16, ..SCALE };
        // Drains ORDERS, so that much is fetched.
        let evict_from = EvictFrom::InverseAccesses;
        let variant = Variant { evict_from, ..Variant::evicting(AntiCaching::Alru, merge, log, bytes) }.at(partitions);
        let mut database = Database::load(variant, scale);
        let inputs = inputs(scale, mix, 3450);
        let (mut committed, mut rolled_back) = (0, 0);
        for batch in inputs.chunks(100) {
            for answer in database.execute_all(batch) {
                let input = &batch[answer.token as usize];
                match answer.status {
                    Status::Committed => committed += 1,
                    Status::Aborted => {
                        rolled_back += 1;
                        assert_eq!(answer.payload, ITEM_NOT_FOUND.as_bytes());
                        assert_eq!(input.kind(), TransactionKind::NewOrder);
                    }
                    other => panic!("{other:?}: {}", String::from_utf8_lossy(&answer.payload)),
                }
            }
        }
        assert!((5..50).contains(&rolled_back) && committed + rolled_back == inputs.len(), "{rolled_back} rolled back");
        database.settle();
        assert_eq!(database.check(), Report::default());
        assert_evicted(&database);
    }
}

#[test]
fn a_call_that_is_not_sent_home_is_refused() {
    let mut database = Database::load(Variant::OFF.at(2), SCALE);
    let mut params = Vec::new();
    Input::Delivery(Delivery { w_id: 1, carrier_id: 4, date_us: START_US }).encode(&mut params);
    let answer = database.call_at(0, "tpcc_delivery", &params);
    assert_eq!(answer.status, Status::Failed);
    assert_eq!(answer.text(), "tpcc_delivery was sent to partition 0 and takes place at [1]: send it to one of these");
}

#[test]
fn an_unused_item_undoes_the_lines_before_it() {
    let mut database = Database::load(Variant::OFF, SCALE);
    let before = database.rows();
    let line = |i_id| Line { i_id, supply_w_id: 1, quantity: 3 };
    let order = NewOrder::new(1, 2, 3, START_US, &[line(5), line(6), line(5), line(201)]).unwrap();
    assert_eq!(database.execute(&Input::NewOrder(order)), Err(ITEM_NOT_FOUND.to_owned()));
    assert!(database.rows() == before);
    assert_eq!(database.check(), Report::default());
}

#[test]
fn an_item_ordered_twice_leaves_stock_twice() {
    let mut database = Database::load(Variant::OFF, SCALE);
    let line = Line { i_id: 5, supply_w_id: 2, quantity: 10 };
    let order = NewOrder::new(1, 2, 3, START_US, &[line; 15]).unwrap();
    database.execute(&Input::NewOrder(order)).unwrap();
    let rows = database.rows();
    let number = |row: &reference::Row, column: &str| match row.0[column] {
        reference::Val::Number(number) => number,
        _ => panic!("{column}"),
    };
    let is_it = |row: &&reference::Row| number(row, "s_w_id") == 2 && number(row, "s_i_id") == 5;
    let stock = rows["stock"].iter().find(is_it).unwrap();
    let counts = ["s_ytd", "s_order_cnt", "s_remote_cnt"].map(|column| number(stock, column));
    assert_eq!(counts, [150, 15, 15]);
    assert!((10..=100).contains(&number(stock, "s_quantity")));
    let is_new = |row: &&reference::Row| number(row, "o_d_id") == 2 && number(row, "o_id") == 41;
    let order = rows["orders"].iter().find(is_new).unwrap();
    assert_eq!(["o_all_local", "o_ol_cnt"].map(|column| number(order, column)), [0, 15]);
}

#[test]
fn delivery_skips_districts_without_new_orders() {
    let mut database = Database::load(Variant::OFF, SCALE);
    let delivery = |at: i64| Input::Delivery(Delivery { w_id: 2, carrier_id: 4, date_us: START_US + at });
    let delivered = |database: &mut Database, at| -> Vec<i32> {
        let reply = database.execute(&delivery(at)).unwrap();
        reply.chunks_exact(4).map(|o_id| i32::from_le_bytes(o_id.try_into().unwrap())).collect()
    };
    for o_id in 29..=40 {
        assert_eq!(delivered(&mut database, i64::from(o_id)), [o_id; 10]);
    }
    assert_eq!(delivered(&mut database, 50), [0; 10]);
    let line = Line { i_id: 1, supply_w_id: 2, quantity: 1 };
    for d_id in [3, 9] {
        database.execute(&Input::NewOrder(NewOrder::new(2, d_id, 1, START_US, &[line]).unwrap())).unwrap();
    }
    assert_eq!(delivered(&mut database, 51), [0, 0, 41, 0, 0, 0, 0, 0, 41, 0]);
    assert_eq!(delivered(&mut database, 52), [0; 10]);
    assert_eq!(database.check(), Report::default());
}

#[test]
fn impossible_calls_say_why_and_change_nothing() {
    let mut database = Database::load(Variant::OFF, SCALE);
    let before = database.rows();
    let line = |i_id, supply_w_id| Line { i_id, supply_w_id, quantity: 3 };
    let order = |w_id, d_id, c_id, line| Input::NewOrder(NewOrder::new(w_id, d_id, c_id, START_US, &[line]).unwrap());
    let payment = |w_id, d_id, c_w_id, customer| {
        Input::Payment(Payment { w_id, d_id, c_w_id, c_d_id: 1, customer, amount_cents: 500, date_us: START_US })
    };
    let customer = CustomerBy::Id;
    for (input, reason) in [
        (order(3, 1, 1, line(1, 1)), "no such customer"),
        (order(1, 11, 1, line(1, 1)), "no such customer"),
        (order(1, 1, 41, line(1, 1)), "no such customer"),
        (order(1, 1, 1, line(1, 3)), "the supplying warehouse has no stock of an item"),
        (payment(3, 1, 1, customer(1)), "no such warehouse"),
        (payment(1, 11, 1, customer(1)), "no such district"),
        (payment(1, 1, 3, customer(1)), "no such customer"),
        (Input::OrderStatus(OrderStatus { w_id: 1, d_id: 1, customer: customer(0x7fff) }), "no such customer"),
        (Input::Delivery(Delivery { w_id: 9, carrier_id: 1, date_us: 0 }), "no such warehouse"),
        (Input::StockLevel(StockLevel { w_id: 1, d_id: 0, threshold: 10 }), "no such district"),
    ] {
        assert_eq!(database.execute(&input), Err(reason.to_owned()), "{input:?}");
    }
    for (params, reason) in [
        (&[10, 0, 0, 0, 0, 0][..], "tpcc_load: table 10; there are 10"),
        (&[0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 1], "tpcc_load: a row of 9 bytes, 1 are left"),
        (&[0, 0], "tpcc_load: parameters of 2 bytes end too early"),
    ] {
        let answer = database.call_at(0, "tpcc_load", params);
        assert_eq!((answer.status, String::from_utf8(answer.payload).unwrap().as_str()), (Status::Aborted, reason));
    }
    assert!(database.rows() == before);
}
