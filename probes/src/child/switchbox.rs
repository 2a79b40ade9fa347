//! In the probe's process: the supervisor of a switchbox check, and the programs that measure a pair.

pub(crate) mod call;
pub(crate) mod contract;
mod copy;
#[cfg(feature = "cuda")]
mod cuda;
mod host;
pub(crate) mod layout;
mod measure;
pub(crate) mod mxom;
pub(super) mod supervisor;

pub(super) use self::copy::run as run_copy;
