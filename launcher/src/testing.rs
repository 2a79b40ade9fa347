//! Machines that do not exist, for tests of the entry point.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{
    environment::Environment,
    host::{GpuLock, Host},
};

/// A directory that looks like `/`.
#[derive(Debug)]
pub(crate) struct FakeRoot(TempDir);

impl FakeRoot {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("make the directory");
        fs::write(path, text).expect("write the file");
    }

    /// `/dev/nvidia<number>` at this place of the bus, near this NUMA node.
    pub(crate) fn gpu(&self, number: u32, pci: &str, numa_node: i32) {
        self.write(&format!("dev/nvidia{number}"), "");
        let information =
            format!("Model: \t\t H100\nGPU UUID: \t GPU-{number}abc\nDevice Minor: \t {number}\n");
        self.write(&format!("proc/driver/nvidia/gpus/{pci}/information"), &information);
        self.write(&format!("sys/bus/pci/devices/{pci}/numa_node"), &format!("{numa_node}\n"));
    }
}

/// A machine of 4 CPUs, no accelerators, and Python in `/usr/bin`.
#[derive(Debug)]
pub(crate) struct FakeHost {
    pub(crate) root: FakeRoot,
    pub(crate) cpus: BTreeSet<usize>,
    pub(crate) programs: Vec<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
    /// What is not there; of all else the entry point's users may do what they like with it.
    pub(crate) missing: Vec<PathBuf>,
    /// The accelerators that other launchers hold.
    pub(crate) taken: BTreeSet<String>,
    pub(crate) memory_kib: Option<u64>,
    /// What drivers and tools say.
    pub(crate) accelerators: diagnosis::gpus::Inventory,
    /// Where tools were when they were asked, each time.
    pub(crate) asked: RefCell<Vec<OsString>>,
}

impl FakeHost {
    pub(crate) fn new() -> Self {
        Self {
            root: FakeRoot::new(),
            cpus: (0..4).collect(),
            programs: vec!["/usr/bin/python3".into()],
            files: Vec::new(),
            missing: Vec::new(),
            taken: BTreeSet::new(),
            memory_kib: None,
            accelerators: diagnosis::gpus::Inventory::default(),
            asked: RefCell::default(),
        }
    }
}

impl Host for FakeHost {
    fn allowed_cpus(&self) -> BTreeSet<usize> {
        self.cpus.clone()
    }

    fn root(&self) -> &Path {
        self.root.path()
    }

    fn own_dir(&self) -> Option<PathBuf> {
        Some("/opt/dlrover/bin".into())
    }

    fn own_path(&self) -> Option<PathBuf> {
        Some("/opt/dlrover/bin/dlrover-run".into())
    }

    fn is_this_program(&self, path: &Path) -> bool {
        Some(path) == self.own_path().as_deref()
    }

    fn is_program(&self, path: &Path) -> bool {
        self.programs.iter().any(|program| program == path)
    }

    fn may(&self, path: &Path, _executes: bool) -> io::Result<()> {
        if self.missing.iter().any(|missing| missing == path) {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(())
        }
    }

    fn is_file(&self, path: &Path) -> bool {
        self.files.iter().any(|file| file == path)
    }

    fn takes_files(&self, path: &Path) -> bool {
        !self.files.iter().any(|file| file == path)
    }

    fn may_replace(&self, path: &Path) -> io::Result<()> {
        self.may(path.parent().unwrap_or(path), false)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(self.root.path().join(path.strip_prefix("/").unwrap_or(path)))
    }

    fn name(&self) -> String {
        "node-7".to_owned()
    }

    fn memory_kib(&self) -> Option<u64> {
        self.memory_kib
    }

    fn fresh_id(&self) -> String {
        "fresh-id".to_owned()
    }

    fn accelerators(&self, path: &OsStr) -> diagnosis::gpus::Inventory {
        self.asked.borrow_mut().push(path.to_owned());
        self.accelerators.clone()
    }

    fn lock_gpu(&self, _env: Environment<'_>, id: &str) -> io::Result<Option<GpuLock>> {
        Ok((!self.taken.contains(id)).then(GpuLock::unheld))
    }

    fn lock_gpu_choice(&self, _env: Environment<'_>) -> Option<GpuLock> {
        None
    }
}

/// An environment.
pub(crate) fn variables<Value: AsRef<OsStr>>(pairs: &[(&str, Value)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.as_ref().to_owned())).collect()
}

/// The words of a command line, between spaces.
pub(crate) fn words(line: &str) -> Vec<OsString> {
    line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect()
}
