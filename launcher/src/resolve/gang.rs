//! The settings of a cluster's gang scheduler in the environment of its pods: how many must start together, and how
//! long they may take. Defaults of `--nnodes` and of `join_timeout`.

use std::time::Duration;

use crate::{cli::Given, environment::Environment, invalid::Invalid, python_number};

const MIN_AVAILABLE: &str = "GANG_MIN_AVAILABLE";
const SCHEDULE_TIMEOUT: &str = "GANG_SCHEDULE_TIMEOUT";

/// `GANG_MIN_AVAILABLE`: the fewest nodes of the job.
pub(super) fn min_nodes(env: Environment<'_>) -> Result<Option<(u32, Given)>, Invalid> {
    let Some(value) = env.get_filled(MIN_AVAILABLE) else { return Ok(None) };
    let given = Given::in_variable(MIN_AVAILABLE, value);
    let number = value.to_str().and_then(python_number::int).and_then(|number| u32::try_from(number).ok());
    match number.filter(|number| *number > 0) {
        Some(number) => Ok(Some((number, given))),
        None => Err(Invalid::OutOfRange { given, range: "a number of nodes, at least 1" }),
    }
}

/// `GANG_SCHEDULE_TIMEOUT`: whole seconds.
pub(super) fn timeout(env: Environment<'_>) -> Result<Option<Duration>, Invalid> {
    let Some(value) = env.get_filled(SCHEDULE_TIMEOUT) else { return Ok(None) };
    let seconds = value.to_str().and_then(python_number::int).filter(|seconds| *seconds > 0);
    match seconds.and_then(|seconds| u32::try_from(seconds).ok()) {
        Some(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
        None => Err(Invalid::OutOfRange {
            given: Given::in_variable(SCHEDULE_TIMEOUT, value),
            range: "a whole number of seconds, at least 1",
        }),
    }
}
