//! Stacks as py-spy and gdb print them.

use super::*;
use crate::model::Thread;

fn frame(text: &str) -> Frame {
    let (function, source) = text.split_once('@').expect("func@file:line");
    let (file, line) = source.rsplit_once(':').expect("file:line");
    Frame { function: function.to_owned(), file: file.to_owned(), line: line.parse().ok() }
}

/// The place of a rank with this main thread, innermost frame first.
fn place(python: &[&str], native: &[&str]) -> Place {
    let thread = |frames: &[&str]| Thread {
        name: "MainThread".to_owned(),
        frames: frames.iter().map(|text| frame(text)).collect(),
    };
    let threads = |frames: &[&str]| if frames.is_empty() { Vec::new() } else { vec![thread(frames)] };
    let dump = RankDump { python: threads(python), native: threads(native), ..RankDump::new(0, 1) };
    Place::of(&dump).expect("a place")
}

const C10D: &str = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";

#[test]
fn waits_are_told_from_other_calls() {
    let torch = |function: &str, path: &str| {
        format!("{function}@/opt/venv/lib/python3.11/site-packages/torch/{path}")
    };
    let user = "train@/work/train.py:40";
    for (innermost, expected) in [
        (torch("all_reduce", "distributed/distributed_c10d.py:1"), Some("all_reduce")),
        (torch("_all_gather_base", "distributed/distributed_c10d.py:1"), Some("all_gather_base")),
        (torch("reduce_scatter_tensor", "distributed/distributed_c10d.py:1"), Some("reduce_scatter_tensor")),
        (torch("ProcessGroup.recv", "distributed/distributed_c10d.py:1"), Some("recv")),
        (torch("synchronize", "cuda/__init__.py:1"), Some("synchronize")),
        (torch("Stream.synchronize", "cuda/streams.py:1"), Some("synchronize")),
        (torch("_engine_run_backward", "autograd/graph.py:1"), Some("backward")),
        (torch("_sync_module_states", "distributed/utils.py:1"), Some("sync_module_states")),
        (
            torch("DistributedDataParallel._sync_buffers", "nn/parallel/distributed.py:1"),
            Some("sync_buffers"),
        ),
        // Neither the wait of a data loader, nor a write of a checkpoint, nor a layer is a collective.
        (torch("_MultiProcessingDataLoaderIter.get", "utils/data/dataloader.py:1"), None),
        (torch("_write_item", "distributed/checkpoint/filesystem.py:1"), None),
        (torch("Linear.forward", "nn/modules/linear.py:1"), None),
        ("wait@/usr/lib/python3.11/threading.py:320".to_owned(), None),
        ("barrier@/usr/lib/python3.11/threading.py:320".to_owned(), None),
    ] {
        let found = place(&[&innermost, user], &[]);
        assert_eq!(found.waits_in.as_deref(), expected, "{innermost}");
        assert_eq!(found.frame, frame(user));
    }
}

/// The collective that the user's code has called, not what that is made of.
#[test]
fn the_outermost_collective_is_named() {
    let c10d = |function: &str| format!("{function}@{C10D}:1");
    let found = place(
        &[
            &c10d("all_gather_single"),
            "_exception_logger.<locals>.wrapper@/x/site-packages/torch/distributed/c10d_logger.py:83",
            &c10d("all_gather_object"),
            "train@/work/train.py:64",
        ],
        &[],
    );
    assert_eq!(found.waits_in.as_deref(), Some("all_gather_object"));
}

/// A hook, a custom backward or a data set of the user's own is where the rank is, whatever has called it.
#[test]
fn code_of_the_user_inside_of_torch_is_the_place() {
    let found = place(
        &[
            "sleep_in_hook@/work/hooks.py:7",
            "_engine_run_backward@/x/site-packages/torch/autograd/graph.py:1113",
            "train@/work/train.py:49",
        ],
        &[],
    );
    assert_eq!((found.waits_in, found.frame.function.as_str()), (None, "sleep_in_hook"));
}

#[test]
fn a_collective_of_the_users_own_counts() {
    for (frames, expected) in [
        (&["barrier@dist.py:3", "step@train.py:5", "<module>@train.py:10"][..], Some("barrier")),
        (
            &["recv_exactly@/w/ring.py:9", "Ring.all_reduce@/w/ring.py:30", "main@/w/train.py:5"],
            Some("all_reduce"),
        ),
        (
            &["recv@/usr/lib/python3.11/socket.py:1", "allreduce@/w/train.py:9", "main@/w/train.py:30"],
            Some("allreduce"),
        ),
        // What it calls in another file is the place, and a loop around everything is no collective.
        (&["load@/w/data.py:9", "all_reduce@/w/ring.py:30", "main@/w/train.py:5"], None),
        (&["load@/w/train.py:9", "train_with_all_reduce@/w/train.py:30"], None),
    ] {
        assert_eq!(place(frames, &[]).waits_in.as_deref(), expected, "{frames:?}");
    }
}

/// What reads a socket is not the place, wherever it is; a read from a server through a library is.
#[test]
fn a_collective_of_the_users_own_may_read_sockets_by_another_file() {
    let of = |frames: &[&str], syscall: &str| {
        let frames = frames.iter().map(|text| frame(text)).collect();
        let python = vec![Thread { name: "MainThread".to_owned(), frames }];
        let syscall = Some(syscall.to_owned());
        Place::of(&RankDump { python, syscall, ..RankDump::new(0, 1) }).expect("a place")
    };
    let frames =
        ["receive@/w/sockets.py:9", "total@/w/ring.py:3", "all_reduce@/w/ring.py:30", "step@/w/train.py:5"];
    let found = of(&frames, "recvfrom");
    assert_eq!((found.waits_in.as_deref(), found.frame.function.as_str()), (Some("all_reduce"), "step"));
    assert_eq!((found.path.len(), found.frames.len()), (1, 4));
    assert_eq!(of(&frames, "clock_nanosleep").waits_in, None);
    let broadcast = ["fetch@/w/s3.py:9", "broadcast_shards@/w/train.py:30", "main@/w/train.py:50"];
    for (inner, expected) in [
        ("recv_into@/usr/lib/python3.11/socket.py:718", Some("broadcast_shards")),
        ("begin@/usr/lib/python3.11/http/client.py:337", None),
        ("urlopen@/x/site-packages/urllib3/connectionpool.py:790", None),
    ] {
        let frames: Vec<&str> = [inner].into_iter().chain(broadcast).collect();
        assert_eq!(of(&frames, "recvfrom").waits_in.as_deref(), expected, "{inner}");
    }
}

/// The main thread waits for the one that trains.
#[test]
fn the_only_other_thread_is_the_place_when_it_is_joined() {
    let thread = |name: &str, frames: &[&str]| Thread {
        name: name.to_owned(),
        frames: frames.iter().map(|text| frame(text)).collect(),
    };
    let of = |threads: &[Thread]| {
        Place::of(&RankDump { python: threads.to_vec(), ..RankDump::new(0, 1) })
            .expect("a place")
            .frame
            .function
    };
    let library = "/usr/lib/python3.11/threading.py";
    let main = thread("MainThread", &[&format!("join@{library}:1112"), "main@/w/train.py:50"]);
    let ending = thread("MainThread", &[&format!("_shutdown@{library}:1590")]);
    let trainer =
        thread("trainer", &["load@/w/data.py:9", "train@/w/train.py:9", &format!("run@{library}:975")]);
    let logger = thread("logger", &["write@/w/log.py:9"]);
    let idle =
        thread("monitor", &[&format!("wait@{library}:320"), "run@/x/site-packages/tqdm/_monitor.py:60"]);
    assert_eq!(of(&[main.clone(), idle.clone(), trainer.clone()]), "load");
    assert_eq!(of(&[ending, idle, trainer.clone()]), "load");
    assert_eq!(of(&[main, trainer.clone(), logger]), "main", "either may be waited for");
    let step = thread("MainThread", &["step@/w/train.py:5"]);
    assert_eq!(of(&[step, trainer]), "step");
}

/// The place of a rank that is in `backward`, with further threads of Python and native stacks beside the main thread's:
/// what it waits in, its function, and how many frames of the user's there are.
fn in_backward(others: &[Thread], native: &[Thread]) -> (Option<String>, String, usize) {
    let graph = "_engine_run_backward@/x/site-packages/torch/autograd/graph.py:841";
    let mut python = vec![thread("MainThread", &[graph, "train@/w/train.py:50", "<module>@/w/train.py:90"])];
    python.extend_from_slice(others);
    let main =
        ["torch::autograd::Engine::execute@/x/libtorch_cpu.so:", INTERPRETER, "main@a.c:1", "_start@a.c:1"];
    let native = [&[thread("python3", &main)], native].concat();
    let found = Place::of(&RankDump { python, native, ..RankDump::new(0, 1) }).expect("a place");
    (found.waits_in, found.frame.function, found.frames.len())
}

fn thread(name: &str, frames: &[&str]) -> Thread {
    let frames = frames.iter().map(|text| frame(text)).collect();
    Thread { name: name.to_owned(), frames }
}

const INTERPRETER: &str = "_PyEval_EvalFrameDefault@Python/ceval.c:4769";
const FUNCTION: &str = "BackwardCFunction.apply@/x/site-packages/torch/autograd/function.py:307";

/// A native thread of torch's engine, by its name and its innermost function.
fn engine(name: &str, innermost: &str) -> Thread {
    let engine = "torch::autograd::Engine::thread_main@/x/libtorch_cpu.so:";
    thread(name, &[innermost, INTERPRETER, engine])
}

/// On a device, torch runs `backward` in a thread of its own, while the main thread waits for it.
#[test]
fn a_thread_of_torch_that_runs_a_backward_is_the_place() {
    let reads = [engine("python3", "read@./libc.so:")];
    let of = |others: &[Thread]| in_backward(others, &reads);
    let stuck =
        thread("pt_autograd_0 (thread 71)", &["look_up@/w/ops.py:9", "backward@/w/ops.py:20", FUNCTION]);
    assert_eq!(of(std::slice::from_ref(&stuck)), (None, "look_up".to_owned(), 4));
    let older = Thread { name: "thread 71".to_owned(), ..stuck };
    let callback = thread("thread 72", &["fetch@/w/dali.py:3"]);
    assert_eq!(of(&[callback.clone(), older]).1, "look_up");
    let hook = thread("thread 71", &["hook@/w/hooks.py:7"]);
    assert_eq!(of(std::slice::from_ref(&hook)).1, "hook");
    // Which of them it is, is not known.
    let waits = (Some("backward".to_owned()), "train".to_owned(), 2);
    assert_eq!(of(&[callback, hook]), waits);
    // Threads of Python's own have nothing to do with it.
    let loader = thread("loader", &["load@/w/data.py:9", "_bootstrap@/usr/lib/python3.11/threading.py:973"]);
    assert_eq!(of(&[loader]), waits);
    let reduces = thread("thread 71", &[&format!("all_reduce@{C10D}:1"), "hook@/w/hooks.py:7"]);
    assert_eq!(of(&[reduces]), (Some("all_reduce".to_owned()), "hook".to_owned(), 3));
}

/// As by a `tensor.item()` in a forward that is computed again: no frame of Python tells of it.
#[test]
fn a_backward_whose_thread_waits_without_a_python_frame_waits() {
    let waits = (Some("backward".to_owned()), "train".to_owned(), 2);
    let again = ["forward@/w/ops.py:9", "recompute@/w/ops.py:20", FUNCTION];
    let (named, older) = (thread("pt_autograd_0 (thread 71)", &again), thread("thread 71", &again));
    let place = (None, "forward".to_owned(), 4);
    let (waiting, reading) = ("cudaStreamSynchronize@/x/libcudart.so:", "read@./libc.so:");
    for device in [&named, &older] {
        let of = |native: &[Thread]| in_backward(std::slice::from_ref(device), native);
        assert_eq!(of(&[engine("pt_autograd_0", waiting)]), waits);
        assert_eq!(of(&[engine("pt_autograd_0", reading)]), place);
        // It may wait, where no native stack is known to be its own, or that ends early.
        assert_eq!(of(&[]), waits);
        assert_eq!(of(&[engine("python3", reading), engine("python3", waiting)]), waits);
        assert_eq!(of(&[thread("pt_autograd_0", &["__poll@./libc.so:"])]), waits);
    }
    let native = [engine("pt_autograd_1", reading), engine("pt_autograd_0", waiting)];
    assert_eq!(in_backward(std::slice::from_ref(&named), &native), waits);
    // A wait in the standard library is known to be no wait for peers.
    let library = "wait@/usr/lib/python3.11/threading.py:320";
    let locked = thread("thread 71", &[library, "forward@/w/ops.py:9", "recompute@/w/ops.py:20", FUNCTION]);
    assert_eq!(in_backward(&[locked], &[]), place);
}

#[test]
fn a_builtin_call_is_found_in_the_native_stack() {
    let python = ["train@/work/train.py:71", "<module>@/work/train.py:86"];
    let interpreter = "_PyEval_EvalFrameDefault@Python/ceval.c:4769";
    for (native, expected) in [
        ("c10d::Work::wait(std::chrono::duration<long> >)@/x/libtorch_cpu.so:", Some("c10d::Work::wait")),
        ("cudaStreamSynchronize@/x/libcudart.so:", Some("cudaStreamSynchronize")),
        ("mcStreamSynchronize@/opt/maca/lib/libmcruntime.so:", Some("mcStreamSynchronize")),
        ("pysleep@./Modules/timemodule.c:2159", None),
        // A type of torch's in the arguments of a template is no call.
        ("pybind11::cpp_function::initialize<bool, c10d::Work>@/x/libtorch_python.so:", None),
    ] {
        let found = place(&python, &["__futex_wait@./nptl/futex-internal.c:57", native, interpreter]);
        assert_eq!(found.waits_in.as_deref(), expected, "{native}");
        assert_eq!(found.frame, frame(python[0]));
    }
    let outer = place(&python, &["pysleep@a.c:1", interpreter, "c10d::Work::wait@/x/libtorch_cpu.so:"]);
    assert_eq!(outer.waits_in, None, "only what the innermost Python frame has called");
}

#[test]
fn without_code_of_the_user_the_nearest_frame_is_the_place() {
    let packaged = ["sleep@/usr/lib/python3.11/threading.py:1", "fit@/x/site-packages/trainer/loop.py:9"];
    assert_eq!(place(&packaged, &[]).frame.function, "fit");
    let finished = ["_shutdown@/usr/lib/python3.11/threading.py:1590"];
    assert_eq!(place(&finished, &[]).frame.function, "_shutdown");
    let program = [
        "__poll@/lib/x86_64-linux-gnu/libc.so.6:",
        "read_input@/work/trainer.c:41",
        "main@/work/trainer.c:90",
    ];
    assert_eq!(place(&[], &program).frame.function, "read_input");
    assert_eq!(place(&[], &["__poll@??:"]).frame.function, "__poll");
    assert_eq!(Place::of(&RankDump::new(0, 1)), None);
}

#[test]
fn owners_of_files() {
    for (file, expected) in [
        ("/work/train.py", Owner::User),
        ("train.py", Owner::User),
        ("/workspace/torch/distributed/train.py", Owner::User),
        ("<string>", Owner::User),
        ("/opt/conda/lib/python3.8/site-packages/torch/_tensor.py", Owner::Torch),
        ("/usr/lib/python3/dist-packages/torch/_tensor.py", Owner::Torch),
        ("/home/dev/pytorch/torch/_tensor.py", Owner::Torch),
        ("torch/_tensor.py", Owner::Torch),
        ("/opt/conda/lib/python3.8/site-packages/PIL/Image.py", Owner::Package),
        ("/opt/conda/lib/python3.8/threading.py", Owner::Python),
        ("/usr/lib64/python3.9/queue.py", Owner::Python),
        ("<frozen runpy>", Owner::Python),
        ("threading.py", Owner::Python),
        ("multiprocessing/connection.py", Owner::Python),
    ] {
        assert_eq!(owner(file), expected, "{file}");
    }
}
