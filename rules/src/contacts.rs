//! When nodes last sent a message, and since when their streams are open: what the master knows of lost nodes whose workers
//! may still run. Not journalled; after a restart of the master it is collected anew.
//!
//! A node that sends a heartbeat has had the answer to the one before, on the same stream. So from its point of view
//! the stream was open from the first heartbeat to the last but one, and all the while it answered jurors that it has
//! the master. No clock of a node is read for that.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fence::{FenceTerms, kill_before},
    ids::NodeId,
};
use diagnosis::moment::Moment;

/// How long a guard takes at most to notice that its launcher is gone, and to kill.
const GUARD: Duration = Duration::from_millis(500);

/// The drift between two clocks: one part in fifty.
const DRIFT: u32 = 50;

/// The last contact with one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contact {
    last_message: Moment,
    /// The first heartbeat on the open stream.
    first_beat: Option<Moment>,
    /// The last one, and the one before.
    last_beat: Option<Moment>,
    previous_beat: Option<Moment>,
    /// Its kernel has closed the stream: the launcher is gone.
    closed_at: Option<Moment>,
    /// It has announced its end.
    is_leaving: bool,
}

/// Whether workers of a lost node may still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayRun {
    /// They have ended.
    No,
    /// Until then at least.
    Until(Moment),
    /// Too few launchers of its round are present: the others may have confirmed each other that the master is dead.
    AsLongAsOthersAreAway,
}

/// The contacts of all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contacts {
    nodes: BTreeMap<NodeId, Contact>,
}

impl Contacts {
    /// The node opened a stream.
    pub fn subscribed(&mut self, now: Moment, node: &NodeId) {
        let contact = Contact {
            last_message: now,
            first_beat: None,
            last_beat: None,
            previous_beat: None,
            closed_at: None,
            is_leaving: false,
        };
        self.nodes.insert(node.clone(), contact);
    }

    /// The node sent a message.
    pub fn message_received(&mut self, now: Moment, node: &NodeId) {
        if let Some(contact) = self.nodes.get_mut(node) {
            contact.last_message = now;
        }
    }

    /// The node sent a heartbeat on the open stream.
    pub fn heartbeat_received(&mut self, now: Moment, node: &NodeId) {
        if let Some(contact) = self.nodes.get_mut(node) {
            contact.last_message = now;
            contact.first_beat.get_or_insert(now);
            contact.previous_beat = contact.last_beat.replace(now);
        }
    }

    /// The node announced its end, with its workers.
    pub fn leave_announced(&mut self, node: &NodeId) {
        if let Some(contact) = self.nodes.get_mut(node) {
            contact.is_leaving = true;
        }
    }

    /// Its stream was reset, after it was reported as broken. Of most nodes that means nothing: firewalls do it too,
    /// and kernels that have given up a connection. Of a node that was about to end it means that it has: a kernel
    /// resets what a process leaves unread.
    pub fn stream_reset(&mut self, now: Moment, node: &NodeId) {
        if self.nodes.get(node).is_some_and(|contact| contact.is_leaving) {
            self.disconnected(now, node, true);
        }
    }

    /// Its stream is gone; `is_closed`: because its kernel closed it.
    pub fn disconnected(&mut self, now: Moment, node: &NodeId, is_closed: bool) {
        if let Some(contact) = self.nodes.get_mut(node) {
            (contact.first_beat, contact.last_beat, contact.previous_beat) = (None, None, None);
            contact.closed_at = is_closed.then_some(now);
        }
    }

    /// The node is of no interest any more.
    pub fn forget(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }

    /// Whether workers of `node` may still run. It is away since `away` at the latest, and was in a round of these
    /// terms.
    ///
    /// Its own lease ends a lease after its last message to the master. Beyond that, the jurors may have answered
    /// that they have lost the master, too. A majority of them cannot have done so after half of them had opened the
    /// present streams: one of that half would have been among them. So it is over a lease after both, when that half
    /// is known to have had the master until then.
    #[must_use]
    pub fn may_run(&self, now: Moment, node: &NodeId, away: Moment, terms: &FenceTerms) -> MayRun {
        let contact = self.nodes.get(node);
        if let Some(closed_at) = contact.and_then(|contact| contact.closed_at) {
            let gone = closed_at + GUARD;
            return if gone <= now { MayRun::No } else { MayRun::Until(gone) };
        }
        let last_message = contact.map_or(away, |contact| contact.last_message);
        let jurors = || terms.jury.iter().filter_map(|juror| self.nodes.get(&juror.node));
        let half = terms.jury.len().div_ceil(2);
        let mut opened: Vec<Moment> =
            jurors().filter_map(|contact| contact.closed_at.or(contact.first_beat)).collect();
        opened.sort_unstable();
        if opened.len() < half {
            return MayRun::AsLongAsOthersAreAway;
        }
        let mut next = None;
        for opened in
            opened.into_iter().skip(half.saturating_sub(1)).chain((half == 0).then_some(last_message))
        {
            let from = last_message.max(opened);
            let slack = terms.lease / DRIFT;
            let over = from + terms.lease + slack;
            let killed = from + (terms.lease - kill_before(terms.lease)) + slack;
            if now < over {
                next = Some(next.map_or(over, |next: Moment| next.min(over)));
                continue;
            }
            let previous_beat = jurors().filter(|contact| match contact.closed_at {
                Some(closed_at) => closed_at <= from,
                None => {
                    contact.first_beat.is_some_and(|first_beat| first_beat <= from)
                        && contact.previous_beat.is_some_and(|previous_beat| killed <= previous_beat)
                }
            });
            if previous_beat.count() >= half {
                return MayRun::No;
            }
        }
        // Else the next heartbeats decide.
        next.map_or(MayRun::AsLongAsOthersAreAway, MayRun::Until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Juror;

    const LEASE: Duration = Duration::from_secs(12);

    fn id(name: &str) -> NodeId {
        NodeId(name.into())
    }

    fn terms(names: &[&str]) -> FenceTerms {
        let jury = names.iter().map(|name| Juror { node: id(name), address: (*name).into(), port: 1 });
        FenceTerms { lease: LEASE, jury: jury.collect(), is_master_within: false }
    }

    fn millis(millis: u64) -> Moment {
        Moment::at_millis(millis)
    }

    /// Streams of these, on which each sends a heartbeat a second, from a second to another.
    fn beating(contacts: &mut Contacts, names: &[&str], seconds: std::ops::Range<u64>) {
        for second in seconds.clone() {
            for name in names {
                if second == seconds.start {
                    contacts.subscribed(Moment::at_secs(second), &id(name));
                }
                contacts.heartbeat_received(Moment::at_secs(second), &id(name));
            }
        }
    }

    #[test]
    fn one_silent_node_costs_its_lease_and_no_more() {
        let mut contacts = Contacts::default();
        beating(&mut contacts, &["a", "b", "c"], 0..11);
        contacts.disconnected(Moment::at_secs(10), &id("c"), false);
        for name in ["a", "b"] {
            for second in 11..23 {
                contacts.heartbeat_received(Moment::at_secs(second), &id(name));
            }
        }
        let may = |now| contacts.may_run(now, &id("c"), Moment::START, &terms(&["a", "b", "c"]));
        assert_eq!(may(Moment::at_secs(22)), MayRun::Until(millis(22_240)));
        assert_eq!(may(millis(22_240)), MayRun::No);
    }

    #[test]
    fn a_launcher_that_is_gone_takes_its_workers_along() {
        let mut contacts = Contacts::default();
        beating(&mut contacts, &["a", "b"], 0..2);
        contacts.disconnected(Moment::at_secs(2), &id("b"), true);
        let may = |now| contacts.may_run(now, &id("b"), Moment::START, &terms(&["a", "b"]));
        assert_eq!(may(Moment::at_secs(2)), MayRun::Until(millis(2500)));
        assert_eq!(may(millis(2500)), MayRun::No);
    }

    #[test]
    fn a_reset_is_the_end_of_a_launcher_that_was_about_to_end_and_of_no_other() {
        let mut contacts = Contacts::default();
        beating(&mut contacts, &["a", "b", "c"], 0..2);
        contacts.leave_announced(&id("b"));
        for name in ["b", "c"] {
            contacts.disconnected(Moment::at_secs(2), &id(name), false);
            contacts.stream_reset(Moment::at_secs(2), &id(name));
        }
        let of_three = terms(&["a", "b", "c"]);
        let may = |name: &str| contacts.may_run(millis(2500), &id(name), Moment::START, &of_three);
        assert_eq!((may("b"), may("c")), (MayRun::No, MayRun::Until(millis(14_240))));
    }

    #[test]
    fn while_less_than_half_are_present_the_others_may_keep_running() {
        let mut contacts = Contacts::default();
        beating(&mut contacts, &["a"], 0..100);
        let of_three = terms(&["a", "b", "c"]);
        let may = |contacts: &Contacts, now| {
            contacts.may_run(Moment::at_secs(now), &id("b"), Moment::START, &of_three)
        };
        assert_eq!(may(&contacts, 99), MayRun::AsLongAsOthersAreAway);
        // With another one, from its first beat on.
        beating(&mut contacts, &["c"], 100..113);
        assert_eq!(may(&contacts, 112), MayRun::Until(millis(112_240)));
        beating(&mut contacts, &["a"], 0..113);
        assert_eq!(contacts.may_run(millis(112_240), &id("b"), Moment::START, &of_three), MayRun::No);
        // Or when its launcher is known to be gone.
        contacts.disconnected(Moment::at_secs(120), &id("c"), true);
        let _more: Vec<()> =
            (113..140).map(|second| contacts.heartbeat_received(Moment::at_secs(second), &id("a"))).collect();
        assert_eq!(may(&contacts, 125), MayRun::Until(millis(132_240)));
        assert_eq!(may(&contacts, 133), MayRun::No);
    }

    #[test]
    fn a_stream_that_may_have_broken_since_proves_nothing() {
        let mut contacts = Contacts::default();
        beating(&mut contacts, &["a", "b"], 0..10);
        // `a` sent nothing for as long; whether it was answered since is unknown.
        let may = |contacts: &Contacts, now| {
            contacts.may_run(Moment::at_secs(now), &id("b"), Moment::START, &terms(&["a", "b"]))
        };
        assert_eq!(may(&contacts, 30), MayRun::AsLongAsOthersAreAway);
        contacts.heartbeat_received(Moment::at_secs(30), &id("a"));
        assert_eq!(may(&contacts, 30), MayRun::AsLongAsOthersAreAway, "it was open at 9 s");
        contacts.heartbeat_received(Moment::at_secs(31), &id("a"));
        assert_eq!(may(&contacts, 31), MayRun::No, "it was at 30 s");
    }

    #[test]
    fn a_node_never_heard_counts_from_the_start_of_the_master() {
        let mut contacts = Contacts::default();
        beating(&mut contacts, &["a"], 100..130);
        let may = |now| contacts.may_run(now, &id("b"), Moment::at_secs(105), &terms(&["a", "b"]));
        assert_eq!(may(Moment::at_secs(117)), MayRun::Until(millis(117_240)));
        assert_eq!(may(millis(117_240)), MayRun::No);
    }
}
