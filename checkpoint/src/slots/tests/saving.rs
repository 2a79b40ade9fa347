//! Hello, slots, and which of them a save takes.

use super::*;
use crate::message::{ErrorCode, Keep};

#[test]
fn a_hello_waits_for_its_round_and_its_folder() {
    let mut bench = Bench::new(1 << 30);
    let writer = bench.connect(Process(1));
    let asked = Request::Hello(Hello { round: Some(0), ..hello(0, 1, Role::Writer) });
    assert_eq!(bench.send(writer, asked), []);
    assert_eq!(bench.agent(round(0, 1, Vec::new())), [Effect::ReadFolder { dir: dir(), sweep: true }]);
    let welcome = Reply::Welcome { v: 1, epoch: EPOCH, slots: 0, memory_step: None, disk_step: Some(7) };
    assert_eq!(bench.folder_read(&dir(), folder(7, &[7], 1)), [reply(writer, welcome)]);
}

#[test]
fn a_round_that_is_not_told_is_waited_for_ten_seconds() {
    let mut bench = Bench::new(1 << 30);
    let writer = bench.connect(Process(1));
    assert_eq!(bench.send(writer, Request::Hello(hello(0, 1, Role::Writer))), []);
    assert_eq!(bench.saver.deadline(), Some(Moment(11_000)));
    assert_eq!(bench.later(9_999), []);
    assert_eq!(refused(&bench.later(1)), ErrorCode::NotReady);
    assert_eq!(bench.saver.deadline(), None);
}

#[test]
fn a_folder_that_hangs_holds_a_hello_for_ten_seconds() {
    let mut bench = Bench::in_round(1);
    let writer = bench.connect(Process(1));
    let asked = bench.send(writer, Request::Hello(hello(0, 1, Role::Writer)));
    assert_eq!(asked, [Effect::ReadFolder { dir: dir(), sweep: true }]);
    let welcome = Reply::Welcome { v: 1, epoch: EPOCH, slots: 0, memory_step: None, disk_step: None };
    assert_eq!(bench.later(10_000), [reply(writer, welcome)]);
}

#[test]
fn workers_of_another_round_run_and_rank_are_refused() {
    let mut bench = Bench::new(1 << 30);
    assert_eq!(bench.agent(round(3, 2, Vec::new())), []);
    let mut code = |change: fn(&mut Hello)| {
        let mut asked = hello(0, 2, Role::Writer);
        change(&mut asked);
        let connection = bench.connect(Process(1));
        refused(&bench.send(connection, Request::Hello(asked)))
    };
    assert_eq!(code(|hello| hello.round = Some(2)), ErrorCode::StaleRound);
    assert_eq!(code(|hello| hello.run_id = "other".to_owned()), ErrorCode::Invalid);
    assert_eq!(code(|hello| hello.rank = 2), ErrorCode::Invalid);
    assert_eq!(code(|hello| hello.world = 3), ErrorCode::Invalid);
}

#[test]
fn a_refused_rank_is_told_the_ranks_of_this_node() {
    for (first_rank, local_world_size, own) in [(1, 1, "rank 1"), (2, 2, "ranks 2 to 3")] {
        let mut bench = Bench::new(1 << 30);
        bench.agent(ToSaver::Round {
            round: 0,
            world: 4,
            first_rank,
            local_world_size,
            restore: Vec::new(),
            memory_is_void: false,
        });
        let connection = bench.connect(Process(1));
        let answer = bench.send(connection, Request::Hello(hello(0, 4, Role::Writer)));
        let start = format!("rank 0 of 4 is not on this node, which has {own} of 4; do not change");
        assert!(refusal_text(&answer).starts_with(&start), "{answer:?}");
    }
}

#[test]
fn a_shard_has_one_writer_until_it_is_dead() {
    let mut bench = Bench::in_round(1);
    let first = bench.admitted(Process(1), hello(0, 1, Role::Writer));
    let second = bench.connect(Process(2));
    assert_eq!(bench.send(second, Request::Hello(hello(0, 1, Role::Writer))), []);
    // The end of its connection says nothing.
    assert_eq!(bench.handle(Event::Disconnected { connection: first }), []);
    let dead = bench.handle(Event::ProcessDied { process: Process(1) });
    assert_eq!(dead, [Effect::ReadFolder { dir: dir(), sweep: false }]);
    let welcomed = bench.folder_read(&dir(), Folder::default());
    assert!(matches!(&welcomed[..], [Effect::Reply { reply: Reply::Welcome { .. }, .. }]));
    let third = bench.connect(Process(3));
    assert_eq!(bench.send(third, Request::Hello(hello(0, 1, Role::Writer))), []);
    assert_eq!(refused(&bench.later(10_000)), ErrorCode::WriterExists);
}

#[test]
fn a_worker_saves_from_begin_to_commit_or_abort_or_its_death() {
    let (mut bench, writer, _) = Bench::with_writer();
    assert!(!bench.saver.is_saving());
    let (slot, _) = bench.begin(writer, 1);
    assert!(bench.saver.is_saving());
    bench.commit(writer, 1, slot, Storage::Memory);
    assert!(!bench.saver.is_saving());
    let (slot, _) = bench.begin(writer, 2);
    bench.send(writer, Request::Abort { slot: slot.0 });
    assert!(!bench.saver.is_saving());
    bench.begin(writer, 3);
    assert!(bench.saver.is_saving());
    bench.handle(Event::Disconnected { connection: writer });
    assert!(!bench.saver.is_saving());
    bench.handle(Event::ProcessDied { process: Process(1) });
    assert!(!bench.saver.is_saving());
    // At the end of the run no training waits, but the disk may have too little time.
    let (mut bench, writer, _) = Bench::with_writer();
    bench.begin(writer, 1);
    bench.handle(Event::AgentGone);
    assert!(!bench.saver.is_saving());
}

#[test]
fn three_slots_are_made_while_they_fit_else_two() {
    for (allowance, count) in [(3 * BYTES, 3), (3 * BYTES - 1, 2), (2 * BYTES, 2)] {
        let mut bench = Bench::new(allowance);
        assert_eq!(bench.agent(round(0, 1, Vec::new())), []);
        let writer = bench.admitted(Process(1), hello(0, 1, Role::Writer));
        let asked = bench.send(writer, alloc(BYTES, LAYOUT));
        let [Effect::AllocateSlots { slots, filled, bytes: BYTES }] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(slots.len(), count);
        assert_eq!(filled[..], slots[..2]);
    }
    let mut bench = Bench::new(2 * BYTES - 1);
    assert_eq!(bench.agent(round(0, 1, Vec::new())), []);
    let writer = bench.admitted(Process(1), hello(0, 1, Role::Writer));
    let asked = bench.send(writer, alloc(BYTES, LAYOUT));
    let [Effect::Reply { reply: Reply::Error(refusal), .. }] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(
        (refusal.code, refusal.need, refusal.have),
        (ErrorCode::NoMemory, Some(2 * BYTES), Some(2 * BYTES - 1))
    );
}

#[test]
fn a_system_without_memory_for_three_slots_gives_two() {
    let mut bench = Bench::in_round(1);
    let writer = bench.admitted(Process(1), hello(0, 1, Role::Writer));
    let asked = bench.send(writer, alloc(BYTES, LAYOUT));
    let [Effect::AllocateSlots { slots, .. }] = &asked[..] else { panic!("{asked:?}") };
    let no_room = || Err(NoRoom { have: Some(100), reason: "ENOMEM".to_owned() });
    let again = bench.handle(Event::SlotsAllocated { slots: slots.clone(), result: no_room() });
    let [Effect::AllocateSlots { slots, filled, .. }] = &again[..] else { panic!("{again:?}") };
    assert_eq!((slots.len(), filled.len()), (2, 2));
    let failed = bench.handle(Event::SlotsAllocated { slots: slots.clone(), result: no_room() });
    assert_eq!(refused(&failed), ErrorCode::NoMemory);
    assert_eq!(bench.saver.status().used, 0);
}

#[test]
fn slots_of_a_layout_are_given_to_its_next_writer() {
    let (mut bench, _, slots) = Bench::with_writer();
    assert_eq!(
        bench.handle(Event::ProcessDied { process: Process(1) }),
        [Effect::Close { connection: Connection(1) }]
    );
    let next = bench.admitted(Process(2), hello(0, 1, Role::Writer));
    let offers = slots.iter().map(|slot| SlotOffer { id: slot.0, bytes: BYTES }).collect();
    let given = Effect::Reply {
        connection: next,
        reply: Reply::Allocated { slots: offers },
        fds: Fds::Writable(slots),
    };
    assert_eq!(bench.send(next, alloc(BYTES - 1, LAYOUT)), [given]);
}

#[test]
fn saves_go_round_and_never_take_the_newest() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let mut taken = Vec::new();
    for step in 1..=6 {
        let (slot, effects) = bench.save(writer, step, Storage::Memory);
        assert_eq!(effects, []);
        taken.push(slot);
    }
    // The third has no memory yet: it is taken when it must be.
    let (a, b) = (slots[0], slots[1]);
    assert_eq!(taken, [a, b, a, b, a, b]);
}

#[test]
fn no_save_waits_for_the_disk_with_three_slots() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let (a, b, c) = (slots[0], slots[1], slots[2]);
    let (first, effects) = bench.save(writer, 1, Storage::Disk);
    assert_eq!(first, a);
    assert_eq!(effects, [persist(persist_id(&effects).0, a, 1, 0, 1), Effect::FillSlot { slot: c }]);
    assert_eq!(bench.handle(Event::SlotFilled { slot: c, result: Ok(()) }), []);
    // 2 waits; 3 has the only slot left; 4 takes the place of 2 on its way to disk, 5 that of 3.
    assert_eq!(bench.save(writer, 2, Storage::Disk), (b, vec![]));
    assert_eq!(bench.save(writer, 3, Storage::Disk), (c, vec![]));
    assert_eq!(bench.begin(writer, 4), (b, vec![2]));
    assert_eq!(bench.commit(writer, 4, b, Storage::Memory), [done(writer, true)]);
    assert_eq!(bench.begin(writer, 5), (c, vec![3]));
    // It becomes nothing: the wish goes to the newest whole step, which has one.
    assert_eq!(bench.send(writer, Request::Abort { slot: c.0 }), [done(writer, false)]);
    let expected = [(a, "persisting", Some(1)), (b, "queued", Some(4)), (c, "empty", None)];
    assert_eq!(bench.states(), expected.map(|(slot, state, step)| (slot.0, state.to_owned(), step)));
}

#[test]
fn with_two_slots_the_only_shard_gives_up_its_newest_step() {
    let mut bench = Bench::new(2 * BYTES);
    assert_eq!(bench.agent(round(0, 1, Vec::new())), []);
    let writer = bench.admitted(Process(1), hello(0, 1, Role::Writer));
    let slots = bench.allocated(writer);
    bench.save(writer, 1, Storage::Disk);
    bench.save(writer, 2, Storage::Memory);
    assert_eq!(bench.begin(writer, 3), (slots[1], vec![]));
}

#[test]
fn with_two_slots_one_of_several_shards_is_busy() {
    let mut bench = Bench::new(2 * BYTES);
    assert_eq!(bench.agent(round(0, 2, Vec::new())), []);
    let writer = bench.admitted(Process(1), hello(0, 2, Role::Writer));
    let slots = bench.allocated(writer);
    let (first, _) = bench.save(writer, 1, Storage::Memory);
    let effects = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
    let id = persist_id(&effects);
    bench.save(writer, 2, Storage::Memory);
    let busy = bench.send(writer, begin(3));
    let [Effect::Reply { reply: Reply::Error(refusal), .. }] = &busy[..] else { panic!("{busy:?}") };
    assert_eq!((refusal.code, refusal.persisting), (ErrorCode::Busy, Some(1)));
    // A save for the disk waits its turn.
    assert_eq!(bench.send(writer, Request::Begin { step: 3, layout_id: LAYOUT, wait: true }), []);
    let freed = bench.persisted(id, vec![sum(&path(1, 0))]);
    let begun = Reply::Begun { slot: first.0, superseded: vec![], pinned: false };
    assert_eq!(freed, [persisted(1, 0, 0, 2), reply(writer, begun)]);
    assert_eq!(slots[0], first);
}

#[test]
fn a_new_layout_keeps_the_last_step_of_the_old_one_until_its_first_commit() {
    let (mut bench, writer, slots) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.save(writer, 2, Storage::Memory);
    let asked = bench.send(writer, alloc(2 * BYTES, 6));
    let [Effect::FreeSlots { slots: freed }, Effect::AllocateSlots { slots: new, bytes, .. }] = &asked[..]
    else {
        panic!("{asked:?}")
    };
    assert_eq!((freed, *bytes), (&vec![slots[0], slots[2]], 2 * BYTES));
    let new = new.clone();
    let made = bench.handle(Event::SlotsAllocated { slots: new.clone(), result: Ok(()) });
    assert!(matches!(&made[..], [Effect::Reply { reply: Reply::Allocated { .. }, .. }]), "{made:?}");
    assert_eq!(refused(&bench.send(writer, begin(3))), ErrorCode::OutOfOrder);
    let begun = bench.send(writer, Request::Begin { step: 3, layout_id: 6, wait: false });
    assert_eq!(begun, [reply(writer, Reply::Begun { slot: new[0].0, superseded: vec![], pinned: false })]);
    let committed = bench.commit(writer, 3, new[0], Storage::Memory);
    assert_eq!(committed, [done(writer, false), Effect::FreeSlots { slots: vec![slots[1]] }]);
}

#[test]
fn what_is_on_disk_makes_room_for_a_new_layout() {
    let mut bench = Bench::new(2 * BYTES);
    assert_eq!(bench.agent(round(0, 1, Vec::new())), []);
    let writer = bench.admitted(Process(1), hello(0, 1, Role::Writer));
    let slots = bench.allocated(writer);
    bench.save(writer, 1, Storage::Memory);
    assert_eq!(bench.folder_read(&dir(), Folder::default()), []);
    let refused_first = bench.send(writer, alloc(BYTES, 6));
    assert_eq!(refused_first[0], Effect::FreeSlots { slots: vec![slots[1]] });
    assert_eq!(refused(&refused_first[1..]), ErrorCode::NoMemory);
    assert_eq!(bench.agent(ToSaver::Committed { dir: dir(), step: 1 }), []);
    let asked = bench.send(writer, alloc(BYTES, 6));
    assert_eq!(asked[0], Effect::FreeSlots { slots: vec![slots[0]] });
    assert!(matches!(&asked[1], Effect::AllocateSlots { .. }));
}

#[test]
fn the_strategy_of_a_writer_deletes_old_steps() {
    let mut bench = Bench::in_round(1);
    let writer = bench.connect(Process(1));
    let keep = Some(Keep::Latest(2));
    bench.send(writer, Request::Hello(Hello { keep, ..hello(0, 1, Role::Writer) }));
    bench.folder_read(&dir(), folder(3, &[1, 2, 3], 1));
    let ordered = bench.agent(ToSaver::Commit { dir: dir(), step: 4, manifest: Box::new(manifest(4, 1)) });
    let manifest = Box::new(manifest(4, 1));
    assert_eq!(ordered, [Effect::WriteManifest { dir: dir(), manifest, sets_tracker: true }]);
    let written = bench.handle(Event::ManifestWritten { dir: dir(), step: 4, result: Ok(()) });
    let gone = |step| {
        let (files, staged) = (vec![path(step, 0)], Vec::new());
        Effect::Remove { dir: dir(), step, manifest: true, files, staged }
    };
    assert_eq!(written, [tell(FromSaver::Committed { dir: dir(), step: 4 }), gone(1), gone(2)]);
}
