//! Which way the bytes went, and which way they should have.

use super::{super::*, measured, method, run, settings};
use crate::switchbox::model::Equipment;

/// A check under `auto` of pairs that went so, on a host with accelerators of this name.
fn went(paths: [Path; 4], model: &str) -> SwitchboxFinding {
    let models = if model.is_empty() { Vec::new() } else { vec![model.to_owned(); 8] };
    let settings = Settings { models, ..settings() };
    run(settings, method(Style::Calls), |pair, _| Some(measured(&[37_700.0], paths[pair]))).0
}

fn troubles(finding: &SwitchboxFinding) -> Vec<Option<Trouble>> {
    finding.pairs.iter().map(|it| it.wrong.as_ref().map(|it| it.trouble)).collect()
}

const UNKNOWN_MODEL: &str = "no pair used a link, and whether this model of accelerator should have one is not known: \
                             if it should, set --switchbox-path to metaxlink or nvlink; if not, to any";

#[test]
fn where_one_pair_uses_a_link_all_must() {
    for (other, course) in [
        (Path::Pcie, "the bytes went over pcie and not over"),
        (Path::Host, "the bytes went through the host's memory and not over"),
        (Path::Unknown, "the probe does not report the path that the bytes took; it must be"),
        (Path::Loopback, "the bytes stayed within one accelerator (loopback) and did not go over"),
    ] {
        let finding = went([Path::Metaxlink, Path::Metaxlink, other, other], "");
        let wrong = Some(Trouble::WrongPath);
        assert_eq!(troubles(&finding), [None, None, wrong, wrong], "{other}");
        let message = format!("wrong path, {course} metaxlink, which another pair of this switchbox uses");
        assert_eq!(finding.pairs[2].wrong.as_ref().unwrap().to_string(), message);
        let finding = went([Path::Metaxlink, other, other, other], "NVIDIA L40S");
        assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Fault, 1), "{other}");
    }
}

#[test]
fn where_all_fell_back_the_model_tells_what_should_be_there() {
    let (by_bus, by_memory) = ("over pcie", "through the host's memory");
    for (path, course, model, link) in [
        (Path::Pcie, by_bus, "MetaX MXC500", Path::Metaxlink),
        (Path::Host, by_memory, "MetaX C500X", Path::Metaxlink),
        (Path::Pcie, by_bus, "NVIDIA H100 80GB HBM3", Path::Nvlink),
        (Path::Host, by_memory, "NVIDIA A100-SXM4-80GB", Path::Nvlink),
    ] {
        let finding = went([path; 4], model);
        assert_eq!((finding.status(), finding.good()), (SwitchboxStatus::Fault, 0), "{model}");
        let message = format!(
            "wrong path, the bytes went {course} and not over {link}, which {model} has; if this host has no \
             such link, set --switchbox-path=any"
        );
        assert_eq!(finding.pairs[0].wrong.as_ref().unwrap().to_string(), message);
    }
}

#[test]
fn cards_of_the_bus_pass_over_it_and_unknown_models_do_with_a_note() {
    for path in [Path::Pcie, Path::Host] {
        for (model, remark) in [
            ("NVIDIA H100 PCIe", "no pair used a link, and NVIDIA H100 PCIe is not known to have one"),
            ("NVIDIA L40S", "no pair used a link, and NVIDIA L40S is not known to have one"),
            ("Abacus 3000", UNKNOWN_MODEL),
            ("", UNKNOWN_MODEL),
        ] {
            let finding = went([path; 4], model);
            assert_eq!(
                (finding.status(), &finding.remarks[..]),
                (SwitchboxStatus::Ok, &[remark.to_owned()][..])
            );
            assert_eq!(finding.notes(), [format!("switchbox: {remark}")]);
            assert!(finding.to_string().contains(&format!(": ok, 0.50 s; {remark}")), "{finding}");
        }
    }
}

#[test]
fn the_pairs_own_names_come_before_those_of_the_host() {
    let settings = Settings { models: vec!["NVIDIA L40S".into(); 2], ..settings() };
    let (mut check, _) = Check::new(crate::Moment::START, settings, method(Style::Repetitions));
    let now = crate::Moment::START;
    let mut effects = Vec::new();
    for pair in 0..4 {
        let devices = (format!("GPU {pair} (NVIDIA H200, 0000:1b:00.0)"), "GPU 7".to_owned());
        let _nothing = check.handle(now, Event::Named { pair, devices });
        let answer = measured(&[37_700.0; 5], Path::Pcie);
        effects = check.handle(now, Event::Answered { run: 0, pair, answer });
    }
    let [Effect::Finish(finding)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(troubles(finding), [Some(Trouble::WrongPath); 4]);
}

/// It is evidence neither against a link nor for it.
#[test]
fn an_unknown_path_is_untested_unless_any_is_accepted() {
    for model in ["", "MetaX C500"] {
        let finding = went([Path::Unknown; 4], model);
        assert_eq!(troubles(&finding), [Some(Trouble::UnknownPath); 4]);
        assert!(finding.fault().unwrap().component.is_nothing_broken(), "{finding}");
    }
    let any = Settings { expected: Expected::Any, ..settings() };
    for path in [Path::Unknown, Path::Loopback, Path::Pcie] {
        let finding = run(any.clone(), method(Style::Calls), |_, _| Some(measured(&[37_700.0], path))).0;
        assert_eq!((finding.status(), finding.remarks.len()), (SwitchboxStatus::Ok, 0));
    }
}

#[test]
fn loopback_is_the_path_of_a_socket_with_itself_only() {
    let finding = went([Path::Loopback; 4], "");
    assert_eq!(troubles(&finding), [Some(Trouble::WrongPath); 4]);
    let itself = Settings { pairs: vec![SocketPair(0, 0)], min_channels: 1, ..settings() };
    let finding = run(itself, method(Style::Calls), |_, _| Some(measured(&[37_700.0], Path::Loopback))).0;
    assert_eq!((finding.status(), finding.remarks.len()), (SwitchboxStatus::Ok, 0));
}

/// The link works now and then: over the bus it is fast enough.
#[test]
fn a_link_that_falls_back_once_has_fallen_back() {
    let mut turn = 0;
    let finding = run(settings(), method(Style::Calls), |pair, _| {
        turn += u32::from(pair == 2);
        Some(measured(&[37_700.0], if pair == 2 && turn == 3 { Path::Pcie } else { Path::Metaxlink }))
    })
    .0;
    assert_eq!(troubles(&finding), [None, None, Some(Trouble::WrongPath), None]);
}

#[test]
fn models_are_recognized_by_their_names() {
    for name in ["MetaX MXC500", "MetaX C500", "MXC600-AL", "metax-tech C550", "MetaX C500X"] {
        assert_eq!(Equipment::of(name), Equipment::Link(Path::Metaxlink, name));
    }
    for name in [
        "NVIDIA H100 80GB HBM3",
        "H100 SXM",
        "NVIDIA HGX H100",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A800-SXM4-80GB",
        "Tesla V100-SXM3-32GB",
        "NVIDIA H200",
        "NVIDIA H20",
        "NVIDIA H800",
        "NVIDIA B200",
        "NVIDIA GB200",
        "NVIDIA B300 SXM6 AC",
    ] {
        assert_eq!(Equipment::of(name), Equipment::Link(Path::Nvlink, name));
    }
    for name in [
        "NVIDIA H100 PCIe",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H800 PCIe",
        "NVIDIA L40S",
        "NVIDIA A10",
        "Tesla T4",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX A6000",
        "NVIDIA L4",
    ] {
        assert_eq!(Equipment::of(name), Equipment::Bus(name));
    }
    // An address on the bus is no model: `a2` is a card too.
    for name in ["GPU 3 (NVIDIA H100 80GB HBM3, 0000:a2:00.0)", "GPU 3 (0000:a2:00.0) NVIDIA H200"] {
        assert_eq!(Equipment::of(name), Equipment::Link(Path::Nvlink, name));
    }
    assert_eq!(Equipment::of("GPU 3 (0000:a2:00.0)"), Equipment::Unknown);
    // With a bridge or without; a share of one; a board that links some pairs only; nothing that is known.
    for name in [
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "GRID A100-7-40C",
        "Tesla V100-SXM2-16GB",
        "MetaX N260",
        "NVIDIA H100",
        "GPU 3",
        "core 0",
        "",
        "Tesla C2050",
    ] {
        assert_eq!(Equipment::of(name), Equipment::Unknown, "{name}");
    }
}
