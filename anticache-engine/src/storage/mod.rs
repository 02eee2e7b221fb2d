//! Memory-resident storage of a partition: tuples, indexes, undo log, and the accounting of what they occupy.

pub mod hash_index;
pub mod ordered_index;
pub mod region;
pub mod table;
pub mod tuples;
pub mod undo;
