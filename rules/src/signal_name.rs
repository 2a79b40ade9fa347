//! Names of Linux's signals (`signal(7)`; the numbers of x86-64 and arm64).

/// What a terminal sends at Ctrl-C.
pub const SIGINT: i32 = 2;

/// `SIGTERM` for 15. Of the real-time signals only the first and the last have a name, as in Python.
#[must_use]
pub fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match signal {
        34 => Some("SIGRTMIN"),
        64 => Some("SIGRTMAX"),
        _ => NAMES.get(usize::try_from(signal).ok()?.checked_sub(1)?).copied(),
    }
}

/// The name, or `signal 40` for one that has none.
#[must_use]
pub fn signal_text(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// The signal by which a launcher is stopped: `SIGTERM`, `SIGINT (Ctrl-C)`.
#[must_use]
pub fn stop_signal(signal: i32) -> String {
    let name = signal_text(signal);
    if signal == SIGINT { name + " (Ctrl-C)" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_name() {
        assert_eq!(signal_name(1), Some("SIGHUP"));
        assert_eq!(signal_name(9), Some("SIGKILL"));
        assert_eq!(signal_name(15), Some("SIGTERM"));
        assert_eq!(signal_name(31), Some("SIGSYS"));
        assert_eq!((signal_name(0), signal_name(32), signal_name(-1)), (None, None, None));
        assert_eq!(signal_text(40), "signal 40");
        assert_eq!([stop_signal(2), stop_signal(15)], ["SIGINT (Ctrl-C)", "SIGTERM"]);
    }
}
