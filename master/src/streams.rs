//! The nodes' streams: what was decided goes out here, once it is durable.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use master_proto::convert::{Push, Pushed};
use rules::{
    NodeId,
    job::{self, Effect},
    pending::Pending,
    verdict::JobVerdict,
};
use tokio::sync::mpsc;

use crate::{
    journal::crash_point,
    lines::{Log, LogLine, say},
};

/// Pushes that may wait for one node. A node gets a handful a round.
pub(crate) const PUSHES: usize = 64;

/// Nodes that may attend at once.
pub(crate) const MOST_SUBSCRIBERS: usize = 65_536;

/// A word to one node. Many may be told the same.
#[derive(Debug, Clone)]
pub(crate) struct QueuedPush {
    epoch: u64,
    seq: u64,
    push: Arc<Push>,
}

impl From<QueuedPush> for Pushed {
    fn from(QueuedPush { epoch, seq, push }: QueuedPush) -> Self {
        Self { epoch, seq, push: Some(Arc::unwrap_or_clone(push)) }
    }
}

/// A stream that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: NodeId,
    /// Tells this stream from the one before it and the one after.
    pub(crate) session: u64,
    pub(crate) pushes: mpsc::Sender<QueuedPush>,
    /// When the first beat is due.
    pub(crate) beat: Option<Duration>,
    /// How long the node waits for its answer.
    pub(crate) timeout: Option<Duration>,
}

/// All open streams.
pub(crate) struct Streams {
    epoch: u64,
    /// Words said in this life of the master. One count for all: it grows for each node, whatever its streams do.
    said: u64,
    open: BTreeMap<NodeId, (u64, mpsc::Sender<QueuedPush>)>,
    log: Log,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { epoch, said, open, log: _ } = self;
        f.debug_struct("Streams").field("epoch", epoch).field("said", said).field("open", open).finish()
    }
}

impl Streams {
    /// Nobody attends.
    pub(crate) fn new(epoch: u64, log: Log) -> Self {
        Self { epoch, said: 0, open: BTreeMap::new(), log }
    }

    /// From now on words to the node go here. Its old stream ends.
    pub(crate) fn open(&mut self, Opened { node, session, pushes, beat, timeout }: Opened) {
        self.open.insert(node.clone(), (session, pushes));
        self.push(&node, Push::Welcome { beat, session, timeout });
    }

    /// A stream has ended; the node may have opened another one since.
    pub(crate) fn closed(&mut self, node: &NodeId, session: u64) {
        if self.open.get(node).is_some_and(|(current, _)| *current == session) {
            self.open.remove(node);
        }
    }

    /// Does what was decided. Gives the verdict when nothing follows.
    pub(crate) fn carry_out(&mut self, effect: Effect) -> Option<JobVerdict> {
        match effect {
            Effect::AskToHost { node, round, fresh_port } => {
                self.push(&node, Push::Host { round, fresh_port })
            }
            Effect::Check { node, order } => self.push(&node, Push::Check(order)),
            Effect::CancelCheck { node, at } => self.push(&node, Push::CancelCheck(at)),
            Effect::CheckOver { node, words } => self.push(&node, Push::CheckOver { words }),
            Effect::Exclude { node, exclusion } => self.push(&node, Push::Excluded(exclusion)),
            Effect::Seat { node, assignment } => self.push(&node, Push::Seat(assignment)),
            Effect::Regroup { node, round, why } => {
                let is_secondary = why.is_secondary();
                self.push(&node, Push::Regroup { round, why: why.to_string(), is_secondary });
            }
            Effect::Refuse { node, reason } => {
                let reason = reason.to_string();
                say(&self.log, format_args!("refused {node}: {reason}"));
                self.push(&node, Push::Refused { reason });
                self.open.remove(&node);
            }
            Effect::TellPending { node, pending } => self.push(&node, Push::Pending(pending)),
            Effect::TellEnd { node, verdict } => self.push(&node, Push::JobEnd(verdict)),
            Effect::HangUp { node } => {
                self.open.remove(&node);
            }
            Effect::Log(line) => self.log(&line),
            Effect::Finish { verdict } => return Some(verdict),
            // Nothing is kept for a node but its stream, which it closes itself. Files are the loop's.
            Effect::Forget { .. } | Effect::ReadTopology | Effect::Report(_) => {}
        }
        crash_point("between-effects");
        None
    }

    /// Tells those that wait how things stand.
    pub(crate) fn tell(&mut self, pending: Pending, nodes: impl IntoIterator<Item = NodeId>) {
        (self.log)(LogLine::Pending(pending.clone()));
        let push = Arc::new(Push::Pending(pending));
        for node in nodes {
            self.push(&node, Arc::clone(&push));
        }
    }

    fn log(&self, line: &job::Log) {
        // A job of one node is an ordinary run, which says nothing about itself. One that others have left is not.
        if !matches!(line, job::Log::Placed { round, nodes } if nodes.len() == 1 && round.0 == 0) {
            say(&self.log, line);
        }
    }

    /// Never waits: the stream of a node that does not read its pushes is ended, and so the node is lost, unless
    /// it comes back.
    fn push(&mut self, node: &NodeId, push: impl Into<Arc<Push>>) {
        let Some((_, pushes)) = self.open.get(node) else { return };
        self.said += 1;
        if pushes.try_send(QueuedPush { epoch: self.epoch, seq: self.said, push: push.into() }).is_err() {
            self.open.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use rules::Round;

    use super::*;

    fn node() -> NodeId {
        NodeId("a".into())
    }

    fn open(streams: &mut Streams, session: u64) -> mpsc::Receiver<QueuedPush> {
        let (pushes, words) = mpsc::channel(PUSHES);
        streams.open(Opened { node: node(), session, pushes, beat: None, timeout: None });
        words
    }

    fn host(streams: &mut Streams) {
        let asked = Effect::AskToHost { node: node(), round: Round(0), fresh_port: false };
        assert_eq!(streams.carry_out(asked), None);
    }

    #[test]
    fn the_end_of_an_old_stream_is_not_the_end_of_the_new_one() {
        let mut streams = Streams::new(9, Arc::new(drop));
        let mut old = open(&mut streams, 1);
        let mut new = open(&mut streams, 2);
        streams.closed(&node(), 1);
        host(&mut streams);
        assert!(matches!(*old.blocking_recv().unwrap().push, Push::Welcome { beat: None, session: 1, .. }));
        assert!(old.blocking_recv().is_none(), "attending again ends the old stream");
        let words = [new.blocking_recv().unwrap(), new.blocking_recv().unwrap()];
        assert!(matches!(*words[1].push, Push::Host { .. }));
        assert!(words[0].seq < words[1].seq && words.iter().all(|word| word.epoch == 9));
    }

    #[test]
    fn a_node_that_does_not_read_is_disconnected() {
        let mut streams = Streams::new(9, Arc::new(drop));
        let mut words = open(&mut streams, 1);
        for _ in 0..PUSHES {
            host(&mut streams);
        }
        let mut delivered = 0;
        while words.blocking_recv().is_some() {
            delivered += 1;
        }
        assert_eq!(delivered, PUSHES);
    }

    #[test]
    fn a_refused_node_hears_why_before_its_stream_ends() {
        let mut streams = Streams::new(9, Arc::new(drop));
        let mut words = open(&mut streams, 1);
        let reason = job::Refusal::Differs { point: "x".into() };
        assert_eq!(streams.carry_out(Effect::Refuse { node: node(), reason }), None);
        let _welcome = words.blocking_recv().unwrap();
        assert!(
            matches!(&*words.blocking_recv().unwrap().push, Push::Refused { reason } if reason.starts_with('x'))
        );
        assert!(words.blocking_recv().is_none());
    }
}
