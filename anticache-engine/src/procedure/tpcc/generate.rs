//! Data and inputs as clause 4.3 and clauses 2.4.1 to 2.8.1 want them drawn.
//!
//! Everything follows from a seed: the rows of a table and warehouse, and the inputs of a terminal, are the same whatever system they are for and
//! in whatever order they are made. Scales below the specification's are for tests: fewer items, customers and orders, by the same rules.

mod inputs;
mod population;
mod random;

pub use inputs::{Input, Mix, Seeds, Terminal, TransactionKind};
pub use population::{Population, TpccTable};
pub use random::{Constants, Random, last_name};

/// Size of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Warehouses, numbered from 1.
    pub warehouses: i16,
    /// Items, and as many rows of STOCK per warehouse.
    pub items: i32,
    /// Customers of a district.
    pub customers_per_district: i32,
    /// Orders of a district when it was loaded; the customers are gone through in random order, again and again.
    pub orders_per_district: i32,
}

impl Scale {
    /// The specification's (clause 1.2.1, 4.3.3.1) for so many warehouses.
    pub const fn new(warehouses: i16) -> Self {
        Self { warehouses, items: 100_000, customers_per_district: 3000, orders_per_district: 3000 }
    }

    /// The oldest order of a district that is loaded undelivered: the newest 30 % are, 900 of 3000. Where there are more orders than customers, the
    /// database stands for one that has grown, and deliveries keep up with its orders: as many are undelivered as if there were one for each customer.
    pub const fn first_undelivered(&self) -> i32 {
        self.orders_per_district - smaller(self.orders_per_district, self.customers_per_district) * 3 / 10 + 1
    }

    /// Last names in use: 1000, or so many that each district has a customer of every name.
    const fn last_names(&self) -> i64 {
        if self.customers_per_district < 1000 { self.customers_per_district as i64 } else { 1000 }
    }
}

const fn smaller(one: i32, other: i32) -> i32 {
    if one < other { one } else { other }
}
