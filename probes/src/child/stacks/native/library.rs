//! A file of which code is mapped: where its tables for unwinding are, and its symbols. Read once, however many
//! processes have mapped it.

use std::{
    collections::BTreeMap,
    fs::{File, read_link},
    ops::{Deref, Range},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use framehop::ExplicitModuleSectionInfo;
use memmap2::Mmap;
use object::{
    LittleEndian, elf,
    read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable, Sym as _},
};

use super::{maps::Mapping, memory, names};

type Header = elf::FileHeader64<LittleEndian>;

/// Without a size a symbol reaches to the next one, but not farther than this.
const LONGEST_UNSIZED: u64 = 4096;

/// The code that the kernel maps into every process is shorter.
const LONGEST_VDSO: u64 = 1 << 20;

/// A file that is read when it is first asked for; `None` when that has failed.
type Entry = Arc<OnceLock<Option<Arc<Library>>>>;

/// The files of all processes, by device and inode.
#[derive(Default)]
pub(in super::super) struct Libraries(Mutex<BTreeMap<(String, u64), Entry>>);

impl Libraries {
    /// The file of a mapping; `None` when it cannot be read.
    pub(super) fn of(&self, pid: i32, mapping: &Mapping) -> Option<Arc<Library>> {
        let is_file = mapping.path.starts_with('/');
        if !is_file {
            return (mapping.path == "[vdso]").then(|| vdso(pid, mapping)).flatten();
        }
        let key = mapping.file.clone();
        let entry = Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        entry.get_or_init(|| open(pid, mapping).map(Arc::new)).clone()
    }
}

/// By the mapping, which needs rights but finds deleted files too, else by the path, as the process sees it.
fn open(pid: i32, mapping: &Mapping) -> Option<Library> {
    let by_mapping = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let by_path = || {
        let is_deleted = mapping.path.ends_with(" (deleted)");
        (!is_deleted).then(|| File::open(format!("/proc/{pid}/root{}", mapping.path)).ok()).flatten()
    };
    // Opening what is no regular file may have an effect or wait; only such files and devices are mapped.
    let is_device = mapping.path.starts_with("/dev/") && !mapping.path.starts_with("/dev/shm/");
    if is_device || read_link(&by_mapping).is_err() && mapping.path.starts_with("/dev/") {
        return None;
    }
    let file = File::open(by_mapping).ok().or_else(by_path)?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return None;
    }
    // SAFETY: the file is only read. One that is cut short meanwhile ends this process by SIGBUS, which is the fault
    // that a process of its own is for: what was read of Python's stacks has been reported by then.
    let bytes = unsafe { Mmap::map(&file) }.ok()?;
    Library::parse(Bytes::Mapped(Arc::new(bytes)))
}

fn vdso(pid: i32, mapping: &Mapping) -> Option<Arc<Library>> {
    let size = usize::try_from((mapping.end - mapping.start).min(LONGEST_VDSO)).ok()?;
    let mut bytes = vec![0; size];
    let read = memory::read(pid, mapping.start, &mut bytes).ok()?;
    bytes.truncate(read);
    Library::parse(Bytes::Copied(bytes.into())).map(Arc::new)
}

/// The bytes of a file.
#[derive(Clone)]
enum Bytes {
    Mapped(Arc<Mmap>),
    Copied(Arc<[u8]>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Copied(bytes) => bytes,
        }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Copied(Arc::default())
    }
}

/// A part of them.
#[derive(Clone, Default)]
pub(super) struct Section {
    bytes: Bytes,
    range: Range<usize>,
}

impl Deref for Section {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

/// A file of which code is mapped.
pub(in super::super) struct Library {
    bytes: Bytes,
    /// What is loaded from where: offset in the file, size in it, address.
    segments: Vec<(u64, u64, u64)>,
    sections: BTreeMap<&'static [u8], (Range<u64>, Range<usize>)>,
    symbols: OnceLock<Symbols>,
}

/// The sections that unwinding reads.
const SECTIONS: [&[u8]; 5] = [b".text", b".got", b".eh_frame", b".eh_frame_hdr", b".debug_frame"];

impl Library {
    /// `None` when it is not an ELF file of 64 bits.
    fn parse(bytes: Bytes) -> Option<Self> {
        let data: &[u8] = &bytes;
        let header = Header::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let headers = header.program_headers(endian, data).ok()?;
        let loaded = headers.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
        let segments = loaded
            .map(|segment| (segment.p_offset(endian), segment.p_filesz(endian), segment.p_vaddr(endian)))
            .collect();
        let mut sections = BTreeMap::new();
        // A file without sections is unwound by frame pointers, and has no names.
        if let Ok(table) = header.sections(endian, data) {
            for name in SECTIONS {
                let Some((_, section)) = table.section_by_name(endian, name) else { continue };
                let (address, size) = (section.sh_addr(endian), section.sh_size(endian));
                let Some(end) = address.checked_add(size) else { continue };
                let range = section.file_range(endian).and_then(|(offset, size)| {
                    let start = usize::try_from(offset).ok()?;
                    let end = start.checked_add(usize::try_from(size).ok()?)?;
                    (end <= data.len()).then_some(start..end)
                });
                sections.insert(name, (address..end, range.unwrap_or_default()));
            }
        }
        Some(Self { segments, sections, symbols: OnceLock::new(), bytes })
    }

    /// What is to be added to an address of the file to get the one in the process.
    pub(super) fn bias(&self, mapping: &Mapping) -> Option<u64> {
        const PAGE: u64 = 4096;
        // Mappings begin at pages, segments anywhere.
        let of_mapping = |(offset, size, _): &&(u64, u64, u64)| {
            let first = offset - offset % PAGE;
            first <= mapping.offset && mapping.offset < offset.saturating_add(*size)
        };
        let (offset, _, address) = self.segments.iter().rev().find(of_mapping)?;
        let at_start = mapping.offset.wrapping_sub(*offset).wrapping_add(*address);
        Some(mapping.start.wrapping_sub(at_start))
    }

    pub(super) fn for_unwinding(&self) -> ExplicitModuleSectionInfo<Section> {
        let address = |name: &[u8]| self.sections.get(name).map(|(address, _)| address.clone());
        let data = |name: &[u8]| {
            let (_, range) = self.sections.get(name)?;
            (!range.is_empty()).then(|| Section { bytes: self.bytes.clone(), range: range.clone() })
        };
        ExplicitModuleSectionInfo {
            text_svma: address(b".text"),
            text: data(b".text"),
            got_svma: address(b".got"),
            eh_frame_svma: address(b".eh_frame"),
            eh_frame: data(b".eh_frame"),
            eh_frame_hdr_svma: address(b".eh_frame_hdr"),
            eh_frame_hdr: data(b".eh_frame_hdr"),
            debug_frame: data(b".debug_frame"),
            ..ExplicitModuleSectionInfo::default()
        }
    }

    /// The name of the function at an address of the file.
    pub(super) fn function(&self, address: u64) -> Option<String> {
        let symbols = self.symbols.get_or_init(|| Symbols::read(&self.bytes).unwrap_or_default());
        symbols.at(&self.bytes, address)
    }
}

/// The functions of a file, by address.
#[derive(Default)]
struct Symbols {
    functions: Vec<Function>,
    /// Where the names are in the file.
    names: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    start: u64,
    size: u64,
    name: u32,
}

impl Symbols {
    /// The symbols that are there without stripping, else those for linking.
    fn read(data: &[u8]) -> Option<Self> {
        let header = Header::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let table = header.sections(endian, data).ok()?;
        let of =
            |kind| Self::of_kind(&table, endian, data, kind).filter(|symbols| !symbols.functions.is_empty());
        of(elf::SHT_SYMTAB).or_else(|| of(elf::SHT_DYNSYM))
    }

    fn of_kind(
        table: &SectionTable<'_, Header>,
        endian: LittleEndian,
        data: &[u8],
        kind: elf::SectionType,
    ) -> Option<Self> {
        let symbols = table.symbols(endian, data, kind).ok()?;
        let strings = table.section(symbols.string_section()).ok()?.file_range(endian)?;
        let start = usize::try_from(strings.0).ok()?;
        let end = start.checked_add(usize::try_from(strings.1).ok()?)?.min(data.len());
        let is_function = |symbol: &&elf::Sym64<LittleEndian>| {
            matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC)
                && symbol.st_shndx(endian) != elf::SHN_UNDEF
                && symbol.st_value(endian) != 0
        };
        let function = |symbol: &elf::Sym64<LittleEndian>| Function {
            start: symbol.st_value(endian),
            size: symbol.st_size(endian),
            name: symbol.st_name(endian),
        };
        let mut functions: Vec<Function> = symbols.iter().filter(is_function).map(function).collect();
        functions.sort_unstable();
        Some(Self { functions, names: start..end })
    }

    fn at(&self, data: &[u8], address: u64) -> Option<String> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let start = self.functions.get(after.checked_sub(1)?)?.start;
        let contains = |function: &&Function| match function.size {
            0 => address - function.start < LONGEST_UNSIZED,
            size => address - function.start < size,
        };
        // Several names for one function are usual, as `__read`, `read` and `__libc_read`.
        let same = self.functions.get(..after)?.iter().rev().take_while(|function| function.start == start);
        let names = same.filter(contains).filter_map(|function| self.name(data, function.name));
        names.min_by_key(|name| names::rank(name)).map(names::demangled)
    }

    fn name<'a>(&self, data: &'a [u8], offset: u32) -> Option<&'a str> {
        let names = data.get(self.names.clone())?;
        let from = names.get(usize::try_from(offset).ok()?..)?;
        let name = from.get(..memchr::memchr(0, from)?)?;
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::stacks::native::maps;

    /// A function of this program, which is not stripped.
    #[inline(never)]
    extern "C" fn a_function_with_a_name() -> usize {
        std::hint::black_box(7)
    }

    fn own() -> (i32, Vec<Mapping>) {
        let pid = i32::try_from(std::process::id()).unwrap();
        (pid, maps::of(pid))
    }

    #[test]
    fn a_function_of_this_program_is_found_by_its_address() {
        let (pid, maps) = own();
        let address = a_function_with_a_name as extern "C" fn() -> usize as usize as u64;
        let mapping = maps::at(&maps, address).unwrap();
        let libraries = Libraries::default();
        let library = libraries.of(pid, mapping).unwrap();
        let name = library.function(address - library.bias(mapping).unwrap()).unwrap();
        assert!(name.contains("a_function_with_a_name"), "{name}");
        assert!(Arc::ptr_eq(&library, &libraries.of(pid, mapping).unwrap()));
    }

    #[test]
    fn a_function_of_the_c_library_is_found_too() {
        let (pid, maps) = own();
        let address = nix::libc::getpid as unsafe extern "C" fn() -> i32 as usize as u64;
        let mapping = maps::at(&maps, address).unwrap();
        let library = Libraries::default().of(pid, mapping).unwrap();
        let name = library.function(address - library.bias(mapping).unwrap());
        assert_eq!(name.as_deref(), Some("getpid"));
    }

    #[test]
    fn the_code_of_the_kernel_is_read_from_memory() {
        let (pid, maps) = own();
        let Some(mapping) = maps.iter().find(|mapping| mapping.path == "[vdso]") else {
            println!("skipped: this kernel maps no vdso");
            return;
        };
        let library = Libraries::default().of(pid, mapping).unwrap();
        assert_eq!(library.bias(mapping), Some(mapping.start));
        assert!(library.for_unwinding().eh_frame.is_some());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

        /// A real file with bytes that are not its own.
        #[test]
        fn a_damaged_file_never_panics(
            damage in proptest::collection::vec((0..4096_usize, 0..=255_u8), 0..40),
            cut in 0..6000_usize,
            address: u64,
        ) {
            let mut bytes = small_elf();
            for (at, byte) in damage {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut.max(64));
            if let Some(library) = Library::parse(Bytes::Copied(bytes.into())) {
                library.function(address % 0x10_0000);
                let mapping = Mapping {
                    start: 0x1000, end: 0x2000, is_executable: true, offset: address % 0x2000,
                    file: (String::new(), 1), path: String::new(),
                };
                library.bias(&mapping);
                let info = library.for_unwinding();
                framehop::Module::new("x".to_owned(), 0x1000..0x2000, 0x1000, info);
            }
        }
    }

    /// The vdso, which is a whole file of a few pages; else the head of this program.
    fn small_elf() -> Vec<u8> {
        let (pid, maps) = own();
        match maps.iter().find(|mapping| mapping.path == "[vdso]") {
            Some(mapping) => {
                let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
                memory::read(pid, mapping.start, &mut bytes).unwrap();
                bytes
            }
            None => std::fs::read("/proc/self/exe").unwrap()[..4096].to_vec(),
        }
    }
}
