//! Holds `docs/messages.md`, the catalogue of every message in the sources. After a message has changed:
//! `DLROVER_RENEW_MESSAGES=1 cargo test -p dlrover-tests --test messages`, then read the difference as a user would.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod areas;
mod constants;
mod page;
mod scan;

use std::{collections::BTreeMap, env, fs, path::Path, sync::LazyLock};

use self::{areas::AREAS, scan::Message};

const RENEW: &str = "DLROVER_RENEW_MESSAGES";

static MESSAGES: LazyLock<BTreeMap<String, Vec<Message>>> = LazyLock::new(|| scan::crates(tree()));

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn the_catalogue_has_every_message_of_the_sources() {
    let page = page::render(&MESSAGES);
    let file = tree().join("docs/messages.md");
    if env::var_os(RENEW).is_some() {
        fs::write(&file, &page).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let differs = page.lines().zip(kept.lines()).position(|(is, was)| is != was);
    let line = differs.unwrap_or_else(|| page.lines().count().min(kept.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(the end)").to_owned();
    assert!(
        page == kept,
        "docs/messages.md is out of date at line {}:\n  is  {}\n  was {}\nrenew it with {RENEW}=1 and read the difference",
        line + 1,
        at(&page),
        at(&kept)
    );
}

/// A message without an area would be missing from the page.
#[test]
fn every_source_file_with_a_message_has_an_area() {
    let homeless: Vec<_> =
        scan::crates(tree()).into_keys().filter(|file| areas::of(file).is_none()).collect();
    assert!(homeless.is_empty(), "add these to tests/messages/areas.rs: {homeless:?}");
    for area in AREAS {
        for place in area.places {
            assert!(
                MESSAGES.keys().any(|file| file.starts_with(place)),
                "{}: {place} has no messages",
                area.title
            );
        }
    }
}

/// Real plurals; subjects are nouns.
#[test]
fn messages_keep_the_rules_of_language() {
    let forbidden = ["(s)", " who ", "whoever", "nobody", "somebody", "anybody", "stranger"];
    let mut breaches = Vec::new();
    for (file, messages) in MESSAGES.iter() {
        for message in messages {
            let text = format!(" {} ", message.text.to_lowercase());
            let found = forbidden.iter().filter(|word| text.contains(*word));
            breaches.extend(found.map(|word| format!("{file}: {word:?} in {:?}", message.text)));
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}
