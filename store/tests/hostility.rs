//! Clients that are wrong, greedy or gone. They lose their own connection, and no other is affected.

mod common;

use std::net::Shutdown;

use common::{get, serve, set, value, wait};
use store::{Limits, Reply, Request};

/// A client that sends this is closed; a good one continues.
#[track_caller]
fn closes(bytes: &[u8]) {
    let served = serve(Limits::default());
    let mut good = served.client();
    let mut bad = served.unvalidated();
    bad.send_bytes(bytes);
    bad.expect_closed();
    good.settle();
}

fn validated(bytes: &[u8]) -> Vec<u8> {
    [b"\x00\xce\xf7\x85\x3c", bytes].concat()
}

#[test]
fn a_wrong_magic_number_is_closed() {
    closes(b"\x00\xce\xf7\x85\x3d");
}

#[test]
fn another_protocol_is_closed() {
    closes(b"GET / HTTP/1.1\r\n\r\n");
}

#[test]
fn an_operation_before_validation_is_closed() {
    closes(b"\x07");
}

#[test]
fn an_unknown_operation_is_closed() {
    closes(&validated(b"\x13"));
}

#[test]
fn huge_lengths_and_counts_are_closed() {
    closes(&validated(b"\x03\xff\xff\xff\xff\xff\xff\xff\xff"));
    closes(&validated(b"\x01\x01\0\0\0\0\0\0\0k\xff\xff\xff\xff\xff\xff\xff\x7f"));
    closes(&validated(b"\x06\x01\x00\x02\0\0\0\0\0"));
}

#[test]
fn an_add_to_text_is_closed_after_the_replies_before_it() {
    let served = serve(Limits::default());
    let mut client = served.client();
    client.send(&[set("/w", b"word"), get("/w"), Request::Add { key: "/w".into(), delta: 1 }]);
    client.expect(&value(b"word"));
    client.expect_closed();
}

#[test]
fn half_a_request_then_a_close_stores_nothing() {
    let served = serve(Limits::default());
    let mut half = served.client();
    let mut bytes = Vec::new();
    set("/half", b"1234").encode(&mut bytes);
    half.send_bytes(&bytes[..bytes.len() - 1]);
    half.0.shutdown(Shutdown::Write).unwrap();
    half.expect_closed();
    served.client().ask(Request::CountKeys, &Reply::Number(0));
}

#[test]
fn a_client_that_only_stopped_sending_gets_its_replies() {
    let served = serve(Limits::default());
    let mut client = served.client();
    client.send(&[set("/k", &[5; 4 << 20]), get("/k"), Request::CountKeys]);
    client.0.shutdown(Shutdown::Write).unwrap();
    client.expect(&value(&[5; 4 << 20]));
    client.expect(&Reply::Number(1));
    client.expect_closed();
}

#[test]
fn a_wait_of_a_disconnected_client_takes_no_queued_value() {
    let served = serve(Limits::default());
    let (mut gone, mut next, mut other) = (served.client(), served.client(), served.client());
    gone.send(&[wait("/q")]);
    gone.settle();
    next.send(&[wait("/q")]);
    next.settle();
    gone.0.shutdown(Shutdown::Write).unwrap();
    gone.expect_closed();
    other.send(&[Request::QueuePush { key: "/q".into(), value: "x".into() }]);
    next.expect(&Reply::StopWaiting);
}

#[test]
fn a_client_that_never_reads_blocks_no_other() {
    let served = serve(Limits::default());
    let mut slow = served.client();
    slow.send(&[set("/block", &[1; 100_000])]);
    // 100 times more than socket buffers take; the requests themselves are small enough to be sent.
    slow.send(&vec![get("/block"); 3000]);
    let mut good = served.client();
    for _ in 0..100 {
        good.settle();
    }
    slow.send(&[get("/block")]);
    good.ask(Request::CountKeys, &Reply::Number(1));
}

#[test]
fn one_reply_too_long_closes_the_client() {
    let served = serve(Limits { max_reply_bytes: 1 << 20, ..Limits::default() });
    let mut client = served.client();
    client.send(&[set("/k", &[1; 300_000]), set("/long", &[1; 2 << 20])]);
    client.ask(get("/k"), &value(&[1; 300_000]));
    // The reply is sent piece by piece, as the client reads.
    client.send(&[Request::MultiGet(vec!["/k".into(); 20])]);
    for _ in 0..20 {
        client.expect(&value(&[1; 300_000]));
    }
    client.send(&[get("/long")]);
    client.expect_closed();
    served.client().ask(get("/k"), &value(&[1; 300_000]));
}

#[test]
fn a_full_table_ends_the_connection_that_overfills_it_in_order() {
    let served = serve(Limits { max_table_bytes: 4 << 20, ..Limits::default() });
    let mut good = served.client();
    good.send(&[set("/good", &[1; 3 << 20])]);
    good.settle();
    let mut greedy = served.client();
    // Replies that are pending, a request that does not fit, and many behind it that are never read.
    let mut bytes = Vec::new();
    for request in [get("/good"), set("/greedy", &[1; 2 << 20]), set("/more", &[1; 6 << 20])] {
        request.encode(&mut bytes);
    }
    let mut writer = common::Client::on(greedy.0.try_clone().unwrap());
    let writing = std::thread::spawn(move || {
        writer.send_bytes(&bytes);
    });
    greedy.expect(&value(&[1; 3 << 20]));
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut greedy.0, &mut rest).expect("an end in order, and no reset");
    assert_eq!(rest, [0; 0]);
    writing.join().expect("all that was sent was taken");
    good.ask(Request::CountKeys, &Reply::Number(1));
}

#[test]
fn a_refused_client_that_stays_is_closed_after_a_while() {
    let served = serve(Limits { max_keys: 1, max_connections: 2, ..Limits::default() });
    let mut greedy = served.client();
    greedy.send(&[set("/a", b""), set("/b", b"")]);
    greedy.expect_closed();
    let mut good = served.client();
    good.ask(Request::CountKeys, &Reply::Number(1));
    // Its side is still open, and it counts as a connection until it times out. Then its socket is reset.
    let mut outcome = Ok(());
    while outcome.is_ok() {
        outcome = std::io::Write::write_all(&mut greedy.0, &[0; 64]);
        std::thread::yield_now();
    }
    served.client().ask(Request::CountKeys, &Reply::Number(1));
}

#[test]
fn lists_are_whole_while_keys_come_and_go() {
    const STABLE: usize = 5000;
    let served = serve(Limits::default());
    let name = |number: usize| format!("/stable {number:05}");
    let pairs = (0..STABLE).map(|number| (name(number).as_str().into(), "".into())).collect();
    let mut first = served.client();
    first.send(&[Request::MultiSet(pairs)]);
    first.settle();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut restless = served.client();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                for number in 0..200 {
                    restless
                        .send(&[set(&format!("/come {number}"), b""), set(&format!("/zoo {number}"), b"")]);
                }
                for number in 0..200 {
                    restless
                        .ask(Request::Delete(format!("/come {number}").as_str().into()), &Reply::Number(1));
                    restless
                        .ask(Request::Delete(format!("/zoo {number}").as_str().into()), &Reply::Number(1));
                }
            }
        });
        let listers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut lister = served.client();
                    for _ in 0..20 {
                        let keys = lister.list_keys();
                        let stable = keys.iter().filter(|key| key.starts_with(b"/stable ")).count();
                        assert_eq!(stable, STABLE);
                        assert!(keys.is_sorted_by(|a, b| a < b), "in order, and none twice");
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = listers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

#[test]
fn when_half_sent_requests_are_too_much_the_largest_is_closed() {
    let served = serve(Limits { max_in_flight_bytes: 4 << 20, ..Limits::default() });
    let mut small = served.client();
    let mut bytes = Vec::new();
    set("/k", &[1; 8 << 20]).encode(&mut bytes);
    small.send_bytes(&bytes[..1 << 20]);
    let mut large = served.client();
    // Most likely reset while still sending.
    let _ = std::io::Write::write_all(&mut large.0, &bytes[..6 << 20]);
    large.expect_closed();
    let mut other = served.client();
    other.settle();
    let mut again = Vec::new();
    small.0.set_nonblocking(true).unwrap();
    let outcome = std::io::Read::read_to_end(&mut small.0, &mut again);
    assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the small one was closed");
}

#[test]
fn one_connection_too_many_is_closed() {
    let served = serve(Limits { max_connections: 2, ..Limits::default() });
    let (mut a, mut b) = (served.client(), served.client());
    served.unvalidated().expect_closed();
    a.settle();
    b.settle();
    a.0.shutdown(Shutdown::Write).unwrap();
    a.expect_closed();
    served.client().settle();
}
