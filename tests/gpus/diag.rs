//! `dlrover-diag topo`.

use std::process::{Command, Output, Stdio};

use super::*;

fn topo(node: &FakeNode, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
    command.arg("topo").args(args).env("PATH", node.search_path()).stdin(Stdio::null());
    command.output().unwrap()
}

fn printed(node: &FakeNode, args: &[&str]) -> String {
    let output = topo(node, args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_document_has_the_schema() {
    let node = FakeNode::dgx(&[1]);
    assert_eq!(
        printed(&node, &["-k", "4", "--json"]),
        "{\"best\":[4,5,6,7],\"ring\":[4,5,6,7],\"capacity_links\":2,\"total_gbps\":217.8,\"first\":[0,2,3,4],\
         \"gain_over_first\":5.378}\n"
    );
    let document: serde_json::Value =
        serde_json::from_str(&printed(&FakeNode::dgx(&[]), &["--json"])).unwrap();
    assert_eq!(document["ring"], serde_json::json!([0, 3, 2, 1, 5, 6, 7, 4]));
}

#[test]
fn a_matrix_file_and_busy_devices_can_be_given() {
    let node = FakeNode::dgx(&[]);
    let table = node.path("table");
    let from_file = ["--file", table.to_str().unwrap(), "--busy", "1,6", "-k", "2", "--json"];
    assert_eq!(printed(&node, &from_file), printed(&FakeNode::dgx(&[1, 6]), &["-k", "2", "--json"]));
    let text = printed(&node, &["--busy=1", "-k4", "--explain"]);
    for words in ["GPU1     NV1     -", "busy", "best     4,5,6,7", "35 sets of 4", "5.38 times"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(printed(&node, &[]).contains(" 8  0,3,2,1,5,6,7,4"));
}

#[test]
fn the_ranking_is_in_the_document_too() {
    let node = FakeNode::dgx(&[1]);
    let document: serde_json::Value =
        serde_json::from_str(&printed(&node, &["-k", "4", "--json", "--explain"])).unwrap();
    let ranking = document["ranking"].as_array().unwrap();
    assert_eq!((ranking.len(), &ranking[0]["set"]), (35, &document["best"]), "{document:#}");
    assert_eq!((&ranking[0]["total_gbps"], &ranking[0]["numa_nodes"]), (&document["total_gbps"], &1.into()));
}

#[test]
fn without_free_accelerators_both_forms_choose_nothing() {
    let node = FakeNode::dgx(&[]);
    let all = "--busy=0,1,2,3,4,5,6,7";
    let end = "GPUs: 8, 0 free\nfewer than 2 GPUs are free: there is nothing to choose\n";
    assert!(printed(&node, &[all, "--explain"]).ends_with(end));
    let document: serde_json::Value = serde_json::from_str(&printed(&node, &[all, "--json"])).unwrap();
    assert_eq!((&document["best"], &document["ring"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(topo(&node, &[all, "--json", "-k1"]).status.code(), Some(2));
}

#[test]
fn a_measured_matrix_makes_no_claims_about_link_kinds() {
    let node = FakeNode::dgx(&[]);
    fs::write(node.path("gbps.csv"), "0,9,9,9\n9,0,9,20\n9,9,0,9\n9,20,9,0\n").unwrap();
    let file = node.path("gbps.csv");
    let text = printed(&node, &["--file", file.to_str().unwrap(), "-k2", "--explain"]);
    assert!(
        text.contains("capacity as measured, 20.0 GB/s") && text.contains("by their slowest link"),
        "{text}"
    );
    assert!(text.contains("   1  1,3                       as measured, 20.0 GB/s"), "{text}");
    assert!(text.contains(" 20.0 GB/s  ?\n") && !text.contains("no ring"), "{text}");
    let row = vec!["9"; 64].join(",");
    fs::write(&file, vec![row; 64].join("\n")).unwrap();
    let output = topo(&node, &["--file", file.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the topology has 64 GPUs; at most 16 are supported\n"), "{stderr}");
}

#[test]
fn errors_have_their_exit_codes() {
    let node = FakeNode::dgx(&[]);
    for (args, code, words) in [
        (["--busy", "8"].as_slice(), 2, "--busy names GPU 8"),
        (&["-k", "9"], 2, "too few free GPUs: 9 requested, 8 free"),
        (&["-k", "0"], 2, "0 GPUs requested"),
        (&["--file", "/nowhere"], 1, "/nowhere: No such file"),
        (&["--file", ""], 2, "a value is required for '--file <FILE>'"),
        (&["--file", "-"], 1, "standard input: no topology table found"),
    ] {
        let output = topo(&node, args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.contains(words)), (Some(code), true), "{args:?}: {stderr}");
        assert!(!stderr.contains("give a table with --file"), "{args:?}: {stderr}");
    }
    fs::write(node.path("table"), read(&node.path("table")).replacen("NV2", "NV1", 1)).unwrap();
    let output = topo(&node, &[]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("not symmetric") && stderr.contains("give a table with --file"), "{stderr}");
}
