//! The valid conversions: the pairs of types of `cvt` for `sm_90`, with their possible modifiers.
//!
//! The table is what ptxas 13.0 accepts; `crates/ptx-forms/data/conversions.ptxas` checks it form by form.

use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// Roundings of a pair of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Roundings {
    /// No rounding.
    Never,
    /// One of the four of float results.
    Float,
    /// One of the four of float results, or none.
    MaybeFloat,
    /// One of the four to an integral value.
    Integral,
    /// One of the four to an integral value, or none.
    MaybeIntegral,
}

/// Modifiers of a `cvt` besides its types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ConversionModifiers<'a> {
    rounding: Option<&'a str>,
    flush: bool,
    saturate: bool,
    relu: bool,
    finite: bool,
}

impl<'a> ConversionModifiers<'a> {
    /// Reads the words before the two types; `None` if a word occurs twice or is unknown here.
    fn read(modifiers: &[&'a str]) -> Option<Self> {
        let mut read = Self::default();
        for word in modifiers {
            let flag = match *word {
                "ftz" => &mut read.flush,
                "sat" => &mut read.saturate,
                "relu" => &mut read.relu,
                "satfinite" => &mut read.finite,
                _ if read.rounding.is_none() => {
                    read.rounding = Some(word);
                    continue;
                }
                _ => return None,
            };
            if std::mem::replace(flag, true) {
                return None;
            }
        }
        Some(read)
    }

    /// Returns whether the rounding is one of those.
    fn rounds(&self, roundings: Roundings) -> bool {
        use Roundings::{Float, Integral, MaybeFloat, MaybeIntegral, Never};
        match self.rounding {
            None => matches!(roundings, Never | MaybeFloat | MaybeIntegral),
            Some("rn" | "rz" | "rm" | "rp") => matches!(roundings, Float | MaybeFloat),
            Some("rni" | "rzi" | "rmi" | "rpi") => matches!(roundings, Integral | MaybeIntegral),
            Some(_) => false,
        }
    }

    /// Returns whether it has such a rounding, and flushes and saturates only if allowed.
    fn plain(&self, roundings: Roundings, flush: bool, saturate: bool) -> bool {
        let allowed = (flush || !self.flush) && (saturate || !self.saturate);
        self.rounds(roundings) && allowed && !self.relu && !self.finite
    }

    /// Returns whether it rounds to nearest even or to zero, with modifiers of conversions to small floats only.
    fn small(&self) -> bool {
        matches!(self.rounding, Some("rn" | "rz")) && !self.flush && !self.saturate
    }
}

/// Returns whether the conversion exists, except those of `.pack`.
pub(super) fn exists(i: &Instruction<'_>) -> bool {
    let Some((modifiers, types)) = i.modifiers.len().checked_sub(2).map(|at| i.modifiers.split_at(at)) else {
        return false;
    };
    let (Some(modifiers), [to, from]) = (ConversionModifiers::read(modifiers), types) else { return false };
    match (Ty::parse(to), Ty::parse(from)) {
        (Some(to), Some(from)) => allows(&modifiers, to, from),
        _ => false,
    }
}

/// Returns whether a pair of types accepts these modifiers.
fn allows(modifiers: &ConversionModifiers<'_>, to: Ty, from: Ty) -> bool {
    use Roundings::{Float, Integral, MaybeFloat, MaybeIntegral, Never};
    let nearest = modifiers.rounding == Some("rn") && !modifiers.flush && !modifiers.saturate;
    match (to, from) {
        (Ty::U(_) | Ty::S(_), Ty::U(_) | Ty::S(_)) => {
            let narrower = match (to.integer(), from.integer()) {
                (Some(to), Some(from)) => !to.holds(from),
                _ => false,
            };
            modifiers.plain(Never, false, narrower)
        }
        (Ty::U(_) | Ty::S(_), Ty::F16 | Ty::F64) => modifiers.plain(Integral, false, true),
        (Ty::U(_) | Ty::S(_), Ty::F32) => modifiers.plain(Integral, true, true),
        (Ty::U(_) | Ty::S(_), Ty::Bf16) => modifiers.plain(Integral, false, false),
        (Ty::F16 | Ty::F64, Ty::U(_) | Ty::S(_)) | (Ty::F16, Ty::F64) => modifiers.plain(Float, false, true),
        (Ty::F32, Ty::U(_) | Ty::S(_) | Ty::F64) => modifiers.plain(Float, true, true),
        (Ty::Bf16, Ty::U(_) | Ty::S(_) | Ty::F64) => modifiers.plain(Float, false, false),
        (Ty::F16, Ty::F16) | (Ty::F64, Ty::F64) => modifiers.plain(MaybeIntegral, false, true),
        (Ty::F32, Ty::F32) => modifiers.plain(MaybeIntegral, true, true),
        (Ty::Bf16, Ty::Bf16) => modifiers.plain(MaybeIntegral, false, false),
        (Ty::F64, Ty::F16) => modifiers.plain(Never, false, true),
        (Ty::F32, Ty::F16) | (Ty::F64, Ty::F32) => modifiers.plain(Never, true, true),
        (Ty::F16, Ty::Bf16) | (Ty::Bf16, Ty::F16) | (Ty::F64, Ty::Bf16) => modifiers.plain(MaybeFloat, false, false),
        (Ty::F32, Ty::Bf16) => modifiers.plain(MaybeFloat, true, false),
        (Ty::F16, Ty::F32) => {
            modifiers.plain(Float, true, true) || (modifiers.small() && (modifiers.relu || modifiers.finite))
        }
        (Ty::Bf16, Ty::F32) => {
            modifiers.plain(Float, true, false) || (modifiers.small() && (modifiers.relu || modifiers.finite))
        }
        (Ty::F16x2 | Ty::Bf16x2, Ty::F32) => modifiers.small(),
        (Ty::Tf32, Ty::F32) if modifiers.rounding == Some("rna") => {
            !modifiers.flush && !modifiers.saturate && !modifiers.relu
        }
        (Ty::Tf32, Ty::F32) => modifiers.small() && !modifiers.finite,
        (Ty::F16x2, Ty::E4m3x2 | Ty::E5m2x2) => nearest && !modifiers.finite,
        (Ty::E4m3x2 | Ty::E5m2x2, Ty::F32 | Ty::F16x2) => nearest && modifiers.finite,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_accepted(name: &str) -> bool {
        let modifiers = name.split('.').skip(1).collect();
        exists(&Instruction { guard: None, opcode: "cvt", modifiers, operands: Vec::new(), line: 1 })
    }

    #[test]
    fn words_are_those_of_the_types() {
        let good =
            ["cvt.rzi.s8.bf16", "cvt.sat.u8.s32", "cvt.rn.satfinite.f16.f32", "cvt.f64.f16", "cvt.rz.ftz.f32.bf16"];
        let bad = [
            "cvt.s8.bf16",
            "cvt.sat.s32.u8",
            "cvt.satfinite.f16.f32",
            "cvt.rn.f64.f16",
            "cvt.rn.rn.f32.f64",
            "cvt.f32",
        ];
        assert!(good.into_iter().all(is_accepted) && !bad.into_iter().any(is_accepted));
    }
}
