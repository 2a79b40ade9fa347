//! The parsers of foreign input without the processes and hosts around them, for tests with arbitrary bytes
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

/// Parses the output of `nvidia-smi --query-gpu`.
///
/// # Errors
/// It is not a list.
pub fn nvidia_smi(text: &str) -> Result<Vec<Gpu>, String> {
    nvidia_smi::queried(text, Path::new("/dev/null"))
}

/// Parses the output of `mx-smi -L` and `mx-smi --show-memory`; with notes about unknown states.
#[must_use]
pub fn mx_smi(list: &str, memory: &str) -> (Vec<Gpu>, Vec<String>) {
    let listed = metax::listed(list);
    let notes = listed.iter().filter_map(metax::Listed::unknown_state).collect();
    let mut gpus: Vec<Gpu> = listed.into_iter().map(|it| it.gpu).collect();
    metax::memory(&mut gpus, memory);
    (gpus, notes)
}

/// Parses the topology table of `count` accelerators.
///
/// # Errors
/// It is not a table, or one of another size.
pub fn topology_table(text: &str, count: usize) -> Result<Matrix, String> {
    table::read(text, count)
}

/// A line of a check command, parsed as progress (bytes, total) and as the last line.
#[must_use]
pub fn check_command(line: &[u8]) -> (Option<(u64, u64)>, Probed) {
    (answer::progress(line).map(|partial| (partial.bytes, partial.total)), answer::judge(Some(line)))
}

/// The output of a program that measured a pair of the switchbox, parsed as that of `MetaX`'s tool and as that of a
/// program with the contract; and the names of the two devices.
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

/// Whether the acceptor of a ring with this token accepts `stream`.
#[must_use]
pub fn ring_accepts(stream: TcpStream, token: u64) -> bool {
    peers::read_hello(stream, token).is_some()
}

/// Whether the other end of `stream` accepts our hello.
#[must_use]
pub fn ring_connects(stream: TcpStream, token: u64, timeout: Duration) -> bool {
    peers::send_hello(stream, &hello(token), Some(timeout)).is_ok()
}

/// The two hellos of a dialling end and the two replies.
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
