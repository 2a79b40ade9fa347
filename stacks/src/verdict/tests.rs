//! Verdicts on stacks of torch, captured from small gloo jobs, and on made-up ones.

use proptest::prelude::*;

use super::*;
use crate::{document, model::Thread};

/// Two ranks of torch 2.15 with gloo, by py-spy and gdb. In most of them rank 1 leaves its part out.
fn captured(lines: &str) -> Vec<RankDump> {
    let read = |(rank, line): (usize, &str)| {
        document::read(&format!("{rank:05}-00002.stacktrace"), line.as_bytes()).expect("a dump")
    };
    lines.lines().enumerate().map(read).collect()
}

macro_rules! captured {
    ($name:literal) => {
        captured(include_str!(concat!("captured/", $name, ".jsonl")))
    };
}

/// More ranks that are where the first one is: the second becomes the last.
fn widened(two: Vec<RankDump>, world_size: u32) -> Vec<RankDump> {
    let last = world_size - 1;
    (0..world_size)
        .map(|rank| RankDump { rank, world_size, ..two[usize::from(rank == last)].clone() })
        .collect()
}

fn frame(text: &str) -> Frame {
    let (function, source) = text.split_once('@').expect("func@file:line");
    let (file, line) = source.rsplit_once(':').expect("file:line");
    Frame { function: function.to_owned(), file: file.to_owned(), line: line.parse().ok() }
}

fn dump(rank: u32, world_size: u32, stack: &str) -> RankDump {
    let frames = stack.split(';').rev().map(frame).collect();
    RankDump {
        state: Some("S (sleeping)".to_owned()),
        python: vec![Thread { name: "MainThread".to_owned(), frames }],
        ..RankDump::new(rank, world_size)
    }
}

/// All ranks with one stack, but for some.
fn dumps(world_size: u32, stack: &str, others: &[(u32, &str)]) -> Vec<RankDump> {
    let stack_of = |rank| others.iter().find(|(other, _)| *other == rank).map_or(stack, |(_, stack)| stack);
    (0..world_size).map(|rank| dump(rank, world_size, stack_of(rank))).collect()
}

const WAITING: &str = "<module>@/w/train.py:10;step@/w/train.py:5;all_reduce@/x/site-packages/torch/distributed/distributed_c10d.py:4181";
const LOADING: &str = "<module>@/w/train.py:10;step@/w/train.py:4;next_batch@/w/data_loader.py:41";
const AT_BARRIER: &str = "<module>@/w/train.py:10;step@/w/train.py:6;barrier@/x/site-packages/torch/distributed/distributed_c10d.py:6614";

#[track_caller]
fn check(dumps: &[RankDump], headline: &str, suspects: &[u32]) -> Verdict {
    let verdict = Verdict::of(dumps);
    assert_eq!(verdict.headline, headline);
    assert_eq!(verdict.suspects.keys().copied().collect::<Vec<_>>(), suspects);
    verdict
}

#[test]
fn one_rank_in_its_data_loader() {
    let verdict = check(
        &dumps(8, WAITING, &[(6, LOADING)]),
        "rank 6 is in data_loader.py:41 next_batch; 0-5,7 wait in all_reduce",
        &[6],
    );
    assert!(verdict.singles_out());
    assert_eq!(
        verdict.details,
        [
            "rank 6: state S (sleeping); next_batch (/w/data_loader.py:41), called from step (/w/train.py:4), called from <module> (/w/train.py:10)"
        ]
    );
}

#[test]
fn captured_jobs_of_torch() {
    for (dumps, headline, suspects) in [
        (captured!("sleep"), "rank 1 is in train.py:23 next_batch; 0 waits in all_reduce", &[1][..]),
        (captured!("loop"), "rank 1 is in train.py:25 next_batch; 0 waits in all_reduce", &[1]),
        (captured!("lock"), "rank 1 is in train.py:28 next_batch; 0 waits in all_reduce", &[1]),
        (captured!("dataset"), "rank 1 is in train.py:19 read_sample; 0 waits in backward", &[1]),
        (captured!("workers"), "rank 1 is in train.py:31 next_batch; 0 waits in backward", &[1]),
        (captured!("ddp"), "rank 1 is in train.py:45 train; 0 waits in backward", &[1]),
        (captured!("init"), "rank 1 is in train.py:81 main; 0 waits in init_process_group", &[1]),
        (captured!("monitored"), "rank 1 is in train.py:73 train; 0 waits in monitored_barrier", &[1]),
        (captured!("object"), "rank 1 is in train.py:62 train; 0 waits in all_gather_object", &[1]),
        (captured!("save"), "rank 0 is in train.py:66 train; 1 waits in broadcast", &[0]),
        // Calls without a Python frame: only the native stack says that they wait.
        (captured!("async"), "rank 1 is in train.py:69 train; 0 waits in c10d::Work::wait", &[1]),
        (captured!("store"), "rank 1 is in train.py:76 train; 0 waits in c10d::PrefixStore::get", &[1]),
        // Of two ranks neither is the odd one.
        (captured!("skip"), "rank 0 waits in all_reduce while rank 1 waits in barrier", &[0, 1]),
        (captured!("backward"), "rank 0 waits in backward while rank 1 waits in barrier", &[0, 1]),
        // Of four it is the one that skipped a collective.
        (widened(captured!("skip"), 4), "rank 3 waits in barrier while 0-2 wait in all_reduce", &[3]),
        (widened(captured!("backward"), 4), "rank 3 waits in barrier while 0-2 wait in backward", &[3]),
    ] {
        check(&dumps, headline, suspects);
    }
}

/// Without native stacks a wait in a builtin is a line like another; most ranks are taken for the victims.
#[test]
fn without_a_known_wait_the_minority_is_named() {
    let mut dumps = widened(captured!("async"), 4);
    dumps.iter_mut().for_each(|dump| dump.native.clear());
    check(&dumps, "rank 3 is in train.py:69 train; the other ranks: 0-2 in train.py:71 train", &[3]);
}

#[test]
fn what_a_suspect_does_is_told() {
    let verdict = Verdict::of(&captured!("async"));
    assert_eq!(
        verdict.suspects[&1],
        Reason::Elsewhere { place: "train.py:69 train".to_owned(), doing: Doing::Sleeping }
    );
    assert!(
        verdict.details[0].contains(": sleeps; state S (sleeping); train (/work/train.py:69)"),
        "{:?}",
        verdict.details
    );
}

#[test]
fn all_in_the_same_collective_names_nobody() {
    let verdict = check(&dumps(8, WAITING, &[]), "all 8 ranks wait in all_reduce at train.py:5 step", &[]);
    assert!(!verdict.singles_out());
    check(&dumps(1, WAITING, &[]), "rank 0 waits in all_reduce at train.py:5 step", &[]);
}

#[test]
fn a_skipped_collective() {
    let verdict = check(
        &dumps(4, WAITING, &[(3, AT_BARRIER)]),
        "rank 3 waits in barrier while 0-2 wait in all_reduce",
        &[3],
    );
    assert_eq!(verdict.suspects[&3].to_string(), "waiting in barrier, called from train.py:6 step");
    check(
        &dumps(6, WAITING, &[(1, AT_BARRIER), (4, AT_BARRIER)]),
        "ranks 1,4 wait in barrier while 0,2-3,5 wait in all_reduce",
        &[1, 4],
    );
    check(
        &dumps(4, WAITING, &[(2, AT_BARRIER), (3, AT_BARRIER)]),
        "ranks 0-1 wait in all_reduce while ranks 2-3 wait in barrier",
        &[0, 1, 2, 3],
    );
}

/// Of as many ranks in each call those have left one out that are ahead.
#[test]
fn a_tie_is_broken_by_counted_steps() {
    let mut dumps = dumps(2, WAITING, &[(1, AT_BARRIER)]);
    let with_steps = |dumps: &mut [RankDump], steps: [Option<u64>; 2]| {
        dumps.iter_mut().zip(steps).for_each(|(dump, step)| dump.step = step);
    };
    let tie = "rank 0 waits in all_reduce while rank 1 waits in barrier";
    with_steps(&mut dumps, [Some(7), Some(8)]);
    check(&dumps, "rank 1 waits in barrier while 0 waits in all_reduce; rank 1 is ahead (step 8)", &[1]);
    with_steps(&mut dumps, [Some(9), Some(8)]);
    check(&dumps, "rank 0 waits in all_reduce while 1 waits in barrier; rank 0 is ahead (step 9)", &[0]);
    with_steps(&mut dumps, [Some(8), Some(8)]);
    check(&dumps, tie, &[0, 1]);
    with_steps(&mut dumps, [None, Some(8)]);
    check(&dumps, tie, &[0, 1]);
}

#[test]
fn the_same_collective_from_another_line() {
    let later = WAITING.replace("step@/w/train.py:5", "evaluate@/w/eval.py:60");
    check(
        &dumps(4, WAITING, &[(2, &later)]),
        "rank 2 waits in all_reduce at eval.py:60 evaluate while 0-1,3 wait in all_reduce at train.py:5 step",
        &[2],
    );
    // The line of the call is the same, what has called that is not.
    let average =
        |from: &str| WAITING.replace("step@/w/train.py:5", &format!("{from};average@/w/train.py:34"));
    check(
        &dumps(4, &average("step@/w/train.py:55"), &[(2, &average("step@/w/train.py:71"))]),
        "rank 2 waits in all_reduce at train.py:71 step while 0-1,3 wait in all_reduce at train.py:55 step",
        &[2],
    );
}

/// A rank on another way to the same call is not odd when another rank is known to be.
#[test]
fn ranks_that_wait_are_no_suspects_when_others_do_not() {
    check(
        &dumps(4, WAITING, &[(0, AT_BARRIER), (3, LOADING)]),
        "rank 3 is in data_loader.py:41 next_batch; 0 waits in barrier; 1-2 wait in all_reduce",
        &[3],
    );
}

#[test]
fn a_rank_elsewhere_is_a_suspect_even_in_the_majority() {
    check(
        &dumps(4, LOADING, &[(2, WAITING)]),
        "ranks 0-1,3 are in data_loader.py:41 next_batch; 2 waits in all_reduce",
        &[0, 1, 3],
    );
}

#[test]
fn states_of_processes() {
    type Change = fn(&mut RankDump);
    let with = |change: Change| {
        let mut dumps = dumps(8, WAITING, &[]);
        change(&mut dumps[6]);
        dumps
    };
    let cases: [(Change, &str); 8] = [
        (|dump| dump.state = Some("T (stopped)".to_owned()), "rank 6 is stopped (SIGSTOP)"),
        (|dump| dump.state = Some("Z (zombie)".to_owned()), "rank 6 has no main thread any more"),
        (|dump| (dump.state, dump.gone) = (Some("Z (zombie)".to_owned()), true), "rank 6 has no process"),
        (|dump| *dump = RankDump::gone(6, 8), "rank 6 has no process"),
        (
            |dump| {
                *dump = RankDump {
                    state: Some("D (disk sleep)".to_owned()),
                    wchan: Some("rpc_wait_bit_killable".to_owned()),
                    ..RankDump::new(6, 8)
                }
            },
            "rank 6 is in uninterruptible sleep (D), waiting in rpc_wait_bit_killable",
        ),
        (
            |dump| {
                dump.state = Some("D (disk sleep)".to_owned());
                dump.wchan = Some("0".to_owned());
            },
            "rank 6 is in uninterruptible sleep (D)",
        ),
        (
            |dump| {
                dump.state = Some("t (tracing stop)".to_owned());
                dump.python.clear();
            },
            "rank 6 is stopped by a debugger",
        ),
        // A debugger that held it for a moment, as py-spy does: its stack says where it is.
        (|dump| dump.state = Some("t (tracing stop)".to_owned()), ""),
    ];
    for (change, clause) in cases {
        let verdict = Verdict::of(&with(change));
        if clause.is_empty() {
            assert_eq!(verdict.headline, "all 8 ranks wait in all_reduce at train.py:5 step");
            continue;
        }
        assert_eq!(verdict.headline, format!("{clause}; 0-5,7 wait in all_reduce"));
        assert_eq!(verdict.suspects.keys().copied().collect::<Vec<_>>(), [6]);
    }
}

#[test]
fn several_ranks_are_named_with_what_each_does() {
    let mut dumps = dumps(8, WAITING, &[(3, LOADING), (6, LOADING)]);
    dumps[1].state = Some("T (stopped)".to_owned());
    dumps[2].state = Some("T (stopped)".to_owned());
    check(
        &dumps,
        "ranks 1-2 are stopped (SIGSTOP); ranks 3,6 are in data_loader.py:41 next_batch; 0,4-5,7 wait in all_reduce",
        &[1, 2, 3, 6],
    );
}

#[test]
fn an_unread_rank_is_a_suspect_only_when_all_others_wait() {
    let unread = || RankDump::unread(6, 8, "py-spy: Permission denied: add the capability SYS_PTRACE");
    let mut all_wait = dumps(8, WAITING, &[]);
    all_wait[6] = unread();
    check(
        &all_wait,
        "ranks 0-5,7 wait in all_reduce at train.py:5 step; \
         rank 6 could not be read: py-spy: Permission denied: add the capability SYS_PTRACE",
        &[6],
    );
    let mut one_loads = dumps(8, WAITING, &[(2, LOADING)]);
    one_loads[6] = unread();
    check(
        &one_loads,
        "rank 2 is in data_loader.py:41 next_batch; 0-1,3-5,7 wait in all_reduce; \
         rank 6 could not be read: py-spy: Permission denied: add the capability SYS_PTRACE",
        &[2],
    );
    let mut nothing = [unread()];
    nothing[0].notes.clear();
    check(&nothing, "rank 6 could not be read: no stacks in the dump; ranks 0-5,7 have no dump", &[]);
}

/// Upstream dumps only the ranks that time out, so that the others have no file.
#[test]
fn a_rank_without_a_dump() {
    let dumps: Vec<RankDump> = dumps(8, WAITING, &[]).into_iter().filter(|dump| dump.rank != 6).collect();
    check(&dumps, "ranks 0-5,7 wait in all_reduce at train.py:5 step; rank 6 has no dump", &[6]);
}

#[test]
fn when_no_rank_waits_the_largest_group_is_the_norm() {
    let other = LOADING.replace("41", "77");
    check(
        &dumps(4, LOADING, &[(1, &other)]),
        "rank 1 is in data_loader.py:77 next_batch; the other ranks: 0,2-3 in data_loader.py:41 next_batch",
        &[1],
    );
    let tie = "ranks 0,2 are in data_loader.py:41 next_batch; ranks 1,3 are in data_loader.py:77 next_batch";
    check(&dumps(4, LOADING, &[(1, &other), (3, &other)]), tie, &[0, 1, 2, 3]);
    let verdict =
        check(&dumps(4, LOADING, &[]), "ranks 0-3 are in data_loader.py:41 next_batch", &[0, 1, 2, 3]);
    assert!(!verdict.singles_out());
}

/// An exchange of the trainer's own, without a name that tells: the system call does.
#[test]
fn ranks_that_read_a_socket_are_taken_for_waiting() {
    let exchange = "<module>@/w/train.py:10;exchange@/w/train.py:20";
    let mut dumps = dumps(4, exchange, &[(1, &exchange.replace("20", "22")), (2, LOADING)]);
    for (dump, call) in dumps.iter_mut().zip(["recvfrom", "poll", "clock_nanosleep", "recvfrom"]) {
        dump.syscall = Some(call.to_owned());
    }
    check(
        &dumps,
        "rank 2 is in data_loader.py:41 next_batch; 0,3 wait in train.py:20 exchange; 1 waits in train.py:22 exchange",
        &[2],
    );
}

/// All ranks read sockets.
fn reading(mut dumps: Vec<RankDump>) -> Vec<RankDump> {
    dumps.iter_mut().for_each(|dump| dump.syscall = Some("recvfrom".to_owned()));
    dumps
}

const READING: &str = "<module>@/w/train.py:10;step@/w/train.py:20;all_reduce@/w/star.py:30;total@/w/star.py:34;receive@/w/sockets.py:9";

/// Of a star, the rank in the middle is on another line of the same collective.
#[test]
fn a_collective_of_the_users_own_is_one_call_whatever_its_ranks_do_in_it() {
    let middle =
        READING.replace("total@/w/star.py:34", "total@/w/star.py:36;total.<locals>.<genexpr>@/w/star.py:36");
    check(
        &reading(dumps(4, READING, &[(0, &middle)])),
        "all 4 ranks wait in all_reduce at train.py:20 step",
        &[],
    );
    let unnamed = |stack: &str| stack.replace("all_reduce", "exchange");
    check(
        &reading(dumps(4, &unnamed(READING), &[(0, &unnamed(&middle))])),
        "ranks 0-3 wait in sockets.py:9 receive, called from exchange",
        &[],
    );
}

/// The function that all of them read by does not tell them apart.
#[test]
fn an_exchange_that_all_wait_in_is_named_by_what_the_script_calls() {
    let stack = "<module>@/w/train.py:10;step@/w/train.py:5;Ring.exchange@/w/ring.py:30;_get@/w/ring.py:20;receive@/w/net.py:7";
    let all = reading(dumps(3, stack, &[]));
    check(&all, "ranks 0-2 wait in net.py:7 receive, called from exchange", &[]);
    let in_one_file = reading(dumps(3, "<module>@/w/train.py:10;swap@/w/train.py:5", &[]));
    check(&in_one_file, "ranks 0-2 wait in train.py:5 swap", &[]);
}

#[test]
fn two_ranks_that_wait_for_each_other_are_told_apart() {
    let first =
        "<module>@/w/train.py:10;step@/w/train.py:15;swap_weights@/w/train.py:41;receive@/w/sockets.py:9";
    let second = first.replace("swap_weights@/w/train.py:41", "swap_statistics@/w/train.py:47");
    let odd = [(1, first), (3, second.as_str())];
    check(
        &reading(dumps(5, READING, &odd)),
        "rank 1 is in train.py:41 swap_weights; rank 3 is in train.py:47 swap_statistics; 0,2,4 wait in all_reduce",
        &[1, 3],
    );
    let unnamed = READING.replace("all_reduce", "exchange");
    check(
        &reading(dumps(5, &unnamed, &odd)),
        "rank 1 is in train.py:41 swap_weights; rank 3 is in train.py:47 swap_statistics; the other ranks: 0,2,4 in star.py:34 total",
        &[1, 3],
    );
    check(
        &reading(dumps(2, first, &[(1, &second)])),
        "rank 0 is in train.py:41 swap_weights; rank 1 is in train.py:47 swap_statistics",
        &[0, 1],
    );
}

/// An exchange of another name is left out by a rank, which waits in a barrier then.
#[test]
fn a_skipped_exchange() {
    let exchange = READING.replace("all_reduce", "exchange");
    let barrier = "<module>@/w/train.py:10;step@/w/train.py:22;barrier@/w/star.py:50;receive@/w/sockets.py:9";
    let skipped = "rank 2 waits in barrier while 0-1,3 wait in sockets.py:9 receive";
    let mut four = reading(dumps(4, &exchange, &[(2, barrier)]));
    check(&four, skipped, &[2]);
    let step = |dump: &mut RankDump, odd| dump.step = Some(if dump.rank == 2 { odd } else { 7 });
    four.iter_mut().for_each(|dump| step(dump, 8));
    check(&four, skipped, &[2]);
    // It has finished no more than the others: they may read from a server, as in a data loader.
    four.iter_mut().for_each(|dump| step(dump, 7));
    check(&four, "ranks 0-1,3 are in star.py:34 total; 2 waits in barrier", &[0, 1, 3]);
    let mut two = reading(dumps(2, &exchange, &[(1, barrier)]));
    check(&two, "rank 0 is in star.py:34 total; 1 waits in barrier", &[0]);
    (two[0].step, two[1].step) = (Some(7), Some(8));
    check(
        &two,
        "rank 1 waits in barrier while 0 waits in sockets.py:9 receive; rank 1 is ahead (step 8)",
        &[1],
    );
}

#[test]
fn many_places_are_counted() {
    let others: Vec<(u32, String)> =
        (1..40).map(|rank| (rank, LOADING.replace("41", &format!("{}", 100 + rank)))).collect();
    let others: Vec<(u32, &str)> = others.iter().map(|(rank, stack)| (*rank, stack.as_str())).collect();
    let verdict = Verdict::of(&dumps(40, WAITING, &others));
    assert!(verdict.headline.ends_with("; 31 more places; 0 waits in all_reduce"), "{}", verdict.headline);
    assert_eq!((verdict.suspects.len(), verdict.details.len()), (39, MAX_DETAILS));
}

/// A file's name may claim any size of the world, and its content any name.
#[test]
fn a_hostile_dump_gives_a_short_line() {
    let huge = RankDump { world_size: u32::MAX, ..dump(0, 1, WAITING) };
    let verdict = Verdict::of([&huge]);
    assert!(verdict.headline.len() < 200, "{}", verdict.headline);
    let mut evil = dumps(2, WAITING, &[(1, LOADING)]);
    evil[1].python[0].frames[0].function = "\u{1b}[2J".repeat(1000);
    let headline = Verdict::of(&evil).headline;
    assert!(headline.len() < 400 && !headline.contains('\u{1b}'), "{headline}");
    evil[0].python[0].frames[0].function = "all_reduce\u{1b}[2J".to_owned();
    evil[0].python[0].frames[0].file = "/w/train.py".to_owned();
    assert!(Verdict::of(&evil).headline.ends_with("; 0 waits in all_reduce[2J"));
}

#[test]
fn no_dumps_give_no_verdict() {
    assert_eq!(
        Verdict::of([]),
        Verdict { world_size: 0, suspects: Suspects::new(), headline: String::new(), details: Vec::new() }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is known of each rank: the order of dumps does not matter, suspects are ranks of the job, and a rank that
    /// waits is none while another one is known to be elsewhere.
    #[test]
    fn verdicts_keep_their_rules(kinds in prop::collection::vec((0_u8..8, prop::option::of(0_u64..3)), 1..7)) {
        let world_size = u32::try_from(kinds.len()).expect("a few");
        let of = |(rank, (kind, step)): (usize, &(u8, Option<u64>))| {
            let rank = u32::try_from(rank).expect("a few");
            let stack = [WAITING, WAITING, AT_BARRIER, LOADING][usize::from(*kind % 4)];
            let placed = RankDump { step: *step, ..dump(rank, world_size, stack) };
            match kind {
                4 => Some(RankDump { state: Some("T (stopped)".to_owned()), ..placed }),
                5 => Some(RankDump::gone(rank, world_size)),
                6 => Some(RankDump::unread(rank, world_size, "no reply")),
                7 if rank > 0 => None,
                _ => Some(placed),
            }
        };
        let dumps: Vec<RankDump> = kinds.iter().enumerate().filter_map(of).collect();
        let verdict = Verdict::of(&dumps);
        prop_assert_eq!(&verdict, &Verdict::of(dumps.iter().rev()));
        prop_assert!(!verdict.headline.is_empty());
        prop_assert!(verdict.suspects.keys().all(|rank| *rank < world_size));
        let is_elsewhere = |reason: &Reason| {
            matches!(reason, Reason::Elsewhere { .. } | Reason::Stopped | Reason::Gone)
        };
        let has_elsewhere = verdict.suspects.values().any(is_elsewhere);
        prop_assert!(!has_elsewhere || verdict.suspects.values().all(is_elsewhere), "{:?}", verdict);
        let certain = kinds.iter().filter(|(kind, _)| matches!(kind, 4 | 5)).count();
        prop_assert!(verdict.suspects.len() >= certain);
    }
}

/// The reason goes into reports of the master as evidence.
#[test]
fn a_reason_is_a_document() {
    let verdict = Verdict::of(&captured!("async"));
    let json = serde_json::to_string(&verdict.suspects).unwrap();
    assert_eq!(json, r#"{"1":{"reason":"elsewhere","place":"train.py:69 train","doing":"sleeping"}}"#);
    assert_eq!(serde_json::from_str::<Suspects>(&json).unwrap(), verdict.suspects);
}
