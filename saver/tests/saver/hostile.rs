//! Clients that say what they must not.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::fs::FileExt as _,
    },
};

use checkpoint::message::{ErrorCode, Reply, Request, Storage, WaitState};
use nix::{
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
    unistd::getuid,
};

use crate::{
    client::{Client, Facts, read, state},
    support::{Node, files},
};

const BYTES: u64 = 1 << 20;

fn refusal(client: &mut Client, line: &[u8]) -> ErrorCode {
    client.send(line).unwrap();
    let (Reply::Error(refusal), _) = client.reply().unwrap() else { panic!() };
    refusal.code
}

/// That the saver serves others as before.
fn assert_serves(node: &Node) {
    let folder = tempfile::tempdir().unwrap();
    let facts = Facts::alone(folder.path().to_str().unwrap());
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    client.save(&facts, &slots, 1, BYTES, Storage::Memory);
}

/// A number of `/proc/<pid>/status`.
fn status(node: &Node, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", node.pid)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn descriptors(node: &Node) -> usize {
    fs::read_dir(format!("/proc/{}/fd", node.pid)).unwrap().count()
}

#[test]
fn another_user_is_refused() {
    if !getuid().is_root() {
        crate::support::skip("only root can become another user");
        return;
    }
    let node = Node::new();
    let mut stranger = node.process(&["stranger", &node.name]);
    let answer = stranger.line();
    assert!(answer.contains("belongs to user 65534"), "{answer}");
    assert_serves(&node);
    node.end();
}

#[test]
fn lines_that_are_no_request_are_answered_and_do_no_harm() {
    let node = Node::new();
    let mut client = Client::connect(&node.name).unwrap();
    for line in [
        &b"\n"[..],
        b"{\n",
        b"\0\xff\n",
        b"[1]\n",
        b"{\"type\":\"begin\",\"step\":-1}\n",
        b"{\"type\":\"x\"}\n",
    ] {
        assert_eq!(refusal(&mut client, line), ErrorCode::Invalid, "{line:?}");
    }
    let deep = format!("{}{}\n", "[".repeat(500_000), "]".repeat(500_000));
    assert_eq!(refusal(&mut client, deep.as_bytes()), ErrorCode::Invalid);
    for request in [
        Request::Begin { step: 1, layout_id: 1, wait: false },
        Request::Load { step: None },
        Request::Abort { slot: u64::MAX },
        Request::Alloc { bytes: 1, layout_id: 0, slots: None },
    ] {
        assert_eq!(refusal(&mut client, request.to_line().as_bytes()), ErrorCode::OutOfOrder, "{request:?}");
    }
    assert_serves(&node);
    node.end();
}

#[test]
fn a_line_of_a_gigabyte_is_given_up_after_one_mebibyte() {
    let node = Node::new();
    let mut client = Client::connect(&node.name).unwrap();
    let block = vec![b'x'; 1 << 20];
    let mut sent: u64 = 0;
    let error = loop {
        match client.socket.write(&block) {
            Ok(length) => sent += length as u64,
            Err(error) => break error,
        }
        assert!(sent < 1 << 30, "the saver has read a gigabyte");
    };
    assert!(matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset), "{error}");
    let mut answer = String::new();
    let _reset_after_it = client.socket.read_to_string(&mut answer);
    assert!(answer.contains("too_long"), "{answer}");
    assert!(status(&node, "VmHWM:") < 64 << 10, "{} KiB", status(&node, "VmHWM:"));
    assert_serves(&node);
    node.end();
}

#[test]
fn descriptors_that_are_sent_are_not_kept() {
    let node = Node::new();
    let mut client = Client::connect(&node.name).unwrap();
    client.get(&Request::Status {});
    let before = descriptors(&node);
    let file = tempfile::tempfile().unwrap();
    let many: Vec<RawFd> = vec![file.as_raw_fd(); 250];
    let line = Request::Status {}.to_line();
    for _ in 0..100 {
        let rights = [ControlMessage::ScmRights(&many)];
        let parts = [io::IoSlice::new(line.as_bytes())];
        sendmsg::<()>(client.socket.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None).unwrap();
        client.reply().unwrap();
    }
    assert!(descriptors(&node) <= before, "{} descriptors", descriptors(&node));
    node.end();
}

#[test]
fn connections_without_number_are_refused_and_other_processes_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new();
    let connect = |_| Client::connect(&node.name).unwrap();
    let mut clients: Vec<Client> = (0..500).map(connect).collect();
    let mut refused = 0;
    for client in &mut clients {
        match client.ask(&Request::Status {}) {
            Ok((Reply::Status(_), _)) => {}
            Ok((Reply::Error(refusal), _)) => {
                assert_eq!(refusal.code, ErrorCode::TooMany);
                refused += 1;
            }
            // Closed before the request was sent.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 400, "{refused}");
    let dir = folder.path().to_str().unwrap();
    let mut worker = node.process(&["worker", &node.name, dir, "0", "1", "0", "8192", "memory"]);
    assert!(worker.line().starts_with("loaded"));
    assert_eq!(worker.line(), "saved 1");
    worker.kill();
    drop(clients);
    crate::support::until("connections are closed", || descriptors(&node) < 40);
    assert_serves(&node);
    node.end();
}

/// Saves a state whose header says something that cannot be.
fn save_with(
    client: &mut Client,
    facts: &Facts,
    slots: &[crate::client::Slot],
    step: u64,
    damage: impl Fn(&mut checkpoint::header::Header),
) -> String {
    let (id, _) = client.begin(step, BYTES);
    let slot = &slots.iter().find(|slot| slot.id == id).unwrap().file;
    crate::client::write(slot, facts, step, BYTES, |_| ()).unwrap();
    let meta = crate::client::meta(BYTES);
    let mut header = crate::client::header(facts, step, BYTES, &meta);
    damage(&mut header);
    slot.write_all_at(&header.to_bytes(&meta), 0).unwrap();
    client.commit(step, id, Storage::Disk);
    let Reply::Waited { state: WaitState::Failed, error: Some(error), .. } = client.wait(Some(step)) else {
        panic!("step {step} did not fail");
    };
    error
}

#[test]
fn a_header_that_points_beyond_the_slot_is_refused_and_older_steps_stay() {
    let folder = tempfile::tempdir().unwrap();
    let facts = Facts::alone(folder.path().to_str().unwrap());
    let mut node = Node::new();
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    client.save(&facts, &slots, 1, BYTES, Storage::Memory);
    let damages: [fn(&mut checkpoint::header::Header); 8] = [
        |header| header.data_len = u64::MAX,
        |header| header.data_len += 4096,
        |header| header.data_off = u64::MAX - 4095,
        |header| header.meta_len = u64::MAX,
        |header| (header.skeleton_off, header.skeleton_len) = (u64::MAX, 16),
        |header| (header.skeleton_off, header.skeleton_len) = (8192, 16),
        |header| header.step = 7777,
        |header| header.rank = 5,
    ];
    for (step, damage) in (2..).zip(damages) {
        let error = save_with(&mut client, &facts, &slots, step, damage);
        assert!(!error.is_empty());
    }
    assert_eq!(files(folder.path()), Vec::<String>::new());
    // The same after death: what is not whole is not offered.
    drop(client);
    node.next_round();
    assert_serves_round(&mut node, &facts);
    node.end();
}

fn assert_serves_round(node: &mut Node, facts: &Facts) {
    let facts = Facts { round: node.round, ..facts.clone() };
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    client.save(&facts, &slots, 100, BYTES, Storage::Memory);
    drop(client);
    node.next_round();
    let facts = Facts { round: node.round, ..facts };
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let (_, slot) = client.load(None);
    assert!(read(&slot.unwrap()) == (100, state(100, 0, BYTES)));
}
