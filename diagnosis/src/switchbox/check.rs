//! The state machine: which pair is measured when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    DEADLINE, FEWEST, Method, Misfit, PairFinding, Path, Rate, Repetition, Settings, SocketPair,
    SwitchboxFinding, Trouble, Verdict, Wrong,
    finding::{of_values, too_few_runs},
    judge::{judge, judge_early},
    misfit::misfit,
    model::Equipment,
    path::MeasuredPath,
};
use crate::moment::Moment;

/// A pair without an answer, or with an error, is measured once more; then that is its result.
const MAX_FAILURES: u32 = 2;

/// All pairs are measured again, all at the same time, until each has [`FEWEST`] values; but no run of all is begun
/// that would end later than this, if it takes as long as the one before. The rest of the time is for the pairs that
/// are measured alone.
const TOGETHER_WITHIN: Duration = Duration::from_secs(40);

/// Where that leaves fewer values than [`FEWEST`], so many good ones are enough: one run may take no more than a
/// third of the whole time, so there are always two.
const FEWEST_TOGETHER: usize = 2;

/// The result of a measurement of one pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Values, at least one; a measurement without any counts as failed.
    Measured {
        /// In the order in which they were taken, without the warm-up.
        values: Vec<Repetition>,
        /// The path that the bytes took.
        path: Path,
    },
    /// No value.
    Failed(Wrong),
}

/// An event of the check. Pairs are identified by their place in the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// What is connected to the sockets of a pair.
    Named {
        pair: usize,
        /// By socket.
        devices: (String, String),
    },
    /// The number of this host's accelerators, by the probe.
    Counted { devices: u32 },
    /// A measurement ended. Messages of runs that are over are dropped.
    Answered { run: u32, pair: usize, answer: Answer },
    /// [`Check::deadline`] is reached.
    Deadline,
}

/// An effect of the check, to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Measure these pairs now, all at the same time where the probe can. No socket is in two of them.
    Measure {
        /// The number of the run, from 0.
        run: u32,
        /// By place in the settings.
        pairs: Vec<usize>,
        timeout: Duration,
    },
    /// Cancel the rest of this run.
    Stop { run: u32 },
    /// The check is over. Nothing follows.
    Finish(SwitchboxFinding),
    /// The check is over, because the default pairs are not those of this host. Nothing follows, and it is no fault
    /// of the node.
    Refuse(Misfit),
}

/// A check of one node's switchbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    settings: Settings,
    method: Method,
    began: Moment,
    pairs: Vec<Pair>,
    run: Option<Run>,
    /// Runs so far.
    runs: u32,
    /// The number of accelerators, if the probe reports it.
    devices: Option<u32>,
    /// The probe has reported on some pair's link.
    has_answered: bool,
    is_over: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    number: u32,
    /// Pairs that have not answered.
    awaited: Vec<usize>,
    began: Moment,
    timeout: Duration,
    alone: bool,
}

impl Run {
    fn until(&self) -> Moment {
        self.began + self.timeout
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Pair {
    devices: Option<(String, String)>,
    /// Values of runs with others. All of them are good, or the pair is in doubt.
    together: Vec<Repetition>,
    /// Values of runs of its own.
    own: Vec<Repetition>,
    path: Path,
    failures: u32,
    last_wrong: Option<Wrong>,
    /// It has been in a run of its own.
    alone: bool,
    verdict: Option<(Verdict, Option<Wrong>)>,
}

impl Check {
    /// A check that begins now: every pair is measured, all of them in one run.
    #[must_use]
    pub fn new(now: Moment, settings: Settings, method: Method) -> (Self, Vec<Effect>) {
        let pairs = vec![Pair::default(); settings.pairs.len()];
        let all = (0..pairs.len()).collect();
        let mut check = Self {
            settings,
            method,
            began: now,
            pairs,
            run: None,
            runs: 0,
            devices: None,
            has_answered: false,
            is_over: false,
        };
        let effects = check.measure(now, all);
        (check, effects)
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`], if nothing else happens first. `None`: it is over.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let end = self.began + DEADLINE;
        (!self.is_over).then(|| self.run.as_ref().map_or(end, |run| run.until().min(end)))
    }

    /// Handles `event` and returns what to do.
    #[must_use = "an effect not carried out leaves the probes and this state apart"]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        if self.is_over {
            return Vec::new();
        }
        match event {
            Event::Named { pair, devices } => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.devices = Some(devices);
                }
                Vec::new()
            }
            Event::Counted { devices } => {
                self.devices = Some(devices);
                Vec::new()
            }
            Event::Answered { run, pair, answer } => self.on_answered(now, run, pair, answer),
            Event::Deadline => self.on_deadline(now),
        }
    }

    fn on_answered(&mut self, now: Moment, number: u32, pair: usize, answer: Answer) -> Vec<Effect> {
        let Some(run) = self.run.as_mut().filter(|run| run.number == number) else { return Vec::new() };
        let Some(place) = run.awaited.iter().position(|awaited| *awaited == pair) else { return Vec::new() };
        run.awaited.remove(place);
        self.has_answered |= !matches!(&answer, Answer::Failed(wrong) if wrong.is_untested());
        let (alone, took, is_over) = (run.alone, now - run.began, run.awaited.is_empty());
        self.take(pair, alone, answer);
        if is_over { self.go_on(now, took) } else { Vec::new() }
    }

    /// A measurement that has not ended in time, or the end of the whole check.
    fn on_deadline(&mut self, now: Moment) -> Vec<Effect> {
        let is_last = now >= self.began + DEADLINE;
        let Some(run) = self.run.take_if(|run| is_last || now >= run.until()) else { return Vec::new() };
        let mut effects = Vec::new();
        if !run.awaited.is_empty() {
            effects.push(Effect::Stop { run: run.number });
        }
        // One program for several pairs: which of them it hangs at is unknown.
        let is_shared = self.method.is_serial && !run.alone;
        let trouble = if is_shared { Trouble::Untested } else { Trouble::Dead };
        // A pair that did not have its whole time has not hung.
        let has_hung = now >= run.until();
        for pair in run.awaited.into_iter().filter(|_| has_hung) {
            let message = format!("not finished within {} s", run.timeout.as_secs_f64());
            self.take(pair, run.alone, Answer::Failed(Wrong::new(trouble, message)));
        }
        effects.extend(if is_last { self.finish(now) } else { self.go_on(now, run.timeout) });
        effects
    }

    /// Applies an answer to its pair.
    fn take(&mut self, pair: usize, alone: bool, answer: Answer) {
        let (style, min) = (self.method.style, self.settings.min);
        let Some(pair) = self.pairs.get_mut(pair) else { return };
        pair.alone |= alone;
        match answer {
            Answer::Measured { values, path } if !values.is_empty() => {
                // Of several paths the least direct one.
                pair.path = if pair.has_values() { pair.path.max(path) } else { path };
                if alone {
                    pair.own.extend(values);
                    let verdict = judge(style, min, &pair.own);
                    pair.verdict = verdict.map(|it| (it, of_values(it, min, &pair.own, true)));
                } else {
                    pair.together.extend(values);
                    if pair.together.len() >= FEWEST as usize && !pair.is_in_doubt(min) {
                        pair.verdict = Some((Verdict::Good, None));
                    }
                }
            }
            Answer::Measured { .. } => pair.fail(Wrong::new(Trouble::NoAnswer, "no value in the answer")),
            Answer::Failed(wrong) => pair.fail(wrong),
        }
    }

    /// All that are not in doubt are measured together again, and then those that are: alone, one after the other.
    /// `took`: as long as the last run.
    fn go_on(&mut self, now: Moment, took: Duration) -> Vec<Effect> {
        self.run = None;
        if let Some(misfit) = self.misfit() {
            self.is_over = true;
            return vec![Effect::Refuse(misfit)];
        }
        let min = self.settings.min;
        let is_open = |pair: &Pair| pair.verdict.is_none();
        let all = self.pairs.iter().enumerate();
        let clear = all.filter(|(_, it)| is_open(it) && !it.is_in_doubt(min)).map(|(place, _)| place);
        let clear: Vec<usize> = clear.collect();
        if now + took > self.began + TOGETHER_WITHIN {
            for pair in self.pairs.iter_mut().filter(|it| is_open(it) && it.is_clear_so_far(min)) {
                pair.verdict = Some((Verdict::Good, None));
            }
        } else if clear.len() > 1 {
            return self.measure(now, clear);
        }
        match self.pairs.iter().position(is_open) {
            Some(pair) => self.measure(now, vec![pair]),
            None => self.finish(now),
        }
    }

    fn misfit(&self) -> Option<Misfit> {
        let lacks = |pair: &Pair| {
            let wrong = pair.verdict.as_ref().and_then(|(_, wrong)| wrong.as_ref());
            wrong.is_some_and(|wrong| wrong.trouble == Trouble::NoSuchDevice)
        };
        let pairs = self.settings.pairs.iter().copied().zip(&self.pairs);
        let lacking = pairs.filter(|(_, state)| lacks(state)).map(|(pair, _)| pair).collect();
        misfit(&self.settings, self.devices, lacking)
    }

    fn measure(&mut self, now: Moment, pairs: Vec<usize>) -> Vec<Effect> {
        if pairs.is_empty() {
            return self.finish(now);
        }
        let timeout = self.method.timeout_for(pairs.len());
        let run = self.runs;
        self.runs += 1;
        let alone = pairs.len() == 1;
        self.run = Some(Run { number: run, awaited: pairs.clone(), began: now, timeout, alone });
        vec![Effect::Measure { run, pairs, timeout }]
    }

    fn finish(&mut self, now: Moment) -> Vec<Effect> {
        self.is_over = true;
        let Settings { min, min_channels, expected, models, .. } = &self.settings;
        let min = *min;
        // A program that fails for every pair is broken itself. If it fails for one pair only, that pair is; so is
        // one that was measured by a process of its own.
        let is_pairs_own = self.has_answered || !self.method.is_serial;
        let linked = self.pairs.iter().map(|pair| pair.path).find(|path| path.is_link());
        let mut remarks = Vec::new();
        let finding = |(pair, state): (SocketPair, &Pair)| {
            let (mut verdict, mut wrong) = state.verdict.clone().unwrap_or_else(|| state.cut_short(min));
            if is_pairs_own
                && let Some(wrong) = wrong.as_mut().filter(|it| it.trouble == Trouble::ProbeFailed)
            {
                (verdict, wrong.trouble) = (Verdict::Bad, Trouble::NoAnswer);
            }
            if verdict == Verdict::Good {
                let measured_path = state.measured_path(pair, linked, models);
                match expected.missed(&measured_path) {
                    Some(missed) => {
                        verdict = if missed.is_untested() { Verdict::Untested } else { Verdict::Bad };
                        wrong = Some(missed);
                    }
                    None => remarks.extend(expected.remark(&measured_path)),
                }
            }
            let values = if state.own.is_empty() { &state.together } else { &state.own };
            PairFinding {
                pair,
                devices: state.devices.clone(),
                verdict,
                wrong,
                values: values.clone(),
                path: state.path,
                alone: state.alone,
            }
        };
        let pairs: Vec<_> = self.settings.pairs.iter().copied().zip(&self.pairs).map(finding).collect();
        // The same message for many pairs.
        remarks.sort();
        remarks.dedup();
        remarks.extend(too_few_runs(&pairs));
        let took = now - self.began;
        let (probe, min_channels) = (self.method.probe.clone(), *min_channels);
        vec![Effect::Finish(SwitchboxFinding { probe, min, min_channels, pairs, took, remarks })]
    }
}

impl Pair {
    fn has_values(&self) -> bool {
        !self.together.is_empty() || !self.own.is_empty()
    }

    /// What was measured with others leaves a doubt: it is to be measured alone.
    fn is_in_doubt(&self, min: Rate) -> bool {
        self.failures > 0 || self.alone || self.together.iter().any(|it| it.value() < min)
    }

    /// It is good so far, by more than one value.
    fn is_clear_so_far(&self, min: Rate) -> bool {
        !self.is_in_doubt(min) && self.together.len() >= FEWEST_TOGETHER
    }

    fn measured_path<'a>(
        &'a self,
        pair: SocketPair,
        linked: Option<Path>,
        models: &'a [String],
    ) -> MeasuredPath<'a> {
        let equipment = Equipment::of_pair(self.devices.as_ref(), models);
        MeasuredPath { is_itself: pair.is_itself(), path: self.path, linked, equipment }
    }

    fn fail(&mut self, wrong: Wrong) {
        self.failures += 1;
        if self.failures >= MAX_FAILURES || !wrong.trouble.is_worth_a_retry() {
            let verdict = if wrong.is_untested() { Verdict::Untested } else { Verdict::Bad };
            self.verdict = Some((verdict, Some(wrong.clone())));
        }
        self.last_wrong = Some(wrong);
    }

    /// The verdict on a pair for which no time is left. Only measurements of the pair alone can make it bad.
    fn cut_short(&self, min: Rate) -> (Verdict, Option<Wrong>) {
        if self.is_clear_so_far(min) {
            return (Verdict::Good, None);
        }
        let verdict = judge_early(min, &self.own);
        let wrong = match &self.last_wrong {
            _ if !self.own.is_empty() => of_values(verdict, min, &self.own, true),
            Some(wrong) => {
                let how = if self.alone { "again" } else { "alone" };
                let message = format!("no time was left to measure it {how}; so far: {wrong}");
                Some(Wrong::new(Trouble::Untested, message))
            }
            None => of_values(verdict, min, &self.together, false),
        };
        let unseen = || Wrong::new(Trouble::Untested, "no time was left to measure it");
        (verdict, Some(wrong.unwrap_or_else(unseen)))
    }
}
