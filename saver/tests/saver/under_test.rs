//! A program that can be a saver, as the launcher is; for the tests also a worker, and a launcher with a saver.

#![expect(clippy::unwrap_used, reason = "it is part of the tests")]

#[expect(dead_code, reason = "the tests use all of it")]
mod client;

use std::{
    env,
    io::{self, BufRead as _, Write as _},
    os::fd::AsRawFd as _,
    process::{Command, ExitCode, Stdio},
};

use checkpoint::message::{Keep, Request, Storage};
use client::{Client, Facts};

fn main() -> ExitCode {
    if let Some(code) = saver::run_if_saver() {
        return code;
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["worker", name, dir, rank, world, round, bytes, storage] => {
            let (rank, world) = (rank.parse().unwrap(), world.parse().unwrap());
            let mut facts = Facts::sharded(dir, rank, world);
            facts.round = round.parse().unwrap();
            // However often it is killed, its files need a few hundred MB.
            facts.keep = Some(Keep::Latest(50));
            work(name, &facts, bytes.parse().unwrap(), storage);
        }
        ["asker", name] => ask(name),
        ["stranger", name] => {
            become_another_user();
            ask(name);
        }
        ["loader", name, dir] => load_data(name, dir),
        ["launcher", name, id, holder] => launch(name, id, holder),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// Prints a line that the test waits for.
fn say(line: &str) {
    let mut stdout = io::stdout().lock();
    stdout.write_all(format!("{line}\n").as_bytes()).unwrap();
    stdout.flush().unwrap();
}

/// Waits for the end of standard input.
fn rest() {
    let mut line = String::new();
    while io::stdin().lock().read_line(&mut line).is_ok_and(|length| length > 0) {}
}

/// Loads, and saves one step after the other, until it is killed. `storage`: `memory`, `disk`, or `mixed`.
fn work(name: &str, facts: &Facts, bytes: u64, storage: &str) {
    let mut client = Client::connect(name).unwrap();
    client.hello(facts);
    let (reply, slot) = client.load(None);
    let mut step = 0;
    if let Some(slot) = slot {
        let (found, content) = client::read(&slot);
        assert_eq!(content, client::state(found, facts.rank, bytes), "step {found} in memory is torn");
        step = found;
    }
    let checkpoint::message::Reply::Loaded { source, step: loaded, slot, path, .. } = reply else { panic!() };
    if let Some(slot) = slot {
        client.get(&Request::LoadedDone { slot });
    }
    step = loaded.unwrap_or(step);
    say(&format!("loaded {source:?} {step} {}", path.unwrap_or_default()));
    let slots = client.alloc(bytes);
    loop {
        // Ranks of a job save the same steps: the test lets all of them take the next one.
        if facts.world > 1 && io::stdin().lock().read_line(&mut String::new()).unwrap() == 0 {
            return;
        }
        step += 1;
        let storage = match storage {
            "disk" => Storage::Disk,
            "mixed" if step % 3 == 0 => Storage::Disk,
            _ => Storage::Memory,
        };
        client.save(facts, &slots, step, bytes, storage);
        say(&format!("saved {step}"));
    }
}

/// Asks for the status and prints the answer.
fn ask(name: &str) {
    let answer = Client::connect(name).unwrap().ask(&Request::Status {});
    say(&format!("{answer:?}"));
}

fn become_another_user() {
    nix::unistd::setgroups(&[]).unwrap();
    nix::unistd::setgid(65534.into()).unwrap();
    nix::unistd::setuid(65534.into()).unwrap();
}

/// A worker that begins a save, and has a child that keeps its socket open.
#[expect(clippy::zombie_processes, reason = "it is killed before its child")]
fn load_data(name: &str, dir: &str) {
    let facts = Facts::alone(dir);
    let mut client = Client::connect(name).unwrap();
    client.hello(&facts);
    let slots = client.alloc(1 << 20);
    client.save(&facts, &slots, 1, 1 << 20, Storage::Memory);
    let (slot, _) = client.begin(2, 1 << 20);
    let file = &slots.iter().find(|known| known.id == slot).unwrap().file;
    // SAFETY: plain numbers.
    unsafe { libc::fcntl(client.socket.as_raw_fd(), libc::F_SETFD, 0) };
    let child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    client::write(file, &facts, 2, 1 << 20, |done| {
        if done > 512 << 10 {
            say(&format!("copying {}", child.id()));
            rest();
        }
    })
    .unwrap();
}

/// A launcher with this id: it starts a saver, says its process id, and waits to be killed. `holder`: whether another
/// process holds all its descriptors open.
fn launch(name: &str, id: &str, holder: &str) {
    use std::os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    };
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = saver::parent::SaverOptions { run_id: client::crate_run_id(), allowance: 8 << 30 };
        let program = saver::parent::SaverProgram {
            launcher_id: Some(id.to_owned()),
            ..saver::parent::SaverProgram::default()
        };
        let round = checkpoint::message::ToSaver::Round {
            round: 0,
            world: 1,
            first_rank: 0,
            local_world_size: 1,
            restore: Vec::new(),
            memory_is_void: false,
        };
        let mut saver =
            saver::parent::SaverProcess::start(&program, &options, listener.as_fd(), vec![round]).unwrap();
        if holder == "held" {
            // SAFETY: the child only sleeps, and is killed by the test.
            if unsafe { libc::fork() } == 0 {
                // The test waits for the end of it.
                // SAFETY: plain numbers.
                unsafe { libc::close(libc::STDOUT_FILENO) };
                loop {
                    // SAFETY: no preconditions.
                    unsafe { libc::pause() };
                }
            }
        }
        say(&format!("saver {}", saver.pid()));
        while saver.next().await.is_some() {}
    });
}
