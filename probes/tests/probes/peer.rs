//! A peer that is written from the protocol's description, so that it can misbehave.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

const KIND_LEAD: u8 = 0;
const KIND_WELCOME: u8 = 2;

fn hello(kind: u8, token: u64, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = b"DLRVRING".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([kind, 0, 0, 0]);
    for number in [token, 2, from, to] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// Connects to a probe at `port` as member 1 of a pair, and returns the kind of the reply.
pub fn connect(port: u16, token: u64) -> (TcpStream, Option<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(&hello(KIND_LEAD, token, 1, 0)).unwrap();
    let mut answer = [0; 48];
    let kind = stream.read_exact(&mut answer).ok().map(|()| answer[12]);
    (stream, kind)
}

/// Accepts a probe's connection as member 1 of a pair.
pub fn take(listener: &TcpListener, token: u64) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut asked = [0; 48];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(asked[..], hello(KIND_LEAD, token, 0, 1));
    stream.write_all(&hello(KIND_WELCOME, token, 1, 0)).unwrap();
    stream
}

/// Copies bytes from one to the other until the end; byte number `spoilt` is changed.
pub fn proxy(mut from: TcpStream, mut to: TcpStream, spoilt: Option<usize>) {
    let mut carried = 0;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if let Some(at) = spoilt.and_then(|at| at.checked_sub(carried)).filter(|at| *at < length) {
            buffer[at] ^= 0x10;
        }
        carried += length;
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _gone = to.shutdown(std::net::Shutdown::Write);
}
