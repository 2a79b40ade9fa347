//! One connection: what it said in `hello`, and the request that it waits for.

use std::collections::VecDeque;

use super::api::{CheckId, Process, SlotId};
use crate::{
    Moment,
    manifest::Candidate,
    message::{Dir, Hello, Refusal, Request, Role, ShardId},
};

/// Requests of a connection that may wait behind one.
pub(super) const MAX_BACKLOG: usize = 32;

/// What a load waits for.
#[derive(Debug)]
pub(super) enum Loading {
    /// Nothing was looked at yet.
    Start,
    /// The header of a slot that is pinned already.
    Header { slot: SlotId, step: u64, reason: String },
    /// A step that is being written: it is decided which one all ranks restore.
    Fate { pending: u64 },
    /// The documents of the directory are being read; `reading` is the number of that read.
    Folder { reading: u64, exactly: Option<u64>, at_most: Option<u64>, reason: String },
    /// Files of the first of these.
    Files { check: CheckId, left: VecDeque<Candidate>, passed: Passed, reason: String },
}

/// Steps that are passed over.
#[derive(Debug, Default)]
pub(super) struct Passed {
    pub(super) texts: Vec<String>,
    /// The step that the job has named for all ranks.
    pub(super) named: Option<u64>,
    /// Something kept this node from loading it that other nodes need not have met.
    pub(super) is_of_this_node: bool,
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) enum Pending {
    Hello {
        hello: Box<Hello>,
        reading: Option<u64>,
        until: Moment,
    },
    Alloc {
        bytes: u64,
        layout_id: u64,
        slots: Option<u32>,
    },
    Begin {
        step: u64,
        layout_id: u64,
        until: Moment,
    },
    Load {
        exactly: Option<u64>,
        loading: Loading,
        until: Moment,
    },
    /// With `follows`, a newer step counts as well when it took the place of this one.
    Wait {
        step: Option<u64>,
        follows: bool,
        until: Moment,
    },
    WrittenAlone {
        run_id: String,
        dir: Dir,
        step: u64,
        round: Option<u32>,
        until: Moment,
    },
}

impl Pending {
    pub(super) const fn until(&self) -> Option<Moment> {
        match self {
            Self::Hello { until, .. }
            | Self::Begin { until, .. }
            | Self::Load { until, .. }
            | Self::Wait { until, .. }
            | Self::WrittenAlone { until, .. } => Some(*until),
            Self::Alloc { .. } => None,
        }
    }
}

/// What a client is, once it said hello.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) hello: Hello,
    pub(super) shard: ShardId,
    pub(super) round: u32,
    /// It has loaded, or saved, in this round: what all ranks restore together is behind it.
    pub(super) is_under_way: bool,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) process: Process,
    pub(super) identity: Option<Identity>,
    pub(super) pending: Option<Pending>,
    pub(super) backlog: VecDeque<Result<Request, Refusal>>,
    /// The connection has ended; what was sent before still counts.
    pub(super) is_gone: bool,
}

impl Client {
    pub(super) const fn new(process: Process) -> Self {
        Self { process, identity: None, pending: None, backlog: VecDeque::new(), is_gone: false }
    }

    pub(super) fn is_writer(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.hello.role == Role::Writer)
    }
}
