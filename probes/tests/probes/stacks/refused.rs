//! Processes that may not be read, and those that a debugger holds.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use nix::unistd::geteuid;
use probes::{ProbeProgram, take_stacks};

use super::{Python, dump, is_in, own, plan, target};
use crate::support::in_time;

const WAITS: &str = "import sys\n\
                     def wait():\n    sys.stdin.readline()\n\
                     print('ready', flush=True)\n\
                     wait()\n";

/// A probe that runs as a user without rights.
fn as_other_user(folder: &Path) -> ProbeProgram {
    let probe = folder.join("dlrover-probe");
    fs::copy(env!("CARGO_BIN_EXE_dlrover-probe-under-test"), &probe).unwrap();
    let script = folder.join("as-other-user");
    let text = format!(
        "#!/bin/sh\nexec python3 -c 'import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); \
         os.execv(\"{}\", [\"dlrover-probe\"])'\n",
        probe.display()
    );
    fs::write(&script, text).unwrap();
    for path in [folder, &probe, &script] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    ProbeProgram { path: script, ..ProbeProgram::default() }
}

#[tokio::test]
async fn another_users_process_is_refused_with_the_remedy() {
    if !geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let python = Python::start(WAITS);
    let mut plan = plan(vec![python.target()]);
    plan.program = as_other_user(folder.path());
    let dumps = in_time(take_stacks(plan)).await;
    let [note] = &dumps[0].notes[..] else { panic!("{dumps:?}") };
    let why = format!(
        "stacks: permission denied (EACCES): process {} belongs to user 0, and this program runs as user 65534 without \
         CAP_SYS_PTRACE; run it as root, or add CAP_SYS_PTRACE (in Kubernetes: \
         securityContext.capabilities.add: [SYS_PTRACE])",
        python.pid()
    );
    assert_eq!(*note, why);
    // The state is everyone's to read.
    assert!(dumps[0].state.is_some());
    assert!(dumps[0].python.is_empty() && dumps[0].native.is_empty() && !dumps[0].gone);
}

#[tokio::test]
async fn a_process_that_a_debugger_holds_has_pythons_stacks() {
    let python = Python::start(WAITS);
    let there = super::dump_until(&python.target(), is_in("wait")).await;
    assert!(!there.native.is_empty());
    // PTRACE_SEIZE: it is traced and not stopped.
    let debugger = Python::start(&format!(
        "import ctypes, sys\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]\n\
         assert libc.ptrace(0x4206, {}, None, None) == 0\n\
         print('ready', flush=True)\n\
         sys.stdin.readline()\n",
        python.pid()
    ));
    let dump = dump(&target(python.pid())).await;
    assert_eq!(own(&dump.python[0]), ["wait", "<module>"]);
    assert!(dump.native.is_empty());
    let tracer = debugger.pid();
    assert_eq!(dump.notes[0], format!("process {} is traced by process {tracer}", python.pid()));
    let why = format!(
        "native stacks: the process is traced by process {tracer} (python3); detach or end that process first"
    );
    assert_eq!(dump.notes[1..], [why]);
}
