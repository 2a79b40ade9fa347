//! Whether the workers of a node that has lost the job master may keep running.
//!
//! A launcher that loses the master cannot distinguish a dead master from a network cut. If the master lives, it
//! gives the work to a new world once the node has been silent for the lease. Two generations of workers must never
//! run at once: an old rank 0 would overwrite a new one's checkpoint. So the launcher asks the jurors of its round.
//!
//! * A majority of them has lost the master too, and no juror that answers has it: the master is dead, and the
//!   workers may run for another lease from the time of the question. The master, for its part, completes no new world
//!   without nodes that may still run unless it has had messages from half of the jurors since, and waits a lease from
//!   then.
//! * A juror has the master, or has left the round, or no majority answers: this node may be the one that is cut off.
//!   Its workers are stopped before the lease is over.
//!
//! Clocks are compared with themselves only: the lease counts here from the time at which the last answered heartbeat
//! was sent, at the master from the time at which it was received.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{NodeId, Round},
    node::is_loopback,
    world::{Member, reachable_address},
};
use diagnosis::moment::Moment;

/// The most jurors of a round. Any two majorities of one jury share a juror, so it need not be all nodes.
pub const MAX_JURORS: usize = 31;

/// How long killing the workers may take; less where the lease is shorter than four times that.
const KILL: Duration = Duration::from_secs(2);

/// How long before the end of a lease workers are killed.
#[must_use]
pub fn kill_before(lease: Duration) -> Duration {
    KILL.min(lease / 4)
}

/// How long after a launcher should have killed its workers the guard kills them without it.
#[must_use]
pub fn guard_after(lease: Duration) -> Duration {
    kill_before(lease) / 4
}

/// The timeout of one question to one juror.
#[must_use]
pub fn question_timeout(lease: Duration) -> Duration {
    lease / 6
}

/// What a node needs to decide whether its workers may keep running without the master, and the master to know that
/// decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceTerms {
    /// How long the workers may run after the last contact.
    pub lease: Duration,
    /// The nodes to ask.
    pub jury: Vec<Juror>,
    /// The master lives in a launcher of the job and moves nowhere else: if its host refuses the connection, it is
    /// dead.
    pub is_master_within: bool,
}

impl FenceTerms {
    /// Returns the terms of a round of these members.
    #[must_use]
    pub fn of(lease: Duration, members: &[Member], is_master_within: bool) -> Self {
        let is_local_job = members.iter().all(|member| is_loopback(&member.address));
        let able: Vec<&Member> = members.iter().filter(|member| member.question_port > 0).collect();
        let jurors = able.len().min(MAX_JURORS);
        // Spread over the ranks: neighbours fail together.
        let jury =
            (0..jurors).filter_map(|index| able.get(index * able.len() / jurors)).map(|member| Juror {
                node: member.node_id.clone(),
                address: reachable_address(&member.address, &member.addresses, is_local_job),
                port: member.question_port,
            });
        Self { lease, jury: jury.collect(), is_master_within }
    }
}

/// The state from which a node answers the others of its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JurorState {
    /// The last round that is over for it: it was assigned to a later one.
    pub over: Option<Round>,
}

impl JurorState {
    /// Returns the answer for a round. `has_master`: a stream to the master is open, and the master answers on it.
    #[must_use]
    pub fn answer(self, has_master: bool, round: Round) -> Answer {
        match self.over {
            Some(over) if round <= over => Answer::MovedOn,
            _ if has_master => Answer::Connected,
            _ => Answer::Lost,
        }
    }
}

/// A node that the others of its round ask whether it has lost the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Juror {
    pub node: NodeId,
    pub address: String,
    /// Its port for this question.
    pub port: u16,
}

/// The answer of a juror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It takes part in the round and has lost the master.
    Lost,
    /// It takes part in the round and has the master.
    Connected,
    /// It has left the round: the master has called it to another one.
    MovedOn,
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask all jurors, each with a deadline of its own, and pass the answers to [`Fence::answered`].
    Ask,
    /// Kill the workers, without a grace period.
    Kill,
}

/// The result of asking the jurors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FenceFinding {
    /// So many jurors have lost the master, this node among them if it is one.
    MasterDead {
        /// How many have.
        lost: u32,
        /// How many jurors there are.
        of: u32,
    },
    /// The master lived in a launcher that is dead.
    MasterGone,
    /// A juror has the master or was called to another round by it.
    CutOff,
    /// Too few jurors answer.
    Alone {
        /// How many have lost the master.
        lost: u32,
        /// How many jurors there are.
        of: u32,
    },
}

/// The lease of one node's workers in one round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    lease: Duration,
    jurors: u32,
    /// This node is a juror.
    is_juror: bool,
    /// The lease counts from then.
    granted: Moment,
    next: Moment,
    /// The jurors are being asked since then.
    asked: Option<Moment>,
}

impl Fence {
    /// Starts a lease. `last_answered` is the time at which the last message was sent that the master has answered.
    #[must_use]
    pub fn new(last_answered: Moment, lease: Duration, jurors: u32, is_juror: bool) -> Self {
        Self { lease, jurors, is_juror, granted: last_answered, next: last_answered + lease / 3, asked: None }
    }

    /// The master has answered a message that was sent then.
    pub fn renew(&mut self, sent: Moment) {
        if self.granted <= sent {
            self.granted = sent;
            self.next = sent + self.lease / 3;
        }
    }

    /// When to call [`Self::due`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        if self.asked.is_some() { self.kill_at() } else { self.next.min(self.kill_at()) }
    }

    /// What is due now.
    pub fn due(&mut self, now: Moment) -> Option<Step> {
        if self.kill_at() <= now {
            return Some(Step::Kill);
        }
        if self.asked.is_some() || now < self.next {
            return None;
        }
        self.asked = Some(now);
        Some(Step::Ask)
    }

    /// Records the answers of the jurors that were reached, this node not among them. `is_master_gone`: the only host
    /// where the master may be refuses the connection.
    pub fn answered(&mut self, answers: &[Answer], is_master_gone: bool) -> Option<FenceFinding> {
        let began = self.asked.take()?;
        self.next = began + self.lease / 6;
        if is_master_gone {
            self.granted = self.granted.max(began);
            return Some(FenceFinding::MasterGone);
        }
        if answers.iter().any(|answer| *answer != Answer::Lost) {
            return Some(FenceFinding::CutOff);
        }
        let lost = u32::try_from(answers.len()).unwrap_or(u32::MAX).saturating_add(u32::from(self.is_juror));
        let of = self.jurors;
        if lost.saturating_mul(2) <= of {
            return Some(FenceFinding::Alone { lost, of });
        }
        self.granted = self.granted.max(began);
        Some(FenceFinding::MasterDead { lost, of })
    }

    /// When the workers are killed, unless the lease is renewed before.
    #[must_use]
    pub fn kill_at(&self) -> Moment {
        self.granted + (self.lease - kill_before(self.lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(12);
    const LOST: Answer = Answer::Lost;

    fn at(secs: u64) -> Moment {
        Moment::at_secs(secs)
    }

    /// One of `jurors`, with the last contact at the start, and asked at the first time.
    fn asked(jurors: u32) -> Fence {
        let mut fence = Fence::new(Moment::START, LEASE, jurors, true);
        assert_eq!((fence.deadline(), fence.due(at(3))), (at(4), None));
        assert_eq!(fence.due(at(4)), Some(Step::Ask));
        assert_eq!((fence.deadline(), fence.due(at(5))), (at(10), None), "the answers are awaited");
        fence
    }

    #[test]
    fn while_the_master_answers_nothing_is_asked() {
        let mut fence = Fence::new(Moment::START, LEASE, 4, true);
        for second in 1..100 {
            fence.renew(at(second));
            assert_eq!((fence.due(at(second + 1)), fence.deadline()), (None, at(second + 4)));
        }
    }

    #[test]
    fn with_a_majority_that_has_lost_the_master_the_workers_go_on_for_as_long_as_it_lasts() {
        let mut fence = asked(4);
        assert_eq!(fence.answered(&[LOST, LOST], false), Some(FenceFinding::MasterDead { lost: 3, of: 4 }));
        for round in 0..100 {
            let now = at(6 + 2 * round);
            assert_eq!((fence.deadline(), fence.due(now)), (now, Some(Step::Ask)));
            assert_eq!(
                fence.answered(&[LOST, LOST], false),
                Some(FenceFinding::MasterDead { lost: 3, of: 4 })
            );
        }
        // The last time at 204 s.
        assert_eq!(fence.due(at(206)), Some(Step::Ask));
        assert_eq!(fence.answered(&[LOST], false), Some(FenceFinding::Alone { lost: 2, of: 4 }));
        assert_eq!(fence.due(at(213)), Some(Step::Ask));
        assert_eq!((fence.deadline(), fence.due(at(214))), (at(214), Some(Step::Kill)));
    }

    #[test]
    fn half_is_no_majority_and_a_node_alone_stops_before_its_lease_is_over() {
        let mut fence = asked(2);
        assert_eq!(fence.answered(&[], false), Some(FenceFinding::Alone { lost: 1, of: 2 }));
        assert_eq!(fence.due(at(10)), Some(Step::Kill));
    }

    #[test]
    fn one_juror_with_the_master_outweighs_all_others() {
        for answer in [Answer::Connected, Answer::MovedOn] {
            let mut fence = asked(5);
            assert_eq!(fence.answered(&[LOST, LOST, answer, LOST], false), Some(FenceFinding::CutOff));
            assert_eq!(fence.due(at(10)), Some(Step::Kill));
        }
    }

    #[test]
    fn a_node_that_is_no_juror_does_not_count_itself() {
        let mut fence = Fence::new(Moment::START, LEASE, 3, false);
        assert_eq!(fence.due(at(4)), Some(Step::Ask));
        assert_eq!(fence.answered(&[LOST], false), Some(FenceFinding::Alone { lost: 1, of: 3 }));
        assert_eq!(fence.due(at(6)), Some(Step::Ask));
        assert_eq!(fence.answered(&[LOST, LOST], false), Some(FenceFinding::MasterDead { lost: 2, of: 3 }));
    }

    #[test]
    fn the_only_node_of_a_round_runs_for_ever() {
        let mut fence = asked(1);
        for second in 5..50 {
            let _answer = fence.answered(&[], false);
            assert_ne!(fence.due(at(2 * second)), Some(Step::Kill));
        }
    }

    #[test]
    fn answers_of_an_earlier_life_count_for_nothing() {
        let mut fence = asked(3);
        fence.renew(at(5));
        assert_eq!(fence.answered(&[LOST, LOST], false), Some(FenceFinding::MasterDead { lost: 3, of: 3 }));
        assert_eq!(fence.answered(&[LOST, LOST], false), None, "asked once");
        // From the later of the two.
        assert_eq!(fence.due(at(14)), Some(Step::Ask));
        assert_eq!(fence.due(at(15)), Some(Step::Kill));
    }

    #[test]
    fn a_short_lease_leaves_three_quarters_of_itself() {
        let mut fence = Fence::new(Moment::START, Duration::from_secs(4), 2, true);
        assert_eq!((fence.due(at(2)), fence.due(at(3))), (Some(Step::Ask), Some(Step::Kill)));
    }
}
