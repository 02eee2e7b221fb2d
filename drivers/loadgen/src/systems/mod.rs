//! One adapter per system under test.

pub mod anticache;
pub mod mysql;
pub mod mysql_memcached;
pub mod null;
