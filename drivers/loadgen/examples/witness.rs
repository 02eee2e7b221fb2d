//! Writes numbers that grow, and remembers which of them a system acknowledged: for tests that take its power away.
//!
//! `witness SPEC.json SECONDS OUT.json`: terminal `t` updates field 0 of record `t` and of nothing else, with 1, 2, 3 …
//! as text padded to the field's length, until the system fails or the seconds are over. OUT.json then holds, per
//! record, `[last number acknowledged, last number sent]`: what the system holds after a crash must lie between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use loadgen::spec::Spec;
use loadgen::system::{self, Outcome, System};
use loadgen::workload::{Transaction, Workload};
use loadgen::ycsb::YcsbTransaction;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [spec, seconds, out] = arguments.as_slice() else {
        anyhow::bail!("usage: witness SPEC.json SECONDS OUT.json");
    };
    let spec = Spec::read(Path::new(spec), None)?;
    let system = system::open(&spec, &Workload::new(&spec))?;
    let field_bytes = match &spec.benchmark {
        loadgen::spec::BenchmarkSpec::Ycsb(ycsb) => ycsb.field_bytes as usize,
    };
    let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    println!("witness: {} terminals", spec.terminals);
    let seen: Vec<(u32, [u64; 2])> = std::thread::scope(|scope| {
        let system = system.as_ref();
        let terminals = (0..spec.terminals)
            .map(|terminal| (terminal, scope.spawn(move || write(system, terminal, field_bytes, end))));
        let started: Vec<_> = terminals.collect();
        started.into_iter().filter_map(|(terminal, thread)| Some((terminal, thread.join().ok()?))).collect()
    });
    let seen: BTreeMap<u32, [u64; 2]> = seen.into_iter().collect();
    std::fs::write(PathBuf::from(out), serde_json::to_vec(&seen)?)?;
    Ok(())
}

/// Writes until the end or the first error; returns the last number acknowledged and the last one sent.
fn write(system: &dyn System, terminal: u32, field_bytes: usize, end: Instant) -> [u64; 2] {
    let (mut acknowledged, mut sent) = (0, 0);
    let Ok(mut connection) = system.connect(terminal..terminal + 1) else {
        return [acknowledged, sent];
    };
    let mut completions = Vec::new();
    while Instant::now() < end {
        sent += 1;
        let value = format!("{sent:0>field_bytes$}");
        let update = YcsbTransaction::Update { key: i64::from(terminal), field: 0, value: value.as_bytes() };
        completions.clear();
        let done = connection
            .submit(terminal, &Transaction::Ycsb(update))
            .and_then(|()| if completions.is_empty() { connection.wait(&mut completions) } else { Ok(()) });
        if done.is_err() || completions.iter().any(|completion| completion.outcome != Outcome::Committed) {
            break;
        }
        acknowledged = sent;
    }
    [acknowledged, sent]
}
