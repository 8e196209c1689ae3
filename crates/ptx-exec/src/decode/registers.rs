//! Parameters and arguments in registers: `.func (.reg .b32 r) f (.reg .b32 a)`, `call (r), f, (a, 3)`.
//!
//! A call copies areas of local memory. So a function with such parameters reads them into their registers when it starts, and
//! writes its results to their areas before it returns. A caller does the reverse, in areas that it makes for the call.

mod vector_registers;

use super::draft::Draft;
use crate::api::LoadError;
use crate::code::LocalArea;
use crate::decode::decoder::{Binding, CarriedRegister, FunctionDecoder};
use crate::decode::memory_access::memory::{load_code, store_code};
use crate::types::{Space, Ty, Width};
use katydid_ptx::ast::{Operand, Variable};

/// Bytes of the area of a register.
const REGISTER_AREA_BYTES: u32 = 8;

/// Returns the type that moves to and from an area.
fn moved(width: Width) -> Ty {
    if width == Width::Double { Ty::B(64) } else { Ty::B(32) }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Makes a register for a parameter, and the area that carries it.
    pub(crate) fn register_parameter(&mut self, parameter: &Variable<'a>) -> Result<CarriedRegister, LoadError> {
        let width = Ty::parse(parameter.ty).and_then(Ty::width).filter(|width| *width != Width::Pred);
        let (Some(width), None) = (width, parameter.count) else {
            return Err(self.unsupported_name(&format!("parameter in a .{} register", parameter.ty), parameter.line));
        };
        let area = self.area_of_register(parameter.line)?;
        let register = self.registers.fresh(width);
        self.bind(parameter.name, Binding::Register(register));
        Ok(CarriedRegister { register, width, area })
    }

    /// Reserves a new area for one register.
    pub(crate) fn area_of_register(&mut self, line: u32) -> Result<LocalArea, LoadError> {
        let offset = self.reserve_local(u64::from(REGISTER_AREA_BYTES), u64::from(REGISTER_AREA_BYTES), line)?;
        Ok(LocalArea { offset, size: REGISTER_AREA_BYTES })
    }

    /// Reads a register from its area.
    pub(crate) fn fill(&mut self, carried: CarriedRegister) {
        let base = self.frame_start();
        if let Some(exec) = load_code(moved(carried.width), carried.width, Space::Local, Width::Double, false) {
            let mut draft = Draft::new(exec).a(base).imm(u64::from(carried.area.offset)).d(carried.register);
            draft.inst.b = Space::Local.encode();
            self.push(draft);
        }
    }

    /// Writes a register or constant to its area.
    pub(crate) fn spill(&mut self, carried: CarriedRegister) {
        let base = self.frame_start();
        if let Some(exec) = store_code(moved(carried.width), carried.width, Space::Local, Width::Double, false) {
            let mut draft = Draft::new(exec).a(base).imm(u64::from(carried.area.offset)).b(carried.register);
            draft.inst.d = Space::Local.encode();
            self.push(draft);
        }
    }

    /// Writes the results that are in registers to their areas.
    pub(crate) fn spill_results(&mut self) {
        for result in self.results.clone() {
            self.spill(result);
        }
    }

    /// Returns the area of an argument: that of a `.param` variable, or a new one, into which it writes a register or constant.
    pub(crate) fn argument(&mut self, operand: &Operand<'a>) -> Result<LocalArea, LoadError> {
        if let Operand::Name(name) = operand
            && let Some(Binding::Param(area)) = self.binding(name)
        {
            return Ok(*area);
        }
        let ty = if let Operand::F64(_) = operand { Ty::F64 } else { Ty::B(64) };
        let (register, width) = self.any_source(operand, ty)?;
        if width == Width::Pred {
            return Err(self.unsupported_name("call with a predicate as argument", self.line));
        }
        let area = self.area_of_register(self.line)?;
        self.spill(CarriedRegister { register, width, area });
        Ok(area)
    }

    /// Returns the area of a result, and the register that reads it after the call.
    pub(crate) fn result(&mut self, operand: &Operand<'a>) -> Result<(LocalArea, Option<CarriedRegister>), LoadError> {
        let name = match operand {
            Operand::Name(name) => name,
            Operand::Discard => return Ok((self.area_of_register(self.line)?, None)),
            _ => return Err(self.invalid("the result of a call is not a register")),
        };
        if let Some(Binding::Param(area)) = self.binding(name) {
            return Ok((*area, None));
        }
        let existing = self.register(name).filter(|(_, width)| *width != Width::Pred);
        let (register, width) = existing.ok_or_else(|| self.invalid(format!("{name} is not a register")))?;
        let area = self.area_of_register(self.line)?;
        Ok((area, Some(CarriedRegister { register, width, area })))
    }
}
