//! The master behind its validation: it handles any messages in any order.

use std::{collections::BTreeSet, time::Duration};

use master_proto::{
    convert::{Payload, StreamMessage, sender},
    pb,
};
use prost::Message as _;
use rules::{
    Moment, NodeId, Round,
    job::{Effect, Event, Job},
    job_master::{Input, JobMaster, Output},
    liveness::Timeout,
    push::Push,
    topology::Topology,
};

use crate::{journal, steps, wire};

/// The most messages of one input.
const MAX_STEPS: usize = 200;

/// More turns than there are deadlines at once.
const MAX_TURNS: usize = 16;

const TIMEOUT: Timeout =
    Timeout { reconnect_grace: Duration::from_secs(2), heartbeat_timeout: Some(Duration::from_secs(15)) };

/// Messages of nodes, after validation, to a master: no deadline stays in the past, and a restarted master is the
/// same at any time.
pub(crate) fn job(bytes: &[u8]) {
    let Some((flags, bytes)) = bytes.split_first() else { return };
    let policy = rules::job::Policy {
        has_topology: flags & 1 != 0,
        is_open: flags & 2 != 0,
        host: (flags & 4 != 0).then(|| NodeId("a".to_owned())),
        ..journal::policy()
    };
    let mut world = World {
        master: JobMaster::new(policy, TIMEOUT),
        now: Moment::START,
        subscribed: BTreeSet::new(),
        said: 0,
    };
    for step in steps::of(bytes).take(MAX_STEPS) {
        world.take(step);
    }
}

struct World {
    master: JobMaster,
    now: Moment,
    subscribed: BTreeSet<NodeId>,
    said: u64,
}

impl World {
    fn take(&mut self, step: steps::Step<'_>) {
        self.now = self.now + Duration::from_millis(1) * 2u32.pow(u32::from(step.by % 20));
        match step.kind % 18 {
            10 => self.hear(Input::Deadline),
            11 => {
                self.now = self.master.deadline().unwrap_or(self.now).max(self.now);
                self.hear(Input::Deadline);
            }
            12 => {
                let Ok(beat) = pb::BeatRequest::decode(step.bytes) else { return };
                let Ok(node) = sender(beat.node_id) else { return };
                self.hear(Input::Beat { node, taken_round: beat.taken_round.map(Round) });
            }
            13 => {
                let Ok(text) = std::str::from_utf8(step.bytes) else { return };
                let topology = Topology::parse(text).map_err(|error| error.to_string());
                self.hear(Input::Event(Event::TopologyRead(topology)));
            }
            14 => {
                let known = self.subscribed.iter().nth(usize::from(step.by) % self.subscribed.len().max(1));
                let Some(node) = known.cloned() else { return };
                self.subscribed.remove(&node);
                self.hear(Input::Event(Event::LinkBroken { node }));
            }
            15 => self.start_again(),
            kind => {
                // 10 and 11 are taken.
                let kind = if kind >= 16 { kind - 6 } else { kind };
                let Some(event) = wire::event(kind, step.bytes) else { return };
                match &event {
                    Event::Subscribed { node } => {
                        self.subscribed.insert(node.clone());
                    }
                    Event::FailureDetailed { .. } | Event::CheckpointReported { .. } => {}
                    // The shell takes only these messages of a node without a stream.
                    other if !other.speaker().is_some_and(|node| self.subscribed.contains(node)) => return,
                    _ => {}
                }
                self.hear(Input::Event(event));
            }
        }
    }

    fn hear(&mut self, input: Input) {
        let is_deadline = input == Input::Deadline;
        let output = self.master.handle(self.now, input);
        self.carry_out(output);
        // A master that stood still for minutes finds several deadlines that have passed, and takes one in a turn.
        let mut turns = 0;
        while is_deadline && self.master.deadline().is_some_and(|deadline| deadline <= self.now) {
            turns += 1;
            assert!(
                turns < MAX_TURNS,
                "{:?} stays at {:?}: {:?}",
                self.master.deadline(),
                self.now,
                self.master
            );
            let output = self.master.handle(self.now, Input::Deadline);
            self.carry_out(output);
        }
    }

    /// The master is killed, and restarted with the job from the journal.
    fn start_again(&mut self) {
        let bytes = postcard::to_stdvec(self.master.job()).expect("a job can be kept");
        let job: Job = postcard::from_bytes(&bytes).expect("a job that was kept");
        assert_eq!(&job, self.master.job());
        self.subscribed.clear();
        let (master, output) = JobMaster::restored(job, TIMEOUT, self.now);
        self.master = master;
        self.carry_out(output);
    }

    fn carry_out(&mut self, output: Output) {
        let Output { journal, effects, pending } = output;
        for event in journal {
            let bytes = postcard::to_stdvec(&event).expect("an event can be kept");
            assert_eq!(postcard::from_bytes(&bytes), Ok(event));
        }
        self.say(pending.map(|(pending, _)| Push::Pending(pending)));
        for effect in effects {
            let push = match effect {
                Effect::Push { push, .. } => push,
                Effect::Refuse { reason, .. } => Push::Refused { reason: reason.to_string() },
                Effect::Report(report) => {
                    let document = master::taint_document(&report, "k", 0);
                    let _read: serde_json::Value = serde_json::from_str(&document).expect("a document");
                    assert!(!report.to_string().is_empty());
                    continue;
                }
                Effect::Log(line) => {
                    assert!(!line.to_string().is_empty());
                    continue;
                }
                Effect::Forget { node } | Effect::HangUp { node } => {
                    self.subscribed.remove(&node);
                    continue;
                }
                Effect::ReadTopology
                | Effect::CollectStacks { .. }
                | Effect::JudgeStacks { .. }
                | Effect::ReportHang(_)
                | Effect::Finish { .. } => continue,
            };
            self.say(Some(push));
        }
    }

    /// An agent decodes every message of the master.
    fn say(&mut self, push: Option<Push>) {
        let Some(push) = push else { return };
        self.said += 1;
        let wire = pb::StreamMessage::from(StreamMessage {
            epoch: 1,
            seq: self.said,
            payload: Some(Payload::Push(push)),
        });
        let came = pb::StreamMessage::decode(&wire.encode_to_vec()[..]).expect("our own message");
        assert!(StreamMessage::try_from(came.clone()).is_ok(), "no agent takes {came:?}");
    }
}
