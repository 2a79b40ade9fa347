//! `--gpu-select` on machines that do not exist.

use diagnosis::{
    gpu_topology::Matrix,
    gpus::{Gpu, GpuLink, GpuTrouble, Inventory, Vendor},
};

use super::*;

const TABLE: &str = include_str!("../../../../diagnosis/src/gpu_topology/fixtures/a_dgx1v.txt");
const ISLANDS: &str = include_str!("../../../../diagnosis/src/gpu_topology/fixtures/f_c500.txt");

/// 8 accelerators with the links of a table, some of them busy.
fn inventory(vendor: Vendor, table: &str, busy: &[u32]) -> Inventory {
    let matrix = Matrix::parse(table).unwrap();
    let gpu = |index: u32| Gpu {
        index,
        uuid: Some(format!("GPU-{index}{index}")),
        pci: Some(format!("0000:{index}a:00.0")),
        memory_used: Some(if busy.contains(&index) { 16_000 } else { 3 }),
        memory_total: Some(32_510),
        numa_node: matrix.numa(index as usize),
        ..Gpu::default()
    };
    let pairs = (0..8).flat_map(|a| (a + 1..8).map(move |b| (a, b)));
    let link = |(a, b): (u32, u32)| GpuLink { a, b, link: matrix.link(a as usize, b as usize).unwrap() };
    Inventory {
        vendor: Some(vendor),
        gpus: (0..8).map(gpu).collect(),
        links: pairs.map(link).collect(),
        ..Inventory::default()
    }
}

/// 8 V100, some of them with their memory taken.
fn eight(busy: &[u32]) -> FakeHost {
    let mut host = FakeHost::new();
    host.accelerators = inventory(Vendor::Nvidia, TABLE, busy);
    host
}

fn planned(host: &FakeHost, env: &[(&str, &str)], flags: &str) -> LaunchPlan {
    let line = format!("--standalone {flags} x.py");
    let mut env = env.to_vec();
    env.push(PATH);
    plan_on(host, &line, &env).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Device numbers, and the lines that are about the choice.
fn chosen(host: &FakeHost, env: &[(&str, &str)], flags: &str) -> (Option<String>, Vec<String>) {
    let plan = planned(host, env, flags);
    let list = Environment(&plan.agent.env.inherited).get("CUDA_VISIBLE_DEVICES");
    let notices = plan.notices.into_iter().filter(|line| line.contains("--gpu-")).collect();
    (list.map(|list| list.to_string_lossy().replace("GPU-", "")), notices)
}

fn some(list: &str) -> Option<String> {
    Some(list.to_owned())
}

#[test]
fn nothing_is_asked_and_nothing_changed_unless_it_is_wished() {
    let host = eight(&[]);
    assert_eq!(chosen(&host, &[], "--nproc-per-node=4"), (None, vec![]));
    let env = [("CUDA_VISIBLE_DEVICES", "5,1")];
    assert_eq!(chosen(&host, &env, "--gpu-select=first"), (some("5,1"), vec![]));
    let (list, lines) = chosen(&host, &env, "--gpu-select-only --gpu-topology=x");
    assert_eq!((list, lines.len()), (some("5,1"), 2));
    let (_, lines) = chosen(&eight(&[]), &[], "--gpu-select=1 --gpu-select-only --gpu-topology=x");
    let ignored = |line: &&String| line.ends_with("is ignored: requires --gpu-select=topology or pack");
    assert_eq!(lines.iter().filter(ignored).count(), 2, "{lines:?}");
    assert!(host.asked.borrow().is_empty());
}

#[test]
fn drivers_and_tools_are_asked_once_and_tools_are_where_the_path_says() {
    for flags in ["--gpu-select=topology", "--gpu-select=pack", "--gpu-select=1", "--gpu-select=MIG-1"] {
        let host = eight(&[]);
        let plan = planned(&host, &[], flags);
        assert_eq!(*host.asked.borrow(), [PATH.1], "{flags}");
        assert_eq!(plan.agent.tool_path, PATH.1, "the agent asks again, when workers run");
    }
}

#[test]
fn the_best_come_first_as_ids_and_the_rest_follow() {
    let (list, lines) = chosen(&eight(&[]), &[], "--gpu-select=topology --nproc-per-node=8");
    assert_eq!(list, some("00,33,22,11,55,66,77,44"));
    assert_eq!(lines.len(), 1);
    let (list, lines) = chosen(&eight(&[1]), &[], "--gpu-select=topology --nproc-per-node=4");
    assert_eq!(list, some("44,55,66,77,00,22,33"));
    assert!(
        lines[0]
            .starts_with("`--gpu-select=topology`: GPUs 4,5,6,7 chosen from 7 free (left out: GPU 1 busy): "),
        "{lines:?}"
    );
    let plan = planned(&eight(&[1]), &[], "--gpu-select=topology --nproc-per-node=4");
    assert_eq!(plan.gpu_locks.len(), 4);
    let (list, _) = chosen(&eight(&[1]), &[], "--gpu-select=topology --gpu-select-only --nproc-per-node=4");
    assert_eq!(list, some("44,55,66,77"));
    let (list, _) =
        chosen(&eight(&[1, 3, 6, 7]), &[], "--gpu-select=pack --gpu-select-only --nproc-per-node=2");
    assert_eq!(list, some("44,55"));
    let (list, _) = chosen(&eight(&[1, 3, 6, 7]), &[("PET_GPU_SELECT", "topology")], "--nproc-per-node=2");
    assert_eq!(list, some("00,44,22,55"));
}

#[test]
fn the_users_own_list_bounds_the_choice() {
    let flags = "--gpu-select=topology --nproc-per-node=2";
    for (own, list) in [("6,2,5,1,0", "11,22,66,55,00"), ("GPU-4,GPU-7,GPU-0", "44,77,00"), ("0,9,3", "")] {
        let (chosen, lines) = chosen(&eight(&[]), &[("CUDA_VISIBLE_DEVICES", own)], flags);
        match list {
            "" => assert_eq!(
                (chosen, lines[0].contains("too few free GPUs: 2 requested, 1 free")),
                (some(own), true)
            ),
            list => assert_eq!(chosen, some(list), "{own}: {lines:?}"),
        }
    }
    let slices = "MIG-11,MIG-22";
    let (list, lines) = chosen(&eight(&[]), &[("CUDA_VISIBLE_DEVICES", slices)], flags);
    assert_eq!(list, some(slices));
    assert!(lines[0].contains("CUDA_VISIBLE_DEVICES has slices of GPUs (MIG-11)"), "{lines:?}");
    let (list, lines) = chosen(&eight(&[]), &[("CUDA_VISIBLE_DEVICES", "")], flags);
    assert_eq!((list, lines.len()), (some(""), 1));
}

#[test]
fn what_other_launchers_hold_is_left_out() {
    let mut host = eight(&[]);
    host.taken = (4..8).map(|gpu| format!("GPU-{gpu}{gpu}")).collect();
    let (list, lines) = chosen(&host, &[], "--gpu-select=pack --gpu-select-only --nproc-per-node=4");
    assert_eq!(list, some("00,11,22,33"));
    assert!(lines[0].contains("(left out: GPUs 4,5,6,7 taken by one or more other launchers)"), "{lines:?}");
}

#[test]
fn an_unknown_topology_changes_nothing_and_is_reported_on_one_line() {
    let flags = "--gpu-select=topology --nproc-per-node=4";
    let says = |host: &FakeHost, flags: &str| {
        let (list, lines) = chosen(host, &[], flags);
        assert_eq!((list, lines.len()), (None, 1), "{lines:?}");
        let given =
            lines[0].strip_prefix("`--gpu-select=topology` is ignored (as with --gpu-select=first): ");
        given.unwrap_or_else(|| panic!("{lines:?}")).to_owned()
    };
    let mut host = eight(&[]);
    host.accelerators.links.clear();
    host.accelerators.notes = vec!["/usr/bin/nvidia-smi topo -m: there is no topology table in it".into()];
    assert_eq!(
        says(&host, flags),
        "the link between GPU 0 and GPU 1 is not known: /usr/bin/nvidia-smi topo -m: there is no topology table in it"
    );
    let mut host = eight(&[]);
    host.accelerators.hangs_at = Some("/usr/bin/nvidia-smi topo -m".into());
    host.accelerators.notes = vec!["no answer within 2 s; last step: /usr/bin/nvidia-smi topo -m".into()];
    assert_eq!(
        says(&host, flags),
        "the query of this node's accelerators did not finish: no answer within 2 s; last step: /usr/bin/nvidia-smi topo -m"
    );
    let mut host = FakeHost::new();
    host.accelerators.notes = vec!["no NVML: it is not here".into(), "no nvidia-smi on PATH".into()];
    assert_eq!(
        says(&host, flags),
        "no GPU found on this node: no NVML: it is not here; no nvidia-smi on PATH"
    );
    let nine = "--gpu-select=topology --nproc-per-node=9";
    assert_eq!(says(&eight(&[]), nine), "too few free GPUs: 9 requested, 8 free");
    let mut host = eight(&[]);
    host.accelerators.gpus.extend((8..17).map(|index| Gpu {
        index,
        trouble: Some(GpuTrouble::Lost),
        ..Gpu::default()
    }));
    assert_eq!(says(&host, flags), "the topology has 17 GPUs; at most 16 are supported");
}

#[test]
fn a_file_stands_in_for_what_is_told() {
    let mut host = eight(&[]);
    host.accelerators.links.clear();
    host.root.write("topo.txt", ISLANDS);
    host.root.write("gbps.csv", "0,9\n9,0\n");
    let flags = "--gpu-select=topology --nproc-per-node=3 --gpu-topology=/topo.txt";
    let env = [("CUDA_VISIBLE_DEVICES", "3,4,5,6")];
    assert_eq!(chosen(&host, &env, flags).0, some("44,55,66,33"));
    let (_, lines) = chosen(&host, &[], "--gpu-select=topology --gpu-topology=/gbps.csv");
    assert!(lines[0].ends_with("the number of GPUs in the topology is 2, but this node has 8"), "{lines:?}");
    let (_, lines) = chosen(&host, &[], "--gpu-select=topology --gpu-topology=/missing");
    assert!(lines[0].contains("/missing: No such file"), "{lines:?}");
    // Without an answer, the driver's files list the GPUs.
    let mut bare = four_gpus();
    bare.root.write("gbps.csv", "0,9,9,9\n9,0,9,20\n9,9,0,9\n9,20,9,0\n");
    let flags = "--gpu-select=topology --gpu-topology=/gbps.csv --nproc-per-node=2";
    assert_eq!(chosen(&bare, &[], flags).0, some("1abc,3abc,0abc,2abc"));
    bare.accelerators = inventory(Vendor::Nvidia, TABLE, &[]);
    bare.accelerators.hangs_at = Some("GPU 8".into());
    assert_eq!(chosen(&bare, &[], flags).0, some("1abc,3abc,0abc,2abc"));
}

#[test]
fn of_equal_sets_that_on_fewer_numa_nodes_is_taken() {
    let mut host = eight(&[]);
    for link in &mut host.accelerators.links {
        link.link = "SYS".parse().unwrap();
    }
    for (gpu, numa) in host.accelerators.gpus.iter_mut().zip([0, 1, 1, 0, 1, 0, 0, 1]) {
        gpu.numa_node = Some(numa);
    }
    let flags = "--gpu-select=topology --gpu-select-only --nproc-per-node=4";
    assert_eq!(chosen(&host, &[], flags).0, some("00,33,55,66"));
}

#[test]
fn metax_hosts_have_numbers_and_a_second_variable() {
    let mut host = FakeHost::new();
    host.root.write("dev/mxcd", "");
    for gpu in 0..8 {
        host.root.write(&format!("sys/bus/pci/devices/0000:{gpu}a:00.0/vendor"), "0x9999\n");
        host.root.write(&format!("sys/bus/pci/devices/0000:{gpu}a:00.0/class"), "0x038000\n");
    }
    host.accelerators = inventory(Vendor::Metax, ISLANDS, &[1]);
    host.taken.insert("0000:2a:00.0".into());
    let list = |host: &FakeHost, env: &[(&str, &str)], name: &str, flags: &str| {
        let plan = planned(host, env, flags);
        Environment(&plan.agent.env.inherited).get(name).unwrap().to_owned()
    };
    let flags = "--gpu-select=topology --nproc-per-node=4";
    for name in ["CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"] {
        assert_eq!(list(&host, &[], name, flags), "4,5,6,7,0,3", "{name}");
    }
    let flags = "--gpu-select=topology --nproc-per-node=2";
    let own = [("MACA_VISIBLE_DEVICES", "3,1,0,4")];
    assert_eq!(list(&host, &own, "MACA_VISIBLE_DEVICES", flags), "0,3,4");
    assert_eq!(list(&host, &[], "MACA_VISIBLE_DEVICES", "--gpu-select=3,0"), "3,0");
    // There is no answer: the driver's files have the same names.
    host.accelerators = Inventory::default();
    assert_eq!(list(&host, &[], "MACA_VISIBLE_DEVICES", "--gpu-select=3,0"), "3,0");
    let refusal = plan_on(&host, "--standalone --gpu-select=2 x.py", &[PATH]).err().unwrap();
    assert!(refusal.contains("2 is taken by another launcher"), "{refusal}");
}

#[test]
fn a_list_is_used_as_given() {
    let host = eight(&[6]);
    assert_eq!(chosen(&host, &[], "--gpu-select=6,2 --nproc-per-node=2").0, some("66,22"));
    assert!(
        chosen(&host, &[], "--gpu-select=6,2").1[0]
            .contains("GPU 6 is in use: other processes hold more than")
    );
    assert_eq!(chosen(&host, &[], "--gpu-select=GPU-33,0").0, some("33,00"));
    assert_eq!(chosen(&host, &[], "--gpu-select=MIG-1,MIG-2 --nproc-per-node=2").0, some("MIG-1,MIG-2"));
    // Nothing is known here, so the list is not checked.
    let unchecked =
        "`--gpu-select=1,0`: used without a check: this node's GPUs are unknown (dlrover-diag gpus \
                     says why)"
            .to_owned();
    assert_eq!(chosen(&FakeHost::new(), &[], "--gpu-select=1,0"), (some("1,0"), vec![unchecked]));
    let unknown = FakeHost::new();
    for (own, list) in
        [("1,0,2", "2,1"), ("GPU-1", "2"), ("GPU-11,2", "GPU-22"), ("GPU-11", "GPU-1"), ("2", "MIG-1")]
    {
        let env = [("CUDA_VISIBLE_DEVICES", own)];
        let given = chosen(&unknown, &env, &format!("--gpu-select={list}")).0;
        assert_eq!(given, some(&list.replace("GPU-", "")), "{own}");
    }
    let mut broken = eight(&[]);
    broken.accelerators.gpus[3] = Gpu { index: 3, trouble: Some(GpuTrouble::Lost), ..Gpu::default() };
    broken.accelerators.gpus[4].ecc_uncorrected = Some(2);
    broken.accelerators.gpus[5].trouble = Some(GpuTrouble::NotPermitted);
    assert_eq!(chosen(&broken, &[], "--gpu-select=7,0").0, some("77,00"));
    let mut taken = eight(&[]);
    taken.taken.insert("GPU-22".into());
    for (host, env, flags, words) in [
        (&host, "", "--gpu-select=6,6", "6 is listed twice"),
        (&host, "", "--gpu-select=6,GPU-66", "GPU-66 is listed twice"),
        (&host, "", "--gpu-select=8", "this node has no GPU 8 (GPUs found: 8)"),
        (&host, "", "--gpu-select=GPU-zz", "this node has no GPU GPU-zz"),
        (&host, "", "--gpu-select=6 --nproc-per-node=2", "it names 1 GPU for 2 workers"),
        (&host, "0,1", "--gpu-select=1,2", "2 is not visible with CUDA_VISIBLE_DEVICES=0,1"),
        (&unknown, "0,1", "--gpu-select=1,4", "4 is not visible with CUDA_VISIBLE_DEVICES"),
        (&unknown, "0,-1,4", "--gpu-select=4", "4 is not visible with CUDA_VISIBLE_DEVICES"),
        (&unknown, "-1", "--gpu-select=GPU-11", "GPU-11 is not visible with CUDA_VISIBLE_DEVICES"),
        (&unknown, "GPU-11,GPU-22", "--gpu-select=GPU-33", "GPU-33 is not visible with CUDA_VISIBLE_DEVICES"),
        (&host, "MIG-1,MIG-2", "--gpu-select=MIG-2,MIG-3", "MIG-3 is not visible with CUDA_VISIBLE_DEVICES"),
        (&broken, "", "--gpu-select=0,3", "3 cannot be used: it has fallen off the bus"),
        (&broken, "", "--gpu-select=GPU-33", "GPU-33 cannot be used: it has fallen off the bus"),
        (&broken, "", "--gpu-select=4", "4 cannot be used: 2 uncorrectable ECC errors"),
        (&broken, "", "--gpu-select=5", "5 cannot be used: permission denied"),
        (&taken, "", "--gpu-select=1,2", "2 is taken by another launcher on this host"),
        (&host, "", "--gpu-select=best", "`--gpu-select=best` is not a choice of GPUs"),
        (&host, "", "--gpu-select=", "is not a choice of GPUs"),
        (&host, "", "--gpu-select=1,,2", "is not a choice of GPUs"),
        (&host, "", "--gpu-select=-1", "is not a choice of GPUs"),
    ] {
        let env: &[(&str, &str)] =
            if env.is_empty() { &[PATH] } else { &[PATH, ("CUDA_VISIBLE_DEVICES", env)] };
        let refusal = plan_on(host, &format!("--standalone {flags} x.py"), env).err().unwrap_or_default();
        assert!(refusal.contains(words), "{flags}: {refusal}");
    }
}

#[test]
fn virtual_local_ranks_win() {
    let (list, lines) = chosen(&eight(&[]), &[], "--gpu-select=topology --virtual-local-rank");
    assert_eq!((list, lines.len()), (None, 1));
    assert!(lines[0].contains("is ignored: --virtual-local-rank gives"), "{lines:?}");
}

#[test]
fn cpus_follow_the_chosen_accelerators() {
    let host = FakeHost::new();
    for gpu in 0..4 {
        host.root.gpu(gpu, &format!("0000:{gpu}0:00.0"), i32::from(gpu >= 2));
    }
    host.root.write("sys/devices/system/node/node0/cpulist", "0-1\n");
    host.root.write("sys/devices/system/node/node1/cpulist", "2-3\n");
    host.root.write("gbps.csv", "0,9,9,9\n9,0,9,9\n9,9,0,20\n9,9,20,0\n");
    let flags = "--nproc-per-node=2 --numa-binding=node";
    assert_eq!(planned(&host, &[], flags).agent.cpus, [[0, 1], [0, 1]]);
    let flags = format!("{flags} --gpu-select=topology --gpu-topology=/gbps.csv");
    assert_eq!(planned(&host, &[], &flags).agent.cpus, [[2, 3], [2, 3]]);
}

#[test]
fn the_accelerators_that_are_looked_at_are_those_that_workers_see() {
    let host = FakeHost::new();
    for (env, visible) in [
        (&[][..], None),
        (&[("CUDA_VISIBLE_DEVICES", "1")][..], Some("CUDA_VISIBLE_DEVICES=1")),
        (&[("CUDA_VISIBLE_DEVICES", "")], Some("CUDA_VISIBLE_DEVICES=")),
        (&[("HIP_VISIBLE_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "1")], Some("CUDA_VISIBLE_DEVICES=1")),
        (&[("HIP_VISIBLE_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", "1")], Some("HIP_VISIBLE_DEVICES=2")),
        (&[("MACA_VISIBLE_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "1")], Some("MACA_VISIBLE_DEVICES=3")),
    ] {
        let plan = planned(&host, env, "--network-check");
        let list = plan.agent.gpus.visible.map(|it| format!("{}={}", it.variable, it.list));
        assert_eq!(list.as_deref(), visible, "{env:?}");
    }
}
