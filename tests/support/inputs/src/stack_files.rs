//! Dumps of stacks from a directory that anything may have written into.

use stacks::{Merged, RankDump, Verdict, read, svg};

/// The name under which both are read: the content must be of this rank.
const NAME: &str = "00003-00008.stacktrace";

/// Our JSON document.
pub(crate) fn json(bytes: &[u8]) {
    if bytes.first() == Some(&b'{')
        && let Ok(dump) = read(NAME, bytes)
    {
        check(&dump);
    }
}

/// A protobuf message of xpu_timer.
pub(crate) fn upstream(bytes: &[u8]) {
    if bytes.first() == Some(&b'{') {
        return;
    }
    match read(NAME, bytes) {
        Ok(dump) => check(&dump),
        Err(stacks::ReadError::Upstream(error)) => assert!(error.at <= bytes.len()),
        Err(_) => assert!(bytes.is_empty()),
    }
}

/// Whatever was read can be written, merged, drawn and judged.
fn check(dump: &RankDump) {
    assert_eq!(read(NAME, dump.to_json().as_bytes()).ok().as_ref(), Some(dump));
    let bounded = dump.clone().bounded();
    assert!(read(NAME, bounded.to_json().as_bytes()).is_ok());

    let peer = RankDump::gone(4, 8);
    let merged = Merged::of([dump, &peer]);
    for trie in [&merged.python, &merged.native] {
        let text = trie.text();
        assert!(text.lines().all(|line| line.ends_with(" 1")) && !text.contains('\r'));
        let picture = svg::flame_graph(trie, "merge stack");
        assert!(picture.chars().all(|character| character == '\n' || !character.is_control()));
        assert_eq!(picture.matches("<g ").count(), picture.matches("</g>").count());
    }

    let verdict = Verdict::of([dump, &peer]);
    assert!(verdict.suspects.contains_key(&4) && !verdict.headline.chars().any(char::is_control));
    assert!(verdict.headline.len() < 4096, "{}", verdict.headline.len());
}
