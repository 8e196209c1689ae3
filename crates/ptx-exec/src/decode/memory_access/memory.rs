//! `ld`, `st` and the hints around them.
//!
//! Four properties determine the code of an access: the type in memory, the width of the register, the form of the address, and
//! whether it is a vector. Cache hints and scopes have no effect here. Acquire and release become separate fences after or before
//! the access. Any strong access also gets one, which marks it as a possible wait loop.

use crate::api::LoadError;
use crate::control::flow;
use crate::decode::decoder::{Binding, FunctionDecoder};
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::{MemoryOrdering, Modifiers};
use crate::engine::machine::Exec;
use crate::engine::races::{Access, AccessKind};
use crate::memory::load::{DeviceAccess, SharedAccess, load, load_vector};
use crate::memory::store::{store, store_vector};
use crate::memory::{local, param};
use crate::types::{Space, Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// The address of an access: a register or constant plus a constant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    /// The register or constant that the address starts from.
    pub(crate) base: Ref,
    /// Width of the base.
    pub(crate) width: Width,
    /// Bytes added to the base.
    pub(crate) offset: u64,
    /// Address space of the access.
    pub(crate) space: Space,
}

/// The target of an access, with names resolved.
enum AccessTarget {
    /// A constant offset into the kernel's parameters.
    KernelParam(u64),
    /// An address in any other space.
    Address(Address),
}

/// Code for each combination of the type in memory and the register.
macro_rules! by_access {
    ($ty:expr, $width:expr, |$word:ident, $lane:ident| $code:expr) => {
        match ($ty, $width) {
            (Ty::U(8) | Ty::B(8), Width::Word) => by_access!(@ u8, u32, $word, $lane, $code),
            (Ty::S(8), Width::Word) => by_access!(@ i8, u32, $word, $lane, $code),
            (Ty::U(16) | Ty::B(16) | Ty::F16 | Ty::Bf16, Width::Word) => by_access!(@ u16, u32, $word, $lane, $code),
            (Ty::S(16), Width::Word) => by_access!(@ i16, u32, $word, $lane, $code),
            (ty, Width::Word) if ty.bits() == 32 => by_access!(@ u32, u32, $word, $lane, $code),
            (Ty::U(8) | Ty::B(8), Width::Double) => by_access!(@ u8, u64, $word, $lane, $code),
            (Ty::S(8), Width::Double) => by_access!(@ i8, u64, $word, $lane, $code),
            (Ty::U(16) | Ty::B(16), Width::Double) => by_access!(@ u16, u64, $word, $lane, $code),
            (Ty::S(16), Width::Double) => by_access!(@ i16, u64, $word, $lane, $code),
            (Ty::S(32), Width::Double) => by_access!(@ i32, u64, $word, $lane, $code),
            (Ty::U(32) | Ty::B(32), Width::Double) => by_access!(@ u32, u64, $word, $lane, $code),
            (ty, Width::Double) if ty.bits() == 64 => by_access!(@ u64, u64, $word, $lane, $code),
            _ => None,
        }
    };
    (@ $w:ty, $l:ty, $word:ident, $lane:ident, $code:expr) => {{
        type $word = $w;
        type $lane = $l;
        Some($code)
    }};
}

/// Returns the code of a load.
pub(crate) fn load_code(ty: Ty, register: Width, space: Space, pointer: Width, vector: bool) -> Option<Exec> {
    match (space, pointer, vector) {
        (Space::Generic | Space::Global, _, false) => by_access!(ty, register, |T, L| load::<DeviceAccess<T, L>>()),
        (Space::Generic | Space::Global, _, true) => {
            by_access!(ty, register, |T, L| load_vector::<DeviceAccess<T, L>>())
        }
        (Space::Shared, Width::Double, false) => by_access!(ty, register, |T, L| load::<SharedAccess<T, L, u64>>()),
        (Space::Shared, Width::Double, true) => {
            by_access!(ty, register, |T, L| load_vector::<SharedAccess<T, L, u64>>())
        }
        (Space::Shared, _, false) => by_access!(ty, register, |T, L| load::<SharedAccess<T, L, u32>>()),
        (Space::Shared, _, true) => by_access!(ty, register, |T, L| load_vector::<SharedAccess<T, L, u32>>()),
        (Space::Local, Width::Double, false) => by_access!(ty, register, |T, L| local::load::<T, L, u64>),
        (Space::Local, Width::Double, true) => by_access!(ty, register, |T, L| local::load_vector::<T, L, u64>),
        (Space::Local, _, false) => by_access!(ty, register, |T, L| local::load::<T, L, u32>),
        (Space::Local, _, true) => by_access!(ty, register, |T, L| local::load_vector::<T, L, u32>),
    }
}

/// Returns the code of a store.
pub(crate) fn store_code(ty: Ty, register: Width, space: Space, pointer: Width, vector: bool) -> Option<Exec> {
    match (space, pointer, vector) {
        (Space::Generic | Space::Global, _, false) => by_access!(ty, register, |T, L| store::<DeviceAccess<T, L>>()),
        (Space::Generic | Space::Global, _, true) => {
            by_access!(ty, register, |T, L| store_vector::<DeviceAccess<T, L>>())
        }
        (Space::Shared, Width::Double, false) => by_access!(ty, register, |T, L| store::<SharedAccess<T, L, u64>>()),
        (Space::Shared, Width::Double, true) => {
            by_access!(ty, register, |T, L| store_vector::<SharedAccess<T, L, u64>>())
        }
        (Space::Shared, _, false) => by_access!(ty, register, |T, L| store::<SharedAccess<T, L, u32>>()),
        (Space::Shared, _, true) => by_access!(ty, register, |T, L| store_vector::<SharedAccess<T, L, u32>>()),
        (Space::Local, Width::Double, false) => by_access!(ty, register, |T, L| local::store::<T, L, u64>),
        (Space::Local, Width::Double, true) => by_access!(ty, register, |T, L| local::store_vector::<T, L, u64>),
        (Space::Local, _, false) => by_access!(ty, register, |T, L| local::store::<T, L, u32>),
        (Space::Local, _, true) => by_access!(ty, register, |T, L| local::store_vector::<T, L, u32>),
    }
}

/// Returns the code of a load of a kernel parameter.
fn param_code(ty: Ty, register: Width, vector: bool) -> Option<Exec> {
    if vector {
        by_access!(ty, register, |T, L| param::load_vector::<T, L>)
    } else {
        by_access!(ty, register, |T, L| param::load::<T, L>)
    }
}

/// Returns the unsigned type of the same size: stores do not distinguish them.
fn unsigned(ty: Ty) -> Ty {
    match ty {
        Ty::S(bits) => Ty::U(bits),
        other => other,
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes any instruction of this family.
    pub(crate) fn memory(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        match i.opcode {
            "ld" | "ldu" => self.load(i, m),
            "st" => self.store(i, m),
            _ => {
                // Hints have no effect on values, so their modifiers do not matter.
                while m.take_if(|_| true).is_some() {}
                self.push(Draft::new(flow::nothing));
                Ok(())
            }
        }
    }

    /// Takes the state space; `None` is generic.
    pub(crate) fn space(&self, m: &mut Modifiers<'a>) -> Option<&'a str> {
        m.take_if(|word| {
            matches!(
                word,
                "global"
                    | "shared"
                    | "shared::cta"
                    | "shared::cluster"
                    | "local"
                    | "const"
                    | "param"
                    | "param::entry"
                    | "param::func"
            )
        })
    }

    /// Takes the vector size, such as `.v2`; 1 without one.
    fn vector_size(&self, m: &mut Modifiers<'a>) -> usize {
        match m.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    /// Decodes `ld`. A fence follows if the text asks for acquire order.
    fn load(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let space = self.space(m);
        let order = m.memory_order();
        let count = self.vector_size(m);
        let ty = m.ty().ok_or_else(|| self.unsupported(i))?;
        let [destination, address] = self.operands(i)?;
        let target = self.target(address, space)?;
        let (registers, width) = self.load_destinations(destination, count, ty)?;
        let draft = match target {
            AccessTarget::KernelParam(offset) => {
                let exec = param_code(ty, width, count > 1).ok_or_else(|| self.unsupported(i))?;
                Draft::new(exec).imm(offset)
            }
            AccessTarget::Address(Address { base, width: pointer, offset, space }) => {
                let exec = load_code(ty, width, space, pointer, count > 1).ok_or_else(|| self.unsupported(i))?;
                let bytes = ty.bytes() * count as u32;
                let access = Access::new(AccessKind::Load, order.strong, space, pointer, bytes);
                let mut draft = Draft::new(exec).a(base).imm(offset).touches(access);
                draft.inst.b = space.encode();
                draft
            }
        };
        let draft = match registers.as_slice() {
            [one] if count == 1 => draft.d(*one),
            _ => self.with_list(draft, &registers, OperandRole::Def).distinct_slots(),
        };
        self.push(draft);
        self.fence_if(order.acquire, order);
        Ok(())
    }

    /// Returns the destinations of a load and their common width.
    fn load_destinations(
        &mut self,
        operand: &Operand<'a>,
        count: usize,
        ty: Ty,
    ) -> Result<(Vec<Ref>, Width), LoadError> {
        let default = ty.width().ok_or_else(|| self.invalid("128-bit element"))?;
        let single = std::slice::from_ref(operand);
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            _ => single,
        };
        if parts.len() != count {
            return Err(self.invalid("vector of the wrong length"));
        }
        let mut registers = Vec::with_capacity(count);
        let mut common = None;
        for part in parts {
            let (register, width) = self.any_destination(part, common.unwrap_or(default))?;
            if width == Width::Pred || common.is_some_and(|common| common != width) {
                return Err(self.invalid("vector of unlike registers"));
            }
            common = Some(width).filter(|_| *part != Operand::Discard).or(common);
            registers.push(register);
        }
        Ok((registers, common.unwrap_or(default)))
    }

    /// Decodes `st`. A fence precedes it if the text asks for release order.
    fn store(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let space = self.space(m);
        let (operands, barrier) = self.counting_barrier(i, m)?;
        let order = m.memory_order();
        let count = self.vector_size(m);
        let ty = unsigned(m.ty().ok_or_else(|| self.unsupported(i))?);
        let [address, value] = operands else {
            return Err(self.invalid(format!("{} takes two operands", i.full_name())));
        };
        let AccessTarget::Address(Address { base, width: pointer, offset, space }) = self.target(address, space)?
        else {
            return Err(self.invalid("store to a kernel parameter"));
        };
        let single = std::slice::from_ref(value);
        let parts = match value {
            Operand::Vector(parts) => parts.as_slice(),
            _ => single,
        };
        if parts.len() != count {
            return Err(self.invalid("vector of the wrong length"));
        }
        let (values, width) = self.store_sources(parts, ty)?;
        if barrier.is_some() && ty.width() != Some(width) {
            return Err(self.invalid(format!("{} of registers that are wider than its type", i.full_name())));
        }
        let exec = store_code(ty, width, space, pointer, count > 1).ok_or_else(|| self.unsupported(i))?;
        self.fence_if(order.release, MemoryOrdering::default());
        let access = Access::new(AccessKind::Store, order.strong, space, pointer, ty.bytes() * count as u32);
        let mut draft = Draft::new(exec).a(base).imm(offset).touches(access);
        draft.inst.d = space.encode();
        let draft = match values.as_slice() {
            [single] if count == 1 => draft.b(*single),
            _ => self.with_list(draft, &values, OperandRole::Use),
        };
        self.push(draft);
        self.count_bytes(barrier, u64::from(ty.bytes()) * count as u64)
    }

    /// Returns the sources of a store and their common width; constants take the width of the registers.
    fn store_sources(&mut self, parts: &[Operand<'a>], ty: Ty) -> Result<(Vec<Ref>, Width), LoadError> {
        let found = parts.iter().map(|part| self.any_source(part, ty)).collect::<Result<Vec<_>, _>>()?;
        let widest = found.iter().any(|(_, width)| *width == Width::Double);
        let width = if widest { Width::Double } else { Width::Word };
        if found.iter().any(|(_, one)| *one != width) {
            return Err(self.invalid("vector of unlike registers"));
        }
        Ok((found.into_iter().map(|(reference, _)| reference).collect(), width))
    }

    /// Adds a fence if requested. A strong access gets one too, which marks a possible wait loop.
    fn fence_if(&mut self, is_requested: bool, order: MemoryOrdering) {
        if is_requested || order.strong {
            self.push_unguarded(Draft::new(flow::fence));
        }
    }

    /// Returns the address in brackets, for instructions without access to parameters.
    pub(crate) fn plain_address(&mut self, operand: &Operand<'a>, space: Option<&str>) -> Result<Address, LoadError> {
        match self.target(operand, space)? {
            AccessTarget::Address(address) => Ok(address),
            AccessTarget::KernelParam(_) => Err(self.invalid("a kernel parameter cannot be changed")),
        }
    }

    /// Returns whether an address is in a 32-bit register.
    pub(crate) fn is_narrow(&mut self, operand: &Operand<'a>) -> bool {
        match operand {
            Operand::Address { base: Some(name), .. } => {
                self.register(name).is_some_and(|(_, width)| width == Width::Word)
            }
            _ => false,
        }
    }

    /// Resolves the operand in brackets. A bare number is an address; a name is a register or has an address.
    fn target(&mut self, operand: &Operand<'a>, space: Option<&str>) -> Result<AccessTarget, LoadError> {
        let Operand::Address { base, offset } = operand else { return Err(self.invalid("expected an address")) };
        let space = match space {
            None | Some("param" | "param::entry" | "param::func") => Space::Generic,
            Some("shared" | "shared::cta" | "shared::cluster") => Space::Shared,
            Some("local") => Space::Local,
            Some(_) => Space::Global,
        };
        let Some(name) = base else {
            let base = self.constant(offset.cast_unsigned(), Width::Double);
            return Ok(AccessTarget::Address(Address { base, width: Width::Double, offset: 0, space }));
        };
        if let Some((base, width)) = self.register(name) {
            if width == Width::Pred || (width == Width::Word && matches!(space, Space::Generic | Space::Global)) {
                return Err(self.invalid(format!("{name} is too narrow for an address")));
            }
            return Ok(AccessTarget::Address(Address { base, width, offset: offset.cast_unsigned(), space }));
        }
        self.named_target(name, *offset, space)
    }

    /// Returns the address of a variable or parameter. Kernel parameters are read from the buffer directly.
    fn named_target(&mut self, name: &'a str, offset: i64, space: Space) -> Result<AccessTarget, LoadError> {
        match self.binding(name).cloned() {
            Some(Binding::KernelParam(base)) if space == Space::Generic => {
                return Ok(AccessTarget::KernelParam(u64::from(base).wrapping_add(offset.cast_unsigned())));
            }
            // In its own space, a parameter has an offset, like a local variable.
            Some(Binding::Param(area)) if space == Space::Generic => {
                let offset = u64::from(area.offset).wrapping_add(offset.cast_unsigned());
                let base = self.frame_start();
                return Ok(AccessTarget::Address(Address { base, width: Width::Double, offset, space: Space::Local }));
            }
            _ => {}
        }
        let base = self.address(name, 0, Width::Double)?;
        Ok(AccessTarget::Address(Address { base, width: Width::Double, offset: offset.cast_unsigned(), space }))
    }

    /// Returns the start of the running frame's local memory.
    pub(crate) fn frame_start(&mut self) -> Ref {
        if self.entry {
            return self.constant(0, Width::Double);
        }
        let base = self.temporary(Width::Double);
        self.push_unguarded(Draft::new(flow::local_address).d(base).imm(0));
        base
    }
}
