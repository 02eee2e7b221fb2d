//! A connection to Memcached that waits for its answers.
//!
//! Commands and answers are the client library's. Its own connection is not used: it gives up when a signal ends a wait, as happens whenever the process
//! is stopped and goes on (`signal(7)`: a read with a time limit is not restarted), sets that limit anew before each read and write, and forgets the
//! answers before a refusal. So does its pooled client, which also sends one more request before each.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use memcache::exp::{Error, MetaCommand, MetaResponse, Result, ReturnCode};

/// One connection.
pub struct Link {
    stream: BufReader<TcpStream>,
}

/// What Memcached answers to a command.
pub struct Answer {
    pub header: MetaResponse,
    /// Of a key that has one, where it was asked for.
    pub value: Option<Vec<u8>>,
}

impl Link {
    /// Takes a connection on which no read and no write may wait longer than `limit`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(stream: TcpStream, limit: Duration) -> io::Result<Link> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Link { stream: BufReader::new(stream) })
    }

    /// Sends the commands, none of them quiet, in one piece and waits for the answer to each, in their order. An answer is an error where the server
    /// refused: [`Error::Server`] or [`Error::Rejected`].
    ///
    /// # Errors
    /// Those after which the connection is of no use: [`Error::Io`] and [`Error::Protocol`]; and a command that is none.
    pub fn exchange(&mut self, commands: &[MetaCommand]) -> Result<Vec<Result<Answer>>> {
        let mut requests = Vec::new();
        commands.iter().try_for_each(|command| command.encode_into(&mut requests))?;
        self.stream.get_mut().write_all(&requests)?;
        commands.iter().map(|_| self.receive()).collect()
    }

    /// Sends a command of the older text protocol, and waits for the lines that answer it, up to `last`.
    ///
    /// # Errors
    /// As [`Link::exchange`]; and [`Error::Rejected`] where the server refused.
    pub fn lines(&mut self, command: &str, last: &str) -> Result<Vec<String>> {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut lines = Vec::new();
        loop {
            let line = String::from_utf8_lossy(&self.line()?).into_owned();
            if line == last {
                return Ok(lines);
            }
            if line.split(' ').next().is_some_and(|word| word.ends_with("ERROR")) {
                return Err(Error::Rejected(line));
            }
            lines.push(line);
        }
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\r\n") {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }

    fn receive(&mut self) -> Result<Result<Answer>> {
        let line = self.line()?;
        let header = match MetaResponse::parse_header(&line) {
            Ok(header) => header,
            Err(refusal @ (Error::Server(_) | Error::Rejected(_))) => return Ok(Err(refusal)),
            Err(error) => return Err(error),
        };
        let value = match header.rc() {
            ReturnCode::Va => Some(self.value(&line)?),
            _ => None,
        };
        Ok(Ok(Answer { header, value }))
    }

    /// Reads the value that a header announces, which the library has found to be well-formed.
    fn value(&mut self, header: &[u8]) -> Result<Vec<u8>> {
        let length = header.split(|&byte| byte == b' ').filter(|token| !token.is_empty()).nth(1);
        let length = length.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
        let length = length.ok_or_else(|| Error::Protocol("a value without its length".to_owned()))?;
        let mut value = vec![0; length + 2];
        self.stream.read_exact(&mut value)?;
        if !value.ends_with(b"\r\n") {
            return Err(Error::Protocol("a value that is longer than announced".to_owned()));
        }
        value.truncate(length);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memcache::exp::MetaOp;
    use std::net::{Shutdown, TcpListener};

    /// A connection whose peer answers so to what it is asked first, one byte after the other, and hangs up.
    fn answered_by(answers: &'static [u8], limit: Duration) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_nodelay(true).unwrap();
        std::thread::spawn(move || {
            peer.read_exact(&mut [0]).unwrap();
            // Whoever has read enough may be gone.
            let _ = answers.iter().try_for_each(|&byte| peer.write_all(&[byte]));
            if !answers.is_empty() {
                let _ = peer.shutdown(Shutdown::Write);
            }
            // Closed with requests unread, the kernel would take back what was answered.
            let _ = peer.read_to_end(&mut Vec::new());
        });
        Link::new(stream, limit).unwrap()
    }

    fn gets(count: usize) -> Vec<MetaCommand> {
        (0..count).map(|_| MetaCommand::new(MetaOp::Get, "key").flag("v").flag("c")).collect()
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn every_command_has_its_answer() {
        let answers =
            b"VA 4 c17\r\na\r\nb\r\nEN\r\nSERVER_ERROR out of memory\r\nCLIENT_ERROR bad\r\nVA 0 c1\r\n\r\nHD\r\n";
        let found = answered_by(answers, LONG).exchange(&gets(6)).unwrap();
        let told: Vec<_> = found
            .into_iter()
            .map(|answer| match answer {
                Ok(Answer { header, value }) => format!("{:?} {:?} {value:?}", header.rc(), header.flags().next()),
                Err(error) => error.to_string(),
            })
            .collect();
        assert_eq!(told[0], format!("Va {:?} {:?}", Some(b"c17"), Some(b"a\r\nb")));
        assert_eq!(told[1], "En None None");
        assert!(told[2].contains("out of memory") && told[3].contains("bad"), "{told:?}");
        assert_eq!(told[4], format!("Va {:?} {:?}", Some(b"c1"), Some(b"")));
        assert_eq!(told[5], "Hd None None");
    }

    #[test]
    fn an_answer_that_is_none_or_not_whole_breaks_the_connection() {
        let error = |answers| answered_by(answers, LONG).exchange(&gets(2)).err().unwrap();
        for protocol in [&b"VA x\r\n"[..], b"VA\r\n", b"VA 1\r\nab\r\n", b"\r\n", b"END\r\n"] {
            assert!(matches!(error(protocol), Error::Protocol(_)), "{}", String::from_utf8_lossy(protocol));
        }
        for cut in [&b"EN\r\nE"[..], b"EN\r\n", b"EN\r\nVA 4\r\na", b"VA 4"] {
            let Error::Io(io) = error(cut) else { panic!("{}", String::from_utf8_lossy(cut)) };
            assert_eq!(io.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn lines_end_with_the_last_or_an_error() {
        let lines = |answers| answered_by(answers, LONG).lines("stats", "END");
        assert_eq!(lines(b"STAT pid 7\r\nSTAT version 1.6\r\nEND\r\n").unwrap(), ["STAT pid 7", "STAT version 1.6"]);
        for refused in [&b"ERROR\r\n"[..], b"SERVER_ERROR busy\r\n"] {
            assert!(matches!(lines(refused), Err(Error::Rejected(message)) if message.contains("ERROR")));
        }
        assert!(matches!(lines(b"STAT pid 7\r\nEN"), Err(Error::Io(_))));
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
        let error = answered_by(b"", Duration::from_millis(50)).exchange(&gets(1)).err().unwrap();
        assert!(matches!(error, Error::Io(io) if io.kind() == io::ErrorKind::WouldBlock));
    }
}
