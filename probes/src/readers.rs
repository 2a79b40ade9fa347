//! The readers of foreign words without the processes and hosts around them, for whoever feeds them any bytes
//! (`tests/support/inputs`).

use std::{net::TcpStream, path::Path, time::Duration};

use diagnosis::{
    gpu_topology::Matrix,
    gpus::Gpu,
    network_check::Probed,
    switchbox::{Answer, SocketPair, Style},
};
use rules::failure::ExitCause;

use crate::child::{
    command::answer,
    gpus::{metax, nvidia_smi, table},
    ring::{
        hello::{Hello, Kind},
        peers,
    },
    switchbox::{call::CallEnd, contract::Response, layout, mxom},
};

/// The answer of `nvidia-smi --query-gpu`.
///
/// # Errors
/// It is no list.
pub fn nvidia_smi(text: &str) -> Result<Vec<Gpu>, String> {
    nvidia_smi::queried(text, Path::new("/dev/null"))
}

/// The answers of `mx-smi -L` and of `mx-smi --show-memory`, and what it says of devices in words that nobody knows.
#[must_use]
pub fn mx_smi(list: &str, memory: &str) -> (Vec<Gpu>, Vec<String>) {
    let listed = metax::listed(list);
    let notes = listed.iter().filter_map(metax::Listed::unknown_state).collect();
    let mut gpus: Vec<Gpu> = listed.into_iter().map(|it| it.gpu).collect();
    metax::memory(&mut gpus, memory);
    (gpus, notes)
}

/// The table of what lies between so many accelerators.
///
/// # Errors
/// It is no table, or one of more or fewer.
pub fn topology_table(text: &str, count: usize) -> Result<Matrix, String> {
    table::read(text, count)
}

/// A line of the user's check command, taken as progress (bytes of how many) and as the last one.
#[must_use]
pub fn check_command(line: &[u8]) -> (Option<(u64, u64)>, Probed) {
    (answer::progress(line).map(|partial| (partial.bytes, partial.total)), answer::judge(Some(line)))
}

/// What a program said that measured a pair of the switchbox, taken as `MetaX`'s tool and as one that keeps to the
/// contract; and what that one calls the two devices.
#[must_use]
pub fn switchbox(
    stdout: &[u8],
    stderr: &[u8],
    pair: SocketPair,
) -> ([Option<Answer>; 3], Option<(String, String)>) {
    let end = CallEnd { cause: ExitCause::Code(0), stdout: stdout.to_vec(), stderr: stderr.to_vec() };
    let response = Response::of(&end).ok();
    let answer = |style| response.as_ref().map(|response| response.answer(pair, style));
    let answers = [Some(mxom::read(&end)), answer(Style::Repetitions), answer(Style::Calls)];
    (answers, response.as_ref().and_then(|response| response.devices_of(pair)))
}

/// The number of a name in a file of `MetaX`'s driver.
#[must_use]
pub fn driver_number(text: &str, key: &str) -> Option<Option<u32>> {
    layout::number(text, key)
}

/// Whether the door of a ring with this token lets in who has dialled `stream`.
#[must_use]
pub fn ring_accepts(stream: TcpStream, token: u64) -> bool {
    peers::read_hello(stream, token).is_some()
}

/// Whether who dials is welcome, by what the other end of `stream` says to its first word.
#[must_use]
pub fn ring_connects(stream: TcpStream, token: u64, timeout: Duration) -> bool {
    peers::send_hello(stream, &hello(token), Some(timeout)).is_ok()
}

/// The first word of who dials, and the answers to it that are known.
#[must_use]
pub fn ring_hellos(token: u64) -> [Vec<u8>; 4] {
    let hello = hello(token);
    let follow = Hello { kind: Kind::Follow, ..hello };
    [hello, follow, hello.answer(Kind::Accepted), hello.answer(Kind::Rejected)]
        .map(|message| message.encode().to_vec())
}

fn hello(token: u64) -> Hello {
    Hello { kind: Kind::Lead, token, members: 2, from: 0, to: 1 }
}
