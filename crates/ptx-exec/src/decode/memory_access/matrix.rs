//! `mma wmma ldmatrix stmatrix movmatrix`: decodes shapes and types to the description that the code uses.
//!
//! | shapes | operands |
//! |---|---|
//! | `m8n8k4 m16n8k8 m16n8k16` | `f16` |
//! | `m16n8k8 m16n8k16` | `bf16` |
//! | `m16n8k4 m16n8k8` | `tf32` |
//! | `m16n8k16 m16n8k32` | `e4m3 e5m2` |
//! | `m8n8k4 m16n8k4 m16n8k8 m16n8k16` | `f64` |
//! | `m8n8k16 m16n8k16 m16n8k32` | `s8 u8` |
//! | `m8n8k32 m16n8k32 m16n8k64` | `s4 u4` |
//! | `m8n8k128 m16n8k128 m16n8k256` | `b1` |
//!
//! `mma.sp` doubles the depth of the two deepest ones of each; `wmma` has its own shapes.

use crate::alu::round::mode;
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::engine::races::{AccessKind, Watched};
use crate::matrix::element::Element;
use crate::matrix::layout::Fragment;
use crate::matrix::operation::{Matrix, Multiply, Transfer};
use crate::matrix::{multiply, transfer};
use crate::types::{Space, Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Parses the numbers of `m16n8k16`.
fn shape(word: &str) -> Option<[u32; 3]> {
    let (rows, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (columns, depth) = rest.split_once('k')?;
    Some([rows.parse().ok()?, columns.parse().ok()?, depth.parse().ok()?])
}

/// Returns whether `mma` has that shape for operands of a type; for a sparse one, half the depth counts.
fn exists(shape: [u32; 3], element: Element) -> bool {
    let shapes: &[[u32; 3]] = match element {
        Element::F16 => &[[8, 8, 4], [16, 8, 8], [16, 8, 16]],
        Element::Bf16 => &[[16, 8, 8], [16, 8, 16]],
        Element::Tf32 => &[[16, 8, 4], [16, 8, 8]],
        Element::E4m3 | Element::E5m2 => &[[16, 8, 16], [16, 8, 32]],
        Element::F64 => &[[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]],
        Element::U8 | Element::S8 => &[[8, 8, 16], [16, 8, 16], [16, 8, 32]],
        Element::U4 | Element::S4 => &[[8, 8, 32], [16, 8, 32], [16, 8, 64]],
        Element::B1 => &[[8, 8, 128], [16, 8, 128], [16, 8, 256]],
        Element::Word => &[],
    };
    shapes.contains(&shape)
}

/// Returns whether `wmma` has that shape for operands of a type.
fn exists_whole(shape: [u32; 3], element: Element) -> bool {
    match element {
        Element::F16 | Element::Bf16 | Element::U8 | Element::S8 => {
            matches!(shape, [16, 16, 16] | [32, 8, 16] | [8, 32, 16])
        }
        Element::Tf32 => shape == [16, 16, 8],
        Element::F64 => shape == [8, 8, 4],
        Element::U4 | Element::S4 => shape == [8, 8, 32],
        Element::B1 => shape == [8, 8, 128],
        Element::Word | Element::E4m3 | Element::E5m2 => false,
    }
}

/// Returns whether operands of a type can have a sum of that type; `float` tells that it is `f32`, not `s32`.
fn sums(element: Element, sum: Element, float: bool) -> bool {
    match element {
        Element::F16 | Element::E4m3 | Element::E5m2 => sum == Element::F16 || (sum == Element::Word && float),
        Element::Bf16 | Element::Tf32 => sum == Element::Word && float,
        Element::F64 => sum == Element::F64,
        _ => sum == Element::Word && !float,
    }
}

/// Returns whether the types of A and B match.
fn alike(a: Element, b: Element) -> bool {
    let family = |element: Element| (element.is_integer(), element.is_tiny(), element.bits());
    a == b || (family(a) == family(b) && (a.is_integer() || a.is_tiny()))
}

/// Modifiers of a multiplication.
struct MatrixModifiers {
    shape: [u32; 3],
    /// Types of result, A, B, addend. A and B default to `f16`.
    types: [Element; 4],
    /// Whether A and B are stored along K.
    along: [bool; 2],
    float: bool,
}

/// Returns the code of a multiplication.
fn code(multiply: &Multiply) -> Exec {
    match multiply.left {
        _ if multiply.quad.is_some() => multiply::multiply::<multiply::Quads>(),
        Element::F64 => multiply::multiply::<multiply::Doubles>(),
        Element::B1 => multiply::multiply::<multiply::Bits>(),
        element if element.is_integer() => multiply::multiply::<multiply::Integers>(),
        element if element.is_tiny() => multiply::multiply::<multiply::TinyFloats>(),
        _ => multiply::multiply::<multiply::Floats>(),
    }
}

/// Returns the number of registers of a `wmma` fragment: an operand of `f16` always has eight.
fn whole_registers(fragment: Fragment, element: Element) -> u32 {
    let distinct = fragment.registers(element.bits());
    let operand = matches!(fragment, Fragment::Left { .. } | Fragment::Right { .. });
    if operand && element == Element::F16 { 8 } else { distinct }
}

/// Returns the parts of a vector operand, or a single register.
fn parts<'o, 'a>(operand: &'o Operand<'a>) -> &'o [Operand<'a>] {
    match operand {
        Operand::Vector(parts) => parts,
        one => std::slice::from_ref(one),
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes any instruction of this family.
    pub(crate) fn matrix(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let sync = m.take("sync");
        m.take("aligned");
        if !sync {
            return Err(self.unsupported(i));
        }
        match i.opcode {
            "mma" => self.multiply(i, m),
            "wmma" if m.take("mma") => self.multiply_whole(i, m),
            "wmma" => self.move_whole(i, m),
            "movmatrix" => self.transpose(i, m),
            _ => self.tiles(i, m),
        }
    }

    /// Takes shape, layouts and types, in the order that all forms share.
    fn matrix_modifiers(&self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<MatrixModifiers, LoadError> {
        let unsupported = || self.unsupported(i);
        let shape = m.take_if(|word| shape(word).is_some()).and_then(shape).ok_or_else(unsupported)?;
        let rows = [m.one_of(&["row", "col"]), m.one_of(&["row", "col"])];
        let [Some(a), Some(b)] = rows else { return Err(unsupported()) };
        let float = m.has("f32");
        let mut types = Vec::with_capacity(4);
        while let Some(word) = m.take_if(|word| Element::parse(word).is_some()) {
            types.extend(Element::parse(word));
        }
        let types = match types.as_slice() {
            [result, addend] => [*result, Element::F16, Element::F16, *addend],
            [result, a, b, addend] => [*result, *a, *b, *addend],
            _ => return Err(unsupported()),
        };
        Ok(MatrixModifiers { shape, types, along: [a == "row", b == "col"], float })
    }

    /// Takes `.xor.popc` or `.and.popc`, and returns whether it is `and`.
    fn bit_operation(&self, i: &Instruction<'a>, m: &mut Modifiers<'a>, element: Element) -> Result<bool, LoadError> {
        if element != Element::B1 {
            return Ok(false);
        }
        match (m.one_of(&["xor", "and"]), m.take("popc")) {
            (Some(word), true) => Ok(word == "and"),
            _ => Err(self.unsupported(i)),
        }
    }

    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c`, and `mma.sp` with metadata and selector.
    fn multiply(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let sparse = m.one_of(&["sp", "sp::ordered_metadata"]).is_some();
        let MatrixModifiers { shape, types: [result, left, right, addend], along, float } =
            self.matrix_modifiers(i, m)?;
        let and = self.bit_operation(i, m, left)?;
        let quad = (shape == [8, 8, 4] && left == Element::F16).then_some(along);
        let dense = if sparse { [shape[0], shape[1], shape[2] / 2] } else { shape };
        // The two deepest shapes of each type also exist as sparse ones, twice as deep.
        let possible = exists(dense, left) && (!sparse || (dense[0] == 16 && exists_sparse(dense, left)));
        let fits = sums(left, result, float) && sums(left, addend, float) && alike(left, right);
        // Sparse products of 8-bit floats have no `f16` sums.
        let refused = sparse && left.is_tiny() && result == Element::F16;
        if refused || !possible || !fits || result != addend || (quad.is_none() && along != [true, true]) {
            return Err(self.unsupported(i));
        }
        let multiply = Multiply {
            shape,
            left,
            right,
            addend,
            result,
            transposed: false,
            saturate: left.is_integer() && m.take("satfinite"),
            rounding: if left == Element::F64 { m.rounding() } else { mode::NEAREST },
            and,
            sparse: if sparse { Some(self.selector(i)?) } else { None },
            quad,
        };
        let registers = multiply.fragments();
        let counts =
            [left, right, addend].into_iter().zip(registers).map(|(element, part)| part.registers(element.bits()));
        let counts: Vec<u32> = counts.collect();
        self.product(i, multiply, [counts[0], counts[1], counts[2]])
    }

    /// Returns the constant at the end of the operands of `mma.sp`.
    fn selector(&self, i: &Instruction<'a>) -> Result<u32, LoadError> {
        match i.operands.last() {
            Some(Operand::Int(value)) if *value < 4 => Ok(*value as u32),
            _ => Err(self.invalid("mma.sp without a selector from 0 to 3")),
        }
    }

    /// `wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 d, a, b, c`
    fn multiply_whole(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let MatrixModifiers { shape, types: [result, a, b, addend], float, .. } = self.matrix_modifiers(i, m)?;
        let and = self.bit_operation(i, m, a)?;
        let fits = sums(a, result, float || result == Element::F16) && sums(a, addend, float || addend == Element::F16);
        if !exists_whole(shape, a) || !fits || a != b {
            return Err(self.unsupported(i));
        }
        let transposed = shape == [8, 32, 16];
        let multiply = Multiply {
            shape: if transposed { [32, 8, 16] } else { shape },
            left: a,
            right: a,
            addend,
            result,
            transposed,
            saturate: a.is_integer() && m.take("satfinite"),
            rounding: if a == Element::F64 { m.rounding() } else { mode::NEAREST },
            and,
            sparse: None,
            quad: None,
        };
        let [left, right, sum] = multiply.fragments();
        let (left, right) = (whole_registers(left, a), whole_registers(right, a));
        let operands = if transposed { [right, left] } else { [left, right] };
        self.product(i, multiply, [operands[0], operands[1], sum.registers(addend.bits())])
    }

    /// Adds a multiplication; `counts` are the numbers of registers of A, B and the addend.
    fn product(&mut self, i: &Instruction<'a>, multiply: Multiply, counts: [u32; 3]) -> Result<(), LoadError> {
        let [result, a, b, addend, rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        };
        if rest.len() != if multiply.sparse.is_some() { 2 } else { 0 } {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        }
        let ty = |element: Element| if element == Element::F64 { Ty::F64 } else { Ty::B(32) };
        let [_, _, sum] = multiply.fragments();
        let results = self.fragment_results(result, ty(multiply.result), sum.registers(multiply.result.bits()))?;
        let mut list = results.clone();
        for ((operand, count), element) in
            [a, b, addend].into_iter().zip(counts).zip([multiply.left, multiply.right, multiply.addend])
        {
            list.extend(self.fragment_sources(operand, ty(element), count)?);
        }
        if let [metadata, _] = rest {
            list.push(self.source(metadata, Ty::B(32))?);
        }
        let mut draft = self.with_list(Draft::new(code(&multiply)), &list, OperandRole::Use).distinct_slots();
        draft.list_results = results.len() as u32;
        (draft.inst.d, draft.inst.a, draft.inst.b) = (results.len() as u32, counts[0], counts[1]);
        let draft = draft.imm(self.shared.matrix(Matrix::Multiply(multiply)));
        self.push(draft);
        Ok(())
    }

    /// Returns the registers of a source fragment.
    fn fragment_sources(&mut self, operand: &Operand<'a>, ty: Ty, count: u32) -> Result<Vec<Ref>, LoadError> {
        let parts = parts(operand);
        if parts.len() != count as usize {
            return Err(self.invalid(format!("fragment of {} registers instead of {count}", parts.len())));
        }
        parts.iter().map(|part| self.source(part, ty)).collect()
    }

    /// Returns the registers of a destination fragment.
    fn fragment_results(&mut self, operand: &Operand<'a>, ty: Ty, count: u32) -> Result<Vec<Ref>, LoadError> {
        let parts = parts(operand);
        if parts.len() != count as usize {
            return Err(self.invalid(format!("fragment of {} registers instead of {count}", parts.len())));
        }
        parts.iter().map(|part| self.destination(part, ty)).collect()
    }

    /// `wmma.load.a.sync.aligned.row.m16n16k16.global.f16 d, [address], stride` and `wmma.store.d` with `[address], d, stride`.
    fn move_whole(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let store = match m.one_of(&["load", "store"]) {
            Some(word) => word == "store",
            None => return Err(self.unsupported(i)),
        };
        let part = m.one_of(&["a", "b", "c", "d"]).ok_or_else(|| self.unsupported(i))?;
        let row = m.one_of(&["row", "col"]).ok_or_else(|| self.unsupported(i))? == "row";
        let size = m.take_if(|word| shape(word).is_some()).and_then(shape).ok_or_else(|| self.unsupported(i))?;
        let space = self.space(m);
        let element = m.take_if(|word| Element::parse(word).is_some()).and_then(Element::parse);
        let element = element.ok_or_else(|| self.unsupported(i))?;
        let operand = matches!(part, "a" | "b");
        let is_known_form = if operand { exists_whole(size, element) } else { has_accumulator(size, element) };
        if !is_known_form || store != (part == "d") {
            return Err(self.unsupported(i));
        }
        let (fragment, along, line) = whole_fragment(size, part, row);
        let sub_byte = element.bits() < 8;
        if sub_byte && !along {
            return Err(self.unsupported(i));
        }
        let registers = whole_registers(fragment, element);
        let (values, address, stride) = match (store, i.operands.as_slice()) {
            (false, [values, address, stride @ ..]) | (true, [address, values, stride @ ..]) if stride.len() < 2 => {
                (values, address, stride.first())
            }
            _ => return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len()))),
        };
        let address = self.plain_address(address, space)?;
        let stride = match stride {
            Some(stride) => self.source(stride, Ty::U(32))?,
            None => self.constant(u64::from(line), Width::Word),
        };
        let ty = if element == Element::F64 { Ty::F64 } else { Ty::B(32) };
        let (references, role, exec): (_, _, Exec) = if store {
            (self.fragment_sources(values, ty, registers)?, OperandRole::Use, transfer::store_fragment)
        } else {
            (self.fragment_results(values, ty, registers)?, OperandRole::Def, transfer::load_fragment)
        };
        let transfer = Transfer {
            fragment: Some(fragment),
            along,
            bits: element.bits(),
            registers,
            space: address.space,
            narrow: address.width == Width::Word,
            offset: address.offset,
        };
        let draft = self.with_list(Draft::new(exec), &references, role).a(address.base).b(stride).distinct_slots();
        let draft = draft.imm(self.shared.matrix(Matrix::Transfer(transfer)));
        self.push(draft);
        Ok(())
    }

    /// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 d, [address]` and `stmatrix` with `[address], d`.
    fn tiles(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let registers = match m.one_of(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => return Err(self.unsupported(i)),
        };
        let along = !m.take("trans");
        let space = self.space(m);
        if !m.take("m8n8") || m.ty() != Some(Ty::B(16)) {
            return Err(self.unsupported(i));
        }
        let [first, second] = self.operands(i)?;
        let store = i.opcode == "stmatrix";
        let (address, values) = if store { (first, second) } else { (second, first) };
        let address = self.plain_address(address, space)?;
        // Without a space, the address is a generic one in shared memory.
        let (references, role, exec): (_, _, Exec) = if store {
            (self.fragment_sources(values, Ty::B(32), registers)?, OperandRole::Use, transfer::store_tiles)
        } else {
            (self.fragment_results(values, Ty::B(32), registers)?, OperandRole::Def, transfer::load_tiles)
        };
        if !matches!(address.space, Space::Shared | Space::Generic) {
            return Err(self.unsupported(i));
        }
        let transfer = Transfer {
            fragment: None,
            along,
            bits: 16,
            registers,
            space: address.space,
            narrow: address.width == Width::Word,
            offset: address.offset,
        };
        let draft = self.with_list(Draft::new(exec), &references, role).a(address.base).distinct_slots();
        let kind = if store { AccessKind::Store } else { AccessKind::Load };
        let draft = draft.imm(self.shared.matrix(Matrix::Transfer(transfer))).watched(Watched::Tiles(kind));
        self.push(draft);
        Ok(())
    }

    /// `movmatrix.sync.aligned.m8n8.trans.b16 d, a`
    fn transpose(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        if !m.take("m8n8") || !m.take("trans") || m.ty() != Some(Ty::B(16)) {
            return Err(self.unsupported(i));
        }
        self.regular(i, transfer::transpose, Ty::B(32), &[Ty::B(32)])
    }
}

/// Returns whether a sparse product of twice that depth exists.
fn exists_sparse(dense: [u32; 3], element: Element) -> bool {
    match element {
        Element::F16 | Element::Bf16 => dense[2] >= 8,
        Element::Tf32 => dense[2] >= 4,
        Element::E4m3 | Element::E5m2 => dense[2] == 32,
        Element::U8 | Element::S8 => dense[2] >= 16,
        Element::U4 | Element::S4 => dense[2] >= 32,
        _ => false,
    }
}

/// Returns whether `wmma` has an accumulator of that shape and type.
fn has_accumulator(shape: [u32; 3], element: Element) -> bool {
    match element {
        Element::F16 => exists_whole(shape, Element::F16),
        Element::F64 => exists_whole(shape, Element::F64),
        Element::Word => {
            !exists_whole(shape, Element::F64) && (0..).zip(WHOLE_WMMA_SHAPES).any(|(_, known)| *known == shape)
        }
        _ => false,
    }
}

/// Shapes of `wmma` whose accumulators are 32-bit numbers.
const WHOLE_WMMA_SHAPES: &[[u32; 3]] = &[[16, 16, 16], [32, 8, 16], [8, 32, 16], [16, 16, 8], [8, 8, 32], [8, 8, 128]];

/// Returns the fragment of a matrix of `wmma`, whether memory runs along its lines, and the length of a row or column in memory.
fn whole_fragment([rows, columns, depth]: [u32; 3], part: &str, row: bool) -> (Fragment, bool, u32) {
    let transposed = [rows, columns, depth] == [8, 32, 16];
    match part {
        "a" => {
            let fragment =
                if transposed { Fragment::Right { lines: rows, depth } } else { Fragment::Left { lines: rows, depth } };
            (fragment, row, if row { depth } else { rows })
        }
        "b" => {
            let fragment = if transposed {
                Fragment::Left { lines: columns, depth }
            } else {
                Fragment::Right { lines: columns, depth }
            };
            (fragment, !row, if row { columns } else { depth })
        }
        _ => {
            let (held_rows, held_columns) = if transposed { (columns, rows) } else { (rows, columns) };
            let fragment = Fragment::Accumulator { rows: held_rows, columns: held_columns };
            (fragment, row != transposed, if row { columns } else { rows })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_looked_up() {
        assert_eq!(shape("m16n8k256"), Some([16, 8, 256]));
        assert_eq!((shape("max"), shape("m8n8")), (None, None));
        assert!(exists([16, 8, 16], Element::Bf16) && !exists([8, 8, 4], Element::Bf16));
        assert!(exists_whole([8, 32, 16], Element::S8) && !exists_whole([16, 16, 8], Element::F16));
        assert!(has_accumulator([8, 8, 128], Element::Word) && !has_accumulator([8, 8, 4], Element::Word));
    }

    #[test]
    fn transposed_fragments_are_read_across() {
        let (fragment, along, line) = whole_fragment([8, 32, 16], "b", false);
        assert_eq!((fragment, along, line), (Fragment::Left { lines: 32, depth: 16 }, true, 16));
        assert_eq!(whole_fragment([16, 16, 16], "c", true).1, !whole_fragment([8, 32, 16], "c", true).1);
    }
}
