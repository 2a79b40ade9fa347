//! The progress of training and the last hang, in lines for people.

use diagnosis::counted::counted;
use rules::{
    job_status::{JobStatus, RankStatus},
    progress::RankState,
};

use super::screen::duration;

/// Slow ranks that are named.
const SLOW_SHOWN: usize = 4;

/// The lines on the progress of training, none where no rank has declared progress, and on the last hang.
pub(super) fn facts(status: &JobStatus) -> Vec<String> {
    let ranks = || status.nodes.iter().flat_map(|node| &node.ranks);
    let mut facts = Vec::new();
    if ranks().any(|rank| rank.step.is_some()) {
        facts.push(progress(ranks()));
    }
    let slow = ranks().filter(|rank| rank.slow).take(SLOW_SHOWN);
    facts.extend(slow.map(|rank| {
        let rate = rank.steps_per_second.unwrap_or_default();
        format!("slow in training: rank {}, {rate:.2} steps/s", rank.rank)
    }));
    if let Some(hang) = &status.hang {
        let idle = duration(hang.idle_seconds);
        let what = if hang.is_over { "last hang" } else { "HANG" };
        let ago = duration(hang.seconds_ago);
        let mut text =
            format!("{what} {ago} ago, round {}, no progress for {idle}: {}", hang.round, hang.sentence);
        if !hang.folder.is_empty() {
            text.push_str(&format!("; stacks: {}", hang.folder));
        }
        facts.push(text);
    }
    facts
}

/// `training: step 1180-1200, 3.9 steps/s; 2 ranks stalled`.
fn progress<'a>(ranks: impl Iterator<Item = &'a RankStatus> + Clone) -> String {
    let steps = || ranks.clone().filter_map(|rank| rank.step);
    let (first, last) = (steps().min().unwrap_or_default(), steps().max().unwrap_or_default());
    let mut text = match first == last {
        true => format!("training: step {last}"),
        false => format!("training: step {first}-{last}"),
    };
    let rates: Vec<f64> = ranks.clone().filter_map(|rank| rank.steps_per_second).collect();
    if let Some(slowest) = rates.iter().copied().reduce(f64::min) {
        text.push_str(&format!(", {slowest:.2} steps/s"));
    }
    for (state, word) in [(RankState::Stalled, "stalled"), (RankState::Busy, "busy")] {
        let count = ranks.clone().filter(|rank| rank.state == state).count();
        if count > 0 {
            text.push_str(&format!("; {} {word}", counted(count, "rank")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, step: Option<u64>, state: RankState, slow: bool) -> RankStatus {
        RankStatus { rank, state, step, steps_per_second: Some(2.5), idle_seconds: 1.0, slow }
    }

    #[test]
    fn progress_is_one_line() {
        let ranks =
            [rank(0, Some(7), RankState::Advancing, false), rank(1, Some(7), RankState::Advancing, false)];
        assert_eq!(progress(ranks.iter()), "training: step 7, 2.50 steps/s");
        let ranks = [rank(0, Some(6), RankState::Stalled, false), rank(1, Some(7), RankState::Busy, false)];
        assert_eq!(progress(ranks.iter()), "training: step 6-7, 2.50 steps/s; 1 rank stalled; 1 rank busy");
    }
}
