//! A status for people: some lines on the job, a table of its nodes, the last events.

use std::{collections::BTreeMap, io};

use diagnosis::counted::counted;
use rules::{
    job_status::{JobPhase, JobStatus, NodeState, NodeStatus},
    last_lines::excerpt,
};

use super::facts;
use crate::table::Table;

/// Lines of a failed worker that are shown.
const LAST_LINES: usize = 3;

/// Events that are shown below the nodes.
const EVENTS: usize = 8;

/// Events that stay on a small screen with many nodes.
const LEAST_EVENTS: usize = 4;

/// Columns and rows of what it is drawn on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) is_colourful: bool,
}

impl Style {
    /// Of the terminal, if standard output is one. In a pipe or a file nothing is cut.
    pub(super) fn of_terminal(is_colourful: bool) -> Self {
        let size = terminal_size::terminal_size_of(io::stdout());
        let (width, height) =
            size.map_or((usize::MAX, usize::MAX), |(width, height)| (width.0.into(), height.0.into()));
        Self { width: width.max(40), height, is_colourful }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.is_colourful { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const BOLD: &str = "1";

/// One line: `job llm: running, round 3 on 4 nodes, 32 workers`.
pub(super) fn headline(status: &JobStatus) -> String {
    let job = status.job.as_deref().unwrap_or("(no node has joined)");
    let mut text = format!("job {job}: {}", phase(status));
    if status.phase == JobPhase::Over {
        return text;
    }
    if let Some(round) = status.round {
        // While the job waits, no round runs.
        let last = if status.phase == JobPhase::Pending { "last " } else { "" };
        text.push_str(&format!(", {last}round {round}"));
    }
    if let Some(world) = status.world_size {
        let running = status.nodes.iter().filter(|node| node.first_rank.is_some()).count();
        text.push_str(&format!(" on {}, {}", counted(running, "node"), counted(world, "worker")));
    }
    if let Some(pending) = &status.pending {
        text.push_str(&format!("; {pending}"));
    }
    text
}

fn phase(status: &JobStatus) -> String {
    match (&status.end, status.phase) {
        (Some(end), _) if end.succeeded => "succeeded".to_owned(),
        (Some(end), _) => format!("failed: {}", end.message),
        (None, JobPhase::Pending) => "waiting for nodes".to_owned(),
        (None, JobPhase::Rendezvous) => "rendezvous".to_owned(),
        (None, JobPhase::Check) => "network check".to_owned(),
        (None, JobPhase::Restart) => "restarting workers".to_owned(),
        (None, JobPhase::Running) => "running".to_owned(),
        (None, JobPhase::Over) => "over".to_owned(),
    }
}

/// The whole status.
pub(super) fn for_people(status: &JobStatus, style: &Style) -> String {
    let most_nodes = style.height.saturating_sub(20).max(12);
    [head(status, style), nodes(status, style, most_nodes), events(status, style, EVENTS)].concat()
}

/// What fits on a screen of so many lines: the newest events are there, however many nodes there are.
pub(super) fn for_screen(status: &JobStatus, style: &Style) -> String {
    let lines = style.height.saturating_sub(1).max(1);
    let head = head(status, style);
    let left = lines.saturating_sub(head.lines().count());
    // Each of both has an empty line above, the table its titles too.
    let events_of = |left: usize| events(status, style, left.saturating_sub(1).min(EVENTS));
    let reserved = events_of(1 + LEAST_EVENTS).lines().count();
    let most_nodes = left.saturating_sub(reserved + 2);
    let most_nodes = if most_nodes < status.nodes.len() { most_nodes.saturating_sub(1) } else { most_nodes };
    let nodes = if left > reserved + 3 { nodes(status, style, most_nodes) } else { String::new() };
    let events = events_of(left.saturating_sub(nodes.lines().count()));
    let text = [head, nodes, events].concat();
    text.lines().take(lines).map(|line| format!("{line}\n")).collect()
}

/// The job, above its nodes.
fn head(status: &JobStatus, style: &Style) -> String {
    let mut text = String::new();
    let colour = match (&status.end, status.phase) {
        (Some(end), _) => {
            if end.succeeded {
                GREEN
            } else {
                RED
            }
        }
        (None, JobPhase::Running) => GREEN,
        (None, _) => YELLOW,
    };
    for (index, line) in wrapped(&headline(status), style.width, 2).iter().enumerate() {
        text.push_str(&style.paint(if index == 0 { BOLD } else { colour }, line));
        text.push('\n');
    }
    for fact in facts::of(status) {
        for line in wrapped(&fact, style.width - 2, 2) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    if let Some(failure) = &status.last_failure {
        for line in excerpt(&failure.last_lines, LAST_LINES) {
            text.push_str(&shortened(&format!("    | {line}"), style.width));
            text.push('\n');
        }
    }
    text
}

/// At most the last `most` events, with an empty line above. Equal ones in a row are one line, with the time of the
/// last.
fn events(status: &JobStatus, style: &Style, most: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut times = 1;
    for (index, event) in status.events.iter().enumerate().rev() {
        if index > 0 && status.events[index - 1].message == event.message {
            times += 1;
            continue;
        }
        if lines.len() >= most {
            break;
        }
        // The newest of them.
        let newest = status.events.get(index + times - 1).unwrap_or(event);
        let count = if times > 1 { format!(" ({times} times)") } else { String::new() };
        let line = format!("{:>9} ago  {}{count}", duration(newest.seconds_ago), event.message);
        lines.push(shortened(&line, style.width));
        times = 1;
    }
    if lines.is_empty() {
        String::new()
    } else {
        lines.iter().rev().fold("\n".into(), |text, line| text + line + "\n")
    }
}

/// At most so many nodes, with an empty line above.
fn nodes(status: &JobStatus, style: &Style, most: usize) -> String {
    if status.nodes.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new(["node rank", "host", "address", "state", "ranks", "restarts", "replaced", "up"]);
    let shown = status.nodes.len().min(most);
    for node in &status.nodes[..shown] {
        table.line([
            node.node_rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            shortened(&node.host, 20),
            clean(&node.address),
            node.state.as_str().to_owned(),
            ranks(node),
            node.restarts.to_string(),
            format!("{} of {}", node.replacements, node.max_replacements),
            duration(node.seconds),
        ]);
    }
    let mut text = String::from("\n");
    for (index, line) in table.to_string().lines().enumerate() {
        let line = shortened(line, style.width);
        let colour =
            match index.checked_sub(1).and_then(|index| status.nodes.get(index)).map(|node| node.state) {
                None => BOLD,
                Some(NodeState::Running | NodeState::Succeeded) => GREEN,
                Some(NodeState::Disconnected) => RED,
                Some(_) => YELLOW,
            };
        text.push_str(&style.paint(colour, &line));
        text.push('\n');
    }
    if shown < status.nodes.len() {
        let mut states: BTreeMap<NodeState, usize> = BTreeMap::new();
        for node in &status.nodes[shown..] {
            *states.entry(node.state).or_default() += 1;
        }
        let states: Vec<String> =
            states.iter().map(|(state, count)| format!("{count} {}", state.as_str())).collect();
        text.push_str(&format!("and {} more: {}\n", status.nodes.len() - shown, states.join(", ")));
    }
    text
}

fn ranks(node: &NodeStatus) -> String {
    match node.first_rank {
        Some(first) if node.workers > 1 => format!("{first}-{}", first + node.workers - 1),
        Some(first) => first.to_string(),
        None => "-".to_owned(),
    }
}

/// `850 ms`, `12 s`, `3 m 20 s`, `2 h 5 m`, `3 d 4 h`.
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    // Whole seconds: a status is asked for about once a second.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is not negative"
    )]
    let whole = seconds as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3600, whole / 86_400);
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{minutes} m {} s", whole % 60),
        3600..86_400 => format!("{hours} h {} m", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Lines of at most `width` characters, broken at spaces; those after the first are indented.
fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
    let text = clean(text);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let is_first = lines.len() == 1;
        let Some(line) = lines.last_mut() else { break };
        let space = usize::from(!line.trim_start().is_empty());
        if line.chars().count() + space + word.chars().count() > width && space == 1 {
            lines.push(format!("{}{word}", " ".repeat(indent)));
            continue;
        }
        if space == 1 {
            line.push(' ');
        } else if !is_first {
            line.push_str(&" ".repeat(indent));
        }
        line.push_str(word);
    }
    lines
}

/// The text in one line, without control characters: names and output come from other nodes, and a terminal would obey
/// them.
pub(super) fn clean(text: &str) -> String {
    let text = text.replace(['\n', '\t'], " ");
    agent::plain(&text).into_owned()
}

/// The start of a text that is too long.
fn shortened(text: &str, width: usize) -> String {
    let text = clean(text);
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use rules::job_status::*;

    use super::*;

    fn node(rank: u32, state: NodeState) -> NodeStatus {
        NodeStatus {
            node_rank: Some(rank),
            host: format!("gpu-{rank}"),
            address: format!("10.0.0.{}", rank + 1),
            state,
            workers: 8,
            first_rank: (state == NodeState::Running).then_some(rank * 8),
            restarts: u32::from(rank == 1),
            replacements: 0,
            max_replacements: 3,
            seconds: 4000.0,
            accelerators: None,
            gpus: 0,
            broken_gpus: 0,
            gpu_troubles: Vec::new(),
            ranks: Vec::new(),
        }
    }

    pub(in crate::status) fn status() -> JobStatus {
        let histogram = || Histogram { buckets: vec![(1.0, 2)], count: 2, sum: 0.5 };
        let event =
            |number, seconds_ago, message: &str| JobEvent { number, seconds_ago, message: message.into() };
        JobStatus {
            schema: SCHEMA.into(),
            job: Some("llm-7b".into()),
            phase: JobPhase::Running,
            phase_seconds: 720.0,
            age_seconds: 4000.0,
            round: Some(1),
            min_nodes: Some(2),
            max_nodes: Some(4),
            world_size: Some(16),
            pending: None,
            nodes: vec![
                node(0, NodeState::Running),
                node(1, NodeState::Running),
                node(2, NodeState::Disconnected),
            ],
            last_failure: Some(FailureStatus {
                round: Some(0),
                node: "node rank 1 (gpu-1, 10.0.0.2)".into(),
                reason: "rank 9 exited with code 2".into(),
                seconds_ago: 730.0,
                root_cause: Some(
                    "rank 9 (local rank 1, node rank 1, host gpu-1, pid 4711): exited with code 2: ValueError: no data".into(),
                ),
                last_lines: vec!["1".into(), "  File \"train.py\"".into(), "    raise".into(), "x".repeat(90)],
            }),
            hang: None,
            checkpoints: vec![CheckpointStatus {
                folder: "/ckpt/llm-7b".into(),
                memory_step: Some(4200),
                disk_step: Some(4000),
                writing: Some(CheckpointWriteStatus { step: 4200, bytes: 5_300_000_000, total_bytes: 24_000_000_000 }),
            }],
            check: Some(CheckStatus {
                check: 0,
                seconds_ago: 3990.0,
                nodes: vec![CheckedNodeStatus {
                    number: 0,
                    host: "gpu-0".into(),
                    address: "10.0.0.1".into(),
                    verdict: "healthy".into(),
                    excluded: false,
                    tainted: false,
                    evidence: None,
                }],
                tests: Vec::new(),
            }),
            end: None,
            rounds: Vec::new(),
            totals: Totals {
                rounds: 2,
                worker_restarts: 1,
                restarts_by_node: vec![NodeRestarts { node_rank: Some(1), restarts: 1 }],
                node_losses: 0,
                training_seconds: 3900.0,
                lost_seconds: LostSeconds { pending: 90.0, rendezvous: 0.02, check: 8.0, restart: 2.0 },
                effective_training_ratio: Some(0.975),
                rendezvous: histogram(),
                failure_to_running: histogram(),
            },
            events: vec![
                event(1, 4000.0, "node rank 0 (gpu-0, 10.0.0.1) joined"),
                event(
                    2,
                    730.0,
                    "round 0 is over: workers of node rank 1 (gpu-1, 10.0.0.2) failed: rank 9 exited with code 2",
                ),
            ],
            master: MasterStatus {
                version: "0.2.0".into(),
                seconds: 4001,
                epoch: "75f5c7da1a2843ea".into(),
                has_state_dir: false,
            },
        }
    }

    #[test]
    fn the_status_is_pleasant_to_read_at_80_columns() {
        let text = for_people(&status(), &Style { width: 80, height: 40, is_colourful: false });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_last_lines_do_not_begin_inside_of_a_traceback() {
        let lines = ["  File \"train.py\", line 7", "    f()", "    ^^^", "ValueError: no data"];
        let last_lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let failure = status().last_failure.map(|it| FailureStatus { last_lines, ..it });
        let style = Style { width: 200, height: 40, is_colourful: false };
        let text = for_people(&JobStatus { last_failure: failure, ..status() }, &style);
        assert!(text.contains("\n    | ValueError: no data\n") && !text.contains("| ^^^"), "{text}");
        assert_eq!(text.matches("    | ").count(), 1, "{text}");
    }

    #[test]
    fn a_failure_whose_worker_was_not_heard_has_the_reason_that_its_node_gave() {
        let failure =
            status().last_failure.map(|it| FailureStatus { root_cause: None, last_lines: vec![], ..it });
        let style = Style { width: 200, height: 40, is_colourful: false };
        let text = for_people(&JobStatus { last_failure: failure, ..status() }, &style);
        assert!(
            text.contains(
                "\n  last failure 12 m 10 s ago, round 0: node rank 1 (gpu-1, 10.0.0.2): rank 9 exited with code 2\n\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_line_for_a_log_names_the_phase_and_the_round() {
        assert_eq!(headline(&status()), "job llm-7b: running, round 1 on 2 nodes, 16 workers");
        let end = Some(EndStatus { succeeded: false, message: "it broke".into() });
        let waiting = JobStatus { phase: JobPhase::Pending, world_size: None, ..status() };
        assert_eq!(headline(&waiting), "job llm-7b: waiting for nodes, last round 1");
        let over = JobStatus { phase: JobPhase::Over, end, ..status() };
        assert_eq!(headline(&over), "job llm-7b: failed: it broke");
    }

    #[test]
    fn a_terminal_obeys_no_text_of_other_nodes() {
        let hostile = "a\u{1b}]0;title\u{7}\nb\tc\u{9b}2J";
        let mut status = status();
        status.job = Some(hostile.into());
        for node in &mut status.nodes {
            (node.host, node.address) = (hostile.into(), hostile.into());
            node.gpu_troubles = vec![hostile.into()];
        }
        status.events[0].message = hostile.into();
        status.checkpoints[0].folder = hostile.into();
        let mut failure = status.last_failure.take().unwrap();
        failure.root_cause = Some(hostile.into());
        failure.last_lines = vec![hostile.into()];
        status.last_failure = Some(failure);
        status.check.as_mut().unwrap().nodes[0].verdict = hostile.into();
        for is_colourful in [false, true] {
            let style = Style { width: 80, height: 40, is_colourful };
            for text in [for_people(&status, &style), for_screen(&status, &style)] {
                let uncoloured = [GREEN, YELLOW, RED, BOLD, "0"]
                    .iter()
                    .fold(text, |text, it| text.replace(&format!("\x1b[{it}m"), ""));
                let left = uncoloured.chars().find(|letter| letter.is_control() && *letter != '\n');
                assert_eq!(left, None, "{uncoloured:?}");
                assert!(uncoloured.lines().all(|line| line.chars().count() <= 80), "{uncoloured}");
                assert!(uncoloured.contains("a\u{fffd}]0;title"), "{uncoloured}");
            }
        }
    }

    #[test]
    fn troubles_of_accelerators_are_named_by_node() {
        let mut status = status();
        status.nodes[1].gpu_troubles =
            (0..5).map(|gpu| format!("GPU {gpu}: it has fallen off the bus")).collect();
        let expected = "accelerators of node rank 1, gpu-1: GPU 0: it has fallen off the bus, GPU 1: it has fallen off the \
                        bus, GPU 2: it has fallen off the bus and 2 more";
        assert_eq!(facts::of_accelerators(&status), [expected]);
        status.nodes = (0..6)
            .map(|rank| NodeStatus { gpu_troubles: vec!["x".into()], ..node(rank, NodeState::Running) })
            .collect();
        assert_eq!(
            facts::of_accelerators(&status).last().unwrap(),
            "accelerators of 2 more nodes have troubles too"
        );
    }

    #[test]
    fn many_nodes_are_counted_by_state_below_the_screen() {
        let nodes = (0..300).map(|rank| node(rank, NodeState::Running)).collect();
        let text = for_people(
            &JobStatus { nodes, ..status() },
            &Style { width: 80, height: 32, is_colourful: true },
        );
        assert!(text.contains("and 288 more: 288 running"), "{text}");
        assert!(text.contains("\x1b[32m"), "{text}");
    }

    #[test]
    fn a_screen_of_24_lines_has_the_newest_events_and_folds_equal_ones() {
        let event = |number: u64, message: &str| JobEvent {
            number,
            seconds_ago: 100.0 - number as f64,
            message: message.into(),
        };
        let mut events: Vec<JobEvent> =
            (1..=3).map(|number| event(number, "a node (vm, 127.0.0.1) joined")).collect();
        events.extend((4..=9).map(|number| event(number, &format!("event {number}"))));
        let style = Style { width: 80, height: 24, is_colourful: false };
        for count in [1, 3, 12, 300] {
            let nodes = (0..count).map(|rank| node(rank, NodeState::Running)).collect();
            let text = for_screen(&JobStatus { nodes, events: events.clone(), ..status() }, &style);
            assert!(text.lines().count() < 24, "{text}");
            assert!(
                text.ends_with("91 s ago  event 9\n") || text.ends_with("1 m 31 s ago  event 9\n"),
                "{text}"
            );
            assert!(text.contains("event 7") && text.contains("node rank"), "{text}");
            assert_eq!(text.contains(" more: "), count >= 12, "{text}");
        }
        let text = for_people(&JobStatus { events, ..status() }, &style);
        assert!(text.contains(" 1 m 37 s ago  a node (vm, 127.0.0.1) joined (3 times)\n"), "{text}");
        let tiny = for_screen(&status(), &Style { width: 80, height: 4, is_colourful: false });
        assert_eq!(tiny.lines().count(), 3, "{tiny}");
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [
            (0.02, "20 ms"),
            (59.9, "59 s"),
            (200.0, "3 m 20 s"),
            (7500.0, "2 h 5 m"),
            (273_600.0, "3 d 4 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
