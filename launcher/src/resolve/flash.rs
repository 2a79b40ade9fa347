//! Checkpoints in memory: how much of this node's memory they may have.

use crate::{cli::Cli, invalid::Invalid, options::Flag};

const MIB: u64 = 1 << 20;

/// The memory in bytes; `None`: the default, which the agent finds out when a worker keeps the first checkpoint.
pub(super) fn memory(cli: &Cli) -> Result<Option<u64>, Invalid> {
    let Some(mib) = cli.int(Flag::FlashCkptMemory) else { return Ok(None) };
    let given = cli.given(Flag::FlashCkptMemory);
    let range =
        "a number of MiB, 0 or more; with 0, saves to disk are written at once and saves to memory fail";
    let mib = u64::try_from(mib).map_err(|_| Invalid::OutOfRange { given, range })?;
    Ok(Some(mib.saturating_mul(MIB)))
}
