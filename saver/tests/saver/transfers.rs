//! Slots that go from one node to another, over real sockets.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpStream},
};

use checkpoint::message::{
    Dir, Endpoint, Fetch, FetchSource, FromSaver, Reply, RestorePoint, RestoreSource, Source, Storage,
    ToSaver,
};
use serde_json::json;

use crate::{
    client::{Client, Facts, Slot, TIMEOUT, crate_run_id, layout_of, read, slot_bytes, state},
    support::{ALLOWANCE, Node},
};

/// More than the kernel keeps for a connection that nothing reads.
const BYTES: u64 = 64 << 20;

/// One of two nodes with a rank each.
struct Rank {
    node: Node,
    facts: Facts,
}

impl Rank {
    fn new(folder: &str, rank: u32) -> Self {
        let mut rank = Self { node: Node::of(2, ALLOWANCE), facts: Facts::sharded(folder, rank, 2) };
        rank.begin_round(1, Vec::new());
        rank
    }

    fn begin_round(&mut self, round: u32, restore: Vec<RestorePoint>) {
        (self.node.round, self.facts.round) = (round, round);
        self.node.tell(ToSaver::Round {
            round,
            world: 2,
            first_rank: self.facts.rank,
            local_world_size: 1,
            restore,
            memory_is_void: false,
        });
    }

    fn dir(&self) -> Dir {
        Dir::try_from(self.facts.dir.as_str()).unwrap()
    }

    fn writer(&self) -> (Client, Vec<Slot>) {
        let mut client = Client::connect(&self.node.name).unwrap();
        client.hello(&self.facts);
        let slots = client.alloc(BYTES);
        (client, slots)
    }

    /// Where other nodes reach it, once it has this step.
    fn endpoint(&mut self, step: u64) -> Endpoint {
        self.node.tell(ToSaver::Report {});
        self.node.until("the endpoint", |said| match said {
            FromSaver::State { shards, .. } => {
                let shard = shards.iter().find(|shard| shard.steps.contains(&step))?;
                shard.endpoint.clone()
            }
            _ => None,
        })
    }

    fn fetch(&mut self, step: u64, from: &Endpoint) {
        let from =
            FetchSource { address: "127.0.0.1".to_owned(), port: from.port, ticket: from.ticket.clone() };
        let fetch = Fetch {
            shard: 1 - self.facts.rank,
            n_shards: 2,
            replicated: false,
            layout_id: layout_of(BYTES),
            bytes: slot_bytes(BYTES),
            is_replica: true,
            given_up: 0,
            from,
        };
        let (round, dir) = (self.node.round, self.dir());
        self.node.tell(ToSaver::Fetch { round, dir, step, fetch: Box::new(fetch) });
    }

    /// Waits until it has a replica of this step.
    fn await_replica(&mut self, step: u64) {
        self.node.until("the replica", |said| match said {
            FromSaver::State { shards, .. } => {
                shards.iter().find(|shard| shard.is_replica && shard.steps.contains(&step)).map(drop)
            }
            FromSaver::FetchFailed { reason, .. } => panic!("{reason}"),
            _ => None,
        });
    }
}

fn connect(to: &Endpoint) -> TcpStream {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, to.port)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// A request for shard 0.
fn ask(ticket: &str, folder: &str, step: u64) -> String {
    let ask = json!({
        "v": 1,
        "ticket": ticket,
        "run_id": crate_run_id(),
        "dir": folder,
        "shard": 0,
        "step": step,
        "layout_id": layout_of(BYTES),
        "bytes": slot_bytes(BYTES),
    });
    format!("{ask}\n")
}

#[test]
fn a_replica_is_what_was_saved_and_is_loaded_where_its_rank_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (mut a, mut b) = (Rank::new(path, 0), Rank::new(path, 1));
    let (mut client, slots) = a.writer();
    client.save(&a.facts, &slots, 5, BYTES, Storage::Memory);
    client.save(&a.facts, &slots, 6, BYTES, Storage::Memory);
    let endpoint = a.endpoint(6);
    for step in [5, 6] {
        b.fetch(step, &endpoint);
        b.await_replica(step);
    }
    a.node.end();
    // The rank of the lost node is on this one now.
    b.facts.rank = 0;
    b.facts.shard = 0;
    let (dir, source, pending) = (b.dir(), RestoreSource::Memory, None);
    b.begin_round(2, vec![RestorePoint { dir, step: 6, source, pending, given_up: 0, fetched: None }]);
    let mut client = Client::connect(&b.node.name).unwrap();
    client.hello(&b.facts);
    let (reply, slot) = client.load(None);
    let Reply::Loaded { source: Source::Replica, step: Some(6), .. } = reply else { panic!("{reply:?}") };
    assert!(read(&slot.unwrap()) == (6, state(6, 0, BYTES)), "it is torn");
    b.node.end();
}

#[test]
fn a_save_waits_for_no_node_and_what_that_node_gets_has_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut a = Rank::new(path, 0);
    let (mut client, slots) = a.writer();
    // Two nodes read nothing but the first line, so that two of three slots are being sent, and the third one is the
    // newest: a save takes the older one of the two.
    let slow = [1, 2].map(|step| {
        client.save(&a.facts, &slots, step, BYTES, Storage::Memory);
        let endpoint = a.endpoint(step);
        let mut slow = connect(&endpoint);
        slow.write_all(ask(&endpoint.ticket, path, step).as_bytes()).unwrap();
        let mut byte = [0];
        while byte != *b"\n" {
            slow.read_exact(&mut byte).unwrap();
        }
        slow
    });
    for step in 3..8 {
        client.save(&a.facts, &slots, step, BYTES, Storage::Memory);
    }
    let [mut slow, _other] = slow;
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    let (mut frames, mut at) = (0, 0);
    while let Some(head) = rest.get(at..at + 8) {
        let length = u32::from_le_bytes(head[..4].try_into().unwrap());
        assert_ne!(length, 0, "a slot that was overwritten was sent to its end");
        (frames, at) = (frames + 1, at + 8 + length as usize);
    }
    assert!(frames < 64, "{frames}");
    a.node.end();
}

#[test]
fn unknown_peers_get_nothing_and_are_no_burden() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (mut a, mut b) = (Rank::new(path, 0), Rank::new(path, 1));
    let (mut client, slots) = a.writer();
    client.save(&a.facts, &slots, 1, BYTES, Storage::Memory);
    let endpoint = a.endpoint(1);
    // They hold all places of those that have not said yet what they want, for a few seconds.
    let silent: Vec<TcpStream> = (0..80).map(|_| connect(&endpoint)).collect();
    let wrong = "0".repeat(32);
    for request in [
        ask(&wrong, path, 1).into_bytes(),
        ask("", path, 1).into_bytes(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"\n".to_vec(),
        vec![b'x'; 1 << 20],
        format!("{}\n", "[".repeat(30_000)).into_bytes(),
    ] {
        let mut socket = connect(&endpoint);
        // One that is closed meanwhile cannot be written to.
        let _closed = socket.write_all(&request).and_then(|()| socket.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        let closed = socket.read_to_end(&mut answer);
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        assert!(closed.as_ref().map_or_else(|error| kinds.contains(&error.kind()), |_| true), "{closed:?}");
        assert_eq!(answer, b"");
    }
    drop(silent);
    // What is not there is refused with a reason.
    let mut socket = connect(&endpoint);
    socket.write_all(ask(&endpoint.ticket, path, 9).as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "{\"error\":\"step 9 of shard 0 is not in memory\"}\n");
    // An order that cannot be carried out is answered, and the next one is.
    let nowhere = Endpoint { port: 1, ticket: wrong };
    b.fetch(1, &nowhere);
    let reason = b.node.until("the failure", |said| match said {
        FromSaver::FetchFailed { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.starts_with("cannot connect to 127.0.0.1:1: "), "{reason}");
    b.fetch(1, &endpoint);
    b.await_replica(1);
    a.node.end();
    b.node.end();
}
