//! The template of warm workers: an interpreter that has imported what workers import, and forks one when it is asked.
//! What it does is in the Python files beside this one; the guard starts it and forks from it; when that is done is
//! decided in [`rules::worker_group`]. Here is what it is made of.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
};

use processes::memory_file::{memory_file, sealed_memory_file};
use rules::warm::WarmStart;

use crate::{
    guard::frame::{TemplateSpec, WorkerSpec},
    progress::{path_of, template_zip, with_entry, without_entry},
};

/// The longest list of modules that is read: far more than any program imports.
const MAX_LIST: usize = 4 << 20;

/// The configuration of warm workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmConfig {
    /// The first workers that are forked.
    pub when: WarmStart,
    /// What the template imports; `None`: what a worker has imported after its first step.
    pub modules: Option<Vec<OsString>>,
    /// The template's share of memory, at most.
    pub limit_kib: u64,
}

/// What templates of this run are made of.
#[derive(Debug)]
pub(crate) struct WarmSource {
    config: Option<WarmConfig>,
    files: Option<Files>,
    /// Command and environment of local rank 0.
    worker: Option<WorkerSpec>,
    /// The variables whose values differ between the workers of this node.
    differing: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Files {
    /// What Python finds as its `sitecustomize`.
    prelude: File,
    /// Where local rank 0 leaves its modules, and what its script has changed in the environment.
    list: File,
}

impl WarmSource {
    pub(crate) fn new(config: Option<WarmConfig>) -> Self {
        // Without room for them, there is no template.
        let files = config.as_ref().and_then(|_| Files::new().ok());
        Self { config, files, worker: None, differing: Vec::new() }
    }

    /// The variable by which local rank 0 is asked for its modules.
    pub(crate) fn variable(&self) -> Option<(&'static str, OsString)> {
        let is_learned = self.config.as_ref()?.modules.is_none();
        let files = self.files.as_ref().filter(|_| is_learned)?;
        Some(("DLROVER_WARM_LIST", path_of(&files.list).into()))
    }

    /// The workers as they were prepared, local rank 0 first.
    pub(crate) fn prepared<'a>(&mut self, workers: impl Iterator<Item = &'a WorkerSpec>) {
        if self.config.is_none() {
            return;
        }
        let workers: Vec<&WorkerSpec> = workers.collect();
        if let Some(first) = workers.first() {
            self.worker = Some((*first).clone());
            self.differing = differing(&workers);
        }
    }

    /// The template to start. `prelude` is the entry of `PYTHONPATH` by which workers find theirs.
    pub(crate) fn template(&self, prelude: Option<String>, is_idle: bool) -> Option<TemplateSpec> {
        let (config, files, worker) = (self.config.as_ref()?, self.files.as_ref()?, self.worker.as_ref()?);
        let modules = match &config.modules {
            Some(modules) => modules.iter().map(|name| name.as_bytes().to_vec()).collect(),
            None => files.modules(),
        };
        Some(TemplateSpec {
            argv: worker.argv.clone(),
            env: with_prelude(
                &worker.env,
                path_of(&files.prelude).as_bytes(),
                prelude.as_deref().map(str::as_bytes),
            ),
            modules,
            cpus: worker.cpus.clone(),
            is_learned: config.modules.is_none(),
            limit_kib: config.limit_kib,
            is_idle,
            worker_prelude: prelude.unwrap_or_default().into_bytes(),
            differing: self.differing.clone(),
        })
    }
}

impl Files {
    fn new() -> io::Result<Self> {
        let prelude = sealed_memory_file(c"dlrover-template", &template_zip(), true)?;
        Ok(Self { prelude, list: memory_file(c"dlrover-warm-list")? })
    }

    /// What the last worker that has made a step has left: entries that the template understands.
    fn modules(&self) -> Vec<Vec<u8>> {
        let length = self.list.metadata().map_or(0, |file| file.len()).min(MAX_LIST as u64);
        let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
        let read = self.list.read_at(&mut text, 0).unwrap_or(0);
        // A list that is cut off is none.
        let whole = text[..read].split(|byte| *byte == 0).filter(|_| read < MAX_LIST);
        whole.filter(|entry| !entry.is_empty()).map(<[u8]>::to_vec).collect()
    }
}

/// The names of the variables that not all of these workers have with the same value.
fn differing(workers: &[&WorkerSpec]) -> Vec<Vec<u8>> {
    let mut values: BTreeMap<&[u8], Vec<&[u8]>> = BTreeMap::new();
    for (name, value) in workers.iter().flat_map(|worker| &worker.env) {
        values.entry(name).or_default().push(value);
    }
    let is_same =
        |values: &[&[u8]]| values.len() == workers.len() && values.windows(2).all(|two| two[0] == two[1]);
    values.into_iter().filter(|(_, values)| !is_same(values)).map(|(name, _)| name.to_vec()).collect()
}

/// The environment with `entry` as the first one of `PYTHONPATH`, in the place of `old`.
fn with_prelude(env: &[(Vec<u8>, Vec<u8>)], entry: &[u8], old: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut env = env.to_vec();
    match env.iter_mut().find(|(name, _)| name == b"PYTHONPATH") {
        Some((_, path)) => {
            let inherited = old.map_or(Some(&path[..]), |old| without_entry(old, path));
            *path = with_entry(entry, inherited);
        }
        None => env.push((b"PYTHONPATH".to_vec(), with_entry(entry, None))),
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prelude_of_workers_is_replaced_and_what_is_inherited_stays() {
        let path = |path: Option<&str>| {
            let env: Vec<_> = path.map(|path| (b"PYTHONPATH".to_vec(), path.into())).into_iter().collect();
            let env = with_prelude(&env, b"/new", Some(b"/old"));
            String::from_utf8(env[0].1.clone()).unwrap()
        };
        assert_eq!(path(None), "/new");
        assert_eq!(path(Some("/old")), "/new");
        assert_eq!(path(Some("/old:/a:/b")), "/new:/a:/b");
        assert_eq!(path(Some("/a")), "/new:/a");
        // Set to nothing, in both manners.
        assert_eq!(path(Some("/old:/old")), "/new:/new");
        assert_eq!(path(Some("")), "/new:/new");
    }

    #[test]
    fn variables_that_differ_between_workers_are_known() {
        let worker = |local_rank: u32, env: &[(&str, &str)]| WorkerSpec {
            local_rank: rules::LocalRank(local_rank),
            argv: Vec::new(),
            env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            cpus: Vec::new(),
            has_stdout: false,
            has_stderr: false,
        };
        let first = worker(0, &[("HOME", "/"), ("RANK", "0"), ("LOCAL_RANK", "0"), ("ONE", "")]);
        let second = worker(1, &[("RANK", "1"), ("LOCAL_RANK", "1"), ("HOME", "/")]);
        assert_eq!(differing(&[&first, &second]), [&b"LOCAL_RANK"[..], b"ONE", b"RANK"]);
        assert!(differing(&[&first]).is_empty());
    }

    #[test]
    fn a_list_is_read_entry_by_entry() {
        let files = Files::new().unwrap();
        assert!(files.modules().is_empty());
        files.list.write_all_at(b"module\nsys\n\0late\nHOME\n/\n\0\0", 0).unwrap();
        assert_eq!(files.modules(), [b"module\nsys\n".to_vec(), b"late\nHOME\n/\n".to_vec()]);
    }
}
