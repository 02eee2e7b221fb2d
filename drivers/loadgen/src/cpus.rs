//! CPU sets: parsing, pinning and the CPU time that this process used.

use std::fmt;
use std::time::Duration;

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};

/// A non-empty, sorted list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// Parses a list as in `taskset -c`, for example `0-1,3`.
    ///
    /// # Errors
    /// A message without the value itself: the caller names it.
    pub fn parse(text: &str) -> Result<CpuList, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = parse_cpu(first)?;
            let last = parse_cpu(last)?;
            if last < first {
                return Err(format!("the range {part} runs backwards"));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        let allowed = allowed_cpus();
        match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => Err(format!("CPU {cpu} is not available to this process (available: {})", CpuList(allowed))),
            None => Ok(CpuList(cpus)),
        }
    }

    /// Every CPU that this process may run on.
    pub fn available() -> CpuList {
        CpuList(allowed_cpus())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Pins the calling thread and every thread that it starts from now on.
    ///
    /// # Errors
    /// The operating system's refusal.
    pub fn pin(&self) -> std::io::Result<()> {
        let mut set = CpuSet::new();
        for &cpu in &self.0 {
            set.set(cpu);
        }
        Ok(rustix::thread::sched_setaffinity(None, &set)?)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(usize::to_string).collect();
        formatter.write_str(&names.join(","))
    }
}

fn parse_cpu(text: &str) -> Result<usize, String> {
    let cpu: usize = text.trim().parse().map_err(|_| format!("{text:?} is not a CPU number"))?;
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("CPU {cpu} is beyond {}", CpuSet::MAX_CPU - 1));
    }
    Ok(cpu)
}

fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        // Without the call every number is taken at its word; pinning then reports what is wrong.
        Err(_) => (0..CpuSet::MAX_CPU).collect(),
    }
}

/// User plus system CPU time of all threads of this process since it started.
pub fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_without_repetition() {
        assert_eq!(CpuList::parse("0,0-0").unwrap().count(), 1);
        assert_eq!(CpuList::parse("0").unwrap().to_string(), "0");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a", "1-", "-1", "0,,0", "99999", "1-0"] {
            assert!(CpuList::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn threads_started_by_a_pinned_thread_stay_on_its_cpus() {
        let last = CpuList(allowed_cpus().into_iter().rev().take(1).collect());
        let seen = std::thread::spawn(move || {
            last.pin().unwrap();
            (last.0.clone(), std::thread::spawn(allowed_cpus).join().unwrap())
        });
        let (wanted, allowed) = seen.join().unwrap();
        assert_eq!(allowed, wanted);
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = process_cpu_time();
        let mut sum = 0_u64;
        for i in 0..5_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(i));
        }
        assert!(process_cpu_time() > before);
    }
}
