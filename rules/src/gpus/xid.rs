//! NVIDIA's numbers for what goes wrong with a device, as its driver tells them (the catalogue of Xid errors in NVIDIA's
//! documentation of GPU deployment).

/// What a number means, for those that training meets.
#[must_use]
pub const fn xid_words(code: u64) -> &'static str {
    match code {
        13 => "graphics engine exception, mostly an error of the program",
        31 => "memory page fault, mostly an error of the program",
        32 => "invalid or corrupted push buffer",
        38 => "driver firmware error",
        43 => "the device stopped processing, mostly an error of the program",
        45 => "work was taken off the device, mostly because its process ended",
        48 => "memory error of two bits (ECC)",
        61 | 62 => "the device's microcontroller halted",
        63 => "a row of memory is marked for replacement",
        64 => "a row of memory could not be marked for replacement",
        69 => "graphics engine class error",
        74 => "NVLink error",
        79 => "the device has fallen off the bus",
        92 => "many memory errors of one bit",
        94 => "a memory error that only its own process suffered from",
        95 => "a memory error that more than one process suffered from",
        119 | 120 => "the device's system processor does not answer",
        140 => "memory error that could not be corrected",
        _ => "see NVIDIA's catalogue of Xid errors",
    }
}
