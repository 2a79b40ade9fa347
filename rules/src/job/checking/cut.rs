//! What follows from a cut: the largest set of nodes in which every pair is connected trains, or the job fails.

use crate::{
    ids::NodeId,
    job::{Effect, Job, Log, count},
    taint_report::TaintReport,
    verdict::{CutEnd, JobFailure},
};
use diagnosis::network_check::{Cut, OnBadPath};

impl Job {
    fn on_bad_path(&self) -> Option<OnBadPath> {
        Some(self.terms.as_ref()?.check.as_ref()?.on_bad_path)
    }

    /// Returns how the cut ends the job: it is set to fail, or too few nodes can train together. Replacements
    /// are not waited for, as the cut would affect them too; nodes that wait already are counted.
    pub(super) fn why_cut_fails_the_job(&self, report: &TaintReport) -> Option<JobFailure> {
        let cut = report.outcome.cut.as_ref()?;
        let (terms, on_bad_path) = (self.terms.as_ref()?, self.on_bad_path()?);
        let (mut fit, mut out, mut master) = (0, 0, None);
        for (number, node) in (0..).zip(&report.nodes).filter(|(_, node)| self.nodes.contains_key(&node.id)) {
            let is_left_out = cut.left_out.contains(&number);
            let is_excluded = report.outcome.nodes.get(number as usize).is_none_or(|it| it.excluded);
            match is_left_out || is_excluded {
                true => out += 1,
                false => fit += 1,
            }
            if is_left_out && self.policy.host.as_ref() == Some(&node.id) {
                master = Some(self.name_of(&node.id));
            }
        }
        let is_enough = terms.world_of(self.waiting.len().saturating_sub(out)).is_some();
        let why = match (on_bad_path, master) {
            (OnBadPath::Proceed, _) => return None,
            (OnBadPath::Fail, _) => CutEnd::Policy,
            (OnBadPath::Exclude, _) if cut.left_out.is_empty() => return None,
            (OnBadPath::Exclude, _) if !is_enough => CutEnd::TooFew,
            (OnBadPath::Exclude, Some(master)) => CutEnd::WithoutMaster(master),
            (OnBadPath::Exclude, None) => return None,
        };
        let (nodes, needed) = (count(report.nodes.len()), terms.least());
        Some(JobFailure::Cut { message: cut.message.clone(), fit, nodes, needed, why })
    }

    /// The message about the cut to the nodes that take part; empty without one.
    pub(super) fn cut_message(&self, report: &TaintReport) -> String {
        match (&report.outcome.cut, self.on_bad_path()) {
            (Some(Cut { message, .. }), Some(OnBadPath::Proceed)) => {
                format!("; warning: the job trains although paths are down (on-bad-path=proceed): {message}")
            }
            (Some(Cut { message, .. }), _) => format!("; cut: {message}"),
            (None, _) => String::new(),
        }
    }

    /// A warning where nodes train over a cut.
    pub(super) fn warns_of_cut(&self, report: &TaintReport, passed: &[NodeId]) -> Option<Effect> {
        let cut = report.outcome.cut.as_ref().filter(|_| self.on_bad_path() == Some(OnBadPath::Proceed))?;
        Some(Effect::Log(Log::Proceeds { cut: cut.message.clone(), nodes: count(passed.len()) }))
    }
}
