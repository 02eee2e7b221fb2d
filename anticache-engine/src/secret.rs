//! The secret that client and server share, and the proofs of knowing it.
//!
//! A proof is HMAC-SHA256 (RFC 2104) of who gives it, the partition that is asked for, and both sides' nonces: it is worth nothing on another
//! connection, for another partition, or in the other direction. It shows who opened the connection; what follows on it is neither encrypted nor
//! signed.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::StartError;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// Shortest secret that is accepted.
pub const MIN_SECRET_BYTES: usize = 16;
/// Longest.
pub const MAX_SECRET_BYTES: usize = 4096;

/// Random bytes that one side chooses anew for every connection.
pub type Nonce = [u8; NONCE_BYTES];

/// Random bytes from the operating system.
///
/// # Errors
/// What the system says.
pub fn new_nonce() -> std::io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < nonce.len() {
        filled += rustix::rand::getrandom(&mut nonce[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(nonce)
}

/// Who gives a proof. The labels are of one length, so that no two proofs are of the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that listens.
    Server,
}

impl Side {
    fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Client => b"ACE2 from client",
            Self::Server => b"ACE2 from server",
        }
    }
}

/// A secret of [`MIN_SECRET_BYTES`] or more; nothing prints it.
#[derive(Clone)]
pub struct Secret {
    keyed: Hmac<Sha256>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(not shown)")
    }
}

/// A secret that is too short or too long to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {bytes} bytes; allowed are {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}")]
pub struct BadSecret {
    /// Its length.
    pub bytes: usize,
}

impl Secret {
    /// From its bytes; white space around them does not count, so that a file may end with a line feed.
    ///
    /// # Errors
    /// [`BadSecret`].
    pub fn new(bytes: &[u8]) -> Result<Self, BadSecret> {
        let bytes = bytes.trim_ascii();
        if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&bytes.len()) {
            return Err(BadSecret { bytes: bytes.len() });
        }
        match Hmac::new_from_slice(bytes) {
            Ok(keyed) => Ok(Self { keyed }),
            Err(_) => Err(BadSecret { bytes: bytes.len() }),
        }
    }

    /// Reads a secret file.
    ///
    /// # Errors
    /// [`StartError`] when it cannot be read, when others than its owner may read or write it, and for its length.
    pub fn from_file(path: &Path) -> Result<Self, StartError> {
        let named = || format!("secret_file {}", path.display());
        let refuse =
            |allowed: String| StartError::Value { key: "secret_file", value: path.display().to_string(), allowed };
        let mut file = std::fs::File::open(path).map_err(StartError::system(named()))?;
        let mode = file.metadata().map_err(StartError::system(named()))?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(refuse(format!("a file for its owner alone; this one has mode {mode:04o}: chmod 600 it")));
        }
        let mut bytes = Vec::new();
        let limit = MAX_SECRET_BYTES as u64 + 2;
        file.by_ref().take(limit).read_to_end(&mut bytes).map_err(StartError::system(named()))?;
        Self::new(&bytes).map_err(|error| refuse(error.to_string()))
    }

    fn keyed_with(&self, side: Side, partition: u16, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
        let mut keyed = self.keyed.clone();
        keyed.update(side.label());
        keyed.update(&partition.to_le_bytes());
        keyed.update(server);
        keyed.update(client);
        keyed
    }

    /// What `side` sends.
    pub fn proof(&self, side: Side, partition: u16, client: &Nonce, server: &Nonce) -> [u8; PROOF_BYTES] {
        self.keyed_with(side, partition, client, server).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of `side`; takes as long for a wrong one as for the right one.
    pub fn verifies(&self, proof: &[u8], side: Side, partition: u16, client: &Nonce, server: &Nonce) -> bool {
        self.keyed_with(side, partition, client, server).verify_slice(proof).is_ok()
    }
}

/// Lower-case hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// 32 bytes from their hexadecimal digits; `None` for anything else.
pub fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"a secret of thirty-two letters..";

    #[test]
    fn a_proof_is_good_for_one_side_partition_and_pair_of_nonces() {
        let secret = Secret::new(TEXT).unwrap();
        let (client, server) = (new_nonce().unwrap(), new_nonce().unwrap());
        assert_ne!(client, server);
        let proof = secret.proof(Side::Client, 3, &client, &server);
        assert!(secret.verifies(&proof, Side::Client, 3, &client, &server));
        assert!(!secret.verifies(&proof, Side::Server, 3, &client, &server));
        assert!(!secret.verifies(&proof, Side::Client, 4, &client, &server));
        assert!(!secret.verifies(&proof, Side::Client, 3, &server, &client));
        assert!(!secret.verifies(&proof, Side::Client, 3, &client, &new_nonce().unwrap()));
        assert!(!secret.verifies(&proof[..31], Side::Client, 3, &client, &server));
        assert!(!secret.verifies(&[], Side::Client, 3, &client, &server));
        let other = Secret::new(b"another secret, as long as that.").unwrap();
        assert!(!other.verifies(&proof, Side::Client, 3, &client, &server));
    }

    /// Computed with another implementation (Python's hmac) from the description in `net/frame.rs`.
    #[test]
    fn a_proof_is_what_the_protocol_says() {
        let (client, server) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
        let proof = Secret::new(TEXT).unwrap().proof(Side::Client, 0x0102, &client, &server);
        assert_eq!(to_hex(&proof), "ad12174663ba81f85f6ddde16b95e7ce735ace1a7cdd3e5d60cc739a99f6e29d");
    }

    #[test]
    fn a_secret_is_not_printed_and_has_a_sensible_length() {
        let shown = format!("{:?} {:#?}", Secret::new(TEXT).unwrap(), Some(Secret::new(TEXT).unwrap()));
        assert!(!shown.contains("thirty-two") && shown.contains("not shown"), "{shown}");
        assert_eq!(Secret::new(b"  short \n").unwrap_err(), BadSecret { bytes: 5 });
        assert_eq!(Secret::new(&[b'x'; 5000]).unwrap_err().bytes, 5000);
        let nonce = [7; NONCE_BYTES];
        let (plain, ended) = (Secret::new(TEXT).unwrap(), Secret::new(&[TEXT, b"\n"].concat()).unwrap());
        assert_eq!(plain.proof(Side::Client, 0, &nonce, &nonce), ended.proof(Side::Client, 0, &nonce, &nonce));
    }

    #[test]
    fn a_secret_file_is_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, TEXT).unwrap();
        for (mode, readable) in [(0o644, false), (0o640, false), (0o602, false), (0o600, true), (0o400, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let outcome = Secret::from_file(&path);
            assert_eq!(outcome.is_ok(), readable, "mode {mode:o}: {outcome:?}");
            if let Err(error) = outcome {
                assert!(error.to_string().contains("chmod 600"), "{error}");
            }
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "hush\n").unwrap();
        let error = Secret::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("4 bytes") && !error.contains("hush"), "{error}");
        let absent = Secret::from_file(&directory.path().join("absent")).unwrap_err().to_string();
        assert!(absent.contains("secret_file") && absent.contains("No such file"), "{absent}");
    }

    #[test]
    fn hexadecimal_digits_are_read_back() {
        let bytes: [u8; 32] = std::array::from_fn(|n| (n * 9) as u8);
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(66), &"+f".repeat(32), &"é".repeat(32)] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }
}
