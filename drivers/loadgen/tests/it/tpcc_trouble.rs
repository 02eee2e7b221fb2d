//! TPC-C on MySQL when something goes wrong: transactions that mysqld rolls back, damaged rows, many connections.

use std::time::Duration;

use anticache_engine::procedure::tpcc::consistency::Report;
use anticache_engine::procedure::tpcc::generate::Input;
use anticache_engine::procedure::tpcc::params::{CustomerBy, Line, NewOrder, Payment};
use loadgen::check;
use loadgen::interrupt::Interrupt;
use loadgen::system::{Outcome, System};
use loadgen::systems::mysql::MysqlSystem;
use loadgen::systems::mysql::session::{Session, Use};
use loadgen::systems::mysql::tpcc::{Copies, NoCopies, TpccConnection};
use loadgen::systems::mysql_memcached::MysqlMemcachedSystem;
use serde_json::{Value, json};

use crate::reference::Reference;
use crate::servers::{Memcached, Mysqld};
use crate::tpcc_mysql::Trial;

/// Prepared statements of one terminal at most, as `mysql_statements_of_terminal` of the role `mysql` has it.
const STATEMENTS_OF_TERMINAL: u64 = 64;
const DATE_US: i64 = 1_400_000_000_000_000;

/// What another client does beside a transaction, so that mysqld rolls the transaction back.
struct Rival {
    /// Locks what the transaction comes to after the row that [`Rival::wants`].
    holds: &'static str,
    /// Closes the circle; empty: nothing, it waits for longer than the limit for locks.
    wants: &'static str,
}

fn new_order() -> Input {
    let line = |i_id, supply_w_id| Line { i_id, supply_w_id, quantity: 10 };
    Input::NewOrder(NewOrder::new(1, 2, 3, DATE_US, &[5, 6, 7, 8, 9].map(|i_id| line(i_id, 1))).unwrap())
}

fn payment() -> Input {
    let customer = CustomerBy::Id(3);
    Input::Payment(Payment { w_id: 1, d_id: 2, c_w_id: 1, c_d_id: 2, customer, amount_cents: 12_345, date_us: DATE_US })
}

/// How often a statement has waited for a row's lock.
fn lock_waits(session: &mut Session) -> u64 {
    let query =
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_WAITS'";
    let waits: Option<String> = session.query_first(query).unwrap();
    waits.unwrap().parse().unwrap()
}

/// Executes a transaction that a rival makes fail at least once; what it was repeated for.
fn beaten<C: Copies>(
    system: &MysqlSystem,
    connection: &mut TpccConnection<C>,
    rival: &Rival,
    input: &Input,
) -> Vec<&'static str> {
    let mut session = system.server.connect(Use::Bulk).unwrap();
    let mut watcher = system.server.connect(Use::Bulk).unwrap();
    // More than the transaction changes: mysqld rolls back the one that has done less.
    session.execute("BEGIN; UPDATE customer SET c_data = CONCAT('x', LEFT(c_data, 200)) WHERE c_w_id = 2").unwrap();
    session.execute(rival.holds).unwrap();
    let before = lock_waits(&mut watcher);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Waiting a second time, the transaction is being repeated.
            let waits = if rival.wants.is_empty() { 2 } else { 1 };
            while lock_waits(&mut watcher) < before + waits {
                std::thread::sleep(Duration::from_millis(10));
            }
            if !rival.wants.is_empty() {
                session.execute(rival.wants).unwrap();
            }
            session.execute("ROLLBACK").unwrap();
        });
        let mut retries = Vec::new();
        assert_eq!(connection.execute(input, &mut retries).unwrap(), Outcome::Committed);
        retries
    })
}

const DEADLOCKS: [fn() -> (Input, Rival); 2] = [
    || {
        let wants = "SELECT * FROM district WHERE d_w_id = 1 AND d_id = 2 FOR UPDATE";
        (new_order(), Rival { holds: "SELECT * FROM stock WHERE s_w_id = 1 AND s_i_id = 8 FOR UPDATE", wants })
    },
    || {
        let wants = "SELECT * FROM customer WHERE c_w_id = 1 AND c_d_id = 2 AND c_id = 3 FOR UPDATE";
        (payment(), Rival { holds: "SELECT * FROM warehouse WHERE w_id = 1 FOR UPDATE", wants })
    },
];

/// Beaten in every way, each transaction is executed once, with its own input, and counted by its error.
fn repeats_what_was_rolled_back<C: Copies>(trial: &Trial, system: &MysqlSystem, mut connection: TpccConnection<C>) {
    let mut reference = Reference::load(&trial.catalog, &trial.population(), trial.scale());
    for deadlock in DEADLOCKS {
        let (input, rival) = deadlock();
        assert_eq!(beaten(system, &mut connection, &rival, &input), ["1213"], "{input:?}");
        assert_eq!(Ok(connection.reply()), reference.execute(&input).as_deref());
        let (input, rival) = (input, Rival { wants: "", ..rival });
        let retries = beaten(system, &mut connection, &rival, &input);
        assert!(!retries.is_empty() && retries.iter().all(|kind| *kind == "1205"), "{retries:?}");
        assert_eq!(Ok(connection.reply()), reference.execute(&input).as_deref());
    }
    let expected = reference.rows();
    for (table, rows) in trial.rows(system) {
        assert!(rows == expected[table], "{table}");
    }
    assert_eq!(trial.check(system), Report::default());
}

/// Terminals that connect from now on give up a lock after a second.
fn give_up_soon(system: &MysqlSystem) {
    let mut session = system.server.connect(Use::Bulk).unwrap();
    session.execute("SET GLOBAL innodb_lock_wait_timeout = 1").unwrap();
}

#[test]
fn what_mysqld_rolls_back_is_repeated_with_the_same_input() {
    let server = Mysqld::start();
    let trial = Trial::new("mysql", server.endpoint());
    let system = MysqlSystem::open(&trial.spec, trial.workload()).unwrap();
    trial.load(&system);
    give_up_soon(&system);
    let session = system.transaction_session().unwrap();
    repeats_what_was_rolled_back(&trial, &system, TpccConnection::open(session, &trial.tpcc, NoCopies).unwrap());
}

#[test]
fn what_mysqld_rolls_back_leaves_no_document() {
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    let trial = Trial::new("mysql-memcached", endpoint);
    let system = MysqlMemcachedSystem::open(&trial.spec, trial.workload()).unwrap();
    trial.load(&system);
    give_up_soon(system.mysql());
    let session = system.mysql().transaction_session().unwrap();
    let copies = system.cached_rows(&trial.catalog).unwrap();
    let connection = TpccConnection::open(session, &trial.tpcc, copies).unwrap();
    repeats_what_was_rolled_back(&trial, system.mysql(), connection);
    let documents = system.cache_differences(&trial.catalog).unwrap().unwrap();
    assert!(documents.compared > 5000 && documents.different == 0, "{documents:?}");
}

#[test]
fn damaged_rows_are_noticed() {
    let server = Mysqld::start();
    let mut trial = Trial::new("mysql", server.endpoint());
    let system = MysqlSystem::open(&trial.spec, trial.workload()).unwrap();
    trial.load(&system);
    let mut session = system.server.connect(Use::Bulk).unwrap();
    let check = || check::tpcc(&system, &trial.tpcc, &Interrupt::default()).unwrap();
    assert!(check().consistent, "{:?}", check());
    for (damage, repair, expected) in [
        ("i_price = i_price + 1", "i_price = i_price - 1", "ITEM has checksum"),
        (
            "s_ytd = s_ytd + 3",
            "s_ytd = s_ytd - 3",
            "warehouse 2: the sum of S_YTD is 3, the lines entered since loading say 0",
        ),
        ("s_order_cnt = 1", "s_order_cnt = 0", "warehouse 2: the sum of S_ORDER_CNT is 1"),
        ("s_remote_cnt = 1", "s_remote_cnt = 0", "warehouse 2: the sum of S_REMOTE_CNT is 1"),
        (
            "s_quantity = s_quantity + 1000",
            "s_quantity = s_quantity - 1000",
            "S_QUANTITY of 1 items is not 10 to 100, of item 7",
        ),
    ] {
        let place = if damage.starts_with('i') { ("item", "i_id = 7") } else { ("stock", "s_w_id = 2 AND s_i_id = 7") };
        session.execute(&format!("UPDATE {} SET {damage} WHERE {}", place.0, place.1)).unwrap();
        let report = check();
        assert!(!report.consistent && report.violations_by_condition["goods"] == 1, "{damage}: {report:?}");
        assert!(report.violations[0].contains(expected), "{damage}: {report:?}");
        session.execute(&format!("UPDATE {} SET {repair} WHERE {}", place.0, place.1)).unwrap();
    }
    assert!(check().consistent);

    // An order that does not find an item which exists is no order that was to be rolled back.
    session.execute("DELETE FROM item WHERE i_id > 50").unwrap();
    let result = run(&mut trial);
    assert_eq!(result["status"], "failed", "{result:#}");
    let reason = result["reason"].as_str().unwrap();
    assert!(reason.contains("item not found") && reason.contains("not what the trial wants"), "{reason}");
}

/// A short trial.
fn run(trial: &mut Trial) -> Value {
    trial.bench.set("/measure_s", json!(1.0));
    trial.bench.call("run");
    trial.bench.result()
}

#[test]
fn replies_are_verified_and_those_that_do_not_fit_are_told() {
    let server = Mysqld::start();
    let mut trial = Trial::new("mysql", server.endpoint());
    let system = MysqlSystem::open(&trial.spec, trial.workload()).unwrap();
    trial.load(&system);
    let result = run(&mut trial);
    assert!(result["verified"].as_u64() > Some(20), "{result:#}");
    assert_eq!((&result["verified"], &result["verify_failed"]), (&result["committed"], &json!(0)));
    // Credit that there is not: displayed by New-Order and Payment.
    let mut session = system.server.connect(Use::Bulk).unwrap();
    session.execute("UPDATE customer SET c_credit = 'XX'").unwrap();
    let result = run(&mut trial);
    assert!(result["verify_failed"].as_u64() > Some(10), "{result:#}");
    assert!(result["flags"].as_array().unwrap().contains(&json!("verify_failed")), "{result:#}");
}

#[test]
fn a_terminal_has_no_more_statements_than_mysqld_is_configured_for() {
    let server = Mysqld::start();
    let trial = Trial::new("mysql", server.endpoint());
    let system = MysqlSystem::open(&trial.spec, trial.workload()).unwrap();
    trial.load(&system);
    let _terminal = system.connect(0..1).unwrap();
    let mut session = system.server.connect(Use::Bulk).unwrap();
    let query =
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'PREPARED_STMT_COUNT'";
    let statements: Option<String> = session.query_first(query).unwrap();
    let statements: u64 = statements.unwrap().parse().unwrap();
    assert!((30..=STATEMENTS_OF_TERMINAL).contains(&statements), "{statements}");
}
