//! Tools that hang, flood, fail or lie: the run starts all the same, as if nothing had been chosen.

use std::time::Duration;

use super::*;

#[test]
fn a_tool_that_is_no_help_costs_the_choice_and_not_the_run() {
    let torn = "head -c 300";
    for (script, words) in [
        ("exec sleep 1000", "has not ended after 2 s, and was killed"),
        ("sleep 1000 & wait", "has not ended after 2 s, and was killed"),
        ("exec yes GPU0", "prints more than"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "failed: exit status: 18 (Failed to initialize NVML",
        ),
        ("kill -SEGV $$", "failed: signal: 11"),
        ("echo GPU0 GPU1", "2 columns and 0 rows"),
        ("head -c 300 /dev/urandom", "no topology table"),
        (torn, "nvidia-smi topo -m: "),
    ] {
        let node = FakeNode::dgx(&[]);
        let table = node.path("table");
        match script == torn {
            true => node.tool(&format!("{torn} {}", table.display())),
            false => node.tool(script),
        }
        let run = node.launch(&["--nproc-per-node=2", "--gpu-select=topology"]).steps(&["dump"]);
        let run = run.finish().expect_code(0);
        assert!(!run.dump(0, 0).env.contains_key("CUDA_VISIBLE_DEVICES"), "{run:#?}");
        let lines: Vec<&str> = run.stderr.lines().filter(|line| line.contains("--gpu-select")).collect();
        assert_eq!(lines.len(), 1, "{script}: {run:#?}");
        assert!(lines[0].contains("chooses nothing") && lines[0].contains(words), "{script}: {}", lines[0]);
        // Two seconds at most for the tool, and the run itself.
        assert!(run.took < Duration::from_secs(60), "{script} took {:?}", run.took);
    }
}

#[test]
fn a_query_that_fails_costs_the_choice_too_for_nobody_knows_the_ids() {
    let node = FakeNode::dgx(&[]);
    let table = node.path("table");
    node.tool(&format!("case \"$1\" in topo) exec cat {} ;; *) exit 6 ;; esac", table.display()));
    let run = node.launch(&["--nproc-per-node=2", "--gpu-select=topology"]).steps(&["dump"]).finish();
    let run = run.expect_code(0);
    assert!(run.stderr.contains("chooses nothing"), "{}", run.stderr);
    assert!(!run.dump(0, 0).env.contains_key("CUDA_VISIBLE_DEVICES"));
}
