//! `/proc/PID/maps`: what is mapped where.

use std::{fs::File, io::Read as _};

/// A process has fewer mappings, or the rest is left out.
const LONGEST: u64 = 32 << 20;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Mapping {
    pub(in super::super) start: u64,
    pub(in super::super) end: u64,
    pub(in super::super) is_executable: bool,
    /// Where in the file it begins.
    pub(in super::super) offset: u64,
    /// Device and inode: the same for all processes that have mapped the file.
    pub(in super::super) file: (String, u64),
    /// As the process names it; `[stack]`, `[vdso]` and the like; empty for memory without a file.
    pub(in super::super) path: String,
}

/// The mappings of a process, in order of their addresses; none when they cannot be read.
pub(in super::super) fn of(pid: i32) -> Vec<Mapping> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/maps")) {
        // What was read until an error counts.
        let _partial = file.take(LONGEST).read_to_end(&mut bytes);
    }
    parse(&String::from_utf8_lossy(&bytes))
}

/// Lines of another form are left out.
pub(super) fn parse(text: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = text.lines().filter_map(line).collect();
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

fn line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let flags = fields.next()?;
    let offset = number(fields.next()?)?;
    let device = fields.next()?.to_owned();
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_start().to_owned();
    (start < end).then(|| Mapping {
        start,
        end,
        is_executable: flags.as_bytes().get(2) == Some(&b'x'),
        offset,
        file: (device, inode),
        path,
    })
}

/// The mapping that an address is in.
pub(super) fn at(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    mappings.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000002000-7f0000003000 rw-p 00000000 00:00 0 
7f0000000000-7f0000001000 r-xp 00001000 08:01 77                         /usr/lib/a b.so (deleted)
nonsense
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn lines_are_read_in_order_of_their_addresses() {
        let mappings = parse(TEXT);
        let paths: Vec<&str> = mappings.iter().map(|mapping| mapping.path.as_str()).collect();
        assert_eq!(paths, ["/usr/lib/a b.so (deleted)", "", "[stack]"]);
        let first = &mappings[0];
        assert_eq!(
            (first.offset, first.is_executable, &first.file),
            (0x1000, true, &("08:01".to_owned(), 77))
        );
        assert_eq!(at(&mappings, 0x7f00_0000_0fff), Some(first));
        assert_eq!(at(&mappings, 0x7f00_0000_1000), None);
        assert_eq!(at(&mappings, 0), None);
    }

    #[test]
    fn this_process_has_a_stack_and_code() {
        let mappings = of(i32::try_from(std::process::id()).unwrap());
        let here = this_process_has_a_stack_and_code as fn() as usize as u64;
        assert!(at(&mappings, here).unwrap().is_executable);
        assert!(mappings.iter().any(|mapping| mapping.path == "[stack]"));
    }

    proptest::proptest! {
        #[test]
        fn foreign_text_never_panics(text in "(?s).{0,200}", address: u64) {
            at(&parse(&text), address);
        }

        #[test]
        fn what_is_found_has_the_address(lines in proptest::collection::vec((0..1000_u64, 1..20_u64), 0..20), address in 0..1100_u64) {
            let text: String = lines.iter().map(|(start, size)| format!("{start:x}-{:x} r-xp 0 0:0 1 /a\n", start + size)).collect();
            let mappings = parse(&text);
            if let Some(found) = at(&mappings, address) {
                proptest::prop_assert!(found.start <= address && address < found.end);
            }
        }
    }
}
