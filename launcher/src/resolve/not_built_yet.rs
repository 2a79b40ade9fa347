//! What can be asked for and is not done in this release. Deleted, arm by arm, as it is built.

use crate::{
    cli::{Cli, Said},
    environment::Environment,
    options::Flag,
    resolve::{
        checks::Checks,
        meeting::{Place, Rendezvous},
        nodes::Nodes,
    },
};

/// Something this release refuses to pretend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBuiltYet {
    #[error("`{said}` is not built yet: this release checks no nodes before it starts workers; leave it out")]
    Check { said: Said },
    #[error("`{said}` is not built yet: this release runs on one node; use --standalone")]
    Nodes { said: Said },
    #[error("`{said}` is not built yet: this release meets on this node only; use --standalone")]
    Meeting { said: Said },
    #[error(
        "`{said}` is not built yet: this release joins no job master elsewhere; use --standalone to ignore it"
    )]
    Master { said: Said },
}

pub(super) fn refuse(
    cli: &Cli,
    nodes: &Nodes,
    rendezvous: &Rendezvous,
    checks: &Checks,
    env: Environment<'_>,
) -> Result<(), NotBuiltYet> {
    if checks.network || checks.comm_perf {
        let switch = [Flag::NetworkCheck, Flag::CommPerfTest].into_iter().find(|flag| cli.is_on(*flag));
        let flag =
            switch.unwrap_or(if cli.is_given(Flag::Precheck) { Flag::Precheck } else { Flag::AutoConfig });
        return Err(NotBuiltYet::Check { said: cli.said(flag) });
    }
    if nodes.max > 1 {
        return Err(NotBuiltYet::Nodes { said: nodes.said.clone() });
    }
    if !cli.is_on(Flag::Standalone)
        && let Some(addr) = env.get_filled("DLROVER_MASTER_ADDR")
    {
        return Err(NotBuiltYet::Master { said: Said::in_variable("DLROVER_MASTER_ADDR", addr) });
    }
    match &rendezvous.place {
        Place::Elsewhere { said } => Err(NotBuiltYet::Meeting { said: said.clone() }),
        Place::Loopback | Place::Static { .. } => Ok(()),
    }
}
