//! Writes the corpora's first inputs, `fuzz/corpus/TARGET/seed-*`, with the encoders of this build: `cargo run -p
//! dlrover-inputs --example seeds`. To be run again when the wire, the journal or the guard's frames change.

use std::{fs, io, path::PathBuf, time::Duration};

use agent::frame::{FromGuard, ToGuard, WorkerSpec, encode};
use checkpoint::{
    job::Order,
    manifest::Manifest,
    message::{
        Dir, Endpoint, Fetch, FetchSource, FetchedStep, Format, RestorePoint, RestoreSource, ShardFile,
        ShardState,
    },
};
use diagnosis::{
    exclusion::Exclusion,
    gpus::{Gpu, GpuProcess, GpuTrouble, Inventory, NvLink, Vendor},
    network_check::{ComputeTime, Deadlines, LocalCheck, LocalFault, OnBadPath, Probed, Tainting},
};
use dlrover_inputs::{
    TARGETS, journal,
    steps::{self, Step},
};
use master::journal_bytes;
use master_proto::{
    convert::{
        Payload, StreamMessage, check_report, checkpoint_report, detail_report, end_report, inventory_report,
        join_request,
    },
    pb,
};
use probes::readers;
use prost::Message;
use rules::{
    LocalRank, Moment, NodeId, NodeRank, Rank, Round, RunId,
    check_order::{CheckOrder, CheckReport, CheckRound, Checked, Partner, Test},
    check_terms::{CheckTerms, OnInconclusive},
    checkpoints::CheckpointReport,
    failure::{ExitCause, WorkerFailure},
    job::{Claim, Event, NodeEnd, WorkersState},
    last_lines::Output,
    node::{Accelerators, JoinRequest, NodeAttributes, NodeName, Terms},
    pending::Pending,
    push::Push,
    root_cause::{FailureDetail, RootCause},
    verdict::{JobFailure, JobVerdict},
    world::Assignment,
};
use stacks::{Frame, RankDump, Thread};
use store::Request;

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    for (target, _) in TARGETS {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (number, seed) in seeds(target).into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), seed)?;
        }
    }
    Ok(())
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let texts = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    match target {
        "check_command" => texts(&[
            r#"{"version":1,"comm_ms":12.5,"latency_us":50,"bytes_per_second":1e9,"checksum_ok":true}"#,
            r#"{"version":2,"comm_ms":-1e300}"#,
            r#"{"progress":{"bytes":5,"total":9}}"#,
            r#"{"version":1,"comm_ms":1,"checksum_ok":false}"#,
        ]),
        "ckpt_line" => texts(&[
            r#"{"type":"hello","v":1,"run_id":"j","dir":"/ckpt","rank":1,"world":2,"local_rank":1,"shard":1,"n_shards":2,"replicated":false,"role":"writer","round":0,"format":"dcp","keep":{"latest":3}}"#,
            r#"{"type":"alloc","bytes":8192,"layout_id":7}"#,
            r#"{"type":"begin","step":10,"layout_id":7,"wait":true}"#,
            r#"{"type":"commit","step":10,"slot":1,"storage":"disk","path":"","writes_disk":true}"#,
            r#"{"type":"load","step":null}"#,
            r#"{"type":"wait","step":10,"timeout_s":1.5}"#,
            r#"{"type":"workers_gone","round":3}"#,
            r#"{"type":"log","level":"warn","text":"slow"}"#,
            r#"{"type":"finished"}"#,
        ]),
        "ckpt_manifest" => texts(&[
            r#"{"version":1,"step":7,"world":2,"n_shards":1,"replicated":true,"format":"pt","shards":[{"shard":0,"rank":0,"n_shards":1,"world":2,"replicated":true,"format":"pt","file":"7/rank_0.pt","bytes":10,"chunk_bytes":67108864,"crc32":[1]}]}"#,
            "7",
            "7\n",
        ]),
        "ckpt_slot" => vec![
            [
                &b"DLRFCKP1\x01\0\0\0\0\x10\0\0"[..],
                &[0; 4080],
                br#"{"tensors":[["w","float32",[2],0,8,0],["v","bfloat16",[1,2],64,4]],"tree":{"d":[["w",{"T":0}],["v",{"l":[{"T":1},{"f":"0x1p-1"},{"i":"99"}]}]]}}"#,
            ]
            .concat(),
        ],
        "error_file" => texts(&[
            r#"{"message":{"message":"ValueError: boom","extraInfo":{"py_callstack":"Traceback\n  x","timestamp":"1763683200"}}}"#,
            r#"{"message":"text","timestamp":123}"#,
            r#"{"message":{"message":[1,null]}}"#,
        ]),
        "gate" => messages().into_iter().map(|(kind, bytes)| [vec![kind], bytes].concat()).collect(),
        "gpu_topology" => tables(),
        "guard" => frames(),
        "inventory" => vec![serde_json::to_vec(&inventory()).unwrap_or_default()],
        "job" => jobs(),
        "journal" => journals(),
        "journal_header" => vec![journal_bytes::header(), b"DLRVJRNL".to_vec()],
        "mx_smi" => texts(&[
            "GPU#0 MXC500 0000:0E:00.0 Available (UUID: GPU-aa)\nGPU#1 MXC600-AL 0000:0f:00.0 Unavailable\n----\n\
             GPU#1 MXC500\n vis_vram total : 67108864 KB\n vis_vram used  : 846264 KB\n",
        ]),
        "nvidia_smi" => texts(&[
            "0, GPU-aa, 00000000:3B:00.0, 1024, 81559\n1, GPU-bb, 00000000:3C:00.0, [N/A], [N/A]\n",
            "No devices were found\n",
        ]),
        "proc_stat" => texts(&[
            "1234 (a (b) c) S 1 1234 1200 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 77 1 1 1\n",
            "7 (python3) Z 1 7 7 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 18446744073709551615\n",
        ]),
        "ring_meet" => {
            let words = readers::ring_hellos(7);
            words.iter().flat_map(|word| [[&[0], &word[..]].concat(), [&[1], &word[..]].concat()]).collect()
        }
        "stack_json" => stack_documents().iter().map(|dump| dump.to_json().into_bytes()).collect(),
        "stack_upstream" => vec![
            // A native thread, a Python thread, the pid and the state.
            b"\x0a\x1d\x08\x4d\x12\x06python\x1a\x11\x0a\x04poll\x12\x09libc.so.6\
              \x12\x1e\x1a\x04Main\x3a\x16\x0a\x08<module>\x12\x0atrain.py:5\x18\x4d\x5a\x0cS (sleeping)"
                .to_vec(),
            b"\x18\x4d\x5a\x0eD (disk sleep)".to_vec(),
        ],
        "store" => stores(),
        "switchbox" => [
            "bandwidth:50040.0MB/s\n",
            r#"{"v":1,"probe":"p","devices":8,"results":[{"pair":[0,1],"dir":"ab","mbps":50040.0,"path":"metaxlink","verified":true,"err":null},{"pair":[0,1],"dir":"ba","mbps":5.0,"gpus":["a","b"]}]}"#,
            r#"{"v":1,"results":[{"pair":[0,1],"dir":"ab","err":"no such device: 9"}]}"#,
            "num_cpu_nodes 2\nmgpu_id 3\n",
        ]
        .iter()
        .map(|text| [&[0, 1, 0], text.as_bytes()].concat())
        .collect(),
        "topology" => texts(&["# asw psw ip\na1 p1 10.0.0.1\na1 p1 ::ffff:10.0.0.2\n\na2 p1 10.0.0.3\n"]),
        _ => Vec::new(),
    }
}

fn stack_documents() -> Vec<RankDump> {
    let frame =
        |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
    let torch = "/x/site-packages/torch/distributed/distributed_c10d.py";
    let waiting = vec![frame("all_reduce", torch, Some(1)), frame("<module>", "train.py", Some(5))];
    let native = vec![frame("c10d::Work::wait", "libtorch.so", None), frame("main", "??", None)];
    let whole = RankDump {
        host: "h".into(),
        pid: Some(77),
        state: Some("S (sleeping)".into()),
        wchan: Some("do_poll".into()),
        syscall: Some("poll".into()),
        python: vec![Thread { name: "MainThread".into(), frames: waiting }],
        native: vec![Thread { name: "python".into(), frames: native }],
        ..RankDump::new(3, 8)
    };
    vec![whole, RankDump::gone(3, 8), RankDump::unread(3, 8, "no reply")]
}

fn tables() -> Vec<Vec<u8>> {
    let fixtures =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../diagnosis/src/gpu_topology/fixtures");
    let names = ["a_dgx1v", "d_pcie", "e_bridges_4", "f_c500"];
    let read = |name: &str| fs::read(fixtures.join(format!("{name}.txt"))).unwrap_or_default();
    let mut tables: Vec<Vec<u8>> = names.iter().map(|name| read(name)).collect();
    tables.push(b"0,9.5,3\n9.5,X,3\n3,3,-\n".to_vec());
    tables.push(b"GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV2 0-3 1\nGPU1 NV2 X 0-3 N/A\n".to_vec());
    tables.into_iter().map(|table| [&[2], &table[..]].concat()).collect()
}

fn frames() -> Vec<Vec<u8>> {
    let round = Round(3);
    let worker = ToGuard::Worker(WorkerSpec {
        local_rank: LocalRank(1),
        argv: vec![b"python3".to_vec(), vec![0xff, 0xfe]],
        env: vec![(b"A".to_vec(), b"xx".to_vec())],
        cpus: vec![0, 3],
        has_stdout: true,
        has_stderr: false,
    });
    let rest = [
        ToGuard::End,
        ToGuard::SignalTree { signal: 15 },
        ToGuard::SignalWorkers { signal: 2 },
        ToGuard::KillWorker { local_rank: LocalRank(0) },
        ToGuard::KillTree,
    ];
    let exit = |cause| rules::worker_group::WorkerExit {
        local_rank: LocalRank(0),
        pid: 77,
        cause,
        unix_secs: 1_763_683_200,
    };
    let from = [
        FromGuard::Started { round, local_rank: LocalRank(0), pid: 77 },
        FromGuard::CannotStart { round, local_rank: LocalRank(0), errno: 2 },
        FromGuard::Exited { round, exit: exit(ExitCause::Code(1)), noticed: Duration::from_millis(7) },
        FromGuard::Exited { round, exit: exit(ExitCause::Signal(9)), noticed: Duration::ZERO },
        FromGuard::TreeGone { round },
    ];
    let to: Vec<Vec<u8>> =
        [ToGuard::Begin { round }, worker].iter().chain(&rest).filter_map(|it| encode(it).ok()).collect();
    let from: Vec<Vec<u8>> = from.iter().filter_map(|it| encode(it).ok()).collect();
    vec![[vec![0], to.concat()].concat(), [vec![1], from.concat()].concat()]
}

fn stores() -> Vec<Vec<u8>> {
    let (key, value) = (|| "/k1".into(), || "v1".into());
    let all = [
        Request::Set { key: key(), value: value() },
        Request::CompareSet { key: key(), expected: value(), desired: value() },
        Request::Get(key()),
        Request::Add { key: key(), delta: -2 },
        Request::Check(vec![key()]),
        Request::Wait(vec![key(), key()]),
        Request::CountKeys,
        Request::Delete(key()),
        Request::Append { key: key(), value: value() },
        Request::MultiGet(vec![key()]),
        Request::MultiSet(vec![(key(), value()), (key(), value())]),
        Request::CancelWait,
        Request::Ping { nonce: 7 },
        Request::QueuePush { key: key(), value: value() },
        Request::QueuePop(key()),
        Request::QueueLen(key()),
        Request::ListKeys,
        Request::Barrier { key: key(), world_size: 2 },
    ];
    all.chunks(3)
        .map(|requests| {
            let mut bytes = vec![5];
            Request::Validate.encode(&mut bytes);
            requests.iter().for_each(|request| request.encode(&mut bytes));
            bytes
        })
        .collect()
}

fn terms(nodes: u32, check: Option<CheckTerms>) -> Terms {
    Terms {
        run_id: RunId("job".into()),
        min_nodes: 1,
        max_nodes: nodes,
        node_unit: 1,
        last_call: Duration::from_secs(1),
        join_timeout: Duration::from_secs(600),
        require_uniform: false,
        check,
        hang: None,
        save_at_breakpoint: false,
    }
}

fn check() -> CheckTerms {
    CheckTerms {
        exclude_straggler: true,
        straggler_permille: 2500,
        max_rounds: 8,
        deadlines: Deadlines::native(),
        has_command: false,
        measures_bandwidth: true,
        reuse_for: Duration::from_secs(60),
        on_inconclusive: OnInconclusive::Proceed,
        taint_flaky: Tainting::Now,
        on_bad_path: OnBadPath::Exclude,
    }
}

fn request(node: &str, terms: Terms) -> JoinRequest {
    let has_check = terms.check.is_some();
    let local = LocalCheck {
        fault: None,
        compute: Some(ComputeTime::from(Duration::from_micros(1234))),
        notes: vec!["switchbox pair 3:5: slow".to_owned()],
    };
    JoinRequest {
        node_id: NodeId(node.into()),
        wish: None,
        local_world_size: 2,
        role: "default".into(),
        address: format!("10.0.0.{}", node.len()),
        node_ip: None,
        terms,
        attributes: NodeAttributes {
            host_name: format!("host-{node}"),
            addresses: vec!["10.0.0.2".into()],
            k8s_node_name: Some("k".into()),
            pod_name: None,
            boot_id: node.into(),
            accelerators: Some(Accelerators { kind: "nvidia".into(), count: 8 }),
        },
        after: None,
        checked: has_check.then_some(Checked { local, port: 4000 }),
        question_port: 4711,
        shards: Vec::new(),
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

fn inventory() -> Inventory {
    let gpu = |index| Gpu {
        index,
        name: Some("NVIDIA H100".into()),
        uuid: Some("GPU-aa".into()),
        pci: Some("0000:3b:00.0".into()),
        ..Gpu::default()
    };
    let trouble = Some(GpuTrouble::CannotOpen("lost".into()));
    let _shapes = (std::any::type_name::<GpuProcess>(), std::any::type_name::<NvLink>());
    Inventory {
        vendor: Some(Vendor::Nvidia),
        driver: Some("550".into()),
        gpus: vec![gpu(0), Gpu { trouble, ..gpu(1) }],
        notes: vec!["n".into()],
        ..Inventory::default()
    }
}

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
        fence: None,
        restore: vec![RestorePoint {
            dir: checkpoint_dir(),
            step: 40,
            source: RestoreSource::Disk,
            pending: Some(50),
            given_up: 1,
            fetched: Some(FetchedStep { step: 60, fetches: vec![(0, shard_fetch())], void: vec![0] }),
        }],
    }
}

fn payloads() -> Vec<Payload> {
    let order = CheckOrder {
        at: CheckRound { check: 1, round: 2 },
        test: Test::AllReduce { bytes: 4 },
        address: "10.0.0.2".into(),
        me: 1,
        size: 2,
        partners: vec![Partner { number: 0, name: name(), address: "10.0.0.1".into(), port: 4001 }],
        seed: u64::MAX,
        compute_again: 2,
        timeout: Duration::from_millis(1500),
    };
    let node = JobFailure::Node { node: name(), reason: "r".into() };
    let exclusion = Exclusion {
        verdict: "fault".into(),
        evidence: "e".into(),
        look_at: "l".into(),
        is_inconclusive: true,
    };
    let (beat, timeout) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)));
    let pushes = [
        Push::Host { round: Round(1), fresh_port: true },
        Push::Assigned(assignment()),
        Push::Regroup { round: Round(2), why: "w".into(), is_secondary: true },
        Push::Refused { reason: "full".into() },
        Push::RootCause(Box::new(RootCause { round: Round(2), node: name(), detail: failure_detail() })),
        Push::JobEnd(JobVerdict::Succeeded),
        Push::JobEnd(JobVerdict::Failed(node)),
        Push::JobEnd(JobVerdict::Failed(JobFailure::Inconclusive {
            named: vec![name()],
            of: 2,
            nodes: 3,
            why: "w".into(),
        })),
        Push::Pending(Pending::Spare { nodes: 4, lacking: 2 }),
        Push::Check(order),
        Push::CancelCheck(CheckRound { check: 1, round: 2 }),
        Push::Excluded(exclusion),
        Push::Checkpoint(Order::Commit { dir: checkpoint_dir(), step: 40, manifest: Box::new(manifest()) }),
        Push::Checkpoint(Order::Committed { dir: checkpoint_dir(), step: 40 }),
        Push::Checkpoint(Order::Persist { dir: checkpoint_dir(), step: 40, replicas: vec![1] }),
        Push::Checkpoint(Order::Fetch {
            round: 2,
            dir: checkpoint_dir(),
            step: 40,
            fetch: Box::new(shard_fetch()),
        }),
        Push::Checkpoint(Order::Fetched { round: 2, dir: checkpoint_dir(), step: 40 }),
        Push::Checkpoint(Order::NotFetched {
            round: 2,
            dir: checkpoint_dir(),
            step: 40,
            reason: "no route to host".into(),
        }),
        Push::Checkpoint(Order::Fail {
            dir: checkpoint_dir(),
            step: 40,
            saved_in: 3,
            given_up: 1,
            reason: "r".into(),
        }),
    ];
    let welcome = Payload::Welcome { beat, session: 7, timeout };
    std::iter::once(welcome).chain(pushes.map(Payload::Push)).collect()
}

fn probed() -> [Probed; 3] {
    let (comm, latency) = (Duration::from_micros(1500), Duration::from_nanos(1700));
    let (elapsed, idle) = (Duration::from_secs(2), Duration::from_millis(3));
    [
        Probed::Passed { comm, latency, bytes_per_second: 1 << 40 },
        Probed::Failed { reason: "r".into() },
        Probed::Unfinished { bytes: 1, total: 2, elapsed, idle },
    ]
}

fn claim() -> Claim {
    Claim {
        fence: None,
        round: Round(0),
        node_rank: NodeRank(0),
        nodes: 2,
        master_addr: "10.0.0.1".into(),
        master_port: 29500,
        workers_state: WorkersState::Running,
    }
}

fn hosting(node: &str, round: u32) -> pb::HostingReport {
    pb::HostingReport { node_id: node.into(), round, master_addr: None, master_port: 29500 }
}

fn failure(node: &str, round: u32) -> pb::FailureReport {
    pb::FailureReport {
        node_id: node.into(),
        round,
        reason: "r".into(),
        gives_up: false,
        has_detail: true,
        age_micros: 250,
    }
}

fn failure_detail() -> FailureDetail {
    let failure = WorkerFailure {
        rank: Rank(1),
        local_rank: LocalRank(0),
        pid: 7,
        cause: ExitCause::Code(1),
        unix_secs: 1,
        out_of_memory: false,
    };
    let output = Output::new(b"Traceback (most recent call last):\n  x\nKeyError: 7\n", true);
    FailureDetail::new(failure, None, &output, false)
}

fn detail(node: &str, round: u32) -> pb::DetailReport {
    detail_report(node.into(), Round(round), failure_detail())
}

fn checkpoint_dir() -> Dir {
    Dir::try_from("/ckpt").expect("an absolute path")
}

fn shard_state(shard: u32) -> ShardState {
    ShardState {
        dir: checkpoint_dir(),
        shard,
        n_shards: 2,
        replicated: false,
        world: 2,
        rank: shard,
        steps: vec![30, 40],
        wishes: vec![40],
        disk_step: Some(20),
        replicas: 1,
        is_replica: false,
        layout_id: 5,
        bytes: 4096,
        endpoint: Some(Endpoint { port: 40_000, ticket: "0123456789abcdef".into() }),
        round: Some(7),
        awaits_fetches: true,
    }
}

fn shard_fetch() -> Fetch {
    Fetch {
        shard: 1,
        n_shards: 2,
        replicated: false,
        layout_id: 5,
        bytes: 4096,
        is_replica: true,
        given_up: 1,
        from: FetchSource { address: "10.0.0.2".into(), port: 40_000, ticket: "0123456789abcdef".into() },
    }
}

fn shard_file(shard: u32) -> ShardFile {
    ShardFile {
        shard,
        rank: shard,
        n_shards: 2,
        world: 2,
        replicated: false,
        format: Format::Dcp,
        file: format!("40/__{shard}_0.distcp"),
        bytes: 9,
        chunk_bytes: 64 << 20,
        crc32: vec![7],
        also: Vec::new(),
    }
}

fn manifest() -> Manifest {
    Manifest {
        version: 1,
        step: 40,
        world: 2,
        n_shards: 2,
        replicated: false,
        format: Format::Dcp,
        time: None,
        saved_in: Some(3),
        shards: vec![shard_file(0), shard_file(1)],
    }
}

fn checkpoint(node: &str, report: CheckpointReport) -> Vec<u8> {
    checkpoint_report(node.into(), report).encode_to_vec()
}

fn persisted(shard: u32) -> CheckpointReport {
    let shard = Box::new(shard_file(shard));
    CheckpointReport::Persisted { dir: checkpoint_dir(), step: 40, saved_in: 0, given_up: 0, shard }
}

/// One of each kind, with its number.
fn messages() -> Vec<(u8, Vec<u8>)> {
    let mut all = vec![
        (0, join_request(request("a", terms(4, Some(check())))).encode_to_vec()),
        (1, pb::ResumeRequest::from((request("a", terms(4, None)), claim())).encode_to_vec()),
        (2, hosting("a", 1).encode_to_vec()),
        (3, inventory_report("a".into(), &inventory()).encode_to_vec()),
        (5, failure("a", 1).encode_to_vec()),
        (10, detail("a", 1).encode_to_vec()),
        (9, pb::EndAcknowledgement { node_id: "a".into() }.encode_to_vec()),
        (8, subscribe("a")),
    ];
    let faulty = Checked {
        local: LocalCheck { fault: Some(LocalFault::new("gpu 1", "r")), compute: None, notes: Vec::new() },
        port: 4000,
    };
    let faulty = JoinRequest { checked: Some(faulty), ..request("b", terms(2, Some(check()))) };
    all.push((0, join_request(faulty).encode_to_vec()));
    for probed in probed() {
        let compute = Some(vec![Duration::from_micros(9).into()]);
        all.push((4, reported("a", 0, 0, probed, compute)));
    }
    for end in [
        NodeEnd::Succeeded { round: Round(1) },
        NodeEnd::Failed { reason: "r".into() },
        NodeEnd::Left { signal: 15 },
    ] {
        all.push((6, end_report(&NodeId("a".into()), end).encode_to_vec()));
    }
    let (dir, step) = (checkpoint_dir(), 40);
    for report in [
        CheckpointReport::Kept,
        CheckpointReport::InMemory { shards: vec![shard_state(0), shard_state(1)], last: true },
        persisted(1),
        CheckpointReport::Committed { dir: dir.clone(), step },
        CheckpointReport::WrittenAlone { dir: dir.clone(), step, round: 3 },
        CheckpointReport::Failed { dir, step, shard: Some(1), saved_in: Some(0), reason: "r".into() },
        CheckpointReport::Closed,
    ] {
        all.push((11, checkpoint("a", report)));
    }
    let keeping = JoinRequest { shards: vec![shard_state(0)], ..request("b", terms(2, None)) };
    all.push((0, join_request(keeping).encode_to_vec()));
    for payload in payloads() {
        let message = StreamMessage { epoch: 7, seq: 9, payload: Some(payload) };
        all.push((7, pb::StreamMessage::from(message).encode_to_vec()));
    }
    all
}

fn reported(
    node: &str,
    check: u32,
    round: u32,
    probed: Probed,
    compute: Option<Vec<ComputeTime>>,
) -> Vec<u8> {
    let report = CheckReport { at: CheckRound { check, round }, probed, compute };
    check_report(node.into(), report, false).encode_to_vec()
}

fn subscribe(node: &str) -> Vec<u8> {
    pb::SubscribeRequest { node_id: node.into(), protocol_version: master_proto::PROTOCOL_VERSION }
        .encode_to_vec()
}

/// Messages of whole jobs.
fn jobs() -> Vec<Vec<u8>> {
    let join = |node: &str, terms: Terms| (0, 0, join_request(request(node, terms)).encode_to_vec());
    let end = |node: &str, end| (6, 0, end_report(&NodeId(node.into()), end).encode_to_vec());
    let beat = |node: &str, round| {
        (
            12,
            5,
            pb::BeatRequest { node_id: node.into(), taken_round: Some(round), session: 7 }.encode_to_vec(),
        )
    };
    let subscribe = |node: &str| (8, 0, subscribe(node));
    let begun = |nodes: &[&str], check: Option<CheckTerms>| {
        let mut words = Vec::new();
        for node in nodes {
            words.extend([
                subscribe(node),
                join(node, terms(u32::try_from(nodes.len()).unwrap_or(1), check.clone())),
            ]);
        }
        words
    };
    let hosted = |node: &str, round| (2, 0, hosting(node, round).encode_to_vec());
    let succeeded = NodeEnd::Succeeded { round: Round(0) };
    let well = [
        begun(&["a", "b"], None),
        vec![hosted("a", 0), hosted("b", 0), beat("a", 0), beat("b", 0)],
        vec![end("a", succeeded.clone()), end("b", succeeded), (9, 0, b"\x0a\x01a".to_vec())],
    ];
    let failing = [
        begun(&["a", "b"], None),
        vec![hosted("a", 0), beat("a", 0), beat("b", 0), (5, 0, failure("a", 0).encode_to_vec())],
        vec![(16, 0, detail("a", 0).encode_to_vec())],
        begun(&["a", "b"], None),
        vec![(14, 0, Vec::new()), (11, 0, Vec::new()), (11, 0, Vec::new()), (15, 3, Vec::new())],
        vec![
            subscribe("a"),
            (1, 0, pb::ResumeRequest::from((request("a", terms(2, None)), claim())).encode_to_vec()),
        ],
        vec![(11, 0, Vec::new()), (11, 19, Vec::new())],
    ];
    let passed = || probed()[0].clone();
    let checked = [
        begun(&["a", "b", "c"], Some(check())),
        vec![(3, 0, inventory_report("a".into(), &inventory()).encode_to_vec())],
        ["a", "b", "c"].iter().map(|node| (4, 1, reported(node, 0, 0, passed(), None))).collect(),
        ["a", "b", "c"].iter().map(|node| (4, 1, reported(node, 0, 1, passed(), Some(Vec::new())))).collect(),
        vec![(11, 0, Vec::new()), (11, 0, Vec::new()), hosted("a", 0), (11, 0, Vec::new())],
    ];
    let broken = [
        begun(&["a", "b", "c"], Some(check())),
        vec![
            (4, 1, reported("a", 0, 0, passed(), None)),
            (4, 1, reported("b", 0, 0, probed()[1].clone(), None)),
        ],
        vec![(11, 0, Vec::new()); 12],
        vec![end("c", NodeEnd::Left { signal: 15 }), (11, 0, Vec::new())],
    ];
    let report = |node: &str, report| (17, 0, checkpoint(node, report));
    let in_memory = |shard| CheckpointReport::InMemory { shards: vec![shard_state(shard)], last: false };
    let (dir, step) = (checkpoint_dir(), 40);
    let saved = [
        begun(&["a", "b"], None),
        vec![hosted("a", 0), beat("a", 0), beat("b", 0)],
        vec![report("a", CheckpointReport::Kept), report("b", CheckpointReport::Kept)],
        vec![report("a", in_memory(0)), report("b", in_memory(1))],
        vec![report("a", persisted(0)), report("b", persisted(1))],
        vec![(15, 3, Vec::new()), report("a", CheckpointReport::Committed { dir, step })],
        vec![end("a", NodeEnd::Left { signal: 15 }), end("b", NodeEnd::Left { signal: 15 })],
        vec![report("a", CheckpointReport::Closed), (11, 0, Vec::new()), (11, 0, Vec::new())],
    ];
    let placed = [begun(&["a", "b"], None), vec![(13, 0, b"s p 10.0.0.1\n".to_vec()), (11, 0, Vec::new())]];
    let input = |flags: u8, words: Vec<(u8, u8, Vec<u8>)>| {
        let steps = words.iter().map(|(kind, by, bytes)| Step { kind: *kind, by: *by, bytes });
        [vec![flags], steps::join(steps)].concat()
    };
    vec![
        input(0, well.concat()),
        input(2, failing.concat()),
        input(0, checked.concat()),
        input(4, broken.concat()),
        input(1, placed.concat()),
        input(0, saved.concat()),
    ]
}

fn journals() -> Vec<Vec<u8>> {
    let subscribed = |node: &str| Event::Subscribed { node: NodeId(node.into()) };
    let joined = |node: &str| Event::Joined(request(node, terms(2, None)));
    let records = [
        journal_bytes::first_record(journal::policy()),
        journal_bytes::record_of(vec![
            (Moment::at_secs(1), subscribed("a")),
            (Moment::at_secs(1), joined("a")),
        ]),
        journal_bytes::record_of(vec![
            (Moment::at_secs(2), joined("b")),
            (Moment::at_secs(3), Event::Deadline),
        ]),
    ];
    let whole = records.iter().map(|bytes| Step { kind: 0, by: 0, bytes });
    let file = journal_bytes::file(records[1..].iter().map(|record| &record[..]));
    let behind = &file[journal_bytes::header().len()..];
    let torn = Step { kind: 1, by: 0, bytes: &behind[..behind.len() / 2] };
    let zeros = Step { kind: 1, by: 0, bytes: &[0; 700] };
    vec![steps::join(whole), steps::join([torn]), steps::join([zeros])]
}
