//! What is said between the client in a worker and the saver, and between the agent and the saver: one JSON object a
//! line. Both are written by programs of other versions, and the client's by anything that runs in a worker: a line that
//! cannot be used is answered with an error that names the value, and nothing else happens.

mod agent;
mod dir;
mod limits;
mod reply;
mod request;
mod shard;
#[cfg(test)]
mod tests;

pub use agent::{FromSaver, Level, LineError, Progress, ToSaver};
pub use dir::{Dir, PathError, absolute};
pub use limits::*;
pub use reply::{ErrorCode, Refusal, Reply, ShardStatus, SlotOffer, SlotStatus, Source, Status, WaitState};
pub use request::{Hello, Request, RequestError, Wish};
pub use shard::{
    Endpoint, Fetch, FetchSource, FetchedStep, FileSum, Format, Keep, RestorePoint, RestoreSource, Role,
    ShardFile, ShardId, ShardState, Storage,
};

/// The version of the client's protocol: `v` of `hello` and `welcome`. A field that changes its meaning raises it, a new
/// field does not: fields that a program does not know are ignored.
pub const VERSION: u32 = 1;
