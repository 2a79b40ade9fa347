//! A training: `trainers/ring_sgd.py`, which needs everything a launcher gives at once.

use crate::launch;

fn last_line(stdout: &str) -> &str {
    stdout.lines().last().unwrap_or_default()
}

#[test]
fn a_training_ends_with_the_same_loss_for_every_world_size() {
    let train = |workers: &str| {
        let run = launch().flags(["--standalone", "--nproc-per-node", workers]);
        run.script(support::trainer("ring_sgd.py")).args(["--steps=40", "--sleep=0"]).finish().expect_code(0)
    };
    let (alone, three) = (train("1"), train("3"));
    assert!(three.stdout.starts_with("step    0  loss 0.6931  (3 ranks, attempt 0)\n"), "{three:#?}");
    assert!(last_line(&three.stdout).ends_with("all 3 ranks hold the same weights"), "{three:#?}");
    let loss = |line: &str| line.split_once(" after").map(|(loss, _)| loss.to_owned());
    assert_eq!(loss(last_line(&alone.stdout)), loss(last_line(&three.stdout)));
}

#[test]
fn a_training_recovers_from_every_kind_of_death() {
    for how in ["kill", "exit3", "segv", "raise"] {
        let run = launch()
            .flags(["--standalone", "--nproc-per-node=2", "--max-restarts=3"])
            .script(support::trainer("ring_sgd.py"))
            .args(["--steps=40", "--sleep=0", "--die-at=25", "--die-how", how])
            .finish()
            .expect_code(0);
        assert!(run.stdout.contains("at step 20\n") && run.stdout.contains("attempt 1: resumed"), "{run:#?}");
        assert!(last_line(&run.stdout).starts_with("final loss"), "{run:#?}");
    }
}

/// README's examples in their order: two of them share a run id, and the first is stopped before its end.
#[test]
fn a_training_uses_no_checkpoint_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let train = |args: &[&str]| {
        let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", support::free_port());
        let run = launch().flags(["--rdzv-backend=c10d", "--rdzv-id=demo", &endpoint]);
        let run = run.env("TMPDIR", folder.path()).script(support::trainer("ring_sgd.py"));
        run.args(["--sleep=0"]).args(args).finish()
    };
    let long = ["--steps=200", "--die-at=60", "--die-how=exit3"];
    let _stopped = train(&long).expect_code(1);
    let other = train(&["--steps=40"]).expect_code(0);
    assert!(last_line(&other.stdout).starts_with("final loss 0."), "{other:#?}");
    assert!(!other.stdout.contains("resumed"), "{other:#?}");

    let again = train(&long[..1]).expect_code(0);
    assert!(again.stdout.contains("at step 60\n"), "its own checkpoint is there yet: {again:#?}");

    // A named file is never silently ignored.
    let named = ["--checkpoint", folder.path().join("mine.json").to_str().unwrap()].map(str::to_owned);
    let with_steps = |steps: &str| train(&[&*named[0], &named[1], steps]);
    let _kept = with_steps("--steps=40").expect_code(0);
    let done = with_steps("--steps=40").expect_code(0);
    assert!(last_line(&done.stdout).starts_with("final loss 0."), "a finished one tells its loss: {done:#?}");
    let refused = with_steps("--steps=30").expect_code(1);
    assert!(refused.stderr.contains("mine.json is the checkpoint of another training"), "{refused:#?}");
}

#[test]
fn a_training_whose_rank_0_serves_the_store_recovers_too() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2", "--max-restarts=1"])
        .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        .script(support::trainer("ring_sgd.py"))
        .args(["--steps=30", "--sleep=0", "--die-at=25", "--die-rank=0"])
        .finish()
        .expect_code(0);
    assert!(last_line(&run.stdout).starts_with("final loss"), "{run:#?}");
}
