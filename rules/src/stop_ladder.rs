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

/// The rungs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Rung {
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
pub struct StopLadder {
    rung: Rung,
}

impl StopLadder {
    /// Workers have just been signalled.
    #[must_use]
    pub fn asked(now: Moment, grace: Duration) -> Self {
        Self { rung: Rung::Asked { until: now + grace } }
    }

    /// Workers have just been killed.
    #[must_use]
    pub fn killed(now: Moment) -> Self {
        Self { rung: Rung::Killed { until: now + KILL_TIMEOUT } }
    }

    /// When to call [`Self::expired`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        match self.rung {
            Rung::Asked { until } | Rung::Killed { until } => until,
        }
    }

    /// The workers themselves are gone; their children get a short time.
    pub fn leaders_gone(&mut self, now: Moment) {
        if let Rung::Asked { until } = &mut self.rung {
            *until = (*until).min(now + LEFTOVER_GRACE);
        }
    }

    /// A second request to stop: no more grace. `None` when everything was killed already.
    #[must_use]
    pub fn hurry(&mut self, now: Moment) -> Option<Step> {
        match self.rung {
            Rung::Asked { .. } => {
                self.rung = Rung::Killed { until: now + KILL_TIMEOUT };
                Some(Step::Kill)
            }
            Rung::Killed { .. } => None,
        }
    }

    /// What to do now; `None` while there is time left.
    #[must_use]
    pub fn expired(&mut self, now: Moment) -> Option<Step> {
        if now < self.deadline() {
            return None;
        }
        match self.rung {
            Rung::Asked { .. } => self.hurry(now),
            Rung::Killed { .. } => Some(Step::GiveUp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_then_kill_then_give_up() {
        let mut ladder = StopLadder::asked(Moment::at_secs(10), Duration::from_secs(30));
        assert_eq!(ladder.expired(Moment::at_secs(39)), None);
        assert_eq!(ladder.expired(Moment::at_secs(40)), Some(Step::Kill));
        assert_eq!(ladder.deadline(), Moment::at_secs(40) + KILL_TIMEOUT);
        assert_eq!(ladder.expired(Moment::at_secs(41)), None);
        assert_eq!(ladder.expired(Moment::at_secs(55)), Some(Step::GiveUp));
    }

    #[test]
    fn leftovers_get_two_seconds_but_never_more_than_the_grace() {
        let mut ladder = StopLadder::asked(Moment::at_secs(10), Duration::from_secs(30));
        ladder.leaders_gone(Moment::at_secs(11));
        assert_eq!(ladder.deadline(), Moment::at_secs(13));
        let mut ladder = StopLadder::asked(Moment::at_secs(10), Duration::from_secs(1));
        ladder.leaders_gone(Moment::at_secs(10));
        assert_eq!(ladder.deadline(), Moment::at_secs(11));
    }

    #[test]
    fn a_second_request_kills_at_once_and_only_once() {
        let mut ladder = StopLadder::asked(Moment::START, Duration::from_secs(30));
        assert_eq!(ladder.hurry(Moment::at_secs(1)), Some(Step::Kill));
        assert_eq!(ladder.hurry(Moment::at_secs(2)), None);
        assert_eq!(ladder.deadline(), Moment::at_secs(1) + KILL_TIMEOUT);
    }
}
