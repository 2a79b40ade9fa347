//! One test of this node with others, as ordered by the job master.

use std::{ffi::OsString, io};

use diagnosis::network_check::Probed;
use rules::{
    check_order::{CheckOrder, CheckReport, Test},
    worker_group::Event,
};
use tokio::sync::{mpsc, watch};

use super::{Command, ProbePort};
use probes::{
    CannotRun, CommandPlan, Listener, LocalPlan, ProbeHandle, ProbeProgram, RingMode, RingPlan,
    WITHOUT_OPTIC_LINK, measure_compute, start_command, start_ring,
};

/// Timed all-reduces of a bandwidth pass.
const REPEATS: u32 = 5;

/// The environment of a check command besides its rank and addresses.
pub(super) fn command_env(
    devices: &[(OsString, OsString)],
    has_switchbox: bool,
) -> Vec<(OsString, OsString)> {
    let (name, value) = WITHOUT_OPTIC_LINK;
    let optic_link = has_switchbox.then(|| (name.into(), value.into()));
    devices.iter().cloned().chain(optic_link).collect()
}

/// One test.
pub(super) struct Probe {
    pub(super) program: ProbeProgram,
    pub(super) local: LocalPlan,
    pub(super) port: ProbePort,
    pub(super) command: Option<Command>,
    pub(super) has_switchbox: bool,
    pub(super) order: CheckOrder,
}

impl Probe {
    /// Runs it and sends the results but the last. That of the test is sent at once if the compute probe takes longer.
    pub(super) async fn run<E: From<Event> + Send + 'static>(
        self,
        cancelled: watch::Receiver<bool>,
        events: &mpsc::Sender<E>,
    ) -> Result<CheckReport, CannotRun> {
        let at = self.order.at;
        let test = self.with_others(cancelled.clone(), events);
        let times = self.order.compute_again;
        if times == 0 {
            return Ok(CheckReport { at, probed: test.await?, compute: Some(Vec::new()) });
        }
        let again = measure_compute(times, self.local.clone(), cancelled);
        tokio::pin!(test, again);
        tokio::select! {
            compute = &mut again => Ok(CheckReport { at, probed: test.await?, compute: Some(compute) }),
            probed = &mut test => {
                let probed = probed?;
                let report = CheckReport { at, probed: probed.clone(), compute: None };
                let _gone = events.send(Event::Probed { report }.into()).await;
                Ok(CheckReport { at, probed, compute: Some(again.await) })
            }
        }
    }

    async fn with_others<E: From<Event> + Send + 'static>(
        &self,
        mut cancelled: watch::Receiver<bool>,
        events: &mpsc::Sender<E>,
    ) -> Result<Probed, CannotRun> {
        let at = self.order.at;
        let (progress, mut news) = mpsc::channel(4);
        // Kept until the end: a port that listens here, instead of the agent's.
        let started = self.start(progress);
        let (handle, _listens_here) = match started {
            Ok(started) => started,
            Err(error) => {
                let no_port = "no port for probes could be opened on this node";
                let reason = match error.kind() {
                    // There is nothing to add, and the start of the agent has logged why.
                    io::ErrorKind::Other => no_port.to_owned(),
                    _ => format!("{no_port}: {error}"),
                };
                return Ok(Probed::Failed { reason });
            }
        };
        let canceller = handle.canceller();
        let end = handle.end();
        tokio::pin!(end);
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                probed = &mut end => return probed,
                // Cancelled, or its sender is gone.
                _ = cancelled.wait_for(|it| *it), if !is_cancelled => {
                    is_cancelled = true;
                    canceller.cancel();
                }
                Some(probed) = news.recv() => {
                    let _gone = events.try_send(Event::Probing { at, probed }.into());
                }
            }
        }
    }

    fn start(&self, progress: mpsc::Sender<Probed>) -> io::Result<(ProbeHandle, Option<Listener>)> {
        if let (Some(command), Test::Pair) = (&self.command, self.order.test) {
            return Ok((self.start_command(command, progress)?, None));
        }
        let plan = self.ring_plan();
        match &self.port {
            ProbePort::Open(listener) => {
                Ok((start_ring(plan, listener, &self.program, Some(progress)), None))
            }
            ProbePort::Kept(reservation) => {
                let listener = Listener::bind(None, reservation.port())?;
                let handle = start_ring(plan, &listener, &self.program, Some(progress));
                Ok((handle, Some(listener)))
            }
            ProbePort::None => Err(io::Error::other("none could be opened")),
        }
    }

    fn ring_plan(&self) -> RingPlan {
        let CheckOrder { test, me, size, partners, seed, timeout, .. } = &self.order;
        let (me, size) = (*me as usize, *size as usize);
        let (mut members, mut ports) = (vec![String::new(); size], vec![0; size]);
        // In the order of the ring, starting with the next one; of a large ring only the next.
        for (partner, distance) in partners.iter().zip(1..size) {
            let place = (me + distance) % size;
            members[place].clone_from(&partner.address);
            ports[place] = partner.port;
        }
        RingPlan {
            token: *seed,
            seed: *seed,
            me,
            members,
            ports,
            connect_timeout: *timeout,
            mode: match test {
                Test::Pair => RingMode::Check,
                Test::AllReduce { bytes } => RingMode::AllReduce { bytes: *bytes, repeats: REPEATS },
            },
        }
    }

    /// The first member listens at `MASTER_ADDR` and `MASTER_PORT`.
    fn start_command(&self, command: &Command, progress: mpsc::Sender<Probed>) -> io::Result<ProbeHandle> {
        let CheckOrder { me, size, partners, address, seed, .. } = &self.order;
        // In the order of the ring, starting with the next one.
        let first = (*size - *me) as usize;
        let (master_addr, master_port) = match (*me, &self.port, partners.get(first.wrapping_sub(1))) {
            (0, ProbePort::Kept(reservation), _) => (address.clone(), reservation.port()),
            (1.., _, Some(first)) => (first.address.clone(), first.port),
            _ => return Err(io::Error::other("none could be opened")),
        };
        let plan = CommandPlan {
            argv: ["/bin/sh".into(), "-c".into(), command.line.clone()].into(),
            rank: *me as usize,
            world_size: *size as usize,
            master_addr,
            master_port,
            seed: *seed,
            env: command_env(&self.local.program.variables, self.has_switchbox),
            grace: command.grace,
            output: None,
            program: self.program.clone(),
        };
        Ok(start_command(plan, Some(progress)))
    }
}
