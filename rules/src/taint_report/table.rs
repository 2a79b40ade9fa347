//! A short table of the report.

use std::fmt;

use super::TaintReport;
use diagnosis::network_check::{Evidence, NodeFinding, NodeVerdict, Outcome, RoundRecord, TestResult};

/// The most nodes that a table shows when nothing is wrong with them.
const SHOWN: usize = 16;

/// The most nodes that a table shows. The document has them all.
const ROWS: usize = 64;

/// A short table for the master's log: the findings, and the tests by node and round.
impl fmt::Display for TaintReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { rounds, nodes, guard, took, .. } = &self.outcome;
        let fit = nodes.iter().filter(|node| node.verdict == NodeVerdict::Healthy).count();
        write!(
            f,
            "network check {}: {fit} of {} healthy after {}, {:.2} s",
            self.check,
            diagnosis::counted::counted(nodes.len(), "node"),
            diagnosis::counted::counted(rounds.len(), "round"),
            took.as_secs_f64()
        )?;
        if self.outcome.network_untested {
            write!(f, "; the network was not tested: that requires two nodes")?;
        }
        let width = (0..).zip(&self.nodes).map(|(number, _)| self.name(number).len()).max().unwrap_or(0);
        let shows_all = self.nodes.len() <= SHOWN;
        let notes = |number: u32| self.nodes.get(number as usize).map_or(&[][..], |node| &node.notes);
        let is_shown = |(number, it): &(u32, &NodeFinding)| {
            shows_all || it.verdict != NodeVerdict::Healthy || !notes(*number).is_empty()
        };
        let shown = (0..).zip(nodes).filter(is_shown);
        let of = shown.clone().count();
        for (number, finding) in shown.take(ROWS) {
            write!(f, "\n  {:width$}", self.name(number))?;
            for record in rounds {
                write!(f, "  {:<14}", Cell { record, number }.to_string())?;
            }
            write!(f, "  {}", finding.verdict.as_str())?;
            write!(f, "{}", if finding.tainted { ", taint" } else { "" })?;
            let is_passing = matches!(finding.verdict, NodeVerdict::Flaky | NodeVerdict::Lost { .. });
            if is_passing && self.nodes.get(number as usize).is_some_and(|node| node.seen_before) {
                write!(f, "; an earlier check found this machine flaky or lost")?;
            }
            for Evidence { message, .. } in &finding.evidence {
                write!(f, "\n      {message}")?;
            }
            for note in notes(number) {
                write!(f, "\n      degraded, {note}")?;
            }
        }
        if of > ROWS {
            write!(f, "\n  and {} more", of - ROWS)?;
        }
        if !shows_all && fit > 0 {
            write!(f, "\n  and {}", diagnosis::counted::counted(fit, "healthy node"))?;
        }
        self.write_fabric(f)?;
        if guard.mass_failure {
            write!(
                f,
                "\n  {} taints withheld: problems on more than {} of {} nodes suggest a shared cause, \
                 such as a switch, a driver, an image or the configuration",
                guard.taints,
                guard.limit,
                nodes.len()
            )?;
        }
        Ok(())
    }
}

/// One node's test in one round.
struct Cell<'a> {
    record: &'a RoundRecord,
    number: u32,
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(test) = self.record.tests.iter().find(|test| test.members.contains(&self.number)) else {
            return f.write_str("-");
        };
        let result = match test.result {
            TestResult::Pass => "ok",
            TestResult::Slow => "slow",
            TestResult::Fail => "FAIL",
        };
        let others: Vec<String> =
            test.members.iter().filter(|member| **member != self.number).map(u32::to_string).collect();
        write!(f, "{result} with {}", others.join(","))
    }
}
