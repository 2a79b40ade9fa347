//! Who is measured when.

use super::{super::*, PAIRS, mb, measured, method, run, settings};
use crate::moment::Moment;

fn hang() -> Option<Answer> {
    None
}

#[test]
fn all_at_once_and_the_doubtful_alone() {
    let (finding, asked) = run(settings(), method(Style::ONE_SAMPLE), |pair, alone| {
        let value = match (pair, alone) {
            (1, false) => 11_999.0,
            (3, false) => 1_000.0,
            _ => 12_000.0,
        };
        Some(measured(&[value], Path::Metaxlink))
    });
    let mut expected = vec![vec![0, 1, 2, 3]];
    expected.extend(std::iter::repeat_n(vec![1], 4));
    expected.extend(std::iter::repeat_n(vec![3], 4));
    assert_eq!(asked, expected);
    assert_eq!(finding.standing(), Standing::Ok);
    let alone: Vec<bool> = finding.pairs.iter().map(|pair| pair.alone).collect();
    assert_eq!(alone, [false, true, false, true]);
    let values: Vec<usize> = finding.pairs.iter().map(|pair| pair.values.len()).collect();
    assert_eq!(values, [1, 4, 1, 4], "what was seen beside others does not count");
}

#[test]
fn repetitions_that_disagree_are_taken_once_more() {
    let (finding, asked) = run(settings(), method(Style::Repetitions), |pair, alone| {
        let values = if pair == 0 && alone { [11e3, 11e3, 9e3, 11e3, 11e3] } else { [11e3; 5] };
        let values = if pair == 0 && !alone { [9e3; 5] } else { values };
        Some(measured(&values, Path::Nvlink))
    });
    assert_eq!(asked, [vec![0, 1, 2, 3], vec![0], vec![0]]);
    assert_eq!((finding.standing(), finding.pairs[0].values.len()), (Standing::Ok, 10));
}

#[test]
fn who_hangs_is_asked_once_more_alone_and_then_dead() {
    let (finding, asked) = run(settings(), method(Style::ONE_SAMPLE), |pair, _| match pair {
        2 => hang(),
        _ => Some(measured(&[50e3], Path::Metaxlink)),
    });
    assert_eq!(asked, [vec![0, 1, 2, 3], vec![2]]);
    let wrong = finding.pairs[2].wrong.clone().unwrap();
    assert_eq!(wrong.to_string(), "dead, no end within 10 s");
    assert_eq!(finding.standing(), Standing::Degraded);
}

#[test]
fn who_hung_beside_others_and_answers_alone_is_judged_by_that() {
    let (finding, asked) = run(settings(), method(Style::ONE_SAMPLE), |pair, alone| match pair {
        2 if !alone => hang(),
        _ => Some(measured(&[50e3], Path::Metaxlink)),
    });
    assert_eq!(asked.len(), 5);
    assert_eq!(finding.standing(), Standing::Ok);
}

#[test]
fn what_no_other_try_mends_is_not_tried_again() {
    for trouble in [Trouble::ToolMissing, Trouble::NoPermission, Trouble::DataMismatch, Trouble::NoSuchDevice]
    {
        let (_, asked) =
            run(settings(), method(Style::ONE_SAMPLE), |_, _| Some(Answer::Failed(Wrong::new(trouble, ""))));
        assert_eq!(asked.len(), 1, "{trouble}");
    }
    let no_answer = || Some(Answer::Failed(Wrong::new(Trouble::NoAnswer, "nonsense")));
    let (finding, asked) = run(settings(), method(Style::ONE_SAMPLE), |_, _| no_answer());
    assert_eq!(asked.len(), 5);
    assert!(finding.pairs.iter().all(|it| it.wrong.as_ref().unwrap().to_string() == "no answer, nonsense"));
}

#[test]
fn one_pair_is_alone_from_the_start() {
    let one = || Settings { pairs: vec![SocketPair(0, 0)], min_channels: 1, ..settings() };
    let (finding, asked) =
        run(one(), method(Style::ONE_SAMPLE), |_, _| Some(measured(&[12e3], Path::Loopback)));
    assert_eq!((asked.len(), finding.standing()), (1, Standing::Ok));
    assert!(finding.pairs[0].alone);
    let (finding, asked) =
        run(one(), method(Style::ONE_SAMPLE), |_, _| Some(measured(&[11e3], Path::Loopback)));
    assert_eq!((asked.len(), finding.pairs[0].values.len()), (4, 4), "the first one counts");
}

#[test]
fn the_whole_check_ends_at_its_deadline() {
    let many: Vec<SocketPair> = (0..32).map(|it| SocketPair(2 * it, 2 * it + 1)).collect();
    let slow = Settings { pairs: many, ..settings() };
    let (finding, asked) = run(slow, method(Style::ONE_SAMPLE), |_, _| hang());
    assert_eq!(finding.took, DEADLINE);
    assert_eq!(asked.len(), 6, "one of 10 s, and then five");
    assert_eq!(finding.standing(), Standing::Fault);
    assert!(finding.pairs.iter().all(|it| it.wrong.as_ref().unwrap().trouble == Trouble::Dead));
}

#[test]
fn a_serial_probe_gets_the_time_of_all_its_pairs() {
    let serial = Method { is_serial: true, ..method(Style::ONE_MEAN) };
    assert_eq!(serial.patience_for(3).as_secs(), 30);
    assert_eq!(serial.patience_for(32).as_secs(), 40, "and leaves some of the deadline");
    assert_eq!(method(Style::ONE_MEAN).patience_for(32).as_secs(), 10);
}

#[test]
fn late_words_and_words_of_others_are_dropped() {
    let (mut check, effects) = Check::new(Moment::START, settings(), method(Style::ONE_SAMPLE));
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
    let (mut check, _) = Check::new(Moment::START, settings(), method(Style::ONE_SAMPLE));
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
