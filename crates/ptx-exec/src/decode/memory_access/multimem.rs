//! `multimem`: the existing operations and vectors, and their code.
//!
//! | | scalar | vectors |
//! |---|---|---|
//! | `add` | `u32 s32 u64 f32 f64 f16x2 bf16x2` | `f32` to `.v4`, `f16 bf16` from `.v2` to `.v8`, `f16x2 bf16x2` to `.v4` |
//! | `min max` | `u32 s32 u64 s64`; of a load also `f16x2 bf16x2` | `f16 bf16 f16x2 bf16x2` |
//! | `and or xor` | `b32 b64` | |
//! | `st` | any of these types | as `add` |

use crate::api::LoadError;
use crate::control::flow;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::Modifiers;
use crate::memory::multimem as code;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Returns whether vectors of that many elements of a type exist; 1 is a scalar.
fn has_vector(ty: Ty, count: usize) -> bool {
    match ty {
        Ty::F16 | Ty::Bf16 => matches!(count, 2 | 4 | 8),
        Ty::F16x2 | Ty::Bf16x2 | Ty::F32 => matches!(count, 1 | 2 | 4),
        Ty::U(32 | 64) | Ty::S(32 | 64) | Ty::B(32 | 64) | Ty::F64 => count == 1,
        _ => false,
    }
}

/// Returns whether an operation exists for a type.
fn exists(what: &str, name: &str, ty: Ty, count: usize) -> bool {
    let pair = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    match name {
        "add" => matches!(ty, Ty::U(_) | Ty::S(32) | Ty::F16 | Ty::Bf16 | Ty::F32 | Ty::F64) || pair,
        "min" | "max" if pair => count > 1 || what == "ld_reduce",
        "min" | "max" => matches!(ty, Ty::U(_) | Ty::S(_) | Ty::F16 | Ty::Bf16),
        _ => matches!(ty, Ty::B(_)),
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes `multimem.ld_reduce.relaxed.gpu.global.add.acc::f32.v4.f16x2 {a, b, c, d}, [e]` and its relatives.
    pub(crate) fn multimem(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let what = m.one_of(&["ld_reduce", "st", "red"]).ok_or_else(|| self.unsupported(i))?;
        let orders: &[&str] = match what {
            "ld_reduce" => &["weak", "relaxed", "acquire"],
            "st" => &["weak", "relaxed", "release"],
            _ => &["relaxed", "release"],
        };
        let order = m.one_of(orders);
        let scope = m.one_of(&["cta", "cluster", "gpu", "sys"]);
        if scope.is_some() != order.is_some_and(|order| order != "weak") {
            return Err(self.unsupported(i));
        }
        m.take("global");
        let name = if what == "st" { None } else { m.one_of(&["add", "min", "max", "and", "or", "xor"]) };
        let wide = what == "ld_reduce" && m.take("acc::f32");
        let count = m.one_of(&["v2", "v4", "v8"]).map_or(1, |word| usize::from(word.as_bytes()[1] - b'0'));
        let word = m.take_if(|word| Ty::parse(word).is_some()).ok_or_else(|| self.unsupported(i))?;
        let ty = Ty::parse(word).filter(|ty| has_vector(*ty, count)).ok_or_else(|| self.unsupported(i))?;
        let exec = match (what, name) {
            ("st", _) => code::store_code(ty.bits()),
            (_, Some(name)) if !exists(what, name, ty, count) => None,
            ("red", Some(name)) => code::reduce_code(name, word),
            (_, Some(name)) => code::load_code(name, word, wide),
            _ => None,
        };
        let exec = exec.ok_or_else(|| self.unsupported(i))?;
        let [first, second] = self.operands(i)?;
        let (address, values) = if what == "ld_reduce" { (second, first) } else { (first, second) };
        let address = self.plain_address(address, Some("global"))?;
        if address.width != Width::Double {
            return Err(self.invalid("multimem address of 32 bits"));
        }
        let values = self.multimem_values(values, ty, count, what == "ld_reduce")?;
        let draft = Draft::new(exec).a(address.base).imm(address.offset);
        let role = if what == "ld_reduce" { OperandRole::Def } else { OperandRole::Use };
        let draft = self.with_list(draft, &values, role).distinct_slots();
        if order == Some("release") {
            self.push_unguarded(Draft::new(flow::fence));
        }
        self.push(draft);
        if order == Some("acquire") {
            self.push_unguarded(Draft::new(flow::fence));
        }
        Ok(())
    }

    /// Returns the registers of a vector, or of one value.
    fn multimem_values(
        &mut self,
        operand: &Operand<'a>,
        ty: Ty,
        count: usize,
        written: bool,
    ) -> Result<Vec<Ref>, LoadError> {
        let parts = match operand {
            Operand::Vector(parts) if count > 1 => parts.as_slice(),
            _ => std::slice::from_ref(operand),
        };
        if parts.len() != count {
            return Err(self.invalid("vector of the wrong length"));
        }
        parts.iter().map(|part| if written { self.destination(part, ty) } else { self.source(part, ty) }).collect()
    }
}
