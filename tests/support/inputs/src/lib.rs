//! Foreign bytes for every parser.
//!
//! Each function here takes any bytes, gives them to one parser and panics if that panics, hangs, or violates a
//! documented property. `fuzz/` searches for such bytes; `tests/corpus.rs` runs the interesting ones, in
//! `fuzz/corpus`, on every `cargo test`.

mod agents;
mod answers;
mod checkpoints;
mod gpu_texts;
mod inventory;
mod job;
pub mod journal;
mod ring;
mod stack_files;
pub mod steps;
mod store;
mod wire;

/// A parser, and the name of its corpus and of its fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 21] = [
    ("check_command", answers::check_command),
    ("ckpt_line", checkpoints::line),
    ("ckpt_manifest", checkpoints::manifest),
    ("ckpt_slot", checkpoints::slot),
    ("error_file", agents::error_file),
    ("gate", wire::gate),
    ("gpu_topology", gpu_texts::gpu_topology),
    ("guard", agents::guard),
    ("inventory", inventory::inventory),
    ("job", job::job),
    ("journal", journal::journal),
    ("journal_header", journal::header),
    ("mx_smi", gpu_texts::mx_smi),
    ("nvidia_smi", gpu_texts::nvidia_smi),
    ("proc_stat", agents::proc_stat),
    ("ring_meet", ring::meet),
    ("stack_json", stack_files::json),
    ("stack_upstream", stack_files::upstream),
    ("store", store::store),
    ("switchbox", answers::switchbox),
    ("topology", gpu_texts::topology),
];

/// Runs one of them.
///
/// # Panics
/// When there is none of this name, or when the parser violates a property.
pub fn feed(target: &str, bytes: &[u8]) {
    let (_, feed) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target of this name");
    feed(bytes);
}
