//! Which pair is measured when.

use std::time::Duration;

use super::{super::*, PAIRS, mb, measured, method, run, settings};
use crate::moment::Moment;

fn hang() -> Option<Answer> {
    None
}

#[test]
fn all_at_once_and_the_doubtful_alone() {
    let (finding, asked) = run(settings(), method(Style::Calls), |pair, alone| {
        let value = match (pair, alone) {
            (1, false) => 9_999.9,
            (3, false) => 1_000.0,
            _ => 10_000.0,
        };
        Some(measured(&[value], Path::Metaxlink))
    });
    let mut expected = vec![vec![0, 1, 2, 3]];
    expected.extend(std::iter::repeat_n(vec![0, 2], 4));
    expected.extend(std::iter::repeat_n(vec![1], 5));
    expected.extend(std::iter::repeat_n(vec![3], 5));
    assert_eq!(asked, expected);
    assert_eq!(finding.status(), SwitchboxStatus::Ok);
    let alone: Vec<bool> = finding.pairs.iter().map(|pair| pair.alone).collect();
    assert_eq!(alone, [false, true, false, true]);
    let values: Vec<usize> = finding.pairs.iter().map(|pair| pair.values.len()).collect();
    assert_eq!(values, [5; 4], "what was seen alongside other pairs does not count");
}

#[test]
fn repetitions_that_disagree_are_measured_again() {
    let (finding, asked) = run(settings(), method(Style::Repetitions), |pair, alone| {
        let values = if pair == 0 && alone { [11e3, 11e3, 9e3, 11e3, 11e3] } else { [11e3; 5] };
        let values = if pair == 0 && !alone { [9e3; 5] } else { values };
        Some(measured(&values, Path::Nvlink))
    });
    assert_eq!(asked, [vec![0, 1, 2, 3], vec![0], vec![0]]);
    assert_eq!((finding.status(), finding.pairs[0].values.len()), (SwitchboxStatus::Ok, 10));
}

#[test]
fn a_pair_that_hangs_is_measured_once_more_alone_and_then_dead() {
    let (finding, asked) = run(settings(), method(Style::Calls), |pair, _| match pair {
        2 => hang(),
        _ => Some(measured(&[50e3], Path::Metaxlink)),
    });
    let again = || vec![0, 1, 3];
    assert_eq!(asked, [vec![0, 1, 2, 3], again(), again(), again(), again(), vec![2]]);
    let wrong = finding.pairs[2].wrong.clone().unwrap();
    assert_eq!(wrong.to_string(), "dead, not finished within 10 s");
    assert_eq!(finding.status(), SwitchboxStatus::Degraded);
}

#[test]
fn a_pair_that_hung_with_others_is_judged_by_its_run_alone() {
    let (finding, asked) = run(settings(), method(Style::Calls), |pair, alone| match pair {
        2 if !alone => hang(),
        _ => Some(measured(&[50e3], Path::Metaxlink)),
    });
    assert_eq!(asked.len(), 10);
    assert_eq!(finding.status(), SwitchboxStatus::Ok);
}

#[test]
fn permanent_errors_are_not_retried() {
    for trouble in [Trouble::ToolMissing, Trouble::NoPermission, Trouble::DataMismatch, Trouble::NoSuchDevice]
    {
        let (_, asked) =
            run(settings(), method(Style::Calls), |_, _| Some(Answer::Failed(Wrong::new(trouble, ""))));
        assert_eq!(asked.len(), 1, "{trouble}");
    }
    let no_answer = || Some(Answer::Failed(Wrong::new(Trouble::NoAnswer, "nonsense")));
    let (finding, asked) = run(settings(), method(Style::Calls), |_, _| no_answer());
    assert_eq!(asked.len(), 5);
    assert!(finding.pairs.iter().all(|it| it.wrong.as_ref().unwrap().to_string() == "no answer, nonsense"));
}

#[test]
fn one_pair_is_alone_from_the_start() {
    let one = || Settings { pairs: vec![SocketPair(0, 0)], min_channels: 1, ..settings() };
    let (finding, asked) = run(one(), method(Style::Calls), |_, _| Some(measured(&[12e3], Path::Loopback)));
    assert_eq!((asked.len(), finding.status()), (5, SwitchboxStatus::Ok));
    assert!(finding.pairs[0].alone);
    assert_eq!(finding.pairs[0].values.len(), 5, "the first one counts");
}

#[test]
fn the_whole_check_ends_at_its_deadline() {
    let many: Vec<SocketPair> = (0..32).map(|it| SocketPair(2 * it, 2 * it + 1)).collect();
    let slow = Settings { pairs: many, ..settings() };
    let (finding, asked) = run(slow, method(Style::Calls), |_, _| hang());
    assert_eq!(finding.took, DEADLINE);
    assert_eq!(asked.len(), 6, "one of 10 s, and then five");
    assert_eq!(finding.status(), SwitchboxStatus::Untested, "27 were never alone");
    let dead = finding.pairs.iter().filter(|it| it.verdict == Verdict::Bad).count();
    assert_eq!(dead, 5, "those that hung alone, too");
    assert_eq!(finding.pairs[4].wrong.as_ref().unwrap().to_string(), "dead, not finished within 10 s");
    let message = "untested, no time was left to measure it alone; so far: dead, not finished within 10 s";
    assert_eq!(finding.pairs[5].wrong.as_ref().unwrap().to_string(), message);
}

/// A command measures all pairs in one process: one pair that hangs keeps the answers of the others.
#[test]
fn one_pair_that_delays_a_serial_run_is_the_only_dead_one() {
    for hanging in 0..4 {
        let timeout = Duration::from_secs(20);
        let method = Method { timeout, is_serial: true, ..method(Style::Calls) };
        let (finding, asked) = run(settings(), method, |pair, alone| match alone && pair != hanging {
            true => Some(measured(&[50_000.0], Path::Metaxlink)),
            false => hang(),
        });
        let mut expected = vec![vec![0, 1, 2, 3]];
        for pair in 0..4 {
            expected.extend(std::iter::repeat_n(vec![pair], if pair == hanging { 1 } else { 5 }));
        }
        assert_eq!(asked, expected);
        let wrong: Vec<_> = finding.pairs.iter().filter_map(|it| it.wrong.as_ref()).collect();
        assert_eq!(wrong, [&Wrong::new(Trouble::Dead, "not finished within 20 s")]);
        assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Degraded, 3));
    }
}

/// It had 5 s of the 10 s that it may take.
#[test]
fn a_pair_cut_off_by_the_end_of_the_check_has_not_hung() {
    let (mut check, _) = Check::new(Moment::START, settings(), method(Style::Calls));
    let mut answer = |run, pair, seconds| {
        let answer = Answer::Failed(Wrong::new(Trouble::NoAnswer, "nonsense"));
        check.handle(Moment::at_secs(seconds), Event::Answered { run, pair, answer })
    };
    for pair in 0..4 {
        let _next = answer(0, pair, 10);
    }
    for (run, pair) in [(1, 0), (2, 1), (3, 2)] {
        let _next = answer(run, pair, 55);
    }
    let effects = check.handle(Moment::at_secs(60), Event::Deadline);
    let [Effect::Stop { run: 4 }, Effect::Finish(finding)] = &effects[..] else { panic!("{effects:?}") };
    let message: Vec<_> = finding.pairs.iter().map(|it| it.wrong.as_ref().unwrap().to_string()).collect();
    assert_eq!(message[2], "no answer, nonsense");
    assert_eq!(message[3], "untested, no time was left to measure it alone; so far: no answer, nonsense");
}

/// All share a switch, so all are slow with others; alone each is fast, but the time is over before all were alone.
#[test]
fn a_pair_measured_alone_too_rarely_is_not_bad() {
    let pairs: Vec<SocketPair> = (0..16).map(|pair| SocketPair(2 * pair, 2 * pair + 1)).collect();
    let settings = Settings { pairs, min_channels: 16, ..settings() };
    let (mut check, mut effects) = Check::new(Moment::START, settings, method(Style::Calls));
    let mut now = Moment::START;
    let finding = loop {
        let mut next = Vec::new();
        for effect in std::mem::take(&mut effects) {
            let Effect::Measure { run, pairs, .. } = effect else { continue };
            // The tool's second, and its start.
            now = (now + Duration::from_millis(1700)).min(check.deadline().unwrap());
            let value = if pairs.len() == 1 { 50_000.0 } else { 3_000.0 };
            for pair in pairs {
                let event = match now == Moment::START + DEADLINE {
                    true => Event::Deadline,
                    false => Event::Answered { run, pair, answer: measured(&[value], Path::Metaxlink) },
                };
                next.extend(check.handle(now, event));
            }
        }
        if let Some(Effect::Finish(finding)) = next.last() {
            break finding.clone();
        }
        effects = next;
    };
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Untested, 6), "{finding}");
    assert!(finding.fault().unwrap().component.is_nothing_broken());
    let of = |pair: usize| finding.pairs[pair].wrong.as_ref().unwrap().to_string();
    assert_eq!(
        of(6),
        "untested, no time was left for more than 4 solo runs: 50000.0 MB/s; 4 reached 10000.0 MB/s"
    );
    assert_eq!(
        of(7),
        "untested, no time was left to measure it alone; 3000.0 MB/s in 1 run alongside other pairs"
    );
    // Few enough are needed: the others are in the notes, and the node trains.
    let few = SwitchboxFinding { min_channels: 6, ..finding };
    assert_eq!((few.status(), few.notes().len()), (SwitchboxStatus::Degraded, 10));
}

/// How often all pairs are measured together, and the remark, when each run takes so long.
fn together(millis: u64) -> (usize, SwitchboxFinding) {
    let timeout = Duration::from_secs(20);
    let (mut check, mut effects) =
        Check::new(Moment::START, settings(), Method { timeout, ..method(Style::Calls) });
    let mut now = Moment::START;
    for runs in 0.. {
        let mut next = Vec::new();
        match &effects[..] {
            [Effect::Measure { run, pairs, .. }] => {
                now = now + Duration::from_millis(millis);
                for pair in pairs {
                    let answer = measured(&[50_000.0], Path::Metaxlink);
                    next.extend(check.handle(now, Event::Answered { run: *run, pair: *pair, answer }));
                }
            }
            [Effect::Finish(finding)] => return (runs, finding.clone()),
            other => panic!("{other:?}"),
        }
        effects = next;
    }
    unreachable!("it ends")
}

#[test]
fn a_slow_probe_gets_fewer_runs_and_a_remark() {
    for (millis, runs) in
        [(100, 5), (1_700, 5), (8_000, 5), (8_100, 4), (10_000, 4), (15_000, 2), (19_999, 2)]
    {
        let (asked, finding) = together(millis);
        assert_eq!((asked, finding.status()), (runs, SwitchboxStatus::Ok), "{millis}");
        assert!(finding.took <= DEADLINE);
        let message = format!(
            "the probe is slow: 4 good pairs had fewer than 5 runs (at least {runs}), so an intermittent link may have been \
             missed"
        );
        let expected = if runs < 5 { vec![message] } else { Vec::new() };
        assert_eq!(finding.remarks, expected, "{millis}");
        assert_eq!(finding.notes().len(), expected.len());
    }
}

#[test]
fn a_serial_probe_gets_the_time_of_all_its_pairs() {
    let serial = Method { is_serial: true, ..method(Style::Calls) };
    assert_eq!(serial.timeout_for(2).as_secs(), 20);
    assert_eq!(serial.timeout_for(32).as_secs(), 20, "and leaves two thirds of the deadline");
    assert_eq!(method(Style::Calls).timeout_for(32).as_secs(), 10);
}

#[test]
fn late_and_foreign_messages_are_dropped() {
    let (mut check, effects) = Check::new(Moment::START, settings(), method(Style::Calls));
    assert!(matches!(&effects[..], [Effect::Measure { run: 0, pairs, .. }] if pairs.len() == 4));
    let now = Moment::at_secs(10);
    assert!(check.handle(Moment::at_secs(9), Event::Deadline).is_empty(), "too early");
    let effects = check.handle(now, Event::Deadline);
    assert!(
        matches!(&effects[..], [Effect::Stop { run: 0 }, Effect::Measure { run: 1, pairs, .. }] if *pairs == [0])
    );
    let good = || measured(&[50e3], Path::Metaxlink);
    for (run, pair) in [(0, 0), (1, 1), (2, 0), (1, 99)] {
        assert!(check.handle(now, Event::Answered { run, pair, answer: good() }).is_empty());
    }
    let named = Event::Named { pair: 99, devices: ("a".into(), "b".into()) };
    assert!(check.handle(now, named).is_empty());
}

#[test]
fn devices_are_named() {
    let (mut check, _) = Check::new(Moment::START, settings(), method(Style::Calls));
    for pair in 0..4 {
        let devices = (format!("GPU {pair}"), "GPU 9".to_owned());
        assert!(check.handle(Moment::START, Event::Named { pair, devices }).is_empty());
    }
    let mut last = Vec::new();
    for pair in 0..4 {
        let answer = Answer::Failed(Wrong::new(Trouble::ToolMissing, "no /opt/tool"));
        last = check.handle(Moment::START, Event::Answered { run: 0, pair, answer });
    }
    let [Effect::Finish(finding)] = &last[..] else { panic!("{last:?}") };
    assert_eq!(finding.troubles().next().unwrap(), "pair 0:1 (GPU 0 -> GPU 9): tool missing, no /opt/tool");
    assert!(check.handle(Moment::START, Event::Deadline).is_empty() && check.deadline().is_none());
    assert_eq!(finding.pairs.len(), PAIRS.len());
    assert_eq!(finding.min, mb(10_000.0));
}
