//! The result of a test, from the reports of its members.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Group, Probed, TestRecord, TestResult, check_log::CheckLog, judged};

/// A probe whose last byte was received longer ago than this, and than a quarter of its time, is stalled.
const STILL: Duration = Duration::from_millis(500);

/// Reasons are cut to so many characters: they come from other programs.
const LONGEST_REASON: usize = 400;

/// The name of the user's own program in reasons.
pub const CHECK_COMMAND: &str = "the check command";

/// The reports of one node in this round.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct MemberReport {
    /// Its last progress.
    pub(super) progress: Option<Probed>,
    /// Its result. The first report counts.
    pub(super) last: Option<Probed>,
    /// It is lost, and reports nothing more.
    pub(super) is_lost: bool,
}

/// The result of a member.
enum Seen {
    Passed {
        comm: Duration,
        bytes_per_second: u64,
    },
    /// Cut short while it worked; its time is an estimate.
    Moving {
        comm: Duration,
        bytes_per_second: u64,
        message: String,
    },
    Bad {
        message: String,
    },
}

impl MemberReport {
    /// Its probe ended.
    pub(super) fn end(&mut self, probed: Probed, was_cut: bool) {
        if self.last.is_some() {
            return;
        }
        // The node that is cut short first closes the connection of its partner, whose error is then no evidence.
        let follows = was_cut && matches!(probed, Probed::Failed { .. });
        let progress = self.progress.take();
        self.last = match progress {
            Some(progress) if follows => Some(progress),
            _ => Some(shortened(probed)),
        };
    }

    /// Whether its group cannot pass any more.
    pub(super) fn has_failed(&self) -> bool {
        self.is_lost && self.last.is_none() || matches!(self.last, Some(Probed::Failed { .. }))
    }

    fn seen(&self, log: &CheckLog, node: u32, took: Duration) -> Seen {
        let loss = log.node(node).and_then(|node| node.lost.as_ref());
        match (&self.last, loss, &self.progress) {
            (None, Some((_, reason)), _) => Seen::Bad { message: format!("lost: {reason}") },
            (Some(Probed::Passed { comm, bytes_per_second, .. }), ..) => {
                Seen::Passed { comm: *comm, bytes_per_second: *bytes_per_second }
            }
            (Some(Probed::Failed { reason }), ..) => Seen::Bad { message: reason.clone() },
            (Some(Probed::Unfinished { bytes, total, elapsed, idle }), ..)
            | (None, None, Some(Probed::Unfinished { bytes, total, elapsed, idle })) => {
                unfinished(*bytes, *total, *elapsed, *idle)
            }
            (None, None, _) => Seen::Bad { message: format!("no report within {}", seconds(took)) },
        }
    }
}

/// At most 400 characters of it.
pub(super) fn shorten(mut reason: String) -> String {
    if let Some((cut, _)) = reason.char_indices().nth(LONGEST_REASON) {
        reason.truncate(cut);
        reason.push_str("...");
    }
    reason
}

fn shortened(probed: Probed) -> Probed {
    match probed {
        Probed::Failed { reason } => Probed::Failed { reason: shorten(reason) },
        other @ (Probed::Passed { .. } | Probed::Unfinished { .. }) => other,
    }
}

/// A probe that was cut short: slow when bytes were still moving, else failed.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
fn unfinished(bytes: u64, total: u64, elapsed: Duration, idle: Duration) -> Seen {
    let message = format!(
        "timed out after {} with {bytes} of {total} bytes transferred, the last of them {} earlier",
        seconds(elapsed),
        seconds(idle)
    );
    if bytes == 0 || idle > STILL.max(elapsed / 4) {
        return Seen::Bad {
            message: match (bytes, total) {
                // The built-in test knows how many bytes there are to move.
                (0, 0) => format!("{CHECK_COMMAND} timed out after {}", seconds(elapsed)),
                (0, _) => format!("no bytes transferred within {}", seconds(elapsed)),
                _ => message,
            },
        };
    }
    let whole = elapsed.as_secs_f64() * (total.max(bytes) as f64) / (bytes as f64);
    let comm = Duration::try_from_secs_f64(whole).unwrap_or(Duration::MAX);
    let bytes_per_second = (bytes as f64 / elapsed.as_secs_f64().max(1e-9)) as u64;
    Seen::Moving { comm, bytes_per_second, message }
}

/// The log's entry for a test.
pub(super) fn record(
    log: &CheckLog,
    group: &Group,
    said: &[MemberReport],
    took: Duration,
    ended: Duration,
) -> TestRecord {
    let (mut result, mut reasons) = (TestResult::Pass, Vec::new());
    let (mut longest, mut lowest): (Option<Duration>, Option<u64>) = (None, None);
    let nothing = MemberReport::default();
    for member in &group.members {
        let said = said.get(*member as usize).unwrap_or(&nothing);
        let (comm, bytes_per_second) = match said.seen(log, *member, took) {
            Seen::Passed { comm, bytes_per_second } => (comm, bytes_per_second),
            Seen::Moving { comm, bytes_per_second, message } => {
                result = result.max(TestResult::Slow);
                reasons.push((*member, message));
                (comm, bytes_per_second)
            }
            Seen::Bad { message } => {
                result = TestResult::Fail;
                reasons.push((*member, message));
                continue;
            }
        };
        longest = Some(longest.map_or(comm, |longest| longest.max(comm)));
        lowest = Some(lowest.map_or(bytes_per_second, |lowest| lowest.min(bytes_per_second)));
    }
    let has_failed = result == TestResult::Fail;
    let is_gone = |member: &u32| log.node(*member).is_some_and(super::check_log::Node::is_gone);
    TestRecord {
        kind: group.kind,
        members: group.members.clone(),
        across: judged::is_across(log, &group.members),
        result,
        ended,
        comm: longest.filter(|_| !has_failed),
        ratio_permille: None,
        baseline: None,
        bytes_per_second: lowest.filter(|_| !has_failed),
        reasons,
        explained: has_failed && group.members.iter().any(is_gone),
    }
}

/// For people: `2.0 s`, below a tenth in more digits.
pub(super) fn seconds(time: Duration) -> String {
    let digits = if time < Duration::from_millis(100) { 4 } else { 1 };
    format!("{:.digits$} s", time.as_secs_f64())
}
