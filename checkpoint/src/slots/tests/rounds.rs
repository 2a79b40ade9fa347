//! Rounds: what stays in memory, what is told, what goes.

use super::*;
use crate::message::{ErrorCode, WaitState};

#[test]
fn a_failure_that_is_told_before_the_round_ends_the_wait_for_it() {
    let mut bench = Bench::new(1 << 30);
    let reason = "disk full".to_owned();
    bench.agent(ToSaver::Fail { dir: dir(), step: 4, saved_in: Some(0), given_up: 1, reason });
    let point = RestorePoint {
        dir: dir(),
        step: 0,
        source: RestoreSource::Disk,
        pending: Some(4),
        given_up: 0,
        fetched: None,
    };
    bench.agent(round(1, 1, vec![point]));
    let reader = bench.admitted(Process(1), Hello { round: Some(1), ..hello(0, 1, Role::Reader) });
    bench.send(reader, Request::Load { step: None });
    let loaded = bench.folder_read(&dir(), Folder::default());
    let [Effect::Reply { reply: Reply::Loaded { source, .. }, .. }] = &loaded[..] else {
        panic!("{loaded:?}")
    };
    assert_eq!(*source, crate::message::Source::None);
}

#[test]
fn a_round_that_is_said_again_changes_nothing() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    assert_eq!(bench.agent(round(0, 1, vec![])), []);
    assert_eq!(bench.states()[0].1, "whole");
}

#[test]
fn workers_of_an_earlier_round_are_closed() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (slot, _) = bench.begin(writer, 1);
    assert_eq!(bench.agent(round(1, 1, vec![])), [Effect::Close { connection: writer }]);
    assert_eq!(bench.commit(writer, 1, slot, Storage::Disk), []);
    let late = bench.connect(Process(1));
    let old = Hello { round: Some(0), ..hello(0, 1, Role::Writer) };
    assert_eq!(refused(&bench.send(late, Request::Hello(old))), ErrorCode::StaleRound);
}

#[test]
fn a_step_on_its_way_to_disk_ends_there_although_it_is_void() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    bench.save(writer, 2, Storage::Disk);
    bench.handle(Event::ProcessDied { process: Process(1) });
    let told = bench.agent(ToSaver::WorkersGone { round: 0 });
    assert_eq!(told, [state(0, vec![shard_state(0, 1, &[1, 2], &[1, 2], None)])]);
    bench.agent(round(1, 1, vec![on_disk(0, Some(2))]));
    let told = bench.agent(ToSaver::WorkersGone { round: 9 });
    assert_eq!(told, [state(1, vec![shard_state(0, 1, &[], &[1, 2], None)])]);
    let next = bench.persisted(persist_id(&effects), vec![sum(&path(1, 0))]);
    assert_eq!(next[0], persisted(1, 0, 0, 1));
    assert_eq!(bench.states()[0], (slots[0].0, "empty".to_owned(), None));
    let ended = bench.persisted(persist_id(&next), vec![sum(&path(2, 0))]);
    assert_eq!(ended, [persisted(2, 0, 0, 1)]);
    assert_eq!(bench.states()[1], (slots[1].0, "empty".to_owned(), None));
}

#[test]
fn a_wish_of_several_shards_ends_with_the_course_of_training() {
    let mut bench = Bench::in_round(2);
    let writer = bench.admitted(Process(1), hello(0, 2, Role::Writer));
    bench.allocated(writer);
    bench.save(writer, 1, Storage::Disk);
    bench.handle(Event::ProcessDied { process: Process(1) });
    bench.agent(round(1, 2, vec![on_disk(0, None)]));
    assert_eq!(bench.states()[0].1, "empty");
    let next = bench.admitted(Process(2), hello(0, 2, Role::Writer));
    let answer = bench.send(next, wait(Some(1)));
    let [Effect::Reply { reply: Reply::Waited { state, .. }, .. }] = &answer[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(*state, WaitState::Failed);
}

/// Its file would take the place of the one that another node has written.
#[test]
fn a_write_that_was_given_up_is_not_made_again_for_the_same_number_of_a_later_course() {
    let mut bench = Bench::in_round(2);
    let writer = bench.admitted(Process(1), hello(1, 2, Role::Writer));
    bench.allocated(writer);
    bench.save(writer, 1, Storage::Disk);
    let running = persist_id(&bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() }));
    bench.handle(Event::ProcessDied { process: Process(1) });
    let fail = ToSaver::Fail {
        dir: dir(),
        step: 1,
        saved_in: Some(0),
        given_up: 1,
        reason: "a node is gone".to_owned(),
    };
    bench.agent(fail);
    bench.agent(ToSaver::Round {
        round: 1,
        world: 2,
        first_rank: 0,
        local_world_size: 1,
        restore: Vec::new(),
        memory_is_void: false,
    });
    bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
    let ended = bench.handle(Event::PersistEnded { persist: running, result: Err("cancelled".to_owned()) });
    assert!(!ended.iter().any(|effect| matches!(effect, Effect::Persist(_))), "{ended:?}");
}

/// The job repeats it whenever this saver says that it wants the step on disk: an answer would never end.
#[test]
fn a_failure_of_a_step_of_an_earlier_course_is_not_answered() {
    let mut bench = Bench::in_round(2);
    bench.agent(round(1, 2, Vec::new()));
    let writer = bench.admitted(Process(1), hello(1, 2, Role::Writer));
    bench.allocated(writer);
    bench.save(writer, 1, Storage::Disk);
    bench.save(writer, 2, Storage::Memory);
    let reason = "disk full".to_owned();
    let fail = ToSaver::Fail { dir: dir(), step: 1, saved_in: Some(0), given_up: 1, reason };
    assert_eq!(bench.agent(fail), []);
}

#[test]
fn memory_of_another_world_is_void_but_for_copies() {
    for (n_shards, stays) in [(1, true), (2, false)] {
        let mut bench = Bench::in_round(n_shards);
        let writer = bench.admitted(Process(1), hello(0, n_shards, Role::Writer));
        bench.allocated(writer);
        bench.save(writer, 1, Storage::Memory);
        bench.handle(Event::ProcessDied { process: Process(1) });
        let ToSaver::Round { round, world, first_rank, local_world_size, restore, .. } =
            super::round(1, n_shards, vec![memory(1)])
        else {
            panic!()
        };
        let memory_is_void = true;
        bench.agent(ToSaver::Round { round, world, first_rank, local_world_size, restore, memory_is_void });
        assert_eq!(bench.states()[0].1 == "whole", stays);
    }
}

#[test]
fn shards_of_ranks_that_moved_away_are_freed() {
    let mut bench = Bench::in_round(2);
    let writer = bench.admitted(Process(1), hello(1, 2, Role::Writer));
    let slots = bench.allocated(writer);
    bench.save(writer, 1, Storage::Memory);
    bench.handle(Event::ProcessDied { process: Process(1) });
    let moved = ToSaver::Round {
        round: 1,
        world: 2,
        first_rank: 0,
        local_world_size: 1,
        restore: vec![memory(1)],
        memory_is_void: false,
    };
    assert_eq!(bench.agent(moved), [Effect::Listen, Effect::FreeSlots { slots }]);
    assert_eq!(bench.saver.status().shards, []);
}

#[test]
fn shards_of_another_number_are_another_thing() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.handle(Event::ProcessDied { process: Process(1) });
    bench.agent(round(1, 2, vec![memory(1)]));
    bench.admitted(Process(2), hello(0, 2, Role::Writer));
    assert_eq!(bench.states()[0].1, "empty");
}

#[test]
fn a_ready_worker_is_told_what_it_would_load() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.handle(Event::ProcessDied { process: Process(1) });
    bench.agent(round(1, 1, vec![memory(1)]));
    let next = bench.connect(Process(2));
    bench.send(next, Request::Hello(hello(0, 1, Role::Writer)));
    let welcome = Reply::Welcome { v: 1, epoch: EPOCH, slots: 3, memory_step: Some(1), disk_step: None };
    assert_eq!(bench.folder_read(&dir(), Folder::default()), [reply(next, welcome)]);
}
