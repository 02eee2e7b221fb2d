//! Runs a workload on a drive in virtual time.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::workload::{Access, Accesses, Workload};
use super::{Drive, Event, Operation, Request, SECTOR_BYTES, ServiceTimes};

/// What a workload achieved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Reads or writes completed; flushes are not counted.
    pub operations: u64,
    /// From the start to the last completion.
    pub seconds: f64,
    /// Operations per second.
    pub iops: f64,
    /// 10^6 bytes per second.
    pub mb_s: f64,
    /// Times of reads or writes, from submission to completion.
    pub service: ServiceTimes,
    /// Times of flushes.
    pub flush_service: ServiceTimes,
}

/// The closed loop while it runs.
struct Loop {
    accesses: Accesses,
    /// No operation begins at this time or later.
    deadline_ns: u64,
    think_ns: u64,
    /// When the next operations begin.
    due_ns: VecDeque<u64>,
    under_way: BTreeMap<u64, (u64, Access)>,
    next_id: u64,
}

impl Loop {
    /// Submits what is due by now.
    fn submit(&mut self, drive: &mut Drive, now_ns: u64) {
        while self.due_ns.front().is_some_and(|due_ns| *due_ns <= now_ns) {
            self.due_ns.pop_front();
            let Some(access) = (now_ns < self.deadline_ns).then(|| self.accesses.next()).flatten() else { continue };
            let Access { operation, first_sector, sectors } = access;
            drive.submit(now_ns, Request { id: self.next_id, operation, first_sector, sectors });
            self.under_way.insert(self.next_id, (now_ns, access));
            self.next_id += 1;
        }
    }
}

/// Runs the workload on a drive that is at `start_ns` and to which nobody else submits requests.
///
/// # Errors
/// The workload's fault, if it has one ([`Workload::fault`]).
pub fn simulate(drive: &mut Drive, workload: &Workload, start_ns: u64) -> Result<Outcome, String> {
    if let Some(fault) = workload.fault() {
        return Err(fault);
    }
    let mut running = Loop {
        accesses: workload.accesses(),
        deadline_ns: workload.seconds.map_or(u64::MAX, |seconds| start_ns.saturating_add((seconds * 1e9) as u64)),
        think_ns: workload.think_ns,
        due_ns: vec![start_ns; workload.queue_depth].into(),
        under_way: BTreeMap::new(),
        next_id: 0,
    };
    let (mut service, mut flush_service) = (ServiceTimes::default(), ServiceTimes::default());
    let (mut operations, mut end_ns) = (0, start_ns);
    let mut events = Vec::new();
    drive.advance(start_ns, &mut events);
    running.submit(drive, start_ns);
    while !running.under_way.is_empty() || !running.due_ns.is_empty() {
        let next_ns = [drive.next_event_ns(), running.due_ns.front().copied()].into_iter().flatten().min();
        let Some(now_ns) = next_ns else { return Err("the drive fell asleep with requests under way".to_owned()) };
        events.clear();
        drive.advance(now_ns, &mut events);
        for event in &events {
            let Event::Completed { id, at_ns } = *event else { continue };
            let Some((began_ns, access)) = running.under_way.remove(&id) else { continue };
            let times = if access.operation == Operation::Flush { &mut flush_service } else { &mut service };
            times.record_ns(at_ns - began_ns);
            operations += u64::from(access.operation != Operation::Flush);
            end_ns = at_ns;
            running.due_ns.push_back(at_ns + running.think_ns);
        }
        running.submit(drive, now_ns);
    }
    let seconds = (end_ns - start_ns) as f64 / 1e9;
    let iops = if seconds > 0.0 { operations as f64 / seconds } else { 0.0 };
    let mb_s = iops * f64::from(workload.sectors) * SECTOR_BYTES as f64 / 1e6;
    Ok(Outcome { operations, seconds, iops, mb_s, service, flush_service })
}
