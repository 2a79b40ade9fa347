//! Deaths of writers: what is whole is what the header says after it.

use super::*;

fn died(bench: &mut Bench, process: u64) -> Vec<Effect> {
    bench.handle(Event::ProcessDied { process: Process(process) })
}

#[test]
fn a_half_written_slot_is_empty_after_the_death_of_its_writer() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    let (slot, _) = bench.begin(writer, 2);
    // The end of the connection is no death: a child may hold it, and the process may still write.
    assert_eq!(bench.handle(Event::Disconnected { connection: writer }), []);
    assert_eq!(died(&mut bench, 1), [Effect::ReadHeader { slot }]);
    assert_eq!(bench.handle(Event::HeaderRead { slot, result: Err("half".to_owned()) }), []);
    assert_eq!(bench.states()[1], (slot.0, "empty".to_owned(), None));
    let told = bench.agent(ToSaver::WorkersGone { round: 0 });
    assert_eq!(told, [state(0, vec![shard_state(0, 1, &[1], &[], None)])]);
}

#[test]
fn a_slot_that_was_finished_counts_without_its_commit() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    let (slot, _) = bench.begin(writer, 2);
    // The agent is faster than the death.
    assert_eq!(bench.agent(ToSaver::WorkersGone { round: 0 }), []);
    let close = Effect::Close { connection: writer };
    assert_eq!(died(&mut bench, 1), [Effect::ReadHeader { slot }, close]);
    let read = bench.handle(Event::HeaderRead { slot, result: Ok(header(2, 0, 1)) });
    assert_eq!(read, [state(0, vec![shard_state(0, 1, &[1, 2], &[], None)])]);
}

#[test]
fn a_death_before_the_first_byte_leaves_what_was_there() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.save(writer, 2, Storage::Memory);
    let (slot, _) = bench.begin(writer, 3);
    died(&mut bench, 1);
    assert_eq!(bench.handle(Event::HeaderRead { slot, result: Ok(header(1, 0, 1)) }), []);
    let told = bench.agent(ToSaver::WorkersGone { round: 0 });
    assert_eq!(told, [state(0, vec![shard_state(0, 1, &[1, 2], &[], None)])]);
}

#[test]
fn a_header_of_something_else_counts_for_nothing() {
    let lies: [fn(&mut Header); 4] = [
        |header| header.step = 9,
        |header| header.shard = 1,
        |header| header.layout_id = 6,
        |header| header.epoch = 1,
    ];
    for lie in lies {
        let (mut bench, writer, _) = Bench::with_writer();
        let (slot, _) = bench.begin(writer, 1);
        died(&mut bench, 1);
        let mut header = header(1, 0, 1);
        lie(&mut header);
        assert_eq!(bench.handle(Event::HeaderRead { slot, result: Ok(header) }), []);
        assert_eq!(bench.states()[0].1, "empty");
    }
}

#[test]
fn a_wish_that_was_inherited_by_a_dead_writer_is_passed_on() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    let running = persist_id(&effects);
    bench.save(writer, 2, Storage::Disk);
    bench.save(writer, 3, Storage::Memory);
    let (slot, superseded) = bench.begin(writer, 4);
    assert_eq!((slot, superseded), (slots[1], vec![2]));
    died(&mut bench, 1);
    assert_eq!(bench.handle(Event::HeaderRead { slot, result: Err("half".to_owned()) }), []);
    assert_eq!(bench.states()[2], (slots[2].0, "queued".to_owned(), Some(3)));
    let next = bench.persisted(running, vec![sum(&path(1, 0))]);
    let id = persist_id(&next);
    assert_eq!(next[..2], [persisted(1, 0, 0, 1), persist(id.0, slots[2], 3, 0, 1)]);
}

#[test]
fn a_commit_that_was_sent_before_the_death_counts() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (slot, _) = bench.begin(writer, 1);
    // It waits behind a request that is not answered.
    assert_eq!(
        bench.send(writer, Request::Load { step: None }),
        [Effect::ReadFolder { dir: dir(), sweep: false }]
    );
    assert_eq!(bench.commit(writer, 1, slot, Storage::Memory), []);
    assert_eq!(bench.handle(Event::Disconnected { connection: writer }), []);
    assert_eq!(bench.states()[0], (slot.0, "whole".to_owned(), Some(1)));
    assert_eq!(died(&mut bench, 1), []);
}

/// Another node has failed to write the step that dies here before its commit, or before the first byte of the next one.
#[test]
fn what_is_whole_after_a_death_knows_how_often_the_job_has_given_it_up() {
    for is_finished in [true, false] {
        let (mut bench, writer, _) = Bench::with_writer();
        if !is_finished {
            bench.save(writer, 1, Storage::Memory);
            bench.save(writer, 2, Storage::Memory);
        }
        let (slot, _) = bench.begin(writer, if is_finished { 1 } else { 3 });
        let reason = "disk full".to_owned();
        bench.agent(ToSaver::Fail { dir: dir(), step: 1, saved_in: Some(0), given_up: 1, reason });
        died(&mut bench, 1);
        bench.handle(Event::HeaderRead { slot, result: Ok(header(1, 0, 1)) });
        let persist = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
        let told = bench.persisted(persist_id(&persist), vec![sum(&path(1, 0))]);
        let is_known = |effect: &Effect| {
            matches!(effect, Effect::Tell(FromSaver::Persisted { step: 1, given_up: 1, .. }))
        };
        assert!(told.iter().any(is_known), "{told:?}");
    }
}

#[test]
fn a_death_that_is_never_seen_does_not_hold_the_state_for_ever() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.begin(writer, 2);
    assert_eq!(bench.agent(ToSaver::WorkersGone { round: 0 }), []);
    assert_eq!(bench.saver.deadline(), Some(Moment(6000)));
    assert_eq!(bench.later(5000), [state(0, vec![shard_state(0, 1, &[1], &[], None)])]);
}

#[test]
fn a_slot_whose_writer_lives_is_not_taken_in_the_next_round() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let (half, _) = bench.begin(writer, 1);
    assert_eq!(bench.agent(round(1, 1, Vec::new())), [Effect::Close { connection: writer }]);
    // Another process is the writer only after the death.
    let next = bench.connect(Process(2));
    assert_eq!(bench.send(next, Request::Hello(hello(0, 1, Role::Writer))), []);
    assert_eq!(
        died(&mut bench, 1),
        [Effect::ReadHeader { slot: half }, Effect::ReadFolder { dir: dir(), sweep: false }]
    );
    bench.folder_read(&dir(), Folder::default());
    bench.send(next, alloc(BYTES, LAYOUT));
    assert_eq!(bench.begin(next, 1).0, slots[1]);
    // It was whole, but the round was told what to restore without it.
    assert_eq!(bench.handle(Event::HeaderRead { slot: half, result: Ok(header(1, 0, 1)) }), []);
    assert_eq!(bench.states()[0], (half.0, "empty".to_owned(), None));
}
