//! The cases of the `stacks` bench: jobs of real launchers whose ranks wait, and the stacks that are taken of them.

pub mod amount;
mod armed;
mod dump;
mod gaps;
mod hang;
mod interval;
mod job;
mod merge;
mod pause;
mod ran;
mod seen;
mod whole;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub use self::amount::Amount;
use crate::{
    Outcome,
    launcher::{Bench, program},
};

/// What a worker runs, and the package by which it declares progress: the one that is installed with the launcher.
const WORKER: &str = include_str!("stack_dumps/worker.py");
const PACKAGE: &str = include_str!("../../packaging/wheel/python/dlrover_run/__init__.py");

/// The function in which the last rank of a job waits, and that of all others.
const ODD: &str = "next_batch";
const USUAL: &str = "all_reduce";

/// What all cases work with.
#[derive(Debug)]
struct Setup {
    bench: Bench,
    diag: PathBuf,
    /// The peer, if there is one.
    py_spy: Option<PathBuf>,
    python: PathBuf,
    worker: PathBuf,
    amount: Amount,
}

impl Setup {
    fn new(amount: Amount) -> Outcome<Self> {
        let bench = Bench::new()?;
        let py_spy = std::env::var_os("PY_SPY").map(PathBuf::from);
        if let Some(path) = py_spy.as_ref().filter(|path| !path.is_file()) {
            return Err(format!("PY_SPY={} is no file", path.display()).into());
        }
        let scripts = bench.folder.path().join("scripts");
        fs::create_dir_all(scripts.join("dlrover_run"))?;
        fs::write(scripts.join("dlrover_run/__init__.py"), PACKAGE)?;
        let worker = scripts.join("worker.py");
        fs::write(&worker, WORKER)?;
        Ok(Self {
            diag: program("dlrover-diag", "dlrover-diag")?,
            py_spy,
            python: python()?,
            worker,
            amount,
            bench,
        })
    }

    fn about(&self) -> String {
        let version = Command::new(&self.python).arg("-V").output();
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let peer = self.py_spy.as_deref().map_or("no py-spy (name one by PY_SPY=...)".to_owned(), peer);
        format!(
            "{} and {}, {} ranks of {}, {peer}",
            self.bench.ours().display(),
            self.diag.display(),
            self.amount.ranks,
            version.unwrap_or_default()
        )
    }

    /// A directory of the bench that is empty.
    fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let path = self.bench.folder.path().join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }
}

fn peer(py_spy: &Path) -> String {
    let version = Command::new(py_spy).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    format!("compared with {}", version.unwrap_or_else(|_| py_spy.display().to_string()))
}

/// The interpreter itself, and not a script that starts it, as version managers have.
fn python() -> Outcome<PathBuf> {
    let named = std::env::var_os("PYTHON_EXEC").filter(|path| !path.is_empty());
    let named = named.unwrap_or_else(|| "python3".into());
    let ask = ["-c", "import sys; sys.stdout.write(sys.executable)"];
    let output = Command::new(&named).args(ask).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} cannot be run: {error}", named.display()))?;
    let path = PathBuf::from(String::from_utf8(output.stdout)?);
    if path.is_file() { Ok(path) } else { Err(format!("{} names no interpreter", named.display()).into()) }
}

/// Measures and prints.
///
/// # Errors
/// A program fails, a rank is missing in a dump, or a process is left behind.
pub fn measure(amount: Amount) -> Outcome<()> {
    use std::io::Write as _;

    let mut setup = Setup::new(amount)?;
    writeln!(std::io::stdout(), "{}", setup.about())?;
    let has = |case: &str, setup: &Setup| setup.amount.has(case);
    if has("dump", &setup) {
        dump::measure(&mut setup)?;
    }
    if has("merge", &setup) {
        merge::measure(&mut setup)?;
    }
    if has("hang", &setup) {
        hang::measure(&mut setup)?;
    }
    if has("pause", &setup) {
        pause::measure(&mut setup)?;
    }
    if has("armed", &setup) {
        armed::measure(&mut setup)?;
    }
    setup.bench.expect_none_left()
}
