//! The inventory, through the real loading path: a library with the name `libnvidia-ml.so.1`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use diagnosis::{
    gpu_topology::{LinkKind, PciPath},
    gpus::{Gpu, GpuTrouble, Inventory, Vendor},
};
use probes::{GpuPlan, ProbeProgram, take_inventory};

use crate::{
    fake_library,
    support::{TIMEOUT, in_time, is_alive},
};

/// A probe whose environment has the fake library with these devices.
fn program(folder: &Path, plan: &str) -> ProbeProgram {
    let library = fake_library::folder(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let script = folder.join("probe");
    let text = format!(
        "#!/bin/bash\nexport LD_LIBRARY_PATH={} FAKE_NVML='{plan}'\necho $$ >{}\nexec -a dlrover-probe {}\n",
        library.display(),
        folder.join("pid").display(),
        env!("CARGO_BIN_EXE_dlrover-probe-under-test"),
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    ProbeProgram { path: script, ..ProbeProgram::default() }
}

async fn inventory(plan: &str, deadline: Duration) -> Inventory {
    let folder = tempfile::tempdir().unwrap();
    let plan = GpuPlan { deadline, program: program(folder.path(), plan), ..GpuPlan::default() };
    let inventory = in_time(take_inventory(plan)).await;
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap().trim().parse().unwrap();
    assert!(!is_alive(pid), "the probe is still there");
    inventory
}

fn link(inventory: &Inventory, a: u32, b: u32) -> LinkKind {
    inventory.links.iter().find(|link| (link.a, link.b) == (a, b)).unwrap().link
}

#[tokio::test]
async fn eight_devices_are_read_with_their_links_and_a_faulty_one() {
    let plan = "gpus=8;links=dgx1;lost=3;closed=5;ecc=2:5;pending=1;used=0:61;pid=0:4711;pid=0:4712;hot=6";
    let inventory = inventory(plan, TIMEOUT).await;
    assert_eq!((inventory.vendor, inventory.driver.as_deref()), (Some(Vendor::Nvidia), Some("535.161.08")));
    assert_eq!(inventory.hangs_at, None);
    let [zero, one, two, three, four, five, six, _] = &inventory.gpus[..] else { panic!("{inventory:?}") };
    assert_eq!((zero.memory_used, zero.memory_total), (Some(61_000_000_000), Some(80_000_000_000)));
    let pids: Vec<_> = zero.processes.iter().map(|it| (it.pid, it.memory)).collect();
    assert_eq!(pids, [(4711, Some(61_000_000_000)), (4712, Some(61_000_000_000))]);
    assert_eq!(
        (zero.pci.as_deref(), zero.uuid.as_deref()),
        (Some("0000:10:00.0"), Some("GPU-00000000-fake"))
    );
    assert!(one.remapped.unwrap().pending && !two.remapped.unwrap().pending);
    assert_eq!((one.ecc_uncorrected, two.ecc_uncorrected), (Some(0), Some(5)));
    assert_eq!(*three, Gpu { index: 3, trouble: Some(GpuTrouble::Lost), ..Gpu::default() });
    assert!(
        matches!(&five.trouble, Some(GpuTrouble::CannotOpen(why)) if why.contains("driver error")),
        "{five:?}"
    );
    assert_eq!((four.temperature_celsius, four.utilisation_percent), (Some(44), Some(7)));
    assert_eq!(
        (six.throttled.as_slice(), four.throttled.len()),
        (&["temperature (hardware)".to_owned()][..], 0)
    );
    // Of a library that lacks a function only that value is missing.
    assert!(inventory.gpus.iter().all(|gpu| gpu.numa_node.is_none() && !gpu.is_mig));
    assert_eq!(zero.nvlinks.len(), 6);
    assert_eq!(link(&inventory, 0, 4), LinkKind::NvLink(2));
    assert_eq!(link(&inventory, 0, 1), LinkKind::NvLink(1));
    assert_eq!(link(&inventory, 1, 4), LinkKind::Pci(PciPath::System));
    assert!(!inventory.links.iter().any(|link| [link.a, link.b].contains(&3)));
    let host = &inventory.host;
    assert!(host.cpus > Some(0) && host.memory_total.is_some(), "{host:?}");
}

#[tokio::test]
async fn a_driver_that_hangs_at_one_device_does_not_hide_those_before_it() {
    let inventory = inventory("gpus=4;hang=2", Duration::from_secs(1)).await;
    assert_eq!((inventory.gpus.len(), inventory.hangs_at.as_deref()), (2, Some("GPU 2")));
    assert!(
        inventory.notes.iter().any(|note| note.contains("no answer within 1 s; last step: GPU 2")),
        "{inventory:?}"
    );
}

#[tokio::test]
async fn without_the_library_there_is_a_note_and_no_error() {
    let plan = GpuPlan { deadline: TIMEOUT, program: crate::support::program(), ..GpuPlan::default() };
    let inventory = in_time(take_inventory(plan)).await;
    if inventory.vendor.is_none() {
        assert!(inventory.notes.iter().any(|note| note.contains("NVML")), "{inventory:?}");
        assert!(inventory.gpus.is_empty() && inventory.host.cpus > Some(0));
    }
    println!("{inventory:?}");
}

#[tokio::test]
async fn a_library_without_devices_is_a_node_without_devices() {
    let inventory = inventory("gpus=0", TIMEOUT).await;
    assert_eq!((inventory.vendor, inventory.gpus.len()), (None, 0));
}

/// Installs a tool below `root` that runs a script. Its process id is in `tool.pid`.
fn tool(root: &Path, place: &str, script: &str) {
    let (draft, tool) = (root.join("draft"), root.join(place));
    fs::create_dir_all(tool.parent().unwrap()).unwrap();
    fs::write(&draft, format!("#!/bin/sh\necho $$ > {}\n{script}\n", root.join("tool.pid").display()))
        .unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    // Moved by another process, so that a concurrent fork does not keep it open for writing.
    assert!(std::process::Command::new("mv").args([&draft, &tool]).status().unwrap().success());
}

/// Queries the machine below `root`, with the tools in its `bin`.
async fn asked(root: &Path, deadline: Duration) -> Inventory {
    let program = crate::support::program();
    let path = root.join("bin").into_os_string();
    in_time(take_inventory(GpuPlan { deadline, root: root.to_owned(), path, program })).await
}

/// Waits until the processes whose ids are in these files are gone.
async fn are_gone(root: &Path, files: &[&str]) {
    for file in files {
        let pid = fs::read_to_string(root.join(file)).unwrap().trim().parse().unwrap();
        in_time(async {
            while is_alive(pid) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// A machine with two MetaX devices, whose tool is this script.
fn metax(script: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("dev")).unwrap();
    fs::write(at("dev/mxcd"), "").unwrap();
    for (place, numa) in [("0000:0e:00.0", "0\n"), ("0000:0f:00.0", "1\n")] {
        let device = at("sys/bus/pci/devices").join(place);
        fs::create_dir_all(&device).unwrap();
        for (file, text) in [("vendor", "0x9999\n"), ("class", "0x038000\n"), ("numa_node", numa)] {
            fs::write(device.join(file), text).unwrap();
        }
    }
    tool(root.path(), "opt/mxdriver/bin/mx-smi", script);
    root
}

/// Time for all queries but the one that hangs.
const SOON: Duration = Duration::from_secs(3);

/// The output of `mx-smi -L` for two devices.
const METAX_LIST: &str = "-L) echo 'GPU#0    MXC500    0000:0E:00.0    Available (UUID: GPU-aa)'
                              echo 'GPU#1    MXC500    0000:0F:00.0    Unavailable (UUID: GPU-bb)';;";

#[tokio::test]
async fn metax_devices_are_read_from_files_and_tool() {
    let root = metax(&format!(
        "case $1 in
         {METAX_LIST}
         topo) printf '\\tGPU0\\tGPU1\\nGPU0\\tX\\tMX\\nGPU1\\tMX\\tX\\n';;
         *) echo no such option; exit 2;;
         esac"
    ));
    // Not queried if there is another vendor's driver.
    tool(root.path(), "bin/nvidia-smi", "echo asked");
    let inventory = asked(root.path(), TIMEOUT).await;
    assert_eq!((inventory.vendor, inventory.gpus.len()), (Some(Vendor::Metax), 2), "{inventory:?}");
    assert_eq!((inventory.gpus[0].numa_node, inventory.gpus[1].numa_node), (Some(0), Some(1)));
    assert!(matches!(inventory.gpus[1].trouble, Some(GpuTrouble::CannotOpen(_))), "{inventory:?}");
    assert_eq!(link(&inventory, 0, 1).to_string(), "MX");
    let message = inventory.notes.iter().find(|note| note.contains("--show-memory")).unwrap();
    assert!(message.ends_with(": no such option"), "{message}");
    assert!(!inventory.notes.iter().any(|note| note.contains("nvidia-smi")), "{inventory:?}");
}

#[tokio::test]
async fn the_tool_on_the_path_comes_before_the_drivers_own() {
    let root = metax("exit 1");
    tool(root.path(), "bin/mx-smi", "exit 7");
    let inventory = asked(root.path(), TIMEOUT).await;
    assert!(inventory.notes.iter().any(|note| note.contains("bin/mx-smi -L: exited with code 7")));
    assert_eq!(inventory.gpus.len(), 2, "the bus says so");
}

#[tokio::test]
async fn a_metax_tool_that_hangs_is_killed_with_all_it_started_and_named() {
    let hang = "sleep 1000 & echo $! > $0.child; wait";
    let root = metax(hang);
    let inventory = asked(root.path(), Duration::from_secs(1)).await;
    assert!(inventory.hangs_at.unwrap().ends_with("/mx-smi -L"), "{:?}", inventory.notes);
    are_gone(root.path(), &["tool.pid", "opt/mxdriver/bin/mx-smi.child"]).await;

    let root = metax(&format!("case $1 in {METAX_LIST} topo) {hang};; esac"));
    let inventory = asked(root.path(), SOON).await;
    assert!(inventory.hangs_at.unwrap().ends_with("/mx-smi topo -m"), "{:?}", inventory.notes);
    assert_eq!((inventory.vendor, inventory.gpus.len()), (Some(Vendor::Metax), 2), "what was known by then");
    are_gone(root.path(), &["tool.pid", "opt/mxdriver/bin/mx-smi.child"]).await;
}

/// The output of `nvidia-smi` for two devices.
const NVIDIA_LIST: &str = "--query-gpu=index,uuid,pci.bus_id,memory.used,memory.total)
                               echo '0, GPU-aa, 00000000:3B:00.0, 1024, 81559'
                               echo '1, GPU-bb, 00000000:5E:00.0, [N/A], 81559';;";

/// A machine whose `nvidia-smi` is this script.
fn nvidia(script: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    tool(root.path(), "bin/nvidia-smi", script);
    root
}

#[tokio::test]
async fn nvidia_smi_replaces_a_missing_library() {
    let root = nvidia(&format!(
        "case $1 in
         {NVIDIA_LIST}
         topo) printf '\\tGPU0\\tGPU1\\tCPU Affinity\\tNUMA Affinity\\n'
               printf 'GPU0\\t X \\tNV2\\t0-9\\t1\\nGPU1\\tNV2\\t X \\t10-19\\tN/A\\n';;
         esac"
    ));
    for (place, numa) in [("0000:3b:00.0", "0\n"), ("0000:5e:00.0", "3\n")] {
        let device = root.path().join("sys/bus/pci/devices").join(place);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), numa).unwrap();
    }
    let inventory = asked(root.path(), TIMEOUT).await;
    assert_eq!(
        (inventory.vendor, inventory.hangs_at.as_ref()),
        (Some(Vendor::Nvidia), None),
        "{inventory:?}"
    );
    let gpu = |index: u32, uuid: &str, pci: &str, used: Option<u64>, numa: u32| Gpu {
        index,
        uuid: Some(uuid.into()),
        pci: Some(pci.into()),
        memory_used: used,
        memory_total: Some(81559 << 20),
        numa_node: Some(numa),
        ..Gpu::default()
    };
    // The NUMA node of the table, or the kernel's if it has none.
    let expected =
        [gpu(0, "GPU-aa", "0000:3b:00.0", Some(1 << 30), 1), gpu(1, "GPU-bb", "0000:5e:00.0", None, 3)];
    assert_eq!(inventory.gpus, expected);
    assert_eq!(link(&inventory, 0, 1), LinkKind::NvLink(2));
    let [note] = &inventory.notes[..] else { panic!("{inventory:?}") };
    assert!(note.contains("libnvidia-ml.so.1"), "{note}");
}

#[tokio::test]
async fn nvidia_smi_is_not_called_if_the_library_answers() {
    let root = nvidia("touch $0.asked");
    for (devices, vendor) in [("gpus=2", Some(Vendor::Nvidia)), ("gpus=0", None)] {
        let plan = GpuPlan {
            deadline: TIMEOUT,
            root: root.path().to_owned(),
            path: root.path().join("bin").into(),
            program: program(root.path(), devices),
        };
        assert_eq!(in_time(take_inventory(plan)).await.vendor, vendor);
    }
    assert!(!root.path().join("bin/nvidia-smi.asked").exists());
}

#[tokio::test]
async fn a_failed_call_of_nvidia_smi_is_a_note_that_names_it() {
    const QUERY: &str = "/bin/nvidia-smi --query-gpu=... --format=...: ";
    const TOPO: &str = "/bin/nvidia-smi topo -m: ";
    let of_table = |script: &str| format!("case $1 in {NVIDIA_LIST} *) {script};; esac");
    for (script, gpus, question, message) in [
        (
            "echo; echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18".to_owned(),
            0,
            QUERY,
            "exited with code 18: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("kill -KILL $$".into(), 0, QUERY, "killed by SIGKILL"),
        ("exec yes GPU0".into(), 0, QUERY, "killed: printed more than 262144 bytes"),
        ("echo No devices were found".into(), 0, QUERY, "`No devices were found` does not describe GPU 0"),
        ("head -c 300 /dev/urandom".into(), 0, QUERY, ""),
        (String::new(), 0, QUERY, "it lists no GPU"),
        (of_table("echo GPU0 GPU1"), 2, TOPO, "the topology table is not square (columns: 2, rows: 0)"),
        // A row with a comma would be a table of numbers.
        (of_table("head -c 300 /dev/urandom | LC_ALL=C tr -d ,"), 2, TOPO, "no topology table found"),
        (of_table("printf '0,9\\n9,0\\n'"), 2, TOPO, "no topology table found"),
        (
            of_table("printf '\\tGPU0\\nGPU0\\tX\\n'"),
            2,
            TOPO,
            "the number of GPUs in the topology is 1, but this node has 2",
        ),
        (of_table("exec yes GPU0"), 2, TOPO, "killed: printed more than 262144 bytes"),
        (of_table("exit 6"), 2, TOPO, "exited with code 6"),
    ] {
        let root = nvidia(&script);
        let inventory = asked(root.path(), TIMEOUT).await;
        assert_eq!((inventory.gpus.len(), inventory.links.len()), (gpus, 0), "{script}: {inventory:?}");
        assert_eq!(inventory.hangs_at, None, "{script}");
        let note = inventory.notes.last().unwrap();
        let said = note.split_once(question).unwrap_or_else(|| panic!("{script}: {note}")).1;
        assert!(said.starts_with(message), "{script}: {note}");
        are_gone(root.path(), &["tool.pid"]).await;
    }
    let inventory = asked(tempfile::tempdir().unwrap().path(), TIMEOUT).await;
    assert_eq!(inventory.notes.last().map(String::as_str), Some("no nvidia-smi on PATH"));
}

#[tokio::test]
async fn an_nvidia_smi_that_hangs_is_killed_with_all_it_started_and_named() {
    let mut asking = tokio::task::JoinSet::new();
    for hang in [
        "sleep 1000 & echo $! > $0.child; wait",
        "setsid sleep 1000 & echo $! > $0.child; wait",
        // It closes its output and stays, or exits and leaves a child with it.
        "echo $$ > $0.child; exec >&-; sleep 1000",
        "sleep 1000 & echo $! > $0.child; echo done",
        "trap '' TERM; echo $$ > $0.child; while :; do sleep 1000; done",
    ] {
        asking.spawn(async move {
            let root = nvidia(&format!("case $1 in {NVIDIA_LIST} *) {hang};; esac"));
            let inventory = asked(root.path(), SOON).await;
            assert!(
                inventory.hangs_at.unwrap().ends_with("/bin/nvidia-smi topo -m"),
                "{:?}",
                inventory.notes
            );
            assert_eq!(inventory.gpus.len(), 2, "{hang}");
            let note = inventory.notes.last().unwrap();
            assert!(
                note.starts_with("no answer within 3 s; last step: ") && note.ends_with("topo -m"),
                "{note}"
            );
            are_gone(root.path(), &["tool.pid", "bin/nvidia-smi.child"]).await;
        });
    }
    while let Some(ended) = asking.join_next().await {
        ended.unwrap();
    }
}
