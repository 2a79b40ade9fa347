//! The choice of accelerators by the real programs, on a host with scripts of these tests as tools.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod diag;
mod locks;
mod nvml;
mod select;
mod tools;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use support::{launch::Launch, launcher};
use tempfile::TempDir;

/// The table of 8 V100 of a DGX-1V.
const TABLE: &str = include_str!("../../diagnosis/src/gpu_topology/fixtures/a_dgx1v.txt");

/// A directory for PATH with tools of its own, and one for locks.
struct FakeNode {
    dir: TempDir,
}

impl FakeNode {
    /// 8 V100, some of them with their memory taken.
    fn dgx(busy: &[usize]) -> Self {
        let node = Self { dir: tempfile::tempdir().unwrap() };
        let line = |gpu: usize| {
            let used = if busy.contains(&gpu) { 30_000 } else { 4 };
            format!("{gpu}, {}, 00000000:{gpu}B:00.0, {used}, 32510\n", uuid(gpu))
        };
        fs::write(node.path("table"), TABLE).unwrap();
        fs::write(node.path("query"), (0..8).map(line).collect::<String>()).unwrap();
        let (table, query) = (node.path("table"), node.path("query"));
        node.tool(&format!(
            "case \"$1\" in topo) exec cat {} ;; *) exec cat {} ;; esac",
            table.display(),
            query.display()
        ));
        fs::create_dir(node.path("locks")).unwrap();
        fs::set_permissions(node.path("locks"), fs::Permissions::from_mode(0o700)).unwrap();
        node
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// What `nvidia-smi` does, in shell.
    fn tool(&self, script: &str) {
        self.tool_named("nvidia-smi", script);
    }

    fn tool_named(&self, name: &str, script: &str) {
        let tool = self.path(name);
        fs::write(&tool, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn search_path(&self) -> String {
        format!("{}:{}", self.dir.path().display(), std::env::var("PATH").unwrap_or_default())
    }

    fn launch(&self, flags: &[&str]) -> Launch {
        Launch::new(launcher!())
            .env("PATH", self.search_path())
            .env("DLROVER_GPU_LOCK_DIR", self.path("locks"))
            .flags(["--standalone"])
            .flags(flags)
    }
}

fn uuid(gpu: usize) -> String {
    format!("GPU-{gpu}{gpu}{gpu}{gpu}0000-aaaa-bbbb-cccc-00000000000{gpu}")
}

/// `4,5` as the numbers of a list of ids.
fn numbers(list: &str) -> Vec<usize> {
    let number = |id: &str| (0..8).find(|gpu| uuid(*gpu) == id).unwrap_or_else(|| panic!("{id} is no GPU"));
    list.split(',').map(number).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
