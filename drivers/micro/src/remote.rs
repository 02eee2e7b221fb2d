//! A server that runs trials for others, and who asks it: one line of JSON each way on a connection.
//!
//! The server is what a deployment starts: in its control group, on the server's CPUs, with its block file on the disk under test.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use loadgen::interrupt::Interrupt;
use serde_json::Value;

use crate::result::{MicroResult, PROGRAM};
use crate::spec::Request;
use crate::trial::{self, Place};

/// How long a connection may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Between looks at a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest request: a DDL and a few numbers.
const MOST_REQUEST_BYTES: u64 = 1 << 20;

/// Runs what is asked for, one after another, until SIGTERM.
///
/// # Errors
/// When the address cannot be listened on.
pub fn serve(place: &Place, listen: SocketAddr, interrupt: &Interrupt) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    listener.set_nonblocking(true)?;
    println!("{PROGRAM} ready on {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    while !interrupt.requested() {
        match listener.accept() {
            Ok((stream, from)) => {
                if let Err(error) = answer(stream, place, interrupt) {
                    eprintln!("{PROGRAM}: connection from {from}: {error:#}");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK_INTERVAL),
            Err(error) => eprintln!("{PROGRAM}: accept: {error}"),
        }
    }
    Ok(())
}

/// Runs one trial; it ends early when who asked for it is gone.
fn answer(mut stream: TcpStream, place: &Place, interrupt: &Interrupt) -> anyhow::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).take(MOST_REQUEST_BYTES).read_line(&mut line).context("no request")?;
    if line.is_empty() {
        return Ok(()); // somebody asked whether the server is there
    }
    let result = match serde_json::from_str::<Request>(&line) {
        Err(error) => MicroResult::failed(format!("the server does not understand the request: {error}")),
        Ok(request) => match request.check() {
            Err(problem) => MicroResult::failed(problem.in_file(std::path::Path::new("request")).to_string()),
            Ok(()) => run_for(&stream, &request, place, interrupt)?,
        },
    };
    stream.write_all((serde_json::to_string(&result)? + "\n").as_bytes()).context("the result is not wanted")
}

fn run_for(stream: &TcpStream, request: &Request, place: &Place, interrupt: &Interrupt) -> anyhow::Result<MicroResult> {
    let gone = Arc::new(AtomicBool::new(false));
    let mut waiting = stream.try_clone()?;
    waiting.set_read_timeout(None)?;
    let watcher = std::thread::spawn({
        let gone = Arc::clone(&gone);
        move || {
            // Nothing more is sent: what ends the wait is the end of the connection.
            let _ = waiting.read(&mut [0; 1]);
            gone.store(true, Ordering::Relaxed);
        }
    });
    let result = trial::run(request, place, &|| interrupt.requested() || gone.load(Ordering::Relaxed));
    stream.shutdown(Shutdown::Read)?;
    let _ = watcher.join();
    Ok(result)
}

/// Has a server run a trial; whatever goes wrong is in the result.
pub fn ask(address: &str, request: &Request, interrupt: &Interrupt) -> Value {
    let asked = try_ask(address, request, interrupt);
    let failed = |reason: String| serde_json::to_value(MicroResult::failed(reason)).unwrap_or_default();
    match asked {
        Ok(Some(result)) => result,
        Ok(None) => failed("interrupted".to_owned()),
        Err(error) => failed(format!("{PROGRAM} at {address}: {error:#}")),
    }
}

fn try_ask(address: &str, request: &Request, interrupt: &Interrupt) -> anyhow::Result<Option<Value>> {
    let mut stream = TcpStream::connect(address).context("cannot connect")?;
    stream.write_all((serde_json::to_string(request)? + "\n").as_bytes())?;
    stream.set_read_timeout(Some(LOOK_INTERVAL))?;
    let (mut answers, mut line) = (BufReader::new(stream), Vec::new());
    loop {
        if interrupt.requested() {
            return Ok(None);
        }
        match answers.read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => return Ok(Some(serde_json::from_slice(&line).context("its answer")?)),
            Ok(_) => anyhow::bail!("it has ended the connection without a result"),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
