//! `--gpu-select`: which accelerators workers see, and in which order.

use std::{ffi::OsString, path::Path};

use diagnosis::gpu_topology::GpuRequest;

use crate::{
    accelerators::Devices,
    cli::Cli,
    environment::Environment,
    gpu_choice::{self, Chosen, Select, inventory},
    host::Host,
    invalid::Invalid,
    options::Flag,
    resolve::does_nothing,
};

/// Chooses the accelerators of the workers. When the best set cannot be determined the run starts all the same:
/// a message says so, and workers see what they would have seen without the option.
pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    devices: &Devices<'_>,
    (workers, busy_permille): (u32, u32),
    notices: &mut Vec<String>,
) -> Result<Chosen, Invalid> {
    let given = || cli.given(Flag::GpuSelect);
    let word = cli.text(Flag::GpuSelect)?;
    let select = Select::from_name(word).ok_or_else(|| Invalid::GpuSelect { given: given() })?;
    if !matches!(select, Select::Best(_)) {
        let without_effect = [
            (Flag::GpuSelectOnly, cli.is_on(Flag::GpuSelectOnly)),
            (Flag::GpuTopology, !cli.bytes(Flag::GpuTopology).is_empty()),
        ];
        for (flag, _) in without_effect.into_iter().filter(|(_, is_said)| *is_said) {
            notices.push(does_nothing(cli, flag, "requires --gpu-select=topology or pack"));
        }
    }
    if select == Select::First {
        return Ok(Chosen::default());
    }
    if cli.is_on(Flag::VirtualLocalRank) {
        notices.push(format!(
            "`{}` is ignored: --virtual-local-rank gives each worker the GPU of its place in the list",
            given()
        ));
        return Ok(Chosen::default());
    }
    let wanted = workers as usize;
    let chosen: Result<Chosen, String> = match select {
        Select::First => Ok(Chosen::default()),
        Select::List(entries) => {
            let (gpus, vendor) = inventory::gpus(host, env, devices);
            let listed = gpu_choice::listed(host, env, (&gpus, vendor), &entries, wanted, busy_permille);
            Ok(listed.map_err(|why| Invalid::GpuList { given: given(), why })?)
        }
        Select::Best(objective) => {
            let file = cli.bytes(Flag::GpuTopology);
            let file = (!file.is_empty()).then(|| Path::new(file));
            let request = GpuRequest { objective, wanted, only: cli.is_on(Flag::GpuSelectOnly) };
            inventory::take(host, env, devices, file)
                .map_err(|error| error.to_string())
                .and_then(|inventory| gpu_choice::best(host, env, &inventory, request, busy_permille))
        }
    };
    match chosen {
        Ok(mut chosen) => {
            notices.extend(chosen.messages.drain(..).map(|message| format!("`{}`: {message}", given())));
            Ok(chosen)
        }
        Err(why) => {
            notices.push(format!("`{}` is ignored (as with --gpu-select=first): {why}", given()));
            Ok(Chosen::default())
        }
    }
}

/// Puts the list into the environment of all workers, in place of what was there.
pub(super) fn set_variables(chosen: &Chosen, env: &mut Vec<(OsString, OsString)>) {
    for (name, value) in &chosen.variables {
        env.retain(|(key, _)| key != name);
        env.push((name.into(), value.clone()));
    }
}
