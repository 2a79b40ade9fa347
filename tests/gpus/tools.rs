//! Tools that hang, flood, fail or lie: the run starts all the same, as if nothing had been chosen.

use std::time::Duration;

use super::*;

#[test]
fn a_failing_tool_prevents_the_choice_and_not_the_run() {
    for (script, words) in [
        ("exec sleep 1000", "no answer within 2 s; last step: {}/nvidia-smi --query-gpu=... --format=..."),
        ("sleep 1000 & wait", "no answer within 2 s; last step: {}/nvidia-smi --query-gpu=... --format=..."),
        (
            "exec yes GPU0",
            "{}/nvidia-smi --query-gpu=... --format=...: killed: printed more than 262144 bytes",
        ),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "exited with code 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("head -c 300 /dev/zero", "{}/nvidia-smi --query-gpu=... --format=...: `"),
    ] {
        let node = FakeNode::dgx(&[]);
        node.tool(script);
        is_no_help(&node, script, words);
    }
}

#[test]
fn so_does_an_invalid_table() {
    for (script, words) in [
        ("exec sleep 1000", "no answer within 2 s; last step: {}/nvidia-smi topo -m"),
        ("exec yes GPU0", "{}/nvidia-smi topo -m: killed: printed more than 262144 bytes"),
        ("echo GPU0 GPU1", "{}/nvidia-smi topo -m: the topology table is not square (columns: 2, rows: 0)"),
        ("head -c 300 /dev/zero", "{}/nvidia-smi topo -m: no topology table found"),
        ("head -c 300 \"${0%/*}/table\"", "{}/nvidia-smi topo -m: the topology table is not square"),
    ] {
        let node = FakeNode::dgx(&[]);
        node.tool(&format!(
            "case $1 in topo) {script} ;; *) exec cat {} ;; esac",
            node.path("query").display()
        ));
        is_no_help(&node, script, words);
    }
}

/// In the words there is `{}` for the directory of the tool.
fn is_no_help(node: &FakeNode, script: &str, words: &str) {
    let run = node.launch(&["--nproc-per-node=2", "--gpu-select=topology"]).steps(&["dump"]);
    let run = run.finish().expect_code(0);
    assert!(!run.dump(0, 0).env.contains_key("CUDA_VISIBLE_DEVICES"), "{run:#?}");
    let lines: Vec<&str> = run.stderr.lines().filter(|line| line.contains("--gpu-select")).collect();
    assert_eq!(lines.len(), 1, "{script}: {run:#?}");
    let words = words.replace("{}", node.dir.path().to_str().unwrap());
    assert!(
        lines[0].contains("is ignored (as with --gpu-select=first)") && lines[0].contains(&words),
        "{script}: {}",
        lines[0]
    );
    // Two seconds at most for all questions together, and the run itself.
    assert!(run.took < Duration::from_secs(60), "{script} took {:?}", run.took);
}

#[test]
fn a_failed_query_prevents_the_choice_because_the_ids_are_unknown() {
    let node = FakeNode::dgx(&[]);
    let table = node.path("table");
    node.tool(&format!("case \"$1\" in topo) exec cat {} ;; *) exit 6 ;; esac", table.display()));
    let run = node.launch(&["--nproc-per-node=2", "--gpu-select=topology"]).steps(&["dump"]).finish();
    let run = run.expect_code(0);
    assert!(run.stderr.contains("is ignored (as with --gpu-select=first)"), "{}", run.stderr);
    assert!(run.stderr.contains("exited with code 6"), "{}", run.stderr);
    assert!(!run.dump(0, 0).env.contains_key("CUDA_VISIBLE_DEVICES"));
}

#[test]
fn the_self_test_asks_the_tool_too() {
    let node = FakeNode::dgx(&[6]);
    let report = node.path("report.json");
    let flags = ["--nproc-per-node=1", "--network-check", &format!("--taint-report={}", report.display())];
    node.launch(&flags).steps(&["dump"]).finish().expect_code(0);
    let report: serde_json::Value = serde_json::from_str(&read(&report)).unwrap();
    let inventory = &report["nodes"][0]["inventory"];
    assert_eq!(inventory["gpus"][7]["uuid"], uuid(7).as_str(), "{report:#}");
    assert_eq!(inventory["gpus"][7]["pci"], "0000:7b:00.0");
    assert!(inventory["links"].as_array().unwrap().len() == 28, "{report:#}");
    assert!(report["nodes"][0]["notes"].to_string().contains("GPU 6"), "{report:#}");
}
