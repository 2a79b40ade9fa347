//! The report of one rehearsal, as text; [`mod@json`] is the same for programs.

mod json;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Write as _};

use diagnosis::network_check::{Kind, LinkKind, NodeFinding, NodeVerdict, Outcome, RoundRecord, TestResult};

pub(super) use self::json::json;
use super::{
    job::Job,
    settings::Settings,
    truth::{Blamed, Truth},
    words::{count, either, element, in_a_row},
};

/// Nodes that are listed one by one for humans; more have the JSON.
const MAX_LISTED: usize = 40;

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
    write!(text, "simulated: {all} in {racks}")?;
    if cluster.pod_size > 0 {
        let pods = cluster.racks.div_ceil(cluster.pod_size) as usize;
        write!(text, " and {}", count(pods, "pod"))?;
    }
    writeln!(text, ", seed {}", cluster.seed)?;
    writeln!(text, "           {}; noise {}", broken(settings), cluster.noise)?;
    let job = Job::after(&settings.policy, outcome);
    let truth = Truth::of(settings, outcome);
    write_rounds(text, outcome)?;
    write_nodes(text, outcome, job)?;
    write_paths(text, outcome)?;
    write_some(text, &truth.missed)?;
    write_blamed(text, &truth.blamed)?;
    write_truth(text, &truth)?;
    let guard = &outcome.guard;
    let tainted = nodes(outcome, |node| node.tainted).len();
    let limit = guard.limit;
    let withheld = if guard.mass_failure { format!("{} withheld, ", guard.taints) } else { String::new() };
    writeln!(text, "\ntainted: {tainted} of {all} ({withheld}limit: {limit})")?;
    writeln!(text, "the job: {job}")
}

/// What is broken in the cluster, in one line.
pub(super) fn broken(settings: &Settings) -> String {
    let cluster = &settings.cluster;
    let some =
        |number: usize, one: &'static str, many: &'static str| (number, if number == 1 { one } else { many });
    let broken: [(usize, &str); 15] = [
        (cluster.faulty.len(), "faulty"),
        (cluster.local_fault.len(), "with a local fault"),
        (cluster.lost.len(), "lost"),
        some(cluster.dies.len(), "that breaks later", "that break later"),
        (cluster.slow_nic.len(), "with a slow network interface"),
        (cluster.slow_compute.len(), "slow to compute"),
        (cluster.flaky.len(), "flaky"),
        (cluster.liars.len(), "with false reports"),
        some(cluster.dead_links.len(), "link down", "links down"),
        some(cluster.slow_links.len(), "slow link", "slow links"),
        some(cluster.dead_rack_pairs.len(), "path between racks down", "paths between racks down"),
        some(cluster.dead_uplinks.len(), "rack cut off", "racks cut off"),
        some(cluster.uplink_dies.len(), "rack cut off later", "racks cut off later"),
        some(
            cluster.partial_uplinks.len(),
            "rack with some of its uplinks down",
            "racks with some of their uplinks down",
        ),
        some(cluster.dead_pods.len(), "pod cut off", "pods cut off"),
    ];
    let counts = broken.iter().filter(|(count, _)| *count > 0);
    let mut words: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    if cluster.transient > 0.0 {
        words.push(format!("each test fails with probability {}", cluster.transient));
    }
    if words.is_empty() { "nothing is broken".to_owned() } else { words.join(", ") }
}

fn write_rounds(text: &mut String, outcome: &Outcome) -> fmt::Result {
    if outcome.rounds.is_empty() {
        return writeln!(
            text,
            "\nno rounds: fewer than two nodes can be tested, so the network is not tested"
        );
    }
    writeln!(text, "\nround  tests  pass  slow  fail  seconds  kinds")?;
    for (number, round) in outcome.rounds.iter().enumerate() {
        let kinds: Vec<String> =
            kinds(round).iter().map(|(kind, count)| format!("{count} {}", word(*kind))).collect();
        let (tests, seconds) = (round.tests.len(), round.took.as_secs_f64());
        let [pass, slow, fail] = results(round);
        let kinds = kinds.join(", ");
        writeln!(text, "{number:>5}  {tests:>5}  {pass:>4}  {slow:>4}  {fail:>4}  {seconds:>7.2}  {kinds}")?;
    }
    let (rounds, seconds) = (outcome.rounds.len(), outcome.took.as_secs_f64());
    writeln!(text, "{} in {seconds:.2} simulated seconds", count(rounds, "round"))
}

/// The tests of a round that passed, were slow, failed.
fn results(round: &RoundRecord) -> [usize; 3] {
    [TestResult::Pass, TestResult::Slow, TestResult::Fail]
        .map(|result| round.tests.iter().filter(|test| test.result == result).count())
}

/// The kinds of tests of a round, in the order in which they come first.
fn kinds(round: &RoundRecord) -> Vec<(Kind, usize)> {
    let mut kinds: Vec<(Kind, usize)> = Vec::new();
    for test in &round.tests {
        match kinds.iter_mut().find(|(kind, _)| *kind == test.kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((test.kind, 1)),
        }
    }
    kinds
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Screen => "screen",
        Kind::Witness => "witness",
        Kind::Suspects => "suspects",
        Kind::Coverage => "coverage",
        Kind::Retest => "retest",
        Kind::Sibling => "sibling",
        Kind::Probe => "probe",
        Kind::RackDiagnosis => "rack diagnosis",
        Kind::Idle => "idle",
    }
}

fn write_nodes(text: &mut String, outcome: &Outcome, job: Job) -> fmt::Result {
    let odd = nodes(outcome, |node| node.verdict != NodeVerdict::Healthy || node.excluded);
    let fine = outcome.nodes.len() - odd.len();
    let is = if fine == 1 { "is" } else { "are" };
    match outcome.network_untested && fine > 0 {
        true => {
            let fine = count(fine, "node");
            writeln!(
                text,
                "\n{fine} {is} not tested: a single node has no peer to test with, and counts as healthy"
            )?;
        }
        false => {
            let are = if odd.len() == 1 { "is" } else { "are" };
            writeln!(text, "\n{} {is} healthy, {} {are} not", count(fine, "node"), odd.len())?;
        }
    }
    for number in odd.iter().take(MAX_LISTED) {
        let Some(node) = outcome.nodes.get(*number as usize) else { continue };
        let verdict = node.verdict.as_str();
        let fate = match (node.tainted, node.excluded) {
            (true, _) => ", tainted",
            (false, true) if job.starts() => ", excluded",
            (false, _) => "",
        };
        writeln!(text, "node {number}: {verdict}{fate}")?;
        for evidence in &node.evidence {
            let round = evidence.round.map_or_else(|| "before".to_owned(), |round| format!("round {round}"));
            // The cut has its own line.
            let is_cut = outcome.cut.as_ref().is_some_and(|cut| cut.message == evidence.message);
            let reason = if is_cut { "cannot reach the others, see `cut` below" } else { &evidence.message };
            writeln!(text, "    {round}: {reason}")?;
        }
    }
    write_rest(text, odd.len())
}

fn write_paths(text: &mut String, outcome: &Outcome) -> fmt::Result {
    for link in &outcome.links {
        let kind = match link.kind {
            LinkKind::Dead => "down",
            LinkKind::Slow => "slow",
            LinkKind::Flaky => "works intermittently",
        };
        writeln!(text, "link between node {} and node {}: {kind}", link.nodes.0, link.nodes.1)?;
    }
    for pair in &outcome.rack_pairs {
        let (a, b) = pair.racks;
        writeln!(
            text,
            "path between rack {a} and rack {b}: down; {} failed over it",
            count(pair.pairs.len(), "pair")
        )?;
    }
    for rack in &outcome.uplinks {
        writeln!(text, "rack {rack}: its uplink is down")?;
    }
    for rack in &outcome.leaves {
        writeln!(text, "rack {rack}: none of its nodes can be reached, not even from within the rack")?;
    }
    for pod in &outcome.pods {
        writeln!(text, "pod {pod}: every path out of it is down")?;
    }
    for part in &outcome.partial_uplinks {
        let (rack, dead, tested) = (part.rack, part.dead, part.tested);
        let tested = count(tested as usize, "pair");
        writeln!(
            text,
            "rack {rack}: some of its uplinks are down; {dead} of {tested} with other racks failed"
        )?;
    }
    for ambiguity in &outcome.ambiguous {
        writeln!(text, "ambiguous: {}", either(&ambiguity.candidates))?;
    }
    match &outcome.cut {
        Some(cut) => writeln!(text, "cut: {}", cut.message),
        None => Ok(()),
    }
}

fn write_some(text: &mut String, lines: &[impl Display]) -> fmt::Result {
    for line in lines.iter().take(MAX_LISTED) {
        writeln!(text, "{line}")?;
    }
    write_rest(text, lines.len())
}

fn write_blamed(text: &mut String, blamed: &[Blamed]) -> fmt::Result {
    let (right, wrong): (Vec<&Blamed>, Vec<&Blamed>) = blamed.iter().partition(|node| node.is_right());
    write_some(text, &wrong)?;
    let right: Vec<u32> = right.into_iter().map(Blamed::node).collect();
    match right.as_slice() {
        [] => Ok(()),
        [one] => writeln!(text, "excluded, since the simulated fault cuts it off: node {one}"),
        several => {
            writeln!(text, "excluded, since the simulated fault cuts them off: nodes {}", in_a_row(several))
        }
    }
}

fn write_rest(text: &mut String, all: usize) -> fmt::Result {
    match all.checked_sub(MAX_LISTED) {
        Some(rest @ 1..) => writeln!(text, "... and {rest} more; --json names all"),
        _ => Ok(()),
    }
}

/// Mistakes of the check, by the simulated faults.
fn write_truth(text: &mut String, truth: &Truth) -> fmt::Result {
    for names in &truth.wrong {
        match names.as_slice() {
            [one] => writeln!(text, "named, though it works: {}", element(*one))?,
            several => writeln!(text, "called ambiguous, though all of these work: {}", either(several))?,
        }
    }
    if truth.over_cut > 0 {
        let pairs = count(truth.over_cut, "pair");
        writeln!(text, "the job would start with nodes that cannot reach each other: {pairs}")?;
    }
    match truth.bound.filter(|_| truth.is_over_bound()) {
        Some(bound) => writeln!(
            text,
            "{}: more than the {bound} that the simulated faults may take",
            count(truth.rounds as usize, "round")
        ),
        None => Ok(()),
    }
}
