//! The inventory, through the real loading path: a library that calls itself `libnvidia-ml.so.1`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use agent::probes::{GpuPlan, Helper, take_inventory};
use rules::{
    gpu_topology::{Link, PciPath},
    gpus::{Gpu, GpuTrouble, Inventory, Vendor},
};

use crate::{
    fake_library,
    support::{PATIENCE, in_time, is_alive},
};

/// A probe in whose environment there is the fake library with these devices.
fn helper(folder: &Path, plan: &str) -> Helper {
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
    Helper { program: script, mark: None }
}

async fn inventory(plan: &str, deadline: Duration) -> Inventory {
    let folder = tempfile::tempdir().unwrap();
    let plan = GpuPlan { deadline, helper: helper(folder.path(), plan), ..GpuPlan::default() };
    let inventory = in_time(take_inventory(plan)).await;
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap().trim().parse().unwrap();
    assert!(!is_alive(pid), "the probe is still there");
    inventory
}

fn link(inventory: &Inventory, a: u32, b: u32) -> Link {
    inventory.links.iter().find(|link| (link.a, link.b) == (a, b)).unwrap().link
}

#[tokio::test]
async fn eight_devices_are_read_with_their_links_and_the_sick_one() {
    let plan = "gpus=8;links=dgx1;lost=3;closed=5;ecc=2:5;pending=1;used=0:61;pid=0:4711;pid=0:4712;hot=6";
    let inventory = inventory(plan, PATIENCE).await;
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
    // Of a library that lacks a call only that answer is missing.
    assert!(inventory.gpus.iter().all(|gpu| gpu.numa_node.is_none() && !gpu.is_mig));
    assert_eq!(zero.nvlinks.len(), 6);
    assert_eq!(link(&inventory, 0, 4), Link::NvLink(2));
    assert_eq!(link(&inventory, 0, 1), Link::NvLink(1));
    assert_eq!(link(&inventory, 1, 4), Link::Pci(PciPath::System));
    assert!(!inventory.links.iter().any(|link| [link.a, link.b].contains(&3)));
    let host = &inventory.host;
    assert!(host.cpus > Some(0) && host.memory_total.is_some(), "{host:?}");
}

#[tokio::test]
async fn a_driver_that_hangs_at_one_device_does_not_hide_those_before_it() {
    let inventory = inventory("gpus=4;hang=2", Duration::from_secs(1)).await;
    assert_eq!((inventory.gpus.len(), inventory.hangs_at.as_deref()), (2, Some("gpu 2")));
    assert!(
        inventory.notes.iter().any(|note| note.contains("no answer within 1s; it was at gpu 2")),
        "{inventory:?}"
    );
}

#[tokio::test]
async fn without_the_library_there_is_a_note_and_no_error() {
    let plan = GpuPlan { deadline: PATIENCE, helper: crate::support::helper(), ..GpuPlan::default() };
    let inventory = in_time(take_inventory(plan)).await;
    if inventory.vendor.is_none() {
        assert!(inventory.notes.iter().any(|note| note.contains("NVML")), "{inventory:?}");
        assert!(inventory.gpus.is_empty() && inventory.host.cpus > Some(0));
    }
    println!("{inventory:?}");
}

#[tokio::test]
async fn a_library_without_devices_is_a_node_without_devices() {
    let inventory = inventory("gpus=0", PATIENCE).await;
    assert_eq!((inventory.vendor, inventory.gpus.len()), (None, 0));
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
    fs::create_dir_all(at("opt/mxdriver/bin")).unwrap();
    let (draft, tool) = (at("draft"), at("opt/mxdriver/bin/mx-smi"));
    fs::write(&draft, format!("#!/bin/sh\necho $$ > {}\n{script}", at("tool.pid").display())).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    // Moved by another process, so that nobody who forks meanwhile keeps it open for writing.
    assert!(std::process::Command::new("mv").args([&draft, &tool]).status().unwrap().success());
    root
}

#[tokio::test]
async fn metax_devices_are_read_from_files_and_tool() {
    let root = metax(
        "case $1 in
         -L) echo 'GPU#0    MXC500    0000:0E:00.0    Available (UUID: GPU-aa)'
             echo 'GPU#1    MXC500    0000:0F:00.0    Unavailable (UUID: GPU-bb)';;
         topo) printf '\\tGPU0\\tGPU1\\nGPU0\\tX\\tMX\\nGPU1\\tMX\\tX\\n';;
         *) echo no such option; exit 2;;
         esac",
    );
    let helper = crate::support::helper();
    let inventory = GpuPlan { deadline: PATIENCE, root: root.path().to_owned(), helper };
    let inventory = in_time(take_inventory(inventory)).await;
    assert_eq!((inventory.vendor, inventory.gpus.len()), (Some(Vendor::Metax), 2), "{inventory:?}");
    assert_eq!((inventory.gpus[0].numa_node, inventory.gpus[1].numa_node), (Some(0), Some(1)));
    assert!(matches!(inventory.gpus[1].trouble, Some(GpuTrouble::CannotOpen(_))), "{inventory:?}");
    assert_eq!(link(&inventory, 0, 1).to_string(), "MX");
    let complaint = inventory.notes.iter().find(|note| note.contains("--show-memory")).unwrap();
    assert!(complaint.ends_with("said: no such option"), "{complaint}");
}

#[tokio::test]
async fn a_metax_tool_that_hangs_is_killed_with_all_it_started_and_named() {
    let root = metax("sleep 1000 & echo $! > $0.child; wait");
    let helper = crate::support::helper();
    let plan = GpuPlan { deadline: Duration::from_secs(1), root: root.path().to_owned(), helper };
    let inventory = in_time(take_inventory(plan)).await;
    assert!(inventory.hangs_at.unwrap().ends_with("/mx-smi"), "{:?}", inventory.notes);
    for file in ["tool.pid", "opt/mxdriver/bin/mx-smi.child"] {
        let pid = fs::read_to_string(root.path().join(file)).unwrap().trim().parse().unwrap();
        in_time(async {
            while is_alive(pid) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}
