//! The memory budget of a partition.

/// Bytes that the data may use at a partition, and how many it uses: chunks of tuples, index buckets, Evicted Table entries, and the
/// fixed reservation for buffers. Everything is counted when it is taken from the kernel, whether or not it is filled.
#[derive(Debug, Clone, Copy)]
pub struct MemoryMeter {
    budget_bytes: u64,
    /// What may be used beyond the budget for a while.
    lent_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
}

impl MemoryMeter {
    /// A meter with `reserved_bytes` already used.
    pub fn new(budget_bytes: u64, reserved_bytes: u64) -> Self {
        Self { budget_bytes, lent_bytes: 0, used_bytes: reserved_bytes, peak_bytes: reserved_bytes }
    }

    /// Bytes that may be used.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The most bytes that were in use.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Whether `bytes` more fit.
    #[inline]
    pub fn fits(&self, bytes: usize) -> bool {
        self.used_bytes + bytes as u64 <= self.budget_bytes + self.lent_bytes
    }

    /// Whether more is used than allowed (indexes and the Evicted Table grow with every tuple, evicted or not).
    #[inline]
    pub fn is_over(&self) -> bool {
        self.used_bytes > self.budget_bytes + self.lent_bytes
    }

    /// Lets so many bytes be used beyond the budget, in place of those lent before.
    pub fn lend(&mut self, bytes: u64) {
        self.lent_bytes = bytes;
    }

    /// Bytes that may be used beyond the budget.
    pub fn lent_bytes(&self) -> u64 {
        self.lent_bytes
    }

    /// Counts bytes that are in use, whether or not they fit.
    pub fn take(&mut self, bytes: u64) {
        self.replace(0, bytes);
    }

    /// Counts bytes that are not in use any more.
    pub fn give_back(&mut self, bytes: u64) {
        self.replace(bytes, 0);
    }

    /// Counts `after` in place of `before`.
    #[inline]
    pub(super) fn replace(&mut self, before: u64, after: u64) {
        if before != after {
            self.used_bytes = self.used_bytes - before + after;
            self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        }
    }
}
