//! Compares a journal of this FORMAT with a golden file.
//!
//! postcard writes neither names nor types: a variant that is inserted between two others, or two fields of one type
//! that are swapped, are read from an old journal without an error and mean something else. So the shape of all
//! that is written and the bytes of one journal are kept in `golden/format-N.txt`, N being FORMAT.

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::PathBuf, time::Duration};

use checkpoint::message::Dir;
use rules::{
    Moment, NodeId, NodeRank, Round,
    job::{Claim, Event, Job, NodeEnd, WorkersState},
    liveness::LossCause,
};
use serde::de::DeserializeOwned;
use serde_reflection::{Error, Registry, Samples, Tracer, TracerConfig};

use super::{Entry, Snapshot, frame::FORMAT, testing};

/// If set, the file of this FORMAT is written instead of read.
const RENEW: &str = "DLROVER_RENEW_GOLDEN";

const HOW: &str = "a journal of the last build would be misread by this one, or the other way round. If that is meant: \
                   raise FORMAT in master/src/journal/frame.rs by one (once between two releases, or since this \
                   branch left main), then run `DLROVER_RENEW_GOLDEN=1 cargo test -p master golden` and commit the \
                   new file; the old one can be removed. If it is not meant: put the variant or field back where it \
                   was";

/// Every name, field and variant of what is written, in the order in which it is written.
fn shape() -> String {
    let mut enums = BTreeSet::new();
    let registry = loop {
        match traced(&enums) {
            Ok(registry) => break registry,
            Err(Error::MissingVariants(more)) if more.iter().any(|name| !enums.contains(name)) => {
                enums.extend(more);
            }
            Err(error) => panic!("every type of the journal can be read from a journal: {error}"),
        }
    };
    assert!(
        ["Event", "Phase", "WorkersState"].iter().all(|name| registry.contains_key(*name)),
        "{registry:?}"
    );
    registry.iter().fold(String::new(), |mut text, (name, format)| {
        writeln!(text, "{name} = {format:#?}").expect("a string takes all");
        text
    })
}

/// A pass goes one way through the types; each of `enums` takes its next variant in the next pass.
fn traced(enums: &BTreeSet<String>) -> serde_reflection::Result<Registry> {
    // A string that every type accepts that is written as a string.
    let config = TracerConfig::default().default_string_value("X".into());
    let (mut tracer, mut samples) = (Tracer::new(config), Samples::new());
    // But this one.
    tracer.trace_value(&mut samples, &Dir::try_from("/X").expect("an absolute path"))?;
    let mut is_more = true;
    while is_more {
        tracer.trace_type::<Entry>(&samples)?;
        tracer.trace_type::<Event>(&samples)?;
        is_more = enums.iter().filter(|name| tracer.check_incomplete_enum(name).is_some()).count() > 0;
    }
    tracer.registry()
}

/// Two nodes of which one is lost, and one that came back.
fn entries() -> Vec<(&'static str, Entry)> {
    let node = |name: &str| NodeId(name.into());
    let claim = Claim {
        fence: None,
        round: Round(4),
        node_rank: NodeRank(1),
        nodes: 2,
        master_addr: "10.0.0.1".into(),
        master_port: 29500,
        workers_state: WorkersState::Succeeded,
    };
    let Event::Joined(request) = testing::joined("b") else { unreachable!("it joins") };
    let events = vec![
        Event::Subscribed { node: node("a") },
        testing::joined("a"),
        Event::Resumed { request, claim },
        Event::Hosted { node: node("a"), round: Round(5), master_addr: None, master_port: 29500 },
        testing::failed("a", 3),
        Event::NodeEnded { node: node("a"), end: NodeEnd::Left { signal: 15 } },
        Event::NodeLost { node: node("b"), cause: LossCause::Silent { timeout: Duration::from_secs(30) } },
        Event::Restarted,
        Event::Deadline,
    ];
    let mut job = Job::new(testing::policy());
    let events: Vec<_> = (0..).map(Moment::at_secs).zip(events).collect();
    for (at, event) in &events {
        let _effects = job.handle(*at, event.clone());
    }
    let snapshot = Snapshot { at: Moment::at_secs(9), policy: testing::policy(), job };
    vec![("snapshot", Entry::Snapshot(Box::new(snapshot))), ("events", Entry::Events(events))]
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(48).fold(String::new(), |mut text, line| {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
        text + "\n"
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn path() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "src/journal/golden", &format!("format-{FORMAT}.txt")].iter().collect()
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> T {
    postcard::from_bytes(bytes).unwrap_or_else(|error| panic!("the old bytes are not read ({error}): {HOW}"))
}

#[test]
fn what_the_journal_writes_is_what_its_format_says() {
    let mut parts: Vec<(&str, String)> = entries()
        .into_iter()
        .map(|(name, entry)| (name, hex(&postcard::to_stdvec(&entry).unwrap())))
        .collect();
    parts.push(("shape", shape()));
    let now: String = parts.iter().map(|(name, text)| format!("== {name}\n{text}")).collect();
    let path = path();
    if env::var_os(RENEW).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &now).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "{} cannot be read ({error}): if FORMAT was raised on purpose, run \
             `DLROVER_RENEW_GOLDEN=1 cargo test -p master golden` and commit the file",
            path.display()
        )
    });
    let differs = golden.lines().zip(now.lines()).position(|(was, is)| was != is);
    let differs = differs.or_else(|| (golden.lines().count() != now.lines().count()).then_some(0));
    if let Some(line) = differs {
        let (was, is) = (golden.lines().nth(line), now.lines().nth(line));
        panic!("{}, line {}: was {was:?}, is {is:?}: {HOW}", path.display(), line + 1);
    }
    // And the bytes decode to the same values.
    for (part, (name, entry)) in golden.split("== ").skip(1).zip(entries()) {
        let bytes = unhex(part.strip_prefix(name).expect("in the order above"));
        assert_eq!(format!("{:?}", read::<Entry>(&bytes)), format!("{entry:?}"), "{name}: {HOW}");
    }
}
