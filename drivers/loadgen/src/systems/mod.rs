//! One adapter per system under test, or per kind of them.

pub mod anticache;
pub mod memcached_alone;
pub mod mysql;
pub mod mysql_memcached;
pub mod null;
mod sockets;
mod terminals;

use crate::system::Adapter;

/// Every adapter; a new one is a module and an entry here (CONTRIBUTING.md).
pub static ADAPTERS: [&Adapter; 5] =
    [&mysql::ADAPTER, &mysql_memcached::ADAPTER, &anticache::ADAPTER, &memcached_alone::ADAPTER, &null::ADAPTER];
