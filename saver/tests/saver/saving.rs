//! Saves in memory and on disk, without a fault.

use std::{
    fs, io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::Path,
    time::{Duration, Instant},
};

use checkpoint::message::{
    ErrorCode, FromSaver, Keep, Reply, Request, Role, Source, Storage, WaitState, Wish,
};

use crate::{
    client::{Client, Facts, layout_of, read, slot_bytes, state},
    support::{Node, assert_holds, files},
};

const BYTES: u64 = 3 << 20;

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap().to_owned();
    (folder, dir)
}

#[test]
fn a_state_is_loaded_from_memory_as_it_was_saved_and_cannot_be_changed_by_the_reader() {
    let (_folder, dir) = folder();
    let mut node = Node::new();
    let facts = Facts::alone(&dir);
    let mut client = Client::connect(&node.name).unwrap();
    let Reply::Welcome { memory_step: None, disk_step: None, .. } = client.hello(&facts) else { panic!() };
    let slots = client.alloc(BYTES);
    assert_eq!(slots.len(), 3);
    for step in [5, 6] {
        client.save(&facts, &slots, step, BYTES, Storage::Memory);
    }
    drop(client);
    node.next_round();
    let facts = Facts { role: Role::Reader, round: 1, ..facts };
    let mut client = Client::connect(&node.name).unwrap();
    let Reply::Welcome { memory_step: Some(6), .. } = client.hello(&facts) else { panic!() };
    let (reply, slot) = client.load(None);
    let Reply::Loaded { source: Source::Memory, step: Some(6), slot: Some(id), .. } = reply else {
        panic!("{reply:?}");
    };
    let slot = slot.unwrap();
    assert!(read(&slot) == (6, state(6, 0, BYTES)));
    assert_eq!(slot.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
    // SAFETY: the kernel chooses the place; it must refuse.
    let mapped = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, slot.as_raw_fd(), 0)
    };
    assert_eq!(mapped, libc::MAP_FAILED);
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EACCES));
    client.get(&Request::LoadedDone { slot: id });
    node.end();
}

#[test]
fn a_step_on_disk_is_committed_and_is_what_the_next_saver_loads() {
    let (folder, dir) = folder();
    let mut node = Node::new();
    let facts = Facts::alone(&dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    client.save(&facts, &slots, 7, BYTES, Storage::Disk);
    node.until("the commit", |message| matches!(message, FromSaver::Committed { step: 7, .. }).then_some(()));
    let Reply::Waited { state: WaitState::OnDisk, step: Some(7), .. } = client.wait(None) else { panic!() };
    assert_eq!(files(folder.path()), [".dlrover/7.json", "7/rank_0.pt", "dlrover_latest.txt"]);
    assert_eq!(fs::read(folder.path().join("dlrover_latest.txt")).unwrap(), b"7");
    assert_holds(&folder.path().join("7/rank_0.pt"), 7, 0, BYTES);
    drop(client);
    node.replace_saver();
    let mut client = Client::connect(&node.name).unwrap();
    let Reply::Welcome { memory_step: None, disk_step: Some(7), .. } = client.hello(&facts) else { panic!() };
    let (reply, slot) = client.load(None);
    let Reply::Loaded { source: Source::Disk, step: Some(7), path: Some(path), .. } = reply else {
        panic!("{reply:?}");
    };
    assert!(slot.is_none());
    assert_eq!(Path::new(&path), folder.path().join("7/rank_0.pt"));
    node.end();
}

#[test]
fn the_user_says_the_path_and_how_many_steps_stay() {
    let (folder, dir) = folder();
    let mut node = Node::new();
    let facts = Facts { keep: Some(Keep::Latest(2)), ..Facts::alone(&dir) };
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    for step in 1..=4 {
        let (slot, _) = client.begin(step, BYTES);
        let file = &slots.iter().find(|known| known.id == slot).unwrap().file;
        crate::client::write(file, &facts, step, BYTES, |_| ()).unwrap();
        let path = format!("{dir}/deep/er/checkpoint-{step}.pt");
        let wish = Wish { storage: Storage::Disk, path, writes_disk: true };
        client.get(&Request::Commit { step, slot, wish });
        node.until("the commit", |message| {
            matches!(message, FromSaver::Committed { step: at, .. } if *at == step).then_some(())
        });
    }
    let expected = [
        ".dlrover/3.json",
        ".dlrover/4.json",
        "deep/er/checkpoint-3.pt",
        "deep/er/checkpoint-4.pt",
        "dlrover_latest.txt",
    ];
    crate::support::until("older steps are removed", || files(folder.path()) == expected);
    assert_holds(&folder.path().join("deep/er/checkpoint-4.pt"), 4, 0, BYTES);
    drop(client);
    node.end();
}

#[test]
fn ten_saves_while_one_is_written_are_all_taken() {
    let (_folder, dir) = folder();
    let mut node = Node::new();
    let facts = Facts::alone(&dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let bytes = 512 << 20;
    let slots = client.alloc(bytes);
    // Only headers are written below, and the data stays zeros: so ten saves fit into one write to disk.
    let mut save = |step: u64, storage: Storage| {
        let (id, superseded) = client.begin(step, bytes);
        let slot = &slots.iter().find(|slot| slot.id == id).unwrap().file;
        let meta = crate::client::meta(bytes);
        let header = crate::client::header(&facts, step, bytes, &meta).to_bytes(&meta);
        slot.write_all_at(&meta, 4096).unwrap();
        slot.write_all_at(&header, 0).unwrap();
        client.commit(step, id, storage);
        superseded
    };
    save(1, Storage::Disk);
    let superseded: Vec<u64> = (2..=11).flat_map(|step| save(step, Storage::Disk)).collect();
    node.catch_up();
    let is_written = node.said.iter().any(|message| matches!(message, FromSaver::Persisted { step: 1, .. }));
    assert!(!is_written, "the disk is too fast for this test");
    // The last two are on their way, in the two slots that are free, and those before them are named.
    assert_eq!(superseded, (2..=9).collect::<Vec<_>>());
    let mut steps = Vec::new();
    node.until("the last step", |message| {
        if let FromSaver::Committed { step, .. } = message {
            steps.push(*step);
        }
        steps.contains(&11).then_some(())
    });
    assert_eq!(steps, [1, 10, 11]);
    for (step, expected) in [(5, WaitState::Superseded), (11, WaitState::OnDisk)] {
        let Reply::Waited { state, .. } = client.wait(Some(step)) else { panic!() };
        assert_eq!(state, expected, "step {step}");
    }
    drop(client);
    node.end();
}

#[test]
fn a_write_to_disk_stands_back_while_a_worker_saves_but_not_for_ever() {
    let (_folder, dir) = folder();
    let mut node = Node::new();
    let (facts, other) = (Facts::alone(&dir), Facts::alone(&format!("{dir}/other")));
    let mut connected = [&facts, &other].map(|facts| {
        let mut client = Client::connect(&node.name).unwrap();
        client.hello(facts);
        let slots = client.alloc(BYTES);
        (client, slots)
    });
    let [(writing, slots), (saving, _)] = &mut connected;
    saving.begin(1, BYTES);
    let began = Instant::now();
    writing.save(&facts, slots, 7, BYTES, Storage::Disk);
    node.until("the write", |message| matches!(message, FromSaver::Persisted { step: 7, .. }).then_some(()));
    // A slow disk may hide that there was no pause; no machine makes one shorter.
    assert!(began.elapsed() >= Duration::from_secs(1), "the write took {:?}", began.elapsed());
    drop(connected);
    node.end();
}

#[test]
fn shards_of_a_step_are_written_together_and_counted_together() {
    let (folder, dir) = folder();
    let mut node = Node::of(2, crate::support::ALLOWANCE);
    let mut clients: Vec<_> = (0..2)
        .map(|rank| {
            let facts = Facts::sharded(&dir, rank, 2);
            let mut client = Client::connect(&node.name).unwrap();
            client.hello(&facts);
            let slots = client.alloc(BYTES);
            (facts, client, slots)
        })
        .collect();
    for (facts, client, slots) in &mut clients {
        client.save(facts, slots, 9, BYTES, Storage::Disk);
    }
    node.until("the commit", |message| matches!(message, FromSaver::Committed { step: 9, .. }).then_some(()));
    for rank in 0..2 {
        assert_holds(&folder.path().join(format!("9/rank_{rank}.pt")), 9, rank, BYTES);
    }
    assert_eq!(fs::read(folder.path().join("dlrover_latest.txt")).unwrap(), b"9");
    drop(clients);
    node.end();
}

#[test]
fn a_state_beyond_the_allowance_is_refused_and_a_smaller_one_is_taken() {
    let (_folder, dir) = folder();
    let node = Node::of(1, 4 * slot_bytes(BYTES));
    let facts = Facts::alone(&dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let bytes = slot_bytes(BYTES) * 4 + 4096;
    let (reply, _) = client.ask(&Request::Alloc { bytes, layout_id: 1, slots: None }).unwrap();
    let Reply::Error(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.code, ErrorCode::NoMemory);
    assert!(refusal.need.unwrap() > refusal.have.unwrap(), "{refusal:?}");
    assert_eq!(client.alloc(BYTES).len(), 3);
    drop(client);
    node.end();
}

#[test]
fn more_memory_than_the_host_has_is_refused_before_it_is_taken() {
    let (_folder, dir) = folder();
    let node = Node::of(1, u64::MAX);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&Facts::alone(&dir));
    let (reply, _) = client.ask(&Request::Alloc { bytes: 1 << 43, layout_id: 1, slots: None }).unwrap();
    let Reply::Error(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.code, ErrorCode::NoMemory, "{refusal:?}");
    drop(client);
    node.end();
}

#[test]
fn when_shapes_change_the_old_step_stays_until_the_first_new_one() {
    let (_folder, dir) = folder();
    let mut node = Node::new();
    let facts = Facts::alone(&dir);
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(BYTES);
    client.save(&facts, &slots, 1, BYTES, Storage::Memory);
    let larger = BYTES * 2;
    let new_slots = client.alloc(larger);
    // A save of the new layout that is not finished takes nothing away.
    client.begin(2, larger);
    drop(client);
    let steps = node.next_round();
    assert_eq!(steps[&dir], Some(1));
    let facts = Facts { round: 1, ..facts };
    let mut client = Client::connect(&node.name).unwrap();
    client.hello(&facts);
    let (_, slot) = client.load(None);
    assert!(read(&slot.unwrap()) == (1, state(1, 0, BYTES)));
    drop(new_slots);
    let new_slots = client.alloc(larger);
    client.save(&facts, &new_slots, 2, larger, Storage::Memory);
    let (reply, _) = client.get(&Request::Begin { step: 3, layout_id: layout_of(larger), wait: false });
    assert!(matches!(reply, Reply::Begun { .. }));
    drop(client);
    assert_eq!(node.next_round()[&dir], Some(2));
    node.end();
}
