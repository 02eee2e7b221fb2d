//! A server in this process whose procedures read and append to lists, on any partitions in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anticache_engine::client::Client;
use anticache_engine::config::Config;
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::net::server::Server;
use anticache_engine::procedure::{FirstTuple, Participants, Procedure, ProcedureSet};
use anticache_engine::txn::{Abort, TxnContext};

use crate::support::database::{COLD, ROW_BYTES, SCHEMA, config};

/// A list that is full takes no more.
pub const MAX_ELEMENTS: usize = (ROW_BYTES - 16) / 4;
/// No partition answers later than this, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One access: a key, and the element to append or 0.
pub type Access = (i64, u32);

pub fn params(accesses: &[Access]) -> Vec<u8> {
    accesses.iter().flat_map(|(key, element)| key.to_le_bytes().into_iter().chain(element.to_le_bytes())).collect()
}

fn accesses(params: &[u8]) -> impl Iterator<Item = Access> {
    params.chunks_exact(12).map(|access| {
        let (key, element) = access.split_at(8);
        (i64::from_le_bytes(key.try_into().unwrap()), u32::from_le_bytes(element.try_into().unwrap()))
    })
}

/// The lists of a reply, as they were before the appends.
pub fn lists(reply: &[u8]) -> Vec<Vec<u32>> {
    let mut words = reply.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let mut lists = Vec::new();
    while let Some(length) = words.next() {
        lists.push(words.by_ref().take(length as usize).collect());
    }
    lists
}

fn owners(params: &[u8], partitions: u32) -> Participants {
    let owner = |key: i64| key.rem_euclid(i64::from(partitions)) as u32;
    accesses(params).fold(Participants::OWN, |all, (key, _)| all.and(owner(key)))
}

/// Makes empty lists.
struct Create;

impl Procedure for Create {
    fn name(&self) -> &'static str {
        "create"
    }

    fn first_tuple<'call>(&'call self, _params: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        for (key, _) in accesses(params) {
            let mut row = vec![0; ROW_BYTES];
            row[..8].copy_from_slice(&key.to_le_bytes());
            txn.insert(COLD, &row)?;
        }
        Ok(())
    }
}

/// Reads lists, and appends to some of them.
struct Touch {
    partitions: u32,
}

impl Procedure for Touch {
    fn name(&self) -> &'static str {
        "touch"
    }

    fn first_tuple<'call>(&'call self, params: &'call [u8]) -> Option<FirstTuple<'call>> {
        Some(FirstTuple::whole(COLD, params.get(..8)?))
    }

    fn partitions(&self, params: &[u8], partitions: u32) -> Participants {
        owners(params, partitions)
    }

    fn execute(&self, txn: &mut TxnContext<'_>, params: &[u8]) -> Result<(), Abort> {
        let owner = |key: i64| key.rem_euclid(i64::from(self.partitions)) as u32;
        let mut found = Vec::new();
        for (key, element) in accesses(params) {
            let tuple = txn.at(owner(key))?.lookup(COLD, &key.to_le_bytes()).ok_or(Abort::user("no such list"))?;
            found.push((key, element, tuple));
        }
        for (key, element, tuple) in found {
            let txn = txn.at(owner(key))?;
            let row = txn.row(tuple)?;
            let count = u64::from_le_bytes(row[8..16].try_into().unwrap()) as usize;
            let list = row[16..16 + 4 * count].to_vec();
            txn.reply(&(count as u32).to_le_bytes());
            txn.reply(&list);
            if element != 0 {
                if count == MAX_ELEMENTS {
                    return Err(Abort::user("the list is full"));
                }
                txn.update(tuple, 16 + 4 * count, &element.to_le_bytes())?;
                txn.update(tuple, 8, &(count as u64 + 1).to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// Keeps its partition busy until the gate opens.
struct Hold {
    gate: Arc<AtomicBool>,
    holding: Arc<AtomicBool>,
}

impl Procedure for Hold {
    fn name(&self) -> &'static str {
        "hold"
    }

    fn first_tuple<'call>(&'call self, _params: &'call [u8]) -> Option<FirstTuple<'call>> {
        None
    }

    fn execute(&self, _txn: &mut TxnContext<'_>, _params: &[u8]) -> Result<(), Abort> {
        self.holding.store(true, Ordering::SeqCst);
        while !self.gate.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

pub const CREATE: u16 = 0;
pub const TOUCH: u16 = 1;
pub const HOLD: u16 = 2;

pub struct Site {
    pub server: Server,
    pub gate: Arc<AtomicBool>,
    /// Whether a partition has come to the gate.
    pub holding: Arc<AtomicBool>,
    pub partitions: u32,
    _directory: tempfile::TempDir,
}

impl Site {
    /// With `keys` empty lists.
    pub fn start(partitions: u32, keys: i64, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_on(&(Arc::new(KernelFiles::new()) as Arc<dyn Files>), partitions, keys, change)
    }

    pub fn start_on(files: &Arc<dyn Files>, partitions: u32, keys: i64, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut config = config(directory.path(), u64::from(partitions) << 20);
        config.partitions = partitions;
        std::fs::write(&config.schema, SCHEMA).unwrap();
        change(&mut config);
        let (gate, holding) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let hold = Hold { gate: Arc::clone(&gate), holding: Arc::clone(&holding) };
        let touch = Touch { partitions };
        let procedures: Vec<Box<dyn Procedure>> = vec![Box::new(Create), Box::new(touch), Box::new(hold)];
        let server = Server::start_on(files, &config, |_| Ok(ProcedureSet::new(procedures))).unwrap();
        let site = Self { server, gate, holding, partitions, _directory: directory };
        let mut client = site.client();
        for partition in 0..i64::from(partitions) {
            let own: Vec<Access> =
                (0..keys).filter(|key| key % i64::from(partitions) == partition).map(|key| (key, 0)).collect();
            for some in own.chunks(50) {
                client.call(partition as u32, CREATE, &params(some)).unwrap();
            }
        }
        site
    }

    pub fn client(&self) -> Client {
        let mut client = Client::connect(self.server.address()).unwrap();
        client.set_timeout(Some(PATIENCE)).unwrap();
        client
    }
}
