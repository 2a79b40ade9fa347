//! The recipes of docs/recipes.md: what the files of `examples/` start, started on this host with the environment that
//! it would have.
//!
//! A test reads commands and variables from the file itself. It replaces what one host cannot have: names of hosts
//! become addresses of this one, ports free ones. Programs of clusters (`srun`, `scontrol`, `ssh`) are those in
//! `fakes/`, which refuse what they do not know. `train.py` is `trainers/recipe.py`, in which the ranks train together.

mod compose;
mod kubeflow;
mod kubernetes;
mod slurm;
mod ssh;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use support::{
    cluster::Programs,
    launch::{Launch, Launcher, Outcome, Running},
    programs, tests_dir, trainer, wait_for,
};
use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

/// The variables of a worker.
type Variables = BTreeMap<String, String>;

/// The directory in which a job is started, the same for all of its nodes.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("recipe-").tempdir().expect("a temporary directory");
        let link =
            |from: PathBuf, name: &str| symlink(from, dir.path().join(name)).expect("our own directory");
        let Programs { launcher, master } = programs!();
        fs::create_dir(dir.path().join("bin")).expect("our own directory");
        link(launcher.program.into(), "bin/dlrover-run");
        link(master.into(), "bin/dlrover-master");
        link(trainer("recipe.py"), "train.py");
        Self { dir }
    }

    /// A command line of a recipe, with the programs under test and the fakes on its PATH.
    fn line<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Launch {
        let mut words = words.into_iter().map(Into::<OsString>::into);
        let program = words.next().expect("a program");
        let fakes = tests_dir().join("recipes/fakes");
        let mut path = vec![self.dir.path().join("bin"), fakes];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        Launch::new(Launcher { program, is_torchrun: false })
            .without_script()
            .flags(words)
            .cwd(self.dir.path())
            .env("PATH", std::env::join_paths(path).expect("no colon in it"))
            .env("PROBE_OUT", self.dir.path())
            .env("TMPDIR", self.dir.path())
    }

    /// The variables of every worker that ever ran, by round and rank.
    fn workers(&self) -> BTreeMap<(u32, u32), Variables> {
        let files = fs::read_dir(self.dir.path()).expect("our own directory").flatten();
        let workers = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let (rank, round) = name.strip_suffix(".env")?.split_once('.')?;
            let text = fs::read_to_string(file.path()).expect("it is written in one step");
            let variables = serde_json::from_str(&text).expect("it is JSON");
            Some(((round.parse().ok()?, rank.parse().ok()?), variables))
        });
        workers.collect()
    }

    /// Waits until this many workers have run.
    fn await_workers(&self, run: &Running, count: usize) {
        wait_for("workers", || {
            assert!(self.workers().len() <= count, "{}", run.stderr());
            (self.workers().len() == count).then_some(())
        });
    }

    /// Workers of one round, two on each of these nodes, in the order of the nodes' ranks.
    #[track_caller]
    fn expect_one_round(&self, nodes: u32) {
        let workers = self.workers();
        let ranks: Vec<u32> = workers.keys().map(|(_, rank)| *rank).collect();
        assert_eq!(ranks, (0..2 * nodes).collect::<Vec<_>>(), "{workers:#?}");
        for ((_, rank), variables) in workers {
            let expected = [
                ("RANK", rank),
                ("LOCAL_RANK", rank % 2),
                ("GROUP_RANK", rank / 2),
                ("WORLD_SIZE", 2 * nodes),
                ("LOCAL_WORLD_SIZE", 2),
            ];
            for (name, value) in expected {
                assert_eq!(variables.get(name), Some(&value.to_string()), "{name} of rank {rank}");
            }
        }
    }
}

/// The rank of each node is what is made of this variable of the scheduler.
#[track_caller]
fn expect_ranks_by(place: &Place, variable: &str, rank: impl Fn(&str) -> String) {
    for worker in place.workers().values() {
        let value = worker.get(variable).unwrap_or_else(|| panic!("no {variable}: {worker:#?}"));
        assert_eq!(worker["GROUP_RANK"], rank(value), "{variable}={value}");
    }
}

/// Every line ends with exit code 0, and one of them says that all ranks have trained together.
#[track_caller]
fn trained(runs: impl IntoIterator<Item = Running>, ranks: u32) {
    let ends: Vec<Outcome> = runs.into_iter().map(|run| run.finish().expect_code(0)).collect();
    let said = format!("all {ranks} ranks hold the same weights");
    assert!(ends.iter().any(|end| end.stdout.contains(&said)), "{ends:#?}");
}

/// The path of a file of `examples/`.
fn example(name: &str) -> PathBuf {
    tests_dir().parent().expect("the repository").join("examples").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of `examples/` in which these texts are replaced; each is there.
fn replaced(name: &str, pairs: &[(&str, &str)]) -> Vec<Yaml> {
    let mut text = read(&example(name));
    for (from, to) in pairs {
        assert!(text.contains(from), "{name} has no {from}");
        text = text.replace(from, to);
    }
    YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The text of a scalar.
#[track_caller]
fn text(yaml: &Yaml) -> String {
    match yaml {
        Yaml::String(text) => text.clone(),
        Yaml::Integer(number) => number.to_string(),
        other => panic!("neither text nor a number: {other:?}"),
    }
}

#[track_caller]
fn number(yaml: &Yaml) -> u32 {
    let number = yaml.as_i64().and_then(|number| number.try_into().ok());
    number.unwrap_or_else(|| panic!("not a number: {yaml:?}"))
}

#[track_caller]
fn words(yaml: &Yaml) -> Vec<String> {
    yaml.as_vec().unwrap_or_else(|| panic!("not a list: {yaml:?}")).iter().map(text).collect()
}

/// The value of an option in a command.
#[track_caller]
fn option<'a>(command: &'a [String], name: &str) -> &'a str {
    let words = command.iter().flat_map(|word| word.split_whitespace());
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next().unwrap_or_else(|| panic!("{command:?} has no {name}"))
}
