//! Command lines, as argparse reads them.

use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use crate::testing::words;

/// The options as `name=value`, then `|`, then the script and its arguments.
fn shape(line: &str) -> String {
    shape_of(&words(line))
}

fn shape_of(words: &[OsString]) -> String {
    match read(words) {
        Err(error) => error.to_string(),
        Ok(Reading::Help) => "help".to_owned(),
        Ok(Reading::Version) => "version".to_owned(),
        Ok(Reading::Completion(shell)) => format!("completion {shell}"),
        Ok(Reading::Line(line)) => {
            let mut parts: Vec<String> = Vec::new();
            for (flag, raw, value) in &line.given {
                let raw = raw.to_string_lossy();
                let name = flag.spec().long;
                parts.push(if *value == Value::Switch(true) {
                    name.to_owned()
                } else {
                    format!("{name}={raw}")
                });
            }
            parts.push("|".to_owned());
            parts.extend(
                line.script.iter().chain(&line.script_args).map(|word| word.to_string_lossy().into_owned()),
            );
            if !line.unrecognized.is_empty() {
                parts.push(format!("unrecognized {}", line.unrecognized.join(" ")));
            }
            parts.join(" ")
        }
    }
}

#[test]
fn every_form_of_a_value_is_read() {
    for line in ["--redirects 3 x", "--redirects=3 x", "-r3 x", "-r 3 x", "-r=3 x"] {
        assert_eq!(shape(line), "redirects=3 | x", "{line}");
    }
    assert_eq!(shape("-mr3 x"), "module redirects=3 | x");
    assert_eq!(shape("-mr 3 x"), "module redirects=3 | x");
    assert_eq!(shape("-mmt=2 x"), "module module tee=2 | x");
    assert_eq!(shape("--role= x"), "role= | x");
    assert_eq!(shape("--rdzv-conf=a=b x"), "rdzv-conf=a=b | x");
}

#[test]
fn both_spellings_are_one_option_and_the_last_is_last() {
    assert_eq!(shape("--max_restarts 1 --max-restarts=2 x"), "max-restarts=1 max-restarts=2 | x");
    assert_eq!(shape("--ucp_device_type cpu x"), "ucp-device-type=cpu | x");
}

#[test]
fn parsing_stops_at_the_script() {
    assert_eq!(shape("x -h -- --nproc-per-node=9 --no"), "| x -h -- --nproc-per-node=9 --no");
    assert_eq!(shape("-m pkg.mod -m"), "module | pkg.mod -m");
    assert_eq!(shape_of(&["".into(), "a".into()]), "|  a");
    assert_eq!(shape("- a"), "| - a");
}

#[test]
fn the_first_double_dash_ends_the_options_and_later_ones_are_kept() {
    assert_eq!(shape("-- x a"), "| x a");
    assert_eq!(shape("-- --standalone a"), "| --standalone a");
    assert_eq!(shape("--standalone -- x -- a"), "standalone | x -- a");
    assert_eq!(shape("x -- a"), "| x a");
    assert_eq!(shape("x -- -- a"), "| x -- a");
    assert_eq!(shape("x a -- b"), "| x a -- b");
    assert_eq!(shape("x --"), "| x");
    assert_eq!(shape("--"), "|");
    assert_eq!(shape("--nnodes -- 2 x"), "argument --nnodes: expected one argument");
}

#[test]
fn an_abbreviation_resolves_among_torchruns_flags_first() {
    for (short, long) in [
        ("--standal", "standalone"),
        ("--max-r=1", "max-restarts=1"),
        ("--max_r=1", "max-restarts=1"),
        ("--rdzv-b=c10d", "rdzv-backend=c10d"),
        ("--rol=a", "role=a"),
        ("--nproc=2", "nproc-per-node=2"),
        ("--nnode=1", "nnodes=1"),
        // Ours would make these ambiguous: --node-unit, --numa-affinity, --accelerator and --auto-config.
        ("--node=0", "node-rank=0"),
        ("--numa=node", "numa-binding=node"),
        // And these are ours alone.
        ("--node-u=1", "node-unit=1"),
        ("--net", "network-check"),
        ("--network-check-t=1", "network-check-timeout=1"),
        ("--numa-a", "numa-affinity"),
        ("--exclude", "exclude-straggler"),
        ("--propagate", "propagate-exit-code"),
    ] {
        assert_eq!(shape(&format!("{short} x")), format!("{long} | x"), "{short}");
    }
    assert_eq!(shape("--he x"), "help");
}

#[test]
fn an_abbreviation_of_several_options_is_refused_with_their_names() {
    assert_eq!(shape("--no x"), "ambiguous option: --no could match --no-python, --node-rank");
    assert_eq!(shape("--au x"), "ambiguous option: --au could match --auto-config, --auto-tunning");
    assert_eq!(shape("--mi=1 x"), "ambiguous option: --mi could match --min-bandwidth, --min-channels");
    assert!(shape("--=x").starts_with("ambiguous option: --"));
}

#[test]
fn a_switch_takes_no_value() {
    for line in ["--standalone=1 x", "--standalone= x", "--module=1 x", "-m=1 x", "-mx x", "--help=1 x"] {
        assert!(shape(line).contains("ignored explicit argument"), "{line}: {}", shape(line));
    }
}

#[test]
fn a_value_that_looks_like_an_option_is_none() {
    for line in
        ["--role", "--role --standalone x", "--role -x y", "-r", "--role --bogus x", "--max-restarts -1e x"]
    {
        assert!(shape(line).ends_with(": expected one argument"), "{line}: {}", shape(line));
    }
    assert_eq!(shape("--role - x"), "role=- | x");
    assert_eq!(shape("--max-restarts -1 x"), "max-restarts=-1 | x");
    assert_eq!(shape("--monitor-interval -.5 x"), "monitor-interval=-.5 | x");
    assert_eq!(shape_of(&["--role".into(), "-a b".into(), "x".into()]), "role=-a b | x");
}

#[test]
fn a_negative_number_or_a_word_with_a_space_may_be_the_script() {
    assert_eq!(shape("-5 a"), "| -5 a");
    assert_eq!(shape_of(&["--foo bar".into(), "a".into()]), "| --foo bar a");
}

#[test]
fn an_unknown_option_is_remembered_and_reading_goes_on() {
    assert_eq!(shape("--bogus x -y"), "| x -y unrecognized --bogus");
    assert_eq!(shape("--bogus=1 -x v x"), "| v x unrecognized --bogus=1 -x");
    assert_eq!(shape("--bogus -h"), "help");
    assert_eq!(shape("--nproc-per_node=2 x"), "| x unrecognized --nproc-per_node=2");
}

#[test]
fn help_and_completion_win_over_all_that_follows_but_not_over_an_earlier_mistake() {
    assert_eq!(shape("-h --max-restarts=a"), "help");
    assert_eq!(
        shape("--max-restarts=a -h"),
        "argument --max-restarts: invalid int value: 'a': give a whole number"
    );
    assert_eq!(shape("--print-completion zsh"), "completion zsh");
    assert!(
        shape("--print-completion elvish")
            .contains("invalid choice: 'elvish' (choose from bash, zsh, fish, tcsh)")
    );
    assert_eq!(shape("-mh"), "help");
}

#[test]
fn types_and_choices_are_checked_on_the_command_line() {
    for line in [
        "--max-restarts= x",
        "--max-restarts=1.5 x",
        "--node-rank=a x",
        "--master-port=http x",
        "--shutdown-timeout=1s x",
        "--monitor-interval=fast x",
        "--node-unit=a x",
    ] {
        assert!(shape(line).contains("invalid "), "{line}: {}", shape(line));
    }
    for line in ["--start-method=thread x", "--numa-binding=all x", "--precheck=3 x", "--accelerator=tpu x"] {
        assert!(shape(line).contains("invalid choice"), "{line}: {}", shape(line));
    }
}

#[test]
fn box_pairs_never_swallow_the_script() {
    let pairs = "box-pairs=0:1 2:4 | train.py --a 1";
    for line in [
        "--box-pairs 0:1 2:4 train.py --a 1",
        "--box-pairs 0:1 2:4 -- train.py --a 1",
        "--box_pairs=0:1 2:4 train.py --a 1",
    ] {
        assert_eq!(shape(line), pairs, "{line}");
    }
    let quoted = ["--box-pairs".into(), "0:1 2:4".into(), "train.py".into(), "--a".into(), "1".into()];
    assert_eq!(shape_of(&quoted), pairs);
    let all = "box-pairs=0:1 2:4 3:5 6:7";
    for (line, expected) in [
        ("--box-pairs 0:1 2:4 3:5 6:7 --nnodes=2 train.py --a 1", format!("{all} nnodes=2 | train.py --a 1")),
        ("--nnodes=2 --box-pairs 0:1 2:4 3:5 6:7 train.py --a 1", format!("nnodes=2 {all} | train.py --a 1")),
        ("--box-pairs=0:1 2:4 train.py", "box-pairs=0:1 2:4 | train.py".to_owned()),
        ("--box-pairs=0:1,2:4 3:5 train.py", "box-pairs=0:1,2:4 3:5 | train.py".to_owned()),
    ] {
        assert_eq!(shape(line), expected, "{line}");
    }
    assert_eq!(shape("--box-pairs 0:1,2:4 --nnodes=1 t"), "box-pairs=0:1,2:4 nnodes=1 | t");
    assert_eq!(
        shape("--box-pairs train.py"),
        "argument --box-pairs: invalid pairs: 'train.py': give pairs of sockets such as 0:1 2:4"
    );
    assert_eq!(shape("--box-pairs"), "argument --box-pairs: expected one argument");
    assert_eq!(shape("--box-pairs --standalone x"), "argument --box-pairs: expected one argument");
}

#[test]
fn a_pair_never_becomes_the_script() {
    for line in ["2:4 train.py", "--box-pairs=0:1 --standalone 2:4 train.py", "-- 2:4 train.py"] {
        assert!(shape(line).contains("looks like a pair"), "{line}: {}", shape(line));
    }
    assert_eq!(shape("./2:4"), "| ./2:4");
}

#[test]
fn two_commas_are_a_comma_in_an_item() {
    assert_eq!(items("apple,orange"), ["apple", "orange"]);
    assert_eq!(items("a,,b,c"), ["a,b", "c"]);
    assert_eq!(items(",,,"), [",", ""]);
    assert_eq!(items(""), [""]);
}

fn any_word() -> impl Strategy<Value = OsString> {
    let names: Vec<String> = OPTIONS.iter().map(|spec| spec.long.to_owned()).collect();
    prop_oneof![
        prop::collection::vec(any::<u8>().prop_filter("no NUL in argv", |byte| *byte != 0), 0..8)
            .prop_map(OsString::from_vec),
        "-{0,2}[a-z_=0-9: -]{0,8}".prop_map(OsString::from),
        (prop::sample::select(names), 1usize..12, "(=[0-9a-z,:]{0,4})?")
            .prop_map(|(name, length, value)| format!("--{}{value}", &name[..length.min(name.len())]).into()),
    ]
}

proptest! {
    #[test]
    fn no_command_line_panics(words in prop::collection::vec(any_word(), 0..8)) {
        let _ = read(&words);
    }

    #[test]
    fn the_scripts_words_always_survive(
        before in prop::sample::subsequence(vec!["--standalone", "-r3", "--max-restarts=1", "-m", "--role=a"], 0..5),
        ended in any::<bool>(),
        args in prop::collection::vec(any_word(), 0..8),
    ) {
        let mut words: Vec<OsString> = before.iter().map(OsString::from).collect();
        words.extend(ended.then(|| "--".into()));
        words.push("train.py".into());
        words.extend(args.iter().cloned());
        let Ok(Reading::Line(line)) = read(&words) else { panic!("a fine line") };
        prop_assert_eq!(line.script, Some("train.py".into()));
        let drops = !ended && args.first().is_some_and(|first| first == "--");
        prop_assert_eq!(&line.script_args[..], &args[usize::from(drops)..]);
        prop_assert_eq!(line.given.len(), before.len());
    }
}

#[test]
fn the_script_of_a_line_is_found_behind_any_options() {
    for (line, script) in [
        ("--nproc-per-node 2 --rdzv-id=a train.py --lr 1", Some("train.py")),
        ("-m pkg.train x.py", Some("-m pkg.train")),
        ("--no-python -- ./prog", Some("./prog")),
        ("--nnodes=2", None),
        ("--nonsense=2 --nnodes", None),
        ("--help train.py", None),
    ] {
        assert_eq!(script_of(&words(line)).as_deref(), script, "{line}");
    }
}
