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
