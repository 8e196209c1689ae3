//! Constant expressions: their values, types and operators (PTX ISA, 4.5).
//!
//! Integers have 64 bits, signed (`.s64`) or unsigned (`.u64`); floats have 64. Where the PTX ISA is ambiguous, this computes
//! what ptxas 13.0 does: shifts take the distance modulo 64, `%` and `~` are unsigned, and `?:` has the type of the chosen value.

/// A value of a constant expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Constant {
    /// `.s64`
    Signed(i64),
    /// `.u64`: a number with the suffix `U`, or one that `.s64` cannot hold.
    Unsigned(u64),
    /// Bits of `0f...`, which accepts only a sign as an operator.
    F32(u32),
    /// `.f64`
    F64(f64),
}

/// An operator before its operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    /// `+`
    Plus,
    /// `-`
    Minus,
    /// `!`
    Not,
    /// `~`
    Complement,
    /// `(.s64)`
    ToSigned,
    /// `(.u64)`
    ToUnsigned,
}

/// An operator between its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    /// `||`
    LogicalOr,
    /// `&&`
    LogicalAnd,
    /// `|`
    Or,
    /// `^`
    Xor,
    /// `&`
    And,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `<<`
    Left,
    /// `>>`
    Right,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
}

/// The value of a computation, or why its operands are invalid.
pub(crate) type Computed = Result<Constant, &'static str>;

/// Message for an operand that must be an integer.
const NOT_INTEGER: &str = "expected an integer constant";
/// Message for operands of different types, and for `0f...` in an expression.
const MISMATCH: &str = "constants of different types in an expression";
/// Message for a division.
const DIVISION: &str = "division by zero, or with a result that does not fit";

impl Constant {
    /// Returns the bits of an integer.
    pub(crate) fn bits(self) -> Result<u64, &'static str> {
        match self {
            Self::Signed(value) => Ok(value.cast_unsigned()),
            Self::Unsigned(value) => Ok(value),
            Self::F32(_) | Self::F64(_) => Err(NOT_INTEGER),
        }
    }

    /// Returns whether an integer is not zero.
    pub(crate) fn holds(self) -> Result<bool, &'static str> {
        self.bits().map(|bits| bits != 0)
    }

    /// Makes an integer, signed if `signed`.
    fn integer(bits: u64, signed: bool) -> Self {
        if signed { Self::Signed(bits.cast_signed()) } else { Self::Unsigned(bits) }
    }

    /// Returns whether it is a signed integer.
    fn is_signed(self) -> bool {
        matches!(self, Self::Signed(_))
    }

    /// Applies a unary operator.
    pub(crate) fn apply(self, operator: Unary) -> Computed {
        Ok(match (operator, self) {
            (Unary::Plus, value) => value,
            (Unary::Minus, Self::F32(bits)) => Self::F32(bits ^ 1 << 31),
            (Unary::Minus, Self::F64(value)) => Self::F64(-value),
            (Unary::Minus, value) => Self::integer(value.bits()?.wrapping_neg(), value.is_signed()),
            (Unary::Not, value) => Self::Signed(i64::from(!value.holds()?)),
            (Unary::Complement, value) => Self::Unsigned(!value.bits()?),
            (Unary::ToSigned, value) => Self::integer(value.bits()?, true),
            (Unary::ToUnsigned, value) => Self::integer(value.bits()?, false),
        })
    }

    /// Applies a binary operator to it and `other`.
    pub(crate) fn join(self, operator: Binary, other: Self) -> Computed {
        match (self, other) {
            (Self::F64(a), Self::F64(b)) => floats(operator, a, b),
            (Self::F32(_) | Self::F64(_), _) | (_, Self::F32(_) | Self::F64(_)) => Err(MISMATCH),
            _ => integers(operator, self, other),
        }
    }
}

/// Returns the value of a comparison.
fn truth(holds: bool) -> Constant {
    Constant::Signed(i64::from(holds))
}

/// Applies an operator to floats.
fn floats(operator: Binary, a: f64, b: f64) -> Computed {
    Ok(match operator {
        Binary::Add => Constant::F64(a + b),
        Binary::Subtract => Constant::F64(a - b),
        Binary::Multiply => Constant::F64(a * b),
        Binary::Divide if b == 0.0 => return Err(DIVISION),
        Binary::Divide => Constant::F64(a / b),
        Binary::Equal => truth(a == b),
        Binary::NotEqual => truth(a != b),
        Binary::Less => truth(a < b),
        Binary::LessOrEqual => truth(a <= b),
        Binary::Greater => truth(a > b),
        Binary::GreaterOrEqual => truth(a >= b),
        _ => return Err(NOT_INTEGER),
    })
}

/// Applies an operator to integers. The result is signed if both are, except that shifts keep the type of the value.
fn integers(operator: Binary, left: Constant, right: Constant) -> Computed {
    let (a, b) = (left.bits()?, right.bits()?);
    let signed = left.is_signed() && right.is_signed();
    let less = |a: u64, b: u64| if signed { a.cast_signed() < b.cast_signed() } else { a < b };
    Ok(match operator {
        Binary::LogicalOr => truth(a != 0 || b != 0),
        Binary::LogicalAnd => truth(a != 0 && b != 0),
        Binary::Or => Constant::integer(a | b, signed),
        Binary::Xor => Constant::integer(a ^ b, signed),
        Binary::And => Constant::integer(a & b, signed),
        Binary::Equal => truth(a == b),
        Binary::NotEqual => truth(a != b),
        Binary::Less => truth(less(a, b)),
        Binary::LessOrEqual => truth(!less(b, a)),
        Binary::Greater => truth(less(b, a)),
        Binary::GreaterOrEqual => truth(!less(a, b)),
        Binary::Left => Constant::integer(a.wrapping_shl(b as u32), left.is_signed()),
        Binary::Right if left.is_signed() => Constant::Signed(a.cast_signed().wrapping_shr(b as u32)),
        Binary::Right => Constant::Unsigned(a.wrapping_shr(b as u32)),
        Binary::Add => Constant::integer(a.wrapping_add(b), signed),
        Binary::Subtract => Constant::integer(a.wrapping_sub(b), signed),
        Binary::Multiply => Constant::integer(a.wrapping_mul(b), signed),
        Binary::Divide if signed => Constant::Signed(a.cast_signed().checked_div(b.cast_signed()).ok_or(DIVISION)?),
        Binary::Divide => Constant::Unsigned(a.checked_div(b).ok_or(DIVISION)?),
        Binary::Remainder => Constant::Unsigned(a.checked_rem(b).ok_or(DIVISION)?),
    })
}

impl Binary {
    /// Returns its precedence, as in C: a higher operator binds tighter.
    pub(crate) fn precedence(self) -> u8 {
        match self {
            Self::LogicalOr => 0,
            Self::LogicalAnd => 1,
            Self::Or => 2,
            Self::Xor => 3,
            Self::And => 4,
            Self::Equal | Self::NotEqual => 5,
            Self::Less | Self::LessOrEqual | Self::Greater | Self::GreaterOrEqual => 6,
            Self::Left | Self::Right => 7,
            Self::Add | Self::Subtract => 8,
            Self::Multiply | Self::Divide | Self::Remainder => 9,
        }
    }

    /// Parses an operator from two characters, or from the first of them alone.
    pub(crate) fn parse(first: u8, second: Option<u8>) -> Option<Self> {
        Some(match (first, second) {
            (b'|', Some(b'|')) => Self::LogicalOr,
            (b'&', Some(b'&')) => Self::LogicalAnd,
            (b'=', Some(b'=')) => Self::Equal,
            (b'!', Some(b'=')) => Self::NotEqual,
            (b'<', Some(b'=')) => Self::LessOrEqual,
            (b'>', Some(b'=')) => Self::GreaterOrEqual,
            (b'<', Some(b'<')) => Self::Left,
            (b'>', Some(b'>')) => Self::Right,
            (b'|', None) => Self::Or,
            (b'^', None) => Self::Xor,
            (b'&', None) => Self::And,
            (b'<', None) => Self::Less,
            (b'>', None) => Self::Greater,
            (b'+', None) => Self::Add,
            (b'-', None) => Self::Subtract,
            (b'*', None) => Self::Multiply,
            (b'/', None) => Self::Divide,
            (b'%', None) => Self::Remainder,
            _ => return None,
        })
    }
}
