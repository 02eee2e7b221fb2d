//! TPC-C's five transactions in SQL (revision 5.11, clauses 2.4 to 2.8): prepared statements, serializable, one
//! transaction per call.
//!
//! **They leave the rows that the engine's procedures leave**, and show their terminal the same: what a terminal
//! displays is put together in the layout of the procedures' replies ([`anticache_engine::procedure::tpcc`]), so that a
//! test can compare both.
//!
//! **Order of locks.** At this isolation level every read takes shared locks, so a row that is going to be changed is
//! read with `FOR UPDATE`, or after its `UPDATE`: two transactions that first share a row and then both want to change
//! it would be a deadlock. And all transactions lock in one order, from rows that few others want to rows that many
//! want, which are held shortest that way:
//!
//! | | CUSTOMER | DISTRICT | STOCK, by key | ORDERS, ORDER_LINE | WAREHOUSE |
//! |---|---|---|---|---|---|
//! | New-Order | 1 shared | 2 | 3 | 4 inserted | 5 shared |
//! | Payment | 1 | 2 | | | 3 |
//! | Stock-Level | | 1 shared | 3 shared | 2 shared | |
//!
//! Delivery and Order-Status go from orders over lines to the customer; they touch no district, stock or warehouse, so
//! they close no circle with the others either, but for gaps: Delivery locks the gap in front of a district's oldest
//! new order, which is where the district before it enters its next one. ITEM is only ever read. The deadlocks that are
//! left are rolled back by mysqld, counted and repeated with the same input.

mod delivery;
pub mod load;
mod new_order;
mod order_status;
mod payment;
pub mod prewarm;
pub mod reply;
pub mod statements;
mod stock_level;

use anticache_engine::catalog::TableId;
use anticache_engine::procedure::tpcc::generate::Input;
use anticache_engine::procedure::tpcc::params::CustomerBy;
use mysql::{Conn, Params};

use super::rows::Cell;
use super::session::{Ended, Failure, Session};
use crate::system::{Completion, Connection, Outcome, SystemError};
use crate::tpcc::Tpcc;
use crate::workload::Transaction;

use reply::Reply;
use statements::{Fields, Select, Statements};

const NO_WAREHOUSE: Failure = Failure::RollBack("no such warehouse");
const NO_DISTRICT: Failure = Failure::RollBack("no such district");
const NO_CUSTOMER: Failure = Failure::RollBack("no such customer");

/// Copies of rows beside MySQL, by primary key: a cache, or none. Whatever is done between [`Copies::begin`] and
/// [`Copies::publish`] is of one attempt of one transaction.
pub trait Copies: Send {
    /// Whether there are copies at all: then whole rows are read where some columns would do.
    const WHOLE_ROWS: bool;

    /// Forgets what an attempt that was rolled back wanted.
    fn begin(&mut self);

    /// Gets the copies of these rows, all at once, for [`Copies::take`].
    ///
    /// # Errors
    /// When the cache does not answer.
    fn look_up(&mut self, rows: &[(TableId, Vec<i64>)]) -> Result<(), SystemError>;

    /// The copy of a row that was looked up, its cells in the order of the table's columns.
    fn take(&mut self, table: TableId, key: &[i64]) -> Option<Vec<Cell>>;

    /// Notes a row that had no copy.
    fn fill(&mut self, table: TableId, cells: &[Cell]);

    /// Notes a row as it is after the transaction.
    fn write(&mut self, table: TableId, cells: Vec<Cell>);

    /// Notes a row that is gone after the transaction.
    fn delete(&mut self, table: TableId, key: &[i64]);

    /// After the commit: brings the copies of all rows that were noted up to date.
    ///
    /// # Errors
    /// As [`Copies::look_up`].
    fn publish(&mut self) -> Result<(), SystemError>;
}

/// MySQL alone.
pub struct NoCopies;

impl Copies for NoCopies {
    const WHOLE_ROWS: bool = false;

    fn begin(&mut self) {}

    fn look_up(&mut self, _rows: &[(TableId, Vec<i64>)]) -> Result<(), SystemError> {
        Ok(())
    }

    fn take(&mut self, _table: TableId, _key: &[i64]) -> Option<Vec<Cell>> {
        None
    }

    fn fill(&mut self, _table: TableId, _cells: &[Cell]) {}

    fn write(&mut self, _table: TableId, _cells: Vec<Cell>) {}

    fn delete(&mut self, _table: TableId, _key: &[i64]) {}

    fn publish(&mut self) -> Result<(), SystemError> {
        Ok(())
    }
}

/// One terminal's connection.
pub struct TpccConnection<C> {
    session: Session,
    statements: Statements,
    copies: C,
    reply: Reply,
    tpcc: Tpcc,
    completed: Option<Completion>,
}

impl<C: Copies> TpccConnection<C> {
    /// Prepares all statements on a session for transactions.
    ///
    /// # Errors
    /// What mysqld refuses; [`SystemError::Data`] when the schema lacks something of TPC-C's.
    pub fn open(mut session: Session, tpcc: &Tpcc, copies: C) -> Result<TpccConnection<C>, SystemError> {
        let statements = Statements::prepare(&mut session, &tpcc.catalog, C::WHOLE_ROWS)?;
        Ok(TpccConnection { session, statements, copies, reply: Reply::default(), tpcc: tpcc.clone(), completed: None })
    }

    /// Executes one transaction until it commits or its logic rolls it back.
    ///
    /// # Errors
    /// What repeating cannot mend.
    pub fn execute(&mut self, input: &Input, retries: &mut Vec<&'static str>) -> Result<Outcome, SystemError> {
        let (sql, copies, reply) = (&self.statements, &mut self.copies, &mut self.reply);
        let ended = self.session.transaction(retries, |connection| {
            copies.begin();
            reply.clear();
            let mut transaction = Attempt { connection, sql, copies: &mut *copies, reply: &mut *reply };
            match input {
                Input::NewOrder(input) => new_order::execute(&mut transaction, input),
                Input::Payment(input) => payment::execute(&mut transaction, input),
                Input::OrderStatus(input) => order_status::execute(&mut transaction, input),
                Input::Delivery(input) => delivery::execute(&mut transaction, input),
                Input::StockLevel(input) => stock_level::execute(&mut transaction, input),
            }
        })?;
        match ended {
            Ended::Committed(()) => {
                self.copies.publish()?;
                Ok(Outcome::Committed)
            }
            Ended::RolledBack(reason) => Ok(Outcome::Aborted(reason.to_owned())),
        }
    }

    /// What the terminal of the last committed transaction displays, in the layout of the engine's reply.
    pub fn reply(&self) -> &[u8] {
        self.reply.as_slice()
    }
}

impl<C: Copies> Connection for TpccConnection<C> {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Tpcc(input) = transaction else {
            return Err(SystemError::Data("a transaction of another benchmark on a connection for TPC-C".to_owned()));
        };
        let mut retries = Vec::new();
        let outcome = self.execute(input, &mut retries)?;
        let ended = match &outcome {
            Outcome::Committed => Ok(self.reply.as_slice()),
            Outcome::Aborted(reason) => Err(reason.as_str()),
        };
        let verified =
            self.tpcc.verify(input, ended).map_err(|problem| SystemError::Data(format!("mysqld: {problem}")))?;
        // Copies of an order and of its lines need not be of the same moment, so that of these replies nothing is known.
        let verified = verified.filter(|_| !(C::WHOLE_ROWS && matches!(input, Input::OrderStatus(_))));
        self.completed = Some(Completion { terminal, outcome, verified, retries });
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        completions.extend(self.completed.take());
        Ok(())
    }
}

/// One attempt of a transaction.
struct Attempt<'a, C> {
    connection: &'a mut Conn,
    sql: &'a Statements,
    copies: &'a mut C,
    reply: &'a mut Reply,
}

impl<'a, C: Copies> Attempt<'a, C> {
    /// The first row of a query.
    fn first(&mut self, select: &'a Select, parameters: impl Into<Params>) -> Result<Option<Fields<'a>>, Failure> {
        select.first(self.connection, parameters)
    }

    /// A row by its primary key, from its copy if it has one; else the copy is made.
    fn read_through(&mut self, select: &'a Select, key: &[i64]) -> Result<Option<Fields<'a>>, Failure> {
        if let Some(cells) = self.copies.take(select.table, key) {
            return Ok(Some(select.fields(cells)));
        }
        let found = select.first(self.connection, key.to_vec())?;
        if let Some(row) = &found {
            self.copies.fill(select.table, row.cells());
        }
        Ok(found)
    }

    /// The number of a customer. By last name: all who have it, ordered by first name, the one at position ⌈n/2⌉
    /// (clauses 2.5.2.2, 2.6.2.2).
    fn customer_number(&mut self, w_id: i16, d_id: i8, by: &CustomerBy) -> Result<i32, Failure> {
        match by {
            CustomerBy::Id(c_id) => Ok(*c_id),
            CustomerBy::LastName(name) => {
                let named = self.sql.customers_by_name.all(self.connection, (w_id, d_id, name.as_slice()))?;
                let middle = named.len().div_ceil(2).checked_sub(1).ok_or(NO_CUSTOMER)?;
                Ok(named[middle].number("c_id") as i32)
            }
        }
    }
}
