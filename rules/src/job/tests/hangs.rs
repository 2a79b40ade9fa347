//! A hang: stacks are ordered once, judged once, and what follows is the policy of the job.

use super::*;
use crate::{
    hang::{HangNotice, HangReport, HangSources, HangTerms, HangVerdict, HangingNode, OnHang, Suspect},
    ids::Rank,
    job::hangs::DUMP_TIMEOUT,
};

const TIMEOUT: Duration = Duration::from_secs(300);
const SENTENCE: &str = "rank 3 is in train.py:7 load; 0-2 wait in all_reduce";

fn with_hangs(on_hang: OnHang) -> Terms {
    let grace = Duration::from_secs(1800);
    let hang = HangTerms { timeout: TIMEOUT, grace, sources: HangSources::default(), on_hang };
    Terms { hang: Some(hang), ..terms(2, 2) }
}

fn verdict(ranks: &[u32]) -> HangVerdict {
    let suspect = |rank: &u32| Suspect { rank: Rank(*rank), reason: "in train.py:7 load".into() };
    HangVerdict {
        sentence: SENTENCE.into(),
        suspects: ranks.iter().map(suspect).collect(),
        saving: None,
        folder: "/stacks".into(),
    }
}

fn notice(restart: bool) -> HangNotice {
    HangNotice {
        round: Round(0),
        idle: TIMEOUT,
        sentence: SENTENCE.into(),
        folder: "/stacks".into(),
        restart,
    }
}

/// The nodes with their ranks, the odd ones of them, and how often they were named.
fn report(number: u32, nodes: &[(&str, u32, &[u32], u32)]) -> Effect {
    let nodes = nodes.iter().map(|(name, rank, suspects, times_named)| HangingNode {
        name: named(name, Some(*rank)),
        k8s_node: None,
        pod: None,
        suspects: verdict(suspects).suspects,
        times_named: *times_named,
        tainted: *times_named > 1,
    });
    Effect::ReportHang(Box::new(HangReport {
        job: terms(2, 2).run_id,
        hang: number,
        round: Round(0),
        idle: TIMEOUT,
        sentence: SENTENCE.into(),
        folder: "/stacks".into(),
        nodes: nodes.collect(),
    }))
}

fn push(name: &str, push: Push) -> Effect {
    Effect::Push { node: id(name), push }
}

/// Every member is to send its stacks.
fn ordered(episode: u32) -> Vec<Effect> {
    let order = Push::DumpStacks { round: Round(0), episode };
    vec![Effect::CollectStacks { episode }, push("a", order.clone()), push("b", order)]
}

fn judge(episode: u32) -> Vec<Effect> {
    vec![Effect::JudgeStacks { episode, world: Box::new(world(0, &["a", "b"])) }]
}

impl Test {
    fn stalls(&mut self) -> Vec<Effect> {
        self.send(Event::TrainingStalled { round: Round(0), idle: TIMEOUT })
    }

    fn stacks(&mut self, name: &str, episode: u32) -> Vec<Effect> {
        self.send(Event::StacksSent { node: id(name), episode })
    }

    fn judged(&mut self, episode: u32, verdict: HangVerdict) -> Vec<Effect> {
        self.send(Event::HangJudged { episode, verdict: Box::new(verdict) })
    }

    /// The stacks of all nodes are there.
    fn hanging(on_hang: OnHang) -> Self {
        let mut test = Self::running(policy(), with_hangs(on_hang), &["a", "b"]);
        assert_eq!(test.at(1000).stalls(), ordered(0));
        assert_eq!(test.stacks("a", 0), []);
        assert_eq!(test.stacks("b", 0), judge(0));
        test
    }
}

#[test]
fn every_node_is_told_once_which_ranks_are_elsewhere() {
    let mut test = Test::hanging(OnHang::Dump);
    assert_eq!(test.stalls(), [], "the episode is known");
    let hang = |name| push(name, Push::Hang(notice(false)));
    let told = [Effect::Log(Log::Hang(notice(false))), report(0, &[("b", 1, &[3], 1)]), hang("a"), hang("b")];
    assert_eq!(test.judged(0, verdict(&[3])), told);
    assert_eq!(test.judged(0, verdict(&[3])), []);
    assert_eq!(test.job.deadline(), None, "nothing follows");
    let status = test.job.status(test.now).hang.unwrap();
    assert_eq!((status.count, status.is_over, status.idle_seconds), (1, false, 300.0));
    assert_eq!((status.sentence.as_str(), status.ranks), (SENTENCE, vec![3]));

    let over = test.at(1100).send(Event::TrainingAdvanced);
    assert_eq!(over, [Effect::Log(Log::HangOver { idle: Duration::from_secs(400) })]);
    let status = test.job.status(Moment::at_secs(2000)).hang.unwrap();
    assert_eq!((status.is_over, status.idle_seconds), (true, 400.0));
    assert_eq!(test.at(3000).stalls(), ordered(1), "another episode");
}

#[test]
fn stacks_that_do_not_come_are_not_waited_for() {
    let mut test = Test::running(policy(), with_hangs(OnHang::Dump), &["a", "b"]);
    assert_eq!(test.at(1000).stalls(), ordered(0));
    assert_eq!(test.job.deadline(), Some(test.now + DUMP_TIMEOUT));
    assert_eq!(test.stacks("a", 7), [], "of another episode");
    assert_eq!(test.stacks("z", 0), []);
    assert_eq!(test.due(), judge(0));
    assert_eq!(test.stacks("a", 0), [], "too late");
    let effects = test.due();
    let Some(Effect::Log(Log::Hang(notice))) = effects.first() else { panic!("{effects:?}") };
    assert_eq!(notice.sentence, "the stacks could not be analyzed in time");
}

#[test]
fn a_node_that_is_cut_off_is_not_waited_for() {
    let mut test = Test::running(policy(), with_hangs(OnHang::Dump), &["a", "b"]);
    assert_eq!(test.stalls(), ordered(0));
    assert_eq!(test.stacks("a", 0), []);
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), judge(0));
}

#[test]
fn a_checkpoint_that_is_written_is_no_hang_within_the_grace_period() {
    let mut test = Test::hanging(OnHang::Exit);
    let saving = || HangVerdict { saving: Some(Rank(0)), ..verdict(&[0]) };
    let held = |secs| Effect::Log(Log::HangHeld { idle: Duration::from_secs(secs), rank: Rank(0) });
    assert_eq!(test.judged(0, saving()), [held(300)]);
    assert_eq!(test.due(), ordered(0));
    assert_eq!(test.now, Moment::at_secs(1300));
    let _sent = (test.stacks("a", 0), test.stacks("b", 0));
    assert_eq!(test.at(1400).judged(0, saving()), [held(700)]);
    let _ordered = test.due();
    let _sent = (test.stacks("a", 0), test.stacks("b", 0));
    let effects = test.at(2500).judged(0, saving());
    assert!(matches!(&effects[0], Effect::Log(Log::Hang(_))), "no checkpoint takes for ever: {effects:?}");
}

#[test]
fn a_restart_is_a_failure_of_the_node_that_is_named() {
    for (ranks, restarted) in [(&[3][..], "b"), (&[0, 2, 3], "b"), (&[1], "a"), (&[], "a")] {
        let mut test = Test::hanging(OnHang::Restart);
        let hang = |name| push(name, Push::Hang(notice(name == restarted)));
        let mut effects = test.judged(0, verdict(ranks));
        effects.retain(|effect| !matches!(effect, Effect::ReportHang(_)));
        assert_eq!(effects, [Effect::Log(Log::Hang(notice(false))), hang("a"), hang("b")], "{ranks:?}");
        let _regrouped = test.workers_fail(restarted, 0, false);
        assert!(test.job.status(test.now).hang.unwrap().is_over, "with its round");
    }
}

#[test]
fn the_job_fails_where_that_is_the_policy() {
    let mut test = Test::hanging(OnHang::Exit);
    let reason = notice(false).to_string();
    assert!(reason.starts_with("hang: no rank has made progress for 300 s: rank 3 is in"), "{reason}");
    let failed = JobVerdict::Failed(JobFailure::Node { node: named("b", Some(1)), reason });
    assert_eq!(
        test.judged(0, verdict(&[2, 3])),
        all([
            vec![Effect::Log(Log::Hang(notice(false))), report(0, &[("b", 1, &[2, 3], 1)])],
            ["a", "b"].map(|name| push(name, Push::Hang(notice(false)))).to_vec(),
            ended(&["a", "b"], &failed)
        ])
    );
}

#[test]
fn an_episode_survives_a_restart_of_the_master() {
    let mut test = Test::running(policy(), with_hangs(OnHang::Dump), &["a", "b"]);
    assert_eq!(test.at(1000).stalls(), ordered(0));
    assert_eq!(test.stacks("a", 0), []);
    let collect = Effect::CollectStacks { episode: 0 };
    assert_eq!(test.at(1010).send(Event::Restarted), [collect], "what was sent is lost");
    for name in ["a", "b"] {
        let order = Push::DumpStacks { round: Round(0), episode: 0 };
        let resumed = test.resume(name, 0, &["a", "b"], WorkersState::Running);
        assert_eq!(resumed, [push(name, order)], "{name} can be told from now on");
    }
    assert_eq!(test.stalls(), [], "they report it again");
    let _sent = (test.stacks("a", 0), test.stacks("b", 0));
    let _told = test.judged(0, verdict(&[3]));
    assert_eq!(test.send(Event::Restarted), []);
    assert_eq!(test.stalls(), [], "one verdict for each episode");
}

#[test]
fn late_events_change_nothing() {
    let mut test = Test::running(policy(), with_hangs(OnHang::Dump), &["a", "b"]);
    assert_eq!(test.send(Event::TrainingStalled { round: Round(7), idle: TIMEOUT }), []);
    assert_eq!(test.send(Event::TrainingAdvanced), []);
    assert_eq!(test.judged(0, verdict(&[3])), []);
    assert_eq!(test.stalls(), ordered(0));
    assert_eq!(test.judged(0, verdict(&[3])), [], "it was not asked yet");
    assert_eq!(test.send(Event::TrainingAdvanced), [], "it was not declared");
    assert_eq!(test.stacks("a", 0), []);
    assert_eq!(test.job.status(test.now).hang, None);
}

#[test]
fn a_machine_is_tainted_when_a_second_hang_names_it_alone() {
    let mut test = Test::hanging(OnHang::Dump);
    let hangs: [(&[u32], Effect); 3] = [
        (&[3], report(0, &[("b", 1, &[3], 1)])),
        (&[1, 2], report(1, &[("a", 0, &[1], 0), ("b", 1, &[2], 0)])),
        (&[2], report(2, &[("b", 1, &[2], 2)])),
    ];
    for (number, (ranks, expected)) in (0..).zip(hangs) {
        if number > 0 {
            assert_eq!(test.at(1000 + 300 * u64::from(number)).stalls(), ordered(number));
            let _sent = (test.stacks("a", number), test.stacks("b", number));
        }
        let effects = test.judged(number, verdict(ranks));
        assert_eq!(effects[1], expected);
        let _over = test.send(Event::TrainingAdvanced);
    }
}

#[test]
fn the_order_to_restart_is_repeated_to_a_node_that_missed_it() {
    let mut test = Test::hanging(OnHang::Restart);
    let _told = test.judged(0, verdict(&[3]));
    let hang = push("b", Push::Hang(notice(true)));
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Running), [hang]);
    assert_eq!(test.resume("a", 0, &["a", "b"], WorkersState::Running), []);
}

#[test]
fn a_node_whose_workers_have_succeeded_is_not_the_one_that_restarts() {
    let mut test = Test::hanging(OnHang::Restart);
    assert_eq!(test.succeed("a", 0), []);
    let effects = test.judged(0, verdict(&[]));
    assert!(effects.contains(&push("b", Push::Hang(notice(true)))), "{effects:?}");
}

#[test]
fn a_member_that_stalls_and_advances_in_turn_orders_no_dump_after_the_other() {
    let mut test = Test::running(policy(), with_hangs(OnHang::Dump), &["a", "b"]);
    assert_eq!(test.at(1000).stalls(), ordered(0));
    for _ in 0..100 {
        assert_eq!(test.send(Event::TrainingAdvanced), []);
        assert_eq!(test.stalls(), []);
    }
    // The last of them is not lost.
    assert_eq!(test.due(), ordered(100));
    assert_eq!(test.now, Moment::at_secs(1030));
    assert_eq!(test.due(), judge(100), "and ends at its deadline");
    let _told = test.judged(100, verdict(&[3]));
    assert_eq!(test.job.status(test.now).hang.map(|hang| hang.count), Some(1));
}

#[test]
fn a_job_that_is_not_watched_opens_no_episode() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.at(1000).stalls(), [], "a report that is forged");
    assert_eq!(test.job.deadline(), None);
}
