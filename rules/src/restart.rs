//! Whether a failed group of workers is restarted.

use crate::ids::Attempt;

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    /// Start all local workers again as this attempt; finished ranks too.
    Restart(Attempt),
    /// No restart is left: the node's run has failed.
    GiveUp,
}

/// Returns what follows a failure. `max_restarts` = N allows N + 1 attempts. Only failures of this node's own workers
/// count; a change of membership does not, as in torchrun.
#[must_use]
pub fn after_failure(max_restarts: u32, failed: Attempt) -> AfterFailure {
    if failed.0 < max_restarts { AfterFailure::Restart(Attempt(failed.0 + 1)) } else { AfterFailure::GiveUp }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_restarts_are_n_plus_one_attempts() {
        assert_eq!(after_failure(0, Attempt(0)), AfterFailure::GiveUp);
        assert_eq!(after_failure(2, Attempt(0)), AfterFailure::Restart(Attempt(1)));
        assert_eq!(after_failure(2, Attempt(1)), AfterFailure::Restart(Attempt(2)));
        assert_eq!(after_failure(2, Attempt(2)), AfterFailure::GiveUp);
    }
}
