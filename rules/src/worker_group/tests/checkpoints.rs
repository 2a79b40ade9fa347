//! The saver: when it is started, what it is told, what waits for it, and what follows when it is gone.

use checkpoint::{
    job::Order,
    message::{Dir, FromSaver, ShardState, ToSaver},
};

use super::*;
use crate::checkpoints::{CheckpointNotice, CheckpointReport, NextSaver};

fn at(secs: u64) -> Moment {
    Moment::at_secs(secs)
}

fn dir() -> Dir {
    Dir::try_from("/ckpt").unwrap()
}

fn shards(steps: &[u64]) -> Vec<ShardState> {
    vec![ShardState {
        dir: dir(),
        shard: 0,
        n_shards: 1,
        replicated: true,
        world: 5,
        rank: 4,
        steps: steps.to_vec(),
        wishes: Vec::new(),
        disk_step: None,
        replicas: 0,
        is_replica: false,
        layout_id: 0,
        bytes: 0,
        endpoint: None,
        round: None,
        awaits_fetches: false,
    }]
}

fn says(said: FromSaver) -> Event {
    Event::SaverSaid { said: Box::new(said) }
}

fn state(round: u32, steps: &[u64]) -> Event {
    says(FromSaver::State { round: Some(round), shards: shards(steps) })
}

fn tell(message: ToSaver) -> Effect {
    Effect::TellSaver { message: Box::new(message) }
}

fn round(round: u32, memory_is_void: bool) -> Effect {
    let message = ToSaver::Round {
        round,
        world: 5,
        first_rank: 4,
        local_world_size: 1,
        restore: Vec::new(),
        memory_is_void,
    };
    tell(message)
}

fn report(report: CheckpointReport) -> Effect {
    Effect::ReportCheckpoint { report: Box::new(report) }
}

fn notify(notice: CheckpointNotice) -> Effect {
    Effect::Notify(Notice::Checkpoints(notice))
}

fn workers_gone(round: u32) -> Effect {
    tell(ToSaver::WorkersGone { round })
}

fn join_with(attempt: u32, after: u32, steps: &[u64]) -> Vec<Effect> {
    let (attempt, after) = (Attempt(attempt), Some(Round(after)));
    vec![
        Effect::Join { attempt, after, checked: None, shards: shards(steps) },
        report(CheckpointReport::Kept),
        tell(ToSaver::Report {}),
    ]
}

fn finish(grace_ms: u64, also_memory: bool) -> Effect {
    tell(ToSaver::Finish { grace_ms, also_memory })
}

/// One worker runs in round 0, and has a saver.
fn saving(max_restarts: u32) -> WorkerGroup {
    let mut group = running(1, max_restarts);
    assert!(group.wants_saver());
    assert_eq!(
        group.handle(at(1), Event::SaverWanted),
        [Effect::StartSaver, round(0, false), report(CheckpointReport::Kept)]
    );
    assert!(!group.wants_saver());
    group
}

/// Its worker has failed, and is gone.
fn restarting() -> WorkerGroup {
    let mut group = saving(3);
    let _stop = group.handle(at(10), exited(0, 0, CODE));
    assert_eq!(group.handle(at(11), gone(0)), [workers_gone(0)]);
    group
}

#[test]
fn a_run_without_checkpoints_has_no_saver() {
    let mut group = running(1, 0);
    assert_eq!(group.handle(at(1), exited(0, 0, OK)), [TERM_TREE]);
    assert!(!group.wants_saver(), "what connects now is no worker");
    assert_eq!(group.handle(at(1), Event::SaverWanted), []);
    assert_eq!(group.handle(at(1), gone(0)), [succeeded_in(0)]);
    assert_eq!(group.handle(at(1), job_succeeded()), [Effect::AcknowledgeEnd, finished(Outcome::Succeeded)]);
}

#[test]
fn a_node_joins_with_what_its_saver_has_once_that_has_answered() {
    let mut group = restarting();
    assert_eq!(group.deadline(), Some(at(13)));
    assert_eq!(group.handle(at(11), state(7, &[1])), [], "of another round");
    assert_eq!(group.handle(at(12), state(0, &[20, 30])), join_with(1, 0, &[20, 30]));
    let assignment = assignment(1, 1);
    assert_eq!(
        group.handle(at(13), Event::Pushed(Push::Assigned(assignment.clone()))),
        [
            round(1, false),
            Effect::Prepare { assignment: assignment.clone(), attempt: Attempt(1) },
            Effect::Notify(Notice::Assigned(assignment))
        ]
    );
}

#[test]
fn a_saver_that_does_not_answer_delays_the_node_for_two_seconds() {
    let mut group = restarting();
    let attempt = Attempt(1);
    let join = Effect::Join { attempt, after: Some(Round(0)), checked: None, shards: Vec::new() };
    assert_eq!(
        group.handle(at(13), Event::Deadline),
        [
            notify(CheckpointNotice::NoState { waited: STATE_TIMEOUT }),
            join,
            report(CheckpointReport::Kept),
            tell(ToSaver::Report {})
        ]
    );
    assert_eq!(group.handle(at(14), state(0, &[20])), [], "the job has decided without it");
}

#[test]
fn an_answer_that_comes_while_the_master_is_away_goes_with_the_next_request() {
    let mut group = restarting();
    let _told = group.handle(at(11), away());
    assert_eq!(group.handle(at(12), state(0, &[20])), []);
    let mut expected = vec![Effect::Notify(Notice::MasterBack)];
    expected.extend(join_with(1, 0, &[20]));
    assert_eq!(group.handle(at(13), Event::MasterBack), expected);
}

#[test]
fn other_ranks_or_another_world_make_the_memory_void() {
    for assignment in
        [Assignment { first_rank: 0, ..assignment(1, 1) }, Assignment { world_size: 4, ..assignment(1, 1) }]
    {
        let mut group = restarting();
        let _join = group.handle(at(12), state(0, &[20]));
        let effects = group.handle(at(13), Event::Pushed(Push::Assigned(assignment)));
        let Effect::TellSaver { message } = &effects[0] else { panic!("{effects:?}") };
        assert!(matches!(**message, ToSaver::Round { round: 1, memory_is_void: true, .. }), "{message:?}");
    }
}

#[test]
fn a_saver_that_dies_is_started_again_with_the_next_workers() {
    let mut group = saving(3);
    let reason = "killed by SIGKILL".to_owned();
    assert_eq!(
        group.handle(at(2), Event::SaverEnded { reason: reason.clone() }),
        [
            notify(CheckpointNotice::SaverEnded { reason, next: NextSaver::AtNextSave { losses: 1 } }),
            report(CheckpointReport::Closed)
        ]
    );
    let _stop = group.handle(at(10), exited(0, 0, CODE));
    assert_eq!(group.handle(at(11), gone(0)), [join(1, Some(0))], "there is nothing to wait for");
    let assignment = assignment(1, 1);
    assert_eq!(
        group.handle(at(13), Event::Pushed(Push::Assigned(assignment.clone())))[..3],
        [Effect::StartSaver, round(1, false), report(CheckpointReport::Kept)]
    );
}

/// A worker that has written a step by itself tells it a saver, so that the job knows.
#[test]
fn a_saver_that_dies_is_started_again_at_the_next_connection() {
    let mut group = saving(3);
    let lost = || Event::SaverEnded { reason: "killed by SIGKILL".to_owned() };
    let told = |effects: &[Effect]| match &effects[0] {
        Effect::Notify(notice) => notice.to_string(),
        other => panic!("{other:?}"),
    };
    for loss in 1..3 {
        let text = told(&group.handle(at(2), lost()));
        let next = format!("the next save starts another saver (loss {loss} of at most 3 in a round);");
        assert!(text.contains(&next), "{text}");
        assert!(group.wants_saver());
        assert_eq!(
            group.handle(at(3), Event::SaverWanted),
            [Effect::StartSaver, round(0, false), report(CheckpointReport::Kept)]
        );
    }
    let text = told(&group.handle(at(4), lost()));
    assert!(text.contains("no other saver is started in this round, which has lost 3;"), "{text}");
    assert!(!group.wants_saver(), "what has killed three of them kills the next one too");
}

#[test]
fn what_workers_have_written_by_themselves_is_said_again_before_the_node_joins() {
    let mut group = saving(3);
    let written = |step| says(FromSaver::WrittenAlone { dir: dir(), step, round: 0 });
    let reported = |step| report(CheckpointReport::WrittenAlone { dir: dir(), step, round: 0 });
    assert_eq!(group.handle(at(2), written(5)), [reported(5)]);
    let _told = group.handle(at(3), away());
    assert_eq!(group.handle(at(4), written(6)), []);
    let _stop = group.handle(at(10), exited(0, 0, CODE));
    assert_eq!(group.handle(at(11), gone(0)), [workers_gone(0)]);
    // Whatever becomes of the saver.
    let _lost = group.handle(at(12), Event::SaverEnded { reason: "killed by SIGKILL".to_owned() });
    assert_eq!(
        group.handle(at(13), Event::MasterBack),
        [Effect::Notify(Notice::MasterBack), reported(6), join(1, Some(0))]
    );
    let _prepare = group.handle(at(14), Event::Pushed(Push::Assigned(assignment(1, 1))));
    let _told = group.handle(at(15), away());
    let back = group.handle(at(16), Event::MasterBack);
    assert!(!back.contains(&reported(6)), "that round is over: {back:?}");
}

#[test]
fn a_saver_that_dies_while_it_is_asked_holds_nothing_up() {
    let mut group = restarting();
    let reason = "killed by SIGKILL".to_owned();
    let expected = [
        notify(CheckpointNotice::SaverEnded { reason: reason.clone(), next: NextSaver::WithNextWorkers }),
        report(CheckpointReport::Closed),
        join(1, Some(0)),
    ];
    assert_eq!(group.handle(at(11), Event::SaverEnded { reason }), expected);
}

#[test]
fn what_the_saver_says_is_reported_and_asked_for_again_when_the_master_is_back() {
    let mut group = saving(3);
    let committed = || says(FromSaver::Committed { dir: dir(), step: 5 });
    let reported = report(CheckpointReport::Committed { dir: dir(), step: 5 });
    assert_eq!(group.handle(at(2), committed()), [reported]);
    assert_eq!(
        group.handle(at(2), state(0, &[6])),
        [report(CheckpointReport::InMemory { shards: shards(&[6]), last: false })]
    );
    let _told = group.handle(at(3), away());
    assert_eq!(group.handle(at(4), committed()), [], "the saver says it again");
    assert_eq!(
        group.handle(at(5), Event::MasterBack),
        [
            Effect::Notify(Notice::MasterBack),
            resumed(0, WorkersState::Running),
            report(CheckpointReport::Kept),
            tell(ToSaver::Report {})
        ]
    );
}

#[test]
fn orders_go_to_the_saver_and_without_one_a_manifest_fails() {
    let mut group = saving(3);
    let persist =
        || Event::Pushed(Push::Checkpoint(Order::Persist { dir: dir(), step: 5, replicas: vec![2] }));
    assert_eq!(
        group.handle(at(2), persist()),
        [tell(ToSaver::Persist { dir: dir(), step: 5, replicas: vec![2] })]
    );
    let _lost = group.handle(at(2), Event::SaverEnded { reason: "x".into() });
    assert_eq!(group.handle(at(3), persist()), []);
    let manifest = checkpoint::manifest::Manifest {
        version: 1,
        step: 5,
        world: 1,
        n_shards: 1,
        replicated: true,
        format: checkpoint::message::Format::Pt,
        time: None,
        saved_in: None,
        shards: Vec::new(),
    };
    let commit = Order::Commit { dir: dir(), step: 5, manifest: Box::new(manifest) };
    let pushed = Event::Pushed(Push::Checkpoint(commit.clone()));
    // All ranks may wait for the manifest: another saver writes it.
    let effects = group.handle(at(3), pushed.clone());
    assert_eq!(effects.first(), Some(&Effect::StartSaver));
    assert_eq!(effects.last(), Some(&tell(commit.into())));
    // There are not more than three of them in a round.
    for _ in 0..2 {
        let _lost = group.handle(at(3), Event::SaverEnded { reason: "x".into() });
        let _started = group.handle(at(3), Event::SaverWanted);
    }
    let _lost = group.handle(at(3), Event::SaverEnded { reason: "x".into() });
    let effects = group.handle(at(3), pushed);
    assert_eq!(effects[0], notify(CheckpointNotice::NoSaver { dir: dir(), step: 5 }));
    let Effect::ReportCheckpoint { report } = &effects[1] else { panic!("{effects:?}") };
    assert!(matches!(**report, CheckpointReport::Failed { step: 5, shard: None, .. }), "{report:?}");
}

#[test]
fn a_run_that_succeeded_ends_when_what_is_queued_is_on_disk() {
    let mut group = saving(0);
    let _stop = group.handle(at(10), exited(0, 0, OK));
    assert_eq!(group.handle(at(10), gone(0)), [workers_gone(0), succeeded_in(0)]);
    assert_eq!(group.handle(at(11), job_succeeded()), [Effect::AcknowledgeEnd, finish(600_000, false)]);
    assert_eq!(group.deadline(), Some(at(12)));
    let limit = Duration::from_secs(600);
    assert_eq!(group.handle(at(12), Event::Deadline), [notify(CheckpointNotice::Saving { limit })]);
    assert_eq!(group.deadline(), Some(at(612)));
    assert_eq!(
        group.handle(at(20), says(FromSaver::Finished {})),
        [report(CheckpointReport::Closed), finished(Outcome::Succeeded)]
    );
}

/// As of a node whose workers could not be killed: it ends by itself, and the job later.
#[test]
fn a_node_that_saves_says_what_it_has_again_when_the_round_or_the_job_is_over() {
    let mut group = saving(0);
    let _stop = group.handle(at(10), exited(0, 0, OK));
    let _gone = group.handle(at(10), gone(0));
    let _saving = group.handle(at(11), job_succeeded());
    let said = tell(ToSaver::Report {});
    assert_eq!(group.handle(at(12), regroup(0)), std::slice::from_ref(&said));
    assert_eq!(group.handle(at(13), job_succeeded()), [Effect::AcknowledgeEnd, said]);
}

#[test]
fn a_saver_that_dies_at_the_end_of_the_run_has_no_successor() {
    let mut group = saving(0);
    let _stop = group.handle(at(10), exited(0, 0, OK));
    let _gone = group.handle(at(10), gone(0));
    let _saving = group.handle(at(11), job_succeeded());
    let reason = "killed by SIGKILL".to_owned();
    let effects = group.handle(at(12), Event::SaverEnded { reason: reason.clone() });
    assert_eq!(effects[0], notify(CheckpointNotice::SaverEnded { reason, next: NextSaver::InNextRun }));
    assert_eq!(effects.last(), Some(&finished(Outcome::Succeeded)));
}

/// No step counts without its word.
#[test]
fn an_end_without_a_job_master_waits_for_no_disk() {
    let mut group = saving(0);
    let _stop = group.handle(at(10), exited(0, 0, OK));
    let _gone = group.handle(at(10), gone(0));
    let _away = group.handle(at(20), away());
    while group.deadline() < Some(at(620)) {
        let now = group.deadline().unwrap();
        let _waiting = group.handle(now, Event::Deadline);
    }
    let effects = group.handle(at(620), Event::Deadline);
    assert_eq!(effects[1..], [finish(5000, false)]);
    assert!(matches!(&effects[0], Effect::Notify(Notice::OutcomeUnknown { .. })), "{effects:?}");
}

#[test]
fn after_a_signal_what_is_in_memory_is_written_within_the_grace() {
    let mut group = saving(3);
    let _forwarded = group.handle(at(10), signalled(15));
    let _exit = group.handle(at(14), exited(0, 0, TERM));
    assert_eq!(group.handle(at(14), Event::EndNoted), []);
    assert_eq!(group.handle(at(14), gone(0)), [workers_gone(0), finish(26_000, true)]);
    let _told = group.handle(at(15), Event::Deadline);
    assert_eq!(group.deadline(), Some(at(41)));
    assert_eq!(
        group.handle(at(41), Event::Deadline),
        [
            notify(CheckpointNotice::Unfinished),
            report(CheckpointReport::Closed),
            finished(Outcome::Interrupted(15))
        ]
    );
}

/// The node that serves the job master is the first of many that are preempted.
#[test]
fn after_a_signal_to_the_launcher_with_the_job_master_too() {
    let node = NodeName::of_unknown_members(Round(0));
    let reason = "its launcher received SIGTERM".to_owned();
    let stopped = JobFailure::Stopped { signal: 15 };
    for (failure, also_memory) in [
        (JobFailure::MasterLeft { node: node.clone(), reason: reason.clone() }, true),
        (stopped, true),
        (JobFailure::Node { node, reason }, false),
    ] {
        let mut group = saving(3);
        let verdict = JobVerdict::Failed(failure);
        let _stop = group.handle(at(10), Event::Pushed(Push::JobEnd(verdict)));
        let grace_ms = if also_memory { 26_000 } else { 600_000 };
        assert_eq!(group.handle(at(14), gone(0)), [workers_gone(0), finish(grace_ms, also_memory)]);
    }
}

#[test]
fn a_second_signal_ends_the_wait_for_a_disk() {
    let mut group = saving(0);
    let _stop = group.handle(at(10), exited(0, 0, OK));
    let _gone = group.handle(at(10), gone(0));
    let _saving = group.handle(at(11), job_succeeded());
    assert_eq!(group.handle(at(12), signalled(2)), []);
    let _told = group.handle(at(12), Event::Deadline);
    assert_eq!(group.deadline(), Some(at(42)), "the first one leaves it the grace period");
    let effects = group.handle(at(13), signalled(2));
    assert_eq!(effects.last(), Some(&finished(Outcome::Succeeded)));
}

#[test]
fn what_is_in_memory_goes_to_disk_after_a_failure_if_that_is_asked_for() {
    for save_at_breakpoint in [false, true] {
        let mut group = WorkerGroup::new(Limits { save_at_breakpoint, ..limits(0) });
        let _join = group.handle(Moment::START, Event::MasterBack);
        start(&mut group, 0, 1);
        let _saver = group.handle(at(1), Event::SaverWanted);
        let _stop = group.handle(at(10), exited(0, 0, CODE));
        let _end = group.handle(at(10), job_failed());
        assert_eq!(group.handle(at(10), gone(0))[1], finish(600_000, save_at_breakpoint));
    }
}
