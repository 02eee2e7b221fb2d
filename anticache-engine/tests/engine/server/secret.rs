//! The shared secret over loopback TCP: who gets in, who does not, and that strangers disturb nobody.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use anticache_engine::client::{Client, ClientError};
use anticache_engine::net::frame::{HELLO_MAGIC, PROTOCOL_VERSION, write_request};
use anticache_engine::secret::{Nonce, Secret, Side, from_hex, to_hex};

use crate::support::served::{Served, WATCHDOG, serve, stop};

const TEXT: &str = "correct horse battery staple";

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes()).unwrap()
}

/// A server that wants [`TEXT`].
fn serve_with_secret() -> Served {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(file.path(), TEXT).unwrap();
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    // The server reads it before it is ready, and never again.
    serve("", &serde_json::json!({"partitions": 1, "secret_file": file.path()}))
}

fn refused_connections(client: &mut Client) -> u64 {
    client.stats().unwrap()["refused_connections"].as_u64().unwrap()
}

/// Waits until the server has counted that many: it counts after it has answered.
fn wait_for_refused(client: &mut Client, wanted: u64) {
    let deadline = Instant::now() + WATCHDOG;
    while refused_connections(client) < wanted {
        assert!(Instant::now() < deadline, "{} of {wanted} refused", refused_connections(client));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(refused_connections(client), wanted);
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

fn hello(nonce: &Nonce) -> Vec<u8> {
    [HELLO_MAGIC.as_slice(), &PROTOCOL_VERSION.to_le_bytes(), &0u16.to_le_bytes(), nonce].concat()
}

fn hear(stream: &mut TcpStream) -> serde_json::Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset ends it as well.
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn only_who_knows_the_secret_gets_in() {
    let served = serve_with_secret();
    let mut good = Client::connect_with(served.address, Some(&secret(TEXT))).unwrap();
    let Err(ClientError::Secret { problem: none, .. }) = Client::connect(served.address) else { panic!() };
    assert!(none.contains("wants a secret, and none is given"), "{none}");
    let wrong = Client::connect_with(served.address, Some(&secret("correct horse battery stapler"))).err().unwrap();
    assert!(wrong.to_string().contains("refuses this secret") && !wrong.to_string().contains("horse"), "{wrong}");
    assert!(matches!(wrong, ClientError::Secret { .. }));
    // The client without a secret left when it was asked for one: its handshake was cut short.
    wait_for_refused(&mut good, 2);
    let stats = good.stats().unwrap().to_string();
    assert!(!stats.contains(TEXT), "{stats}");
    stop(served);
}

#[test]
fn a_client_with_a_secret_refuses_a_server_without_one() {
    let served = serve("", &serde_json::json!({"partitions": 1}));
    let Err(ClientError::Secret { problem, .. }) = Client::connect_with(served.address, Some(&secret(TEXT))) else {
        panic!("a downgrade")
    };
    assert!(problem.contains("it asks for none"), "{problem}");
    stop(served);
}

/// Nothing could be sent to a server without partitions, and no key has one there.
#[test]
fn a_client_refuses_a_welcome_that_lacks_something() {
    let lacking = [
        serde_json::json!({"partitions": 0, "procedures": []}),
        serde_json::json!({"procedures": []}),
        serde_json::json!({"partitions": 1}),
    ];
    for welcome in lacking {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let text = welcome.to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(WATCHDOG)).unwrap();
            stream.read_exact(&mut [0; 40]).unwrap();
            stream.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        });
        let error = Client::connect(address).err().unwrap();
        assert!(error.to_string().contains("its welcome is incomplete"), "{welcome}: {error}");
        server.join().unwrap();
    }
}

/// A server that asks for the proof but cannot give its own.
#[test]
fn a_client_refuses_a_server_that_does_not_know_the_secret() {
    for proof in ["", "00", &"ab".repeat(32)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let welcome = serde_json::json!({"partitions": 1, "partition": null, "procedures": [], "proof": proof});
        let impostor = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(WATCHDOG)).unwrap();
            stream.read_exact(&mut [0; 40]).unwrap();
            for answer in [serde_json::json!({"challenge": to_hex(&[7; 32])}), welcome] {
                let text = answer.to_string();
                stream.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
                stream.write_all(text.as_bytes()).unwrap();
            }
            stream.read_exact(&mut [0; 32]).unwrap();
            rest(&mut stream).len()
        });
        let error = Client::connect_with(address, Some(&secret(TEXT))).err().unwrap();
        assert!(error.to_string().contains("cannot prove that it knows the secret"), "{proof}: {error}");
        assert_eq!(impostor.join().unwrap(), 0, "nothing is sent to an impostor");
    }
}

#[test]
fn a_proof_is_good_for_its_connection_only() {
    let served = serve_with_secret();
    let mut good = Client::connect_with(served.address, Some(&secret(TEXT))).unwrap();
    let nonce = [9; 32];
    let mut first = connect(served.address);
    first.write_all(&hello(&nonce)).unwrap();
    let challenge = hear(&mut first);
    let server_nonce = from_hex(challenge["challenge"].as_str().unwrap()).unwrap();
    let proof = secret(TEXT).proof(Side::Client, 0, &nonce, &server_nonce);
    first.write_all(&proof).unwrap();
    assert_eq!(hear(&mut first)["partitions"], 1, "the first time it is good");
    let mut second = connect(served.address);
    second.write_all(&hello(&nonce)).unwrap();
    assert_ne!(hear(&mut second), challenge);
    second.write_all(&proof).unwrap();
    assert_eq!(hear(&mut second), serde_json::json!({"error": "wrong secret"}));
    assert_eq!(rest(&mut second), b"");
    wait_for_refused(&mut good, 1);
    stop(served);
}

/// Requests sent behind a hello, a half one or a wrong proof are never run.
#[test]
fn nothing_is_run_before_the_handshake_is_done() {
    let served = serve_with_secret();
    let mut good = Client::connect_with(served.address, Some(&secret(TEXT))).unwrap();
    let load = good.procedure("ycsb_load").unwrap();
    let mut row = 1u32.to_le_bytes().to_vec();
    row.extend_from_slice(&5i64.to_le_bytes());
    row.resize(row.len() + 1000, b'x');
    let mut request = Vec::new();
    write_request(&mut request, 1, load, &row);
    for prefix in [Vec::new(), hello(&[0; 32])[..20].to_vec(), hello(&[0; 32])] {
        let mut stream = connect(served.address);
        stream.write_all(&[prefix, request.clone()].concat()).unwrap();
        let heard = rest(&mut stream);
        let text = String::from_utf8_lossy(&heard);
        assert!(!text.contains("partitions") && (heard.is_empty() || text.contains("challenge")), "{text}");
    }
    wait_for_refused(&mut good, 3);
    assert_eq!(good.stats().unwrap()["tuples_resident"], 0);
    stop(served);
}

#[test]
fn half_handshakes_are_refused_and_a_mere_look_is_not() {
    let served = serve_with_secret();
    let mut good = Client::connect_with(served.address, Some(&secret(TEXT))).unwrap();
    for half in [&hello(&[0; 32])[..3], &hello(&[0; 32])[..8], &hello(&[0; 32])[..39]] {
        let mut stream = connect(served.address);
        stream.write_all(half).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut stream), b"");
    }
    drop(connect(served.address));
    wait_for_refused(&mut good, 3);
    stop(served);
}

/// More silent connections than the server keeps, and some that send a byte: they are closed, and honest clients connect and are served meanwhile.
#[test]
fn strangers_that_keep_silent_disturb_nobody() {
    let served = serve_with_secret();
    let mut good = Client::connect_with(served.address, Some(&secret(TEXT))).unwrap();
    let read = good.procedure("ycsb_read").unwrap();
    let pid = served.child.id();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    let before = threads();
    let strangers = 700;
    let mut silent: Vec<TcpStream> = (0..strangers).map(|_| connect(served.address)).collect();
    silent.iter_mut().step_by(2).for_each(|stream| {
        // The oldest may be closed already.
        let _ = stream.write_all(b"A");
    });
    let mut another = Client::connect_with(served.address, Some(&secret(TEXT))).unwrap();
    for client in [&mut good, &mut another] {
        let missing = client.call(0, read, &0i64.to_le_bytes()).unwrap_err();
        assert_eq!(missing.to_string(), "aborted: no such key");
    }
    assert_eq!(threads(), before, "a stranger gets no thread");
    for stream in &mut silent {
        assert_eq!(rest(stream), b"", "closed by the server, without a word");
    }
    wait_for_refused(&mut good, strangers);
    stop(served);
}

#[test]
fn a_server_stops_although_handshakes_are_under_way() {
    let served = serve_with_secret();
    let mut stream = connect(served.address);
    stream.write_all(&hello(&[0; 32])).unwrap();
    hear(&mut stream);
    stop(served);
    assert_eq!(rest(&mut stream), b"");
}
