//! Which nodes are lost: a broken stream has a grace period to come back, a silent node a longer one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use diagnosis::moment::Moment;

/// The heartbeats that may be missed before a node counts as silent, however short the timeout is.
const BEATS: u32 = 6;

/// The most heartbeats per second of all nodes together.
const BEATS_PER_SECOND: u32 = 1000;

/// The most connections per second of all nodes together.
const RETURNS_PER_SECOND: u32 = 500;

/// Why a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossCause {
    /// The stream of the node broke, and no new one was opened within the grace period.
    Disconnected { grace: Duration },
    /// The stream of the node was open, and no message came for so long.
    Silent { timeout: Duration },
    /// Another launcher took the rank of the node while its stream was broken.
    Replaced,
    /// Another launcher on the same machine took the rank of the node while its stream was broken.
    StartedAgain,
    /// The node had not stopped its workers for so long, and the others waited for it.
    Slow { timeout: Duration },
    /// The node with node rank 0 did not open the store of the workers for so long.
    NoStore { timeout: Duration },
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected { grace } => {
                write!(
                    f,
                    "its connection to the job master broke and was not restored within {} s",
                    grace.as_secs_f64()
                )
            }
            Self::Silent { timeout } => write!(f, "no heartbeat for {} s", timeout.as_secs_f64()),
            Self::Replaced => {
                f.write_str("its connection to the job master was broken when a replacement joined")
            }
            Self::StartedAgain => f.write_str("its launcher was started again"),
            Self::Slow { timeout } => {
                write!(f, "its workers had not ended {} s after the request to stop", timeout.as_secs_f64())
            }
            Self::NoStore { timeout } => {
                write!(f, "it did not open the store of the workers within {} s", timeout.as_secs_f64())
            }
        }
    }
}

/// The timeouts of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeout {
    /// How long a broken stream may take to come back. Default 2 s; for many at once see [`return_grace`].
    pub reconnect_grace: Duration,
    /// How long a node may be silent; `None`: only its connection counts, as inside one process. Default 15 s.
    pub heartbeat_timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watched {
    due: Option<Moment>,
    is_connected: bool,
    /// The grace period after its stream broke.
    grace: Duration,
}

/// The longest time from the moment at which a node could reach the master again to its next attempt: it detects a
/// dead connection when the peer's kernel has acknowledged nothing for 5 s, a connection attempt takes up to 1 s, and
/// a pause of up to 1 s follows. One second is a margin.
pub const LONGEST_GAP: Duration = Duration::from_secs(8);

/// How long members may take to come back to a restarted master: max(grace, max(1 s, nodes / 500 s) +
/// [`LONGEST_GAP`]): a node notices with its next heartbeat, and the connections of thousands take time.
#[must_use]
pub fn return_grace(reconnect_grace: Duration, nodes: u32) -> Duration {
    reconnect_grace.max(shared(nodes, RETURNS_PER_SECOND) + LONGEST_GAP)
}

/// The heartbeat interval of so many nodes: max(1 s, nodes / 1000 s).
fn beat_of(nodes: u32) -> Duration {
    shared(nodes, BEATS_PER_SECOND)
}

/// How long a node of so many may be silent: the timeout, but never less than six heartbeats.
#[must_use]
pub fn silence_of(timeout: Duration, nodes: u32) -> Duration {
    timeout.max(beat_of(nodes) * BEATS)
}

/// The time in which so many nodes may each do one thing, at least a second.
fn shared(nodes: u32, in_a_second: u32) -> Duration {
    (Duration::from_secs(1).saturating_mul(nodes) / in_a_second).max(Duration::from_secs(1))
}

/// The nodes that are watched. Not journalled: after a restart of the master all streams count as broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Liveness {
    timeout: Timeout,
    nodes: BTreeMap<NodeId, Watched>,
    due: BTreeSet<(Moment, NodeId)>,
}

impl Liveness {
    /// A watch without nodes.
    #[must_use]
    pub fn new(timeout: Timeout) -> Self {
        Self { timeout, nodes: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// The heartbeat interval; `None`: no heartbeats. max(1 s, nodes / 1000 s).
    #[must_use]
    pub fn beat_interval(&self) -> Option<Duration> {
        self.timeout.heartbeat_timeout.map(|_| beat_of(self.count()))
    }

    fn count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// How long a node may be silent; `None`: without limit.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.timeout.heartbeat_timeout.map(|timeout| silence_of(timeout, self.count()))
    }

    /// Its stream is open.
    pub fn connected(&mut self, now: Moment, node: &NodeId) {
        let due = self.silence().map(|silence| now + silence);
        self.set(node, due, true, self.timeout.reconnect_grace);
    }

    /// The node has sent a message.
    pub fn message_received(&mut self, now: Moment, node: &NodeId) {
        if self.is_connected(node) {
            self.connected(now, node);
        }
    }

    /// Whether its stream is open.
    #[must_use]
    pub fn is_connected(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|watched| watched.is_connected)
    }

    /// Its stream broke.
    pub fn disconnected(&mut self, now: Moment, node: &NodeId) {
        let grace = self.timeout.reconnect_grace;
        self.set(node, Some(now + grace), false, grace);
    }

    /// The master was restarted: all nodes have yet to come back, and all at once.
    pub fn all_disconnected<'a>(&mut self, now: Moment, nodes: impl ExactSizeIterator<Item = &'a NodeId>) {
        let nodes_back = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let grace = return_grace(self.timeout.reconnect_grace, nodes_back);
        for node in nodes {
            self.set(node, Some(now + grace), false, grace);
        }
    }

    /// Nothing was received until now, because the master itself stood still: each gets the whole time again, as after a restart.
    pub fn stalled_until(&mut self, now: Moment) {
        let silence = self.silence();
        let grace = return_grace(self.timeout.reconnect_grace, self.count());
        self.due.clear();
        for (node, watched) in &mut self.nodes {
            let timeout = if watched.is_connected { silence } else { Some(grace) };
            watched.grace = grace;
            watched.due = timeout.map(|timeout| now + timeout);
            self.due.extend(watched.due.map(|due| (due, node.clone())));
        }
    }

    /// The node has left and is not watched any more.
    pub fn forget(&mut self, node: &NodeId) {
        if let Some(Watched { due: Some(due), .. }) = self.nodes.remove(node) {
            self.due.remove(&(due, node.clone()));
        }
    }

    fn set(&mut self, node: &NodeId, due: Option<Moment>, is_connected: bool, grace: Duration) {
        self.forget(node);
        self.nodes.insert(node.clone(), Watched { due, is_connected, grace });
        if let Some(due) = due {
            self.due.insert((due, node.clone()));
        }
    }

    /// When to call [`Self::expired`].
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The nodes whose time has run out, each once.
    #[must_use = "a lost node is told here and nowhere else"]
    pub fn expired(&mut self, now: Moment) -> Vec<(NodeId, LossCause)> {
        let mut lost = Vec::new();
        while let Some((due, node)) = self.due.first().cloned()
            && due <= now
        {
            let watched = self.nodes.get(&node);
            let grace = watched.map_or(self.timeout.reconnect_grace, |watched| watched.grace);
            let cause = match self.silence() {
                Some(timeout) if watched.is_some_and(|it| it.is_connected) => LossCause::Silent { timeout },
                Some(_) | None => LossCause::Disconnected { grace },
            };
            self.forget(&node);
            lost.push((node, cause));
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);
    const TIMEOUT: Duration = Duration::from_secs(15);

    fn liveness(heartbeat_timeout: Option<Duration>) -> Liveness {
        Liveness::new(Timeout { reconnect_grace: GRACE, heartbeat_timeout })
    }

    fn id(name: &str) -> NodeId {
        NodeId(name.into())
    }

    #[test]
    fn a_broken_stream_has_a_grace_and_a_silent_node_a_longer_one() {
        let mut liveness = liveness(Some(TIMEOUT));
        liveness.connected(Moment::START, &id("a"));
        liveness.connected(Moment::START, &id("b"));
        liveness.disconnected(Moment::at_secs(1), &id("a"));
        assert_eq!(liveness.deadline(), Some(Moment::at_secs(3)));
        assert_eq!(
            liveness.expired(Moment::at_secs(3)),
            [(id("a"), LossCause::Disconnected { grace: GRACE })]
        );
        liveness.message_received(Moment::at_secs(4), &id("b"));
        assert_eq!(liveness.expired(Moment::at_secs(18)), []);
        assert_eq!(
            liveness.expired(Moment::at_secs(19)),
            [(id("b"), LossCause::Silent { timeout: TIMEOUT })]
        );
        assert_eq!(liveness.deadline(), None);
    }

    #[test]
    fn nodes_have_longer_to_come_back_to_a_master_that_was_started_again_and_thousands_even_longer() {
        for (nodes, grace) in [(3, Duration::from_secs(9)), (4096, Duration::from_millis(16_192))] {
            let nodes: Vec<NodeId> = (0..nodes).map(|node: u32| id(&node.to_string())).collect();
            let mut liveness = liveness(Some(TIMEOUT));
            liveness.all_disconnected(Moment::START, nodes.iter());
            assert_eq!(liveness.deadline(), Some(Moment::START + grace));
            let lost = liveness.expired(Moment::START + grace);
            assert_eq!(lost.len(), nodes.len());
            assert_eq!(lost[0].1, LossCause::Disconnected { grace });
        }
    }

    #[test]
    fn a_stream_that_comes_back_in_time_loses_no_node() {
        let mut liveness = liveness(Some(TIMEOUT));
        liveness.connected(Moment::START, &id("a"));
        liveness.disconnected(Moment::at_secs(1), &id("a"));
        liveness.connected(Moment::at_secs(2), &id("a"));
        assert_eq!(liveness.expired(Moment::at_secs(16)), []);
    }

    #[test]
    fn inside_one_process_there_are_no_heartbeats() {
        let mut liveness = liveness(None);
        liveness.connected(Moment::START, &id("a"));
        assert_eq!((liveness.beat_interval(), liveness.deadline()), (None, None));
    }

    #[test]
    fn many_nodes_beat_less_often_and_are_given_six_beats() {
        let mut liveness = liveness(Some(TIMEOUT));
        for node in 0..5000 {
            liveness.connected(Moment::START, &id(&node.to_string()));
        }
        assert_eq!(liveness.beat_interval(), Some(Duration::from_secs(5)));
        liveness.message_received(Moment::START, &id("7"));
        assert_eq!(liveness.silence(), Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_node_that_left_is_not_lost() {
        let mut liveness = liveness(Some(TIMEOUT));
        liveness.connected(Moment::START, &id("a"));
        liveness.forget(&id("a"));
        liveness.message_received(Moment::at_secs(1), &id("a"));
        assert_eq!(liveness.deadline(), None);
    }
}
