//! Where a rank is: in a collective, in which it waits for its peers, or elsewhere.
//!
//! The frames of the main Python thread are read from the innermost one outwards. Frames of the standard library, of
//! torch and of installed packages lead to the frame of the user's own code, which names the place. When torch's frames
//! on that way are those of a collective, the rank waits in it. A worker without torch may have collectives of its own:
//! a function with such a name counts as one, unless what it calls is in another file and is no read of a socket.

use crate::{
    model::{Frame, RankDump, Thread, main_thread},
    suspects::Doing,
    words::printable,
};

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The collective, or the call that waits for a device, that the rank waits in; none: it is elsewhere.
    pub waits_in: Option<String>,
    /// The innermost frame of the user's code, or of what comes nearest to it; outside of a collective of the user's own.
    pub frame: Frame,
    /// The frames of the user's code that lead to the collective, innermost first; without one, all of them.
    pub path: Vec<Frame>,
    /// All frames of the user's code, innermost first.
    pub frames: Vec<Frame>,
    /// The user's code itself reads a socket, as in an exchange with peers; nothing between reads from a server.
    pub reads_socket: bool,
}

/// Whose code a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    User,
    Package,
    Torch,
    Python,
}

/// Collectives by the beginning of their names, without leading underscores.
const COLLECTIVES: [&str; 10] = [
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "barrier",
    "broadcast",
    "monitored_barrier",
];

/// Further functions of torch that wait for peers or for a device, by their whole names.
const TORCH_WAITS: [&str; 24] = [
    "init_process_group",
    "destroy_process_group",
    "new_group",
    "store_based_barrier",
    "rendezvous",
    "wait",
    "synchronize",
    "get",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "send_object_list",
    "recv_object_list",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce",
    "sync_module_states",
    "verify_param_shape_across_processes",
    "sync_buffers",
    "sync_params_and_buffers",
];

/// What a rank waits in that computes gradients, which are reduced meanwhile.
const BACKWARD: &str = "backward";

/// Parts of the names of native functions that wait for peers or for a device, outside of any Python frame.
const NATIVE_WAITS: [&str; 12] = [
    "StreamSynchronize",
    "aclrtSynchronize",
    "DeviceSynchronize",
    "EventSynchronize",
    "CtxSynchronize",
    "cuMemcpyDtoH",
    "stream_synchronize",
    "ncclGroupEnd",
    "ncclAllReduce",
    "ncclCommInit",
    "gloo::",
    "c10d::",
];

impl Place {
    /// Finds where the rank of a dump is; none when no stack of it is known.
    #[must_use]
    pub fn of(dump: &RankDump) -> Option<Self> {
        let native = main_thread(&dump.native).map_or(&[][..], |thread| &thread.frames);
        let Some((python, is_main)) = working_thread(&dump.python) else { return Self::of_native(native) };
        let all = &python.frames;
        if torch_collective(all).as_deref() == Some(BACKWARD)
            && let Some(device) = backward_thread(&dump.python, python)
            && let Some(place) = Self::of_backward(device, all, &dump.native)
        {
            return Some(place);
        }
        let of_user = |frames: &[Frame]| -> Vec<Frame> {
            frames.iter().filter(|frame| owner(&frame.file) == Owner::User).cloned().collect()
        };
        let frames = of_user(all);
        let reads_socket = is_main && reads_socket(dump, all);
        // The nearest to the user's code that there is.
        let owners = [Owner::User, Owner::Package, Owner::Torch, Owner::Python];
        let innermost_of = |wanted: Owner| all.iter().find(|frame| owner(&frame.file) == wanted);
        let frame = owners.into_iter().find_map(innermost_of)?.clone();
        let place = |waits_in: Option<String>| {
            let waits_in = waits_in.map(|name| printable(&name));
            Self {
                waits_in,
                frame: frame.clone(),
                path: frames.clone(),
                frames: frames.clone(),
                reads_socket,
            }
        };
        if let Some(name) = torch_collective(all) {
            return Some(place(Some(name)));
        }
        if let Some(depth) = own_collective(all, reads_socket) {
            let found = place(Some(last_name(&all[depth].function).to_owned()));
            // What it is made of differs between its ranks.
            let path = of_user(&all[depth + 1..]);
            return Some(match path.first() {
                Some(caller) => Self { frame: caller.clone(), path, ..found },
                None => found,
            });
        }
        let native = if is_main { native } else { &[] };
        Some(place(native_wait(native).map(str::to_owned)))
    }

    /// A rank whose `backward` runs in a thread of torch's. None: that thread waits too, or may, in a call without a Python
    /// frame.
    fn of_backward(device: &Thread, of_caller: &[Frame], native: &[Thread]) -> Option<Self> {
        let of_device = &device.frames;
        let frame = of_device.iter().find(|frame| owner(&frame.file) == Owner::User)?.clone();
        let waits_in = torch_collective(of_device).map(|name| printable(&name));
        if waits_in.is_none() && !is_in_python(device, native) {
            return None;
        }
        let of_user = of_device.iter().chain(of_caller).filter(|frame| owner(&frame.file) == Owner::User);
        let frames: Vec<Frame> = of_user.cloned().collect();
        Some(Self { waits_in, frame, path: frames.clone(), frames, reads_socket: false })
    }

    /// A worker that is no Python program, or whose Python stacks could not be read.
    fn of_native(frames: &[Frame]) -> Option<Self> {
        let is_own = |frame: &&Frame| {
            frame.line.is_some() || !(frame.file == crate::token::NO_SOURCE || frame.file.contains("/lib"))
        };
        let frame = frames.iter().find(is_own).or(frames.first())?.clone();
        let path: Vec<Frame> = frames.iter().filter(is_own).cloned().collect();
        let waits_in = native_wait(frames).map(printable);
        Some(Self { waits_in, frame, frames: path.clone(), path, reads_socket: false })
    }
}

/// The thread that trains, and whether it is the main one, which may wait for the end of the only other thread that runs
/// code of the user's.
fn working_thread(threads: &[Thread]) -> Option<(&Thread, bool)> {
    let main = main_thread(threads)?;
    let is_user = |frame: &Frame| owner(&frame.file) == Owner::User;
    let inner = main.frames.iter().take_while(|frame| !is_user(frame));
    let mut joins = inner.filter(|frame| {
        frame.file.ends_with("threading.py") && ["join", "_shutdown"].contains(&last_name(&frame.function))
    });
    if joins.next().is_none() {
        return Some((main, true));
    }
    let runs = |thread: &&Thread| !std::ptr::eq(*thread, main) && thread.frames.iter().any(is_user);
    let mut others = threads.iter().filter(runs);
    match (others.next(), others.next()) {
        (Some(only), None) => Some((only, false)),
        _ => Some((main, true)),
    }
}

/// The thread of torch's that runs code of the user's for the thread that has called `backward`: on a device it has one of
/// its own. Python has not started it; torch names it, in newer releases.
fn backward_thread<'a>(threads: &'a [Thread], caller: &Thread) -> Option<&'a Thread> {
    let is_native = |thread: &&Thread| {
        let starts_in_python =
            |root: &Frame| root.function == "<module>" || root.file.ends_with("threading.py");
        let runs_user = thread.frames.iter().any(|frame| owner(&frame.file) == Owner::User);
        runs_user && !std::ptr::eq(*thread, caller) && !thread.frames.last().is_some_and(starts_in_python)
    };
    let native: Vec<&Thread> = threads.iter().filter(is_native).collect();
    let is_named = |thread: &&&Thread| thread.name.starts_with("pt_autograd");
    let is_of_function = |thread: &&&Thread| {
        let mut of_torch = thread.frames.iter().filter(|frame| owner(&frame.file) == Owner::Torch);
        of_torch.any(|frame| in_torch(&frame.file).starts_with("autograd/"))
    };
    let known = native.iter().find(is_named).or_else(|| native.iter().find(is_of_function));
    // A hook is called without a frame of torch's.
    known.copied().or(match native[..] {
        [only] => Some(only),
        _ => None,
    })
}

/// Whether a thread of torch's is known to be in Python's own code, such as a read or a sleep, and not in a call that waits
/// for peers or for a device. Without its native stack that is known of a wait in the standard library only.
fn is_in_python(device: &Thread, native: &[Thread]) -> bool {
    match native_of(device, native) {
        Some(native) => native_wait(native).is_none(),
        None => device.frames.first().is_some_and(|frame| owner(&frame.file) == Owner::Python),
    }
}

/// The native stack of a thread of torch's that runs `backward`, down to the interpreter: by the name of the thread, else
/// the only one of torch's engine that runs Python, but for the main thread.
fn native_of<'a>(device: &Thread, native: &'a [Thread]) -> Option<&'a [Frame]> {
    let name = device.name.split_once(" (").map_or(device.name.as_str(), |(name, _)| name);
    let main = main_thread(native)?;
    let has = |thread: &Thread, part: &str| thread.frames.iter().any(|frame| frame.function.contains(part));
    let runs_python = |thread: &&Thread| !std::ptr::eq(*thread, main) && has(thread, "PyEval_");
    let only = |is_wanted: &dyn Fn(&Thread) -> bool| {
        let mut wanted = native.iter().filter(runs_python).filter(|thread| is_wanted(thread));
        let first = wanted.next();
        first.filter(|_| wanted.next().is_none())
    };
    let found =
        only(&|thread| thread.name == name).or_else(|| only(&|thread| has(thread, "autograd::Engine")));
    found.map(|thread| thread.frames.as_slice())
}

/// Returns whether the user's code waits for a socket, with nothing but Python's module of sockets in between.
fn reads_socket(dump: &RankDump, frames: &[Frame]) -> bool {
    const SOCKETS: [&str; 3] = ["socket.py", "ssl.py", "selectors.py"];
    let mut inner = frames.iter().take_while(|frame| owner(&frame.file) != Owner::User);
    let is_socket = |frame: &Frame| SOCKETS.contains(&frame.file.rsplit('/').next().unwrap_or_default());
    matches!(Doing::of(dump), Doing::WaitingForSocket | Doing::WaitingForInput)
        && inner.all(|frame| owner(&frame.file) == Owner::Python && is_socket(frame))
}

/// The name of a function without the class or function it is defined in: py-spy prints `Tensor.backward`.
pub(crate) fn last_name(function: &str) -> &str {
    function.rsplit('.').next().unwrap_or(function)
}

fn is_collective(function: &str) -> bool {
    let name = last_name(function).trim_start_matches('_');
    COLLECTIVES.iter().any(|collective| name.starts_with(collective))
}

/// The outermost collective among the frames of torch from the innermost frame outwards: what the user's code has called,
/// not what that is made of.
fn torch_collective(frames: &[Frame]) -> Option<String> {
    let mut found = None;
    for (depth, frame) in frames.iter().enumerate() {
        let name = last_name(&frame.function);
        match owner(&frame.file) {
            Owner::Python => {}
            Owner::Torch => {
                let path = in_torch(&frame.file);
                let bare = name.trim_start_matches('_');
                let is_of_peers = path.starts_with("distributed/") || path == "nn/parallel/distributed.py";
                let is_wait = is_of_peers || path.starts_with("cuda/") || path.starts_with("futures/");
                if path == "autograd/graph.py" && bare == "engine_run_backward"
                    || path.starts_with("autograd/") && bare == "run_backward"
                {
                    // Gradients are reduced inside of it, and what the peers are waited for in is not Python.
                    found = found.or(Some(BACKWARD.to_owned()));
                } else if is_of_peers && is_collective(name)
                    || is_wait && TORCH_WAITS.contains(&bare)
                    || depth == 0 && CALLS_OUT.contains(&path)
                {
                    found = Some(bare.to_owned());
                }
            }
            Owner::Package if is_collective(name) => found = Some(name.to_owned()),
            Owner::Package | Owner::User => break,
        }
    }
    found
}

/// Files of torch whose functions do nothing that lasts but call the peers.
const CALLS_OUT: [&str; 5] = [
    "distributed/distributed_c10d.py",
    "distributed/rendezvous.py",
    "distributed/utils.py",
    "distributed/_functional_collectives.py",
    "nn/parallel/distributed.py",
];

/// How deep the function of the user's own with the name of a collective is, the outermost of its file. But for
/// libraries, it calls only functions of its file, or it reads a socket.
fn own_collective(frames: &[Frame], reads_socket: bool) -> Option<usize> {
    let own = || frames.iter().enumerate().filter(|(_, frame)| owner(&frame.file) <= Owner::Package);
    let is_named = |frame: &Frame| {
        let name = last_name(&frame.function);
        name != "<module>" && is_collective(name)
    };
    let innermost = &own().next()?.1.file;
    let is_near =
        |frame: &Frame| frame.file == *innermost || reads_socket && owner(&frame.file) == Owner::User;
    let (depth, found) = own().take_while(|(_, frame)| is_near(frame)).find(|(_, frame)| is_named(frame))?;
    let in_file = own().skip_while(|(at, _)| *at < depth).take_while(|(_, frame)| frame.file == found.file);
    in_file.filter(|(_, frame)| is_named(frame)).map(|(at, _)| at).last()
}

/// The innermost native function that waits for a device or for peers, up to the first frame of the Python interpreter.
fn native_wait(frames: &[Frame]) -> Option<&str> {
    let of_call = frames.iter().take_while(|frame| !frame.function.contains("PyEval_"));
    let names = of_call.map(|frame| frame.function.split(['(', '<']).next().unwrap_or_default());
    names.filter(|name| NATIVE_WAITS.iter().any(|part| name.contains(part))).last()
}

/// Returns whose code a file is, by the directories that Python installs it into.
fn owner(file: &str) -> Owner {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, path)) = file.rsplit_once(folder) {
            return if path.starts_with("torch/") { Owner::Torch } else { Owner::Package };
        }
    }
    // py-spy can shorten paths to what is behind the directory of packages; a build from sources has no such directory.
    if file.starts_with("torch/") || file.contains("/pytorch/torch/") {
        return Owner::Torch;
    }
    let is_library =
        file.contains("/lib/python3") || file.contains("/lib64/python3") || file.starts_with("<frozen ");
    let is_shortened =
        SHORTENED.iter().any(|name| file == *name || name.ends_with('/') && file.starts_with(name));
    if is_library || is_shortened { Owner::Python } else { Owner::User }
}

/// Files of the standard library that waiting threads are in, in shortened form.
const SHORTENED: [&str; 9] = [
    "threading.py",
    "selectors.py",
    "queue.py",
    "socket.py",
    "ssl.py",
    "subprocess.py",
    "multiprocessing/",
    "concurrent/",
    "asyncio/",
];

/// The path of a file inside of torch.
fn in_torch(file: &str) -> &str {
    let inside = ["/site-packages/torch/", "/dist-packages/torch/", "/pytorch/torch/"];
    let found = inside.iter().find_map(|folder| file.rsplit_once(folder).map(|(_, path)| path));
    found.or_else(|| file.strip_prefix("torch/")).unwrap_or(file)
}

#[cfg(test)]
#[path = "place/tests.rs"]
mod tests;
