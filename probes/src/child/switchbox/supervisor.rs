//! The process that drives a check: it starts measurements, reads their output, kills late ones, and leaves nothing
//! behind.
//!
//! It is a subreaper, so orphans of a tool become its children. When the agent dies, the kernel sends it SIGTERM.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use diagnosis::switchbox::{Answer, Check, Effect, Event, Settings, Trouble, Wrong, pairs_text};
use nix::sys::{
    prctl,
    signal::{SigSet, Signal},
};
use rules::Moment;

use super::{
    call::{Call, CallEnd},
    contract::Response,
    layout,
    measure::Probe,
    mxom,
};
use crate::{
    child::{Reporter, session::kill_descendants, wait_for},
    wire::{
        ProbeMessage,
        switchbox::{CopyKind, CopyTask, Request, SwitchboxEnd, SwitchboxProbe, SwitchboxTask},
    },
};
use processes::reap::reap_exited;

/// Between two checks for a cancellation, when no child exits.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long counting devices may take: a driver without persistence initializes each of them.
const COUNTING: Duration = Duration::from_secs(10);

/// Runs the check. SIGTERM ends it early.
pub(crate) fn run(task: &SwitchboxTask, reporter: &Reporter) -> SwitchboxEnd {
    let mut supervisor = match Supervisor::new(reporter) {
        Ok(supervisor) => supervisor,
        Err(error) => return SwitchboxEnd::Cannot(format!("cannot supervise a probe: {error}")),
    };
    let end = supervisor.check(task);
    supervisor.kill_leftovers();
    end
}

/// A running measurement.
struct Running {
    call: Call,
    run: u32,
    places: Vec<usize>,
}

/// An ended measurement.
struct Ended {
    run: u32,
    places: Vec<usize>,
    end: CallEnd,
}

struct Supervisor<'a> {
    reporter: &'a Reporter,
    signals: SigSet,
    began: Instant,
    running: Vec<Running>,
    is_cancelled: bool,
}

impl<'a> Supervisor<'a> {
    fn new(reporter: &'a Reporter) -> nix::Result<Self> {
        prctl::set_child_subreaper(true)?;
        let mut signals = SigSet::from(Signal::SIGTERM);
        signals.add(Signal::SIGCHLD);
        // Before the first thread: all threads inherit it, and the signals stay pending until `wait_for`.
        signals.thread_block()?;
        Ok(Self { reporter, signals, began: Instant::now(), running: Vec::new(), is_cancelled: false })
    }

    fn now(&self) -> Moment {
        Moment::new(self.began.elapsed())
    }

    fn log(&self, message: String) {
        self.reporter.send(&ProbeMessage::Log(format!("switchbox check: {message}")));
    }

    fn check(&mut self, task: &SwitchboxTask) -> SwitchboxEnd {
        let probe = match self.choose(task) {
            Ok(Some(probe)) => probe,
            Ok(None) => return SwitchboxEnd::NoProbe,
            Err(why) => return SwitchboxEnd::Cannot(why),
        };
        let settings = &probe.settings(&task.settings);
        let mut method = probe.method();
        method.timeout = task.timeout.unwrap_or(method.timeout);
        let (pairs, min, least) = (pairs_text(&settings.pairs), settings.min, settings.min_channels);
        let name = &method.probe;
        self.log(format!("measuring {pairs} by {name}; at least {least} must reach {min} MB/s"));
        if let Some(warning) = probe.warning(settings.expected) {
            self.log(format!("warning: {warning}"));
        }
        let (mut check, effects) = Check::new(self.now(), settings.clone(), method);
        if let Some(devices) = probe.count() {
            let _nothing = check.handle(self.now(), Event::Counted { devices });
        }
        for (pair, sockets) in settings.pairs.iter().enumerate() {
            if let Some(devices) = probe.devices(*sockets) {
                let _nothing = check.handle(self.now(), Event::Named { pair, devices });
            }
        }
        let mut effects = VecDeque::from(effects);
        loop {
            while let Some(effect) = effects.pop_front() {
                match effect {
                    Effect::Measure { run, pairs, timeout } => {
                        for event in self.start(&probe, settings, run, &pairs, timeout) {
                            effects.extend(check.handle(self.now(), event));
                        }
                    }
                    Effect::Stop { run } => self.stop(run),
                    Effect::Finish(finding) => {
                        for trouble in finding.troubles() {
                            self.log(trouble);
                        }
                        self.log(finding.to_string());
                        return SwitchboxEnd::Found(finding);
                    }
                    Effect::Refuse(misfit) => return SwitchboxEnd::Cannot(misfit.to_string()),
                }
            }
            let due = check.deadline().map(Moment::since_start);
            let left = due.unwrap_or_default().saturating_sub(self.began.elapsed());
            if left.is_zero() {
                effects.extend(check.handle(self.now(), Event::Deadline));
                continue;
            }
            for Ended { run, places, end } in self.wait(left) {
                let said = probe.read(settings, &places, &end);
                if let Some(devices) = said.devices {
                    effects.extend(check.handle(self.now(), Event::Counted { devices }));
                }
                for (pair, devices, answer) in said.pairs {
                    if let Some(devices) = devices {
                        effects.extend(check.handle(self.now(), Event::Named { pair, devices }));
                    }
                    effects.extend(check.handle(self.now(), Event::Answered { run, pair, answer }));
                }
            }
            if self.is_cancelled {
                return SwitchboxEnd::Cannot("cancelled".into());
            }
        }
    }

    /// The requested probe, or the one that fits. `None`: none fits.
    fn choose(&mut self, task: &SwitchboxTask) -> Result<Option<Probe>, String> {
        let mxom = || Probe::mxom(task).map(Some).map_err(|error| rules::chain(&error));
        match &task.probe {
            SwitchboxProbe::Mxom => mxom(),
            SwitchboxProbe::Cuda => Ok(Some(Probe::Copy(CopyKind::Cuda))),
            SwitchboxProbe::Host => Ok(Some(Probe::Copy(CopyKind::Host))),
            SwitchboxProbe::Command(line) => Ok(Some(Probe::Command(line.clone()))),
            SwitchboxProbe::Auto if task.tool.exists() || layout::driver(&task.sysfs).exists() => mxom(),
            SwitchboxProbe::Auto => {
                let has_cuda = self.count_cuda(&task.settings) > 0;
                Ok(has_cuda.then_some(Probe::Copy(CopyKind::Cuda)))
            }
        }
    }

    /// The number of devices that NVIDIA's driver shows; 0 if it hangs.
    fn count_cuda(&mut self, settings: &Settings) -> u32 {
        let style = diagnosis::switchbox::Style::Repetitions;
        let request = Request::new(settings, Vec::new(), style, COUNTING);
        let spec = CopyTask { kind: CopyKind::Cuda, request }.spec();
        let Ok(call) = Call::start(&spec) else { return 0 };
        self.running.push(Running { call, run: 0, places: Vec::new() });
        let deadline = Instant::now() + COUNTING;
        while !self.is_cancelled {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if let Some(Ended { end, .. }) = self.wait(left).pop() {
                return Response::of(&end).ok().and_then(|response| response.devices).unwrap_or(0);
            }
        }
        self.stop(0);
        0
    }

    /// Starts a run. Returns the events that are known at once.
    fn start(
        &mut self,
        probe: &Probe,
        settings: &Settings,
        run: u32,
        pairs: &[usize],
        timeout: Duration,
    ) -> Vec<Event> {
        // Leftovers of the run before would share the links.
        self.kill_leftovers();
        let mut events = Vec::new();
        for (places, spec) in probe.calls(settings, pairs, timeout) {
            let started = spec.and_then(|spec| {
                Call::start(&spec).map_err(|error| match probe {
                    Probe::Mxom { .. } => mxom::cannot_start(&spec.program, &error),
                    _ => Wrong::new(Trouble::CannotStart, format!("{}: {error}", spec.program.display())),
                })
            });
            match started {
                Ok(call) => self.running.push(Running { call, run, places }),
                Err(wrong) => events.extend(places.into_iter().map(|pair| Event::Answered {
                    run,
                    pair,
                    answer: Answer::Failed(wrong.clone()),
                })),
            }
        }
        events
    }

    /// Kills the measurements of a run; their results are ignored.
    fn stop(&mut self, run: u32) {
        for running in self.running.extract_if(.., |running| running.run == run) {
            running.call.kill();
        }
    }

    /// Waits until a measurement ends or the time is over. Returns those that ended.
    fn wait(&mut self, timeout: Duration) -> Vec<Ended> {
        let mut ended = self.reap();
        if ended.is_empty() {
            self.is_cancelled |=
                wait_for(&self.signals, timeout.min(CHECK_INTERVAL)) == Some(Signal::SIGTERM);
            ended = self.reap();
        }
        ended
    }

    fn reap(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        reap_exited(|pid, cause| {
            let place = self.running.iter().position(|running| running.call.pid() == pid);
            if let Some(place) = place {
                ended.push((self.running.swap_remove(place), cause));
            }
        });
        let end = |(Running { call, run, places }, cause)| Ended { run, places, end: call.end(cause) };
        ended.into_iter().map(end).collect()
    }

    /// Kills everything that the tools of a run left behind.
    fn kill_leftovers(&mut self) {
        self.running.clear();
        if let Some(left) = kill_descendants(|| reap_exited(|_, _| ())) {
            self.log(format!("left behind by a probe and still alive after SIGKILL: {left}"));
        }
    }
}
