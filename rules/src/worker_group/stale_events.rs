//! The events that arrive too late to matter.

use super::{Event, State, WorkerGroup};
use crate::{hang::HangNotice, push::Push};

impl WorkerGroup {
    /// Whether it is a late message of a round that is over, or one that the present state has no use for.
    pub(super) fn is_stale(&self, event: &Event) -> bool {
        let (round, allowed) = match event {
            Event::Prepared { round, .. } | Event::CannotPrepare { round, .. } => {
                (*round, matches!(self.state, State::Preparing(_)))
            }
            Event::CannotStart { round, .. } | Event::ProgressSampled { round, .. } => {
                (*round, matches!(self.state, State::Running(_)))
            }
            Event::Pushed(Push::Regroup { round, is_secondary, .. })
                if matches!(self.state, State::Joining { .. }) =>
            {
                return !is_secondary || self.charged != Some(*round);
            }
            Event::Pushed(Push::Checkpoint(_)) => return matches!(self.state, State::Done),
            Event::Pushed(Push::Regroup { round, .. }) => (*round, true),
            Event::WorkerStarted { round, .. }
            | Event::WorkerExited { round, .. }
            | Event::StoreReached { round, .. }
            | Event::TreeGone { round } => {
                (*round, matches!(self.state, State::Running(_) | State::Stopping { .. }))
            }
            Event::Pushed(Push::Assigned(assignment)) => {
                let is_new = self.last.as_ref().is_none_or(|last| last.round < assignment.round);
                return !is_new || !matches!(self.state, State::Joining { .. });
            }
            Event::Pushed(Push::DumpStacks { round, .. } | Push::Hang(HangNotice { round, .. })) => {
                (*round, matches!(self.state, State::Running(_) | State::Stopping { .. }))
            }
            Event::Pushed(
                Push::Refused { .. } | Push::Excluded(_) | Push::RootCause(_) | Push::JobEnd(_),
            ) => {
                return matches!(self.state, State::Done);
            }
            Event::Hosting { .. }
            | Event::CannotHost { .. }
            | Event::SelfCheckProgress { .. }
            | Event::CannotCheck { .. }
            | Event::LocallyChecked { .. }
            | Event::Probing { .. }
            | Event::Probed { .. }
            | Event::Pushed(_) => {
                return !matches!(self.state, State::Joining { .. });
            }
            Event::Signalled { .. }
            | Event::InventoryTaken { .. }
            | Event::GpuError { .. }
            | Event::GpuMemory { .. }
            | Event::StacksTaken
            | Event::SaverWanted
            | Event::SaverSaid { .. }
            | Event::SaverEnded { .. }
            | Event::TemplateReady { .. }
            | Event::TemplateUnfit { .. }
            | Event::TemplateRefused { .. }
            | Event::Forwarded { .. }
            | Event::MasterBack
            | Event::MasterAway { .. }
            | Event::EndNoted
            | Event::GuardDied { .. }
            | Event::MasterAnswered { .. }
            | Event::Answered { .. }
            | Event::Deadline => return matches!(self.state, State::Done),
        };
        !allowed || self.round() != Some(round)
    }
}
