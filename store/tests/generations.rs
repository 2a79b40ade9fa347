//! A fresh key space at each restart, connections from elsewhere, and the end of the server.

mod common;

use std::{
    io::Write,
    net::{Shutdown, TcpListener, TcpStream},
};

use common::{Client, get, serve, set, value, wait};
use store::{Limits, Reply, Request, StoreServer};

#[test]
fn a_new_generation_closes_old_connections_and_forgets_old_keys() {
    let served = serve(Limits::default());
    let (mut old, mut waiting, mut silent) = (served.client(), served.client(), served.unvalidated());
    old.send(&[set("/k", b"old")]);
    old.settle();
    waiting.send(&[wait("/never")]);
    waiting.settle();
    served.server.begin_generation();
    for client in [&mut old, &mut waiting, &mut silent] {
        client.expect_closed();
    }
    let mut new = served.client();
    new.ask(Request::CountKeys, &Reply::Number(0));
    new.ask(get("/k"), &value(b""));
}

#[test]
fn a_request_half_sent_in_the_old_generation_never_reaches_the_new() {
    let served = serve(Limits::default());
    let mut old = served.client();
    let mut bytes = Vec::new();
    set("/k", b"old").encode(&mut bytes);
    let (first, second) = bytes.split_at(12);
    old.send_bytes(first);
    served.server.begin_generation();
    let _ = old.0.write_all(second);
    old.expect_closed();
    served.client().ask(Request::CountKeys, &Reply::Number(0));
}

#[test]
fn arrivals_are_of_this_generation_and_outlive_their_connections() {
    let served = serve(Limits::default());
    let (mut a, b, mut silent) = (served.client(), served.client(), served.unvalidated());
    let expected = vec![a.0.local_addr().unwrap(), b.0.local_addr().unwrap()];
    a.0.shutdown(Shutdown::Write).unwrap();
    a.expect_closed();
    assert_eq!(served.server.arrivals(), expected);
    served.server.begin_generation();
    silent.expect_closed();
    assert_eq!(served.server.arrivals(), []);
    let c = served.client();
    assert_eq!(served.server.arrivals(), [c.0.local_addr().unwrap()]);
}

#[test]
fn an_adopted_connection_is_served_with_the_bytes_it_had() {
    let server = StoreServer::start(Vec::new(), Limits::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::on(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    client.send(&[Request::Validate, set("/k", b"v"), get("/k")]);
    let (stream, _) = listener.accept().unwrap();
    let mut first = [9];
    stream.peek(&mut first).unwrap();
    assert_eq!(first, [0]);
    server.adopt(stream);
    client.expect(&value(b"v"));
    server.begin_generation();
    client.expect_closed();
}

#[test]
fn a_generation_can_be_awaited() {
    let served = serve(Limits::default());
    let mut old = served.client();
    let begun = served.server.begin_generation_async();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(begun);
    old.expect_closed();
    served.client().settle();
}

#[test]
fn generations_may_change_under_busy_clients() {
    let served = serve(Limits::default());
    let mut busy = Vec::new();
    for request in [Request::Validate, Request::Ping { nonce: 1 }] {
        request.encode(&mut busy);
    }
    (0..1000).for_each(|_| set("/k", b"old").encode(&mut busy));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let mut client = served.unvalidated();
                        // Fails when the generation ends first; else it is still open here and closed later.
                        let _ = client.0.write_all(&busy);
                        client.expect_closed();
                    }
                })
            })
            .collect();
        while !clients.iter().all(|client| client.is_finished()) {
            served.server.begin_generation();
        }
    });
    served.server.begin_generation();
    served.client().ask(Request::CountKeys, &Reply::Number(0));
}

#[test]
fn dropping_the_server_closes_its_port_and_its_connections() {
    let served = serve(Limits::default());
    let mut client = served.client();
    let address = served.address;
    drop(served);
    client.expect_closed();
    assert!(TcpStream::connect(address).is_err());
}
