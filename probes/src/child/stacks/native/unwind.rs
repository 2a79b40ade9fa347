//! From registers and a copy of the stack to calls with names.

use std::sync::Arc;

use framehop::{CacheNative, MayAllocateDuringUnwind, Module, Unwinder as _, UnwinderNative};
use stacks::{Frame, Thread};

use super::{
    library::{Libraries, Library, Section},
    maps::{self, Mapping},
    ptrace::CapturedThread,
};

/// Calls of one thread.
const MAX_FRAMES: usize = 2048;

/// What a debugger prints for a function without a name, or without a file.
const UNKNOWN: &str = "??";

/// A file, and what is to be added to its addresses.
type Placed = (Arc<Library>, u64);

/// Unwinds the threads of one process. Files are read when the first address in them is met.
pub(super) struct Unwinder<'a> {
    pid: i32,
    maps: &'a [Mapping],
    libraries: &'a Libraries,
    native: UnwinderNative<Section, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    /// The executable mappings that were added, by their start.
    known: Vec<(u64, Option<Placed>)>,
}

impl<'a> Unwinder<'a> {
    pub(super) fn new(pid: i32, maps: &'a [Mapping], libraries: &'a Libraries) -> Self {
        Self {
            pid,
            maps,
            libraries,
            native: UnwinderNative::new(),
            cache: CacheNative::new(),
            known: Vec::new(),
        }
    }

    pub(super) fn unwind(&mut self, thread: CapturedThread) -> Thread {
        let CapturedThread { name, registers, stack } = thread;
        let bottom = registers.stack;
        let mut read = |address: u64| {
            let at = address.checked_sub(bottom).and_then(|at| usize::try_from(at).ok()).ok_or(())?;
            let bytes = stack.get(at..at.checked_add(8).ok_or(())?).ok_or(())?;
            bytes.try_into().map(u64::from_ne_bytes).map_err(drop)
        };
        let top =
            self.maps.iter().rev().find(|mapping| mapping.is_executable).map_or(0, |mapping| mapping.end);
        let mut registers = registers.for_unwinding(top);
        let mut frames = Vec::new();
        let mut address = framehop::FrameAddress::from_instruction_pointer(thread.registers.instruction);
        while frames.len() < MAX_FRAMES {
            let at = address.address_for_lookup();
            // The file must be known before its frame can be left.
            frames.push(self.frame(at));
            match self.native.unwind_frame(address, &mut registers, &mut self.cache, &mut read) {
                Ok(Some(next)) => match framehop::FrameAddress::from_return_address(next) {
                    Some(next) => address = next,
                    None => break,
                },
                // The end of the stack, or what was copied of it.
                Ok(None) | Err(_) => break,
            }
        }
        Thread { name, frames }
    }

    fn frame(&mut self, address: u64) -> Frame {
        let Some(mapping) = maps::at(self.maps, address).filter(|mapping| mapping.is_executable) else {
            return Frame { function: UNKNOWN.to_owned(), file: UNKNOWN.to_owned(), line: None };
        };
        let library = self.library(mapping);
        let function = library.and_then(|(library, bias)| library.function(address.wrapping_sub(bias)));
        let file = match mapping.path.as_str() {
            "" => UNKNOWN,
            path => path.trim_end_matches(" (deleted)"),
        };
        Frame { function: function.unwrap_or_else(|| UNKNOWN.to_owned()), file: file.to_owned(), line: None }
    }

    /// The file of an executable mapping and its bias; added to the unwinder when it is new.
    fn library(&mut self, mapping: &Mapping) -> Option<Placed> {
        if let Some((_, known)) = self.known.iter().find(|(start, _)| *start == mapping.start) {
            return known.clone();
        }
        let library = self.libraries.of(self.pid, mapping);
        let found = library.and_then(|library| {
            let bias = library.bias(mapping)?;
            Some((library, bias))
        });
        if let Some((library, bias)) = &found {
            let range = mapping.start..mapping.end;
            self.native.add_module(Module::new(mapping.path.clone(), range, *bias, library.for_unwinding()));
        }
        self.known.push((mapping.start, found.clone()));
        found
    }
}
