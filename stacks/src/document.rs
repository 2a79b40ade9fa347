//! A rank's dump as a file: one JSON document of ours, or upstream's protobuf.
//!
//! Ours begins with `{`. No file of upstream can: that byte is a group, which its messages do not have.

use serde::{Deserialize, Serialize};

use crate::{
    dump_name::{DumpName, NameError},
    model::RankDump,
    upstream::{self, UpstreamError},
};

/// The name of the format, and its version: a field that changes its meaning raises it, a new field does not.
pub const SCHEMA: &str = "dlrover-stacks";
pub const VERSION: u32 = 1;

/// Size of a file at most. A dump within the bounds of [`RankDump::bounded`] is smaller.
pub const MAX_BYTES: usize = 32 << 20;

/// Why a file cannot be used as a dump.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("the file is empty")]
    Empty,
    #[error("the file has {size} bytes (maximum: {MAX_BYTES})")]
    TooLarge { size: usize },
    #[error("the JSON cannot be read")]
    Json(#[source] serde_json::Error),
    #[error("the schema is `{found}`; expected `{SCHEMA}`")]
    Schema { found: String },
    #[error("the version is {found}; this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("the file name says rank {} of {}, but the content says rank {} of {}", name.rank, name.world_size, content.rank, content.world_size)]
    Mismatch { name: DumpName, content: DumpName },
    #[error("the file is neither JSON nor a stack trace of xpu_timer")]
    Upstream(#[from] UpstreamError),
}

#[derive(Serialize)]
struct Written<'a> {
    schema: &'static str,
    version: u32,
    #[serde(flatten)]
    dump: &'a RankDump,
}

#[derive(Deserialize)]
struct Heading {
    #[serde(default)]
    schema: String,
    #[serde(default)]
    version: u32,
}

impl RankDump {
    /// The name of this rank's file.
    #[must_use]
    pub fn name(&self) -> DumpName {
        DumpName { rank: self.rank, world_size: self.world_size }
    }

    /// The content of this rank's file: one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let written = Written { schema: SCHEMA, version: VERSION, dump: self };
        // Only maps with keys that are no text fail.
        let mut json = serde_json::to_string(&written).unwrap_or_default();
        json.push('\n');
        json
    }
}

/// Reads a dump, ours or upstream's. Rank and size of the world are those of the file's name, as for upstream's viewer.
///
/// # Errors
/// When the name is not that of a dump, or the content is neither of the two formats.
pub fn read(name: &str, bytes: &[u8]) -> Result<RankDump, ReadError> {
    let name = DumpName::parse(name)?;
    if bytes.len() > MAX_BYTES {
        return Err(ReadError::TooLarge { size: bytes.len() });
    }
    // No white space is skipped: a line feed is what a file of upstream usually begins with.
    match bytes.first() {
        None => Err(ReadError::Empty),
        Some(b'{') => json(name, bytes),
        Some(_) => Ok(upstream::read(name, bytes)?),
    }
}

fn json(name: DumpName, bytes: &[u8]) -> Result<RankDump, ReadError> {
    let heading: Heading = serde_json::from_slice(bytes).map_err(ReadError::Json)?;
    if heading.schema != SCHEMA {
        return Err(ReadError::Schema { found: heading.schema.chars().take(40).collect() });
    }
    if heading.version != VERSION {
        return Err(ReadError::Version { found: heading.version });
    }
    let dump: RankDump = serde_json::from_slice(bytes).map_err(ReadError::Json)?;
    if dump.name() != name {
        return Err(ReadError::Mismatch { name, content: dump.name() });
    }
    Ok(dump)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Frame, Thread};

    fn dump() -> RankDump {
        let frame = Frame { function: "step".to_owned(), file: "train.py".to_owned(), line: Some(5) };
        RankDump {
            host: "node-3".to_owned(),
            pid: Some(77),
            state: Some("S (sleeping)".to_owned()),
            python: vec![Thread { name: "MainThread".to_owned(), frames: vec![frame] }],
            notes: vec!["no gdb".to_owned()],
            ..RankDump::new(3, 8)
        }
    }

    #[test]
    fn the_document_is_one_line_that_names_its_format() {
        assert_eq!(
            dump().to_json(),
            concat!(
                r#"{"schema":"dlrover-stacks","version":1,"rank":3,"world_size":8,"host":"node-3","pid":77,"#,
                r#""state":"S (sleeping)","python":[{"name":"MainThread","frames":[{"function":"step","file":"train.py","line":5}]}],"#,
                r#""native":[],"notes":["no gdb"]}"#,
                "\n"
            )
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        for dump in [dump(), RankDump::gone(100_000, 131_072), RankDump::unread(0, 1, "no reply")] {
            let read = read(&dump.name().to_string(), dump.to_json().as_bytes()).unwrap();
            assert_eq!(read, dump);
        }
    }

    #[test]
    fn fields_of_a_later_writer_do_no_harm() {
        let json = dump().to_json().replace("\"rank\"", "\"later\":[{}],\"rank\"");
        assert_eq!(read("00003-00008.stacktrace", json.as_bytes()).unwrap(), dump());
    }

    #[test]
    fn faults_are_named() {
        let fault = |name: &str, text: &str| read(name, text.as_bytes()).unwrap_err().to_string();
        let name = "00003-00008.stacktrace";
        assert_eq!(fault(name, ""), "the file is empty");
        assert_eq!(fault(name, "{"), "the JSON cannot be read");
        assert_eq!(fault(name, "{}"), "the schema is ``; expected `dlrover-stacks`");
        let later = r#"{"schema":"dlrover-stacks","version":2}"#;
        assert_eq!(fault(name, later), "the version is 2; this program reads version 1");
        assert_eq!(
            fault("00004-00008.stacktrace", &dump().to_json()),
            "the file name says rank 4 of 8, but the content says rank 3 of 8"
        );
        assert_eq!(fault(name, "hello"), "the file is neither JSON nor a stack trace of xpu_timer");
        let huge = vec![b' '; MAX_BYTES + 1];
        assert!(matches!(read(name, &huge), Err(ReadError::TooLarge { .. })));
    }

    /// The largest dump that `bounded` lets through can be read again.
    #[test]
    fn a_bounded_dump_is_a_readable_file() {
        let frame = Frame { function: "\"".repeat(900), file: "\\".repeat(900), line: Some(u32::MAX) };
        let thread = Thread { name: "\"".repeat(900), frames: vec![frame; 40] };
        let dump = RankDump { native: vec![thread; 2000], ..RankDump::new(3, 8) }.bounded();
        let json = dump.to_json();
        assert_eq!(read("00003-00008.stacktrace", json.as_bytes()).unwrap(), dump);
    }
}
