//! `--nproc-per-node`: a number, or one worker for each CPU or accelerator.

use crate::{
    accelerators::Devices, cli::Cli, environment::Environment, host::Host, invalid::Invalid, options::Flag,
    python_number,
};

/// How many workers this node starts.
///
/// # Errors
///
/// When the value is neither a number from 1 on nor a known name, or it counts devices and there are none.
pub(crate) fn local_world_size(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    devices: &Devices<'_>,
) -> Result<u32, Invalid> {
    let given = || cli.given(Flag::NprocPerNode);
    let text = cli.text(Flag::NprocPerNode)?;
    // A number first, as torchrun: so ` 2` and `1_0` are numbers.
    if let Some(number) = python_number::int(text) {
        return u32::try_from(number).ok().filter(|number| (1..=MAX_WORKERS).contains(number)).ok_or_else(
            || Invalid::OutOfRange {
                given: given(),
                range: "a number of workers per node (nproc_per_node) from 1 to 65536",
            },
        );
    }
    let accelerators = || devices.visible(env).len();
    let count = match text {
        // The affinity mask and not the number of CPUs or the cgroup's quota, as torchrun.
        "cpu" => host.allowed_cpus().len(),
        "gpu" => accelerators(),
        "auto" => match accelerators() {
            0 => host.allowed_cpus().len(),
            some => some,
        },
        "xpu" => return Err(Invalid::Uncountable { given: given() }),
        _ => return Err(Invalid::Nproc { given: given(), value: text.to_owned() }),
    };
    match u32::try_from(count) {
        Ok(0) | Err(_) => Err(Invalid::NoDevices { given: given() }),
        Ok(count) => Ok(count),
    }
}

/// Far beyond any node, and below what would exhaust memory before the first worker starts.
const MAX_WORKERS: u32 = 65_536;
