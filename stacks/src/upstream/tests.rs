//! Files as upstream writes them, made by prost from messages with upstream's field numbers.

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::merged::Merged;

#[derive(Clone, PartialEq, Message)]
struct Stacktrace {
    #[prost(message, repeated, tag = "1")]
    stacktrace: Vec<NativeThread>,
    #[prost(message, repeated, tag = "2")]
    py_stacktrace: Vec<PythonThread>,
    #[prost(int32, tag = "3")]
    pid: i32,
    #[prost(int32, tag = "4")]
    rank: i32,
    #[prost(string, tag = "5")]
    pstack_stdout: String,
    #[prost(string, tag = "8")]
    pyspy_stderr: String,
    #[prost(string, tag = "11")]
    process_state: String,
}

#[derive(Clone, PartialEq, Message)]
struct NativeThread {
    #[prost(uint32, tag = "1")]
    pid: u32,
    #[prost(string, tag = "2")]
    thread_name: String,
    #[prost(message, repeated, tag = "3")]
    frames: Vec<WireFrame>,
}

#[derive(Clone, PartialEq, Message)]
struct PythonThread {
    #[prost(uint32, tag = "1")]
    pid: u32,
    #[prost(uint64, tag = "2")]
    thread_id: u64,
    #[prost(string, tag = "3")]
    thread_name: String,
    #[prost(bool, tag = "5")]
    active: bool,
    #[prost(message, repeated, tag = "7")]
    frames: Vec<WireFrame>,
}

#[derive(Clone, PartialEq, Message)]
struct WireFrame {
    #[prost(string, tag = "1")]
    func_name: String,
    #[prost(string, tag = "2")]
    file_name: String,
    /// The module of a Python frame, the whole line of a native one.
    #[prost(string, tag = "3")]
    third: String,
}

fn wire(func: &str, file: &str) -> WireFrame {
    WireFrame { func_name: func.into(), file_name: file.into(), third: "unused".into() }
}

fn name(rank: u32) -> DumpName {
    DumpName { rank, world_size: 8 }
}

fn stacktrace() -> Stacktrace {
    Stacktrace {
        stacktrace: vec![NativeThread {
            pid: 77,
            thread_name: "python3".into(),
            frames: vec![
                wire("pthread_cond_wait@@GLIBC_2.3.2", "/usr/lib64/libpthread.so.0"),
                wire("main", "??"),
            ],
        }],
        py_stacktrace: vec![PythonThread {
            pid: 77,
            thread_id: 140_000_000_000,
            thread_name: "MainThread".into(),
            active: true,
            frames: vec![wire("step", "train.py:5"), wire("<module>", "train.py:10")],
        }],
        pid: 77,
        rank: 3,
        pstack_stdout: "x".repeat(100_000),
        pyspy_stderr: "Traceback\nKeyError: 'pid'\n\n".into(),
        process_state: "S (sleeping)".into(),
    }
}

fn faulty(bytes: &[u8]) -> UpstreamError {
    read(name(3), bytes).unwrap_err()
}

#[test]
fn a_file_of_upstream_is_read() {
    let dump = read(name(3), &stacktrace().encode_to_vec()).unwrap();
    assert_eq!((dump.rank, dump.world_size, dump.pid), (3, 8, Some(77)));
    assert_eq!(dump.state.as_deref(), Some("S (sleeping)"));
    assert_eq!(dump.notes, ["py-spy: KeyError: 'pid'"]);
    assert_eq!(dump.python[0].name, "MainThread");
    assert_eq!(
        dump.python[0].frames[0],
        Frame { function: "step".into(), file: "train.py".into(), line: Some(5) }
    );
    let merged = Merged::of([&dump]);
    assert_eq!(
        merged.native.text(),
        "State@S (sleeping)@3|0-2/4-7 1\n\
         main@??@3|0-2/4-7;pthread_cond_wait@@GLIBC_2.3.2@/usr/lib64/libpthread.so.0@3|0-2/4-7 1\n"
    );
}

/// Upstream takes no stacks of a process in uninterruptible sleep: the file has its state and nothing else.
#[test]
fn a_file_with_a_state_only() {
    let file = Stacktrace { pid: 5, process_state: "D (disk sleep)".into(), ..Stacktrace::default() }
        .encode_to_vec();
    let dump = read(name(0), &file).unwrap();
    assert_eq!(Merged::of([&dump]).python.text(), "State@D (disk sleep)@0|1-7 1\n");
}

/// Whatever a source looks like, the word of the frame is that of upstream.
#[test]
fn a_source_is_written_as_it_was_read() {
    for source in ["a.py:10", "a.py:007", "a.py:", ":5", "??", "", "C:\\a.py:3", "a.py:99999999999", "a:1:2"]
    {
        let (file, line) = split_line(source);
        let frame = Frame { function: "f".into(), file: file.into(), line };
        assert_eq!(crate::token::of_frame(&frame), format!("f@{source}"));
    }
}

#[test]
fn faults_have_their_place() {
    assert_eq!(faulty(b"\x0a"), UpstreamError { at: 1, fault: Fault::Truncated });
    assert_eq!(faulty(b"\x18\x01\x0a\x05\x12"), UpstreamError { at: 4, fault: Fault::Truncated });
    assert_eq!(faulty(b"\x00\x00"), UpstreamError { at: 0, fault: Fault::FieldZero });
    assert_eq!(faulty(b"\x0b"), UpstreamError { at: 0, fault: Fault::WireType(3) });
    assert_eq!(
        faulty(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        UpstreamError { at: 1, fault: Fault::LongNumber }
    );
    assert_eq!(faulty(b"\x5a\x02a\xff"), UpstreamError { at: 3, fault: Fault::NotUtf8 });
    // A thread with a name that is longer than its message.
    assert_eq!(faulty(b"\x0a\x03\x12\x09a"), UpstreamError { at: 4, fault: Fault::Truncated });
    assert_eq!(faulty(b"\x0b").to_string(), "byte 0: wire type 3 is not used by stack traces");
}

#[test]
fn counts_are_limited() {
    assert_eq!(faulty(&b"\x0a\x00".repeat(MAX_THREADS + 1)).fault, Fault::TooManyThreads);
    let frames = b"\x1a\x00".repeat(MAX_FRAMES + 1);
    let thread = [&b"\x0a"[..], &varint(frames.len()), &frames].concat();
    assert_eq!(faulty(&thread).fault, Fault::TooManyFrames);
    let state = [&b"\x5a"[..], &varint(MAX_NAME + 1), &vec![b'a'; MAX_NAME + 1]].concat();
    assert_eq!(faulty(&state).fault, Fault::LongName);
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::char::range('!', '~'), 0..12).prop_map(|text| text.into_iter().collect())
}

fn frames() -> impl Strategy<Value = Vec<WireFrame>> {
    let frame = (text(), text()).prop_map(|(func, file)| wire(&func, &file));
    prop::collection::vec(frame, 0..5)
}

proptest! {
    #[test]
    fn what_prost_writes_is_read(native in prop::collection::vec(frames(), 0..4), python in prop::collection::vec(frames(), 0..4)) {
        let message = Stacktrace {
            stacktrace: native.iter().map(|frames| NativeThread { frames: frames.clone(), ..NativeThread::default() }).collect(),
            py_stacktrace: python.iter().map(|frames| PythonThread { frames: frames.clone(), ..PythonThread::default() }).collect(),
            ..stacktrace()
        };
        let dump = read(name(3), &message.encode_to_vec()).unwrap();
        for (threads, expected) in [(&dump.native, &native), (&dump.python, &python)] {
            prop_assert_eq!(threads.len(), expected.len());
            for (thread, frames) in threads.iter().zip(expected) {
                let tokens: Vec<String> = thread.frames.iter().map(crate::token::of_frame).collect();
                let expected: Vec<String> =
                    frames.iter().map(|frame| format!("{}@{}", frame.func_name, frame.file_name).replace(';', "\\x3b")).collect();
                prop_assert_eq!(tokens, expected);
            }
        }
    }

    #[test]
    fn bytes_give_a_dump_or_a_place_inside_of_them(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Err(error) = read(name(3), &bytes) {
            prop_assert!(error.at <= bytes.len());
        }
    }
}
