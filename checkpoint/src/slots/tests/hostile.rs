//! Clients that lie, flood or do things out of order: an error or the end of that connection, and nothing to others.

use super::*;
use crate::message::{ErrorCode, RequestError};

#[test]
fn nothing_is_done_before_hello() {
    let mut bench = Bench::in_round(1);
    let client = bench.connect(Process(1));
    let requests = [
        alloc(1, 1),
        begin(1),
        commit(1, SlotId(1), Storage::Disk),
        load(None),
        wait(None),
        Request::Abort { slot: 1 },
    ];
    for request in requests.into_iter().chain([Request::LoadedDone { slot: 1 }]) {
        assert_eq!(refused(&bench.send(client, request)), ErrorCode::OutOfOrder);
    }
    assert!(matches!(
        &bench.send(client, Request::Status {})[..],
        [Effect::Reply { reply: Reply::Status(_), .. }]
    ));
}

#[test]
fn a_reader_writes_nothing() {
    let (mut bench, _, slots) = Bench::with_writer();
    let reader = bench.admitted(Process(2), hello(0, 1, Role::Reader));
    for request in
        [alloc(1, 1), begin(1), commit(1, slots[0], Storage::Disk), Request::Abort { slot: slots[0].0 }]
    {
        assert_eq!(refused(&bench.send(reader, request)), ErrorCode::OutOfOrder);
    }
}

#[test]
fn slots_of_others_are_out_of_reach() {
    let mut bench = Bench::in_round(2);
    let first = bench.admitted(Process(1), hello(0, 2, Role::Writer));
    let second = bench.admitted(Process(2), hello(1, 2, Role::Writer));
    let slots = bench.allocated(first);
    bench.allocated(second);
    let (taken, _) = bench.begin(first, 1);
    let before = bench.states();
    for slot in [taken, slots[1], SlotId(0), SlotId(u64::MAX)] {
        assert_eq!(refused(&bench.commit(second, 1, slot, Storage::Memory)), ErrorCode::NotYours);
        assert_eq!(refused(&bench.send(second, Request::Abort { slot: slot.0 })), ErrorCode::NotYours);
        assert_eq!(refused(&bench.send(second, Request::LoadedDone { slot: slot.0 })), ErrorCode::NotYours);
    }
    // Nor is a slot of its own that it has not begun.
    assert_eq!(refused(&bench.commit(first, 1, slots[1], Storage::Memory)), ErrorCode::NotYours);
    assert_eq!(refused(&bench.commit(first, 2, taken, Storage::Memory)), ErrorCode::Invalid);
    assert_eq!(bench.states(), before);
}

#[test]
fn a_client_that_begins_twice_has_one_slot() {
    let (mut bench, writer, _) = Bench::with_writer();
    for step in 1..100 {
        bench.begin(writer, step);
    }
    assert_eq!(bench.states().iter().filter(|(_, state, _)| state == "writing").count(), 1);
}

#[test]
fn absurd_numbers_are_refused() {
    let (mut bench, writer, _) = Bench::with_writer();
    let huge = bench.send(writer, alloc(u64::MAX / 2, 9));
    assert_eq!(refused(&huge[1..]), ErrorCode::NoMemory);
    assert_eq!(refused(&bench.send(writer, begin(1))), ErrorCode::OutOfOrder);
    assert_eq!(
        refused(&bench.send(writer, Request::Hello(hello(0, 1, Role::Writer)))),
        ErrorCode::OutOfOrder
    );
}

#[test]
fn a_line_that_cannot_be_read_is_answered_in_its_turn() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Disk);
    bench.send(writer, wait(Some(1)));
    let refusal = Refusal::from(Request::parse(b"{}").unwrap_err());
    let event = Event::Received { connection: writer, request: Err(refusal.clone()) };
    assert_eq!(bench.handle(event), []);
    let both = bench.agent(ToSaver::Committed { dir: dir(), step: 1 });
    assert_eq!(both[1], reply(writer, Reply::Error(refusal)));
}

#[test]
fn a_line_without_an_end_ends_its_connection() {
    let (mut bench, writer, _) = Bench::with_writer();
    let refusal = Refusal::from(RequestError::TooLong);
    let event = Event::Received { connection: writer, request: Err(refusal.clone()) };
    assert_eq!(
        bench.handle(event),
        [reply(writer, Reply::Error(refusal)), Effect::Close { connection: writer }]
    );
    assert_eq!(bench.send(writer, begin(1)), []);
}

#[test]
fn a_flood_of_requests_ends_its_connection() {
    let (mut bench, writer, _) = Bench::with_writer();
    let other = bench.admitted(Process(2), hello(0, 1, Role::Reader));
    bench.save(writer, 1, Storage::Disk);
    bench.send(other, wait(Some(1)));
    for _ in 0..32 {
        assert_eq!(bench.send(other, Request::Status {}), []);
    }
    let ended = bench.send(other, Request::Status {});
    assert_eq!(refused(&ended[..1]), ErrorCode::TooMany);
    assert_eq!(ended[1..], [Effect::Close { connection: other }]);
    bench.begin(writer, 2);
}

#[test]
fn a_flood_of_connections_is_refused() {
    let mut bench = Bench::in_round(1);
    for process in 0..1024 {
        bench.connect(Process(process));
    }
    let connection = Connection(5000);
    let ended = bench.handle(Event::Connected { connection, process: Process(1) });
    assert_eq!(refused(&ended[..1]), ErrorCode::TooMany);
    assert_eq!(ended[1..], [Effect::Close { connection }]);
    assert_eq!(bench.handle(Event::Disconnected { connection: Connection(1) }), []);
    assert_eq!(bench.handle(Event::Connected { connection: Connection(5001), process: Process(1) }), []);
}

#[test]
fn a_flood_of_folders_is_refused_and_ended_ones_are_forgotten() {
    let mut bench = Bench::in_round(1);
    let named = |number: u64| {
        let dir = Dir::try_from(format!("/ckpt{number}")).unwrap();
        Hello { dir, ..hello(0, 1, Role::Reader) }
    };
    let clients: Vec<Connection> =
        (0..256).map(|number| bench.admitted(Process(number), named(number))).collect();
    let late = bench.connect(Process(999));
    assert_eq!(refused(&bench.send(late, Request::Hello(named(256)))), ErrorCode::TooMany);
    assert_eq!(bench.handle(Event::Disconnected { connection: clients[0] }), []);
    bench.admitted(Process(999), named(256));
}

#[test]
fn events_of_nothing_change_nothing() {
    let (mut bench, _, _) = Bench::with_writer();
    let before = bench.states();
    let nothing = [
        Event::Disconnected { connection: Connection(99) },
        Event::ProcessDied { process: Process(99) },
        Event::SlotsAllocated { slots: vec![SlotId(99)], result: Ok(()) },
        Event::SlotFilled { slot: SlotId(99), result: Ok(()) },
        Event::HeaderRead { slot: SlotId(1), result: Ok(header(1, 0, 1)) },
        Event::Progressed { persist: PersistId(99), bytes: 1, of: 2 },
        Event::PersistEnded { persist: PersistId(99), result: Err("?".to_owned()) },
        Event::ManifestWritten { dir: dir(), step: 1, result: Ok(()) },
        Event::FolderRead { dir: dir(), result: Ok(Folder::default()) },
        Event::FilesChecked { check: CheckId(99), result: Ok(()) },
        Event::Deadline,
    ];
    for event in nothing {
        assert_eq!(bench.handle(event), []);
    }
    assert_eq!(bench.states(), before);
}

#[test]
fn a_deeply_wrong_agent_is_survived() {
    let (mut bench, _, _) = Bench::with_writer();
    let ranks = ToSaver::Round {
        round: 1,
        world: u32::MAX,
        first_rank: u32::MAX,
        local_world_size: u32::MAX,
        restore: vec![memory(u64::MAX)],
        memory_is_void: false,
    };
    bench.agent(ranks);
    bench.agent(ToSaver::Commit { dir: dir(), step: u64::MAX, manifest: Box::new(manifest(1, 1)) });
    bench.agent(ToSaver::Finish { grace_ms: u64::MAX, also_memory: true });
}
