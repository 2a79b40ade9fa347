//! Orders to take the stacks of this node's workers. A dump stops each thread for a moment and may take seconds, so a
//! master that is broken or hostile must not be able to order one after the other.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Effect, State, WorkerGroup};
use crate::{ids::Round, notice::Notice};
use diagnosis::moment::Moment;

/// So many dumps may begin within [`HangTerms::dump_interval`](crate::hang::HangTerms::dump_interval). A master that
/// was restarted orders those again that it has lost.
const MAX_DUMPS: usize = 2;

/// The dumps of this node so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Dumps {
    is_running: bool,
    /// When the last [`MAX_DUMPS`] of them began, oldest first.
    began: VecDeque<Moment>,
    /// The user was notified, since the last dump began, that an order was ignored.
    is_shown: bool,
}

impl WorkerGroup {
    /// The master has ordered the stacks of the workers. An order that is ignored needs no answer: the master does not
    /// wait for longer than `DUMP_TIMEOUT` of `crate::job`, and then says that this node has sent none.
    pub(super) fn on_dump_ordered(&mut self, now: Moment, round: Round, episode: u32) -> Vec<Effect> {
        // A job without terms of hangs has no episodes.
        let (State::Running(workers), Some(terms)) = (&self.state, &self.limits.hang) else {
            return Vec::new();
        };
        if workers.round() != round {
            return Vec::new();
        }
        let (interval, dumps) = (terms.dump_interval(), &mut self.dumps);
        let is_often = dumps.began.len() >= MAX_DUMPS
            && dumps.began.front().is_some_and(|oldest| now < *oldest + interval);
        if dumps.is_running || is_often {
            let is_shown = std::mem::replace(&mut dumps.is_shown, true);
            let notice = if dumps.is_running {
                Notice::DumpIsRunning
            } else {
                Notice::TooManyDumps { dumps: dumps.began.len(), interval }
            };
            return if is_shown { Vec::new() } else { vec![Effect::Notify(notice)] };
        }
        if dumps.began.len() >= MAX_DUMPS {
            dumps.began.pop_front();
        }
        dumps.began.push_back(now);
        (dumps.is_running, dumps.is_shown) = (true, false);
        vec![Effect::DumpStacks { assignment: workers.assignment.clone(), episode }]
    }

    /// The stacks that were ordered are taken, and sent.
    pub(super) fn on_stacks_taken(&mut self) -> Vec<Effect> {
        self.dumps.is_running = false;
        Vec::new()
    }
}
