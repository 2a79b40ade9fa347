//! Frequent cases, one by one, each without any other fault.

#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::time::Duration;

use dlrover_sim::{Fault, Plan, Report, Simulation};
use rules::{
    Moment, NodeRank,
    failure::{Failure, Outcome},
    job::OnGiveUp,
    verdict::{JobFailure, JobVerdict},
};

const SECOND: Duration = Duration::from_secs(1);

fn at(plan: Plan, strikes: &[(u32, Fault)]) -> (Simulation, Report) {
    let mut simulation = Simulation::new(plan);
    let mut time = Duration::ZERO;
    for (secs, fault) in strikes {
        simulation.run_for(SECOND * *secs - time).unwrap();
        time = SECOND * *secs;
        simulation.strike(*fault);
    }
    let report = simulation.run().unwrap();
    (simulation, report)
}

/// Rounds that were started, each with its number of nodes and of nodes that started workers.
fn rounds(report: &Report) -> Vec<(u32, usize)> {
    let mut rounds: Vec<(u32, u32, usize)> = Vec::new();
    for spawned in &report.spawned {
        match rounds.iter_mut().find(|(round, _, _)| *round == spawned.round.0) {
            Some((_, _, started)) => *started += 1,
            None => rounds.push((spawned.round.0, spawned.nodes, 1)),
        }
    }
    rounds.into_iter().map(|(_, nodes, started)| (nodes, started)).collect()
}

fn attempts(report: &Report, slot: usize) -> Vec<u32> {
    report.spawned.iter().filter(|it| it.slot == slot).map(|it| it.attempt).collect()
}

fn losses(report: &Report) -> Vec<&String> {
    report.log.iter().filter(|line| line.contains(" used for this node rank)")).collect()
}

fn elastic(min: u32, max: u32, nodes: u32) -> Plan {
    let mut plan = Plan::calm(nodes);
    (plan.terms.min_nodes, plan.terms.max_nodes) = (min, max);
    plan
}

fn crash(slot: usize) -> Fault {
    Fault::NodeCrash { slot, replaced_after: None }
}

#[test]
fn a_job_without_faults_has_one_round() {
    let (simulation, report) = at(Plan::calm(4), &[]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(4, 4)]);
    assert!(simulation.outcomes().all(|(_, outcome)| outcome == Some(&Outcome::Succeeded)));
}

#[test]
fn a_killed_master_with_a_journal_restarts_no_node() {
    for secs in 1..70 {
        for down in [SECOND / 10, SECOND * 3, SECOND * 20] {
            let (_, report) = at(Plan::calm(4), &[(secs, Fault::MasterCrash { down })]);
            assert_eq!(rounds(&report), [(4, 4)], "killed after {secs} s for {down:?}");
            assert_eq!(losses(&report), Vec::<&String>::new());
            // Killed while leaving, for longer than any timeout, it has no node left to notify.
            assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
        }
    }
}

#[test]
fn a_master_killed_ten_times_restarts_no_node() {
    let strikes: Vec<(u32, Fault)> =
        (1..11).map(|time| (time * 5, Fault::MasterCrash { down: SECOND })).collect();
    let (_, report) = at(Plan::calm(16), &strikes);
    assert_eq!((rounds(&report), report.master_starts), (vec![(16, 16)], 11));
}

#[test]
fn a_master_without_a_journal_learns_the_round_from_its_members_and_restarts_none() {
    for secs in 10..60 {
        let mut plan = Plan::calm(4);
        plan.has_journal = false;
        let (_, report) = at(plan, &[(secs, Fault::MasterCrash { down: SECOND })]);
        assert_eq!(rounds(&report), [(4, 4)], "killed after {secs} s");
        assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
        assert!(report.log.iter().any(|line| line.starts_with("took over round 0 (4")), "{:?}", report.log);
    }
}

#[test]
fn with_enough_nodes_left_a_loss_shrinks_the_world_at_once() {
    let (_, report) = at(elastic(3, 4, 4), &[(20, crash(3))]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(4, 4), (3, 3)]);
    assert_eq!(attempts(&report, 0), [0, 0], "another's loss spends no restart");
    let again = report.spawned.iter().find(|it| it.nodes == 3).unwrap().at;
    assert!(again < Moment::at_secs(34), "the grace, the longest stop and the start: {again}");
}

#[test]
fn with_too_few_left_the_others_wait_and_a_replacement_revives_the_job() {
    let replaced_after = Some(SECOND * 20);
    let (_, report) = at(Plan::calm(3), &[(20, Fault::NodeCrash { slot: 2, replaced_after })]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(3, 3), (3, 3)]);
    assert!(report.spawned[3].at > Moment::at_secs(40));
    assert_eq!(losses(&report).len(), 1);
}

#[test]
fn with_too_few_left_and_no_replacement_the_job_ends_by_its_timeout() {
    let (simulation, report) = at(Plan::calm(3), &[(20, crash(2))]);
    let Some(JobVerdict::Failed(failure @ JobFailure::TimedOut { joined: 2, needed: 3, .. })) =
        &report.verdict
    else {
        panic!("{:?}", report.verdict)
    };
    let words = failure.to_string();
    assert!(words.contains("missing: node rank 2; node rank 2 (host-2, 10.0.0.2) was lost: "), "{words}");
    let told = simulation
        .outcomes()
        .filter(|(_, outcome)| matches!(outcome, Some(Outcome::Failed(Failure::Job(_)))));
    assert_eq!(told.count(), 2);
}

#[test]
fn a_wave_of_newcomers_costs_one_restart() {
    let mut plan = elastic(2, 10, 8);
    for (late, slot) in (0..).zip(&mut plan.slots[2..]) {
        slot.arrives = Moment::at_millis(20_000 + late * 400);
    }
    let (_, report) = at(plan, &[]);
    assert_eq!(rounds(&report), [(2, 2), (8, 8)]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(attempts(&report, 0), [0, 0]);
}

#[test]
fn an_announced_leave_uses_no_budget_and_needs_no_grace() {
    let mut plan = elastic(3, 4, 4);
    plan.policy.restart_count = 0;
    plan.timeout.reconnect_grace = SECOND * 15;
    let (simulation, report) = at(plan, &[(20, Fault::Signal { slot: 3, signal: 15, again_after: None })]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(4, 4), (3, 3)]);
    assert!(
        losses(&report)[0].ends_with("(0 of 0 replacements used for this node rank)"),
        "{:?}",
        report.log
    );
    assert!(report.spawned[4].at < Moment::at_secs(28));
    assert_eq!(simulation.outcomes().nth(3).unwrap().1, Some(&Outcome::Interrupted(15)));
}

#[test]
fn the_fourth_loss_of_a_rank_ends_the_job_with_its_name() {
    let mut plan = Plan::calm(2);
    plan.work = (200_000, 200_000);
    let loss = Fault::NodeCrash { slot: 1, replaced_after: Some(SECOND * 4) };
    let (_, report) = at(plan, &[(20, loss), (40, loss), (60, loss), (80, loss)]);
    let Some(JobVerdict::Failed(failure)) = &report.verdict else { panic!("{:?}", report.verdict) };
    let words = failure.to_string();
    assert!(
        words.starts_with("node rank 1 (") && words.ends_with("; not replaced (3 of 3 replacements used)"),
        "{words}"
    );
    assert!(words.contains("(host-1, 10.0.0.1)"), "{words}");
    assert_eq!(rounds(&report).len(), 4);
}

#[test]
fn three_losses_of_each_rank_do_not_end_it() {
    let mut plan = Plan::calm(2);
    plan.work = (200_000, 200_000);
    let loss = |slot| Fault::NodeCrash { slot, replaced_after: Some(SECOND * 4) };
    let strikes: Vec<(u32, Fault)> = (1..7).map(|time| (time * 20, loss(time as usize % 2))).collect();
    let (_, report) = at(plan, &strikes);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
}

#[test]
fn budgets_survive_the_master() {
    let mut plan = Plan::calm(2);
    plan.work = (200_000, 200_000);
    let loss = Fault::NodeCrash { slot: 1, replaced_after: Some(SECOND * 4) };
    let restart = Fault::MasterCrash { down: SECOND };
    let strikes =
        [(20, loss), (30, restart), (40, loss), (50, restart), (60, loss), (70, restart), (80, loss)];
    let (_, report) = at(plan, &strikes);
    assert!(
        matches!(
            &report.verdict,
            Some(JobVerdict::Failed(JobFailure::Exhausted { rank: NodeRank(1), limit: 3, .. }))
        ),
        "{:?}",
        report.verdict
    );
}

#[test]
fn a_spare_takes_a_free_rank() {
    let (simulation, report) = at(elastic(2, 2, 3), &[(20, crash(1))]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(2, 2), (2, 2)]);
    assert_eq!(attempts(&report, 2), [0], "the spare has started once");
    assert_eq!(simulation.outcomes().nth(2).unwrap().1, Some(&Outcome::Succeeded));
}

#[test]
fn a_frozen_node_is_lost_and_comes_back_as_a_newcomer() {
    let mut plan = elastic(2, 3, 3);
    plan.work = (120_000, 120_000);
    let (_, report) = at(plan, &[(20, Fault::Freeze { slot: 2, lasts: SECOND * 60 })]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(3, 3), (2, 2), (3, 3)]);
    assert!(losses(&report)[0].contains("no heartbeat for 15 s"), "{:?}", report.log);
    let lives: Vec<_> = report.spawned.iter().filter(|it| it.slot == 2).map(|it| &it.node).collect();
    assert_eq!(lives.len(), 2);
    assert_eq!(lives[0], lives[1], "it is the same launcher");
}

#[test]
fn a_freeze_shorter_than_the_timeout_restarts_no_node() {
    let (_, report) = at(Plan::calm(3), &[(20, Fault::Freeze { slot: 2, lasts: SECOND * 8 })]);
    assert_eq!(rounds(&report), [(3, 3)]);
}

#[test]
fn a_connection_reset_restarts_no_node() {
    let strikes: Vec<(u32, Fault)> = (5..60).map(|secs| (secs, Fault::BreakLink { slot: 1 })).collect();
    let (_, report) = at(Plan::calm(3), &strikes);
    assert_eq!((rounds(&report), report.verdict.clone()), (vec![(3, 3)], Some(JobVerdict::Succeeded)));
}

#[test]
fn a_failure_of_workers_uses_a_restart_of_their_node_only() {
    let (_, report) = at(Plan::calm(3), &[(20, Fault::WorkerFails { slot: 1 })]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!((attempts(&report, 0), attempts(&report, 1)), (vec![0, 0], vec![0, 1]));
    assert_eq!(losses(&report), Vec::<&String>::new());
}

#[test]
fn without_replacement_a_node_that_gives_up_ends_the_job() {
    let mut plan = Plan::calm(3);
    plan.policy.on_give_up = OnGiveUp::FailJob;
    plan.is_embedded = true;
    plan.has_journal = false;
    plan.max_restarts = 0;
    let (_, report) = at(plan, &[(20, Fault::WorkerFails { slot: 1 })]);
    let Some(JobVerdict::Failed(JobFailure::Node { node, .. })) = &report.verdict else {
        panic!("{:?}", report.verdict)
    };
    assert_eq!(node.rank, Some(NodeRank(1)));
    assert_eq!(rounds(&report), [(3, 3)]);
}

#[test]
fn with_replacement_a_node_that_gives_up_is_replaced_by_the_spare() {
    let mut plan = elastic(2, 2, 3);
    plan.max_restarts = 0;
    let (_, report) = at(plan, &[(20, Fault::WorkerFails { slot: 1 })]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    assert_eq!(rounds(&report), [(2, 2), (2, 2)]);
    assert_eq!(losses(&report).len(), 1);
}

#[test]
fn when_the_launcher_that_serves_the_master_is_killed_the_others_end_their_work_and_themselves() {
    let mut plan = Plan::calm(3);
    plan.is_embedded = true;
    plan.has_journal = false;
    plan.policy.on_give_up = OnGiveUp::FailJob;
    let (simulation, report) = at(plan, &[(20, crash(0))]);
    assert_eq!(report.verdict, None);
    let others: Vec<_> = simulation.outcomes().skip(1).map(|(_, outcome)| outcome).collect();
    assert_eq!(others, [Some(&Outcome::Succeeded), Some(&Outcome::Succeeded)], "their workers ended well");
    assert!(
        report.ended_at < Moment::at_secs(60 + 60 + 20),
        "the work, and the patience: {}",
        report.ended_at
    );
}

#[test]
fn the_topology_orders_the_ranks_and_the_first_of_them_serves_the_store() {
    let mut plan = Plan::calm(6);
    plan.policy.has_topology = true;
    let (_, report) = at(plan, &[]);
    assert_eq!(report.verdict, Some(JobVerdict::Succeeded));
    let placed = report.log.iter().find(|line| line.starts_with("round 0: 6 nodes")).unwrap();
    let switches: Vec<&str> = placed.lines().skip(1).filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(switches, ["s0", "s0", "s1", "s1", "s2", "s2"]);
}

#[test]
fn a_crash_of_the_master_alone_loses_no_node_in_any_job() {
    for seed in 0..400 {
        let mut plan = Plan::of_seed(seed);
        plan.has_journal = true;
        plan.is_embedded = false;
        plan.policy.on_give_up = OnGiveUp::Replace;
        plan.rates = dlrover_sim::Rates::default();
        plan.faults.retain(|(_, fault)| matches!(fault, Fault::MasterCrash { .. }));
        // A check would exclude the broken ones.
        plan.slots.iter_mut().for_each(|slot| slot.flaw = None);
        // A node that needs the master waits that long for it, and no longer.
        plan.terms.join_timeout = Duration::from_secs(300);
        let report =
            Simulation::new(plan).run().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert_eq!(losses(&report), Vec::<&String>::new(), "seed {seed}");
        assert!(report.spawned.iter().all(|it| it.attempt == 0), "seed {seed}");
    }
}
