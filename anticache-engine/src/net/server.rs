//! The server: an acceptor, and an event loop in each partition's thread.
//!
//! A client says in its hello which partition it wants to talk to; after the handshake (`acceptor.rs`) its connection is handed to that partition's
//! thread (`event_loop.rs`): on the way of a transaction nothing is shared.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::acceptor::{Acceptor, PartitionHandle};
use super::event_loop::{Common, EventLoop};
use super::handshake::Greeting;
use super::keeper::{KeeperPort, KeeperThread, Message, Teller};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::durability::recovery::{self, Opened, Site, read_schema};
use crate::error::{CatalogError, StartError};
use crate::io::files::{Files, KernelFiles};
use crate::procedure::ProcedureSet;
use crate::secret::Secret;

/// A running server. Dropping it without [`Server::stop`] leaves its threads running until the process ends.
pub struct Server {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<Arc<OwnedFd>>,
    keeper: Sender<Message>,
}

/// Wakes a thread that waits for this eventfd.
pub(super) fn wake(event: &OwnedFd) {
    // The counter can only be full when the loop has been woken already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

impl Server {
    /// Starts the partitions and listens.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
        Self::start_on(&files, config, ProcedureSet::for_catalog)
    }

    /// As [`Server::start`], with any files and procedures.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_on(
        files: &Arc<dyn Files>,
        config: &Config,
        procedures: impl FnOnce(&Catalog) -> Result<ProcedureSet, CatalogError>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let (schema, catalog) = read_schema(&config.schema)?;
        config.check_against(&catalog)?;
        let procedures = procedures(&catalog)?;
        let secret = config.secret_file.as_deref().map(Secret::from_file).transpose()?;
        rustix::thread::disable_transparent_huge_pages(!config.huge_pages)
            .map_err(|error| StartError::system("switch huge pages")(error.into()))?;
        let listener =
            TcpListener::bind(config.listen).map_err(StartError::system(format!("listen on {}", config.listen)))?;
        let address = listener.local_addr().map_err(StartError::system("ask for the address listened on"))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicU64::new(0));
        let site = Site { files, config, catalog: &catalog, schema: &schema, procedures: &procedures };
        let Opened { keeper, coordinator, partitions } = site.open()?;
        let common = Common { stopping: Arc::clone(&stopping), config: config.clone(), _lock: keeper.lock() };
        let (to_keeper, inbox) = channel();
        let (mut wakers, mut handles, mut loops, mut tellers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (id, partition) in partitions.into_iter().enumerate() {
            if partition.counters().recovery_us > 0 {
                eprintln!("anticached: {}", recovery::describe(&partition));
            }
            let (orders, ordered) = channel();
            let (sender, receiver) = channel();
            let event = new_event()?;
            wakers.push(Arc::clone(&event));
            handles.push(PartitionHandle { connections: sender, wake: Arc::clone(&event) });
            tellers.push(Teller { orders, wake: Arc::clone(&event) });
            let port = KeeperPort::new(to_keeper.clone(), ordered, config.snapshot_log_bytes);
            let refused = (id == 0).then(|| Arc::clone(&refused));
            let event_loop = EventLoop::new(partition, &coordinator, port, receiver, event, common.clone(), refused)
                .map_err(StartError::system("set up an event loop"))?;
            loops.push(event_loop);
        }
        let greeting = Greeting { partitions: config.partitions, procedures: procedures.names(), secret };
        let stop = new_event()?;
        let (ends, max_connections) = (Arc::clone(&stopping), config.max_connections as usize);
        let acceptor = Acceptor::new(listener, handles, greeting, ends, &stop, refused, max_connections)
            .map_err(StartError::system("set up the acceptor"))?;
        wakers.push(stop);
        let keeper = KeeperThread::new(keeper, &coordinator, inbox, tellers, config);
        let mut server = Self { address, stopping, threads: Vec::new(), wakers, keeper: to_keeper };
        let cpu_of = |n: usize| (!config.cpus.is_empty()).then(|| config.cpus[n % config.cpus.len()]);
        for (id, event_loop) in loops.into_iter().enumerate() {
            server.spawn(format!("partition-{id}"), cpu_of(id), move || event_loop.run())?;
        }
        server.spawn("keeper".to_owned(), cpu_of(0), move || keeper.run())?;
        server.spawn("acceptor".to_owned(), cpu_of(0), move || acceptor.run())?;
        Ok(server)
    }

    /// Starts one of the threads, or ends those started before.
    fn spawn(
        &mut self,
        name: String,
        cpu: Option<usize>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        match spawn(name, cpu, work) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.end();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The address listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends gracefully: transactions under way are finished and answered, then the threads end.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wakers.iter().for_each(|event| wake(event));
        // It may have ended before.
        let _ = self.keeper.send(Message::Stop);
        for thread in self.threads.drain(..) {
            // A panic in a thread was reported when it happened.
            let _ = thread.join();
        }
    }

    /// Whether a thread has ended although nobody asked it to.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

fn new_event() -> Result<Arc<OwnedFd>, StartError> {
    let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
    let event = rustix::event::eventfd(0, flags);
    event.map(Arc::new).map_err(|error| StartError::system("create an eventfd")(error.into()))
}

fn spawn(name: String, cpu: Option<usize>, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    let what = format!("start thread {name}");
    let (started, outcome) = channel();
    let bound = move || {
        let binding = cpu.map_or(Ok(()), bind_to);
        let works = binding.is_ok();
        // Who started this thread waits for the outcome.
        let _ = started.send(binding);
        if works {
            work();
        }
    };
    let thread = std::thread::Builder::new().name(name).spawn(bound).map_err(StartError::system(what))?;
    match (outcome.recv(), cpu) {
        (Ok(Err(error)), Some(cpu)) => Err(StartError::system(format!("bind a thread to CPU {cpu}"))(error)),
        _ => Ok(thread),
    }
}

fn bind_to(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
