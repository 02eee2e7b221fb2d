//! Writes numbers that grow, and remembers which of them a system acknowledged: for tests that take its power away.
//!
//! `witness write SPEC.json OUT.json SECONDS`: terminal `t` updates field 0 of record `t` and of nothing else, with 1, 2, 3 …
//! as text padded to the field's length, until the system fails or the seconds are over. OUT.json then holds, per
//! record, `[last number acknowledged, last number sent]`: what the system holds after a crash must lie between them.
//!
//! `witness rows SPEC.json OUT.json`: field 0 of every record that the anti-caching engine holds, by key.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::catalog::row::{Value, values};
use anticache_engine::client::Client;
use anticache_engine::secret::Secret;
use anyhow::Context;
use loadgen::spec::{BenchmarkSpec, Spec};
use loadgen::system::{self, Outcome, System};
use loadgen::workload::{Transaction, Workload};
use loadgen::ycsb::YcsbTransaction;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["write", spec, out, seconds] => {
            let seen = write_all(&Spec::read(Path::new(spec), None)?, Duration::from_secs_f64(seconds.parse()?))?;
            std::fs::write(out, serde_json::to_vec(&seen)?)?;
        }
        ["rows", spec, out] => std::fs::write(out, serde_json::to_vec(&rows(&Spec::read(Path::new(spec), None)?)?)?)?,
        _ => anyhow::bail!("usage: witness write SPEC.json OUT.json SECONDS | witness rows SPEC.json OUT.json"),
    }
    Ok(())
}

fn rows(spec: &Spec) -> anyhow::Result<BTreeMap<i64, String>> {
    let schema = spec.schema.as_ref().context("the specification names no schema")?;
    let catalog = Catalog::from_sql(&std::fs::read_to_string(schema)?)?;
    let table = &catalog.tables()[0];
    let address: SocketAddr = spec.endpoint.anticache_address.as_deref().context("no engine")?.parse()?;
    let secret = spec.endpoint.anticache_secret.as_ref().map(|secret| Secret::new(secret.reveal().as_bytes()));
    let mut client = Client::connect_with(address, secret.transpose()?.as_ref())?;
    let (mut rows, mut problem) = (BTreeMap::new(), None);
    for partition in 0..client.partitions() {
        client.scan(partition, 0, |row| match values(table, row).as_deref() {
            Ok([Value::Number(key), Value::Text(field), ..]) => {
                rows.insert(*key, String::from_utf8_lossy(field).into_owned());
            }
            other => problem = Some(format!("a row of {} bytes: {other:?}", row.len())),
        })?;
    }
    problem.map_or(Ok(rows), |problem| anyhow::bail!(problem))
}

fn write_all(spec: &Spec, duration: Duration) -> anyhow::Result<BTreeMap<u32, [u64; 2]>> {
    let system = system::open(spec, &Workload::new(spec))?;
    let BenchmarkSpec::Ycsb(ycsb) = &spec.benchmark else {
        anyhow::bail!("witness writes YCSB's records");
    };
    let (field_bytes, end) = (ycsb.field_bytes as usize, Instant::now() + duration);
    println!("witness: {} terminals", spec.terminals);
    Ok(std::thread::scope(|scope| {
        let system = system.as_ref();
        let terminals = (0..spec.terminals)
            .map(|terminal| (terminal, scope.spawn(move || write(system, terminal, field_bytes, end))));
        let started: Vec<_> = terminals.collect();
        started.into_iter().filter_map(|(terminal, thread)| Some((terminal, thread.join().ok()?))).collect()
    }))
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
