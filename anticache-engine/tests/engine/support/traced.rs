//! Counts the system calls of a thread of a child, by the kernel's account, as a debugger does.
//!
//! What makes the unsafe code here sound: only this thread traces that one, each request is made while it is stopped, as `waitpid` said, and the only
//! memory that the kernel writes to lives longer than the request.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Pid;

/// The stop after [`libc::PTRACE_INTERRUPT`], in the upper half of a status.
const EVENT_STOP: i32 = 128;
/// The stop is at a system call.
const CALL: i32 = libc::SIGTRAP | 0x80;
/// The first byte of a system call's description when it begins.
const BEGINS: u64 = 1;

/// The thread of a process that has this name.
pub fn thread(process: Pid, name: &str) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let named = |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap().trim() == name;
    let task = tasks.map(|task| task.unwrap().path()).find(named).unwrap_or_else(|| panic!("no thread {name}"));
    task.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

fn request(what: libc::c_uint, thread: i32, data: libc::c_long) {
    // SAFETY: none of the requests made with this writes to this process's memory.
    let made = unsafe { libc::ptrace(what, thread, null_mut::<libc::c_void>(), data) };
    assert_eq!(made, 0, "tracing: {}", std::io::Error::last_os_error());
}

/// Whether the thread, which stops at a system call, is at its beginning.
fn begins(thread: i32) -> bool {
    let mut description = [0u64; 16];
    let size = size_of_val(&description);
    // SAFETY: the kernel writes at most `size` bytes to the description.
    let told = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, description.as_mut_ptr()) };
    assert!(told > 0, "tracing: {}", std::io::Error::last_os_error());
    description[0] & 0xFF == BEGINS
}

/// How many system calls a thread makes while `work` is done by another one here; what it has begun before does not count.
pub fn calls_during(thread: i32, work: impl FnOnce() + Send) -> u64 {
    let is_done = AtomicBool::new(false);
    request(libc::PTRACE_SEIZE, thread, libc::PTRACE_O_TRACESYSGOOD.into());
    request(libc::PTRACE_INTERRUPT, thread, 0);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // Also when it panics: the tracer must come to its end.
            struct Done<'done>(&'done AtomicBool);
            impl Drop for Done<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
            let _done = Done(&is_done);
            work();
        });
        let calls = follow(thread, &is_done);
        worker.join().unwrap();
        calls
    })
}

fn follow(thread: i32, is_done: &AtomicBool) -> u64 {
    let (mut calls, mut interrupted) = (0, false);
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes the status.
        let stopped = unsafe { libc::waitpid(thread, &mut status, libc::__WALL | libc::WNOHANG) };
        assert!(stopped >= 0 && (stopped == 0 || libc::WIFSTOPPED(status)), "the thread has ended");
        if stopped == 0 {
            if is_done.load(Ordering::SeqCst) && !interrupted {
                request(libc::PTRACE_INTERRUPT, thread, 0);
                interrupted = true;
            }
            std::thread::yield_now();
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let forwarded = match (signal, status >> 16) {
            (_, EVENT_STOP) if interrupted => {
                request(libc::PTRACE_DETACH, thread, 0);
                return calls;
            }
            (_, EVENT_STOP) => 0,
            (CALL, _) => {
                calls += u64::from(begins(thread));
                0
            }
            (signal, _) => signal,
        };
        request(libc::PTRACE_SYSCALL, thread, forwarded.into());
    }
}
