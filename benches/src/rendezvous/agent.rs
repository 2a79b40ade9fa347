//! One of many agents: with its own connection and the calls of a real agent, and without workers.

use std::{
    error::Error,
    net::IpAddr,
    time::{Duration, Instant},
};

use master_proto::{
    PROTOCOL_VERSION,
    pb::{self, master_client::MasterClient, stream_message::Payload},
    trust::NodeSecret,
};
use prost::Message as _;
use rules::chain;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

/// As in a real agent: the time limit of a call, and the pauses after a broken stream.
const CALL: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

type CallResult<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Client = MasterClient<Channel>;

/// A command to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Ask for an assignment.
    Join,
    /// Do not join again after the next stop.
    Hold,
    /// Report that its workers failed, and join again.
    Fail,
    /// Report that its workers succeeded.
    Succeed,
}

/// What an agent has seen.
#[derive(Debug)]
pub(super) enum Event {
    /// Its stream is open.
    Subscribed,
    /// It has reported its state again.
    Back,
    /// It has joined.
    Joined,
    /// It has an assignment; the message had so many bytes.
    Assigned { round: u32, bytes: usize },
    /// It must stop its workers.
    Stopped,
    /// The job is over.
    Ended(String),
    /// Its stream is broken.
    Broken(String),
    /// It was refused.
    Refused(String),
}

/// What an agent has seen, and when.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) at: Instant,
    pub(super) agent: usize,
    pub(super) event: Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not asked for an assignment.
    Idle,
    Waiting,
    Assigned,
    /// Its workers are being stopped.
    Stopping,
    /// Its workers succeeded.
    Done,
}

/// An agent, which is a task.
#[derive(Debug)]
pub(super) struct Agent {
    number: usize,
    port: u16,
    /// Authenticates its calls.
    secret: NodeSecret,
    /// Its join request; `after_round` is set later.
    request: pb::JoinRequest,
    report: mpsc::UnboundedSender<Report>,
    commands: mpsc::UnboundedReceiver<Command>,
    phase: Phase,
    is_held: bool,
    /// The last assignment.
    assignment: pb::Assignment,
    pause: Duration,
}

impl Agent {
    pub(super) fn start(
        number: usize,
        of: u32,
        port: u16,
        report: mpsc::UnboundedSender<Report>,
    ) -> mpsc::UnboundedSender<Command> {
        let (send, commands) = mpsc::unbounded_channel();
        let secret = NodeSecret::new(&Uuid::new_v4().to_string());
        let agent = Self {
            number,
            port,
            request: request(number, of, &secret),
            secret,
            report,
            commands,
            phase: Phase::Idle,
            is_held: false,
            assignment: pb::Assignment::default(),
            pause: FIRST_PAUSE,
        };
        tokio::spawn(agent.run());
        send
    }

    /// Ends with the job, or when its commands end.
    async fn run(mut self) {
        while let Err(error) = self.run_stream().await {
            self.say(Event::Broken(chain(&*error)));
            sleep(jittered(self.pause)).await;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
    }

    fn say(&self, event: Event) {
        // The bench may be over.
        let _ = self.report.send(Report { at: Instant::now(), agent: self.number, event });
    }

    async fn run_stream(&mut self) -> CallResult<()> {
        let (mut client, mut pushes, first_beat) = self.subscribe().await?;
        let beats = beats(client.clone(), self.secret.clone(), first_beat);
        tokio::pin!(beats);
        self.pause = FIRST_PAUSE;
        self.say(Event::Subscribed);
        self.report_state(&mut client).await?;
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(&mut client, command).await?,
                    None => return Ok(()),
                },
                message = pushes.message() => {
                    let message = message?.ok_or("the stream ended")?;
                    if self.on_message(&mut client, message).await? {
                        return Ok(());
                    }
                }
                error = &mut beats => return Err(error),
            }
        }
    }

    async fn subscribe(&self) -> CallResult<(Client, Streaming<pb::StreamMessage>, pb::Welcome)> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port))?;
        // Nodes have different addresses.
        let [_, high, middle, low] = u32::try_from(self.number + 1)?.to_be_bytes();
        let own = IpAddr::from([127, high + 1, middle, low]);
        let endpoint = endpoint.connect_timeout(CALL).tcp_nodelay(true).local_address(Some(own));
        let channel = endpoint.connect().await?;
        let mut client = MasterClient::new(channel);
        let request = pb::SubscribeRequest { protocol_version: PROTOCOL_VERSION, node_id: self.node_id() };
        let mut pushes = call(client.subscribe(self.signed(request))).await?;
        match timeout(CALL, pushes.message()).await??.and_then(|message| message.payload) {
            Some(Payload::Welcome(welcome)) => Ok((client, pushes, welcome)),
            other => Err(format!("no welcome but {other:?}").into()),
        }
    }

    /// Reports its state again.
    async fn report_state(&mut self, client: &mut Client) -> CallResult<()> {
        match self.phase {
            Phase::Idle => return Ok(()),
            Phase::Waiting => self.join(client).await?,
            Phase::Assigned => self.resume(client, pb::WorkersState::Running).await?,
            Phase::Stopping => self.resume(client, pb::WorkersState::Stopping).await?,
            Phase::Done => self.succeed(client).await?,
        }
        self.say(Event::Back);
        Ok(())
    }

    async fn execute(&mut self, client: &mut Client, command: Command) -> CallResult<()> {
        match command {
            Command::Join => self.join(client).await,
            Command::Hold => {
                self.is_held = true;
                Ok(())
            }
            Command::Fail => {
                let report = pb::FailureReport {
                    node_id: self.node_id(),
                    round: self.assignment.round,
                    reason: "local rank 3 (pid 4711) failed with exit code 1".to_owned(),
                    gives_up: false,
                    has_detail: false,
                    age_micros: 0,
                };
                self.phase = Phase::Stopping;
                call(client.report_failure(self.signed(report))).await?;
                self.join(client).await
            }
            Command::Succeed => self.succeed(client).await,
        }
    }

    /// Returns whether the job is over.
    async fn on_message(&mut self, client: &mut Client, message: pb::StreamMessage) -> CallResult<bool> {
        let bytes = message.encoded_len();
        match message.payload {
            Some(Payload::Host(pb::Host { round, .. })) => {
                let report = pb::HostingReport {
                    node_id: self.node_id(),
                    round,
                    master_addr: None,
                    master_port: 29_500,
                };
                call(client.report_hosting(self.signed(report))).await?;
            }
            Some(Payload::Assigned(assignment)) => {
                self.say(Event::Assigned { round: assignment.round, bytes });
                self.phase = Phase::Assigned;
                self.assignment = assignment;
            }
            Some(Payload::Regroup(pb::Regroup { round, .. })) if round == self.assignment.round => {
                self.say(Event::Stopped);
                self.phase = Phase::Stopping;
                if !self.is_held {
                    // Its workers take no time to stop.
                    self.join(client).await?;
                }
            }
            Some(Payload::JobEnd(end)) => {
                self.say(Event::Ended(format!("{:?}", end.verdict)));
                let command = pb::EndAcknowledgement { node_id: self.node_id() };
                call(client.acknowledge_end(self.signed(command))).await?;
                return Ok(true);
            }
            Some(Payload::Refused(pb::Refused { reason })) => self.say(Event::Refused(reason)),
            // There are no checks, no hangs and no checkpoints.
            Some(
                Payload::Checkpoint(_)
                | Payload::Check(_)
                | Payload::CancelCheck(_)
                | Payload::CheckOver(_)
                | Payload::Excluded(_)
                | Payload::DumpStacks(_)
                | Payload::Hang(_),
            ) => {}
            Some(Payload::Regroup(_) | Payload::Welcome(_) | Payload::Pending(_) | Payload::RootCause(_))
            | None => {}
        }
        Ok(false)
    }

    async fn join(&mut self, client: &mut Client) -> CallResult<()> {
        self.is_held = false;
        if matches!(self.phase, Phase::Assigned | Phase::Stopping) {
            self.request.after_round = Some(self.assignment.round);
        }
        self.phase = Phase::Waiting;
        call(client.join(self.signed(self.request.clone()))).await?;
        self.say(Event::Joined);
        Ok(())
    }

    async fn resume(&mut self, client: &mut Client, phase: pb::WorkersState) -> CallResult<()> {
        let request = pb::ResumeRequest {
            fence: None,
            node: Some(self.request.clone()),
            round: self.assignment.round,
            node_rank: self.assignment.node_rank,
            nodes: self.assignment.nodes,
            master_addr: self.assignment.master_addr.clone(),
            master_port: self.assignment.master_port,
            workers_state: phase.into(),
        };
        call(client.resume(self.signed(request))).await?;
        Ok(())
    }

    async fn succeed(&mut self, client: &mut Client) -> CallResult<()> {
        self.phase = Phase::Done;
        let end = pb::end_report::End::Succeeded(pb::NodeSucceeded { round: self.assignment.round });
        let report = pb::EndReport { node_id: self.node_id(), end: Some(end) };
        call(client.report_end(self.signed(report))).await?;
        Ok(())
    }

    fn node_id(&self) -> String {
        self.request.node_id.clone()
    }

    fn signed<T>(&self, message: T) -> tonic::Request<T> {
        signed(&self.secret, message)
    }
}

fn signed<T>(secret: &NodeSecret, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    secret.put_on(&mut request);
    request
}

/// As long as the requests of real nodes.
fn request(number: usize, of: u32, secret: &NodeSecret) -> pb::JoinRequest {
    let host = format!("training-job-7-worker-{number:04}");
    pb::JoinRequest {
        node_id: secret.node_id().0,
        local_world_size: 8,
        role: "default".to_owned(),
        terms: Some(pb::Terms {
            run_id: "bench".to_owned(),
            min_nodes: of,
            max_nodes: of,
            node_unit: 1,
            last_call_millis: 30_000,
            join_timeout_millis: 600_000,
            require_uniform: false,
            check: None,
            hang: None,
            save_at_breakpoint: false,
        }),
        attributes: Some(pb::NodeAttributes {
            host_name: host.clone(),
            addresses: vec![format!("10.1.{}.{}", number / 256, number % 256), format!("fd00::1:{number:x}")],
            k8s_node_name: Some(format!("gpu-node-{number:04}")),
            pod_name: Some(host),
            boot_id: Uuid::new_v4().to_string(),
            accelerators: Some(pb::Accelerators { kind: "nvidia.com/gpu".to_owned(), count: 8 }),
        }),
        ..pb::JoinRequest::default()
    }
}

async fn call<T>(call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> CallResult<T> {
    Ok(timeout(CALL, call).await??.into_inner())
}

/// Sends heartbeats, until the master no longer knows the stream.
async fn beats(mut client: Client, secret: NodeSecret, welcome: pb::Welcome) -> Box<dyn Error + Send + Sync> {
    let node_id = secret.node_id().0;
    let pb::Welcome { beat_millis: mut millis, session, .. } = welcome;
    while millis > 0 {
        sleep(Duration::from_millis(millis)).await;
        let beat = pb::BeatRequest { node_id: node_id.clone(), taken_round: None, session };
        match call(client.beat(signed(&secret, beat))).await {
            Ok(pb::BeatReply { is_known: true, next_millis }) => millis = next_millis,
            Ok(_) => return "forgotten".into(),
            Err(error) => return error,
        }
    }
    std::future::pending().await
}

/// Returns a random pause between half of it and all of it.
fn jittered(pause: Duration) -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() & 0xff).unwrap_or_default();
    pause / 2 + pause / 2 * random / 256
}
