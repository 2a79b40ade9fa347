//! What `dlrover-diag rehearse` says.

use std::fmt::{self, Write as _};

use rules::network_check::{Kind, LinkKind, NodeFinding, NodeVerdict, Outcome, TestResult};
use serde_json::json;

use super::settings::Settings;

/// Nodes that are listed one by one for people; more have the JSON.
const MOST_LISTED: usize = 40;

/// One line for programs.
pub(super) fn json(outcome: &Outcome) -> String {
    let of = |is: fn(&NodeVerdict) -> bool| nodes(outcome, |node| is(&node.verdict));
    let links = |is: fn(LinkKind) -> bool| -> Vec<_> {
        outcome.links.iter().filter(|link| is(link.kind)).map(|link| link.nodes).collect()
    };
    json!({
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
        "tainted": nodes(outcome, |node| node.tainted),
        "excluded": nodes(outcome, |node| node.excluded),
        "mass_failure": outcome.guard.mass_failure,
        "network_untested": outcome.network_untested,
        "wall_seconds_simulated": outcome.took.as_secs_f64(),
    })
    .to_string()
}

fn nodes(outcome: &Outcome, is: impl Fn(&NodeFinding) -> bool) -> Vec<u32> {
    (0..).zip(&outcome.nodes).filter(|(_, node)| is(node)).map(|(number, _)| number).collect()
}

/// For people.
pub(super) fn table(settings: &Settings, outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _cannot_fail = write(&mut text, settings, outcome);
    text
}

fn write(text: &mut String, settings: &Settings, outcome: &Outcome) -> fmt::Result {
    let cluster = &settings.cluster;
    writeln!(text, "imagined: {} nodes in {} racks, seed {}", cluster.nodes, cluster.racks, cluster.seed)?;
    let broken: [(usize, &str); 9] = [
        (cluster.faulty.len(), "faulty"),
        (cluster.local_fault.len(), "with a fault of their own"),
        (cluster.lost.len(), "lost"),
        (cluster.slow_nic.len(), "with a slow network card"),
        (cluster.slow_compute.len(), "slow to compute"),
        (cluster.flaky.len(), "flaky"),
        (cluster.dead_links.len(), "dead links"),
        (cluster.dead_rack_pairs.len(), "dead paths between racks"),
        (cluster.dead_uplinks.len(), "racks cut off"),
    ];
    let broken: Vec<String> = broken
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let broken = if broken.is_empty() { "nothing is broken".to_owned() } else { broken.join(", ") };
    writeln!(text, "          {broken}; noise {}", cluster.noise)?;
    write_rounds(text, outcome)?;
    write_nodes(text, outcome)?;
    write_paths(text, outcome)?;
    let guard = &outcome.guard;
    let tainted = nodes(outcome, |node| node.tainted).len();
    let held = if guard.mass_failure { "a mass failure, so nobody is tainted" } else { "the taints stand" };
    let (deserved, limit) = (guard.taints, guard.limit);
    let out = nodes(outcome, |node| node.excluded).len();
    writeln!(text, "\ntainted: {tainted} ({deserved} deserved, {limit} allowed: {held}); left out: {out}")
}

fn write_rounds(text: &mut String, outcome: &Outcome) -> fmt::Result {
    if outcome.rounds.is_empty() {
        return writeln!(text, "\nno rounds: fewer than two nodes can be tested, the network is untested");
    }
    writeln!(text, "\nround  tests  pass  slow  fail  seconds  kinds")?;
    for (number, round) in outcome.rounds.iter().enumerate() {
        let of = |result: TestResult| round.tests.iter().filter(|test| test.result == result).count();
        let mut kinds: Vec<(Kind, usize)> = Vec::new();
        for test in &round.tests {
            match kinds.iter_mut().find(|(kind, _)| *kind == test.kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((test.kind, 1)),
            }
        }
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, count)| format!("{count} {}", word(*kind))).collect();
        let (tests, seconds) = (round.tests.len(), round.took.as_secs_f64());
        let [pass, slow, fail] = [TestResult::Pass, TestResult::Slow, TestResult::Fail].map(of);
        let kinds = kinds.join(", ");
        writeln!(text, "{number:>5}  {tests:>5}  {pass:>4}  {slow:>4}  {fail:>4}  {seconds:>7.2}  {kinds}")?;
    }
    let (rounds, seconds) = (outcome.rounds.len(), outcome.took.as_secs_f64());
    writeln!(text, "{rounds} rounds in {seconds:.2} simulated seconds")
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Screen => "screen",
        Kind::Witness => "witness",
        Kind::Seed => "seed",
        Kind::Coverage => "coverage",
        Kind::Retest => "retest",
        Kind::Sibling => "sibling",
        Kind::Probe => "probe",
        Kind::RackDiagnosis => "rack diagnosis",
        Kind::Idle => "idle",
    }
}

fn write_nodes(text: &mut String, outcome: &Outcome) -> fmt::Result {
    let odd = nodes(outcome, |node| node.verdict != NodeVerdict::Healthy);
    writeln!(text, "\n{} nodes are healthy, {} are not", outcome.nodes.len() - odd.len(), odd.len())?;
    for number in odd.iter().take(MOST_LISTED) {
        let Some(node) = outcome.nodes.get(*number as usize) else { continue };
        let verdict = match &node.verdict {
            NodeVerdict::Healthy => "healthy",
            NodeVerdict::Fault => "fault",
            NodeVerdict::LocalFault(_) => "fault of its own",
            NodeVerdict::Lost { .. } => "lost",
            NodeVerdict::Unreachable => "unreachable",
            NodeVerdict::StragglerCompute => "straggler (compute)",
            NodeVerdict::StragglerNetwork => "straggler (network)",
            NodeVerdict::Flaky => "flaky",
            NodeVerdict::Inconclusive => "inconclusive",
        };
        let fate = match (node.tainted, node.excluded) {
            (true, _) => ", tainted",
            (false, true) => ", left out",
            (false, false) => "",
        };
        writeln!(text, "node {number}: {verdict}{fate}")?;
        for evidence in &node.evidence {
            let round = evidence.round.map_or_else(|| "before".to_owned(), |round| format!("round {round}"));
            writeln!(text, "    {round}: {}", evidence.words)?;
        }
    }
    if odd.len() > MOST_LISTED {
        writeln!(text, "... and {} more; --json names all", odd.len() - MOST_LISTED)?;
    }
    Ok(())
}

fn write_paths(text: &mut String, outcome: &Outcome) -> fmt::Result {
    for link in &outcome.links {
        let kind = match link.kind {
            LinkKind::Dead => "dead",
            LinkKind::Slow => "slow",
            LinkKind::Flaky => "works now and then",
        };
        writeln!(text, "link between node {} and node {}: {kind}", link.nodes.0, link.nodes.1)?;
    }
    for pair in &outcome.rack_pairs {
        let (a, b) = pair.racks;
        writeln!(text, "path between rack {a} and rack {b}: bad; {} pairs failed over it", pair.pairs.len())?;
    }
    for rack in &outcome.uplinks {
        writeln!(text, "rack {rack}: cut off from the others")?;
    }
    Ok(())
}
