//! The functions that some instructions approximate, and their permitted errors.
//!
//! The functions are computed in `f64`, whose error is far below any bound of a result of 32 bits or fewer.

use crate::kind::Format;

/// How an error is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Measure {
    /// In units of the last place of the exact value, in the type of the result.
    Ulp(f64),
    /// Relative to the exact value.
    Relative(f64),
    /// An absolute distance.
    Absolute(f64),
    /// Relative or absolute, whichever allows more.
    Either(f64),
}

/// The largest error allowed, and the function it is measured from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bound {
    /// Permitted distance of results.
    pub(crate) measure: Measure,
    /// The function; `None` for a bound around recorded values.
    pub(crate) function: Option<Function>,
}

/// An exact function of one or two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    /// `1 / a`
    Rcp,
    /// `sqrt(a)`
    Sqrt,
    /// `1 / sqrt(a)`
    Rsqrt,
    /// `2 ^ a`
    Ex2,
    /// `log2(a)`
    Lg2,
    /// `sin(a)`
    Sin,
    /// `cos(a)`
    Cos,
    /// `tanh(a)`
    Tanh,
    /// `a / b`
    Div,
}

impl Function {
    /// Returns the function called `name`.
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "rcp" => Self::Rcp,
            "sqrt" => Self::Sqrt,
            "rsqrt" => Self::Rsqrt,
            "ex2" => Self::Ex2,
            "lg2" => Self::Lg2,
            "sin" => Self::Sin,
            "cos" => Self::Cos,
            "tanh" => Self::Tanh,
            "div" => Self::Div,
            _ => return None,
        })
    }

    /// Returns its value; `b` matters only to functions of two operands.
    pub(crate) fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Rcp => 1.0 / a,
            Self::Sqrt => a.sqrt(),
            Self::Rsqrt => 1.0 / a.sqrt(),
            Self::Ex2 => a.exp2(),
            Self::Lg2 => a.log2(),
            Self::Sin => a.sin(),
            Self::Cos => a.cos(),
            Self::Tanh => a.tanh(),
            Self::Div => a / b,
        }
    }
}

impl Bound {
    /// Parses `rel 2^-22 ex2`, `ulp 1 rcp`, `abs 2^-20.9 sin`; the function is optional.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (measure, amount) = (words.next()?, number(words.next()?)?);
        let measure = match measure {
            "ulp" => Measure::Ulp(amount),
            "rel" => Measure::Relative(amount),
            "abs" => Measure::Absolute(amount),
            "either" => Measure::Either(amount),
            _ => return None,
        };
        let function = match words.next() {
            Some(name) => Some(Function::parse(name)?),
            None => None,
        };
        Some(Self { measure, function }).filter(|_| words.next().is_none())
    }

    /// Returns whether the bound is absolute, so that zero can stand for a tiny value.
    pub(crate) fn is_absolute(self) -> bool {
        matches!(self.measure, Measure::Absolute(_) | Measure::Either(_))
    }

    /// Returns the share of the bound that `value` uses around `exact`: above 1 is too far. Not for NaN or infinities.
    pub(crate) fn used(self, exact: f64, value: f64, format: Format) -> f64 {
        let error = (value - exact).abs();
        let (error, allowed) = match self.measure {
            Measure::Ulp(units) => (error, units * unit(exact, format)),
            // Subnormal numbers have no relative error: their last place is the limit.
            Measure::Relative(part) => (error, (part * exact.abs()).max(unit(0.0, format))),
            Measure::Absolute(part) => (error, part.max(unit(0.0, format))),
            Measure::Either(part) => (error, part * exact.abs().max(1.0)),
        };
        if error == 0.0 { 0.0 } else { error / allowed }
    }
}

/// Parses `2^-22.5` or a plain number.
fn number(text: &str) -> Option<f64> {
    match text.strip_prefix("2^") {
        Some(exponent) => exponent.parse::<f64>().ok().map(f64::exp2),
        None => text.parse().ok(),
    }
}

/// Returns the last place of a value in a format; for smaller values, that of the smallest normal number.
pub(crate) fn unit(value: f64, format: Format) -> f64 {
    let least = 1 - format.bias();
    let exponent = if value == 0.0 { least } else { (value.abs().log2().floor() as i32).max(least) };
    f64::from(exponent - format.fraction as i32).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::SINGLE_FORMAT;

    #[test]
    fn bounds_are_read_and_used() {
        let bound = Bound::parse("rel 2^-22 ex2").unwrap();
        assert_eq!(bound.function, Some(Function::Ex2));
        assert!(bound.used(1.0, 1.0 + 2.0_f64.powi(-23), SINGLE_FORMAT) < 0.6);
        assert!(Bound::parse("ulp 1").unwrap().used(1.0, 1.0 + 3.0 * 2.0_f64.powi(-23), SINGLE_FORMAT) > 2.0);
        assert_eq!((Bound::parse("ulp"), Bound::parse("far 1 ex2"), Bound::parse("ulp 1 foo")), (None, None, None));
    }

    #[test]
    fn the_last_place_of_subnormals_does_not_shrink() {
        assert_eq!(unit(1e-45, SINGLE_FORMAT), 2.0_f64.powi(-149));
        assert_eq!(unit(1.5, SINGLE_FORMAT), 2.0_f64.powi(-23));
    }
}
