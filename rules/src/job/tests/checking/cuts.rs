//! What follows from a cut that a check has found: which nodes train, which leave, and how the job fails. The finding
//! finds is made up here.

use super::*;
use crate::verdict::CutEnd;
use diagnosis::network_check::{Cut, Evidence, OnBadPath, Outcome};

const WORDS: &str = "rack s0 and rack s1 do not reach each other";

/// Four nodes whose check ends like this: `c` and `d` cannot reach the others.
struct Severed {
    ring: Ring,
    effects: Vec<Effect>,
}

fn severed(policy: Policy, min: u32, unit: u32, on_bad_path: OnBadPath) -> Severed {
    severed_with(policy, min, unit, on_bad_path, &[], |_| {})
}

fn severed_with(
    policy: Policy,
    min: u32,
    unit: u32,
    on_bad_path: OnBadPath,
    spares: &[&str],
    change: impl Fn(&mut Outcome),
) -> Severed {
    let check = Some(CheckTerms { on_bad_path, ..check() });
    let terms = Terms { check, node_unit: unit, ..terms(min, 4) };
    let mut ring = Ring::new(policy, terms, &[]);
    for name in ["a", "b", "c", "d"].iter().chain(spares) {
        ring.join(name);
    }
    assert_eq!(ring.orders.len(), 4);
    // What the check would find of four healthy nodes.
    let mut of_copy = Ring::new(ring.test.job.policy.clone(), ring.test.terms.clone(), &[]);
    of_copy.test.job = ring.test.job.clone();
    of_copy.orders = ring.orders.clone();
    of_copy.work();
    let mut outcome = of_copy.reports[0].outcome.clone();
    if on_bad_path == OnBadPath::Exclude {
        for node in &mut outcome.nodes[2..] {
            node.verdict = NodeVerdict::Unreachable;
            node.excluded = true;
            let failed = "failed with node 0: connection timed out".to_owned();
            node.evidence = vec![
                Evidence { round: Some(0), partners: Vec::new(), message: WORDS.to_owned() },
                Evidence { round: Some(0), partners: vec![0], message: failed },
            ];
        }
    }
    outcome.cut = Some(Cut { left_out: vec![2, 3], message: WORDS.to_owned() });
    change(&mut outcome);
    let effects = ring.test.job.on_check_over(ring.test.now, outcome);
    Severed { ring, effects }
}

impl Severed {
    fn excluded(&self) -> Vec<(&str, String)> {
        let excluded = self.effects.iter().filter_map(|effect| match effect {
            Effect::Push { node, push: Push::Excluded(exclusion) } => Some((&*node.0, exclusion.to_string())),
            _ => None,
        });
        excluded.collect()
    }

    fn told(&self) -> Option<&str> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Push { push: Push::CheckOver { message }, .. } => Some(&**message),
            _ => None,
        })
    }

    fn trains(&mut self, names: &[&str]) {
        let assignments = self.ring.test.hosted("a", 0);
        let assigned = assignments.iter().filter_map(|effect| match effect {
            Effect::Push { node, push: Push::Assigned(_) } => Some(&*node.0),
            _ => None,
        });
        assert_eq!(assigned.collect::<Vec<_>>(), names);
    }

    #[track_caller]
    fn fails(&self, fit: u32, needed: u32, why: &CutEnd) -> String {
        let failure = self.ring.end().expect("the job is over");
        let message = WORDS.to_owned();
        assert_eq!(failure, JobFailure::Cut { message, fit, nodes: 4, needed, why: why.clone() });
        assert!(self.excluded().is_empty());
        failure.to_string()
    }
}

#[test]
fn one_side_of_a_cut_trains_and_the_other_leaves_untainted() {
    let mut cut = severed(policy(), 2, 1, OnBadPath::Exclude);
    let excluded = cut.excluded();
    assert_eq!(excluded.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["c", "d"]);
    for (_, message) in &excluded {
        assert!(message.starts_with("excluded by the network check (unreachable): "), "{message}");
        assert_eq!(message.matches(WORDS).count(), 1, "{message}");
    }
    let told = cut.told().unwrap();
    assert!(
        told.contains("; excluded: node number 2 (host-c, 10.0.0.3) (unreachable), node number 3 "),
        "{told}"
    );
    assert!(told.ends_with(&format!("; cut: {WORDS}")), "{told}");
    cut.trains(&["a", "b"]);
}

#[test]
fn with_too_few_on_the_larger_side_the_job_fails_by_name_at_once() {
    let message = severed(policy(), 3, 1, OnBadPath::Exclude).fails(2, 3, &CutEnd::TooFew);
    assert_eq!(
        message,
        format!(
            "the network check found paths that are down: {WORDS}. 2 of 4 nodes can train together; the job needs 3; no \
             node is tainted. Check first the switches and cables on the paths that are down"
        )
    );
    let _unit = severed(policy(), 2, 4, OnBadPath::Exclude).fails(2, 4, &CutEnd::TooFew);
}

#[test]
fn nodes_that_wait_already_take_the_places_of_those_that_are_cut_off() {
    let mut cut = severed_with(policy(), 3, 1, OnBadPath::Exclude, &["e"], |_| {});
    assert_eq!((cut.ring.end(), cut.excluded().len()), (None, 2));
    let effects = std::mem::take(&mut cut.effects);
    cut.ring.orders.clear();
    cut.ring.take(effects);
    if cut.ring.orders.is_empty() {
        let effects = cut.ring.test.due();
        cut.ring.take(effects);
    }
    assert_eq!(cut.ring.orders.len(), 3, "the three of them are checked");
}

#[test]
fn the_launcher_that_serves_the_master_cannot_be_left_out() {
    let policy = Policy { host: Some(id("c")), ..policy() };
    let failure = severed(policy, 2, 1, OnBadPath::Exclude);
    let why = CutEnd::WithoutMaster(named("c", None));
    assert!(failure.fails(2, 2, &why).contains("without a node (host-c, 10.0.0.3), whose launcher"));
}

#[test]
fn a_cut_fails_the_job_if_that_is_the_policy() {
    let message = severed(policy(), 2, 1, OnBadPath::Fail).fails(2, 2, &CutEnd::Policy);
    assert!(
        message.contains(". 2 of 4 nodes can train together, but the job fails (on-bad-path=fail);"),
        "{message}"
    );
}

#[test]
fn all_train_over_a_cut_with_a_warning_if_that_is_the_policy() {
    let mut cut = severed(policy(), 4, 1, OnBadPath::Proceed);
    assert!(cut.excluded().is_empty());
    let warning = format!("warning: 4 nodes train although paths are down (on-bad-path=proceed): {WORDS}");
    let logs = cut.effects.iter().filter_map(|effect| match effect {
        Effect::Log(log) => Some(log.to_string()),
        _ => None,
    });
    assert!(logs.collect::<Vec<_>>().contains(&warning), "{:#?}", cut.effects);
    let told = cut.told().unwrap();
    assert!(told.starts_with("network check passed: 4 nodes"), "{told}");
    assert!(
        told.ends_with(&format!(
            "; warning: the job trains although paths are down (on-bad-path=proceed): {WORDS}"
        )),
        "{told}"
    );
    cut.trains(&["a", "b", "c", "d"]);
}

/// A broken node on the larger side counts as gone.
#[test]
fn a_broken_node_next_to_a_cut_does_not_train() {
    let cut = severed_with(policy(), 2, 1, OnBadPath::Exclude, &[], |outcome| {
        outcome.nodes[1].verdict = NodeVerdict::Fault;
        (outcome.nodes[1].excluded, outcome.nodes[1].tainted) = (true, true);
    });
    let _words = cut.fails(1, 2, &CutEnd::TooFew);
}
