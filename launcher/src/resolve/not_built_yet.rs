//! What can be asked for and is not done in this release. Deleted as it is built.

use crate::{
    cli::{Cli, Said},
    options::Flag,
    resolve::checks::Checks,
};

/// Something this release refuses to pretend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBuiltYet {
    #[error("`{said}` is not built yet: this release looks at no switchbox; leave it out")]
    Switchbox { said: Said },
}

pub(super) fn refuse(cli: &Cli, checks: &Checks) -> Result<(), NotBuiltYet> {
    if checks.switchbox {
        return Err(NotBuiltYet::Switchbox { said: cli.said(Flag::SwitchboxCheck) });
    }
    Ok(())
}
