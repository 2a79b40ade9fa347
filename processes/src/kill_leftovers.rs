//! The launcher's own broom, for when the guard cannot sweep any more: its orphans are ours now.

use std::time::Duration;

use crate::{
    cgroup::Cgroup,
    launcher_id::LauncherId,
    reap,
    sweep::mark_of,
    tree::{self, Process},
};

/// Kills everything that this launcher's guard left to it, until nothing is left or `patience` is over. Blocks.
/// Gives what is left. Somebody else must reap for the launcher meanwhile.
#[must_use]
pub fn kill_leftovers(
    id: &LauncherId,
    has_strangers: bool,
    cgroup: Option<&Cgroup>,
    timeout: Duration,
) -> Vec<Process> {
    let ours = || ours(id, has_strangers);
    tree::kill_until_gone(timeout, ours, || {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        // A process that forks all the time may be missing from a list of processes. To have no child is proof, but
        // foreign processes may be children too.
        !reap::has_children() || (has_strangers && ours().is_empty())
    })
}

/// As PID 1 of a container the launcher also inherits strangers, who are none of its business, and so are children
/// that it had before: there only what carries our mark, and what stands below it, is ours. Anywhere else everything
/// below us is.
fn ours(id: &LauncherId, has_strangers: bool) -> Vec<Process> {
    let me = id.pid;
    let mut all = tree::below(me);
    if has_strangers {
        let mut roots: Vec<i32> = Vec::new();
        for process in &all {
            if mark_of(process.pid).is_some_and(|mark| mark == *id) {
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
