//! Whether the files of a dump have all that they are to have.

use std::{fs, path::Path};

use stacks::{RankDump, Ranks, Thread};

use super::{ODD, USUAL};
use crate::Outcome;

/// The pictures and texts of all ranks.
pub(super) const MERGED: [&str; 4] = ["py_stack.svg", "cpp_stack.svg", "py_stack", "cpp_stack"];

/// What the name of a rank's file ends with.
pub(super) const EXTENSION: &str = ".stacktrace";

/// Reads the files of all ranks in a directory.
pub(super) fn dumps(folder: &Path) -> Outcome<Vec<RankDump>> {
    let mut dumps = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name =
            entry.file_name().into_string().map_err(|name| format!("{} is no name", name.display()))?;
        if name.ends_with(EXTENSION) {
            dumps.push(stacks::read(&name, &fs::read(entry.path())?)?);
        }
    }
    dumps.sort_by_key(|dump| dump.rank);
    Ok(dumps)
}

/// Reads the files of all ranks, of which none may lack its Python stack or, with `native`, its native one; and the
/// merged files must be there.
pub(super) fn whole(folder: &Path, ranks: usize, native: bool) -> Outcome<Vec<RankDump>> {
    let dumps = dumps(folder)?;
    let mut faults = faults(&dumps, ranks, native);
    let missing =
        MERGED.iter().filter(|name| fs::metadata(folder.join(name)).map_or(0, |file| file.len()) == 0);
    faults.extend(missing.map(|name| format!("{name} is missing")));
    if faults.is_empty() { Ok(dumps) } else { Err(faults.join("; ").into()) }
}

fn faults(dumps: &[RankDump], ranks: usize, native: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |what: &str, has: &dyn Fn(&RankDump) -> bool| {
        let lack: Ranks = (0..)
            .take(ranks)
            .filter(|rank| !dumps.iter().any(|dump| dump.rank == *rank && has(dump)))
            .collect();
        if !lack.is_empty() {
            let notes = dumps.iter().flat_map(|dump| &dump.notes).next().map(String::as_str);
            let count = ranks - lack.len();
            let first = notes.unwrap_or("no note says why");
            faults.push(format!("{what} of {count} of {ranks} ranks, not of {} ({first})", lack.listed()));
        }
    };
    check("files", &|_| true);
    check("Python stacks", &|dump| {
        let place = if dump.rank as usize == ranks - 1 { ODD } else { USUAL };
        dump.python.iter().flat_map(|thread| &thread.frames).any(|frame| frame.function == place)
    });
    if native {
        check("native stacks", &|dump| !dump.native.is_empty() && dump.native.iter().all(has_frames));
    }
    faults
}

fn has_frames(thread: &Thread) -> bool {
    !thread.frames.is_empty()
}

#[cfg(test)]
mod tests {
    use stacks::Frame;

    use super::*;

    fn thread(function: &str) -> Thread {
        let frame = Frame { function: function.to_owned(), file: "worker.py".to_owned(), line: Some(1) };
        Thread { name: "MainThread".to_owned(), frames: vec![frame] }
    }

    fn dump(rank: u32, place: &str) -> RankDump {
        RankDump { python: vec![thread(place)], native: vec![thread("read")], ..RankDump::new(rank, 3) }
    }

    #[test]
    fn every_rank_is_where_it_waits() {
        let mut dumps = vec![dump(0, USUAL), dump(1, USUAL), dump(2, ODD)];
        assert_eq!(faults(&dumps, 3, true), [""; 0]);
        dumps[1].native.clear();
        dumps[1].notes.push("native stacks: no permission".to_owned());
        assert_eq!(faults(&dumps, 3, false), [""; 0]);
        assert_eq!(
            faults(&dumps, 3, true),
            ["native stacks of 2 of 3 ranks, not of 1 (native stacks: no permission)"]
        );
        dumps.truncate(1);
        dumps[0] = dump(0, "import_module");
        let faults = faults(&dumps, 3, true);
        assert_eq!(faults[0], "files of 1 of 3 ranks, not of 1-2 (no note says why)");
        assert_eq!(faults[1], "Python stacks of 0 of 3 ranks, not of 0-2 (no note says why)");
    }
}
