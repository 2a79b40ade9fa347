//! What each worker runs.

use std::path::{Path, PathBuf};

use agent::config::WorkerCommand;

use crate::{cli::Cli, environment::Environment, host::Host, invalid::Invalid, options::Flag};

pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    notices: &mut Vec<String>,
) -> Result<WorkerCommand, Invalid> {
    let run_path = cli.is_on(Flag::RunPath);
    let is_module = cli.is_on(Flag::Module) && !run_path;
    let mut argv = Vec::with_capacity(cli.script_args.len() + 4);
    if run_path {
        // runpy.run_path in a fresh interpreter is what running the file is.
        notices.push("--run-path: the script is started as a file, with a Python of its own".to_owned());
    }
    if run_path || !cli.is_on(Flag::NoPython) {
        argv.push(python(env, host)?.into_os_string());
        argv.push("-u".into());
        if is_module {
            argv.push("-m".into());
        }
    } else if is_module {
        return Err(Invalid::ModuleWithoutPython);
    }
    argv.push(cli.script.clone());
    argv.extend(cli.script_args.iter().cloned());
    Ok(WorkerCommand { argv, title: cli.script.to_string_lossy().into_owned() })
}

/// A program by its name.
pub(super) fn on_path(name: &str, env: Environment<'_>, host: &dyn Host) -> Option<PathBuf> {
    // Without PATH programs are looked for where execvp and Python look then.
    let path = env.get("PATH").unwrap_or("/bin:/usr/bin".as_ref());
    // An empty entry is the current folder, from where no program should come unasked.
    let mut folders = std::env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty());
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| host.is_program(path)))
}

/// The Python of the workers: the one that is said, the one installed with us, the active virtual
/// environment's, and then whatever PATH has.
fn python(env: Environment<'_>, host: &dyn Host) -> Result<PathBuf, Invalid> {
    if let Some(said) = env.get_filled("PYTHON_EXEC") {
        return Ok(said.into());
    }
    let own_dir = host.own_dir();
    let named = |folder: &Path, name: &str| Some(folder.join(name)).filter(|path| host.is_program(path));
    let either = |folder: &Path| named(folder, "python3").or_else(|| named(folder, "python"));
    if let Some(python) = own_dir.as_deref().and_then(either) {
        return Ok(python);
    }
    let active = env.get_filled("VIRTUAL_ENV").map(|folder| Path::new(folder).join("bin"));
    if let Some(python) = active.as_deref().and_then(|bin| named(bin, "python").or_else(|| either(bin))) {
        return Ok(python);
    }
    on_path("python3", env, host).or_else(|| on_path("python", env, host)).ok_or_else(|| Invalid::NoPython {
        beside: own_dir.as_deref().map_or("this program".into(), Path::to_string_lossy).into_owned(),
    })
}
