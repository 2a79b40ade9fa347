//! A master that dies at every point at which it could, and is started again: two nodes run a job of two rounds to
//! its end all the same, and no promise is broken.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![cfg(debug_assertions)]

mod common;

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{LIMIT, Node, config, request, terms};
use rules::{
    Round,
    job::{NodeEnd, WorkersState},
    node::JoinRequest,
    push::Push,
    verdict::JobVerdict,
    world::Assignment,
};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

/// Every point of `journal/crash.rs`, and how often it is passed before the master dies there.
const POINTS: [(&str, &[u32]); 16] = [
    ("before-snapshot", &[1]),
    ("mid-snapshot", &[1]),
    ("before-snapshot-sync", &[1]),
    ("before-rename", &[1]),
    ("after-rename", &[1]),
    ("after-snapshot", &[1]),
    ("before-write", &[1, 3, 6, 9]),
    ("mid-write", &[1, 4, 7, 10]),
    ("after-write", &[2, 5, 8]),
    ("after-sync", &[1, 3, 5, 8, 11]),
    ("before-effects", &[1, 4, 7, 12]),
    ("between-effects", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("after-effects", &[2, 5, 9, 13]),
    ("after-answer", &[1, 3, 8, 12]),
    ("before-remove", &[1]),
    ("after-remove", &[1]),
];

/// From a broken stream to a robot's next attempt: at once, or when the other one has had time for all it wants.
const SOON: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_millis(300);

/// The master of one life, when this test binary is started as one. Not a test by itself.
#[test]
#[ignore = "started by the test below"]
fn master_process() {
    let Ok(address) = std::env::var("LIFE_ADDRESS") else { return };
    let dir = std::env::var("LIFE_STATE").unwrap();
    if let Ok(point) = std::env::var("LIFE_CRASH_AT") {
        master::crash_at(&point);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let mut config = config(&Arc::default());
        config.state_dir = Some(dir.into());
        config.policy.reconnect_grace = Duration::from_secs(5);
        config.timeout.reconnect_grace = Duration::from_secs(5);
        let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
        assert_eq!(master::serve(connections, config).await.unwrap(), JobVerdict::Succeeded);
    });
}

fn life(address: SocketAddr, dir: &Path, crash_at: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "master_process", "--ignored", "--nocapture"]);
    command.env("LIFE_ADDRESS", address.to_string()).env("LIFE_STATE", dir);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(point) = crash_at {
        command.env("LIFE_CRASH_AT", point);
    }
    command.spawn().unwrap()
}

/// An agent: it says again where it stands whenever its stream was broken.
struct Robot {
    address: SocketAddr,
    id: &'static str,
    /// Between a stream that broke and the next attempt.
    pause: Duration,
    /// Its workers fail in the first round.
    fails: bool,
    left: Option<Round>,
    assignment: Option<Assignment>,
    succeeded: bool,
    /// What it was told, in order, without what was said twice.
    assignments: Vec<Assignment>,
}

impl Robot {
    fn new(address: SocketAddr, id: &'static str, pause: Duration, fails: bool) -> Self {
        Self {
            address,
            id,
            pause,
            fails,
            left: None,
            assignment: None,
            succeeded: false,
            assignments: Vec::new(),
        }
    }

    async fn run(mut self) -> (Vec<Assignment>, JobVerdict) {
        loop {
            if let Ok(verdict) = self.run_stream().await {
                return (self.assignments, verdict);
            }
            sleep(self.pause).await;
        }
    }

    async fn join(&mut self, node: &mut Node) -> Result<(), Status> {
        let join = JoinRequest { after: self.left, ..request(self.id, terms(2, 2)) };
        node.join_as(join).await
    }

    async fn run_stream(&mut self) -> Result<JobVerdict, Status> {
        let mut node = Node::subscribe(self.address, self.id).await?;
        match &self.assignment {
            Some(assignment) => {
                let workers_state =
                    if self.succeeded { WorkersState::Succeeded } else { WorkersState::Running };
                node.resume(2, &assignment.clone(), workers_state).await?;
                if !self.succeeded {
                    self.work(&mut node).await?;
                }
            }
            None => self.join(&mut node).await?,
        }
        loop {
            let Some(push) = node.push().await? else { return Err(Status::unavailable("the stream ended")) };
            match push {
                push @ (Push::Check(_)
                | Push::CancelCheck(_)
                | Push::CheckOver { .. }
                | Push::Excluded(_)
                | Push::DumpStacks { .. }
                | Push::Hang(_)
                | Push::RootCause(_)
                | Push::Checkpoint(_)) => {
                    panic!("{} is told of a check or detail that it does not expect: {push:?}", self.id)
                }
                Push::Host { round, .. } => node.host(round).await?,
                Push::Assigned(assignment) if self.assignment.as_ref() == Some(&assignment) => {}
                Push::Assigned(assignment) => {
                    assert!(
                        self.assignment.is_none(),
                        "{} has an assignment and is given another one: {assignment:?}",
                        self.id
                    );
                    self.assignments.push(assignment.clone());
                    self.assignment = Some(assignment);
                    self.work(&mut node).await?;
                }
                Push::Regroup { round, .. } => {
                    if self.assignment.as_ref().is_some_and(|assignment| assignment.round == round) {
                        self.leave_round(round);
                    }
                    self.join(&mut node).await?;
                }
                Push::JobEnd(verdict) => {
                    // A master that has gone by now knew all it had to.
                    let _gone = node.acknowledge().await;
                    return Ok(verdict);
                }
                Push::Pending(_) => {}
                Push::Refused { reason } => panic!("{} was refused: {reason}", self.id),
            }
        }
    }

    fn leave_round(&mut self, round: Round) {
        (self.left, self.assignment, self.succeeded) = (Some(round), None, false);
    }

    /// The workers of the round are started, and are done at once.
    async fn work(&mut self, node: &mut Node) -> Result<(), Status> {
        let Some(round) = self.assignment.as_ref().map(|assignment| assignment.round) else { return Ok(()) };
        if self.fails {
            node.fail(round).await?;
            self.fails = false;
            self.leave_round(round);
            return self.join(node).await;
        }
        // The other one fails in the first round.
        if round > Round(0) {
            self.succeeded = true;
            node.end(NodeEnd::Succeeded { round }).await?;
        }
        Ok(())
    }
}

async fn end_of(mut life: Child) -> std::process::ExitStatus {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = life.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < until, "the master neither ended nor died");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn one(point: &str, nth: u32, [pause_a, pause_b]: [Duration; 2]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let masters = async {
        let first = life(address, dir.path(), Some(&format!("{point}:{nth}")));
        let status = end_of(first).await;
        let has_died = !status.success();
        // One that died when all was done leaves a state that says so, or none.
        if has_died && (dir.path().join("journal").exists() || point != "after-remove") {
            assert!(end_of(life(address, dir.path(), None)).await.success());
        }
        has_died
    };
    let a = Robot::new(address, "a", pause_a, true);
    let b = Robot::new(address, "b", pause_b, false);
    let nodes = async { tokio::join!(a.run(), b.run()) };
    let both = timeout(LIMIT, async { tokio::join!(masters, nodes) }).await;
    let (has_died, ((a, verdict_a), (b, verdict_b))) = both.unwrap_or_else(|_| panic!("{point}:{nth} hangs"));
    assert_eq!((&verdict_a, &verdict_b), (&JobVerdict::Succeeded, &JobVerdict::Succeeded), "{point}:{nth}");
    // Both end in the same round, each in an assignment of its own, and rounds only grow. A node that was to be told of the
    // first round when the master died may come back after the other one has ended that round: it never hears of it.
    let rounds = |assignments: &[Assignment]| {
        assignments.iter().map(|assignment| assignment.round).collect::<Vec<_>>()
    };
    assert!(rounds(&a).is_sorted() && rounds(&a).first() == Some(&Round(0)), "{point}:{nth}: {a:?}");
    assert!(
        rounds(&b).is_sorted() && rounds(&b).iter().all(|round| rounds(&a).contains(round)),
        "{point}:{nth}"
    );
    assert_eq!(rounds(&a).last(), rounds(&b).last(), "{point}:{nth}");
    let of_one_round = a.iter().flat_map(|a| b.iter().filter(|b| b.round == a.round).map(move |b| (a, b)));
    assert!(of_one_round.into_iter().all(|(a, b)| a.node_rank != b.node_rank), "{point}:{nth}");
    assert!(!dir.path().join("journal").exists(), "{point}:{nth}: the state is removed");
    has_died
}

#[tokio::test]
async fn a_master_may_die_at_any_crash_point() {
    for (point, times) in POINTS {
        let mut deaths = 0;
        for nth in times {
            deaths += u32::from(one(point, *nth, [SOON, SOON]).await);
        }
        assert!(deaths > 0, "the master never came to {point}");
    }
    // It dies while it sends the end: the first node that is back continues alone for a while.
    for nth in 1..=8 {
        one("between-effects", nth, [SOON, LATE]).await;
        one("between-effects", nth, [LATE, SOON]).await;
    }
}
