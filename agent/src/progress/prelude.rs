//! The prelude of `--progress=auto` as the bytes of a zip, which Python imports from.
//!
//! A zip, because it is one file, and so can be a file in memory. Not deflated, so that no interpreter needs zlib.

/// What runs when Python starts.
const START: &str = include_str!("start.py");

/// What runs when torch's optimizers are imported.
const COUNTING: &str = include_str!("counting.py");

/// What leaves the list for the template of warm workers, compiled where there is to be one.
const LISTING: &str = include_str!("listing.py");

/// What the template of warm workers does, one text after the other.
const TEMPLATE: [&str; 9] = [
    include_str!("../warm/held.py"),
    include_str!("../warm/environment.py"),
    include_str!("../warm/customize.py"),
    include_str!("../warm/process.py"),
    include_str!("../warm/modules.py"),
    include_str!("../warm/script.py"),
    include_str!("../warm/randomness.py"),
    include_str!("../warm/worker.py"),
    include_str!("../warm/template.py"),
];

/// The module by which Python finds it.
const NAME: &[u8] = b"sitecustomize.py";

/// The first of January 1980, the beginning of time in a zip.
const DATE: u16 = 1 << 5 | 1;

/// The source of the module. Python compiles a module of a zip twice, so that it has strings and one line.
fn source() -> String {
    source_of(&[("LISTING", LISTING), ("COUNTING", COUNTING)], START)
}

/// The same for the template of warm workers, which runs the text of a worker's start itself.
fn template_source() -> String {
    source_of(&[("LISTING", LISTING), ("COUNTING", COUNTING), ("START", START)], &TEMPLATE.concat())
}

/// Strings by their names, and the text that is run.
fn source_of(strings: &[(&str, &str)], text: &str) -> String {
    let named = |(name, text): &(&str, &str)| [name, " = r'''", &without_comments(text), "'''\n"].concat();
    let strings: String = strings.iter().map(named).collect();
    [&strings, "exec(compile(r'''", &without_comments(text), "''', '<dlrover-run>', 'exec'))\n"].concat()
}

/// The file of workers.
pub(super) fn zip() -> Vec<u8> {
    zip_of(&source())
}

/// That of the template of warm workers.
pub(crate) fn template_zip() -> Vec<u8> {
    zip_of(&template_source())
}

fn without_comments(source: &str) -> String {
    let lines = source.lines().filter(|line| !line.is_empty() && !line.trim_start().starts_with('#'));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The zip: one member with its local header, the directory, and the end of the directory.
fn zip_of(source: &str) -> Vec<u8> {
    let length = u32::try_from(source.len()).unwrap_or_default();
    // Version, flags, method (stored), time, date, checksum, both lengths, length of the name, of what follows it.
    let mut member = Vec::new();
    for field in [10, 0, 0, 0, DATE] {
        member.extend(u16::to_le_bytes(field));
    }
    for field in [crc32fast::hash(source.as_bytes()), length, length] {
        member.extend(u32::to_le_bytes(field));
    }
    for field in [NAME.len() as u16, 0] {
        member.extend(u16::to_le_bytes(field));
    }

    let mut zip = [b"PK\x03\x04", &member[..], NAME, source.as_bytes()].concat();
    let directory = zip.len() as u32;
    // Version of the writer; after the member: comment, disk, attributes of two kinds, where the member begins.
    zip.extend([&b"PK\x01\x02\x0a\x00"[..], &member, &[0; 14], NAME].concat());
    let length = zip.len() as u32 - directory;
    zip.extend(b"PK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00");
    zip.extend([length, directory].map(u32::to_le_bytes).concat());
    zip.extend([0, 0]);
    zip
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn the_texts_fit_into_strings_of_python() {
        for text in [START, COUNTING, LISTING].into_iter().chain(TEMPLATE) {
            assert!(text.is_ascii() && !text.contains("'''") && !text.contains('\\') && text.ends_with('\n'));
        }
    }

    #[test]
    fn python_reads_the_zip_and_finds_no_fault_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prelude.zip");
        fs::write(&path, zip()).unwrap();
        let check = "import sys, zipfile\n\
                     archive = zipfile.ZipFile(sys.argv[1])\n\
                     assert archive.testzip() is None\n\
                     (member,) = archive.infolist()\n\
                     assert member.date_time == (1980, 1, 1, 0, 0, 0), member.date_time\n\
                     sys.stdout.write(archive.read('sitecustomize.py').decode())";
        let output = Command::new("python3").args(["-c", check]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), source());
    }
}
