//! The server's side of the handshake (`net/frame.rs` describes it): bytes in, answers out, no sockets.

use super::frame::{ANY_PARTITION, HELLO_HEAD_BYTES, HELLO_MAGIC, PROTOCOL_VERSION};
use crate::secret::{NONCE_BYTES, Nonce, PROOF_BYTES, Secret, Side, to_hex};

/// What every handshake of a server needs to know.
#[derive(Debug)]
pub struct Greeting {
    /// Number of partitions.
    pub partitions: u32,
    /// Names of the procedures, in the order of their numbers.
    pub procedures: Vec<String>,
    /// What a client must know; `None` = anybody is welcome.
    pub secret: Option<Secret>,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this (nothing, when empty) and read on.
    Continue(Vec<u8>),
    /// Send this; the handshake is done, and the connection belongs to the partition, or ends when it only asked.
    Done(Vec<u8>, Option<u16>),
    /// Send this and close.
    Refused(Vec<u8>, Refusal),
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first bytes are those of something else.
    #[error("it does not speak this protocol")]
    Foreign,
    /// Another version of the protocol.
    #[error("protocol version {0}; this server speaks {PROTOCOL_VERSION}")]
    Version(u16),
    /// A partition that is not there.
    #[error("partition {wanted}; this server has {present}")]
    Partition {
        /// The number asked for.
        wanted: u16,
        /// How many there are.
        present: u32,
    },
    /// The proof is not one.
    #[error("wrong secret")]
    Secret,
}

#[derive(Debug)]
enum State {
    Head,
    Nonce { partition: u16 },
    Proof { partition: u16, client: Nonce, server: Nonce },
}

/// One connection's handshake. Its memory is fixed: [`Handshake::wanted`] never exceeds the longest message.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    received: [u8; LONGEST_BYTES],
    filled: usize,
    server_nonce: Nonce,
}

const LONGEST_BYTES: usize = 32;
const _: () =
    assert!(LONGEST_BYTES >= HELLO_HEAD_BYTES && LONGEST_BYTES >= NONCE_BYTES && LONGEST_BYTES >= PROOF_BYTES);

impl Handshake {
    /// A new one; the nonce must never have been used before.
    pub fn new(server_nonce: Nonce) -> Self {
        Self { state: State::Head, received: [0; LONGEST_BYTES], filled: 0, server_nonce }
    }

    /// How many bytes the present message lacks: read no more than this, what follows is for the partition.
    pub fn wanted(&self) -> usize {
        let whole = match self.state {
            State::Head => HELLO_HEAD_BYTES,
            State::Nonce { .. } => NONCE_BYTES,
            State::Proof { .. } => PROOF_BYTES,
        };
        whole - self.filled
    }

    /// Whether the client has sent anything.
    pub fn has_begun(&self) -> bool {
        self.filled > 0 || !matches!(self.state, State::Head)
    }

    /// Takes at most [`Handshake::wanted`] bytes.
    pub fn receive(&mut self, bytes: &[u8], greeting: &Greeting) -> Step {
        debug_assert!(bytes.len() <= self.wanted(), "more than was wanted");
        let end = self.filled + bytes.len();
        self.received[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
        if self.wanted() > 0 {
            return Step::Continue(Vec::new());
        }
        self.filled = 0;
        let message = self.received;
        match self.state {
            State::Head => self.head(&message, greeting),
            State::Nonce { partition } => self.nonce(partition, message, greeting),
            State::Proof { partition, client, server } => match &greeting.secret {
                Some(secret) if secret.verifies(&message[..PROOF_BYTES], Side::Client, partition, &client, &server) => {
                    let proof = secret.proof(Side::Server, partition, &client, &server);
                    welcome(partition, greeting, Some(&proof))
                }
                _ => refuse(Refusal::Secret),
            },
        }
    }

    fn head(&mut self, message: &[u8], greeting: &Greeting) -> Step {
        let version = u16::from_le_bytes([message[4], message[5]]);
        let partition = u16::from_le_bytes([message[6], message[7]]);
        if message[..4] != HELLO_MAGIC {
            return Step::Refused(Vec::new(), Refusal::Foreign);
        }
        if version != PROTOCOL_VERSION {
            return refuse(Refusal::Version(version));
        }
        if partition != ANY_PARTITION && u32::from(partition) >= greeting.partitions {
            return refuse(Refusal::Partition { wanted: partition, present: greeting.partitions });
        }
        self.state = State::Nonce { partition };
        Step::Continue(Vec::new())
    }

    fn nonce(&mut self, partition: u16, client: Nonce, greeting: &Greeting) -> Step {
        if greeting.secret.is_none() {
            return welcome(partition, greeting, None);
        }
        let server = self.server_nonce;
        self.state = State::Proof { partition, client, server };
        Step::Continue(message(&serde_json::json!({"challenge": to_hex(&server)})))
    }
}

fn welcome(partition: u16, greeting: &Greeting, proof: Option<&[u8; PROOF_BYTES]>) -> Step {
    let partition = (partition != ANY_PARTITION).then_some(partition);
    let mut answer = serde_json::json!({
        "partitions": greeting.partitions, "partition": partition, "procedures": greeting.procedures,
    });
    if let Some(proof) = proof {
        answer["proof"] = to_hex(proof).into();
    }
    Step::Done(message(&answer), partition)
}

fn refuse(why: Refusal) -> Step {
    Step::Refused(refusal(&why.to_string()), why)
}

/// The last message to a client that is refused.
pub(super) fn refusal(why: &str) -> Vec<u8> {
    message(&serde_json::json!({"error": why}))
}

fn message(json: &serde_json::Value) -> Vec<u8> {
    let text = json.to_string();
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::secret::{from_hex, new_nonce};

    fn greeting(secret: Option<&str>) -> Greeting {
        let secret = secret.map(|text| Secret::new(text.as_bytes()).unwrap());
        Greeting { partitions: 2, procedures: vec!["p".to_owned()], secret }
    }

    fn hello(partition: u16, nonce: &Nonce) -> Vec<u8> {
        [HELLO_MAGIC.as_slice(), &PROTOCOL_VERSION.to_le_bytes(), &partition.to_le_bytes(), nonce].concat()
    }

    /// Feeds bytes one message at a time, at most `piece` at once; returns the steps that say something.
    fn feed(handshake: &mut Handshake, mut bytes: &[u8], piece: usize, greeting: &Greeting) -> Vec<Step> {
        let mut said = Vec::new();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(handshake.wanted().min(piece).min(bytes.len()));
            let step = handshake.receive(now, greeting);
            bytes = later;
            let ended = !matches!(step, Step::Continue(_));
            if step != Step::Continue(Vec::new()) {
                said.push(step);
            }
            if ended {
                break;
            }
        }
        said
    }

    fn json(bytes: &[u8]) -> serde_json::Value {
        serde_json::from_slice(&bytes[4..]).unwrap()
    }

    #[test]
    fn both_sides_prove_that_they_know_the_secret() {
        let text = "the secret of this test";
        let (greeting, secret) = (greeting(Some(text)), Secret::new(text.as_bytes()).unwrap());
        for piece in [1, 3, 64] {
            let (client, server) = (new_nonce().unwrap(), new_nonce().unwrap());
            let mut handshake = Handshake::new(server);
            assert!(!handshake.has_begun());
            let said = feed(&mut handshake, &hello(1, &client), piece, &greeting);
            let [Step::Continue(challenge)] = said.as_slice() else { panic!("{said:?}") };
            assert_eq!(from_hex(json(challenge)["challenge"].as_str().unwrap()), Some(server));
            assert!(json(challenge).get("partitions").is_none(), "a stranger learns nothing");
            let proof = secret.proof(Side::Client, 1, &client, &server);
            let said = feed(&mut handshake, &proof, piece, &greeting);
            let [Step::Done(welcome, Some(1))] = said.as_slice() else { panic!("{said:?}") };
            let proof = from_hex(json(welcome)["proof"].as_str().unwrap()).unwrap();
            assert!(secret.verifies(&proof, Side::Server, 1, &client, &server));
        }
    }

    #[test]
    fn a_wrong_proof_is_refused_and_so_is_the_servers_own() {
        let text = "the secret of this test";
        let (greeting, secret) = (greeting(Some(text)), Secret::new(text.as_bytes()).unwrap());
        let (client, server) = (new_nonce().unwrap(), new_nonce().unwrap());
        for wrong in
            [[0; 32], secret.proof(Side::Server, 0, &client, &server), secret.proof(Side::Client, 1, &client, &server)]
        {
            let mut handshake = Handshake::new(server);
            feed(&mut handshake, &hello(0, &client), 64, &greeting);
            let said = feed(&mut handshake, &wrong, 64, &greeting);
            let [Step::Refused(answer, Refusal::Secret)] = said.as_slice() else { panic!("{said:?}") };
            assert_eq!(json(answer), serde_json::json!({"error": "wrong secret"}));
        }
    }

    #[test]
    fn without_a_secret_anybody_is_welcome() {
        let said = feed(&mut Handshake::new([0; 32]), &hello(ANY_PARTITION, &[0; 32]), 64, &greeting(None));
        let [Step::Done(welcome, None)] = said.as_slice() else { panic!("{said:?}") };
        assert!(json(welcome).get("proof").is_none());
        assert_eq!(json(welcome)["procedures"], serde_json::json!(["p"]));
    }

    #[test]
    fn another_version_or_partition_is_named_before_anything_else_is_read() {
        let refused = |bytes: &[u8]| feed(&mut Handshake::new([0; 32]), bytes, 64, &greeting(None)).pop();
        let Some(Step::Refused(answer, Refusal::Version(1))) = refused(b"ACE1\x01\x00\x00\x00") else { panic!() };
        assert_eq!(json(&answer)["error"], "protocol version 1; this server speaks 2");
        let Some(Step::Refused(_, Refusal::Partition { wanted: 2, present: 2 })) = refused(b"ACE1\x02\x00\x02\x00")
        else {
            panic!()
        };
        assert_eq!(refused(b"GET / HTTP/1.1\r\n"), Some(Step::Refused(Vec::new(), Refusal::Foreign)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_pass(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..64, honest: bool) {
            let greeting = greeting(Some("the secret of this test"));
            let mut wire = if honest { hello(0, &[1; 32]) } else { Vec::new() };
            wire.extend(bytes);
            let said = feed(&mut Handshake::new([2; 32]), &wire, piece, &greeting);
            prop_assert!(!said.iter().any(|step| matches!(step, Step::Done(..))));
        }
    }
}
