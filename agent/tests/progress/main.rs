//! Workers that tell their progress, with real shells and interpreters.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod client;
mod counting;
mod files;
mod prelude;

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use agent::{ProgressFiles, Sample};
use rules::LocalRank;

/// The directory of the modules that the scripts import.
fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/progress/packages")
}

/// `python3` and every version that pyenv has installed, those included that are too old for a prelude.
fn interpreters() -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|root| fs::read_dir(root.join("versions")).ok());
    let installed = versions.into_iter().flatten().map(|entry| entry.unwrap().path().join("bin/python"));
    let others = ["/usr/bin/python3".into()].into_iter().chain(installed);
    ["python3".into()].into_iter().chain(others.filter(|python: &PathBuf| python.exists())).collect()
}

/// Those that the prelude counts in.
fn counting_interpreters() -> Vec<PathBuf> {
    let counts = |python: &PathBuf| {
        let check = "import sys; sys.exit(sys.version_info < (3, 8))";
        Command::new(python).args(["-c", check]).status().unwrap().success()
    };
    interpreters().into_iter().filter(counts).collect()
}

/// A worker of local rank 0.
struct Worker<'a> {
    files: &'a ProgressFiles,
    auto: bool,
    pythonpath: Option<OsString>,
    extra: Vec<(&'static str, &'a str)>,
}

impl<'a> Worker<'a> {
    fn new(files: &'a ProgressFiles, auto: bool) -> Self {
        Self { files, auto, pythonpath: Some(packages().into()), extra: Vec::new() }
    }

    /// The command with the environment as the launcher makes it.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PYTHON"))
        {
            command.env_remove(name);
        }
        // Sources beside the tests stay as they are.
        command.env("PYTHONDONTWRITEBYTECODE", "1").envs(self.extra.iter().copied());
        command.envs(self.pythonpath.iter().map(|path| ("PYTHONPATH", path)));
        command.envs(self.files.environment(LocalRank(0), self.auto, self.pythonpath.as_deref()));
        command
    }

    fn run(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().unwrap()
    }
}

fn only(files: &mut ProgressFiles) -> Sample {
    let [sample] = <[Sample; 1]>::try_from(files.sample()).unwrap();
    sample
}

/// Succeeds without a word on stderr.
#[track_caller]
fn quiet(output: &Output) {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
