//! Many restarts: the template and the workers do not grow.

use crate::{facts, is_forked, launch, ours};

/// `DLROVER_WARM_RESTARTS=300` for more.
fn restarts() -> u32 {
    std::env::var("DLROVER_WARM_RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

/// What the template, the guard or the launcher has open while a worker is started, and not before or after it.
const PASSING: u64 = 10;

#[test]
fn the_last_of_many_generations_is_like_the_first() {
    let Some(launcher) = ours() else { return };
    let restarts = restarts();
    let run = launch(launcher, "start")
        .flags(["--nproc-per-node=2"])
        .args([format!("--restarts={restarts}")])
        .finish()
        .expect_code(0);
    for rank in 0..2 {
        let [first, last] = [0, restarts].map(|attempt| facts(&run, rank, attempt));
        assert!(is_forked(&first) && is_forked(&last), "{run:#?}");
        for name in ["fds", "threads", "flags", "path0", "meta_path"] {
            assert_eq!(first[name], last[name], "{name} of rank {rank}");
        }
        let number = |facts: &serde_json::Value, name: &str| facts[name].as_u64().expect("a number");
        // Each may be starting the other rank at this moment, with some descriptors for that. One that is left by each
        // restart is more.
        for process in ["template", "guard", "launcher"] {
            let name = format!("{process}_fds");
            let (before, after) = (number(&first, &name), number(&last, &name));
            assert!(before > 2, "the {process} has {before} descriptors");
            assert!(after <= before + PASSING, "the {process} had {before} descriptors, and has {after}");
        }
        let (before, after) = (number(&first, "template_pages"), number(&last, "template_pages"));
        assert!(after <= before + 256, "the template has grown from {before} to {after} pages");
    }
}
