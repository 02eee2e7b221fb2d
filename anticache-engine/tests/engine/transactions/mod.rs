//! Transactions, alone and across partitions, against models.

mod admission;
mod faults;
mod model;
mod multi_model;
mod serializable;
mod tables;
