//! Lines as other programs write them.

use super::*;
use crate::message::request::RequestError;

fn parse(line: &str) -> Result<Request, RequestError> {
    Request::parse(line.as_bytes())
}

fn error(line: &str) -> String {
    parse(line).unwrap_err().to_string()
}

const HELLO: &str = r#"{"type":"hello","v":1,"run_id":"r","dir":"/ckpt/","rank":1,"world":4,"local_rank":1,"shard":0,
    "n_shards":1,"replicated":true,"role":"reader","round":null,"format":"pt","keep":{"latest":3},"later":[1]}"#;

#[test]
fn lines_of_the_client_are_read() {
    let Ok(Request::Hello(hello)) = parse(HELLO) else { panic!() };
    assert_eq!(hello.dir.as_str(), "/ckpt");
    assert_eq!((hello.role, hello.round, hello.keep), (Role::Reader, None, Some(Keep::Latest(3))));
    let layout_id = u64::MAX;
    let requests = [
        (
            format!(r#"{{"type":"alloc","bytes":4096,"layout_id":{layout_id}}}"#),
            Request::Alloc { bytes: 4096, layout_id, slots: None },
        ),
        (
            format!(r#"{{"type":"begin","step":7,"layout_id":{layout_id}}}"#),
            Request::Begin { step: 7, layout_id, wait: false },
        ),
        (
            r#"{"type":"commit","step":7,"slot":3,"storage":"disk","path":"","writes_disk":false}"#
                .to_owned(),
            Request::Commit {
                step: 7,
                slot: 3,
                wish: Wish { storage: Storage::Disk, path: String::new(), writes_disk: false },
            },
        ),
        (r#"{"type":"abort","slot":3}"#.to_owned(), Request::Abort { slot: 3 }),
        (r#"{"type":"load","step":null}"#.to_owned(), Request::Load { step: None }),
        (r#"{"type":"loaded","slot":3}"#.to_owned(), Request::LoadedDone { slot: 3 }),
        (r#"{"type":"loaded_done","slot":3}"#.to_owned(), Request::LoadedDone { slot: 3 }),
        (
            r#"{"type":"wait","step":7,"timeout_s":1.5}"#.to_owned(),
            Request::Wait { step: Some(7), timeout_ms: 1500 },
        ),
        (
            r#"{"type":"wait","step":null,"timeout_s":2}"#.to_owned(),
            Request::Wait { step: None, timeout_ms: 2000 },
        ),
        (
            r#"{"type":"written_alone","v":1,"run_id":"run","dir":"/ckpt","step":7,"round":2}"#.to_owned(),
            Request::WrittenAlone {
                v: 1,
                run_id: "run".to_owned(),
                dir: Dir::try_from("/ckpt").unwrap(),
                step: 7,
                round: Some(2),
            },
        ),
        (r#"{"type":"status"}"#.to_owned(), Request::Status {}),
    ];
    for (line, request) in requests {
        assert_eq!(parse(&line).unwrap(), request);
        assert_eq!(parse(request.to_line().trim_end()).unwrap(), request);
    }
}

#[test]
fn an_error_names_the_value() {
    let hello = |from: &str, to: &str| error(&HELLO.replace(from, to));
    assert_eq!(hello(r#""rank":1"#, r#""rank":4"#), "rank is 4; expected 0 to 3");
    assert_eq!(hello(r#""world":4"#, r#""world":0"#), "world is 0; expected 1 to 1048576");
    assert_eq!(hello(r#""shard":0"#, r#""shard":1"#), "shard is 1; expected 0 to 0");
    assert_eq!(hello(r#"{"latest":3}"#, r#"{"latest":0}"#), "keep.latest is 0; expected 1 to 1099511627776");
    let version = hello(r#""v":1"#, r#""v":2"#);
    assert!(version.contains("version 2") && version.contains("install"), "{version}");
    let wrong = [
        (r#"{"type":"dance"}"#, "dance"),
        (r#"{"type":"begin","step":-1,"layout_id":0}"#, "-1"),
        (r#"{"type":"begin","step":9007199254740992,"layout_id":0}"#, "9007199254740992"),
        (r#"{"type":"alloc","bytes":0,"layout_id":0}"#, "bytes is 0"),
        (r#"{"type":"alloc","bytes":1,"layout_id":0,"slots":4}"#, "slots is 4"),
        (r#"{"type":"commit","step":1,"slot":1,"storage":"tape","path":"","writes_disk":true}"#, "tape"),
        (
            r#"{"type":"commit","step":1,"slot":1,"storage":"disk","path":"x","writes_disk":true}"#,
            "`x` is relative",
        ),
        (r#"{"type":"wait","step":1,"timeout_s":-2}"#, "timeout_s is -2"),
        ("", "EOF"),
        ("[]", "missing field `type`"),
    ];
    for (line, text) in wrong {
        assert!(error(line).contains(text), "{line}: {}", error(line));
    }
    assert!(hello(r#""dir":"/ckpt/""#, r#""dir":"ckpt""#).contains("`ckpt` is relative"));
}

#[test]
fn a_long_line_is_refused_and_a_long_error_is_cut() {
    assert!(matches!(Request::parse(&vec![b' '; MAX_LINE + 1]), Err(RequestError::TooLong)));
    let text = error(&format!(r#"{{"type":"{}"}}"#, "x".repeat(MAX_LINE - 100)));
    assert!(text.len() < 3 * MAX_TEXT, "{}", text.len());
    let deep = "[".repeat(MAX_LINE);
    assert!(parse(&deep).is_err());
    assert!(parse(&format!(r#"{{"type":"status","x":{deep}"#)).is_err());
}

#[test]
fn a_wait_is_bounded() {
    let wait = |seconds: &str| match parse(&format!(r#"{{"type":"wait","step":null,"timeout_s":{seconds}}}"#))
    {
        Ok(Request::Wait { timeout_ms, .. }) => timeout_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(wait("1e300"), MAX_WAIT_MS);
    assert_eq!(wait("0"), 0);
    assert_eq!(wait("0.0001"), 1);
}

#[test]
fn replies_have_the_fields_that_the_client_reads() {
    let json = |reply: Reply| serde_json::from_str::<serde_json::Value>(&reply.to_line()).unwrap();
    let refusal = Refusal { need: Some(2), have: Some(1), ..Refusal::new(ErrorCode::NoMemory, "no room") };
    let error = json(Reply::Error(refusal));
    let expected =
        serde_json::json!({"type": "error", "code": "no_memory", "text": "no room", "need": 2, "have": 1});
    assert_eq!(error, expected);
    let begun = json(Reply::Begun { slot: 3, superseded: vec![1], pinned: false });
    assert_eq!(begun, serde_json::json!({"type": "begun", "slot": 3, "superseded": [1], "pinned": false}));
    let waited = json(Reply::Waited { state: WaitState::OnDisk, step: None, error: None });
    assert_eq!(
        waited,
        serde_json::json!({"type": "waited", "state": "on_disk", "step": null, "error": null})
    );
    let loaded = json(Reply::Loaded {
        source: Source::None,
        step: None,
        slot: None,
        bytes: None,
        path: None,
        reason: String::new(),
        named: None,
    });
    assert_eq!((&loaded["type"], &loaded["source"]), (&"loaded".into(), &"none".into()));
    assert_eq!(loaded.get("named"), None);
    assert_eq!(json(Reply::Status(Status::default()))["type"], "status");
}

#[test]
fn lines_of_agent_and_saver_come_back() {
    let dir = || Dir::try_from("/ckpt").unwrap();
    let point = RestorePoint {
        dir: dir(),
        step: 7,
        source: RestoreSource::Disk,
        pending: Some(9),
        given_up: 2,
        fetched: None,
    };
    let to_saver = [
        ToSaver::Round {
            round: 1,
            world: 4,
            first_rank: 2,
            local_world_size: 2,
            restore: vec![point],
            memory_is_void: true,
        },
        ToSaver::WorkersGone { round: 1 },
        ToSaver::Committed { dir: dir(), step: 1 },
        ToSaver::Report {},
        ToSaver::Finish { grace_ms: 1, also_memory: false },
    ];
    for message in to_saver {
        assert_eq!(ToSaver::parse(message.to_line().trim_end().as_bytes()).unwrap(), message);
    }
    // What the design names, and no more.
    let short = br#"{"type":"round","round":1,"world":4,"first_rank":0,"local_world_size":4,
        "restore":[{"dir":"/ckpt","step":3}],"memory_is_void":false}"#;
    let Ok(ToSaver::Round { restore, .. }) = ToSaver::parse(short) else { panic!() };
    assert_eq!((restore[0].source, restore[0].pending), (RestoreSource::Memory, None));
    let id = ShardId { dir: dir(), shard: 1 };
    let from_saver = [
        FromSaver::Progress(Progress { id, step: 1, bytes: 2, of: 3 }),
        FromSaver::Failed { dir: dir(), step: 1, shard: None, saved_in: Some(2), reason: "x".to_owned() },
        FromSaver::Log { level: Level::Warn, text: "x".to_owned() },
        FromSaver::Finished {},
        FromSaver::WrittenAlone { dir: dir(), step: 1, round: 2 },
        FromSaver::State { round: None, shards: vec![] },
    ];
    for message in from_saver {
        assert_eq!(FromSaver::parse(message.to_line().trim_end().as_bytes()).unwrap(), message);
    }
    assert!(FromSaver::parse(b"{").is_err());
}

mod random {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_line_panics(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Request::parse(&line), ToSaver::parse(&line), FromSaver::parse(&line));
        }

        #[test]
        fn no_request_panics(
            kind in "hello|alloc|begin|commit|abort|load|loaded|wait|status",
            values in proptest::collection::vec(("[a-z_]{1,10}", any::<i64>()), 0..8),
        ) {
            let mut object = serde_json::Map::new();
            object.insert("type".to_owned(), kind.into());
            object.extend(values.into_iter().map(|(name, value)| (name, value.into())));
            let _ = Request::parse(&serde_json::to_vec(&object).unwrap());
        }
    }
}
