//! The node's part in a network check: starts the probes that the job master orders, one at a time, and turns their
//! ends into events.

mod gpus;
mod solo_check;
mod test;

use std::{ffi::OsString, net::Ipv4Addr, sync::Arc, time::Duration};

use diagnosis::{
    gpus::health::GpuTerms,
    network_check::{LocalCheck, LocalFault},
    switchbox::COMPONENT,
};
use rules::{
    check_order::{CheckOrder, CheckRound},
    worker_group::Event,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tracing::warn;

use self::{solo_check::SoloCheck, test::Probe};
use probes::{
    CommandPlan, GpuPlan, Listener, LocalPlan, ProbeProgram, Reservation, SwitchboxError, SwitchboxTask,
    check_locally, check_switchbox,
};

/// How long cancelled probes may take at the end of the node: their own limits, and a little more.
const CLOSE: Duration = Duration::from_secs(3);

/// The timeout of the self-test of a node with accelerators: without persistence mode a driver takes seconds to
/// initialize each of eight.
const WITH_DEVICES: Duration = Duration::from_secs(60);

/// Lines of a switchbox check that may be queued for printing: more than one check has.
const SWITCHBOX_LINES: usize = 256;

/// Starts probes.
#[derive(Debug)]
pub struct Prober {
    program: ProbeProgram,
    /// Variables that limit computing probes to this job's accelerators. The inventory and the switchbox check are
    /// not limited: they name devices by the driver's own numbers.
    devices: Vec<(OsString, OsString)>,
    port: ProbePort,
    /// Of the self-test.
    timeout: Duration,
    command: Option<Command>,
    gpu_terms: GpuTerms,
    /// Directories that are searched for vendors' tools, in the form of `PATH`.
    tool_path: OsString,
    switchbox: Option<SwitchboxTask>,
    self_test: Option<SelfTest>,
    current: Option<Current>,
    /// The watch over the accelerators' driver.
    watch: Option<gpus::Watch>,
}

/// The port at which other nodes' probes reach this one.
#[derive(Debug, Clone)]
enum ProbePort {
    /// Listens from the first round to the last.
    Open(Arc<Listener>),
    /// Opened by the check command in each round.
    Kept(Arc<Reservation>),
    /// No probe was asked for yet, or no port was free, which is a fault of this node.
    None,
}

/// The check command.
#[derive(Debug, Clone)]
pub struct Command {
    /// Run by `/bin/sh -c`.
    pub line: OsString,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// The job has only this node, which runs it alone, with this time limit.
    pub solo_limit: Option<Duration>,
}

/// The last self-test.
#[derive(Debug)]
struct SelfTest {
    cancel: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// The last probe.
#[derive(Debug)]
struct Current {
    at: CheckRound,
    cancel: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Prober {
    /// `launcher_id` is set in the environment of probes, by which leftovers are found. Devices are tested one after
    /// another, which takes longer than a test of the processor.
    #[must_use]
    pub fn new(
        launcher_id: String,
        has_accelerators: bool,
        devices: Vec<(OsString, OsString)>,
        command: Option<Command>,
        gpu_terms: GpuTerms,
        tool_path: OsString,
        switchbox: Option<SwitchboxTask>,
    ) -> Self {
        let timeout = if has_accelerators { WITH_DEVICES } else { LocalPlan::default().deadline };
        let program = ProbeProgram { launcher_id: Some(launcher_id), ..ProbeProgram::default() };
        Self {
            program,
            devices,
            port: ProbePort::None,
            timeout,
            command,
            gpu_terms,
            tool_path,
            switchbox,
            self_test: None,
            current: None,
            watch: None,
        }
    }

    /// An inventory alone needs no port.
    fn open_port(&mut self) {
        if !matches!(self.port, ProbePort::None) {
            return;
        }
        let port = match self.command {
            Some(_) => Reservation::new().map(|port| ProbePort::Kept(Arc::new(port))),
            None => Listener::bind(None, 0).map(|listener| ProbePort::Open(Arc::new(listener))),
        };
        self.port = port.unwrap_or_else(|error| {
            warn!(%error, "cannot open a port for probes");
            ProbePort::None
        });
    }

    /// The port at which other nodes' probes reach this one; 0: none.
    #[must_use]
    pub fn port(&self) -> u16 {
        match &self.port {
            ProbePort::Open(listener) => listener.port(),
            ProbePort::Kept(reservation) => reservation.port(),
            ProbePort::None => 0,
        }
    }

    /// Runs the self-test: accelerators (with [`Event::InventoryTaken`]), processor, switchbox last. It ends with
    /// [`Event::LocallyChecked`] or [`Event::CannotCheck`].
    pub fn check_locally<E: From<Event> + Send + 'static>(&mut self, events: mpsc::Sender<E>) {
        self.open_port();
        let plan = self.local_plan();
        let gpus = GpuPlan { deadline: self.timeout, ..self.gpu_plan() };
        let terms = self.gpu_terms.clone();
        let switchbox = self.switchbox.clone();
        let program = self.program.clone();
        let command = self.solo_check();
        let (cancel, mut cancelled) = watch::channel(false);
        let task = tokio::spawn(async move {
            let checked = async {
                let (inventory, fitness) = gpus::fitness(gpus, &terms).await;
                let places = gpus::places(&inventory);
                let models: Vec<String> = inventory.gpus.iter().filter_map(|gpu| gpu.name.clone()).collect();
                let inventory = Box::new(inventory);
                let _gone = events.send(Event::InventoryTaken { inventory }.into()).await;
                let checked = match fitness {
                    Ok(notes) => {
                        let mut checked = check_locally(LocalPlan { places, ..plan }).await;
                        checked.notes.extend(notes);
                        checked
                    }
                    Err(fault) => LocalCheck { fault: Some(fault), ..LocalCheck::default() },
                };
                (checked, models)
            };
            let (checked, models) = tokio::select! {
                checked = checked => checked,
                // Its process dies with this launcher.
                _ = cancelled.changed() => return,
            };
            let end = match switchbox {
                Some(mut task) if checked.fault.is_none() => {
                    task.settings.models = models;
                    with_switchbox(checked, task, &program, cancelled.clone(), &events).await
                }
                _ => Event::LocallyChecked { checked },
            };
            let end = match (end, command) {
                (Event::LocallyChecked { checked }, Some(solo_check)) if checked.fault.is_none() => {
                    solo_check.run(checked, cancelled, &events).await
                }
                (end, _) => end,
            };
            let _gone = events.send(end.into()).await;
        });
        self.self_test = Some(SelfTest { cancel, task });
    }

    /// Takes part in a test, after cancelling the one before. It ends with [`Event::Probed`]; if this node also
    /// computes for longer, there is one for each. Without a check command to run it ends with
    /// [`Event::CannotCheck`].
    pub fn probe<E: From<Event> + Send + 'static>(&mut self, order: CheckOrder, events: mpsc::Sender<E>) {
        self.open_port();
        let (cancel, cancelled) = watch::channel(false);
        // Dropping its sender cancels the one before.
        let before = self.current.take().map(|current| current.task);
        let at = order.at;
        let probe = Probe {
            program: self.program.clone(),
            local: self.local_plan(),
            port: self.port.clone(),
            command: self.command.clone(),
            has_switchbox: self.switchbox.is_some(),
            order,
        };
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                let _panicked = before.await;
            }
            let end = match probe.run(cancelled, &events).await {
                Ok(report) => Event::Probed { report },
                // It concerns no other node, so none must be suspected.
                Err(error) => Event::CannotCheck { reason: error.to_string() },
            };
            let _gone = events.send(end.into()).await;
        });
        self.current = Some(Current { at, cancel, task });
    }

    /// Cancels the probe of this round and its compute probe. Both still report an end.
    pub fn cancel(&mut self, at: CheckRound) {
        if let Some(current) = self.current.as_ref().filter(|current| current.at == at) {
            current.cancel.send_replace(true);
        }
    }

    /// Cancels everything and waits for it, with a timeout.
    pub async fn close(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.close().await;
        }
        if let Some(SelfTest { cancel, task }) = self.self_test.take() {
            cancel.send_replace(true);
            if timeout(CLOSE, task).await.is_err() {
                warn!("the self-test does not exit; it is killed when this launcher exits");
            }
        }
        let Some(Current { cancel, task, .. }) = self.current.take() else { return };
        cancel.send_replace(true);
        if timeout(CLOSE, task).await.is_err() {
            warn!("a probe does not exit; it is killed when this launcher exits");
        }
    }

    /// The check command, if it runs on this node alone.
    fn solo_check(&self) -> Option<SoloCheck> {
        let (command, ProbePort::Kept(reservation)) = (self.command.as_ref()?, &self.port) else {
            return None;
        };
        let plan = CommandPlan {
            argv: ["/bin/sh".into(), "-c".into(), command.line.clone()].into(),
            rank: 0,
            world_size: 1,
            master_addr: Ipv4Addr::LOCALHOST.to_string(),
            master_port: reservation.port(),
            seed: 0,
            env: test::command_env(&self.devices, self.switchbox.is_some()),
            grace: command.grace,
            output: None,
            program: self.program.clone(),
        };
        Some(SoloCheck { plan, limit: command.solo_limit? })
    }

    fn gpu_plan(&self) -> GpuPlan {
        GpuPlan { path: self.tool_path.clone(), program: self.program.clone(), ..GpuPlan::default() }
    }

    fn local_plan(&self) -> LocalPlan {
        let program = ProbeProgram { variables: self.devices.clone(), ..self.program.clone() };
        LocalPlan { deadline: self.timeout, program, ..LocalPlan::default() }
    }
}

/// The last step of the self-test: the links to the switchbox, with its log lines.
async fn with_switchbox<E: From<Event>>(
    mut checked: LocalCheck,
    task: SwitchboxTask,
    program: &ProbeProgram,
    cancel: watch::Receiver<bool>,
    events: &mpsc::Sender<E>,
) -> Event {
    let (lines, mut received) = mpsc::channel(SWITCHBOX_LINES);
    let forwarding = async {
        while let Some(message) = received.recv().await {
            let _gone = events.send(Event::SelfCheckProgress { message }.into()).await;
        }
    };
    let (found, ()) = tokio::join!(check_switchbox(task, program, Some(lines), Some(cancel)), forwarding);
    match found {
        Ok(found) => found.add_to(&mut checked),
        Err(SwitchboxError::Died(reason)) => {
            checked.fault = Some(LocalFault::unanswered(Some(COMPONENT), reason));
        }
        Err(error @ (SwitchboxError::NoProbe | SwitchboxError::Cannot(_))) => {
            return Event::CannotCheck { reason: error.to_string() };
        }
    }
    Event::LocallyChecked { checked }
}
