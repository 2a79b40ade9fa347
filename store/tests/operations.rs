//! All operations over a socket, as a torch client sends them.

mod common;

use common::{get, keys, serve, set, value, wait};
use store::{Limits, Reply, Request};

#[test]
fn every_operation_is_answered_as_torch_answers_it() {
    let served = serve(Limits::default());
    let mut client = served.client();
    client.send(&[set("/k", b"v1")]);
    client.ask(get("/k"), &value(b"v1"));
    client.ask(get("/none"), &value(b""));
    let compare_set = Request::CompareSet { key: "/k".into(), expected: "v1".into(), desired: "v2".into() };
    client.ask(compare_set, &value(b"v2"));
    client.ask(Request::Add { key: "/n".into(), delta: -3 }, &Reply::Number(-3));
    client.ask(Request::Check(keys(&["/k", "/n"])), &Reply::Present(true));
    client.ask(Request::Check(keys(&["/k", "/none"])), &Reply::Present(false));
    client.ask(Request::Wait(keys(&["/k", "/n"])), &Reply::StopWaiting);
    client.ask(Request::CountKeys, &Reply::Number(2));
    client.ask(Request::Delete("/n".into()), &Reply::Number(1));
    client.ask(Request::Delete("/n".into()), &Reply::Number(0));
    client.send(&[Request::Append { key: "/k".into(), value: "+".into() }]);
    client.ask(Request::ListKeys, &Reply::KeyCount(1));
    client.expect(&value(b"/k"));
    client.send(&[Request::MultiSet(vec![("/a".into(), "1".into()), ("/b".into(), "".into())])]);
    client.ask(
        Request::MultiGet(keys(&["/k", "/a", "/b"])),
        &Reply::Values(vec!["v2+".into(), "1".into(), "".into()]),
    );
    client.send(&[Request::QueuePush { key: "/q".into(), value: "x".into() }]);
    client.ask(Request::QueueLen("/q".into()), &Reply::Number(1));
    client.ask(Request::QueuePop("/q".into()), &Reply::Popped { before: 1, value: Some("x".into()) });
    client.ask(Request::QueuePop("/q".into()), &Reply::Popped { before: 0, value: None });
    client.ask(Request::CancelWait, &Reply::WaitCanceled);
    client.ask(Request::Barrier { key: "/bar".into(), world_size: 1 }, &Reply::StopWaiting);
    client.settle();
}

#[test]
fn a_waiting_client_is_notified_of_a_key_set_by_another() {
    let served = serve(Limits::default());
    let (mut waiting, mut other) = (served.client(), served.client());
    waiting.send(&[wait("/later")]);
    waiting.settle();
    other.send(&[set("/later", b"x")]);
    waiting.expect(&Reply::StopWaiting);
    waiting.ask(get("/later"), &value(b"x"));
}

#[test]
fn a_barrier_opens_for_all_at_once() {
    let served = serve(Limits::default());
    let mut clients: Vec<_> = (0..5).map(|_| served.client()).collect();
    for client in &mut clients {
        client.send(&[Request::Barrier { key: "/b".into(), world_size: 5 }]);
    }
    for client in &mut clients {
        client.expect(&Reply::StopWaiting);
    }
}

#[test]
fn a_wait_can_be_canceled() {
    let served = serve(Limits::default());
    let (mut waiting, mut other) = (served.client(), served.client());
    waiting.send(&[wait("/never")]);
    waiting.ask(Request::CancelWait, &Reply::WaitCanceled);
    other.send(&[set("/never", b"x")]);
    other.settle();
    waiting.settle();
}

#[test]
fn requests_cut_into_single_bytes_are_understood() {
    let served = serve(Limits::default());
    let mut client = served.unvalidated();
    let mut bytes = Vec::new();
    for request in [Request::Validate, set("/k", b"value"), wait("/k"), get("/k")] {
        request.encode(&mut bytes);
    }
    for byte in bytes {
        client.send_bytes(&[byte]);
    }
    client.expect(&Reply::StopWaiting);
    client.expect(&value(b"value"));
}

#[test]
fn the_largest_value_goes_in_and_comes_out() {
    let served = serve(Limits::default());
    let mut client = served.client();
    let large: Vec<u8> = (0..8u32 << 20).map(|i| (i % 251) as u8).collect();
    client.send(&[set("/large", &large), get("/large")]);
    client.expect(&value(&large));
}

#[test]
fn ten_thousand_pipelined_requests_are_answered_in_order() {
    let served = serve(Limits::default());
    let mut client = served.client();
    client.send(&vec![Request::Add { key: "/n".into(), delta: 1 }; 10_000]);
    for number in 1..=10_000 {
        client.expect(&Reply::Number(number));
    }
}

#[test]
fn a_client_that_sends_much_and_reads_later_gets_every_reply() {
    let served = serve(Limits::default());
    let mut client = served.client();
    let block = vec![9; 100_000];
    client.send(&[set("/block", &block)]);
    let mut reader = common::Client::on(client.0.try_clone().unwrap());
    // 100 MB of replies: the server has to stop reading, and to continue when the client reads.
    let sending = std::thread::spawn(move || {
        for _ in 0..10 {
            client.send(&vec![get("/block"); 100]);
        }
    });
    for _ in 0..1000 {
        reader.expect(&value(&block));
    }
    sending.join().unwrap();
}

#[test]
fn five_hundred_clients_connect_at_once() {
    let served = serve(Limits::default());
    let mut clients: Vec<_> = (0..512).map(|_| served.unvalidated()).collect();
    for client in &mut clients {
        client.send(&[Request::Validate, Request::Add { key: "/n".into(), delta: 1 }, wait("/go")]);
    }
    // All were counted when the counter reaches the number; the replies before come in any order.
    let mut last = served.client();
    let mut counts: Vec<i64> = clients
        .iter_mut()
        .map(|client| {
            let mut number = [0; 8];
            std::io::Read::read_exact(&mut client.0, &mut number).unwrap();
            i64::from_le_bytes(number)
        })
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=512).collect::<Vec<_>>());
    last.send(&[set("/go", b"")]);
    for client in &mut clients {
        client.expect(&Reply::StopWaiting);
    }
    assert_eq!(served.server.arrivals().len(), 513);
}
