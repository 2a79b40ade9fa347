//! A share of an accelerator that several containers have between them (gpushare): what workers get to
//! know of it, and what is enforced.

use std::{ffi::OsString, fs, path::Path};

use diagnosis::gpus::share::{PART, Share, ShareTerms, VISIBLE, WHOLE};

use crate::{
    accelerators::Devices, cli::Cli, environment::Environment, host::Host, invalid::Invalid, options::Flag,
};

/// Frameworks that take a fraction of a device's memory: JAX and Paddle. `PyTorch` takes one by a call only
/// (`torch.cuda.set_per_process_memory_fraction`), for which a script may read ours.
const FRACTIONS: [&str; 3] =
    ["DLROVER_GPU_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "FLAGS_fraction_of_gpu_memory_to_use"];

/// What `/proc/self/ns/pid` is in the host's own namespace of process numbers: the kernel makes that one first, with a
/// number that is part of its interface (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const HOSTS_NUMBERS: &str = "pid:[4026531836]";

/// What follows from a share.
#[derive(Debug, Default)]
pub(super) struct GpuShare {
    pub(super) terms: Option<ShareTerms>,
    /// For the workers, over the launcher's own environment.
    pub(super) variables: Vec<(OsString, OsString)>,
}

/// Reads this container's share of an accelerator. A node without one has none of it.
///
/// # Errors
/// When the plugin found no room, or its values contradict each other.
pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    devices: &Devices<'_>,
    workers: u32,
    notices: &mut Vec<String>,
) -> Result<GpuShare, Invalid> {
    let text = |name: &str| env.get_filled(name).map(|value| value.to_string_lossy().into_owned());
    let enforces = cli.is_on(Flag::GpuMemEnforce);
    let Some(share) = Share::read(text)? else {
        if enforces {
            let missing = if text(PART).is_none() { PART } else { WHOLE };
            notices.push(format!(
                "{} is ignored: this container has no share of an accelerator ({missing} is not set)",
                cli.given(Flag::GpuMemEnforce)
            ));
        }
        return Ok(GpuShare::default());
    };
    let may_kill = enforces && has_hosts_numbers(host.root());
    if enforces && !may_kill {
        notices.push(format!(
            "{} is not enforced: the driver reports process ids of the host, and this container has a PID \
             namespace of its own, so the same id may belong to a worker here and to an unrelated process on the \
             host; set hostPID: true in the pod spec",
            cli.given(Flag::GpuMemEnforce)
        ));
    }
    let fraction = share.fraction_of_each(workers);
    let unset = FRACTIONS.iter().filter(|name| env.get(name).is_none());
    let mut variables: Vec<(OsString, OsString)> =
        unset.map(|name| (name.into(), fraction.to_string().into())).collect();
    // A container that shows all devices leaves it to the program to take its own.
    let shows_all = text(VISIBLE).is_some_and(|visible| visible == "all");
    let present = devices.present();
    if shows_all && present.len() > 1 && env.get("CUDA_VISIBLE_DEVICES").is_none() {
        let uuid = present.get(share.device as usize).and_then(|device| device.uuid.clone());
        if uuid.is_none() {
            // The plugin counts places on the bus, CUDA by itself does not.
            variables.push(("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into()));
        }
        let device = uuid.unwrap_or_else(|| share.device.to_string());
        variables.push(("CUDA_VISIBLE_DEVICES".into(), device.into()));
    }
    let each = if workers > 1 {
        format!(", {fraction} of the accelerator's memory for each of {workers} workers")
    } else {
        String::new()
    };
    notices.push(format!(
        "this container has {} of {} units of accelerator {}{each}; the GPU share plugin does not enforce the \
         share, {}",
        share.part,
        share.whole,
        share.device,
        match (may_kill, enforces) {
            (true, _) => "but this launcher kills a worker that uses over 110 % of its share",
            (false, true) => "and neither does this launcher",
            (false, false) => "see --gpu-mem-enforce",
        }
    ));
    if workers > 1 {
        notices.push(
            "NCCL does not support two ranks on one device (it reports `Duplicate GPU detected`): use gloo, or one worker for each device"
                .to_owned(),
        );
    }
    Ok(GpuShare { terms: Some(ShareTerms { share, workers, enforces: may_kill }), variables })
}

/// Whether process numbers mean the same here as on the host. An unknown namespace is not the host's.
fn has_hosts_numbers(root: &Path) -> bool {
    fs::read_link(root.join("proc/self/ns/pid")).is_ok_and(|namespace| namespace == Path::new(HOSTS_NUMBERS))
}
