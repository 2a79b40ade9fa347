//! One rehearsal as a line of JSON.

use diagnosis::network_check::{LinkKind, NodeVerdict, Outcome};
use serde_json::{Value, json};

use super::{
    super::{
        job::Job,
        settings::{Settings, line},
        truth::{Truth, word as verdict_word},
    },
    kinds, nodes, results, word,
};

/// One line for programs.
pub(in crate::rehearse) fn json(settings: &Settings, outcome: &Outcome) -> String {
    let of = |is: fn(&NodeVerdict) -> bool| nodes(outcome, |node| is(&node.verdict));
    let links = |is: fn(LinkKind) -> bool| -> Vec<_> {
        outcome.links.iter().filter(|link| is(link.kind)).map(|link| link.nodes).collect()
    };
    let truth = Truth::of(settings, outcome);
    let job = Job::after(&settings.policy, outcome);
    json!({
        "command": line(settings),
        "seed": settings.cluster.seed,
        "rounds": outcome.rounds.len(),
        "fault": of(|it| matches!(it, NodeVerdict::Fault)),
        "local_fault": of(|it| matches!(it, NodeVerdict::LocalFault(_))),
        "lost": of(|it| matches!(it, NodeVerdict::Lost { .. })),
        "straggler_compute": of(|it| matches!(it, NodeVerdict::StragglerCompute)),
        "straggler_network": of(|it| matches!(it, NodeVerdict::StragglerNetwork)),
        "flaky": of(|it| matches!(it, NodeVerdict::Flaky)),
        "inconclusive": of(|it| matches!(it, NodeVerdict::Inconclusive)),
        "unreachable": of(|it| matches!(it, NodeVerdict::Unreachable)),
        "links": links(|kind| kind != LinkKind::Flaky),
        "flaky_links": links(|kind| kind == LinkKind::Flaky),
        "rack_pairs": outcome.rack_pairs.iter().map(|it| it.racks).collect::<Vec<_>>(),
        "uplinks": outcome.uplinks,
        "leaves": outcome.leaves,
        "pods": outcome.pods,
        "partial_uplinks": outcome.partial_uplinks,
        "ambiguous": outcome.ambiguous,
        "cut": outcome.cut,
        "tainted": nodes(outcome, |node| node.tainted),
        "excluded": nodes(outcome, |node| node.excluded),
        "guard": outcome.guard,
        "mass_failure": outcome.guard.mass_failure,
        "network_untested": outcome.network_untested,
        "wall_seconds_simulated": outcome.took.as_secs_f64(),
        "missed": truth.missed,
        "blamed": truth.blamed,
        "healthy_tainted": truth.healthy_tainted(),
        "healthy_excluded": truth.healthy_excluded(),
        "wrong_names": truth.wrong,
        "starts_over_cut": truth.over_cut,
        "round_bound": truth.bound,
        "over_round_bound": truth.is_over_bound(),
        "job": { "starts": job.starts(), "exit_code": job.code(), "words": job.to_string() },
        "tests": rounds(outcome),
        "findings": findings(outcome),
    })
    .to_string()
}

/// The table of rounds.
fn rounds(outcome: &Outcome) -> Vec<Value> {
    let rounds = outcome.rounds.iter().map(|round| {
        let [pass, slow, fail] = results(round);
        let kinds: serde_json::Map<String, Value> =
            kinds(round).into_iter().map(|(kind, count)| (word(kind).to_owned(), json!(count))).collect();
        let (tests, seconds) = (round.tests.len(), round.took.as_secs_f64());
        json!({"tests": tests, "pass": pass, "slow": slow, "fail": fail, "seconds": seconds, "kinds": kinds})
    });
    rounds.collect()
}

/// What speaks for each verdict but `healthy`.
fn findings(outcome: &Outcome) -> Vec<Value> {
    let odd = (0_u32..).zip(&outcome.nodes);
    let odd = odd.filter(|(_, node)| node.verdict != NodeVerdict::Healthy || node.excluded);
    let findings = odd.map(|(number, node)| {
        let verdict = verdict_word(&node.verdict);
        let (tainted, excluded) = (node.tainted, node.excluded);
        json!({
            "node": number,
            "verdict": verdict,
            "tainted": tainted,
            "excluded": excluded,
            "evidence": node.evidence,
        })
    });
    findings.collect()
}
