//! Operating system signals -> events.

use std::{io, str::FromStr as _};

use nix::sys::signal::Signal;
use rules::worker_group::Event;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// Batch systems send these as notices; they are forwarded to the workers and do not end the launcher.
const FORWARDED: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];

/// Makes the signals named in `ending` end the run, and forwards SIGUSR1 and SIGUSR2. Returns the names that cannot
/// be handled; the rest are.
///
/// SIGHUP (`nohup`), SIGUSR1 and SIGUSR2 that were ignored when the launcher started stay ignored, unless `ending`
/// names one of the latter two.
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
            // The first three cannot be handled or are used by the launcher; the others are faults of its own code,
            // after which a handler could not continue.
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
    let ignored = Ignored::by_this_process();
    if ignored.has(Signal::SIGHUP) {
        handled.retain(|signal| *signal != Signal::SIGHUP);
    }
    for signal in &handled {
        forward(*signal, events.clone(), |signal| Event::Signalled { signal })?;
    }
    for signal in FORWARDED.iter().filter(|signal| !handled.contains(signal) && !ignored.has(**signal)) {
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

/// The signals that this process ignores: bit n-1 is that of signal n.
struct Ignored(u64);

impl Ignored {
    /// By `SigIgn` of `/proc/self/status`; none where it cannot be read.
    fn by_this_process() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    fn has(&self, signal: Signal) -> bool {
        self.0 >> (signal as i32 - 1) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_that_cannot_be_handled_is_named_and_the_rest_handled() {
        let (events, _heard) = mpsc::channel::<Event>(1);
        let names = ["SIGSEGV", "SIGTERM", "SIGKILL", "SIGFPE"].map(String::from);
        assert_eq!(listen(&names, &events).unwrap(), ["SIGSEGV", "SIGKILL", "SIGFPE"]);
    }
}
