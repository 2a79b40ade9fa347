//! What is known of one rank at the moment of a dump.

use serde::{Deserialize, Serialize};

/// Limits of [`RankDump::bounded`]. A process of a few hundred threads stays below them.
const MAX_THREADS: usize = 1024;
const MAX_FRAMES: usize = 8192;
const MAX_TEXT: usize = 512;
const MAX_NOTES: usize = 32;

/// One rank: its process, its stacks, and what could not be read of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankDump {
    pub rank: u32,
    pub world_size: u32,
    /// The host of the process, for people; empty when unknown.
    #[serde(default)]
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The rank has no process: it has exited, or was never started. Not set when this is merely unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// The `State:` line of `/proc/PID/status`, as `S (sleeping)`, read before the stacks: reading them stops the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The last step that the rank is known to have finished, if its progress is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The kernel function in which the main thread waits (`/proc/PID/wchan`), if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// The name of the system call that the main thread is in, as `clock_nanosleep`, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syscall: Option<String>,
    #[serde(default)]
    pub python: Vec<Thread>,
    #[serde(default)]
    pub native: Vec<Thread>,
    /// What could not be read, and why, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One thread. Frames are **innermost first**, as debuggers and py-spy print them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub name: String,
    pub frames: Vec<Frame>,
}

/// One call. Of native frames without debug information `file` is the library, or `??`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    pub function: String,
    pub file: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl RankDump {
    /// A rank of which nothing is known yet.
    #[must_use]
    pub fn new(rank: u32, world_size: u32) -> Self {
        Self { rank, world_size, ..Self::default() }
    }

    /// A rank without a process.
    #[must_use]
    pub fn gone(rank: u32, world_size: u32) -> Self {
        Self { gone: true, ..Self::new(rank, world_size) }
    }

    /// A rank of which nothing could be read, and why.
    #[must_use]
    pub fn unread(rank: u32, world_size: u32, why: impl Into<String>) -> Self {
        Self { notes: vec![why.into()], ..Self::new(rank, world_size) }
    }

    /// The dump in a size that a message or a file may have, with a note about what was left out. Of a stack that is too
    /// deep the innermost frames stay, because they say where the thread is.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let mut left_out = 0;
        let mut room = MAX_FRAMES;
        for threads in [&mut self.python, &mut self.native] {
            left_out += threads.iter().skip(MAX_THREADS).map(|thread| thread.frames.len()).sum::<usize>();
            threads.truncate(MAX_THREADS);
            for thread in threads {
                left_out += thread.frames.len().saturating_sub(room);
                thread.frames.truncate(room);
                room -= thread.frames.len();
                cut(&mut thread.name);
                for frame in &mut thread.frames {
                    cut(&mut frame.function);
                    cut(&mut frame.file);
                }
            }
        }
        self.notes.truncate(MAX_NOTES);
        if left_out > 0 {
            self.notes.push(format!("frames left out: {left_out} (maximum: {MAX_FRAMES} per rank)"));
        }
        let optional = [&mut self.state, &mut self.wchan, &mut self.syscall];
        optional.into_iter().flatten().chain([&mut self.host]).chain(&mut self.notes).for_each(cut);
        self
    }
}

impl Thread {
    /// Returns whether this is the thread in which Python, or the program, was started.
    pub(crate) fn is_main(&self) -> bool {
        const ROOTS: [&str; 7] = [
            "_start",
            "main",
            "Py_BytesMain",
            "Py_RunMain",
            "__libc_start_main",
            "__libc_start_call_main",
            "<module>",
        ];
        let roots = self.frames.iter().rev().take(4);
        self.name == "MainThread"
            || roots.map(|frame| frame.function.as_str()).any(|root| ROOTS.contains(&root))
            || self.frames.last().is_some_and(|root| root.function.starts_with("__libc_start_main"))
    }
}

/// The main one of some threads: that of this name, else that with the root of a program, else the first.
pub(crate) fn main_thread(threads: &[Thread]) -> Option<&Thread> {
    let with_frames = || threads.iter().filter(|thread| !thread.frames.is_empty());
    with_frames()
        .find(|thread| thread.name == "MainThread")
        .or_else(|| with_frames().find(|thread| thread.is_main()))
        .or_else(|| with_frames().next())
}

fn cut(text: &mut String) {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT - 3).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(name: &str, functions: &[&str]) -> Thread {
        let frame = |function: &&str| Frame { function: (*function).to_owned(), ..Frame::default() };
        Thread { name: name.to_owned(), frames: functions.iter().map(frame).collect() }
    }

    #[test]
    fn a_bounded_dump_keeps_the_innermost_frames_and_says_what_it_lost() {
        let functions: Vec<String> = (0..MAX_FRAMES + 8).map(|number| format!("f{number}")).collect();
        let functions: Vec<&str> = functions.iter().map(String::as_str).collect();
        let mut dump = RankDump::new(3, 8);
        dump.python = vec![thread(&"ä".repeat(MAX_TEXT), &functions), thread("b", &["g"])];
        let bounded = dump.bounded();
        assert_eq!(bounded.python[0].frames.len(), MAX_FRAMES);
        assert_eq!(bounded.python[0].frames[0].function, "f0");
        assert!(bounded.python[0].name.len() <= MAX_TEXT && bounded.python[0].name.ends_with("ä..."));
        assert_eq!(bounded.notes, ["frames left out: 9 (maximum: 8192 per rank)"]);
    }

    #[test]
    fn a_usual_dump_is_within_its_bounds() {
        let mut dump = RankDump::unread(3, 8, "no gdb");
        dump.native = vec![thread("python3", &["poll", "main"]); 200];
        assert_eq!(dump.clone().bounded(), dump);
    }

    #[test]
    fn the_main_thread_is_found_by_name_then_by_its_root() {
        let feeder = thread("QueueFeederThread", &["wait", "_bootstrap"]);
        let main = thread("MainThread", &["step", "<module>"]);
        assert_eq!(main_thread(&[feeder.clone(), main.clone()]), Some(&main));
        let unnamed = thread("unknown", &["step", "<module>"]);
        assert_eq!(main_thread(&[feeder.clone(), unnamed.clone()]), Some(&unnamed));
        let native = thread(
            "python3",
            &["poll", "main", "__libc_start_call_main", "__libc_start_main_impl", "_start"],
        );
        assert_eq!(main_thread(&[feeder.clone(), native.clone()]), Some(&native));
        assert_eq!(main_thread(std::slice::from_ref(&feeder)), Some(&feeder));
        assert_eq!(main_thread(&[thread("MainThread", &[])]), None);
    }
}
