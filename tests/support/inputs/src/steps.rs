//! Several pieces in one input: for parsers of which one message alone does little.

/// Most of one piece, in bytes.
pub const LONGEST: usize = u16::MAX as usize;

/// A piece: two bytes for its use, its length as a little-endian `u16`, and its bytes. The last one may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// Its use.
    pub kind: u8,
    /// Its argument: a time, a number.
    pub by: u8,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The pieces of an input.
pub fn of(input: &[u8]) -> impl Iterator<Item = Step<'_>> {
    let mut rest = input;
    std::iter::from_fn(move || {
        let ([kind, by, low, high], behind) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (bytes, others) = behind.split_at(length);
        rest = others;
        Some(Step { kind: *kind, by: *by, bytes })
    })
}

/// The input of these pieces; what is too long for one is cut.
#[must_use]
pub fn join<'a>(steps: impl IntoIterator<Item = Step<'a>>) -> Vec<u8> {
    let mut input = Vec::new();
    for Step { kind, by, bytes } in steps {
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        input.extend([kind, by]);
        input.extend(length.to_le_bytes());
        input.extend(bytes);
    }
    input
}
