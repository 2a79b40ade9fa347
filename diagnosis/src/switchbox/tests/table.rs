//! The decision table, row by row.

use super::{super::*, PAIRS, measured, method, run, settings};
use crate::{
    network_check::{Component, LocalCheck},
    switchbox::check_pairs,
};

/// A check whose pairs always give these.
fn with(settings: Settings, values: [f64; 4], path: Path) -> SwitchboxFinding {
    run(settings, method(Style::Calls), |pair, _| Some(measured(&[values[pair]], path))).0
}

#[test]
fn all_good_is_ok() {
    let finding = with(settings(), [50_000.0; 4], Path::Metaxlink);
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Ok, 4));
    assert_eq!(finding.fault(), None);
    assert!(finding.notes().is_empty());
    assert_eq!(finding.to_string(), "4 of 4 pairs good, 2 needed: ok, 0.50 s");
}

#[test]
fn half_of_them_is_degraded_and_the_faulty_links_are_named() {
    let finding = with(settings(), [50_000.0, 50_000.0, 9999.9, 0.0], Path::Metaxlink);
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Degraded, 2));
    assert_eq!(finding.fault(), None);
    assert_eq!(
        finding.notes(),
        [
            "switchbox pair 3:5: slow, 9999.9 MB/s in 5 solo runs; 0 of 5 reached 10000.0 MB/s",
            "switchbox pair 6:7: dead, 0 MB/s in 5 solo runs",
        ]
    );
}

#[test]
fn fewer_than_the_minimum_is_a_fault_of_the_node() {
    let finding = with(settings(), [50_000.0, 9000.0, 9000.0, 9000.0], Path::Metaxlink);
    assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Fault, 1));
    let fault = finding.fault().unwrap();
    assert_eq!(fault.component.as_str(), "switchbox");
    assert!(fault.reason.starts_with("1 of 4 pairs good, 2 needed; pair 2:4: slow, 9000.0 MB/s"));
    assert!(finding.notes().is_empty());
}

#[test]
fn exactly_the_minimum_is_good() {
    let finding = with(settings(), [10_000.0; 4], Path::Metaxlink);
    assert_eq!(finding.status(), SwitchboxStatus::Ok);
    let finding = with(settings(), [9_999.999_999; 4], Path::Metaxlink);
    assert_eq!(finding.status(), SwitchboxStatus::Fault);
}

#[test]
fn fast_over_the_wrong_path_is_a_fault() {
    for (path, expected, words) in [
        (Path::Pcie, Path::Metaxlink, "the bytes went over pcie and not over metaxlink"),
        (Path::Host, Path::Metaxlink, "the bytes went through the host's memory and not over metaxlink"),
        (
            Path::Unknown,
            Path::Metaxlink,
            "the probe does not report the path that the bytes took; it must be metaxlink",
        ),
        (
            Path::Loopback,
            Path::Nvlink,
            "the bytes stayed within one accelerator (loopback) and did not go over nvlink",
        ),
        (Path::Host, Path::Nvlink, "the bytes went through the host's memory and not over nvlink"),
    ] {
        let settings = Settings { expected: Expected::Exactly(expected), ..settings() };
        let finding = with(settings, [50_000.0; 4], path);
        assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Fault, 0), "{path}");
        let wrong = finding.pairs[0].wrong.clone().unwrap();
        assert_eq!(wrong.trouble, Trouble::WrongPath);
        assert_eq!(wrong.to_string(), format!("wrong path, {words}"));
    }
    let settings = Settings { expected: Expected::Exactly(Path::Nvlink), ..settings() };
    assert_eq!(with(settings, [50_000.0; 4], Path::Nvlink).status(), SwitchboxStatus::Ok);
}

#[test]
fn any_trouble_of_one_pair_is_its_own_and_named() {
    for trouble in Trouble::ALL {
        let finding = run(settings(), method(Style::Repetitions), |pair, _| {
            Some(match pair {
                2 => Answer::Failed(Wrong::new(trouble, "words")),
                _ => measured(&[50_000.0; 5], Path::Nvlink),
            })
        });
        assert_eq!(finding.0.status(), SwitchboxStatus::Degraded);
        // A program that answers for others fails for this pair alone.
        let trouble = if trouble == Trouble::ProbeFailed { Trouble::NoAnswer } else { trouble };
        assert_eq!(finding.0.pairs[2].wrong, Some(Wrong::new(trouble, "words")));
        assert_eq!(finding.0.notes(), [format!("switchbox pair 3:5: {trouble}, words")]);
    }
}

/// What was never measured is no evidence against a link.
#[test]
fn a_node_is_at_fault_only_where_too_few_can_be_good() {
    let of = |answers: [Result<f64, Trouble>; 4]| {
        let answer = |pair: usize, _| {
            Some(match answers[pair] {
                Ok(value) => measured(&[value], Path::Metaxlink),
                Err(trouble) => Answer::Failed(Wrong::new(trouble, "words")),
            })
        };
        let finding = run(settings(), method(Style::Calls), answer).0;
        (finding.status(), finding.fault().map(|fault| fault.component))
    };
    let (good, slow, missing, denied) =
        (Ok(50_000.0), Ok(9000.0), Err(Trouble::ToolMissing), Err(Trouble::NoPermission));
    let untested = (SwitchboxStatus::Untested, Some(Component::SwitchboxProbe));
    let fault = (SwitchboxStatus::Fault, Some(Component::Switchbox));
    assert_eq!(of([missing; 4]), untested);
    assert_eq!(of([denied, denied, slow, good]), untested);
    assert_eq!(of([missing, slow, slow, slow]), fault);
    assert_eq!(of([missing, slow, slow, good]), untested);
    assert_eq!(of([missing, missing, good, good]), (SwitchboxStatus::Degraded, None));
    let late = Err(Trouble::Untested);
    assert_eq!(of([late, late, slow, slow]), untested);
    assert_eq!(of([late, slow, slow, slow]), fault);
    let gone = Err(Trouble::NoSuchDevice);
    assert_eq!(of([gone; 4]), fault);
}

/// One program for all pairs that fails for each of them is no evidence on any link.
#[test]
fn a_program_that_fails_is_held_against_a_pair_only_where_it_answers_for_another() {
    let of = |is_serial, good: usize| {
        let method = Method { is_serial, ..method(Style::Calls) };
        let failed = || Answer::Failed(Wrong::new(Trouble::ProbeFailed, "exit code 2"));
        run(settings(), method, |pair, _| {
            Some(if pair < good { measured(&[50_000.0], Path::Metaxlink) } else { failed() })
        })
        .0
    };
    let finding = of(true, 0);
    assert_eq!(finding.status(), SwitchboxStatus::Untested);
    let fault = finding.fault().unwrap();
    assert!(fault.component.is_nothing_broken());
    let message = "0 of 4 pairs good, 2 needed; test gave no usable answer for any pair: run it by hand on this node; \
                 pair 0:1: probe failed, exit code 2; ";
    assert!(fault.reason.starts_with(message), "{}", fault.reason);
    assert!(
        finding
            .to_string()
            .ends_with("; test gave no usable answer for any pair: run it by hand on this node")
    );
    for finding in [of(true, 1), of(false, 0)] {
        assert_eq!(finding.status(), SwitchboxStatus::Fault);
        assert!(finding.troubles().all(|message| message.ends_with(": no answer, exit code 2")));
        assert!(!finding.to_string().contains("by hand"));
    }
}

/// What a node knows of itself from before stays.
#[test]
fn a_finding_adds_to_the_self_test() {
    let mut checked =
        LocalCheck { notes: vec!["GPU 2: NVLink 5 is down (1 of 18)".into()], ..LocalCheck::default() };
    with(settings(), [50_000.0, 50_000.0, 9999.9, 50_000.0], Path::Metaxlink).add_to(&mut checked);
    assert_eq!((checked.notes.len(), checked.fault), (2, None));
}

#[test]
fn pairs_that_cannot_be_measured_are_refused() {
    let message = |pairs: &[(u32, u32)], loopback| {
        let pairs: Vec<SocketPair> = pairs.iter().map(|(one, other)| SocketPair(*one, *other)).collect();
        check_pairs(&pairs, loopback).map_err(|error| error.to_string())
    };
    assert_eq!(check_pairs(&PAIRS, false), Ok(()));
    let itself = "0:0 pairs a socket with itself, which requires --probe-loopback";
    assert_eq!(message(&[(0, 0)], false), Err(itself.into()));
    assert_eq!(message(&[(0, 0)], true), Ok(()));
    let twice = "socket 1 is in 0:1 and in 1:2: a socket belongs to one pair";
    assert_eq!(message(&[(0, 1), (1, 2)], false), Err(twice.into()));
    assert_eq!(message(&[(0, 1), (2, 3), (1, 0)], false), Err("1:0 is listed twice".into()));
    assert_eq!(message(&[(0, 0), (0, 0)], true), Err("0:0 is listed twice".into()));
    assert!(message(&[(0, 0), (0, 1)], true).is_err());
    assert!(message(&[], false).is_err());
    let many: Vec<(u32, u32)> = (0..65).map(|it| (2 * it, 2 * it + 1)).collect();
    assert!(message(&many, false).is_err());
    assert_eq!(message(&many[..64], false), Ok(()));
}
