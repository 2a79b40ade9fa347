//! The probes as the supervisor sees them: what to start for a set of pairs, and how to read an ended process.

use std::{path::PathBuf, time::Duration};

use diagnosis::switchbox::{Answer, Expected, Method, Path, Settings, SocketPair, Style, Trouble, Wrong};

use super::{
    call::{CallEnd, Spec},
    contract::Response,
    layout::{LayoutError, Sockets, sockets},
    mxom,
};
use crate::wire::switchbox::{CopyKind, CopyTask, Request, SwitchboxTask};

/// The vendor's own limit for one call.
const MXOM_TIMEOUT: Duration = Duration::from_secs(10);

/// For one pair, of any other probe.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The chosen probe.
#[derive(Debug)]
pub(super) enum Probe {
    Mxom { tool: PathBuf, sockets: Option<Sockets> },
    Copy(CopyKind),
    Command(std::ffi::OsString),
}

/// The output of a measurement.
#[derive(Debug)]
pub(super) struct ProbeOutput {
    /// The number of accelerators, if it is reported.
    pub(super) devices: Option<u32>,
    /// One for each pair.
    pub(super) pairs: Vec<OfPair>,
}

/// The index of a pair, the devices on its sockets, and the measurement.
pub(super) type OfPair = (usize, Option<(String, String)>, Answer);

impl Probe {
    /// MetaX's tool, with the sockets from its driver.
    ///
    /// # Errors
    /// When the driver's layout is invalid.
    pub(super) fn mxom(task: &SwitchboxTask) -> Result<Self, LayoutError> {
        Ok(Self::Mxom { tool: task.tool.clone(), sockets: sockets(&task.sysfs)? })
    }

    /// How it measures.
    pub(super) fn method(&self) -> Method {
        let of = |probe: String, style, timeout, is_serial| Method { probe, style, timeout, is_serial };
        match self {
            Self::Mxom { tool, .. } => {
                of(format!("mxom ({})", tool.display()), Style::Calls, MXOM_TIMEOUT, false)
            }
            Self::Copy(CopyKind::Cuda) => of("cuda".into(), Style::Repetitions, TIMEOUT, false),
            Self::Copy(CopyKind::Host) => {
                of("host (no link test)".into(), Style::Repetitions, TIMEOUT, false)
            }
            Self::Command(line) => {
                of(format!("`{}`", mxom::shown(&line.to_string_lossy())), Style::Calls, TIMEOUT, true)
            }
        }
    }

    /// A warning to show before the check.
    pub(super) fn warning(&self, expected: Expected) -> Option<&'static str> {
        match self {
            Self::Mxom { sockets: None, .. } => {
                Some("the MetaX driver shows no layout; each socket is assumed to have the number of its GPU")
            }
            Self::Copy(CopyKind::Host)
                if matches!(expected, Expected::Exactly(Path::Metaxlink | Path::Nvlink)) =>
            {
                Some(
                    "the host probe does not use the links, so no pair can take the path that \
                    --switchbox-path requires; use --switchbox-path=any",
                )
            }
            _ => None,
        }
    }

    /// The settings of its check. A probe that tests no link is not compared with what the accelerators should have.
    pub(super) fn settings(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        if matches!(self, Self::Copy(CopyKind::Host)) {
            settings.models.clear();
            if settings.expected == Expected::Alike {
                settings.expected = Expected::Any;
            }
        }
        settings
    }

    /// The number of accelerators, if it is known before.
    pub(super) fn count(&self) -> Option<u32> {
        let Self::Mxom { sockets: Some(sockets), .. } = self else { return None };
        u32::try_from(sockets.len()).ok()
    }

    /// The devices on the sockets, if they are known before.
    pub(super) fn devices(&self, pair: SocketPair) -> Option<(String, String)> {
        let Self::Mxom { sockets, .. } = self else { return None };
        let name = |socket| mxom::device(sockets.as_ref(), socket);
        Some((name(pair.0), name(pair.1)))
    }

    /// The programs to start, with the indices of the pairs that each measures.
    pub(super) fn calls(
        &self,
        settings: &Settings,
        places: &[usize],
        timeout: Duration,
    ) -> Vec<(Vec<usize>, Result<Spec, Wrong>)> {
        let style = self.method().style;
        let request = |places: &[usize]| {
            let pairs = places.iter().filter_map(|place| settings.pairs.get(*place)).copied().collect();
            Request::new(settings, pairs, style, timeout)
        };
        let each = |spec: &dyn Fn(usize) -> Result<Spec, Wrong>| {
            places.iter().map(|place| (vec![*place], spec(*place))).collect()
        };
        match self {
            Self::Mxom { tool, sockets } => each(&|place| {
                let pair = settings.pairs.get(place).copied().unwrap_or(SocketPair(0, 0));
                mxom::call(tool, sockets.as_ref(), pair)
            }),
            Self::Copy(kind) => {
                each(&|place| Ok(CopyTask { kind: *kind, request: request(&[place]) }.spec()))
            }
            Self::Command(line) => {
                let spec = Spec {
                    program: "/bin/sh".into(),
                    name: None,
                    arguments: vec!["-c".into(), line.clone()],
                    environment: Vec::new(),
                    input: request(places).to_json(),
                };
                vec![(places.to_vec(), Ok(spec))]
            }
        }
    }

    /// Reads the output of an ended process for these pairs.
    pub(super) fn read(&self, settings: &Settings, places: &[usize], end: &CallEnd) -> ProbeOutput {
        let style = self.method().style;
        let pair = |place: &usize| settings.pairs.get(*place).copied().unwrap_or(SocketPair(0, 0));
        if let Self::Mxom { .. } = self {
            let pairs = places.iter().map(|place| (*place, None, mxom::read(end))).collect();
            return ProbeOutput { devices: None, pairs };
        }
        let shell = matches!(self, Self::Command(_));
        match Response::of(end) {
            Ok(response) => {
                let output = |place: &usize| {
                    let pair = pair(place);
                    (*place, response.devices_of(pair), response.answer(pair, style))
                };
                ProbeOutput { devices: response.devices, pairs: places.iter().map(output).collect() }
            }
            Err(wrong) => {
                let wrong = if shell { of_shell(end, wrong) } else { wrong };
                let failed = |place: &usize| (*place, None, Answer::Failed(wrong.clone()));
                ProbeOutput { devices: None, pairs: places.iter().map(failed).collect() }
            }
        }
    }
}

/// A program without a result document has failed as a whole: its message names no pair.
fn of_shell(end: &CallEnd, wrong: Wrong) -> Wrong {
    let trouble = match (end.never_ran(), wrong.trouble) {
        (Some(trouble), _) => trouble,
        (None, Trouble::NoPermission) => Trouble::NoPermission,
        (None, _) => Trouble::ProbeFailed,
    };
    Wrong::new(trouble, wrong.message)
}
