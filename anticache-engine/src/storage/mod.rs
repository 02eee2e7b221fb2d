//! Memory-resident storage of a partition: tuples, variable-length data, indexes, undo log, and the accounting of what they occupy.

pub mod backing;
pub mod hash_index;
pub mod index;
pub mod meter;
pub mod ordered_index;
pub mod region;
pub mod table;
pub mod tuples;
pub mod undo;
pub mod var_heap;
