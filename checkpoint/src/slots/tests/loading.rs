//! What a load is given.

use super::*;
use crate::message::{ErrorCode, Source};

/// A saver whose worker saved steps 1 and 2 in round 0, and in round 1 restores what is given.
fn restarted(restore: Vec<RestorePoint>) -> (Bench, Connection, Vec<SlotId>) {
    let (mut bench, writer, slots) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.save(writer, 2, Storage::Memory);
    bench.handle(Event::ProcessDied { process: Process(1) });
    bench.agent(ToSaver::WorkersGone { round: 0 });
    assert_eq!(bench.agent(round(1, 1, restore)), []);
    let next = bench.admitted(Process(2), hello(0, 1, Role::Writer));
    (bench, next, slots)
}

fn from_memory(connection: Connection, step: u64, slot: SlotId) -> Effect {
    let reason = format!("step {step} is complete in memory");
    let (source, step, bytes, path, named) = (Source::Memory, Some(step), Some(BYTES), None, None);
    let reply = Reply::Loaded { source, step, slot: Some(slot.0), bytes, path, reason, named };
    Effect::Reply { connection, reply, fds: Fds::ReadOnly(slot) }
}

fn source(effects: &[Effect]) -> (Source, Option<u64>, Option<String>) {
    match effects {
        [Effect::Reply { reply: Reply::Loaded { source, step, path, .. }, .. }] => {
            (*source, *step, path.clone())
        }
        _ => panic!("{effects:?}"),
    }
}

fn check_of(effects: &[Effect]) -> (CheckId, Vec<FileCheck>) {
    match effects {
        [.., Effect::CheckFiles { check, files }] => (*check, files.clone()),
        _ => panic!("{effects:?}"),
    }
}

fn checked(bench: &mut Bench, check: CheckId, result: Result<(), &str>) -> Vec<Effect> {
    let result = result.map_err(|why| FileFault::Differs(why.to_owned()));
    bench.handle(Event::FilesChecked { check, result })
}

#[test]
fn all_ranks_read_the_step_of_the_round_from_memory() {
    let (mut bench, writer, slots) = restarted(vec![memory(2)]);
    assert_eq!(bench.send(writer, load(None)), [Effect::ReadHeader { slot: slots[1] }]);
    // One reading for all that ask meanwhile.
    let reader = bench.admitted(Process(3), hello(0, 1, Role::Reader));
    assert_eq!(bench.send(reader, load(None)), []);
    let read = bench.handle(Event::HeaderRead { slot: slots[1], result: Ok(header(2, 0, 1)) });
    assert_eq!(read, [from_memory(writer, 2, slots[1]), from_memory(reader, 2, slots[1])]);
    let release = |slot: SlotId| Request::LoadedDone { slot: slot.0 };
    assert_eq!(bench.send(reader, release(slots[1])), [done(reader, false)]);
    assert_eq!(refused(&bench.send(reader, release(slots[1]))), ErrorCode::NotYours);
}

#[test]
fn a_slot_that_is_read_elsewhere_is_not_taken() {
    let (mut bench, writer, slots) = restarted(vec![memory(2)]);
    bench.send(writer, alloc(BYTES, LAYOUT));
    let reader = bench.admitted(Process(3), hello(0, 1, Role::Reader));
    bench.send(reader, load(None));
    bench.handle(Event::HeaderRead { slot: slots[1], result: Ok(header(2, 0, 1)) });
    let taken: Vec<SlotId> = (3..7).map(|step| bench.save(writer, step, Storage::Memory).0).collect();
    assert_eq!(taken, [slots[0], slots[2], slots[0], slots[2]]);
    // With a write to disk there is none left: the newest whole step stays.
    bench.agent(ToSaver::Persist { dir: dir(), step: 6, replicas: Vec::new() });
    bench.save(writer, 7, Storage::Memory);
    assert_eq!(refused(&bench.send(writer, begin(8))), ErrorCode::Busy);
    assert_eq!(
        bench.handle(Event::ProcessDied { process: Process(3) }),
        [Effect::Close { connection: reader }]
    );
    assert_eq!(bench.begin(writer, 8).0, slots[1]);
}

#[test]
fn a_writer_may_take_what_it_reads_itself_at_last() {
    let (mut bench, writer, slots) = restarted(vec![memory(2)]);
    bench.send(writer, alloc(BYTES, LAYOUT));
    bench.send(writer, load(None));
    bench.handle(Event::HeaderRead { slot: slots[1], result: Ok(header(2, 0, 1)) });
    let (_, effects) = bench.save(writer, 3, Storage::Disk);
    assert!(matches!(&effects[0], Effect::Persist(_)));
    bench.save(writer, 4, Storage::Memory);
    let begun = Reply::Begun { slot: slots[1].0, superseded: vec![], pinned: true };
    assert_eq!(bench.send(writer, begin(5)), [reply(writer, begun)]);
}

#[test]
fn without_a_word_of_the_round_memory_is_not_used() {
    let (mut bench, writer, _) = restarted(vec![]);
    assert_eq!(bench.states().iter().map(|(_, state, _)| state.as_str()).collect::<Vec<_>>(), ["empty"; 3]);
    assert_eq!(bench.send(writer, load(None)), [Effect::ReadFolder { dir: dir(), sweep: false }]);
    let nothing = bench.folder_read(&dir(), Folder::default());
    assert_eq!(source(&nothing), (Source::None, None, None));
}

#[test]
fn steps_after_the_one_that_is_restored_are_given_up() {
    let (bench, _, slots) = restarted(vec![memory(1)]);
    let expected = [(slots[0].0, "whole".to_owned(), Some(1)), (slots[1].0, "empty".to_owned(), None)];
    assert_eq!(bench.states()[..2], expected);
}

#[test]
fn a_damaged_step_in_memory_is_taken_from_disk_or_not_at_all() {
    let (mut bench, writer, slots) = restarted(vec![memory(2)]);
    bench.send(writer, load(None));
    let read = bench.handle(Event::HeaderRead { slot: slots[1], result: Err("bad sum".to_owned()) });
    assert!(matches!(&read[0], Effect::Tell(FromSaver::Log { .. })));
    assert_eq!(read[1..], [Effect::ReadFolder { dir: dir(), sweep: false }]);
    // An older step is there, but the other ranks have this one.
    let older = bench.folder_read(&dir(), folder(1, &[1], 1));
    assert_eq!(refused(&older[1..]), ErrorCode::NothingLoads);
    let reason = "step 2 has no manifest (step 2 in memory cannot be used: bad sum). Training does not start";
    assert!(refusal_text(&older[1..]).contains(reason), "{older:?}");
}

#[test]
fn a_damaged_file_is_passed_over_loudly() {
    let (mut bench, writer, _) = restarted(vec![]);
    bench.send(writer, load(None));
    let (check, files) = check_of(&bench.folder_read(&dir(), folder(7, &[5, 7], 1)));
    let expected = FileCheck { path: path(7, 0), bytes: Some(10), crc32: Some((64 << 20, vec![9])) };
    assert_eq!(files, [expected]);
    let next = checked(&mut bench, check, Err("/ckpt/7/rank_0.pt was changed"));
    assert!(matches!(&next[0], Effect::Tell(FromSaver::Log { .. })));
    let (check, files) = check_of(&next);
    assert_eq!(files[0].path, path(5, 0));
    let loaded = checked(&mut bench, check, Ok(()));
    assert_eq!(source(&loaded), (Source::Disk, Some(5), Some(path(5, 0))));
}

#[test]
fn a_tracker_without_anything_that_loads_is_an_error() {
    let (mut bench, writer, _) = restarted(vec![]);
    bench.send(writer, load(None));
    let (check, _) = check_of(&bench.folder_read(&dir(), folder(7, &[7], 1)));
    let failed = checked(&mut bench, check, Err("/ckpt/7/rank_0.pt is missing"));
    assert_eq!(refused(&failed[1..]), ErrorCode::NothingLoads);
    bench.send(writer, load(None));
    let unread = bench.handle(Event::FolderRead { dir: dir(), result: Err("EIO".to_owned()) });
    assert_eq!(refused(&unread[1..]), ErrorCode::NothingLoads);
}

#[test]
fn a_tracker_of_upstream_is_followed_without_a_manifest() {
    let (mut bench, writer, _) = restarted(vec![]);
    bench.send(writer, load(None));
    let upstream = Folder { tracker: Tracker::Step(9), ..Folder::default() };
    let (check, files) = check_of(&bench.folder_read(&dir(), upstream));
    assert_eq!(files, [FileCheck { path: path(9, 0), bytes: None, crc32: None }]);
    assert_eq!(source(&checked(&mut bench, check, Ok(()))), (Source::Disk, Some(9), Some(path(9, 0))));
}

#[test]
fn no_rank_takes_a_newer_step_from_disk_than_the_round_says() {
    let (mut bench, writer, _) = restarted(vec![on_disk(5, None)]);
    bench.send(writer, load(None));
    let (_, files) = check_of(&bench.folder_read(&dir(), folder(7, &[5, 7], 1)));
    assert_eq!(files[0].path, path(5, 0));
}

/// Other nodes may load it: the client must know, and not go on from another one.
#[test]
fn a_node_that_alone_cannot_load_the_step_of_the_round_says_which_that_is() {
    let differs = || Err(FileFault::Differs("it was changed".to_owned()));
    let unreadable = || Err(FileFault::Unreadable("input/output error".to_owned()));
    let named = |effects: &[Effect]| match effects {
        [Effect::Reply { reply: Reply::Loaded { step, named, .. }, .. }] => (*step, *named),
        _ => panic!("{effects:?}"),
    };
    let load_of = |restore: Vec<RestorePoint>, folder: Folder, faults: Vec<FileFault>| {
        let (mut bench, writer, _) = restarted(restore);
        bench.send(writer, load(None));
        let mut effects = bench.folder_read(&dir(), folder);
        for fault in faults {
            let check = check_of(&effects).0;
            effects = bench.handle(Event::FilesChecked { check, result: Err(fault) });
        }
        match effects.last() {
            Some(Effect::CheckFiles { check, .. }) => {
                named(&bench.handle(Event::FilesChecked { check: *check, result: Ok(()) }))
            }
            _ => named(&effects),
        }
    };
    let of = |restore, steps: &[u64], faults: Vec<Result<(), FileFault>>| {
        load_of(restore, folder(7, steps, 1), faults.into_iter().filter_map(Result::err).collect())
    };
    let point = || vec![on_disk(7, None)];
    assert_eq!(of(point(), &[3, 5, 7], vec![]), (Some(7), None));
    // The content is the same everywhere.
    assert_eq!(of(point(), &[3, 5, 7], vec![differs()]), (Some(5), None));
    assert_eq!(of(point(), &[3, 5, 7], vec![unreadable()]), (Some(5), Some(7)));
    assert_eq!(of(point(), &[3, 5, 7], vec![differs(), unreadable()]), (Some(3), Some(7)));
    // A file server has not shown this node the manifest yet.
    assert_eq!(load_of(point(), folder(5, &[3, 5], 1), vec![]), (Some(5), Some(7)));
    assert_eq!(load_of(point(), Folder::default(), vec![]), (None, Some(7)));
    let damaged = |fault: Result<(), FileFault>| {
        let fault = fault.unwrap_err();
        Folder { unusable: [(7, fault)].into(), ..folder(7, &[3, 5], 1) }
    };
    assert_eq!(load_of(point(), damaged(differs()), vec![]), (Some(5), None));
    assert_eq!(load_of(point(), damaged(unreadable()), vec![]), (Some(5), Some(7)));
    // At the first start the job names none.
    assert_eq!(of(vec![], &[3, 5, 7], vec![unreadable()]), (Some(5), None));
}

#[test]
fn a_load_waits_for_a_step_that_is_being_written() {
    for (counts, found) in [(true, 7), (false, 5)] {
        let (mut bench, writer, _) = restarted(vec![on_disk(5, Some(7))]);
        assert_eq!(bench.send(writer, load(None)), []);
        let decided = match counts {
            true => ToSaver::Committed { dir: dir(), step: 7 },
            false => ToSaver::Fail {
                dir: dir(),
                step: 7,
                saved_in: None,
                given_up: 1,
                reason: "a node is gone".to_owned(),
            },
        };
        assert_eq!(bench.agent(decided), [Effect::ReadFolder { dir: dir(), sweep: false }]);
        let (_, files) = check_of(&bench.folder_read(&dir(), folder(7, &[5, 7], 1)));
        assert_eq!(files[0].path, path(found, 0));
    }
}

#[test]
fn a_load_does_not_wait_for_ever() {
    let (mut bench, writer, _) = restarted(vec![on_disk(5, Some(7))]);
    assert_eq!(bench.send(writer, load(None)), []);
    assert_eq!(bench.saver.deadline(), Some(Moment(1_801_000)));
    assert_eq!(refused(&bench.later(1_800_000)), ErrorCode::NotReady);
}

#[test]
fn a_load_in_the_middle_of_training_takes_the_last_save() {
    let (mut bench, writer, slots) = restarted(vec![memory(2)]);
    bench.send(writer, alloc(BYTES, LAYOUT));
    bench.send(writer, load(None));
    bench.handle(Event::HeaderRead { slot: slots[1], result: Ok(header(2, 0, 1)) });
    bench.send(writer, Request::LoadedDone { slot: slots[1].0 });
    // Another process that has not begun yet restores what all restore.
    let late = bench.admitted(Process(3), hello(0, 1, Role::Reader));
    let (slot, _) = bench.save(writer, 3, Storage::Memory);
    assert_eq!(bench.send(writer, load(None)), [Effect::ReadHeader { slot }]);
    assert_eq!(bench.send(late, load(None)), [Effect::ReadHeader { slot: slots[1] }]);
}

#[test]
fn a_step_that_is_asked_for_is_that_step() {
    let (mut bench, writer, _) = restarted(vec![memory(2)]);
    bench.send(writer, load(Some(1)));
    let (check, files) = check_of(&bench.folder_read(&dir(), folder(7, &[1, 5, 7], 1)));
    assert_eq!(files[0].path, path(1, 0));
    let failed = checked(&mut bench, check, Err("gone"));
    assert_eq!(refused(&failed[1..]), ErrorCode::NothingLoads);
    assert_eq!(
        refusal_text(&failed[1..]),
        "no checkpoint in /ckpt can be loaded: step 1 cannot be loaded: gone (step 1 was requested). Training \
         does not start from scratch: restore the files, or use another directory"
    );
}

#[test]
fn a_reading_that_began_before_a_load_is_not_enough() {
    let (mut bench, writer, _) = restarted(vec![]);
    let reader = bench.connect(Process(3));
    let asked = bench.send(reader, Request::Hello(hello(0, 1, Role::Reader)));
    assert_eq!(asked, [Effect::ReadFolder { dir: dir(), sweep: false }]);
    assert_eq!(bench.send(writer, load(None)), []);
    let first = bench.folder_read(&dir(), Folder::default());
    assert_eq!(first[0], Effect::ReadFolder { dir: dir(), sweep: false });
    assert!(matches!(&first[1], Effect::Reply { reply: Reply::Welcome { .. }, .. }));
    check_of(&bench.folder_read(&dir(), folder(7, &[7], 1)));
}

#[test]
fn memory_is_restored_when_a_newer_step_did_not_reach_the_disk() {
    for counts in [true, false] {
        let (mut bench, writer, slots) = restarted(vec![RestorePoint { pending: Some(7), ..memory(2) }]);
        assert_eq!(bench.send(writer, load(None)), []);
        let decided = match counts {
            true => ToSaver::Committed { dir: dir(), step: 7 },
            false => {
                ToSaver::Fail { dir: dir(), step: 7, saved_in: None, given_up: 1, reason: "EIO".to_owned() }
            }
        };
        let next = match counts {
            true => Effect::ReadFolder { dir: dir(), sweep: false },
            false => Effect::ReadHeader { slot: slots[1] },
        };
        assert_eq!(bench.agent(decided), [next]);
    }
}

/// The first rank has loaded the step, and saves it again while another one still waits for its header.
#[test]
fn a_slot_that_is_emptied_while_a_load_waits_for_it_is_answered_and_can_be_taken() {
    let (mut bench, writer, slots) = restarted(vec![memory(2)]);
    let reader = bench.admitted(Process(3), hello(0, 1, Role::Reader));
    assert_eq!(bench.send(reader, load(None)), [Effect::ReadHeader { slot: slots[1] }]);
    bench.send(writer, alloc(BYTES, LAYOUT));
    let (slot, _) = bench.begin(writer, 2);
    bench.commit(writer, 2, slot, Storage::Memory);
    assert_eq!(bench.states()[1].1, "empty");
    let read = bench.handle(Event::HeaderRead { slot: slots[1], result: Ok(header(2, 0, 1)) });
    assert!(read.contains(&Effect::ReadFolder { dir: dir(), sweep: false }), "{read:?}");
    bench.handle(Event::Disconnected { connection: reader });
    let taken: Vec<SlotId> = (3..6).map(|step| bench.save(writer, step, Storage::Memory).0).collect();
    assert!(taken.contains(&slots[1]), "{taken:?}");
}

/// The round is killed while files are read from a slow server: the next one does not wait for that.
#[test]
fn files_are_not_checked_for_a_client_that_is_gone() {
    let (mut bench, writer, _) = restarted(vec![on_disk(3, None)]);
    bench.send(writer, load(None));
    let (check, _) = check_of(&bench.folder_read(&dir(), folder(3, &[3], 1)));
    assert_eq!(bench.handle(Event::Disconnected { connection: writer }), [Effect::CancelCheck { check }]);
    assert_eq!(checked(&mut bench, check, Err("given up")), []);
}
