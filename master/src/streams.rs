//! The nodes' streams, on which decisions are sent once they are durable.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use checkpoint::job::Note;
use master_proto::convert::{Payload, StreamMessage};
use rules::{
    NodeId,
    job::{self, Effect},
    pending::Pending,
    push::Push,
    verdict::JobVerdict,
};
use tokio::sync::mpsc;

use crate::{
    journal::crash_point,
    log::{Log, LogLine, log_hang, log_line, log_warning},
};

/// Messages that may wait for one node. A node gets a handful in each round.
pub(crate) const QUEUED_MESSAGES: usize = 64;

/// Nodes that may be subscribed at once.
pub(crate) const MAX_SUBSCRIBERS: usize = 65_536;

/// A message to one node; its payload may be shared by many.
#[derive(Debug, Clone)]
pub(crate) struct QueuedMessage {
    epoch: u64,
    seq: u64,
    payload: Arc<Payload>,
}

impl From<QueuedMessage> for StreamMessage {
    fn from(QueuedMessage { epoch, seq, payload }: QueuedMessage) -> Self {
        Self { epoch, seq, payload: Some(Arc::unwrap_or_clone(payload)) }
    }
}

/// A new stream.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: NodeId,
    /// Tells this stream from those before and after it.
    pub(crate) session: u64,
    pub(crate) pushes: mpsc::Sender<QueuedMessage>,
    /// When the first heartbeat is due.
    pub(crate) beat: Option<Duration>,
    /// How long the node waits for the answer to a heartbeat.
    pub(crate) timeout: Option<Duration>,
}

/// All open streams.
pub(crate) struct Streams {
    epoch: u64,
    /// Messages sent in this life of the master, to all nodes together: it grows for each node across its streams.
    sent: u64,
    open: BTreeMap<NodeId, (u64, mpsc::Sender<QueuedMessage>)>,
    log: Log,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { epoch, sent, open, log: _ } = self;
        f.debug_struct("Streams").field("epoch", epoch).field("sent", sent).field("open", open).finish()
    }
}

impl Streams {
    /// Creates it without streams.
    pub(crate) fn new(epoch: u64, log: Log) -> Self {
        Self { epoch, sent: 0, open: BTreeMap::new(), log }
    }

    /// Distinguishes this life of the master from any other.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sends further messages to the node here. Its old stream ends.
    pub(crate) fn open(&mut self, Opened { node, session, pushes, beat, timeout }: Opened) {
        self.open.insert(node.clone(), (session, pushes));
        self.send(&node, Payload::Welcome { beat, session, timeout });
    }

    /// A stream has ended; the node may have opened another one since.
    pub(crate) fn closed(&mut self, node: &NodeId, session: u64) {
        if self.open.get(node).is_some_and(|(current, _)| *current == session) {
            self.open.remove(node);
        }
    }

    /// Carries out an effect. Returns the verdict after the last one.
    pub(crate) fn carry_out(&mut self, effect: Effect) -> Option<JobVerdict> {
        match effect {
            Effect::Push { node, push } => self.send(&node, Payload::Push(push)),
            Effect::Refuse { node, name, reason } => {
                let reason = reason.to_string();
                log_warning(&self.log, format_args!("rejected {name}: {reason}"));
                self.send(&node, Payload::Push(Push::Refused { reason }));
                self.open.remove(&node);
            }
            Effect::HangUp { node } => {
                self.open.remove(&node);
            }
            Effect::Log(line) => self.log(&line),
            Effect::Finish { verdict } => return Some(verdict),
            // A forgotten node closes its stream itself. Files are handled by the loop.
            Effect::Forget { .. }
            | Effect::ReadTopology
            | Effect::Report(_)
            | Effect::ReportHang(_)
            | Effect::CollectStacks { .. }
            | Effect::JudgeStacks { .. } => {}
        }
        crash_point("between-effects");
        None
    }

    /// Sends waiting nodes why they have no assignment yet.
    pub(crate) fn send_pending(&mut self, pending: Pending, nodes: impl IntoIterator<Item = NodeId>) {
        (self.log)(LogLine::Pending(pending.clone()));
        let payload = Arc::new(Payload::Push(Push::Pending(pending)));
        for node in nodes {
            self.send(&node, Arc::clone(&payload));
        }
    }

    fn log(&self, line: &job::Log) {
        // A run of one node logs no placement, unless other nodes have left it.
        match line {
            job::Log::Placed { round, nodes } if nodes.len() == 1 && round.0 == 0 => {}
            // Each save; the status has the last one.
            job::Log::Checkpoint(Note::Committed { .. }) => {}
            job::Log::Hang(_) => log_hang(&self.log, line),
            line if line.is_warning() => log_warning(&self.log, line),
            line => log_line(&self.log, line),
        }
    }

    /// Never waits: the stream of a node that does not read its messages is closed, and the node is lost unless it
    /// comes back.
    fn send(&mut self, node: &NodeId, payload: impl Into<Arc<Payload>>) {
        let Some((_, pushes)) = self.open.get(node) else { return };
        self.sent += 1;
        if pushes
            .try_send(QueuedMessage { epoch: self.epoch, seq: self.sent, payload: payload.into() })
            .is_err()
        {
            self.open.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rules::{Round, node::NodeName};

    use super::*;

    fn node() -> NodeId {
        NodeId("a".into())
    }

    fn open(streams: &mut Streams, session: u64) -> mpsc::Receiver<QueuedMessage> {
        let (pushes, messages) = mpsc::channel(QUEUED_MESSAGES);
        streams.open(Opened { node: node(), session, pushes, beat: None, timeout: None });
        messages
    }

    fn host(streams: &mut Streams) {
        let push = Effect::Push { node: node(), push: Push::Host { round: Round(0), fresh_port: false } };
        assert_eq!(streams.carry_out(push), None);
    }

    #[test]
    fn the_end_of_an_old_stream_is_not_the_end_of_the_new_one() {
        let mut streams = Streams::new(9, Arc::new(drop));
        let mut old = open(&mut streams, 1);
        let mut new = open(&mut streams, 2);
        streams.closed(&node(), 1);
        host(&mut streams);
        assert!(matches!(
            *old.blocking_recv().unwrap().payload,
            Payload::Welcome { beat: None, session: 1, .. }
        ));
        assert!(old.blocking_recv().is_none(), "subscribing again ends the old stream");
        let messages = [new.blocking_recv().unwrap(), new.blocking_recv().unwrap()];
        assert!(matches!(*messages[1].payload, Payload::Push(Push::Host { .. })));
        assert!(messages[0].seq < messages[1].seq && messages.iter().all(|message| message.epoch == 9));
    }

    #[test]
    fn a_node_that_does_not_read_is_disconnected() {
        let mut streams = Streams::new(9, Arc::new(drop));
        let mut messages = open(&mut streams, 1);
        for _ in 0..QUEUED_MESSAGES {
            host(&mut streams);
        }
        let mut delivered = 0;
        while messages.blocking_recv().is_some() {
            delivered += 1;
        }
        assert_eq!(delivered, QUEUED_MESSAGES);
    }

    #[test]
    fn a_refused_node_receives_the_reason_before_its_stream_ends() {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&logged);
        let mut streams = Streams::new(9, Arc::new(move |line| lines.lock().unwrap().push(line.to_string())));
        let mut messages = open(&mut streams, 1);
        let reason = job::Refusal::Differs { point: "x".into() };
        let name = NodeName { rank: None, host: "vm".into(), address: "10.0.0.2".into(), node_id: node() };
        assert_eq!(streams.carry_out(Effect::Refuse { node: node(), name, reason }), None);
        let logged = logged.lock().unwrap();
        assert!(logged[0].starts_with("rejected a node (vm, 10.0.0.2): x; "), "{logged:?}");
        let _welcome = messages.blocking_recv().unwrap();
        assert!(
            matches!(&*messages.blocking_recv().unwrap().payload, Payload::Push(Push::Refused { reason }) if reason.starts_with('x'))
        );
        assert!(messages.blocking_recv().is_none());
    }
}
