//! What `dlrover-diag rehearse` says.

use std::fmt::{self, Write as _};

use rules::network_check::{Kind, LinkKind, NodeFinding, NodeVerdict, Outcome, TestResult};
use serde_json::json;

use super::{missed::missed, settings::Settings};
use crate::failure::{INCONCLUSIVE, MASS_FAILURE};

/// Nodes that are listed one by one for people; more have the JSON.
const MOST_LISTED: usize = 40;

/// One line for programs.
pub(super) fn json(settings: &Settings, outcome: &Outcome) -> String {
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
        "missed": missed(settings, outcome),
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
    let (all, racks) = (count(outcome.nodes.len(), "node"), count(cluster.racks as usize, "rack"));
    writeln!(text, "imagined: {all} in {racks}, seed {}", cluster.seed)?;
    let some =
        |number: usize, one: &'static str, many: &'static str| (number, if number == 1 { one } else { many });
    let broken: [(usize, &str); 10] = [
        (cluster.faulty.len(), "faulty"),
        (cluster.local_fault.len(), "with a fault of their own"),
        (cluster.lost.len(), "lost"),
        (cluster.slow_nic.len(), "with a slow network card"),
        (cluster.slow_compute.len(), "slow to compute"),
        (cluster.flaky.len(), "flaky"),
        some(cluster.dead_links.len(), "dead link", "dead links"),
        some(cluster.slow_links.len(), "slow link", "slow links"),
        some(cluster.dead_rack_pairs.len(), "dead path between racks", "dead paths between racks"),
        some(cluster.dead_uplinks.len(), "rack cut off", "racks cut off"),
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
    write_missed(text, settings, outcome)?;
    let guard = &outcome.guard;
    let tainted = nodes(outcome, |node| node.tainted).len();
    let held = if guard.mass_failure { "a mass failure, so nobody is tainted" } else { "the taints stand" };
    let (deserved, limit) = (guard.taints, guard.limit);
    writeln!(text, "\ntainted: {tainted} ({deserved} deserved, {limit} allowed: {held})")?;
    writeln!(text, "the job: {}", Job::after(outcome))
}

/// What a job of these nodes would do, with the default of `--on-inconclusive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Fails { code: u8, why: &'static str },
    GoesOn { with: usize, without: usize },
}

impl Job {
    fn after(outcome: &Outcome) -> Self {
        let in_doubt = nodes(outcome, |node| node.verdict == NodeVerdict::Inconclusive).len();
        let without = nodes(outcome, |node| node.excluded).len();
        match (outcome.guard.mass_failure, in_doubt) {
            (true, _) => Self::Fails { code: MASS_FAILURE, why: "a mass failure" },
            (false, 1..) => {
                Self::Fails { code: INCONCLUSIVE, why: "inconclusive, and --on-inconclusive=fail" }
            }
            (false, 0) => Self::GoesOn { with: outcome.nodes.len() - without, without },
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fails { code, why } => {
                write!(f, "would fail with exit code {code} ({why}), nobody is left out")
            }
            Self::GoesOn { with: 0, without } => write!(f, "waits for other nodes; left out: {without}"),
            Self::GoesOn { with, without: 0 } => write!(f, "goes on with {}", count(*with, "node")),
            Self::GoesOn { with, without } => {
                let with = count(*with, "node");
                write!(f, "goes on with {with}, where --nnodes allows so few; left out: {without}")
            }
        }
    }
}

/// `1 node`, `2 nodes`.
pub(super) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
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
    writeln!(text, "{} in {seconds:.2} simulated seconds", count(rounds, "round"))
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
    let fine = outcome.nodes.len() - odd.len();
    let is = if fine == 1 { "is" } else { "are" };
    match outcome.network_untested && fine > 0 {
        true => {
            let fine = count(fine, "node");
            writeln!(
                text,
                "\n{fine} {is} not tested: one alone has nobody to be tested with, and counts as fit"
            )?;
        }
        false => {
            let are = if odd.len() == 1 { "is" } else { "are" };
            writeln!(text, "\n{} {is} healthy, {} {are} not", count(fine, "node"), odd.len())?;
        }
    }
    let is_leaving = matches!(Job::after(outcome), Job::GoesOn { .. });
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
            (false, true) if is_leaving => ", left out",
            (false, _) => "",
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
        writeln!(
            text,
            "path between rack {a} and rack {b}: bad; {} failed over it",
            count(pair.pairs.len(), "pair")
        )?;
    }
    for rack in &outcome.uplinks {
        writeln!(text, "rack {rack}: cut off from the others")?;
    }
    Ok(())
}

fn write_missed(text: &mut String, settings: &Settings, outcome: &Outcome) -> fmt::Result {
    let missed = missed(settings, outcome);
    for one in missed.iter().take(MOST_LISTED) {
        writeln!(text, "{one}")?;
    }
    if missed.len() > MOST_LISTED {
        writeln!(text, "... and {} more; --json names all", missed.len() - MOST_LISTED)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rules::network_check::rehearsal::rehearse;

    use super::{super::arguments::command, *};

    fn said(line: &str) -> (String, serde_json::Value) {
        let words = std::iter::once("rehearse").chain(line.split_whitespace());
        let settings = Settings::read(&command().try_get_matches_from(words).unwrap()).unwrap();
        let outcome = rehearse(&settings.cluster, settings.policy.clone());
        let document = serde_json::from_str(&json(&settings, &outcome)).unwrap();
        (table(&settings, &outcome), document)
    }

    #[test]
    fn what_was_not_found_is_told() {
        for (line, told) in [
            ("--nodes 64 --racks 4 --dead-link 5:20", "not found: link 5-20: never tested\n"),
            ("--nodes 8 --flaky 3:0", "not found: node 3 (flaky): it passed all its tests ("),
            (
                "--nodes 8 --slow-nic 3:9",
                "not found: node 3 (slow network card): only --exclude-straggler looks for it",
            ),
            (
                "--nodes 3 --slow-nic 1:9 --exclude-straggler",
                "(slow network card): it takes 4 nodes to tell whose",
            ),
            (
                "--nodes 8 --slow-compute 2:1.5",
                "not found: node 2 (slow to compute): it took 1.50 times as long as",
            ),
            ("--nodes 2 --faulty 0", "not found: node 0 (faulty): inconclusive, not enough is known"),
            ("--nodes 8 --dead-uplink 0", "not found: rack 0 (cut off): never tested with another rack"),
        ] {
            let (text, document) = said(line);
            assert!(text.contains(told), "{line}: {text}");
            assert_eq!(document["missed"].as_array().unwrap().len(), 1, "{line}: {document}");
        }
        let (text, document) =
            said("--nodes 16 --racks 4 --faulty 3,9 --local-fault 4 --lost 5 --slow-compute 7:3");
        assert!(!text.contains("not found"), "{text}");
        assert_eq!(document["missed"], json!([]));
        let (_, document) = said("--nodes 64 --racks 4 --dead-link 5:20");
        let missed = json!([{"option": "dead-link", "numbers": [5, 20], "why": "never tested"}]);
        assert_eq!(document["missed"], missed);
    }

    #[test]
    fn what_a_job_would_do_is_told() {
        for (line, told) in [
            ("--nodes 4", "4 nodes are healthy, 0 are not\n"),
            ("--nodes 4", "the job: goes on with 4 nodes\n"),
            (
                "--nodes 8 --faulty 1",
                "the job: goes on with 7 nodes, where --nnodes allows so few; left out: 1\n",
            ),
            ("--nodes 8 --faulty 1", "7 nodes are healthy, 1 is not\n"),
            (
                "--nodes 6 --faulty 1,2,3",
                "the job: would fail with exit code 203 (a mass failure), nobody is left out\n",
            ),
            (
                "--nodes 2 --faulty 0",
                "the job: would fail with exit code 202 (inconclusive, and --on-inconclusive=fail)",
            ),
            ("--nodes 1 --faulty 0", "1 node is not tested: one alone has nobody to be tested with"),
            ("--nodes 1 --faulty 0", "imagined: 1 node in 1 rack, seed 0\n"),
            ("--nodes 1 --faulty 0", "not found: node 0 (faulty): never tested\n"),
            ("--nodes 1 --local-fault 0", "the job: waits for other nodes; left out: 1\n"),
        ] {
            let (text, _) = said(line);
            assert!(text.contains(told), "{line}: {text}");
        }
        let (text, document) = said("--nodes 6 --local-fault 1,2,3");
        assert!(!text.contains(", left out"), "{text}");
        assert_eq!(document["mass_failure"], true);
    }
}
