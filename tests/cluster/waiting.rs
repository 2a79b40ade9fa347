//! What waiting nodes hear, and how the wait ends.

use support::free_port;

use crate::{cluster, lines};

/// The last output of a launcher.
fn error(stderr: &str) -> &str {
    stderr.lines().rfind(|line| line.contains("error: ")).unwrap_or_else(|| panic!("no error: {stderr}"))
}

#[test]
fn waiting_nodes_are_told_which_ranks_are_missing() {
    let mut job = cluster();
    let first = job.ranked(0).flags(["--nnodes=3"]).start();
    let _one = job.await_output(&first, "1 of 3 nodes joined, missing: node ranks 1-2 (");
    let third = job.ranked(2).flags(["--nnodes=3"]).start();
    let _two = job.await_output(&first, "2 of 3 nodes joined, missing: node rank 1 (");
    let output = job.await_output(&third, "2 of 3 nodes joined, missing: node rank 1 (");
    assert!(output.contains(" s of 600 s"), "{output}");
    let second = job.ranked(1).flags(["--nnodes=3"]).start();
    let _world = job.await_world(3, 0);
    job.ends_well([first, second, third]);
}

#[test]
fn too_few_nodes_all_exit_with_one_message_and_75() {
    let mut job = cluster();
    let line = ["--nnodes=3", "--rdzv-conf=join_timeout=4"];
    let nodes = [0, 2].map(|rank| job.ranked(rank).flags(line).start());
    let outcomes = job.finish(nodes, 75);
    let sentence = "2 of 3 nodes joined within 4 s; missing: node rank 1";
    assert!(error(&outcomes[0].stderr).ends_with(sentence), "{outcomes:#?}");
    assert_eq!(error(&outcomes[0].stderr), error(&outcomes[1].stderr));
    let master = job.finish_master().expect_code(1);
    assert!(master.stderr.contains(sentence), "{master:#?}");
    assert!(job.ran().is_empty(), "no worker ever ran");
}

#[test]
fn a_node_that_does_not_fit_is_named_when_the_others_have_waited_in_vain() {
    let mut job = cluster();
    let line = |nodes: &str| [format!("--nnodes={nodes}"), "--rdzv-conf=join_timeout=4".to_owned()];
    let first = job.ranked(0).flags(line("2")).start();
    let _joined = job.await_output(&first, "1 of 2 nodes joined");
    let other = job.ranked(1).flags(line("3")).start();
    let outcomes = job.finish([first, other], 75);
    let end = error(&outcomes[0].stderr);
    let (before, why) = end.split_once("rejected node rank 1 (").expect(end);
    assert!(before.ends_with("1 of 2 nodes joined within 4 s; missing: node rank 1; "), "{end}");
    assert!(why.contains("): the job has nnodes=2:2, the joining node has nnodes=3:3; "), "{end}");
    let master = job.finish_master().expect_code(1);
    assert!(master.stderr.contains(why), "{master:#?}");
}

#[test]
fn too_few_nodes_of_torchrun_lines_all_exit_with_one_message_and_1() {
    let job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=3", "--rdzv-backend=c10d", &endpoint, "--rdzv-conf=join_timeout=4"];
    let nodes = [1, 2].map(|place| job.node(place).flags(line).start());
    let outcomes = job.finish(nodes, 1);
    assert!(error(&outcomes[0].stderr).ends_with("2 of 3 nodes joined within 4 s"), "{outcomes:#?}");
    let advice = "give --rdzv-endpoint=HOST:PORT of a host that all nodes reach";
    let first = "which only this host can reach; nodes on other hosts need another address: ";
    let serves = outcomes.iter().filter(|it| it.stderr.contains(&format!("{first}{advice}\n"))).count();
    assert_eq!(serves, 1, "the one that serves: {outcomes:#?}");
    let last = format!(": for nodes on other hosts, {advice}. Start the missing nodes");
    assert!(outcomes.iter().all(|it| it.stderr.contains(&last)), "{outcomes:#?}");
    assert_eq!(error(&outcomes[0].stderr), error(&outcomes[1].stderr));
    assert!(job.ran().is_empty(), "no worker ever ran");
}

#[test]
fn a_missing_master_is_given_up_after_the_join_timeout() {
    let job = lines();
    // This address is of no launcher, so none serves.
    let node = job.node(1).env("DLROVER_MASTER_ADDR", format!("0.0.0.0:{}", free_port()));
    let node = node.env("NODE_RANK", "1").flags(["--nnodes=2", "--rdzv-conf=join_timeout=1"]);
    let outcome = node.finish().expect_code(75);
    assert!(error(&outcome.stderr).contains("the job master was unreachable for 1 s"), "{outcome:#?}");
    assert!(job.ran().is_empty(), "no worker ever ran");
}
