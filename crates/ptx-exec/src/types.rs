//! The types of PTX and the registers that hold them.

/// A fundamental type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ty {
    /// `.pred`
    Pred,
    /// `.u8` to `.u64`
    U(u32),
    /// `.s8` to `.s64`
    S(u32),
    /// `.b8` to `.b128`
    B(u32),
    /// `.f16`
    F16,
    /// `.f16x2`
    F16x2,
    /// `.bf16`
    Bf16,
    /// `.bf16x2`
    Bf16x2,
    /// `.f32`
    F32,
    /// `.f64`
    F64,
    /// `.u16x2`
    U16x2,
    /// `.s16x2`
    S16x2,
    /// `.tf32`
    Tf32,
    /// `.e4m3x2`
    E4m3x2,
    /// `.e5m2x2`
    E5m2x2,
    /// `.texref .samplerref .surfref`: an 8-byte handle.
    Handle,
}

/// Width of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    /// One bit for each lane, all lanes in one word.
    Pred,
    /// Up to 32 bits for each lane: one row.
    Word,
    /// 64 bits for each lane: two rows.
    Double,
}

impl Ty {
    /// Returns the type called `name`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "u8" => Self::U(8),
            "u16" => Self::U(16),
            "u32" => Self::U(32),
            "u64" => Self::U(64),
            "s8" => Self::S(8),
            "s16" => Self::S(16),
            "s32" => Self::S(32),
            "s64" => Self::S(64),
            "b8" => Self::B(8),
            "b16" => Self::B(16),
            "b32" => Self::B(32),
            "b64" => Self::B(64),
            "b128" => Self::B(128),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "u16x2" => Self::U16x2,
            "s16x2" => Self::S16x2,
            "tf32" => Self::Tf32,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            "texref" | "samplerref" | "surfref" => Self::Handle,
            _ => return None,
        })
    }

    /// Whether it is two values of 16 bits.
    pub(crate) fn is_pair(self) -> bool {
        matches!(self, Self::F16x2 | Self::Bf16x2 | Self::U16x2 | Self::S16x2)
    }

    /// Its name, without the dot.
    pub(crate) fn name(self) -> String {
        match self {
            Self::U(bits) => format!("u{bits}"),
            Self::S(bits) => format!("s{bits}"),
            Self::B(bits) => format!("b{bits}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// Its size in bits; 1 for a predicate.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::U(bits) | Self::S(bits) | Self::B(bits) => bits,
            Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 16,
            Self::F16x2 | Self::Bf16x2 | Self::F32 | Self::U16x2 | Self::S16x2 | Self::Tf32 => 32,
            Self::F64 | Self::Handle => 64,
        }
    }

    /// Returns its size in bytes.
    pub(crate) fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Returns the width of the register that holds it; `None` for 128 bits.
    pub(crate) fn width(self) -> Option<Width> {
        match self.bits() {
            1 => Some(Width::Pred),
            8..=32 => Some(Width::Word),
            64 => Some(Width::Double),
            _ => None,
        }
    }

    /// Returns the integer type for conversions; bits count as unsigned.
    pub(crate) fn integer(self) -> Option<IntegerKind> {
        match self {
            Self::U(bits) | Self::B(bits) => Some(IntegerKind { bits, signed: false }),
            Self::S(bits) => Some(IntegerKind { bits, signed: true }),
            _ => None,
        }
    }
}

/// An integer type as a value at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IntegerKind {
    /// Size in bits: 8, 16, 32 or 64.
    pub(crate) bits: u32,
    /// Whether the type has a sign.
    pub(crate) signed: bool,
}

impl IntegerKind {
    /// Returns the value of the low bits of `raw`.
    pub(crate) fn read(self, raw: u64) -> i128 {
        let unused = 64 - self.bits;
        if self.signed {
            i128::from((raw << unused).cast_signed() >> unused)
        } else {
            i128::from(raw << unused >> unused)
        }
    }

    /// Returns the nearest value of this type.
    pub(crate) fn clamp(self, value: i128) -> i128 {
        let sign = u32::from(self.signed);
        let max = (1_i128 << (self.bits - sign)) - 1;
        let min = if self.signed { -max - 1 } else { 0 };
        value.clamp(min, max)
    }

    /// Returns whether it has all values of `other`.
    pub(crate) fn holds(self, other: Self) -> bool {
        let (own_bits, other_bits) = (self.bits - u32::from(self.signed), other.bits - u32::from(other.signed));
        own_bits >= other_bits && (self.signed || !other.signed)
    }

    /// Encodes the type in a few bits, for `Inst::imm`.
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.bits) << 1 | u64::from(self.signed)
    }

    /// Decodes the result of `encode`.
    pub(crate) fn decode(code: u64) -> Self {
        Self { bits: ((code >> 1) & 0x7f) as u32, signed: code & 1 != 0 }
    }
}

/// Address space that an instruction can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// Any of the other spaces; the address decides which.
    Generic,
    /// Addresses of device memory.
    Global,
    /// Offsets into the block's shared memory.
    Shared,
    /// Offsets into the thread's local memory.
    Local,
}

impl Space {
    /// Encodes the space as a number, for `Inst` fields.
    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Generic => 0,
            Self::Global => 1,
            Self::Shared => 2,
            Self::Local => 3,
        }
    }

    /// Decodes the result of `encode`.
    pub(crate) fn decode(code: u32) -> Self {
        [Self::Generic, Self::Global, Self::Shared, Self::Local][code as usize & 3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_widths() {
        assert_eq!(Ty::parse("f16x2").unwrap().width(), Some(Width::Word));
        assert_eq!(Ty::parse("s8").unwrap().width(), Some(Width::Word));
        assert_eq!(Ty::parse("f64").unwrap().bytes(), 8);
        assert_eq!(Ty::parse("b128").unwrap().width(), None);
        assert_eq!(Ty::parse("v2"), None);
    }
}
