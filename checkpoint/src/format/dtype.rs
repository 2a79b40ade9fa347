//! Element types of tensors, under torch's names without `torch.`.

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dtype(&'static Row);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    name: &'static str,
    /// Size of an element, in bytes.
    size: u64,
    /// The class of `torch` by which `torch.save` names a storage of this type; newer types have none.
    storage: Option<&'static str>,
    safetensors: Option<&'static str>,
}

const fn old(name: &'static str, size: u64, storage: &'static str, safetensors: Option<&'static str>) -> Row {
    Row { name, size, storage: Some(storage), safetensors }
}

const fn new(name: &'static str, size: u64, safetensors: Option<&'static str>) -> Row {
    Row { name, size, storage: None, safetensors }
}

/// All that `torch.save` takes. Quantised types are not here: their scale is a part of the tensor, so that
/// the client pickles them.
static ROWS: [Row; 28] = [
    old("bfloat16", 2, "BFloat16Storage", Some("BF16")),
    old("bool", 1, "BoolStorage", Some("BOOL")),
    old("complex128", 16, "ComplexDoubleStorage", None),
    old("complex64", 8, "ComplexFloatStorage", Some("C64")),
    old("float16", 2, "HalfStorage", Some("F16")),
    old("float32", 4, "FloatStorage", Some("F32")),
    old("float64", 8, "DoubleStorage", Some("F64")),
    old("int16", 2, "ShortStorage", Some("I16")),
    old("int32", 4, "IntStorage", Some("I32")),
    old("int64", 8, "LongStorage", Some("I64")),
    old("int8", 1, "CharStorage", Some("I8")),
    old("uint8", 1, "ByteStorage", Some("U8")),
    new("bcomplex32", 4, None),
    new("bits16", 2, None),
    new("bits1x8", 1, None),
    new("bits2x4", 1, None),
    new("bits4x2", 1, None),
    new("bits8", 1, None),
    new("complex32", 4, None),
    // Two values in a byte: safetensors counts them, torch the bytes.
    new("float4_e2m1fn_x2", 1, None),
    new("float8_e4m3fn", 1, Some("F8_E4M3")),
    new("float8_e4m3fnuz", 1, Some("F8_E4M3FNUZ")),
    new("float8_e5m2", 1, Some("F8_E5M2")),
    new("float8_e5m2fnuz", 1, Some("F8_E5M2FNUZ")),
    // safetensors can hold it, but its reader for torch does not know it.
    new("float8_e8m0fnu", 1, None),
    new("uint16", 2, Some("U16")),
    new("uint32", 4, Some("U32")),
    new("uint64", 8, Some("U64")),
];

impl Dtype {
    /// Returns the type of this name, such as `float8_e4m3fn`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(Self)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Size of an element, in bytes: 1, 2, 4, 8 or 16.
    #[must_use]
    pub fn size(self) -> u64 {
        self.0.size
    }

    /// The class of `torch` for a storage of this type, such as `FloatStorage`.
    #[must_use]
    pub fn storage_class(self) -> Option<&'static str> {
        self.0.storage
    }

    /// The name of this type in a safetensors file, or nothing when there is none that torch reads.
    #[must_use]
    pub fn safetensors_name(self) -> Option<&'static str> {
        self.0.safetensors
    }

    /// All types.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for dtype in Dtype::all() {
            assert_eq!(Dtype::named(dtype.name()), Some(dtype));
        }
        let float8 = Dtype::named("float8_e4m3fn").unwrap();
        assert_eq!((float8.size(), float8.storage_class()), (1, None));
        assert_eq!(Dtype::named("float32").unwrap().storage_class(), Some("FloatStorage"));
        for unknown in ["", "torch.float32", "Float32", "qint8"] {
            assert_eq!(Dtype::named(unknown), None);
        }
    }
}
