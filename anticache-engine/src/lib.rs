//! A main-memory OLTP engine with anti-caching.
