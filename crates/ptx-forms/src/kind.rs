//! The types of operands: their widths, and the registers that hold them.

/// Layout of a float of up to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the exponent.
    pub(crate) exponent: u32,
    /// Bits of the fraction.
    pub(crate) fraction: u32,
}

/// `f16`
const HALF_FORMAT: Format = Format { exponent: 5, fraction: 10 };
/// `bf16`
const BRAIN_FORMAT: Format = Format { exponent: 8, fraction: 7 };
/// `f32`
pub(crate) const SINGLE_FORMAT: Format = Format { exponent: 8, fraction: 23 };
/// `f64`
pub(crate) const DOUBLE_FORMAT: Format = Format { exponent: 11, fraction: 52 };

impl Format {
    /// Returns the bits of a value.
    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    /// Returns the bias of the exponent.
    pub(crate) fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }
}

/// Contents of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A predicate.
    Predicate,
    /// An integer, or bits.
    Integer,
    /// A float.
    Float(Format),
    /// Two parts of `bits / 2` each.
    Two(Option<Format>),
}

/// A type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperandKind {
    /// Its name in PTX.
    pub(crate) name: &'static str,
    /// Its width in bits; a predicate takes a byte.
    pub(crate) bits: u32,
    /// Its contents.
    pub(crate) content: Content,
}

/// Shorthand for the table below.
const fn kind(name: &'static str, bits: u32, content: Content) -> OperandKind {
    OperandKind { name, bits, content }
}

/// All types.
const OPERAND_KINDS: &[OperandKind] = &[
    kind("pred", 8, Content::Predicate),
    kind("b8", 8, Content::Integer),
    kind("u8", 8, Content::Integer),
    kind("s8", 8, Content::Integer),
    kind("b16", 16, Content::Integer),
    kind("u16", 16, Content::Integer),
    kind("s16", 16, Content::Integer),
    kind("b32", 32, Content::Integer),
    kind("u32", 32, Content::Integer),
    kind("s32", 32, Content::Integer),
    kind("b64", 64, Content::Integer),
    kind("u64", 64, Content::Integer),
    kind("s64", 64, Content::Integer),
    kind("b128", 128, Content::Integer),
    kind("e4m3x2", 16, Content::Integer),
    kind("e5m2x2", 16, Content::Integer),
    kind("u16x2", 32, Content::Two(None)),
    kind("s16x2", 32, Content::Two(None)),
    kind("f16", 16, Content::Float(HALF_FORMAT)),
    kind("bf16", 16, Content::Float(BRAIN_FORMAT)),
    kind("f16x2", 32, Content::Two(Some(HALF_FORMAT))),
    kind("bf16x2", 32, Content::Two(Some(BRAIN_FORMAT))),
    kind("tf32", 32, Content::Float(SINGLE_FORMAT)),
    kind("f32", 32, Content::Float(SINGLE_FORMAT)),
    kind("f64", 64, Content::Float(DOUBLE_FORMAT)),
];

impl OperandKind {
    /// Returns the type called `name`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        OPERAND_KINDS.iter().find(|kind| kind.name == name).copied()
    }

    /// Returns the bytes of a value in memory.
    pub(crate) fn bytes(self) -> usize {
        self.bits as usize / 8
    }

    /// Returns the width of its register in bits, at least 16.
    pub(crate) fn register_bits(self) -> u32 {
        self.bits.max(16)
    }

    /// Returns the type of its register.
    pub(crate) fn register(self) -> &'static str {
        match (self.content, self.register_bits()) {
            (Content::Predicate, _) => "pred",
            (Content::Float(SINGLE_FORMAT), _) if self.name == "f32" => "f32",
            (Content::Float(DOUBLE_FORMAT), _) => "f64",
            (_, 16) => "b16",
            (_, 32) => "b32",
            (_, 64) => "b64",
            _ => "b128",
        }
    }

    /// Returns the type that loads it. Narrow integers are sign-extended.
    pub(crate) fn loaded_as(self) -> &'static str {
        match (self.name, self.bits) {
            ("pred", _) => "u8",
            ("s8" | "u8" | "b8" | "f32" | "f64", _) => self.name,
            (_, 16) => "b16",
            (_, 32) => "b32",
            (_, 64) => "b64",
            _ => "v2.b64",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_fill_their_types() {
        for kind in OPERAND_KINDS {
            if let Content::Float(format) = kind.content {
                assert_eq!(format.bits(), kind.bits, "{}", kind.name);
            }
        }
        assert_eq!(OperandKind::parse("f32").map(OperandKind::register), Some("f32"));
        assert_eq!(OperandKind::parse("u8").map(OperandKind::register), Some("b16"));
        assert_eq!(OperandKind::parse("v2"), None);
    }
}
