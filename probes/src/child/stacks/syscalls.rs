//! Names of the system calls in which a process may wait, by the numbers of this architecture.

use nix::libc;

/// The calls that matter for a hang, and that every architecture has.
const CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_close, "close"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_copy_file_range, "copy_file_range"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_pwait2, "epoll_pwait2"),
    (libc::SYS_execve, "execve"),
    (libc::SYS_exit, "exit"),
    (libc::SYS_exit_group, "exit_group"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_futex_waitv, "futex_waitv"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_getrandom, "getrandom"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_mq_timedreceive, "mq_timedreceive"),
    (libc::SYS_mq_timedsend, "mq_timedsend"),
    (libc::SYS_msgrcv, "msgrcv"),
    (libc::SYS_msgsnd, "msgsnd"),
    (libc::SYS_msync, "msync"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_newfstatat, "newfstatat"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_preadv2, "preadv2"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_pwritev2, "pwritev2"),
    (libc::SYS_read, "read"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend"),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
    (libc::SYS_sched_yield, "sched_yield"),
    (libc::SYS_semop, "semop"),
    (libc::SYS_semtimedop, "semtimedop"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_splice, "splice"),
    (libc::SYS_statx, "statx"),
    (libc::SYS_sync, "sync"),
    (libc::SYS_syncfs, "syncfs"),
    (libc::SYS_tee, "tee"),
    (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_vmsplice, "vmsplice"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
];

/// Calls that newer architectures have left out.
#[cfg(target_arch = "x86_64")]
const MORE_CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_access, "access"),
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_fork, "fork"),
    (libc::SYS_getdents, "getdents"),
    (libc::SYS_lstat, "lstat"),
    (libc::SYS_mkdir, "mkdir"),
    (libc::SYS_open, "open"),
    (libc::SYS_pause, "pause"),
    (libc::SYS_poll, "poll"),
    (libc::SYS_rename, "rename"),
    (libc::SYS_rmdir, "rmdir"),
    (libc::SYS_select, "select"),
    (libc::SYS_stat, "stat"),
    (libc::SYS_unlink, "unlink"),
    (libc::SYS_vfork, "vfork"),
];
#[cfg(not(target_arch = "x86_64"))]
const MORE_CALLS: &[(libc::c_long, &str)] = &[];

/// The name of the call in `/proc/PID/syscall`, `syscall N` for a number without a name here. `None`: the process is in
/// no call, or runs, or has taken up again a call whose number is no longer known, after a debugger or a dump had stopped
/// it; its wait channel tells what it waits for then.
pub(super) fn name_of_line(line: &str) -> Option<String> {
    let number: libc::c_long = line.split_ascii_whitespace().next()?.parse().ok()?;
    if number < 0 || number == libc::SYS_restart_syscall {
        return None;
    }
    let known = CALLS.iter().chain(MORE_CALLS).find(|(known, _)| *known == number);
    Some(known.map_or_else(|| format!("syscall {number}"), |(_, name)| (*name).to_owned()))
}

/// Calls that end when their thread is stopped, even if no signal is handled: with `EINTR` (signal(7)), or with the part
/// that has been written by then, which a program may well take for all of it. All others are taken up again by the kernel.
const ENDED_BY_A_STOP: &[&str] = &[
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "io_getevents",
    "io_uring_enter",
    "rt_sigtimedwait",
    "semop",
    "semtimedop",
    "sendfile",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "splice",
    "tee",
    "vmsplice",
    "write",
    "writev",
];

/// Calls that are ended so if their flags have `MSG_WAITALL`, and the place of the flags among the arguments.
const ENDED_WITH_A_PART: &[(&str, usize)] = &[("recvfrom", 3), ("recvmmsg", 3), ("recvmsg", 2)];

/// Stack pointer and instruction in a line of `/proc/PID/task/TID/syscall`, if the thread waits in a call that a stop would
/// end.
pub(super) fn not_to_be_stopped(line: &str) -> Option<(u64, u64)> {
    let name = name_of_line(line)?;
    // The number of the call, six arguments, the stack pointer and the instruction.
    let field = |place: usize| {
        u64::from_str_radix(line.split_ascii_whitespace().nth(place)?.strip_prefix("0x")?, 16).ok()
    };
    let waits_for_all = |flags: usize| {
        let all = u64::from(libc::MSG_WAITALL.unsigned_abs());
        field(1 + flags).is_some_and(|flags| flags & all != 0)
    };
    let is_ended = ENDED_BY_A_STOP.contains(&name.as_str())
        || ENDED_WITH_A_PART.iter().any(|(call, flags)| *call == name && waits_for_all(*flags));
    if !is_ended {
        return None;
    }
    Some((field(7)?, field(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_numbers() {
        let line = |number: libc::c_long| format!("{number} 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ffd 0x7f02");
        assert_eq!(name_of_line(&line(libc::SYS_futex)), Some("futex".to_owned()));
        assert_eq!(name_of_line(&line(9999)), Some("syscall 9999".to_owned()));
        assert_eq!(name_of_line(&line(libc::SYS_restart_syscall)), None);
        for nothing in ["running\n", "-1 0x7ffd 0x7f02", "", "x"] {
            assert_eq!(name_of_line(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_thread_whose_call_would_end_is_not_stopped() {
        let line = |number: libc::c_long| format!("{number} 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ffd 0x7f02\n");
        assert_eq!(not_to_be_stopped(&line(libc::SYS_epoll_pwait)), Some((0x7ffd, 0x7f02)));
        assert_eq!(not_to_be_stopped(&line(libc::SYS_write)), Some((0x7ffd, 0x7f02)));
        assert_eq!(not_to_be_stopped(&line(libc::SYS_futex)), None);
        assert_eq!(not_to_be_stopped(&line(libc::SYS_recvfrom)), None);
        let receives =
            |number: libc::c_long, arguments: &str| format!("{number} {arguments} 0x7ffd 0x7f02\n");
        for (number, arguments, is_ended) in [
            (libc::SYS_recvfrom, "0x3 0x7f 0x8 0x100 0x0 0x0", true),
            (libc::SYS_recvfrom, "0x3 0x7f 0x100 0x40 0x0 0x0", false),
            (libc::SYS_recvmsg, "0x3 0x7f 0x4100 0x0 0x0 0x0", true),
            (libc::SYS_recvmsg, "0x3 0x7f 0x0 0x100 0x0 0x0", false),
        ] {
            let found = not_to_be_stopped(&receives(number, arguments));
            assert_eq!(found.is_some(), is_ended, "{number} {arguments}");
        }
        assert_eq!(not_to_be_stopped(&format!("{} 0x3", libc::SYS_semop)), None);
        assert_eq!(not_to_be_stopped("running"), None);
    }

    #[test]
    fn no_call_has_two_names() {
        let numbers: std::collections::BTreeSet<_> =
            CALLS.iter().chain(MORE_CALLS).map(|(number, _)| number).collect();
        assert_eq!(numbers.len(), CALLS.len() + MORE_CALLS.len());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn numbers_of_x86_64() {
        for (number, name) in
            [(0, "read"), (7, "poll"), (202, "futex"), (230, "clock_nanosleep"), (232, "epoll_wait")]
        {
            assert_eq!(name_of_line(&number.to_string()), Some(name.to_owned()));
        }
    }
}
