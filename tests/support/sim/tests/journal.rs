//! The journal is cut: at every record while the job runs on, and at every byte of a record.

use dlrover_sim::{
    Plan, Simulation,
    journal::Journal,
    suite::{Family, number},
};
use rules::{
    Moment,
    job::{Event, Job},
};

/// About one in four of them is short enough.
const SEEDS: u64 = 500;

/// A schedule in which the master has a journal.
fn remembering(seed: u64) -> Plan {
    let mut plan = Plan::of_seed(seed);
    plan.has_journal = true;
    plan
}

/// One that is short enough to be run once for each of its records; `None`: this seed's is not.
fn short(seed: u64) -> Option<Plan> {
    let mut plan = remembering(seed);
    plan.faults.truncate(3);
    (!plan.is_embedded && plan.slots.len() <= 6).then_some(plan)
}

#[test]
fn a_master_killed_after_any_record_continues() {
    if let (Some(seed), Some(record)) = (number("DLROVER_SIM_SEED"), number("DLROVER_SIM_RECORD")) {
        let mut plan = short(seed).expect("the command names a seed whose schedule is short");
        plan.crash_after_records = Some(record as usize);
        println!("{:?}", Simulation::new(plan).run().unwrap().verdict);
        return;
    }
    let (mut schedules, mut steps) = (0, 0);
    for seed in 0..number("DLROVER_SIM_CUTS").unwrap_or(SEEDS) {
        let Some(mut plan) = short(seed) else { continue };
        let records = Simulation::new(plan.clone()).run().unwrap().records;
        for record in 1..=records {
            plan.crash_after_records = Some(record);
            let report = Simulation::new(plan.clone()).run().unwrap_or_else(|violation| {
                panic!(
                    "seed {seed}, killed after record {record}: {violation}\nreplay: DLROVER_SIM_SEED={seed} \
                     DLROVER_SIM_RECORD={record} DLROVER_SIM_TRACE=1 cargo test -p dlrover-sim --test journal -- --nocapture"
                )
            });
            schedules += 1;
            steps += report.steps;
        }
    }
    println!("{schedules} schedules, one for each record after which the master was killed: {steps} steps");
}

#[test]
fn a_journal_cut_at_any_byte_has_the_whole_records_before_it() {
    let (mut boundaries, mut bytes) = (0, 0);
    for seed in 0..40 {
        let mut plan = remembering(seed);
        plan.compacts_every = None;
        let mut simulation = Simulation::new(plan);
        simulation.run().unwrap();
        let journal = simulation.journal();
        let ends: Vec<usize> = std::iter::once(0).chain(journal.ends().iter().copied()).collect();
        for (records, end) in ends.iter().enumerate() {
            let recovered = journal.cut(*end).recover();
            assert_eq!(recovered.records, records, "seed {seed}");
            boundaries += 1;
            // Every byte of the last record, and of one here and there.
            if records + 1 != ends.len() && records % 16 == 0 {
                for cut in *end..ends[records + 1] {
                    let torn = journal.cut(cut).recover();
                    assert_eq!(
                        (torn.records, &torn.job),
                        (records, &recovered.job),
                        "seed {seed}, byte {cut}"
                    );
                    bytes += 1;
                }
            }
        }
        let [.., before, last] = ends[..] else { continue };
        let whole = journal.cut(before).recover();
        for cut in before..last {
            let torn = journal.cut(cut).recover();
            assert_eq!((torn.records, &torn.job), (whole.records, &whole.job), "seed {seed}, byte {cut}");
            bytes += 1;
        }
        let all = journal.cut(last).recover();
        assert_eq!(&all.job, simulation.durable_job(), "seed {seed}: the whole journal");
    }
    println!("{boundaries} record boundaries and {bytes} torn records");
}

/// A snapshot and the records after it give the same job as all records.
#[test]
fn a_snapshot_replaces_the_records_before_it() {
    for seed in 0..40 {
        let mut plan = remembering(seed);
        plan.compacts_every = Some(1 + seed as usize % 7);
        let policy = plan.policy.clone();
        let mut simulation = Simulation::new(plan);
        simulation.run().unwrap();
        let recovered = simulation.journal().clone().recover();
        assert_eq!(&recovered.job, simulation.durable_job(), "seed {seed}");
        assert_ne!(recovered.job, Job::new(policy), "seed {seed}");
    }
}

/// Only the checksum reveals a record that was half written over an old block.
#[test]
fn a_record_with_a_flipped_bit_is_no_record() {
    let policy = Plan::calm(2).policy;
    let mut journal = Journal::new(policy);
    journal.append(Moment::START, &Event::Restarted);
    journal.append_torn(Moment::at_secs(1), &Event::Deadline, 3);
    assert_eq!(journal.recover().records, 1);
    assert_eq!(journal.recover().records, 1, "what was torn is gone");
}

#[test]
fn a_seed_is_one_schedule() {
    let family = Family { test: "small", plan: Plan::of_seed };
    for seed in 0..50 {
        let (first, again) = (family.run(seed), family.run(seed));
        assert_eq!((first.steps, first.spawned, first.log), (again.steps, again.spawned, again.log));
    }
}
