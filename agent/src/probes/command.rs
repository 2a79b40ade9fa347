//! A program of the user's in place of the ring.
pub(super) mod supervisor;
use serde::{Deserialize, Serialize};
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CommandTask {}
