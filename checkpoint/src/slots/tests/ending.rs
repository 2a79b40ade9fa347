//! The end: what is to go to disk goes first.

use super::*;
use crate::message::{ErrorCode, WaitState};

fn finish(also_memory: bool) -> ToSaver {
    ToSaver::Finish { grace_ms: 30_000, also_memory }
}

fn finished() -> [Effect; 2] {
    [tell(FromSaver::Finished {}), Effect::Exit]
}

#[test]
fn a_saver_with_nothing_to_do_ends_at_once() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    let ended = bench.agent(finish(false));
    assert_eq!(ended[1..], finished());
    assert_eq!(bench.saver.deadline(), None);
    assert_eq!(bench.send(writer, begin(2)), []);
}

#[test]
fn the_last_save_is_complete_before_the_end() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    let told = bench.agent(finish(false));
    assert!(matches!(&told[0], Effect::Tell(FromSaver::Log { .. })), "{told:?}");
    assert_eq!(refused(&bench.send(writer, begin(2))), ErrorCode::Closing);
    assert_eq!(bench.persisted(persist_id(&effects), vec![sum(&path(1, 0))]), [persisted(1, 0, 0, 1)]);
    bench.agent(ToSaver::Commit { dir: dir(), step: 1, manifest: Box::new(manifest(1, 1)) });
    let ended = bench.handle(Event::ManifestWritten { dir: dir(), step: 1, result: Ok(()) });
    assert_eq!(ended[0], tell(FromSaver::Committed { dir: dir(), step: 1 }));
    assert_eq!(ended[1..], finished());
}

#[test]
fn the_newest_step_in_memory_goes_to_disk_when_asked_for() {
    let (mut bench, writer, slots) = Bench::with_writer();
    bench.save(writer, 1, Storage::Memory);
    bench.save(writer, 2, Storage::Memory);
    let told = bench.agent(finish(true));
    let id = persist_id(&told);
    assert!(told.contains(&persist(id.0, slots[1], 2, 0, 1)));
    let mut others = told.iter().filter(|effect| matches!(effect, Effect::Persist(_)));
    assert_eq!(others.by_ref().count(), 1);
}

#[test]
fn the_time_of_the_end_is_kept_and_waits_are_answered() {
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Disk);
    bench.send(writer, wait(Some(1)));
    bench.agent(finish(false));
    assert_eq!(bench.saver.deadline(), Some(Moment(31_000)));
    let ended = bench.later(30_000);
    let error = Some("the saver exits, because the run has ended".to_owned());
    let answer = Reply::Waited { state: WaitState::Failed, step: Some(1), error };
    assert_eq!(ended[1], reply(writer, answer));
    assert_eq!(ended[2..], finished());
}

#[test]
fn without_a_launcher_only_what_runs_may_end() {
    let (mut bench, writer, _) = Bench::with_writer();
    let (_, effects) = bench.save(writer, 1, Storage::Disk);
    bench.save(writer, 2, Storage::Disk);
    assert_eq!(bench.handle(Event::AgentGone), []);
    assert_eq!(bench.saver.deadline(), Some(Moment(6000)));
    let ended = bench.persisted(persist_id(&effects), vec![sum(&path(1, 0))]);
    assert_eq!(ended[1..], finished());
    let (mut bench, writer, _) = Bench::with_writer();
    bench.save(writer, 1, Storage::Disk);
    bench.handle(Event::AgentGone);
    assert_eq!(bench.later(5000), finished());
}

#[test]
fn several_shards_tell_the_job_what_is_left() {
    let mut bench = Bench::in_round(2);
    let writer = bench.admitted(Process(1), hello(0, 2, Role::Writer));
    bench.allocated(writer);
    bench.save(writer, 1, Storage::Memory);
    let told = bench.agent(finish(true));
    assert_eq!(told[1..], [state(0, vec![shard_state(0, 2, &[1], &[1], None)])]);
    let started = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
    bench.persisted(persist_id(&started), vec![sum(&path(1, 0))]);
    assert_eq!(bench.agent(ToSaver::Committed { dir: dir(), step: 1 }), finished());
}

/// As in a script that saves each step to memory, and some of them to disk as well: another rank was faster, so that the
/// job had this step written before its rank asked for it.
#[test]
fn a_step_that_counts_by_now_is_not_waited_for_when_it_is_saved_again() {
    for saved_again in ["while it is written", "when it is written", "when it counts"] {
        let mut bench = Bench::in_round(2);
        let writer = bench.admitted(Process(1), hello(0, 2, Role::Writer));
        bench.allocated(writer);
        bench.save(writer, 1, Storage::Memory);
        let started = bench.agent(ToSaver::Persist { dir: dir(), step: 1, replicas: Vec::new() });
        let save_again = |bench: &mut Bench, when| {
            if when == saved_again {
                bench.save(writer, 1, Storage::Disk);
            }
        };
        save_again(&mut bench, "while it is written");
        bench.persisted(persist_id(&started), vec![sum(&path(1, 0))]);
        save_again(&mut bench, "when it is written");
        bench.agent(ToSaver::Committed { dir: dir(), step: 1 });
        save_again(&mut bench, "when it counts");
        let on_disk = waited(writer, WaitState::OnDisk, 1);
        assert_eq!(bench.send(writer, wait(None)), [on_disk], "{saved_again}");
        let ended = bench.agent(finish(false));
        assert_eq!(ended[ended.len() - 2..], finished(), "{saved_again}: {ended:?}");
    }
}
