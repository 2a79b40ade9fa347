//! Turns, driven one by one.

use std::{
    future::poll_fn,
    io::{Read, Write},
    net,
};

use tokio::net::TcpListener;

use super::*;
use crate::codec::{Key, Request};

/// A hub without a server around it: the test decides on turns.
struct Served {
    hub: Hub,
    listener: TcpListener,
}

impl Served {
    async fn new(keys: usize) -> Self {
        let mut hub = Hub::new(Limits { max_keys: keys, ..Limits::default() }, Arrivals::default());
        let pair = |number: usize| (Key::from(&*format!("key {number:07}")), "".into());
        let all = Request::MultiSet((0..keys).map(pair).collect());
        hub.table.handle(ClientId(u64::MAX), all, &mut Vec::new()).unwrap();
        Served { hub, listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    /// A validated client.
    async fn client(&mut self) -> (ClientId, net::TcpStream) {
        let client = net::TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = self.listener.accept().await.unwrap();
        let id = self.hub.add(stream, peer).unwrap();
        send(&client, &Request::Validate);
        self.turn_until(id, |hub| hub.connections[&id].is_validated()).await;
        (id, client)
    }

    async fn serve_client(&mut self, id: ClientId) -> Option<ServeResult> {
        poll_fn(|context| {
            Poll::Ready(match self.hub.serve_client(id, context) {
                Poll::Ready(serve_client) => Some(serve_client),
                Poll::Pending => None,
            })
        })
        .await
    }

    /// Turns until the condition holds.
    async fn turn_until(&mut self, id: ClientId, is_so: impl Fn(&Hub) -> bool) {
        while !is_so(&self.hub) {
            self.serve_client(id).await;
            tokio::task::yield_now().await;
        }
    }
}

fn send(mut client: &net::TcpStream, request: &Request) {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    client.write_all(&bytes).unwrap();
}

fn run<F: Future>(case: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(case)
}

#[test]
fn another_is_answered_while_a_million_keys_are_listed() {
    run(async {
        const KEYS: usize = 1_000_000;
        let mut served = Served::new(KEYS).await;
        let (lister, listing) = served.client().await;
        let (other, mut stream) = served.client().await;
        send(&listing, &Request::ListKeys);
        served.turn_until(lister, |hub| hub.connections[&lister].has_unserved()).await;
        stream.set_nonblocking(true).unwrap();
        let mut turns = 1;
        // It does not read, so everything is gathered when the turns are over.
        while served.serve_client(lister).await == Some(ServeResult::More) {
            turns += 1;
            served.hub.next_in_queue(lister);
            if turns % 100 == 0 {
                send(&stream, &Request::Get("key 0000007".into()));
                let mut answer = [1; 8];
                while stream.read(&mut answer).is_err() {
                    served.serve_client(other).await;
                    tokio::task::yield_now().await;
                }
                assert_eq!(answer, [0; 8]);
                assert!(served.hub.connections[&lister].has_unserved(), "the list is at its end");
            }
        }
        assert!(turns >= KEYS / KEYS_PER_STEP, "{turns} turns for {KEYS} keys");
        assert!(served.hub.in_flight_bytes > 10 * KEYS, "the list is gathered, and not yet told");
    });
}

#[test]
fn long_requests_take_turns() {
    run(async {
        let mut served = Served::new(20_000).await;
        let mut listers = Vec::new();
        for _ in 0..5 {
            listers.push(served.client().await);
        }
        for (id, stream) in &listers {
            send(stream, &Request::ListKeys);
            served.turn_until(*id, |hub| hub.connections[id].has_unserved()).await;
        }
        // Only the first continues, however often all are asked.
        let mut order = Vec::new();
        for _ in 0..10 {
            let mut went = Vec::new();
            for (id, _) in &listers {
                if served.serve_client(*id).await == Some(ServeResult::More) {
                    went.push(*id);
                }
            }
            assert_eq!(went.len(), 1, "{went:?}");
            served.hub.next_in_queue(went[0]);
            order.extend(went);
        }
        assert_eq!(order[..5], order[5..], "all in turn");
        // The first of them disconnects: the next is not held up by it.
        let gone = *served.hub.queue.front().unwrap();
        served.hub.forget(gone);
        let next = *served.hub.queue.front().unwrap();
        assert_eq!(served.serve_client(next).await, Some(ServeResult::More));
    });
}

#[test]
fn a_client_with_many_requests_yields_to_others() {
    run(async {
        let mut served = Served::new(10).await;
        let (id, stream) = served.client().await;
        let mut bytes = Vec::new();
        (0..3 * WORK_PER_TURN).for_each(|_| Request::QueueLen("q".into()).encode(&mut bytes));
        (&stream).write_all(&bytes).unwrap();
        served.turn_until(id, |hub| hub.connections[&id].has_unserved()).await;
        stream.set_nonblocking(true).unwrap();
        let mut answers = vec![0; 1 << 20];
        let mut first = 0;
        while let Ok(read) = (&stream).read(&mut answers) {
            first += read;
        }
        assert!(first <= 8 * WORK_PER_TURN, "{} answers in one turn", first / 8);
        let mut all = first;
        while all < 8 * 3 * WORK_PER_TURN {
            if served.serve_client(id).await == Some(ServeResult::More) {
                served.hub.next_in_queue(id);
            }
            tokio::task::yield_now().await;
            while let Ok(read) = (&stream).read(&mut answers) {
                all += read;
            }
        }
        assert!(served.hub.queue.is_empty());
    });
}
