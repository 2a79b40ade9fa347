//! Writes to disk, and waits for them.

use super::*;
use crate::message::WaitState;

/// Of a step that is given up.
fn removed(step: u64) -> Effect {
    let (files, staged) = (vec![path(step, 0)], vec![path(step, 0)]);
    Effect::Remove { dir: dir(), step, manifest: false, files, staged }
}

fn failed(step: u64, shard: Option<u32>, saved_in: Option<u32>, reason: &str) -> Effect {
    tell(FromSaver::Failed { dir: dir(), step, shard, saved_in, reason: reason.to_owned() })
}

#[test]
fn a_save_for_the_disk_is_waited_for_until_it_counts() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 5, Storage::Disk);
    let id = persist_id(&effects);
    assert_eq!(effects[0], persist(id.0, slots[0], 5, 0, 1));
    assert_eq!(bench.send(writer, wait(Some(5))), []);
    let bytes = FromSaver::Progress(crate::message::Progress {
        id: ShardId { dir: dir(), shard: 0 },
        step: 5,
        bytes: 3,
        of: 10,
    });
    assert_eq!(bench.handle(Event::Progressed { persist: id, bytes: 3, of: 10 }), [tell(bytes)]);
    assert_eq!(bench.persisted(id, vec![sum(&path(5, 0))]), [persisted(5, 0, 0, 1)]);
    // The file alone does not count.
    let commit = ToSaver::Commit { dir: dir(), step: 5, manifest: Box::new(manifest(5, 1)) };
    let write = Effect::WriteManifest { dir: dir(), manifest: Box::new(manifest(5, 1)), sets_tracker: true };
    assert_eq!(bench.agent(commit.clone()), std::slice::from_ref(&write));
    assert_eq!(bench.agent(commit.clone()), []);
    let written = bench.handle(Event::ManifestWritten { dir: dir(), step: 5, result: Ok(()) });
    let committed = tell(FromSaver::Committed { dir: dir(), step: 5 });
    assert_eq!(written, [committed.clone(), waited(writer, WaitState::OnDisk, 5)]);
    assert_eq!(bench.send(writer, wait(None)), [waited(writer, WaitState::OnDisk, 5)]);
    // Said again: the tracker, which another node may have moved on, is not written again.
    assert_eq!(bench.agent(commit), [committed]);
}

#[test]
fn a_disk_that_fails_leaves_the_slot_whole_and_the_next_save_tries_again() {
    let (mut bench, writer, slots) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    let result = Err("disk full".to_owned());
    let ended = bench.handle(Event::PersistEnded { persist: persist_id(&effects), result });
    assert_eq!(ended, [failed(1, Some(0), Some(0), "disk full")]);
    let error = Some("disk full".to_owned());
    let answer =
        reply(writer, Reply::Waited { state: WaitState::Failed, step: Some(1), error: error.clone() });
    assert_eq!(bench.send(writer, wait(None)), [answer]);
    assert_eq!(bench.saver.status().shards[0].error, error);
    assert_eq!(bench.states()[0], (slots[0].0, "whole".to_owned(), Some(1)));
    let (_, effects) = bench.save(writer, 2, Storage::Disk);
    let ended = bench.persisted(persist_id(&effects), vec![sum(&path(2, 0))]);
    assert_eq!(ended, [persisted(2, 0, 0, 1)]);
    bench.agent(ToSaver::Committed { dir: dir(), step: 2 });
    assert_eq!(bench.saver.status().shards[0].error, None);
}

#[test]
fn superseded_steps_are_told_and_the_newest_is_waited_for() {
    let (mut bench, writer, _) = Bench::with_writer();
    let reader = bench.admitted(Process(2), hello(0, 1, Role::Reader));
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    bench.save(writer, 2, Storage::Disk);
    assert_eq!(bench.send(reader, wait(None)), []);
    let explicit = bench.admitted(Process(3), hello(0, 1, Role::Reader));
    assert_eq!(bench.send(explicit, wait(Some(2))), []);
    bench.save(writer, 3, Storage::Memory);
    let begun = bench.send(writer, begin(4));
    assert_eq!(begun[1], waited(explicit, WaitState::Superseded, 2));
    assert_eq!(begun.len(), 2);
    let Effect::Reply { reply: Reply::Begun { slot, .. }, .. } = begun[0] else { panic!("{begun:?}") };
    assert_eq!(bench.commit(writer, 4, SlotId(slot), Storage::Memory), [done(writer, true)]);
    let next = bench.persisted(persist_id(&effects), vec![sum(&path(1, 0))]);
    let ended = bench.persisted(persist_id(&next), vec![sum(&path(4, 0))]);
    assert_eq!(ended, [persisted(4, 0, 0, 1)]);
    let committed = bench.agent(ToSaver::Committed { dir: dir(), step: 4 });
    assert_eq!(committed, [waited(reader, WaitState::OnDisk, 4)]);
}

/// What an earlier run has left on disk is no newer save of this one.
#[test]
fn a_save_that_fails_is_not_superseded_by_a_step_of_an_earlier_run() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.saver.dirs.entry(dir()).or_default().folder = Some(folder(100, &[100], 1));
    let (_, effects) = bench.save(writer, 5, Storage::Disk);
    bench.persisted(persist_id(&effects), vec![sum(&path(5, 0))]);
    let fail = |step: u64| {
        let (saved_in, reason) = (Some(0), "disk full".to_owned());
        ToSaver::Fail { dir: dir(), step, saved_in, given_up: 1, reason }
    };
    bench.agent(fail(5));
    let error = Some("disk full".to_owned());
    let answer = reply(writer, Reply::Waited { state: WaitState::Failed, step: Some(5), error });
    assert_eq!(bench.send(writer, wait(Some(5))), [answer]);
    let (_, effects) = bench.save(writer, 6, Storage::Disk);
    bench.persisted(persist_id(&effects), vec![sum(&path(6, 0))]);
    bench.agent(ToSaver::Committed { dir: dir(), step: 7 });
    bench.agent(fail(6));
    assert_eq!(bench.send(writer, wait(Some(6))), [waited(writer, WaitState::Superseded, 6)]);
}

#[test]
fn a_wait_ends_in_time_and_other_requests_wait_behind_it() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Disk);
    assert_eq!(bench.send(writer, Request::Wait { step: Some(1), timeout_ms: 500 }), []);
    assert_eq!(bench.send(writer, begin(2)), []);
    assert_eq!(bench.saver.deadline(), Some(Moment(1500)));
    let late = bench.later(500);
    assert_eq!(late[0], waited(writer, WaitState::Timeout, 1));
    assert!(matches!(late[1], Effect::Reply { reply: Reply::Begun { .. }, .. }), "{late:?}");
}

#[test]
fn what_was_never_to_go_to_disk_is_not_waited_for() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    let nothing = Reply::Waited { state: WaitState::OnDisk, step: None, error: None };
    assert_eq!(bench.send(writer, wait(None)), [reply(writer, nothing)]);
    for step in [1, 9] {
        let answer = bench.send(writer, wait(Some(step)));
        let [Effect::Reply { reply: Reply::Waited { state, .. }, .. }] = &answer[..] else {
            panic!("{answer:?}")
        };
        assert_eq!(*state, WaitState::Failed);
    }
}

#[test]
fn a_node_that_does_not_write_waits_for_the_one_that_does() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (slot, _) = bench.begin(writer, 1);
    let wish = Wish { storage: Storage::Disk, path: String::new(), writes_disk: false };
    let committed = bench.send(writer, Request::Commit { step: 1, slot: slot.0, wish });
    assert_eq!(committed, [done(writer, false)]);
    assert_eq!(bench.send(writer, wait(None)), []);
    let committed = bench.agent(ToSaver::Committed { dir: dir(), step: 1 });
    assert_eq!(committed, [waited(writer, WaitState::OnDisk, 1)]);
}

#[test]
fn several_shards_wait_for_the_word_of_the_job() {
    let mut bench = Bench::in_round(3);
    let writers: Vec<Connection> =
        (0..3).map(|rank| bench.admitted(Process(u64::from(rank)), hello(rank, 3, Role::Writer))).collect();
    let slots: Vec<SlotId> = writers.iter().map(|writer| bench.allocated(*writer)[0]).collect();
    let mut told = Vec::new();
    for writer in &writers {
        told = bench.save(*writer, 1, Storage::Disk).1;
    }
    let all = (0..3).map(|shard| shard_state(shard, 3, &[1], &[1], None)).collect();
    assert_eq!(told, [state(0, all)]);
    // Two at a time.
    let started = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
    let writes = |effects: &[Effect]| -> Vec<(PersistId, SlotId)> {
        let ids = effects.iter().filter_map(|effect| match effect {
            Effect::Persist(persist) => Some((persist.id, persist.slot)),
            _ => None,
        });
        ids.collect()
    };
    let running = writes(&started);
    assert_eq!(running.iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), slots[..2]);
    assert_eq!(bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() }), []);
    let ended = bench.persisted(running[1].0, vec![sum(&path(1, 1))]);
    assert_eq!(ended[0], persisted(1, 0, 1, 3));
    assert_eq!(writes(&ended)[0].1, slots[2]);
    // Said again when the job has forgotten it.
    let again = bench.agent(ToSaver::Report {});
    assert_eq!(again[0], persisted(1, 0, 1, 3));
    assert!(matches!(&again[1], Effect::Tell(FromSaver::State { .. })));
    assert_eq!(bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() }), []);
}

#[test]
fn an_order_for_what_is_no_longer_there_fails() {
    let mut bench = Bench::in_round(2);
    let nothing = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
    assert_eq!(nothing, [failed(1, None, None, "this node has no checkpoint of /ckpt in memory")]);
    let writer = bench.admitted(Process(1), hello(1, 2, Role::Writer));
    bench.allocated(writer);
    bench.save(writer, 2, Storage::Memory);
    let gone = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
    assert_eq!(gone, [failed(1, Some(1), None, "step 1 of shard 1 is no longer in memory")]);
}

#[test]
fn a_step_that_the_job_gives_up_is_removed() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    bench.persisted(persist_id(&effects), vec![sum(&path(1, 0))]);
    assert_eq!(bench.send(writer, wait(Some(1))), []);
    let fail =
        ToSaver::Fail { dir: dir(), step: 1, saved_in: None, given_up: 1, reason: "too late".to_owned() };
    let removed = removed(1);
    let error = Some("too late".to_owned());
    let answer = reply(writer, Reply::Waited { state: WaitState::Failed, step: Some(1), error });
    assert_eq!(bench.agent(fail.clone()), [removed, answer]);
    assert_eq!(bench.agent(fail), []);
}

#[test]
fn a_running_write_that_the_job_gives_up_is_ended_and_removed() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    let id = persist_id(&effects);
    let fail =
        ToSaver::Fail { dir: dir(), step: 1, saved_in: None, given_up: 1, reason: "too late".to_owned() };
    assert_eq!(bench.agent(fail), [Effect::CancelPersist { persist: id }]);
    // It was too late for that as well.
    let removed = removed(1);
    assert_eq!(bench.persisted(id, vec![sum(&path(1, 0))]), [removed]);
    assert_eq!(bench.states()[0].1, "whole");
}

#[test]
fn a_running_write_that_is_wanted_again_and_given_up_again_is_not_written_again() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    let id = persist_id(&effects);
    let fail =
        ToSaver::Fail { dir: dir(), step: 1, saved_in: None, given_up: 1, reason: "too late".to_owned() };
    assert_eq!(bench.agent(fail.clone()), [Effect::CancelPersist { persist: id }]);
    assert_eq!(bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() }), []);
    assert_eq!(bench.agent(fail), [Effect::CancelPersist { persist: id }]);
    let result = Err("the write was stopped".to_owned());
    assert_eq!(bench.handle(Event::PersistEnded { persist: id, result }), []);
    assert_eq!(bench.states()[0].1, "whole");
}

/// As in a script that saves each step to memory, and some of them to disk as well. The job orders a step once.
#[test]
fn an_ordered_step_that_is_saved_again_before_its_turn_is_still_ordered() {
    let mut bench = Bench::in_round(2);
    let writer = bench.admitted(Process(1), hello(0, 2, Role::Writer));
    bench.allocated(writer);
    let order = |step| ToSaver::Persist { dir: dir(), step, replicas: Vec::new() };
    bench.save(writer, 1, Storage::Memory);
    let id = persist_id(&bench.agent(order(1)));
    let reason = "too late".to_owned();
    bench.agent(ToSaver::Fail { dir: dir(), step: 1, saved_in: None, given_up: 1, reason });
    // The write of step 1 takes the disk until it ends.
    bench.save(writer, 2, Storage::Memory);
    assert_eq!(bench.agent(order(2)), []);
    let (slot, _) = bench.save(writer, 2, Storage::Disk);
    let result = Err("the write was stopped".to_owned());
    let started = bench.handle(Event::PersistEnded { persist: id, result });
    assert_eq!(started[0], persist(persist_id(&started).0, slot, 2, 0, 2));
}

#[test]
fn files_at_a_place_of_the_users_own_are_not_removed() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (slot, _) = bench.begin(writer, 1);
    let wish = Wish { storage: Storage::Disk, path: "/ckpt/last.pt".to_owned(), writes_disk: true };
    let effects = bench.send(writer, Request::Commit { step: 1, slot: slot.0, wish });
    let [_, Effect::Persist(persist), ..] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(persist.target, "/ckpt/last.pt");
    let told = bench.persisted(persist.id, vec![sum("/ckpt/last.pt")]);
    let file = ShardFile { file: "last.pt".to_owned(), ..shard_file(1, 0, 1) };
    let shard = Box::new(file);
    assert_eq!(told, [tell(FromSaver::Persisted { dir: dir(), step: 1, saved_in: 0, given_up: 0, shard })]);
    // But for what waits for that name.
    let staged = vec!["/ckpt/last.pt".to_owned()];
    assert_eq!(
        bench.agent(ToSaver::Fail {
            dir: dir(),
            step: 1,
            saved_in: None,
            given_up: 1,
            reason: "late".to_owned()
        }),
        [Effect::Remove { dir: dir(), step: 1, manifest: false, files: Vec::new(), staged }]
    );
}

#[test]
fn a_manifest_that_cannot_be_written_fails_the_step() {
    let mut bench = Bench::in_round(1);
    let commit = |step| ToSaver::Commit { dir: dir(), step, manifest: Box::new(manifest(5, 1)) };
    let wrong = bench.agent(commit(6));
    assert_eq!(wrong, [failed(6, None, None, "the manifest is invalid: it is for step 5")]);
    bench.agent(commit(5));
    let ended = bench.handle(Event::ManifestWritten { dir: dir(), step: 5, result: Err("EIO".to_owned()) });
    assert_eq!(ended[1..], [failed(5, None, None, "EIO")]);
}

#[test]
fn a_step_that_is_wanted_again_waits_until_its_old_files_are_gone() {
    let mut bench = Bench::in_round(2);
    let writer = bench.admitted(Process(1), hello(0, 2, Role::Writer));
    let slot = bench.allocated(writer)[0];
    bench.save(writer, 1, Storage::Memory);
    let order = || ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() };
    let fail = |given_up| {
        let reason = "disk full".to_owned();
        ToSaver::Fail { dir: dir(), step: 1, saved_in: Some(0), given_up, reason }
    };
    let id = persist_id(&bench.agent(order()));
    bench.persisted(id, vec![sum(&path(1, 0))]);
    let removed = removed(1);
    assert_eq!(bench.agent(fail(1)), std::slice::from_ref(&removed));
    assert_eq!(bench.agent(order()), [Effect::ReadFolder { dir: dir(), sweep: false }]);
    let started = bench.folder_read(&dir(), Folder::default());
    let id = persist_id(&started);
    assert_eq!(started[0], persist(id.0, slot, 1, 0, 2));
    // While it is written: it ends first.
    assert_eq!(bench.agent(fail(2)), [Effect::CancelPersist { persist: id }]);
    assert_eq!(bench.agent(order()), []);
    let ended = bench.persisted(id, vec![sum(&path(1, 0))]);
    assert_eq!(ended, [removed, Effect::ReadFolder { dir: dir(), sweep: false }]);
    let started = bench.folder_read(&dir(), Folder::default());
    let written = bench.persisted(persist_id(&started), vec![sum(&path(1, 0))]);
    let shard = Box::new(shard_file(1, 0, 2));
    assert_eq!(
        written,
        [tell(FromSaver::Persisted { dir: dir(), step: 1, saved_in: 0, given_up: 2, shard })]
    );
}

/// What waits for the name of step 1 is replaced only when it is known whether that counts.
#[test]
fn a_path_that_is_used_again_is_written_when_the_step_before_is_decided() {
    for counts in [true, false] {
        let (mut bench, writer, _) = Bench::with_writer();
        let save = |bench: &mut Bench, step: u64| {
            let (slot, _) = bench.begin(writer, step);
            let wish = Wish { storage: Storage::Disk, path: "/ckpt/last.pt".to_owned(), writes_disk: true };
            bench.send(writer, Request::Commit { step, slot: slot.0, wish })
        };
        let first = persist_id(&save(&mut bench, 1));
        bench.persisted(first, vec![sum("/ckpt/last.pt")]);
        assert_eq!(save(&mut bench, 2), [done(writer, true)]);
        let effects = match counts {
            true => bench.agent(ToSaver::Committed { dir: dir(), step: 1 }),
            false => {
                let reason = "too late".to_owned();
                let fail = ToSaver::Fail { dir: dir(), step: 1, saved_in: Some(0), given_up: 1, reason };
                let effects = bench.agent(fail);
                let staged = vec!["/ckpt/last.pt".to_owned()];
                let (manifest, files) = (false, Vec::new());
                assert_eq!(effects[0], Effect::Remove { dir: dir(), step: 1, manifest, files, staged });
                effects
            }
        };
        let second = persist_id(&effects);
        assert!(
            bench
                .persisted(second, vec![sum("/ckpt/last.pt")])
                .iter()
                .any(|effect| matches!(effect, Effect::Tell(FromSaver::Persisted { step: 2, .. })))
        );
    }
}

#[test]
fn a_step_that_counts_already_leaves_nothing_of_its_next_write() {
    let mut bench = Bench::in_round(1);
    let writer = bench.connect(Process(1));
    bench.send(writer, Request::Hello(hello(0, 1, Role::Writer)));
    // A run before has written it.
    bench.folder_read(&dir(), folder(5, &[5], 1));
    bench.allocated(writer);
    let (_, effects) = bench.save(writer, 5, Storage::Disk);
    bench.persisted(persist_id(&effects), vec![sum(&path(5, 0))]);
    let staged = vec![path(5, 0)];
    let removed = Effect::Remove { dir: dir(), step: 5, manifest: false, files: Vec::new(), staged };
    assert_eq!(bench.agent(ToSaver::Committed { dir: dir(), step: 5 }), [removed]);
}
