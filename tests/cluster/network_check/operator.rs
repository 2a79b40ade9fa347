//! What an operator makes of a check: a command for each node at fault, and checks that are used again.

use serde_json::Value;

use super::{
    job::{Job, take},
    schema,
};
use crate::hosts::{Fault, Network, data_address};

#[test]
fn the_fault_command_runs_once_for_each_faulty_node_with_its_report() {
    let Some(network) = Network::of(4) else { return };
    network.break_host(3, Fault::Mute);
    let command = "--on-fault-node=cat >> \"$TMPDIR/at-fault\"; echo >> \"$TMPDIR/at-fault\"";
    let job = Job::with_master(&network, &[command, "--taint-key=example.org/bad"], &["--nnodes=3:4"]);
    let mut nodes = job.start();
    job.report(0).blames(&[(3, "fault")]);
    let left = take(&mut nodes, 3);
    let _said = job.leave([left], 201);
    let _world = job.first_world(3);
    let output = job.await_master_log("--on-fault-node succeeded for ");
    assert_eq!(output.matches("--on-fault-node").count(), 1, "{output}");
    let outcome = job.ends_well(nodes);
    let lines = outcome.file("at-fault").expect("the command has written it");
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let node: Value = serde_json::from_str(lines[0]).expect("it gets JSON");
    schema::check_node(&node);
    assert_eq!((&node["number"], &node["verdict"]), (&Value::from(3), &Value::from("fault")), "{node:#}");
    assert_eq!(node["ip"], data_address(3), "{node:#}");
    assert_eq!(node["taint"]["key"], "example.org/bad", "{node:#}");
}

/// The first worker of the first round fails; gives what the master has said when all is over.
fn after_a_restart(network: &Network, flags: &[&str]) -> String {
    let flags: Vec<&str> = ["--nnodes=2", "--max-restarts=1"].iter().chain(flags).copied().collect();
    let job = Job::on(network, &flags);
    let steps = ["dump", "0@0 exit 3", "await go"];
    let nodes = [0, 1].map(|host| job.line_of(host).steps(&steps).start());
    let _again = job.await_world(2, 1);
    job.ends_well(nodes).stderr
}

#[test]
fn a_restart_checks_again_unless_the_last_check_is_reused() {
    let Some(network) = Network::of(2) else { return };
    let output = after_a_restart(&network, &[]);
    assert!(output.contains("network check 1 begins (2 nodes)"), "{output}");
    assert!(!output.contains("network check 2 of"), "{output}");
    let output = after_a_restart(&network, &["--check-ttl=60"]);
    assert!(output.contains("network check 0 begins (2 nodes)"), "{output}");
    assert!(!output.contains("network check 1 of"), "{output}");
}
