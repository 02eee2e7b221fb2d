//! Finds out whether something makes a system call.
//!
//! What makes the unsafe code here sound: the copy of the process has one thread, and does nothing but `work` and to end. The handler of the signal
//! reads what the kernel has put on its stack, stores to memory that both processes share for as long as either runs, and ends the process.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// No system call was made.
const NONE: i32 = -1;
/// Where `si_syscall` is in the kernel's `siginfo_t` of a 64-bit system, which the C library's type has no name for.
const NUMBER_OFFSET: usize = 24;

/// Where the copy says what it has done.
static REPORT: AtomicPtr<AtomicI32> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn refused(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: `info` is the kernel's, whole and aligned; the report was set before the filter (module invariant).
    unsafe {
        let number = info.cast::<u8>().add(NUMBER_OFFSET).cast::<i32>().read();
        (*REPORT.load(Ordering::SeqCst)).store(number, Ordering::SeqCst);
        libc::_exit(0);
    }
}

/// Has the kernel send this thread a signal in place of every system call but one to end the process, and the one `allowed`.
fn refuse_all(allowed: libc::c_long) {
    let ld = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let jeq = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        // The number is the first field of what a filter is given.
        step(ld, 0, 0),
        step(jeq, 2, libc::SYS_exit_group as u32),
        step(jeq, 1, allowed as u32),
        step(ret, 0, libc::SECCOMP_RET_TRAP),
        step(ret, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the action is whole, its handler a function of the form that SA_SIGINFO asks for; the filter is copied before prctl returns.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = refused as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0, "no filter");
    }
}

/// Does `work` in a copy of this process; the number of the first system call that it makes, if it makes one. The memory of this process stays as it
/// was. `allowed` is the number of a system call that does not count.
pub(super) fn first_call(allowed: Option<libc::c_long>, work: impl FnOnce()) -> Option<i32> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses; after `fork` the copy does nothing that needs other threads (module invariant).
    unsafe {
        let size = size_of::<AtomicI32>();
        let page = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let report = page.cast::<AtomicI32>();
        // What a copy leaves that ends in another way.
        (*report).store(i32::MIN, Ordering::SeqCst);
        match libc::fork() {
            0 => {
                REPORT.store(report, Ordering::SeqCst);
                refuse_all(allowed.unwrap_or(libc::SYS_exit_group));
                work();
                (*report).store(NONE, Ordering::SeqCst);
                libc::_exit(0);
            }
            copy => {
                let mut status = 0;
                assert_eq!(libc::waitpid(copy, &mut status, 0), copy);
                let number = (*report).load(Ordering::SeqCst);
                libc::munmap(page, size);
                assert!(libc::WIFEXITED(status) && number != i32::MIN, "the copy has not ended as it should: {status}");
                (number != NONE).then_some(number)
            }
        }
    }
}

#[test]
fn a_call_is_found_and_named() {
    assert_eq!(first_call(None, || {}), None);
    let numbers: Vec<u64> = (0..1000).collect();
    assert_eq!(first_call(None, || assert_eq!(std::hint::black_box(&numbers).iter().sum::<u64>(), 499_500)), None);
    let getppid = || {
        // SAFETY: it has no conditions.
        std::hint::black_box(unsafe { libc::getppid() });
    };
    assert_eq!(first_call(None, getppid), Some(libc::SYS_getppid as i32));
    assert_eq!(first_call(Some(libc::SYS_getppid), getppid), None);
    let large = || drop(std::hint::black_box(Vec::<u8>::with_capacity(256 << 20)));
    assert_eq!(first_call(None, large), Some(libc::SYS_mmap as i32));
}
