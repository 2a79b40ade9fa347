//! Kills what a dead guard left behind: its orphans became children of the launcher.

use std::time::Duration;

use crate::{
    cgroup::Cgroup,
    launcher_id::LauncherId,
    reap,
    sweep::id_of_process,
    tree::{self, Process},
};

/// Kills everything that this launcher's guard left behind, until nothing is left or `timeout` has passed. Blocks.
/// Returns what is left. Another task must reap the launcher's children meanwhile.
#[must_use]
pub fn kill_leftovers(
    id: &LauncherId,
    has_foreign_children: bool,
    cgroup: Option<&Cgroup>,
    timeout: Duration,
) -> Vec<Process> {
    let ours = || ours(id, has_foreign_children);
    tree::kill_until_gone(timeout, ours, || {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        // A process that forks all the time may be missing from a list of processes. To have no child is proof, but
        // foreign processes may be children too.
        !reap::has_children() || (has_foreign_children && ours().is_empty())
    })
}

/// The processes below this launcher. With foreign children (as PID 1 of a container, or children from before
/// `exec`), only those with its id, and their descendants.
fn ours(id: &LauncherId, has_foreign_children: bool) -> Vec<Process> {
    let me = id.pid;
    let mut all = tree::below(me);
    if has_foreign_children {
        let mut roots: Vec<i32> = Vec::new();
        for process in &all {
            if id_of_process(process.pid).is_some_and(|found| found == *id) {
                roots.push(process.pid);
            }
        }
        let mut kept: Vec<Process> = all.iter().filter(|p| roots.contains(&p.pid)).cloned().collect();
        for root in roots {
            kept.extend(tree::below(root));
        }
        all = kept;
    }
    all.retain(Process::is_alive);
    all
}
