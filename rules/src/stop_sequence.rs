//! How workers are stopped: signalled, given time, killed, and abandoned when even that fails.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use diagnosis::moment::Moment;

/// The grace period of a worker's children once the worker itself is gone. The worker was promised its grace period;
/// a child that outlived it has no owner any more, but may be writing its last lines.
pub const LEFTOVER_GRACE: Duration = Duration::from_secs(2);

/// How long killed processes may take to be gone. A process in uninterruptible sleep (state D) may never be, and must
/// not hold the launcher for ever. Generous, because freeing hundreds of GB of memory takes seconds.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(15);

/// The stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum StopStage {
    Asked { until: Moment },
    Killed { until: Moment },
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send SIGKILL to everything that is left.
    Kill,
    /// SIGKILL did not help: stop waiting.
    GiveUp,
}

/// The stop of one generation of workers, from the first signal on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopSequence {
    stage: StopStage,
}

impl StopSequence {
    /// Workers have just been signalled.
    #[must_use]
    pub fn asked(now: Moment, grace: Duration) -> Self {
        Self { stage: StopStage::Asked { until: now + grace } }
    }

    /// Workers have just been killed.
    #[must_use]
    pub fn killed(now: Moment) -> Self {
        Self { stage: StopStage::Killed { until: now + KILL_TIMEOUT } }
    }

    /// When to call [`Self::expired`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        match self.stage {
            StopStage::Asked { until } | StopStage::Killed { until } => until,
        }
    }

    /// The workers themselves are gone; their children get a short time.
    pub fn workers_exited(&mut self, now: Moment) {
        if let StopStage::Asked { until } = &mut self.stage {
            *until = (*until).min(now + LEFTOVER_GRACE);
        }
    }

    /// A second request to stop: no more grace. `None` when everything was killed already.
    #[must_use]
    pub fn escalate(&mut self, now: Moment) -> Option<Step> {
        match self.stage {
            StopStage::Asked { .. } => {
                self.stage = StopStage::Killed { until: now + KILL_TIMEOUT };
                Some(Step::Kill)
            }
            StopStage::Killed { .. } => None,
        }
    }

    /// What to do now; `None` while there is time left.
    #[must_use]
    pub fn expired(&mut self, now: Moment) -> Option<Step> {
        if now < self.deadline() {
            return None;
        }
        match self.stage {
            StopStage::Asked { .. } => self.escalate(now),
            StopStage::Killed { .. } => Some(Step::GiveUp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_then_kill_then_give_up() {
        let mut sequence = StopSequence::asked(Moment::at_secs(10), Duration::from_secs(30));
        assert_eq!(sequence.expired(Moment::at_secs(39)), None);
        assert_eq!(sequence.expired(Moment::at_secs(40)), Some(Step::Kill));
        assert_eq!(sequence.deadline(), Moment::at_secs(40) + KILL_TIMEOUT);
        assert_eq!(sequence.expired(Moment::at_secs(41)), None);
        assert_eq!(sequence.expired(Moment::at_secs(55)), Some(Step::GiveUp));
    }

    #[test]
    fn leftovers_get_two_seconds_but_never_more_than_the_grace() {
        let mut sequence = StopSequence::asked(Moment::at_secs(10), Duration::from_secs(30));
        sequence.workers_exited(Moment::at_secs(11));
        assert_eq!(sequence.deadline(), Moment::at_secs(13));
        let mut sequence = StopSequence::asked(Moment::at_secs(10), Duration::from_secs(1));
        sequence.workers_exited(Moment::at_secs(10));
        assert_eq!(sequence.deadline(), Moment::at_secs(11));
    }

    #[test]
    fn a_second_request_kills_at_once_and_only_once() {
        let mut sequence = StopSequence::asked(Moment::START, Duration::from_secs(30));
        assert_eq!(sequence.escalate(Moment::at_secs(1)), Some(Step::Kill));
        assert_eq!(sequence.escalate(Moment::at_secs(2)), None);
        assert_eq!(sequence.deadline(), Moment::at_secs(1) + KILL_TIMEOUT);
    }
}
