//! One of the parsers (`FUZZ_TARGET` is its name), under libFuzzer. `fuzz/run` builds and starts it.

#![no_main]

use std::{env, process, sync::OnceLock};

use dlrover_inputs::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = env::var("FUZZ_TARGET").unwrap_or_default();
        TARGETS.into_iter().find(|(target, _)| *target == name).unwrap_or_else(|| {
            let names = TARGETS.map(|(name, _)| name).join(", ");
            eprintln!("FUZZ_TARGET is `{name}`, expected one of {names}");
            process::exit(2)
        })
    })
}

fuzz_target!(|bytes: &[u8]| target().1(bytes));
