//! What workers see.

use super::*;

#[test]
fn all_workers_get_the_same_list_with_the_best_ring_first() {
    let node = FakeNode::dgx(&[1]);
    let flags = ["--nproc-per-node=4", "--gpu-select=topology"];
    let run = node.launch(&flags).steps(&["dump"]).finish().expect_code(0);
    for rank in 0..4 {
        let worker = run.dump(rank, 0);
        assert_eq!(numbers(worker.var("CUDA_VISIBLE_DEVICES")), [4, 5, 6, 7, 0, 2, 3]);
        assert_eq!(worker.var("LOCAL_RANK"), rank.to_string());
    }
    let line = run.stderr.lines().find(|line| line.contains("--gpu-select")).unwrap();
    assert!(line.contains("GPUs 4,5,6,7 chosen from 7 free (left out: GPU 1 busy): 2 rings"), "{line}");

    let flags = ["--nproc-per-node=8", "--gpu-select=topology", "--gpu-select-only"];
    let run = FakeNode::dgx(&[]).launch(&flags).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(numbers(run.dump(7, 0).var("CUDA_VISIBLE_DEVICES")), [0, 3, 2, 1, 5, 6, 7, 4]);
}

#[test]
fn restarted_workers_keep_their_list() {
    let node = FakeNode::dgx(&[0, 1]);
    let flags = ["--nproc-per-node=2", "--gpu-select=topology", "--gpu-select-only", "--max-restarts=1"];
    let run = node.launch(&flags).steps(&["dump", "1@0 exit 3"]).finish().expect_code(0);
    for (attempt, rank) in [(0, 1), (1, 0), (1, 1)] {
        assert_eq!(numbers(run.dump(rank, attempt).var("CUDA_VISIBLE_DEVICES")), [2, 3]);
    }
}

#[test]
fn without_the_option_no_tool_runs_and_nothing_changes() {
    let node = FakeNode::dgx(&[]);
    let witness = node.path("witness");
    node.tool(&format!("touch {}", witness.display()));
    let run = node.launch(&["--nproc-per-node=2"]).env("CUDA_VISIBLE_DEVICES", "3,1").steps(&["dump"]);
    let run = run.finish().expect_code(0);
    assert_eq!(run.dump(1, 0).var("CUDA_VISIBLE_DEVICES"), "3,1");
    assert!(!witness.exists());
    assert!(!run.stderr.contains("gpu-"), "{}", run.stderr);
    assert_eq!(fs::read_dir(node.path("locks")).unwrap().count(), 0);
}

#[test]
fn the_users_own_list_bounds_the_choice() {
    let node = FakeNode::dgx(&[]);
    let flags = ["--nproc-per-node=2", "--gpu-select=topology"];
    let own = node.launch(&flags).env("CUDA_VISIBLE_DEVICES", "0,2,4,5").steps(&["dump"]);
    let run = own.finish().expect_code(0);
    assert_eq!(numbers(run.dump(0, 0).var("CUDA_VISIBLE_DEVICES")), [0, 4, 2, 5]);
    let flags = ["--nproc-per-node=2", "--gpu-select=pack"];
    let own = node.launch(&flags).env("CUDA_VISIBLE_DEVICES", "0,2,4,5").steps(&["dump"]);
    let run = own.finish().expect_code(0);
    assert_eq!(numbers(run.dump(0, 0).var("CUDA_VISIBLE_DEVICES")), [4, 5, 0, 2]);

    let slices = "MIG-1f,MIG-2f";
    let own = node.launch(&flags).env("CUDA_VISIBLE_DEVICES", slices).steps(&["dump"]);
    let run = own.finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("CUDA_VISIBLE_DEVICES"), slices);
    assert!(run.stderr.contains("slices of GPUs"), "{}", run.stderr);
}

#[test]
fn an_impossible_list_is_refused_at_the_start() {
    let node = FakeNode::dgx(&[]);
    // An invalid value is a usage error, as with any option with choices.
    for (list, words, code) in
        [("0,9", "no GPU 9", 1), ("0", "1 GPU for 2 workers", 1), ("soon", "is not a choice of GPUs", 2)]
    {
        let flags = ["--nproc-per-node=2", &format!("--gpu-select={list}")];
        let run = node.launch(&flags).finish().expect_code(code);
        assert!(run.stderr.contains(words) && run.dumps().is_empty(), "{run:#?}");
    }
    let run =
        node.launch(&["--nproc-per-node=2", "--gpu-select=7,5"]).steps(&["dump"]).finish().expect_code(0);
    assert_eq!(numbers(run.dump(1, 0).var("CUDA_VISIBLE_DEVICES")), [7, 5]);
}

#[test]
fn metax_gpus_are_set_by_number_in_both_variables() {
    let node = FakeNode::dgx(&[]);
    fs::write(node.path("table"), include_str!("../../diagnosis/src/gpu_topology/fixtures/f_c500.txt"))
        .unwrap();
    let list = (0..8).map(|gpu| format!("GPU#{gpu} MXC500 0000:{gpu}a:00.0 Available (UUID: GPU-{gpu})\n"));
    fs::write(node.path("list"), list.collect::<String>()).unwrap();
    let memory = "GPU#5\nvis_vram total : 67108864 KB\nvis_vram used : 60000000 KB\n";
    fs::write(node.path("memory"), memory).unwrap();
    // It is asked first, and the other vendor's then no more.
    node.tool(&format!("touch {}", node.path("witness").display()));
    node.tool_named(
        "mx-smi",
        "cd \"${0%/*}\"; case \"$1\" in -L) cat list ;; --show-memory) cat memory ;; *) cat table ;; esac",
    );
    let flags = ["--nproc-per-node=4", "--gpu-select=topology"];
    let run = node.launch(&flags).steps(&["dump"]).finish().expect_code(0);
    for name in ["CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"] {
        assert_eq!(run.dump(0, 0).var(name), "0,1,2,3,4,6,7", "{}", run.stderr);
    }
    assert!(run.stderr.contains("from 7 free (left out: GPU 5 busy)"), "{}", run.stderr);
    assert!(!node.path("witness").exists());
}
