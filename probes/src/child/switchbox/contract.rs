//! The two JSON documents between the check and a measuring program. Every number of the result is foreign.
//!
//! ```text
//! stdin : {"v":1,"pairs":[[0,1],[2,4]],"bytes":268435456,"iters":8,"warmup":2,"directions":["ab","ba"],
//!          "min_mbps":10000,"deadline_ms":60000}
//! stdout: {"v":1,"probe":"name","devices":8,"results":[
//!          {"pair":[0,1],"dir":"ab","mbps":50040.0,"path":"metaxlink","verified":true,"err":null}, ...]}
//! ```
//!
//! Several results for one pair and direction are repetitions if the program is ours; of any other program the lowest
//! counts.
use diagnosis::switchbox::{Answer, Path, Rate, Repetition, SocketPair, Style, Trouble, Wrong};
use serde::{Deserialize, Serialize};

use super::{call::CallEnd, mxom::shown};
use crate::wire::switchbox::{Direction, VERSION};

/// More results than needed for [`diagnosis::switchbox::MAX_PAIRS`], both ways, with repetitions.
const MAX_RESULTS: usize = 4096;

/// The result document.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Response {
    pub(super) v: u32,
    #[serde(default)]
    pub(super) probe: Option<String>,
    /// Devices are numbered from 0 to below this.
    #[serde(default)]
    pub(super) devices: Option<u32>,
    pub(super) results: Vec<Measured>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) pair: SocketPair,
    pub(super) dir: Direction,
    #[serde(default)]
    pub(super) mbps: Option<f64>,
    #[serde(default)]
    pub(super) path: Option<String>,
    /// The destination was compared with the source.
    #[serde(default)]
    pub(super) verified: Option<bool>,
    /// The error: the name of a [`Trouble`], `: `, and a description. Other texts are shown as they are.
    #[serde(default)]
    pub(super) err: Option<String>,
    /// The devices on the two sockets.
    #[serde(default)]
    pub(super) gpus: Option<(String, String)>,
}

impl Response {
    pub(super) fn new(probe: &str, devices: u32) -> Self {
        Self { v: VERSION, probe: Some(probe.to_owned()), devices: Some(devices), results: Vec::new() }
    }

    /// Records that these pairs could not be measured, for one reason.
    pub(super) fn fail(&mut self, pairs: &[SocketPair], wrong: &Wrong) {
        let err = format!("{}: {}", wrong.trouble, wrong.message);
        self.results.extend(pairs.iter().map(|pair| Measured {
            pair: *pair,
            dir: Direction::There,
            mbps: None,
            path: None,
            verified: None,
            err: Some(err.clone()),
            gpus: None,
        }));
    }

    /// Parses the output of a program that has exited.
    ///
    /// # Errors
    /// When it printed no such document.
    pub(crate) fn of(end: &CallEnd) -> Result<Self, Wrong> {
        if let Some(wrong) = end.wrong() {
            return Err(wrong);
        }
        // Some programs print more before it.
        let last = end.stdout.trim_ascii().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let read = serde_json::from_slice(&end.stdout).or_else(|error| {
            serde_json::from_slice::<Self>(last).map_err(|_| {
                let said = String::from_utf8_lossy(&end.stdout);
                Wrong::new(
                    Trouble::NoAnswer,
                    format!("the output is not a result, {error}: {}", shown(&said)),
                )
            })
        });
        let response: Self = read?;
        if response.v != VERSION {
            let message = format!("the result has version {}, not {VERSION}", response.v);
            return Err(Wrong::new(Trouble::NoAnswer, message));
        }
        if response.results.len() > MAX_RESULTS {
            let message =
                format!("the result has {} entries (maximum: {MAX_RESULTS})", response.results.len());
            return Err(Wrong::new(Trouble::NoAnswer, message));
        }
        Ok(response)
    }

    /// The devices on the sockets of a pair.
    pub(crate) fn devices_of(&self, pair: SocketPair) -> Option<(String, String)> {
        let (one, other) = self.of_pair(pair).find_map(|it| it.gpus.as_ref())?;
        Some((shown(one), shown(other)))
    }

    pub(crate) fn answer(&self, pair: SocketPair, style: Style) -> Answer {
        self.measured(pair, style).unwrap_or_else(Answer::Failed)
    }

    fn measured(&self, pair: SocketPair, style: Style) -> Result<Answer, Wrong> {
        if let Some(devices) = self.devices
            && let Some(socket) = [pair.0, pair.1].into_iter().find(|socket| *socket >= devices)
        {
            let message = format!(
                "socket {socket} does not exist: this host has \
                    {}",
                diagnosis::counted::counted(devices, "device")
            );
            return Err(Wrong::new(Trouble::NoSuchDevice, message));
        }
        if let Some(err) = self.of_pair(pair).find_map(|it| it.err.as_ref()) {
            return Err(wrong_of(err));
        }
        if self.of_pair(pair).any(|it| it.verified == Some(false)) {
            return Err(Wrong::new(Trouble::DataMismatch, "the received bytes differ from those sent"));
        }
        let [there, back] = [Direction::There, Direction::Back].map(|direction| self.rates(pair, direction));
        let (mut there, mut back) = (there?, back?);
        if let Style::Calls = style {
            // A program of the user gives one value per call: the lowest counts.
            there = there.into_iter().min().into_iter().collect();
            back = back.into_iter().min().into_iter().collect();
        }
        let values = there.into_iter().zip(back);
        let values = values.map(|(there, back)| Repetition { there, back: Some(back) }).collect();
        // Of several paths the least direct one counts.
        let paths = self.of_pair(pair).map(|it| it.path.as_deref().map_or(Path::Unknown, Path::parse));
        Ok(Answer::Measured { values, path: paths.max().unwrap_or_default() })
    }

    fn rates(&self, pair: SocketPair, direction: Direction) -> Result<Vec<Rate>, Wrong> {
        let rates: Vec<Rate> = self
            .of_pair(pair)
            .filter(|it| it.dir == direction)
            .map(|it| it.mbps.and_then(Rate::from_mb_per_s).ok_or(it.mbps))
            .collect::<Result<_, _>>()
            .map_err(|mbps| {
                let message = mbps.map_or_else(
                    || "mbps is missing".to_owned(),
                    |mbps| format!("mbps is {mbps}, not a bandwidth in MB/s"),
                );
                Wrong::new(Trouble::ProbeFailed, message)
            })?;
        let name = if direction == Direction::There { "ab" } else { "ba" };
        match rates.is_empty() {
            true => {
                Err(Wrong::new(Trouble::ProbeFailed, format!("no result for this pair in direction {name}")))
            }
            false => Ok(rates),
        }
    }

    fn of_pair(&self, pair: SocketPair) -> impl Iterator<Item = &Measured> {
        self.results.iter().filter(move |it| it.pair == pair)
    }
}

/// `no such device: 9` is a trouble and its description.
fn wrong_of(err: &str) -> Wrong {
    let known = err.split_once(':').unwrap_or((err, ""));
    match Trouble::parse(known.0.trim()) {
        Some(trouble) if known.1.trim().is_empty() => Wrong::new(trouble, ""),
        Some(trouble) => Wrong::new(trouble, shown(known.1)),
        None => Wrong::new(Trouble::NoAnswer, shown(err)),
    }
}

#[cfg(test)]
mod tests {
    use diagnosis::switchbox::Expected;
    use rules::failure::ExitCause;

    use std::time::Duration;

    use diagnosis::switchbox::Settings;

    use super::*;
    use crate::wire::switchbox::Request;

    const PAIR: SocketPair = SocketPair(0, 1);

    fn read(text: &str) -> Result<Response, Wrong> {
        let end = CallEnd { cause: ExitCause::Code(0), stdout: text.as_bytes().to_vec(), stderr: Vec::new() };
        Response::of(&end)
    }

    /// The answer for these results.
    fn answer(results: &str, style: Style) -> Answer {
        read(&format!(r#"{{"v":1,"devices":8,"results":[{results}]}}"#)).unwrap().answer(PAIR, style)
    }

    fn wrong(results: &str) -> String {
        match answer(results, Style::Calls) {
            Answer::Failed(wrong) => wrong.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_request_is_as_documented() {
        let min = Rate::from_mb_per_s(10_000.0).unwrap();
        let settings = Settings {
            pairs: vec![PAIR],
            are_pairs_given: true,
            min,
            min_channels: 1,
            expected: Expected::Alike,
            models: Vec::new(),
        };
        let pairs = vec![PAIR, SocketPair(2, 4)];
        let request = Request::new(&settings, pairs, Style::Calls, Duration::from_secs(40));
        let document = concat!(
            r#"{"v":1,"pairs":[[0,1],[2,4]],"bytes":268435456,"iters":8,"warmup":2,"directions":["ab","ba"],"#,
            r#""min_mbps":10000.0,"deadline_ms":40000}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(request.to_json()).unwrap(), document);
    }

    #[test]
    fn both_directions_make_a_value_and_repetitions_stay_apart() {
        let results = r#"{"pair":[0,1],"dir":"ab","mbps":50040.0,"path":"metaxlink","verified":true,"err":null},
            {"pair":[0,1],"dir":"ba","mbps":9999.9,"path":"metaxlink"},
            {"pair":[0,1],"dir":"ab","mbps":40000,"path":"metaxlink"},
            {"pair":[0,1],"dir":"ba","mbps":41000,"path":"metaxlink"},
            {"pair":[2,4],"dir":"ab","err":"another pair's"}"#;
        let value = |there, back| Repetition {
            there: Rate::from_mb_per_s(there).unwrap(),
            back: Rate::from_mb_per_s(back),
        };
        let path = Path::Metaxlink;
        let values = vec![value(50_040.0, 9_999.9), value(40_000.0, 41_000.0)];
        assert_eq!(answer(results, Style::Repetitions), Answer::Measured { values, path });
        let values = vec![value(40_000.0, 9_999.9)];
        assert_eq!(answer(results, Style::Calls), Answer::Measured { values, path });
    }

    #[test]
    fn errors_of_results_are_distinguished() {
        let ab = r#"{"pair":[0,1],"dir":"ab","mbps":1}"#;
        assert_eq!(wrong(ab), "probe failed, no result for this pair in direction ba");
        assert_eq!(wrong(""), "probe failed, no result for this pair in direction ab");
        for (field, expected) in [
            (r#""mbps":-5"#, "probe failed, mbps is -5, not a bandwidth in MB/s"),
            (r#""mbps":null"#, "probe failed, mbps is missing"),
            (r#""mbps":1,"verified":false"#, "data mismatch, the received bytes differ from those sent"),
            (r#""err":"no permission: /dev/x""#, "no permission, /dev/x"),
            (r#""err":"no such device""#, "no such device"),
            (r#""err":"link is down""#, "no answer, link is down"),
        ] {
            assert_eq!(wrong(&format!(r#"{ab},{{"pair":[0,1],"dir":"ba",{field}}}"#)), expected);
        }
        let few = read(r#"{"v":1,"devices":1,"results":[]}"#).unwrap().answer(PAIR, Style::Calls);
        let message = "socket 1 does not exist: this host has 1 device";
        assert_eq!(few, Answer::Failed(Wrong::new(Trouble::NoSuchDevice, message)));
    }

    #[test]
    fn of_two_paths_the_less_direct_one_counts() {
        let results = r#"{"pair":[0,1],"dir":"ab","mbps":1,"path":"nvlink"},{"pair":[0,1],"dir":"ba","mbps":1,"path":"pcie"}"#;
        assert!(matches!(answer(results, Style::Calls), Answer::Measured { path: Path::Pcie, .. }));
    }

    #[test]
    fn an_invalid_document_is_quoted() {
        for (text, expected) in [
            ("", "(empty)"),
            ("Segfault soon", "Segfault soon"),
            (r#"{"v":2,"results":[]}"#, "has version 2"),
            (r#"{"v":1}"#, "missing field"),
            (r#"{"v":1,"results":[{"pair":[0],"dir":"ab"}]}"#, "no answer"),
            (r#"{"v":1,"results":[{"pair":[0,1],"dir":"north"}]}"#, "no answer"),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.to_string().contains(expected), "{text}: {wrong}");
        }
        assert!(read("measuring...\n{\"v\":1,\"results\":[]}\n").is_ok());
        let many = format!(
            r#"{{"v":1,"results":[{}]}}"#,
            vec![r#"{"pair":[0,1],"dir":"ab"}"#; MAX_RESULTS + 1].join(",")
        );
        assert!(read(&many).unwrap_err().message.contains("4097 entries"));
    }
}
