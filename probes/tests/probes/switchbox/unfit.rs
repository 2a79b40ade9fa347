//! Tools that cannot be started, pairs of another kind of host, and links that all fell back.

use super::*;

/// A library that is missing, a program of another machine: the links of this node are not at fault.
#[tokio::test]
async fn a_tool_that_cannot_be_started_has_measured_nothing() {
    let library =
        "echo \"$0: error while loading shared libraries: libmx.so.1: cannot open shared object file\" >&2";
    for (script, expected) in [
        ("echo 'sh: mxom-client: not found' >&2; exit 127", Trouble::ToolMissing),
        ("echo 'sh: cannot execute' >&2; exit 126", Trouble::NoPermission),
        (&format!("{library}; exit 127"), Trouble::CannotStart),
        (&format!("{library}; exit 1"), Trouble::CannotStart),
        ("echo 'mxom-client: Exec format error' >&2; exit 2", Trouble::CannotStart),
    ] {
        let found = finding(Box::with(script).task()).await;
        assert_eq!(troubles(&found), [Some(expected); 4], "{script}: {found}");
        assert_eq!(found.status(), SwitchboxStatus::Untested, "{script}");
        assert!(found.fault().unwrap().component.is_nothing_broken(), "{script}");
    }
    let made = Box::with("say 1.0");
    for text in ["#!/nowhere/shell\n", "\x7fELF\x02\x01\x01\0junk(;|\n"] {
        made.write(&made.tool(), text, 0o755);
        let found = finding(made.task()).await;
        assert_eq!(found.status(), SwitchboxStatus::Untested, "{text:?}: {:?}", found.pairs[0].wrong);
    }
    made.write(&made.tool(), "#!/nowhere/shell\n", 0o755);
    let (found, lines) = check(made.task()).await;
    let advice = "cannot be started: run it by hand on this node; `ldd` lists missing libraries";
    assert!(lines.last().unwrap().ends_with(advice), "{lines:?}");
    assert!(found.unwrap().fault().unwrap().reason.contains(advice));
}

/// The default pairs are those of a host with eight.
#[tokio::test]
async fn default_pairs_on_a_host_of_four_are_invalid_and_not_a_fault() {
    let made = Box::with("say 50000.0");
    made.tree(&[0, 1, 2, 3]);
    let of = |are_pairs_given| Settings { are_pairs_given, ..settings() };
    let message = "the switchbox cannot be checked: this host has 4 accelerators, and the default \
                 pairs 0:1 2:4 3:5 6:7 need an accelerator on each of 8 sockets (pairs that lack one: 2:4 3:5 6:7), so";
    let (found, _) = check(SwitchboxTask { settings: of(false), ..made.task() }).await;
    let said = found.unwrap_err().to_string();
    assert!(said.starts_with(message), "{said}");
    // So does a program that reports the number of devices.
    let command = SwitchboxProbe::Command(r#"echo '{"v":1,"devices":4,"results":[]}'"#.into());
    let pair = |dir| format!(r#"{{"pair":[0,1],"dir":"{dir}","mbps":50000,"path":"nvlink"}}"#);
    let line = format!(r#"echo '{{"v":1,"devices":4,"results":[{},{}]}}'"#, pair("ab"), pair("ba"));
    for probe in [command, SwitchboxProbe::Command(line.into())] {
        let (found, _) = check(SwitchboxTask { settings: of(false), probe, ..made.task() }).await;
        let Err(SwitchboxError::Cannot(why)) = found else { panic!("{found:?}") };
        assert!(why.starts_with("this host has 4 accelerators, and the default pairs"), "{why}");
    }
    // The user states that they should exist.
    let given = finding(SwitchboxTask { settings: of(true), ..made.task() }).await;
    assert_eq!((given.status(), given.good()), (SwitchboxStatus::Fault, 1));
    // One of eight is lost.
    made.tree(&[0, 1, 2, 3, 4, 5, 6]);
    let lost = Settings { min_channels: 4, ..of(false) };
    assert_eq!(
        finding(SwitchboxTask { settings: lost, ..made.task() }).await.status(),
        SwitchboxStatus::Fault
    );
}

/// Its document may name the devices, and the host knows their models.
#[tokio::test]
async fn the_model_decides_when_all_links_fell_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let line = format!("cat {}", file.display());
    let plain = results([37_700.0; 4], "pcie");
    let named = |model: &str| {
        plain.replace("\"err\":null", &format!("\"err\":null,\"gpus\":[\"GPU 0 ({model})\",\"GPU 1\"]"))
    };
    for (document, model, status) in [
        (named("NVIDIA H100 80GB HBM3"), "", SwitchboxStatus::Fault),
        (named("NVIDIA H100 PCIe"), "NVIDIA H100 80GB HBM3", SwitchboxStatus::Ok),
        (plain.clone(), "MetaX MXC500", SwitchboxStatus::Fault),
        (plain.clone(), "", SwitchboxStatus::Ok),
        (results([37_700.0; 4], "host"), "MetaX MXC500", SwitchboxStatus::Fault),
        (results([37_700.0; 4], "warp"), "", SwitchboxStatus::Untested),
        (results([37_700.0; 4], "loopback"), "", SwitchboxStatus::Fault),
    ] {
        fs::write(&file, &document).unwrap();
        let models = if model.is_empty() { Vec::new() } else { vec![model.to_owned()] };
        let finding = by(&line, Settings { models, ..settings() }).await;
        assert_eq!(finding.status(), status, "{document} {model}: {finding}");
        let has_note = finding.to_string().contains("no pair used a link");
        assert_eq!(has_note, status == SwitchboxStatus::Ok, "{finding}");
    }
}
