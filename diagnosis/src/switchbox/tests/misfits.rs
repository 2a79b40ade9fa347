//! Pairs that were not made for this host.

use super::{super::*, PAIRS, measured, method, settings};
use crate::moment::Moment;

/// What a host with these sockets makes of the default pairs: the end of the check, after its first run.
fn end(settings: Settings, sockets: &[u32], is_counted: bool) -> Effect {
    let (mut check, mut effects) = Check::new(Moment::START, settings.clone(), method(Style::Calls));
    if is_counted {
        let devices = u32::try_from(sockets.len()).unwrap();
        assert!(check.handle(Moment::START, Event::Counted { devices }).is_empty());
    }
    loop {
        let Some(Effect::Measure { run, pairs, .. }) = effects.first().cloned() else {
            return effects.remove(0);
        };
        effects = Vec::new();
        for pair in pairs {
            let SocketPair(one, other) = settings.pairs[pair];
            let lacks = [one, other].into_iter().find(|socket| !sockets.contains(socket));
            let answer = match lacks {
                Some(socket) => Answer::Failed(Wrong::new(Trouble::NoSuchDevice, format!("socket {socket}"))),
                None => measured(&[50_000.0], Path::Metaxlink),
            };
            effects.extend(check.handle(Moment::START, Event::Answered { run, pair, answer }));
        }
    }
}

fn default_pairs() -> Settings {
    Settings { are_pairs_given: false, ..settings() }
}

#[test]
fn default_pairs_on_a_smaller_host_are_refused_with_what_to_do() {
    let Effect::Refuse(misfit) = end(default_pairs(), &[0, 1, 2, 3], true) else { panic!("it goes on") };
    let message = "this host has 4 accelerators, and the default pairs 0:1 2:4 3:5 6:7 need an accelerator on each of \
                 8 sockets (pairs that lack one: 2:4 3:5 6:7), so that fewer than 2 pairs are left. Set \
                 --box-pairs to the pairs of this host's sockets; if the host should have all 8 accelerators, set \
                 --box-pairs to 0:1 2:4 3:5 6:7: missing accelerators are then a fault of the node";
    assert_eq!(misfit.to_string(), message);
    for sockets in [&[][..], &[0], &[0, 1], &[0, 1, 3], &[0, 2, 3, 6], &[8, 9, 10, 11, 12, 13, 14, 15]] {
        let refused = end(default_pairs(), sockets, true);
        assert!(matches!(refused, Effect::Refuse(_)), "{sockets:?} {refused:?}");
    }
    // A probe that does not count: it lacks most of the pairs.
    let Effect::Refuse(misfit) = end(default_pairs(), &[0, 1, 2, 3], false) else { panic!("it goes on") };
    assert!(
        misfit.to_string().starts_with("this host has too few accelerators, and the default"),
        "{misfit}"
    );
}

#[test]
fn a_host_of_eight_that_has_lost_some_is_at_fault() {
    let strict = || Settings { min_channels: 4, ..default_pairs() };
    for (sockets, is_counted) in
        [(&[0, 1, 2, 3, 4, 5, 6][..], true), (&[0, 1, 2, 3, 6], true), (&[0, 1, 2, 3, 4, 5, 6], false)]
    {
        let Effect::Finish(finding) = end(strict(), sockets, is_counted) else { panic!("{sockets:?}") };
        assert_eq!(finding.status(), SwitchboxStatus::Fault, "{sockets:?}");
    }
    // Where enough pairs are left, the node trains.
    let Effect::Finish(finding) = end(default_pairs(), &[0, 1, 2, 4], true) else { panic!("it trains") };
    assert_eq!(finding.status(), SwitchboxStatus::Degraded);
}

#[test]
fn configured_pairs_are_what_the_host_should_have() {
    for sockets in [&[][..], &[0, 1, 2, 3], &[0, 1, 2, 3, 4, 5, 6]] {
        let given = Settings { min_channels: 4, ..settings() };
        let Effect::Finish(finding) = end(given, sockets, true) else { panic!("{sockets:?}") };
        assert_eq!(finding.status(), SwitchboxStatus::Fault, "{sockets:?}");
    }
    let pairs = vec![SocketPair(0, 1), SocketPair(2, 3)];
    let fitting = Settings { pairs, ..settings() };
    let Effect::Finish(finding) = end(fitting, &[0, 1, 2, 3], true) else { panic!("it fits") };
    assert_eq!(finding.status(), SwitchboxStatus::Ok);
    assert_eq!(PAIRS.len(), 4);
}
