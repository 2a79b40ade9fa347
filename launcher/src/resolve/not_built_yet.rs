//! What can be asked for and is not done in this release. Deleted as it is built.

use crate::{
    cli::{Cli, Said},
    options::Flag,
    resolve::checks::Checks,
};

/// Something this release refuses to pretend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBuiltYet {
    #[error("`{said}` is not built yet: this release checks no nodes before it starts workers; leave it out")]
    Check { said: Said },
}

pub(super) fn refuse(cli: &Cli, checks: &Checks) -> Result<(), NotBuiltYet> {
    if checks.network || checks.comm_perf {
        let switch = [Flag::NetworkCheck, Flag::CommPerfTest].into_iter().find(|flag| cli.is_on(*flag));
        let flag =
            switch.unwrap_or(if cli.is_given(Flag::Precheck) { Flag::Precheck } else { Flag::AutoConfig });
        return Err(NotBuiltYet::Check { said: cli.said(flag) });
    }
    Ok(())
}
