//! The template of warm workers: when it is started, and when the first workers wait for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Effect, State, WorkerGroup};
use crate::{
    ids::Round,
    notice::Notice,
    warm::{LeftOut, WarmNotice, WarmStart},
};
use diagnosis::moment::Moment;

/// How long the first workers wait for the template: an import over a cold network file system may take long.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a template may take beside workers that train: it has the time that they leave.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1800);

/// When a template whose modules are given is started beside workers that show no progress.
const AFTER_START: Duration = Duration::from_secs(30);

/// Templates that were refused, after which there are no more.
const MAX_REFUSALS: u32 = 3;

/// What is known of the template.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Warm {
    template: Template,
    refusals: u32,
    /// When one is started without progress of the workers.
    due: Option<Moment>,
    /// Workers that are prepared and wait for it.
    held: Option<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Template {
    #[default]
    Absent,
    Starting {
        since: Moment,
        limit: Duration,
    },
    Ready,
    /// There will be none in this run.
    Useless,
}

/// What [`WorkerGroup::on_prepared`] was called with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    round: Round,
    oom_kills: Option<u64>,
}

impl WorkerGroup {
    /// Whether the workers that are prepared are to wait for a template, and what starts it.
    pub(super) fn hold_for_template(
        &mut self,
        now: Moment,
        round: Round,
        oom_kills: Option<u64>,
    ) -> Option<Vec<Effect>> {
        let terms = self.limits.warm?;
        let is_first = self.warm.template == Template::Absent && self.warm.refusals == 0;
        if terms.when != WarmStart::Start || !is_first {
            return None;
        }
        self.warm.held = Some(Held { round, oom_kills });
        self.warm.template = Template::Starting { since: now, limit: START_TIMEOUT };
        Some(vec![Effect::StartTemplate { is_idle: false }])
    }

    /// The workers are being started.
    pub(super) fn warm_spawned(&mut self, now: Moment) {
        self.warm.held = None;
        let is_given = self.limits.warm.is_some_and(|terms| terms.has_modules);
        self.warm.due = (is_given && self.can_warm_up()).then(|| now + AFTER_START);
    }

    /// The workers train, so that they have imported what they need.
    pub(super) fn warm_up(&mut self, now: Moment) -> Vec<Effect> {
        if !matches!(self.state, State::Running(_)) || !self.can_warm_up() {
            return Vec::new();
        }
        self.warm.due = None;
        self.warm.template = Template::Starting { since: now, limit: IDLE_TIMEOUT };
        vec![Effect::StartTemplate { is_idle: true }]
    }

    /// Whether there is none, and a restart may need one.
    fn can_warm_up(&self) -> bool {
        let has_peers = self.last.as_ref().is_some_and(|last| last.nodes > 1);
        let may_restart = has_peers || self.attempt.0 < self.limits.max_restarts;
        self.limits.warm.is_some() && self.warm.template == Template::Absent && may_restart
    }

    pub(super) fn warm_deadline(&self) -> Option<Moment> {
        let until = match self.warm.template {
            Template::Starting { since, limit } => Some(since + limit),
            Template::Absent | Template::Ready | Template::Useless => None,
        };
        let due = self.warm.due.filter(|_| matches!(self.state, State::Running(_)));
        until.into_iter().chain(due).min()
    }

    pub(super) fn on_warm_deadline(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Template::Starting { since, limit } = self.warm.template
            && since + limit <= now
        {
            effects.push(Effect::EndTemplate);
            let reason = format!("its imports took more than {} s", limit.as_secs());
            effects.extend(self.on_template_unfit(now, reason));
        }
        if self.warm.due.is_some_and(|due| due <= now) {
            effects.extend(self.warm_up(now));
        }
        effects
    }

    pub(super) fn on_template_ready(&mut self, now: Moment, left_out: Vec<LeftOut>) -> Vec<Effect> {
        if !matches!(self.warm.template, Template::Starting { .. }) {
            return Vec::new();
        }
        self.warm.template = Template::Ready;
        let notices = left_out.into_iter().map(|one| Effect::Notify(Notice::Warm(WarmNotice::LeftOut(one))));
        notices.chain(self.release(now)).collect()
    }

    pub(super) fn on_template_unfit(&mut self, now: Moment, reason: String) -> Vec<Effect> {
        if self.warm.template == Template::Useless {
            return Vec::new();
        }
        self.warm.template = Template::Useless;
        let mut effects = vec![Effect::Notify(Notice::Warm(WarmNotice::Unfit { reason }))];
        effects.extend(self.release(now));
        effects
    }

    pub(super) fn on_template_refused(&mut self, reason: String) -> Vec<Effect> {
        self.warm.refusals += 1;
        let is_last = self.warm.refusals >= MAX_REFUSALS;
        self.warm.template = if is_last { Template::Useless } else { Template::Absent };
        vec![Effect::Notify(Notice::Warm(WarmNotice::Refused { reason, is_last }))]
    }

    /// The workers that waited for the template are started.
    fn release(&mut self, now: Moment) -> Vec<Effect> {
        let Some(Held { round, oom_kills }) = self.warm.held.take() else { return Vec::new() };
        // They may have been given up meanwhile.
        if !matches!(self.state, State::Preparing(_)) || self.round() != Some(round) {
            return Vec::new();
        }
        self.start_prepared(now, round, oom_kills)
    }
}
