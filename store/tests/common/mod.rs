//! A client that sends raw bytes, and a server on a free port.

#![allow(dead_code, reason = "each test binary uses its part of it")]
#![allow(clippy::unwrap_used, reason = "a test's own helpers may fail the test")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use store::{Key, Limits, Reply, Request, StoreServer, bind_loopback};

/// Only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Served {
    pub server: StoreServer,
    pub address: SocketAddr,
}

pub fn serve(limits: Limits) -> Served {
    let listeners = bind_loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let server = StoreServer::start(listeners, limits).unwrap();
    Served { server, address: (Ipv4Addr::LOCALHOST, port).into() }
}

impl Served {
    /// A validated client, whose ping was answered.
    pub fn client(&self) -> Client {
        let mut client = self.unvalidated();
        client.greet();
        client
    }

    /// A client that has sent nothing yet.
    pub fn unvalidated(&self) -> Client {
        Client::on(TcpStream::connect(self.address).unwrap())
    }
}

pub struct Client(pub TcpStream);

impl Client {
    pub fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    pub fn greet(&mut self) {
        self.send(&[Request::Validate, Request::Ping { nonce: 0x0a0b_0c0d }]);
        self.expect(&Reply::Pong { nonce: 0x0a0b_0c0d });
    }

    pub fn send(&mut self, requests: &[Request]) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The next bytes must be this reply.
    #[track_caller]
    pub fn expect(&mut self, reply: &Reply) {
        let mut expected = Vec::new();
        reply.encode(&mut expected);
        let mut got = vec![0; expected.len()];
        self.0.read_exact(&mut got).unwrap();
        assert!(got == expected, "expected {reply:?}, got {}", got[..got.len().min(100)].escape_ascii());
    }

    #[track_caller]
    pub fn ask(&mut self, request: Request, reply: &Reply) {
        self.send(&[request]);
        self.expect(reply);
    }

    /// The reply to LIST_KEYS.
    pub fn list_keys(&mut self) -> Vec<Vec<u8>> {
        self.send(&[Request::ListKeys]);
        let count = self.number();
        (0..count)
            .map(|_| {
                let mut key = vec![0; usize::try_from(self.number()).unwrap()];
                self.0.read_exact(&mut key).unwrap();
                key
            })
            .collect()
    }

    fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// Everything sent before was served, and nothing unexpected was received.
    #[track_caller]
    pub fn settle(&mut self) {
        self.ask(Request::Ping { nonce: 77 }, &Reply::Pong { nonce: 77 });
    }

    /// The server closed the connection, possibly after other bytes.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        let mut rest = [0; 4096];
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("still open: {error}"),
            }
        }
    }
}

pub fn set(key: &str, value: &[u8]) -> Request {
    Request::Set { key: key.into(), value: value.to_vec().into() }
}

pub fn get(key: &str) -> Request {
    Request::Get(key.into())
}

pub fn wait(key: &str) -> Request {
    Request::Wait(keys(&[key]))
}

pub fn keys(names: &[&str]) -> Vec<Key> {
    names.iter().map(|name| Key::from(*name)).collect()
}

pub fn value(bytes: &[u8]) -> Reply {
    Reply::Value(bytes.to_vec().into())
}
