//! The output of `dlrover-diag gpus`.

use diagnosis::gpus::{CgroupLimits, GpuLink, GpuProcess, GpuTrouble, NvLink, Vendor, Xid};

use super::*;
use crate::{Subcommand, parse};

fn node() -> Inventory {
    let gpu = |index: u32| Gpu {
        index,
        name: Some("NVIDIA H100 80GB HBM3".into()),
        pci: Some(format!("0000:{:02x}:00.0", 16 + index)),
        uuid: Some(format!("GPU-{index}")),
        memory_total: Some(85_520_809_984),
        memory_used: Some(1_200_000_000),
        utilisation_percent: Some(0),
        temperature_celsius: Some(31 + index),
        ecc_uncorrected: Some(0),
        nvlinks: (0..2).map(|number| NvLink { number, is_active: true }).collect(),
        numa_node: Some(index / 2),
        ..Gpu::default()
    };
    let mut gpus: Vec<Gpu> = (0..4).map(gpu).collect();
    gpus[1].memory_used = Some(61_000_000_000);
    gpus[1].processes = vec![GpuProcess { pid: 4711, memory: None }];
    gpus[2] = Gpu { index: 2, trouble: Some(GpuTrouble::Lost), ..Gpu::default() };
    gpus[3].throttled = vec!["power limit".into()];
    gpus[3].xids = vec![Xid { code: 94, count: 2 }];
    Inventory {
        vendor: Some(Vendor::Nvidia),
        driver: Some("535.161.08".into()),
        gpus,
        links: vec![
            GpuLink { a: 0, b: 1, link: LinkKind::NvLink(2) },
            GpuLink { a: 0, b: 3, link: "SYS".parse().unwrap() },
            GpuLink { a: 1, b: 3, link: "PIX".parse().unwrap() },
        ],
        host: Host {
            cpus: Some(64),
            memory_total: Some(512_000_000_000),
            memory_available: Some(400_000_000_000),
            load_percent: Some(1234),
            limits: CgroupLimits { cpu_percent: Some(1650), memory: Some(256_000_000_000) },
        },
        notes: vec!["no mx-smi".into()],
        hangs_at: None,
    }
}

#[test]
fn a_person_sees_what_is_broken() {
    insta::assert_snapshot!(for_people(&node(), 300));
}

#[test]
fn a_node_without_accelerators_has_a_host_and_a_reason() {
    let bare =
        Inventory { notes: vec!["no NVML: libnvidia-ml.so.1 is not here".into()], ..Inventory::default() };
    insta::assert_snapshot!(for_people(&bare, 300));
}

#[test]
fn what_is_busy_is_a_threshold_of_the_user() {
    let busy = |option: &str| {
        let Ok(Subcommand::Gpus(arguments)) = parse(&format!("gpus {option}")) else { panic!("{option}") };
        for_people(&node(), arguments.busy_permille).matches("busy").count()
    };
    assert_eq!(busy(""), 1);
    assert_eq!((busy("--busy-gpu-threshold=80"), busy("--busy-gpu-threshold=0.5")), (0, 3));
    for nonsense in ["101", "-1", "NaN", "a-lot", ""] {
        assert!(parse(&format!("gpus --busy-gpu-threshold={nonsense}")).is_err(), "{nonsense}");
    }
}

#[test]
fn the_document_can_be_read_again() {
    let text = document(&node());
    assert!(text.starts_with(r#"{"schema":"dlrover.gpus/v1","vendor":"nvidia","#), "{text}");
    assert!(
        text.contains(r#""link":"NV2""#) && text.contains(r#""memory_total_bytes":85520809984"#),
        "{text}"
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.json");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(recorded(&file).unwrap(), node());
    std::fs::write(&file, "[1]").unwrap();
    assert!(matches!(recorded(&file), Err(GpusError::Parse { .. })));
}
