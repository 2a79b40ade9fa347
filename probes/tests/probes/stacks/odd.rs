//! Processes in states in which not everything can be read.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::Duration,
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use probes::take_stacks;
use processes::tree::{process, signal_one};
use stacks::RankDump;

use super::{Python, dump, dump_until, is_in, own, plan, target};
use crate::support::{TIMEOUT, in_time, until};

fn number(pid: u32) -> i32 {
    i32::try_from(pid).unwrap()
}

#[tokio::test]
async fn a_stopped_process_has_its_stacks_and_stays_stopped() {
    let mut python = Python::start(
        "import sys\n\
         def spin():\n    while True:\n        pass\n\
         def wait():\n    print(sys.stdin.readline(), end='', flush=True)\n\
         print('ready', flush=True)\n\
         wait()\n",
    );
    dump_until(&python.target(), is_in("wait")).await;
    let pid = number(python.pid());
    signal_one(pid, Signal::SIGSTOP);
    until("stopped", || process(pid).unwrap().state == 'T');
    for _ in 0..3 {
        let dump = dump(&python.target()).await;
        assert_eq!(dump.state.as_deref(), Some("T (stopped)"));
        assert_eq!(own(&dump.python[0]), ["wait", "<module>"]);
        assert!(!dump.native[0].frames.is_empty(), "{:?}", dump.notes);
        assert_eq!(process(pid).unwrap().state, 'T');
    }
    signal_one(pid, Signal::SIGCONT);
    python.tell("it runs on");
    assert_eq!(python.line(), "it runs on");
}

#[tokio::test]
async fn a_process_that_has_exited_is_gone() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = number(child.id());
    until("a zombie", || process(pid).unwrap().state == 'Z');
    let zombie = dump(&target(child.id())).await;
    assert!(zombie.gone);
    assert_eq!(zombie.state.as_deref(), Some("Z (zombie)"));
    assert_eq!(zombie.notes, [format!("process {pid} has exited and has not been reaped")]);
    child.wait().unwrap();
    assert!(dump(&target(child.id())).await.gone);
}

#[tokio::test]
async fn a_process_that_exits_meanwhile_holds_nothing_up() {
    // Some of them exit before, some after, and some while they are read.
    for pause in 0..20 {
        let script = format!("import time; print('ready', flush=True); time.sleep({pause} / 100)");
        let python = Python::start(&script);
        let dump = dump(&python.target()).await;
        if dump.python.is_empty() && !dump.gone {
            assert!(!dump.notes.is_empty(), "{dump:?}");
        }
    }
}

#[tokio::test]
async fn another_process_with_the_same_number_is_not_taken_for_it() {
    let python = Python::start("import time\nprint('ready', flush=True)\ntime.sleep(1000)\n");
    let started = process(number(python.pid())).unwrap().started;
    let mut target = python.target();
    target.started = Some(started);
    assert!(!dump(&target).await.gone);
    target.started = Some(started - 1);
    let dump = dump(&target).await;
    assert!(dump.gone && dump.python.is_empty());
    let why = format!("process {} has ended; its process id belongs to another process now", python.pid());
    assert_eq!(dump.notes, [why]);
}

/// In `vfork` the parent sleeps without being interruptible until the child starts its program, which here waits for a
/// writer before it does.
#[tokio::test]
async fn a_process_in_uninterruptible_sleep_has_its_state_only() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let mut python = Python::start(&format!(
        "import os\n\
         actions = [(os.POSIX_SPAWN_OPEN, 0, '{}', os.O_RDONLY, 0)]\n\
         print('ready', flush=True)\n\
         child = os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=actions)\n\
         print(os.waitpid(child, 0)[1], flush=True)\n",
        pipe.display()
    ));
    let pid = number(python.pid());
    let mut state = ' ';
    until("in vfork or in a plain wait", || {
        state = process(pid).unwrap().state;
        let channel = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        state == 'D' || channel.contains("do_wait")
    });
    if state == 'D' {
        let dump = dump(&python.target()).await;
        assert_eq!(dump.state.as_deref(), Some("D (disk sleep)"));
        assert!(dump.python.is_empty() && dump.native.is_empty());
        assert_eq!(dump.notes, ["no stacks: the process is in uninterruptible sleep"]);
    } else {
        println!("skipped: this C library does not start processes by vfork");
    }
    fs::write(&pipe, "").unwrap();
    assert_eq!(python.line(), "0");
}

/// The names of functions may be as long as Python allows.
#[tokio::test]
async fn names_of_any_length_are_cut() {
    let python = Python::start(
        "import time\n\
         name = '\\u0001' * 4000\n\
         def fall(depth):\n    \
             if depth == 0:\n        print('ready', flush=True)\n        time.sleep(1000)\n    \
             fall(depth - 1)\n\
         fall.__code__ = fall.__code__.replace(co_name=name, **({'co_qualname': name} if hasattr(fall.__code__, 'co_qualname') else {}))\n\
         fall(300)\n",
    );
    let dump =
        dump_until(&python.target(), |dump| dump.python.first().is_some_and(|main| main.frames.len() > 300))
            .await;
    let name = &dump.python[0].frames[0].function;
    assert!(name.len() <= 512 && name.ends_with("..."), "{name}");
    assert!(!dump.native.is_empty());
}

/// What a probe has sent before its limit counts; this one stands for one that hangs in a file of the process.
#[tokio::test]
async fn python_stacks_are_kept_when_native_ones_take_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("probe");
    let part = |part: &str| format!(r#"{{"Stacks":{{"target":0,"part":{part}}}}}"#);
    let frame = r#"{"function":"step","file":"train.py","line":5}"#;
    let parts = [
        part(r#"{"Process":{"gone":false,"state":"S (sleeping)","wchan":null,"syscall":"futex"}}"#),
        part(&format!(
            r#"{{"Python":{{"thread":{{"name":"MainThread","frames":[{frame}]}},"is_more":false}}}}"#
        )),
        part(&format!(
            r#"{{"Python":{{"thread":{{"name":"MainThread","frames":[{frame}]}},"is_more":true}}}}"#
        )),
        part(r#""PythonDone""#),
    ];
    fs::write(&script, format!("#!/bin/bash\necho '{}'\nexec sleep 1000\n", parts.join("\n"))).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut plan = plan(vec![target(1)]);
    plan.program.path = script;
    plan.limit = Duration::from_secs(2);
    let dumps = in_time(take_stacks(plan.clone())).await;
    assert_eq!(
        (dumps[0].state.as_deref(), dumps[0].syscall.as_deref()),
        (Some("S (sleeping)"), Some("futex"))
    );
    assert_eq!((dumps[0].python.len(), dumps[0].python[0].frames.len()), (1, 2));
    assert_eq!(dumps[0].notes, ["native stacks: not read within 2 s"]);
    // They are not missed when they were not asked for.
    plan.native = false;
    assert_eq!(in_time(take_stacks(plan)).await[0].notes, [""; 0]);
}

/// A probe that dies when it has more than one target stands for one that a target brings down.
#[tokio::test]
async fn a_probe_that_crashes_is_started_for_each_rank() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("probe");
    let text = format!(
        "#!/bin/bash\nplan=$(cat)\n[[ $plan =~ started.*started ]] && kill -ABRT $$\n\
         exec -a dlrover-probe {} <<<\"$plan\"\n",
        env!("CARGO_BIN_EXE_dlrover-probe-under-test")
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let pythons: Vec<Python> = (0..2)
        .map(|_| Python::start("import time\nprint('ready', flush=True)\ntime.sleep(1000)\n"))
        .collect();
    let mut plan = plan(pythons.iter().map(Python::target).collect());
    plan.program.path = script;
    let dumps = in_time(take_stacks(plan.clone())).await;
    let pids: Vec<_> = dumps.iter().map(|dump| dump.pid.unwrap()).collect();
    assert_eq!(pids, [pythons[0].pid(), pythons[1].pid()]);
    for dump in dumps {
        assert_eq!((dump.python.len(), dump.native.len(), &dump.notes[..]), (1, 1, &[][..]));
    }
    // One that dies in any case says how.
    fs::write(&plan.program.path, "#!/bin/bash\necho out of luck >&2\nkill -ABRT $$\n").unwrap();
    let dumps = in_time(take_stacks(plan)).await;
    assert_eq!(dumps.len(), 2);
    for dump in dumps {
        let [note] = &dump.notes[..] else { panic!("{dump:?}") };
        assert!(note.starts_with("state and stacks: the probe was killed by SIGABRT"), "{note}");
        assert!(note.ends_with("out of luck"), "{note}");
    }
}

#[tokio::test]
async fn a_flight_recorder_is_asked_to_write_and_its_file_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    mkfifo(&path("nccl3.pipe"), Mode::S_IRWXU).unwrap();
    let text = "import os\n\
                pipe = os.open(os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE'] + '3.pipe', os.O_RDWR)\n\
                print('ready', flush=True)\n\
                while os.read(pipe, 1):\n    \
                with open(os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE'] + '3', 'w') as file:\n        file.write('events')\n";
    let environment = [
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", path("nccl")),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", path("trace_")),
    ];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_os_str()));
    let python = Python::with_environment(text, &environment);
    let written = format!("NCCL flight recorder: written to {}", path("trace_3").display());
    assert_eq!(dump(&python.target()).await.notes, [&*written]);
    assert_eq!(fs::read_to_string(path("trace_3")).unwrap(), "events");
    // The first directory cannot be made.
    let mut plan = plan(vec![python.target()]);
    plan.collect_in = vec![path("trace_3").join("of-job"), path("stacks/of-job")];
    let copy = path("stacks/of-job/nccl_trace_rank_3");
    let copied = format!("{written}, copied to {}", copy.display());
    assert_eq!(in_time(take_stacks(plan)).await[0].notes, [copied]);
    assert_eq!(fs::read_to_string(copy).unwrap(), "events");
    assert_eq!(fs::read_dir(path("stacks/of-job")).unwrap().count(), 1, "a temporary file is left");
}

/// A program whose home is a file system of a server that does not answer, in a mount namespace of its own; `None`: none can
/// be mounted here. What waits for a server that `reads` the requests cannot be killed.
fn with_a_home_that_hangs(folder: &Path, reads: bool) -> Option<Python> {
    let home = folder.join("home");
    fs::create_dir(&home).unwrap();
    mkfifo(&folder.join("nccl3.pipe"), Mode::S_IRWXU).unwrap();
    let text = "import ctypes, os, struct, sys, threading, time\n\
                libc = ctypes.CDLL(None, use_errno=True)\n\
                def read_requests(server):\n    \
                    # The first one is a greeting, without whose answer there is no other.\n    \
                    greeting = os.read(server, 1 << 18)\n    \
                    answer = struct.pack('=IIIIHHIIHHI28x', 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)\n    \
                    header = struct.pack('=IiQ', 16 + len(answer), 0, struct.unpack_from('=Q', greeting, 8)[0])\n    \
                    os.write(server, header + answer)\n    \
                    while os.read(server, 1 << 18):\n        pass\n\
                def mount():\n    \
                    server = os.open('/dev/fuse', os.O_RDWR)\n    \
                    options = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % server\n    \
                    private = libc.mount(None, b'/', None, 1 << 18 | 1 << 14, None)\n    \
                    failed = private or libc.mount(b'hangs', os.environb[b'HOME'], b'fuse', 0, options)\n    \
                    if not failed and 'READS' in os.environ:\n        \
                        threading.Thread(target=read_requests, args=(server,)).start()\n    \
                    return failed\n\
                can = os.path.exists('/dev/fuse') and os.geteuid() == 0 and libc.unshare(0x20000) == 0\n\
                print('ready', flush=True)\n\
                print('hangs' if can and mount() == 0 else 'skipped', flush=True)\n\
                def step():\n    time.sleep(1000)\n\
                step()\n";
    let pipe = folder.join("nccl");
    let environment = [
        ("HOME", home.as_os_str()),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", pipe.as_os_str()),
        ("READS", OsStr::new("1")),
    ];
    let mut python = Python::with_environment(text, if reads { &environment } else { &environment[..2] });
    if python.line() == "skipped" {
        // A closed stderr must not fail the case.
        let _closed = writeln!(io::stderr(), "skipped: no file system can be mounted here");
        return None;
    }
    Some(python)
}

fn holds_all_but_the_recorder(dump: &RankDump) {
    assert_eq!(own(&dump.python[0]), ["step", "<module>"]);
    assert!(!dump.native.is_empty());
    let [note] = &dump.notes[..] else { panic!("{dump:?}") };
    assert!(note.starts_with("NCCL flight recorder: no answer within "), "{note}");
}

#[tokio::test]
async fn files_of_a_flight_recorder_that_hang_cost_no_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let Some(python) = with_a_home_that_hangs(folder.path(), false) else { return };
    let mut plan = plan(vec![python.target()]);
    plan.limit = Duration::from_secs(4);
    holds_all_but_the_recorder(&in_time(take_stacks(plan)).await[0]);
}

/// The probe cannot even end, and has sent everything.
#[tokio::test]
async fn what_a_probe_has_sent_does_not_wait_for_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(python) = with_a_home_that_hangs(folder.path(), true) else { return };
    let mut plan = plan(vec![python.target()]);
    plan.limit = 2 * TIMEOUT;
    holds_all_but_the_recorder(&in_time(take_stacks(plan)).await[0]);
}

#[tokio::test]
async fn a_process_whose_main_thread_has_ended_is_not_gone() {
    let python = Python::start(
        "import ctypes, platform, threading, time\n\
         def next_batch():\n    time.sleep(1000)\n\
         threading.Thread(target=next_batch, name='loader').start()\n\
         print('ready', flush=True)\n\
         exit_of_a_thread = {'x86_64': 60}.get(platform.machine(), 93)\n\
         ctypes.CDLL(None).syscall(exit_of_a_thread, 0)\n",
    );
    let pid = number(python.pid());
    until("without a main thread", || process(pid).unwrap().state == 'Z');
    let dump = dump(&python.target()).await;
    assert!(!dump.gone);
    assert_eq!(dump.state.as_deref(), Some("Z (zombie)"));
    assert_eq!(
        dump.notes[0],
        format!("the main thread of process {pid} has ended; other threads keep running")
    );
    let loader = dump.python.iter().find(|thread| thread.name == "loader");
    assert_eq!(loader.map(own), Some(vec!["next_batch"]), "{dump:#?}");
    assert_eq!(dump.native.len(), 1, "{dump:#?}");
}

/// As `bash -c "python train.py"` and `uv run train.py` start it.
#[tokio::test]
async fn below_a_shell_the_python_program_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.py");
    fs::write(&file, "import time\ndef step():\n    time.sleep(1000)\nprint(flush=True)\nstep()\n").unwrap();
    let script = format!("python3 {}; true", file.display());
    let mut command = Command::new("bash");
    let mut shell = command.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
    let [program] = &processes::tree::below(number(shell.id()))[..] else { panic!("one process below it") };
    let mut target = target(shell.id());
    assert!(dump(&target).await.python.is_empty(), "the process that was named");
    target.may_be_wrapper = true;
    let dumps = in_time(take_stacks(plan(vec![target]))).await;
    signal_one(program.pid, Signal::SIGKILL);
    shell.wait().unwrap();
    assert_eq!(dumps[0].pid, Some(program.pid.unsigned_abs()));
    assert_eq!(dumps[0].python.first().map(own), Some(vec!["step", "<module>"]), "{dumps:#?}");
    let whose = format!(
        "the worker is process {} (bash); the stacks are those of process {}",
        shell.id(),
        program.pid
    );
    assert!(dumps[0].notes.iter().any(|note| note.starts_with(&whose)), "{:?}", dumps[0].notes);
}
