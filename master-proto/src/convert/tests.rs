//! Values that pass over the wire and back, and messages that are refused.

mod compute_kinds;

use std::time::Duration;

use diagnosis::{
    exclusion::Exclusion,
    gpus::{Gpu, GpuLink, GpuProcess, GpuTrouble, Inventory, MAX_GPUS, NvLink, RemappedRows, Vendor, Xid},
    network_check::{
        ComputeKind, ComputeTime, Deadlines, LocalCheck, LocalFault, OnBadPath, Probed, Tainting,
    },
};
use rules::{
    NodeId, NodeRank, Round, RunId,
    check_order::{CheckOrder, CheckReport, CheckRound, Checked, Partner, Test},
    check_terms::{CheckTerms, OnInconclusive},
    fence::{FenceTerms, Juror},
    job::{Claim, Event, NodeEnd, WorkersState},
    node::{Accelerators, JoinRequest, NodeAttributes, NodeName, Terms},
    pending::Pending,
    push::Push,
    verdict::{CutEnd, JobFailure, JobVerdict, RefusedNodes},
    world::Assignment,
};

use prost::Message as _;

use super::*;
use crate::{MAX_REQUEST_BYTES, pb};

fn assignment() -> Assignment {
    Assignment {
        round: Round(3),
        node_rank: NodeRank(1),
        nodes: 2,
        local_world_size: 8,
        role: "default".into(),
        first_rank: 8,
        world_size: 16,
        first_role_rank: 8,
        role_world_size: 16,
        master_addr: "10.0.0.1".into(),
        master_port: 29500,
        restore_from_disk: true,
        fence: Some(fence()),
        restore: Vec::new(),
    }
}

fn fence() -> FenceTerms {
    let juror = Juror { node: NodeId("b".into()), address: "10.0.0.2".into(), port: 4711 };
    FenceTerms { lease: Duration::from_secs(15), jury: vec![juror], is_master_within: true }
}

fn request(wish: Option<u32>) -> JoinRequest {
    JoinRequest {
        node_id: NodeId("a".into()),
        wish: wish.map(NodeRank),
        local_world_size: 8,
        role: "default".into(),
        address: "10.0.0.2".into(),
        node_ip: Some("192.168.0.2".into()),
        terms: Terms {
            run_id: RunId("job".into()),
            min_nodes: 2,
            max_nodes: 4,
            node_unit: 2,
            last_call: Duration::from_millis(2500),
            join_timeout: Duration::from_secs(600),
            require_uniform: true,
            check: Some(check()),
            hang: None,
            save_at_breakpoint: true,
        },
        attributes: NodeAttributes {
            host_name: "host-a".into(),
            addresses: vec!["10.0.0.2".into()],
            k8s_node_name: Some("k".into()),
            pod_name: None,
            boot_id: "b".into(),
            accelerators: Some(Accelerators { kind: "nvidia".into(), count: 8 }),
        },
        after: Some(Round(2)),
        checked: Some(checked(None)),
        question_port: 4711,
        shards: Vec::new(),
    }
}

fn check() -> CheckTerms {
    CheckTerms {
        exclude_straggler: true,
        straggler_permille: 2500,
        max_rounds: 8,
        deadlines: Deadlines::native(),
        has_command: true,
        measures_bandwidth: true,
        reuse_for: Duration::from_secs(60),
        on_inconclusive: OnInconclusive::Proceed,
        taint_flaky: Tainting::Never,
        on_bad_path: OnBadPath::Fail,
    }
}

fn checked(fault: Option<LocalFault>) -> Checked {
    let notes = vec!["switchbox pair 3:5: slow".to_owned()];
    let kind = ComputeKind::Cublas { model: "NVIDIA H100".to_owned() };
    let compute = Some(ComputeTime { time: Duration::from_micros(1234), kind });
    Checked { local: LocalCheck { fault, compute, notes }, port: 4000 }
}

fn order() -> CheckOrder {
    CheckOrder {
        at: CheckRound { check: 1, round: 2 },
        test: Test::AllReduce { bytes: 4 },
        address: "10.0.0.2".into(),
        me: 1,
        size: 2,
        partners: vec![Partner { number: 0, name: name(), address: "10.0.0.1".into(), port: 4001 }],
        seed: u64::MAX,
        compute_again: 2,
        timeout: Duration::from_millis(1500),
    }
}

fn name() -> NodeName {
    NodeName {
        rank: Some(NodeRank(0)),
        host: "h".into(),
        address: "10.0.0.1".into(),
        node_id: NodeId("n".into()),
    }
}

#[test]
fn every_push_survives_the_wire() {
    let failed = |failure| Push::JobEnd(JobVerdict::Failed(failure));
    let (beat, timeout) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)));
    let welcomes = [
        Payload::Welcome { beat: None, session: 0, timeout: None },
        Payload::Welcome { beat, session: u64::MAX, timeout },
    ];
    let pushes = [
        Push::Host { round: Round(1), fresh_port: true },
        Push::Assigned(assignment()),
        Push::Regroup { round: Round(2), why: "w".into(), is_secondary: true },
        Push::Refused { reason: "full".into() },
        Push::JobEnd(JobVerdict::Succeeded),
        failed(JobFailure::Node { node: name(), reason: "r".into() }),
        failed(JobFailure::MasterLeft { node: name(), reason: "r".into() }),
        failed(JobFailure::TimedOut {
            joined: 1,
            needed: 2,
            waited: Duration::from_secs(9),
            missing: Some([1, 3, 4].into_iter().map(NodeRank).collect()),
            losses: vec!["l".into()],
            refused: Some(Box::new(RefusedNodes { nodes: 2, last: name(), reason: "r".into() })),
        }),
        failed(JobFailure::Exhausted { rank: NodeRank(2), node: name(), limit: 3, reason: "r".into() }),
        failed(JobFailure::Stopped { signal: 2 }),
        failed(JobFailure::Inconclusive { named: vec![name()], of: 2, nodes: 3, why: "w".into() }),
        failed(JobFailure::MassFailure { faults: 4, limit: 2, nodes: 6 }),
        failed(severed(CutEnd::TooFew)),
        failed(severed(CutEnd::Policy)),
        failed(severed(CutEnd::WithoutMaster(name()))),
        Push::Check(order()),
        Push::Check(CheckOrder { test: Test::Pair, ..order() }),
        Push::CancelCheck(CheckRound { check: 1, round: 2 }),
        Push::CheckOver { message: "w".into() },
        Push::Excluded(Exclusion {
            verdict: "fault".into(),
            evidence: "e".into(),
            look_at: "l".into(),
            is_inconclusive: true,
        }),
        Push::Pending(Pending::Spare { nodes: 4, lacking: 2 }),
        Push::Pending(Pending::Fenced {
            nodes: vec![request(Some(1)).name()],
            more: 2,
            lease: Duration::from_secs(15),
            waited: Duration::from_secs(3),
            limit: Duration::from_secs(600),
        }),
        Push::Pending(Pending::OtherJob {
            point: "the job has rdzv-id=a, the joining node has rdzv-id=b".into(),
        }),
        Push::Pending(Pending::Gathering {
            joined: 1,
            needed: 4,
            most: 8,
            missing: None,
            stopping: 2,
            starts_in: Some(Duration::from_secs(2)),
            waited: Duration::from_secs(1),
            limit: Duration::from_secs(600),
        }),
    ];
    for payload in welcomes.into_iter().chain(pushes.map(Payload::Push)) {
        let message = StreamMessage { epoch: 7, seq: 9, payload: Some(payload) };
        assert_eq!(StreamMessage::try_from(pb::StreamMessage::from(message.clone())), Ok(message));
    }
}

#[test]
fn every_report_of_a_test_survives_the_wire() {
    let node = NodeId("a".into());
    let at = CheckRound { check: 3, round: 1 };
    for probed in [
        Probed::Passed {
            comm: Duration::from_micros(1500),
            latency: Duration::from_nanos(1700),
            bytes_per_second: 1 << 40,
        },
        Probed::Failed { reason: "r".into() },
        Probed::Unfinished {
            bytes: 1,
            total: 2,
            elapsed: Duration::from_secs(2),
            idle: Duration::from_millis(3),
        },
    ] {
        for compute in [None, Some(Vec::new()), Some(vec![Duration::from_micros(9).into()])] {
            let report = CheckReport { at, probed: probed.clone(), compute };
            let wire = check_report(node.0.clone(), report.clone(), false);
            assert_eq!(Event::try_from(wire), Ok(Event::CheckReported { node: node.clone(), report }));
        }
        let report = CheckReport { at, probed: probed.clone(), compute: Some(Vec::new()) };
        let wire = check_report("a".into(), report, true);
        let event = Event::CheckProgressed { node: node.clone(), at, probed };
        assert_eq!(Event::try_from(wire), Ok(event));
    }
}

/// A test needs two nodes.
#[test]
fn an_order_for_fewer_than_two_is_refused() {
    for size in [0, 1, MAX_NODES + 1] {
        let wire = pb::CheckOrder { size, me: 0, ..pb::CheckOrder::from(order()) };
        let error = CheckOrder::try_from(wire).unwrap_err().to_string();
        assert_eq!(error, format!("check.size is {size}; expected 2 to 65536"));
    }
}

/// What a node says of itself is cut to what one request may hold: a node that may not join for its own words waits for
/// ever.
#[test]
fn much_that_a_node_says_of_itself_fits_into_a_request() {
    let fault = LocalFault::new("gpu ä".repeat(100), "ä".repeat(9000));
    let long = checked(Some(fault));
    let local = LocalCheck { notes: vec!["ä".repeat(3000); 100], ..long.local };
    let wire = pb::Checked::from(Checked { local, ..long });
    assert!(wire.encoded_len() < MAX_REQUEST_BYTES * 3 / 4, "{}", wire.encoded_len());
    let read = Checked::try_from(wire).unwrap().local;
    assert_eq!((read.notes.len(), read.notes[0].len()), (64, 512));
    assert_eq!(
        read.fault.map(|fault| (fault.component.as_str().len(), fault.reason.len())),
        Some((256, 4096))
    );
}

/// On a machine without Kubernetes the variables that they come from may hold anything.
#[test]
fn names_that_are_none_of_kubernetes_are_not_sent() {
    let attributes = NodeAttributes {
        k8s_node_name: Some("n".repeat(MAX_NAME)),
        pod_name: Some("p".repeat(MAX_NAME + 1)),
        ..NodeAttributes::default()
    };
    let read = NodeAttributes::try_from(pb::NodeAttributes::from(attributes)).unwrap();
    assert_eq!((read.k8s_node_name, read.pod_name), (Some("n".repeat(MAX_NAME)), None));
}

fn severed(why: CutEnd) -> JobFailure {
    JobFailure::Cut { message: "a and b".into(), fit: 2, nodes: 4, needed: 3, why }
}

#[test]
fn every_choice_of_a_check_survives_the_wire_and_one_that_is_not_said_is_refused() {
    for taint_flaky in [Tainting::Now, Tainting::Confirmed, Tainting::Never] {
        for on_bad_path in [OnBadPath::Exclude, OnBadPath::Fail, OnBadPath::Proceed] {
            let said = CheckTerms { taint_flaky, on_bad_path, ..check() };
            assert_eq!(CheckTerms::try_from(pb::CheckTerms::from(said.clone())), Ok(said));
        }
    }
    let refused = |wire: pb::CheckTerms| CheckTerms::try_from(wire).unwrap_err().to_string();
    for nonsense in [0, 4, -1] {
        let wire = pb::CheckTerms { taint_flaky: nonsense, ..check().into() };
        assert_eq!(refused(wire), "terms.check.taint_flaky is missing");
        let wire = pb::CheckTerms { on_bad_path: nonsense, ..check().into() };
        assert_eq!(refused(wire), "terms.check.on_bad_path is missing");
    }
}

#[test]
fn a_fault_of_its_own_survives_the_wire_and_nonsense_of_a_check_does_not() {
    let fault = LocalFault::new("GPU 3", "r");
    let broken = checked(Some(fault));
    assert_eq!(Checked::try_from(pb::Checked::from(broken.clone())), Ok(broken));
    let terms = |straggler_permille| pb::CheckTerms {
        straggler_permille,
        on_inconclusive: pb::OnInconclusive::Fail.into(),
        taint_flaky: pb::Tainting::Now.into(),
        on_bad_path: pb::OnBadPath::Exclude.into(),
        deadlines: Some(pb::CheckDeadlines::default()),
        ..Default::default()
    };
    assert_eq!(
        CheckTerms::try_from(terms(1000)).unwrap_err().to_string(),
        "terms.check.straggler_permille is 1000; expected above 1000"
    );
    let many = pb::CheckReport {
        compute_micros: vec![1; 17],
        ..check_report(
            "a".into(),
            CheckReport {
                at: CheckRound { check: 0, round: 0 },
                probed: Probed::Failed { reason: String::new() },
                compute: Some(Vec::new()),
            },
            false,
        )
    };
    assert_eq!(Event::try_from(many).unwrap_err().to_string(), "compute_micros has 17 entries (maximum: 16)");
    let endless = pb::CheckOrder { size: u32::MAX, ..pb::CheckOrder::from(order()) };
    assert_eq!(
        CheckOrder::try_from(endless).unwrap_err().to_string(),
        "check.size is 4294967295; expected 2 to 65536"
    );
    let beyond = pb::CheckOrder { me: 2, ..pb::CheckOrder::from(order()) };
    assert_eq!(
        CheckOrder::try_from(beyond).unwrap_err().to_string(),
        "check.me is 2; expected less than check.size"
    );
}

#[test]
fn a_push_of_a_newer_master_is_no_error() {
    let push = pb::StreamMessage { epoch: 1, seq: 2, payload: None };
    assert_eq!(StreamMessage::try_from(push), Ok(StreamMessage { epoch: 1, seq: 2, payload: None }));
}

#[test]
fn an_assignment_is_small() {
    use prost::Message as _;
    let payload = Some(Payload::Push(Push::Assigned(assignment())));
    let push = StreamMessage { epoch: u64::MAX, seq: 1 << 20, payload };
    let bytes = pb::StreamMessage::from(push).encoded_len();
    assert!(bytes <= 100, "{bytes}");
}

#[test]
fn a_request_survives_the_wire_and_a_wish_for_rank_zero_is_not_no_wish() {
    for wish in [None, Some(0)] {
        let join = Join::try_from(join_request(request(wish))).unwrap();
        assert_eq!(join.from_peer(|| unreachable!("it gave an address")), request(wish));
    }
    let nameless = JoinRequest { address: String::new(), ..request(None) };
    let join = Join::try_from(join_request(nameless)).unwrap();
    assert_eq!(join.from_peer(|| "10.9.9.9".into()).address, "10.9.9.9");
}

#[test]
fn a_claim_survives_the_wire() {
    for workers_state in [WorkersState::Running, WorkersState::Stopping, WorkersState::Succeeded] {
        let claim = Claim {
            fence: Some(fence()),
            round: Round(4),
            node_rank: NodeRank(1),
            nodes: 2,
            master_addr: "h".into(),
            master_port: 5,
            workers_state,
        };
        let wire = pb::ResumeRequest::from((request(Some(1)), claim.clone()));
        let event = Event::Resumed { request: request(Some(1)), claim };
        assert_eq!(resume_request(wire, String::new), Ok(event));
    }
}

#[test]
fn every_end_survives_the_wire() {
    for end in [
        NodeEnd::Succeeded { round: Round(1) },
        NodeEnd::Failed { reason: "r".into() },
        NodeEnd::Left { signal: 15 },
    ] {
        let node = NodeId("a".into());
        let event = Event::NodeEnded { node: node.clone(), end: end.clone() };
        assert_eq!(Event::try_from(end_report(&node, end)), Ok(event));
    }
}

#[test]
fn nonsense_is_refused_with_the_field_and_the_value() {
    let refused = |wire: pb::JoinRequest| Join::try_from(wire).unwrap_err().to_string();
    let wire = || join_request(request(None));
    assert_eq!(
        refused(pb::JoinRequest { local_world_size: 0, ..wire() }),
        "local_world_size is 0; expected 1 to 65536"
    );
    assert_eq!(
        refused(pb::JoinRequest { after_round: Some(u32::MAX), ..wire() }),
        "after_round is 4294967295; expected at most 2147483648"
    );
    assert_eq!(refused(pb::JoinRequest { terms: None, ..wire() }), "terms is missing");
    assert_eq!(
        refused(pb::JoinRequest { role: "x".repeat(300), ..wire() }),
        "role has 300 bytes (maximum: 256)"
    );
    let terms =
        |min_nodes, max_nodes, node_unit| pb::Terms { min_nodes, max_nodes, node_unit, ..Default::default() };
    assert_eq!(
        Terms::try_from(terms(3, 2, 1)).unwrap_err().to_string(),
        "terms.min_nodes is 3; expected 1 to max_nodes"
    );
    assert_eq!(
        Terms::try_from(terms(1, 2, 3)).unwrap_err().to_string(),
        "terms.node_unit is 3; expected 1 to max_nodes"
    );
    let hosting = pb::HostingReport { node_id: "a".into(), master_port: 70_000, ..Default::default() };
    assert_eq!(
        Event::try_from(hosting).unwrap_err().to_string(),
        "master_port is 70000; expected 1 to 65535"
    );
    assert_eq!(
        Event::try_from(pb::EndReport { node_id: "a".into(), end: None }).unwrap_err().to_string(),
        "end is missing"
    );
    assert_eq!(sender(String::new()), Err(ConvertError::Missing { field: "node_id" }));
}

#[test]
fn a_long_sentence_is_cut_at_a_letter() {
    let words = cut("ä".repeat(3000));
    assert_eq!((words.len(), words.chars().last()), (4096, Some('ä')));
}

#[test]
fn an_inventory_comes_through_whole_and_nonsense_is_refused() {
    let gpu = Gpu { index: 1, trouble: Some(GpuTrouble::Lost), memory_used: Some(7), ..Gpu::default() };
    let links = vec![GpuLink { a: 0, b: 1, link: "NV4".parse().unwrap() }];
    let inventory = Inventory { vendor: Some(Vendor::Metax), gpus: vec![gpu], links, ..Inventory::default() };
    let wire = inventory_report("a".into(), &inventory);
    let node = NodeId("a".into());
    let told = Event::InventoryReported { node, inventory: Box::new(inventory.clone()) };
    assert_eq!(Event::try_from(wire.clone()), Ok(told));
    for json in ["", "[]", "{\"gpus\":3}", "{\"links\":[{\"a\":0,\"b\":1,\"link\":\"P2P\"}]}"] {
        let wire = pb::InventoryReport { json: json.into(), ..wire.clone() };
        assert!(matches!(Event::try_from(wire), Err(ConvertError::Document { .. })), "{json}");
    }
    let long = pb::InventoryReport { json: " ".repeat(64 << 10), ..wire };
    assert!(matches!(Event::try_from(long), Err(ConvertError::TooLong { .. })));
}

/// Of letters that JSON doubles, and of letters of four bytes.
#[test]
fn the_longest_inventory_is_cut_to_what_the_master_takes() {
    for letter in ["\"", "\\", "\u{10000}"] {
        let words = || letter.repeat(300);
        let gpu = |index: usize| Gpu {
            index: u32::MAX,
            name: Some(words()),
            uuid: Some(words()),
            pci: Some(words()),
            memory_total: Some(u64::MAX),
            memory_used: Some(u64::MAX),
            processes: vec![GpuProcess { pid: u32::MAX, memory: Some(u64::MAX) }; 100],
            throttled: vec![words(); 100],
            ecc_uncorrected: Some(u64::MAX),
            remapped: Some(RemappedRows {
                correctable: u32::MAX,
                uncorrectable: u32::MAX,
                pending: true,
                failed: false,
            }),
            nvlinks: vec![NvLink { number: u32::MAX, is_active: false }; 100],
            xids: vec![Xid { code: u64::MAX, count: u32::MAX }; 100],
            numa_node: u32::try_from(index).ok(),
            trouble: Some(GpuTrouble::CannotOpen(words())),
            ..Gpu::default()
        };
        let link = GpuLink { a: u32::MAX, b: u32::MAX, link: "NV18".parse().unwrap() };
        let longest = Inventory {
            gpus: (0..2 * MAX_GPUS).map(gpu).collect(),
            links: vec![link; 10_000],
            notes: vec![words(); 100],
            hangs_at: Some(words()),
            ..Inventory::default()
        };
        let wire = inventory_report("a".into(), &longest.bounded());
        assert!(wire.encoded_len() <= MAX_REQUEST_BYTES, "{}", wire.encoded_len());
        let Event::InventoryReported { inventory, .. } = Event::try_from(wire).unwrap() else { panic!() };
        assert_eq!(inventory.gpus.len(), MAX_GPUS);
    }
}

#[test]
fn a_fence_that_makes_no_sense_is_refused() {
    let good = pb::Fence::from(fence());
    assert_eq!(FenceTerms::try_from(good.clone()), Ok(fence()));
    let juror = good.jury[0].clone();
    for wrong in [
        pb::Fence { lease_millis: 0, ..good.clone() },
        pb::Fence { lease_millis: u64::MAX, ..good.clone() },
        pb::Fence { jury: vec![juror.clone(); 32], ..good.clone() },
        pb::Fence { jury: vec![pb::Juror { port: 0, ..juror.clone() }], ..good.clone() },
        pb::Fence { jury: vec![pb::Juror { node_id: String::new(), ..juror.clone() }], ..good.clone() },
    ] {
        assert!(FenceTerms::try_from(wrong.clone()).is_err(), "{wrong:?}");
    }
}
