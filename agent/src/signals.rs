//! Operating system signals -> events.

use std::{io, str::FromStr as _};

use nix::sys::signal::Signal;
use rules::worker_group::Event;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// What batch systems send to announce something; workers want it, and it must not end the launcher.
const PASSED_ON: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// From now on the signals named in `ending` end the run, and SIGUSR1 and SIGUSR2 are passed on. Gives the
/// names that mean nothing here; the rest are handled.
///
/// SIGHUP (`nohup`), SIGUSR1 and SIGUSR2 that were ignored when the launcher started stay ignored, unless
/// `ending` names one of the latter two.
///
/// # Errors
/// When the system refuses a handler.
pub fn listen<E>(ending: &[String], events: &mpsc::Sender<E>) -> io::Result<Vec<String>>
where
    E: From<Event> + Send + 'static,
{
    let mut unknown = Vec::new();
    let mut handled = Vec::new();
    for name in ending {
        match Signal::from_str(name.trim()) {
            // The first three cannot be handled or are ours; the others are faults of the launcher's own code, and
            // no handler could go on after one.
            Ok(
                Signal::SIGKILL
                | Signal::SIGSTOP
                | Signal::SIGCHLD
                | Signal::SIGILL
                | Signal::SIGFPE
                | Signal::SIGSEGV,
            )
            | Err(_) => unknown.push(name.clone()),
            Ok(known) => handled.push(known),
        }
    }
    handled.sort_unstable();
    handled.dedup();
    if is_ignored(Signal::SIGHUP) {
        handled.retain(|signal| *signal != Signal::SIGHUP);
    }
    for signal in &handled {
        forward(*signal, events.clone(), |signal| Event::Signalled { signal })?;
    }
    for signal in PASSED_ON.iter().filter(|signal| !handled.contains(signal) && !is_ignored(**signal)) {
        forward(*signal, events.clone(), |signal| Event::Forwarded { signal })?;
    }
    Ok(unknown)
}

fn forward<E>(which: Signal, events: mpsc::Sender<E>, event: fn(i32) -> Event) -> io::Result<()>
where
    E: From<Event> + Send + 'static,
{
    let mut stream = signal(SignalKind::from_raw(which as i32))?;
    tokio::spawn(async move {
        while stream.recv().await.is_some() {
            if events.send(event(which as i32).into()).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Whether a signal is ignored by this process, as `/proc/self/status` tells (bit n-1 of `SigIgn`).
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_that_cannot_be_handled_is_named_and_the_rest_are() {
        let (events, _heard) = mpsc::channel::<Event>(1);
        let names = ["SIGSEGV", "SIGTERM", "SIGKILL", "SIGFPE"].map(String::from);
        assert_eq!(listen(&names, &events).unwrap(), ["SIGSEGV", "SIGKILL", "SIGFPE"]);
    }
}
