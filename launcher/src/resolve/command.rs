//! The command of a worker.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use agent::WorkerCommand;

use crate::{
    cli::Cli,
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::{Flag, OPTIONS},
};

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
        notices.push(
            "--run-path: the script is started as a file, in a Python interpreter of its own".to_owned(),
        );
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
    if !is_module {
        check_script(cli, env, host, argv.first().map(Path::new))?;
    }
    warn_of_misplaced(cli, notices);
    argv.push(cli.script.clone());
    argv.extend(cli.script_args.iter().cloned());
    Ok(WorkerCommand { argv, title: cli.script.to_string_lossy().into_owned() })
}

/// Refuses a script or program that cannot be run, once and before other nodes wait for this one.
fn check_script(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    python: Option<&Path>,
) -> Result<(), Invalid> {
    let script = Path::new(&cli.script);
    let name = cli.script.as_bytes();
    // `$local_rank` is known for each worker only; `-` is standard input.
    if name.contains(&b'$') || name == b"-" {
        return Ok(());
    }
    let cannot = |why, remedy| Err(Invalid::Script { path: script.to_owned(), why, remedy });
    match python {
        // A wrapper of Python (PYTHON_EXEC) may see other files.
        Some(python) if !is_python(python) => Ok(()),
        Some(_) => match host.may(script, false) {
            Err(why) => {
                cannot(why, "give the path of a Python script that this user may read (for a module, use -m)")
            }
            Ok(()) => Ok(()),
        },
        None if name.contains(&b'/') => match host.may(script, true) {
            Err(why) => cannot(why, "give the path of a program that this user may execute"),
            Ok(()) => Ok(()),
        },
        None => {
            let path = env.get("PATH").unwrap_or("/bin:/usr/bin".as_ref());
            let is_there =
                std::env::split_paths(path).any(|folder| host.may(&folder.join(script), true).is_ok());
            if is_there { Ok(()) } else { Err(Invalid::NotOnPath { path: script.to_owned() }) }
        }
    }
}

fn is_python(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"))
}

/// Options that many scripts have too.
const OF_SCRIPTS: &[Flag] = &[
    Flag::Help,
    Flag::Version,
    Flag::Role,
    Flag::Module,
    Flag::LogDir,
    Flag::Tee,
    Flag::Accelerator,
    Flag::NodeRank,
    Flag::MasterAddr,
    Flag::MasterPort,
];

/// `train.py --nproc-per-node=2` gives the option to the script. More often than not that is a mistake.
fn warn_of_misplaced(cli: &Cli, notices: &mut Vec<String>) {
    let is_ours = |word: &&OsString| {
        let name =
            word.as_bytes().strip_prefix(b"--").and_then(|name| name.split(|byte| *byte == b'=').next());
        let spec = name.and_then(|name| OPTIONS.iter().find(|spec| spec.is_named(name)));
        // When it is on both sides, that is intended.
        spec.is_some_and(|spec| !OF_SCRIPTS.contains(&spec.flag) && !cli.is_on_the_line(spec.flag))
    };
    let words = cli.script_args.iter().take_while(|word| *word != "--").filter(is_ours);
    let words: Vec<String> = words.map(|word| format!("`{}`", word.to_string_lossy())).collect();
    if !words.is_empty() {
        notices.push(format!(
            "{} after the script {} to the script; put options of dlrover-run before it",
            words.join(", "),
            if words.len() == 1 { "goes" } else { "go" }
        ));
    }
}

/// A program by its name.
pub(super) fn on_path(name: &str, env: Environment<'_>, host: &dyn Host) -> Option<PathBuf> {
    // The default PATH of execvp and Python.
    let path = env.get("PATH").unwrap_or("/bin:/usr/bin".as_ref());
    // An empty entry is the current directory, from where no program should come unasked.
    let mut folders = std::env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty());
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| host.is_program(path)))
}

/// The Python of the workers: `PYTHON_EXEC`, the one installed with us, the active virtual
/// environment's, or the first on PATH.
fn python(env: Environment<'_>, host: &dyn Host) -> Result<PathBuf, Invalid> {
    if let Some(given) = env.get_filled("PYTHON_EXEC") {
        return Ok(given.into());
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
