//! `cvt` to and from 8-bit floats: `e4m3x2`, `e5m2x2`, from two `f32` or an `f16x2`, and back to an `f16x2`.

use crate::alu::small::{self, Conversion, Form};
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::Draft;
use crate::decode::modifiers::Modifiers;
use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// Returns the conversion of a `cvt`, and the types of result and source, if it belongs to this module.
pub(crate) fn conversion(i: &Instruction<'_>) -> Option<(Conversion, Ty, Ty)> {
    let mut types = i.modifiers.iter().filter_map(|word| Ty::parse(word));
    let (to, from) = (types.next()?, types.next()?);
    let (form, four) = match (to, from) {
        (Ty::E4m3x2 | Ty::E5m2x2, Ty::F32) => (Form::Join, to == Ty::E4m3x2),
        (Ty::E4m3x2 | Ty::E5m2x2, Ty::F16x2) => (Form::Narrow, to == Ty::E4m3x2),
        (Ty::F16x2, Ty::E4m3x2 | Ty::E5m2x2) => (Form::Widen, from == Ty::E4m3x2),
        _ => return None,
    };
    Some((Conversion { form, four, relu: i.modifiers.contains(&"relu") }, to, from))
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// `cvt.rn.satfinite.e4m3x2.f32 d, a, b`, `cvt.rn.satfinite.e4m3x2.f16x2 d, a`, `cvt.rn.f16x2.e4m3x2 d, a`.
    pub(crate) fn convert_small(
        &mut self,
        i: &Instruction<'a>,
        m: &mut Modifiers<'a>,
        (conversion, to, from): (Conversion, Ty, Ty),
    ) -> Result<(), LoadError> {
        let (nearest, finite) = (m.take("rn"), m.take("satfinite"));
        m.take("relu");
        // Skips the types of result and source, which are known already.
        m.ty();
        m.ty();
        if !nearest || finite != (conversion.form != Form::Widen) {
            return Err(self.unsupported(i));
        }
        let [destination, sources @ ..] = i.operands.as_slice() else { return Err(self.invalid("no operands")) };
        if sources.len() != if conversion.form == Form::Join { 2 } else { 1 } {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        }
        let a = self.source(&sources[0], from)?;
        let b = self.source(&sources[sources.len() - 1], from)?;
        let d = self.destination(destination, to)?;
        self.push(Draft::new(small::convert).d(d).a(a).b(b).imm(conversion.encode()).distinct_slots());
        Ok(())
    }
}
