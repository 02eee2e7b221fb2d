//! Settings of the C library's allocator.

/// Largest buffer that is kept for reuse when it is freed; larger ones go back to the kernel at once.
const KEPT_BYTES: libc::c_int = 256 << 10;

/// Has freed memory returned to the kernel. What is not part of the memory budget (requests, replies, log groups) is large for moments only;
/// by default the allocator learns from each large buffer to keep the next ones, and a burst would stay resident for good.
pub fn return_freed_memory() {
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: mallopt only sets a number, under the allocator's own lock.
        let _ = unsafe { libc::mallopt(parameter, KEPT_BYTES) };
    }
}
