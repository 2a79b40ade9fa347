//! A box of links in memory, and checks of it.

mod machine;
mod misfits;
mod paths;
mod properties;
mod simulation;
mod table;
mod values;

use std::time::Duration;

use super::{
    Answer, Check, Effect, Event, Expected, Method, Path, Rate, Repetition, Settings, SocketPair, Style,
    SwitchboxFinding,
};
use crate::moment::Moment;

/// The guide's default pairs.
const PAIRS: [SocketPair; 4] = [SocketPair(0, 1), SocketPair(2, 4), SocketPair(3, 5), SocketPair(6, 7)];

fn mb(megabytes: f64) -> Rate {
    Rate::from_mb_per_s(megabytes).unwrap()
}

/// The guide's defaults.
fn settings() -> Settings {
    Settings {
        pairs: PAIRS.to_vec(),
        are_pairs_given: true,
        min: mb(10_000.0),
        min_channels: 2,
        expected: Expected::Alike,
        models: Vec::new(),
    }
}

fn method(style: Style) -> Method {
    Method { probe: "test".into(), style, timeout: Duration::from_secs(10), is_serial: false }
}

fn one_way(megabytes: f64) -> Repetition {
    Repetition { there: mb(megabytes), back: None }
}

/// A value for each that is asked for.
fn measured(values: &[f64], path: Path) -> Answer {
    Answer::Measured { values: values.iter().map(|value| one_way(*value)).collect(), path }
}

/// What was asked for: pairs of a run.
type Asked = Vec<Vec<usize>>;

/// Runs a check against links that answer so: pair, whether alone, time since the start. Each run takes a second.
/// `None`: the pair hangs.
fn run(
    settings: Settings,
    method: Method,
    mut link: impl FnMut(usize, bool) -> Option<Answer>,
) -> (SwitchboxFinding, Asked) {
    let (mut check, mut effects) = Check::new(Moment::START, settings, method);
    let mut now = Moment::START;
    let mut asked = Vec::new();
    for _ in 0..10_000 {
        let mut next = Vec::new();
        let mut hangs = false;
        for effect in effects {
            match effect {
                Effect::Measure { run, pairs, .. } => {
                    let alone = pairs.len() == 1;
                    asked.push(pairs.clone());
                    now = now + Duration::from_millis(100);
                    for pair in pairs {
                        match link(pair, alone) {
                            Some(answer) => {
                                next.extend(check.handle(now, Event::Answered { run, pair, answer }))
                            }
                            None => hangs = true,
                        }
                    }
                }
                Effect::Stop { .. } => {}
                Effect::Finish(finding) => {
                    assert!(next.is_empty() && check.deadline().is_none());
                    return (finding, asked);
                }
                Effect::Refuse(misfit) => panic!("{misfit}"),
            }
        }
        if next.is_empty() && hangs {
            now = check.deadline().unwrap();
            next = check.handle(now, Event::Deadline);
        }
        effects = next;
    }
    panic!("it never ends");
}
