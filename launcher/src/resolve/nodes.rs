//! How many nodes take part, and how many workers this one starts.

use crate::{
    accelerators::Devices,
    cli::{Cli, Given},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::Flag,
    python_number,
    resolve::{gang, nproc},
};

/// The size of the job, in nodes and in workers of this node.
#[derive(Debug, Clone)]
pub(crate) struct Nodes {
    /// Fewest nodes, at least 1.
    pub(crate) min: u32,
    /// Most nodes, at least `min`.
    pub(crate) max: u32,
    /// Workers of this node.
    pub(crate) local_world_size: u32,
    /// `--auto-config` switches the network check on from 4 nodes on.
    pub(crate) wants_network_check: bool,
}

/// From 4 nodes on `--auto-config` also checks the network, as dlrover (`training.py`, `auto_configure_params`).
const NODES_WORTH_A_CHECK: u32 = 4;

pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    devices: &Devices<'_>,
    notices: &mut Vec<String>,
) -> Result<Nodes, Invalid> {
    let mut given = cli.given(Flag::Nnodes);
    let (mut min, mut max) = range(cli)?;
    let auto = cli.is_on(Flag::AutoConfig);
    if auto && let Some(value) = env.get_filled("NODE_NUM") {
        given = Given::in_variable("NODE_NUM", value);
        let number =
            value.to_str().and_then(python_number::int).and_then(|number| u32::try_from(number).ok());
        min = number.filter(|number| *number > 0).ok_or_else(|| Invalid::NodeNum { given: given.clone() })?;
        max = min;
    }
    let is_standalone = cli.is_on(Flag::Standalone);
    if !auto && !cli.is_given(Flag::Nnodes) && !is_standalone {
        let has_master = env.get_filled("DLROVER_MASTER_ADDR").is_some();
        let has_endpoint = !cli.text(Flag::RdzvEndpoint)?.trim().is_empty() || cli.is_given(Flag::MasterAddr);
        let node_num = env.get_filled("NODE_NUM").and_then(|value| {
            value.to_str().and_then(python_number::int).and_then(|number| u32::try_from(number).ok())
        });
        let node_num = node_num.filter(|number| *number > 1);
        let gang = if has_master || has_endpoint { gang::min_nodes(env)? } else { None };
        match (gang, node_num) {
            (Some((gang, by)), _) => {
                min = gang;
                max = gang.max(node_num.unwrap_or(gang));
                notices.push(format!("`{by}`: --nnodes is not given and becomes {}", shown(min, max)));
                given = by;
            }
            (None, Some(nodes)) if has_master => notices.push(format!(
                "`NODE_NUM={nodes}`, but --nnodes is not given: this job has only 1 node; give --nnodes={nodes} for \
                 all of them"
            )),
            (None, _) => {}
        }
    }
    if is_standalone && max > 1 {
        if min > 1 {
            return Err(Invalid::StandaloneIsOneNode { given });
        }
        // No one else can ever join, so waiting for more would be waiting for nothing.
        notices.push(format!("--standalone runs on this node alone: `{given}` becomes 1 node"));
        max = 1;
    }
    let found = if auto { devices.visible(env).len() } else { 0 };
    let local_world_size = match u32::try_from(found) {
        Ok(found @ 1..) => found,
        _ => nproc::local_world_size(cli, env, host, devices)?,
    };
    if auto {
        notices.push(format!(
            "--auto-config: {}, {} on this node",
            diagnosis::counted::counted(max, "node"),
            diagnosis::counted::counted(local_world_size, "worker")
        ));
    }
    if let Some(unit) = cli.int(Flag::NodeUnit) {
        if unit < 1 {
            return Err(Invalid::OutOfRange {
                given: cli.given(Flag::NodeUnit),
                range: "a number of nodes, at least 1",
            });
        }
        if unit > i64::from(max) {
            return Err(Invalid::NodeUnit { given: cli.given(Flag::NodeUnit), nodes: max });
        }
    }
    Ok(Nodes { min, max, local_world_size, wants_network_check: auto && min >= NODES_WORTH_A_CHECK })
}

fn shown(min: u32, max: u32) -> String {
    if min == max { min.to_string() } else { format!("{min}:{max}") }
}

/// `--nnodes`: N or MIN:MAX.
fn range(cli: &Cli) -> Result<(u32, u32), Invalid> {
    let text = cli.text(Flag::Nnodes)?;
    let given = || cli.given(Flag::Nnodes);
    let number = |text: &str| python_number::int(text).ok_or_else(|| Invalid::Nnodes { given: given() });
    let (min, max) = match text.split_once(':') {
        None => {
            let nodes = number(text)?;
            (nodes, nodes)
        }
        // A second colon is in `max`, which is then no number.
        Some((min, max)) => (number(min)?, number(max)?),
    };
    if min < 1 || min > max {
        return Err(Invalid::NodeRange { given: given(), min, max });
    }
    let counted = |nodes: i64| {
        let range = "at most 4294967295 nodes";
        u32::try_from(nodes).map_err(|_| Invalid::OutOfRange { given: given(), range })
    };
    Ok((counted(min)?, counted(max)?))
}
