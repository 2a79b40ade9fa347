//! The check command on a job's only node, where there is no pair to run it.

use std::time::Duration;

use diagnosis::network_check::{CHECK_COMMAND, Component, LocalCheck, LocalFault, Probed};
use rules::worker_group::Event;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use probes::{CommandPlan, start_command};

/// What to run, and the time limit.
pub(super) struct SoloCheck {
    pub(super) plan: CommandPlan,
    pub(super) limit: Duration,
}

impl SoloCheck {
    /// Ends a self-test that has found no fault so far.
    pub(super) async fn run<E: From<Event>>(
        self,
        mut checked: LocalCheck,
        mut cancelled: watch::Receiver<bool>,
        events: &mpsc::Sender<E>,
    ) -> Event {
        let Self { plan, limit } = self;
        let handle = start_command(plan, None);
        let canceller = handle.canceller();
        let end = handle.end();
        tokio::pin!(end);
        let in_time = tokio::select! {
            // Cancelled, or its sender is gone.
            () = async { let _cancelled = cancelled.wait_for(|it| *it).await; } => None,
            probed = timeout(limit, &mut end) => Some(probed),
        };
        let is_late = matches!(in_time, Some(Err(_)));
        let probed = match in_time {
            Some(Ok(probed)) => probed,
            Some(Err(_)) | None => {
                canceller.cancel();
                end.await
            }
        };
        let reason = match probed {
            Ok(Probed::Passed { comm, .. }) => {
                let take_output = comm.as_secs_f64() * 1e3;
                let words = format!(
                    "network check: {CHECK_COMMAND} passed on this node, tested alone ({take_output:.1} ms)"
                );
                let _gone = events.send(Event::SelfCheckProgress { message: words }.into()).await;
                return Event::LocallyChecked { checked };
            }
            Err(error) => return Event::CannotCheck { reason: error.to_string() },
            Ok(Probed::Failed { reason }) => reason,
            Ok(Probed::Unfinished { .. }) if is_late => {
                format!("{CHECK_COMMAND} timed out after {} s", limit.as_secs_f64())
            }
            // The launcher is about to end.
            Ok(Probed::Unfinished { .. }) => return Event::LocallyChecked { checked },
        };
        checked.fault = Some(LocalFault { component: Component::CheckCommand, reason });
        Event::LocallyChecked { checked }
    }
}
