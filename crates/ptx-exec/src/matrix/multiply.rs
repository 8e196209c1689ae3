//! `mma` and `wmma.mma`: fragments to lines, lines to sums, sums back to fragments.
//!
//! | operands | how a sum is made on an H200 |
//! |---|---|
//! | `f16 bf16 tf32` | all products and the addend at once (`dot`) |
//! | `e4m3 e5m2` | as `f16`: elements 0 and 1 of each four, then 2 and 3; the addend is added last, to nearest |
//! | `f64` | one fused multiply-add after the other, along K |
//! | integers, bits | exactly, then wrapped or clamped |
//! | `f16` of `m8n8k4` | fused multiply-adds in `f32`: along K, the addend last; for an `f16` result, against K from the addend on |
//!
//! Of a sparse A, only the elements that the metadata names take part: two of each four columns, by two bits each.

use super::dot::{Line, PRODUCTS_PER_SUM, dot};
use super::element::{Element, UnpackedFloat};
use super::layout::{Fragment, per_register};
use crate::alu::float::canonical;
use crate::alu::half_bits::{f16_to_f32, f32_to_f16};
use crate::alu::lanes::dispatched;
use crate::alu::round::{self, mode};
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::WARP_LANES;
use crate::matrix::gather::{UNDESCRIBED_FLOW, description, gather};
use crate::matrix::operation::{Matrix, Multiply};

/// Largest number of elements of an accumulator.
const MAX_ACCUMULATOR_ELEMENTS: usize = 256;

/// Positions of an instruction's operands in `Code::lists`.
pub(crate) struct Operands {
    result: u32,
    left: u32,
    right: u32,
    addend: u32,
    metadata: u32,
}

impl Operands {
    /// Finds the operands in the list, which is: result, A, B, addend, metadata. `Inst::a` and `Inst::b` are the numbers of
    /// registers of A and B, `Inst::d` that of the result.
    fn of(inst: &Inst, multiply: &Multiply) -> Self {
        let a = inst.x + inst.d;
        let b = a + inst.a;
        let addend = b + inst.b;
        let (left, right) = if multiply.transposed { (b, a) } else { (a, b) };
        let [_, _, sums] = multiply.fragments();
        Self { result: inst.x, left, right, addend, metadata: addend + sums.registers(multiply.addend.bits()) }
    }
}

/// Calls `visit` with line, position and bits of each element of a fragment whose elements have up to 32 bits.
#[inline(always)]
fn elements(
    machine: &Machine<'_>,
    fragment: Fragment,
    element: Element,
    list: u32,
    mut visit: impl FnMut(usize, u32, usize, u32),
) {
    let (bits, per) = (element.bits(), per_register(element.bits()));
    for register in 0..fragment.registers(bits) {
        let row = machine.registers.row::<u32>(machine.env.code.list(list + register));
        for (lane, word) in row.iter().enumerate() {
            for index in 0..per {
                let (line, position) = fragment.position(bits, register, lane as u32, index);
                visit(lane, line, position as usize, word >> (bits * index));
            }
        }
    }
}

/// Calls `visit` with line, position and value of each element of an `f64` fragment.
fn doubles(machine: &Machine<'_>, fragment: Fragment, list: u32, mut visit: impl FnMut(usize, usize, f64)) {
    for register in 0..fragment.registers(64) {
        let row = machine.registers.row::<u64>(machine.env.code.list(list + register));
        for (lane, value) in row.iter().enumerate() {
            let (line, position) = fragment.position(64, register, lane as u32, 0);
            visit(line as usize, position as usize, f64::from_bits(*value));
        }
    }
}

/// Returns the index of an element of the accumulator.
fn at(multiply: &Multiply, row: usize, column: usize) -> usize {
    (row * multiply.shape[1] as usize + column) % MAX_ACCUMULATOR_ELEMENTS
}

/// Returns the addends by their index in the accumulator.
fn addends(machine: &Machine<'_>, multiply: &Multiply, list: u32) -> [u32; MAX_ACCUMULATOR_ELEMENTS] {
    let mut sums = [0; MAX_ACCUMULATOR_ELEMENTS];
    let [_, _, fragment] = multiply.fragments();
    elements(machine, fragment, multiply.addend, list, |_, row, column, raw| {
        sums[at(multiply, row as usize, column)] = raw;
    });
    sums
}

/// Writes the results, in the order of the accumulator, to the registers of the result.
fn store(machine: &mut Machine<'_>, multiply: &Multiply, list: u32, sums: &[u32; MAX_ACCUMULATOR_ELEMENTS]) {
    let [_, _, fragment] = multiply.fragments();
    let (bits, per) = (multiply.result.bits(), per_register(multiply.result.bits()));
    for register in 0..fragment.registers(bits) {
        let mut row = [0_u32; WARP_LANES];
        for (lane, word) in row.iter_mut().enumerate() {
            for index in 0..per {
                let (line, column) = fragment.position(bits, register, lane as u32, index);
                let raw = sums[at(multiply, line as usize, column as usize)];
                *word |= (if per == 2 { raw & 0xffff } else { raw }) << (bits * index % 32);
            }
        }
        let slot = machine.env.code.list(list + register);
        machine.registers.set(slot, machine.mask, &row);
    }
}

/// How the sums of a multiplication are computed.
pub(crate) trait Rule {
    /// Runs a multiplication whose operands are all present.
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands);
}

/// Runs a multiplication by the rule of its types.
#[inline(always)]
fn multiply_body<R: Rule>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !gather(machine) {
        return Flow::Wait;
    }
    let pick = |matrix| if let Matrix::Multiply(multiply) = matrix { Some(multiply) } else { None };
    let Some(multiply) = description(machine, inst.imm, pick) else { return UNDESCRIBED_FLOW };
    R::run(machine, &multiply, &Operands::of(inst, &multiply));
    Flow::Next
}

dispatched!(
    /// Code for `mma`.
    multiply, multiply_avx2, multiply_body, Rule
);

/// `f16 bf16 tf32`
pub(crate) struct Floats;

/// `e4m3 e5m2`
pub(crate) struct TinyFloats;

/// Largest number of rows, and of columns.
const MAX_MATRIX_LINES: usize = 32;

/// Returns which of the two lines holds an element, and at which position; 8-bit floats are summed in two steps.
fn step<const TINY: bool>(position: usize) -> (usize, usize) {
    if TINY { (position % 4 / 2, position / 4 * 2 + position % 2) } else { (0, position) }
}

/// Reads the lines of an operand.
#[inline(always)]
fn lines<const TINY: bool>(
    machine: &Machine<'_>,
    fragment: Fragment,
    element: Element,
    list: u32,
) -> [[Line; MAX_MATRIX_LINES]; 2] {
    let mut lines = [[Line::EMPTY; MAX_MATRIX_LINES]; 2];
    elements(machine, fragment, element, list, |_, line, position, raw| {
        let (half, index) = step::<TINY>(position);
        lines[half][line as usize % MAX_MATRIX_LINES].set(index % PRODUCTS_PER_SUM, element.part(raw));
    });
    lines
}

/// Returns one sum of floats whose products are all added at once.
///
/// If addend and result have different types, the sum is in `f32`, and the other type is converted before or after it.
#[inline(always)]
fn summed(multiply: &Multiply, a: &Line, b: &Line, count: usize, addend: u32) -> u32 {
    let (half, single) = (Element::F16, Element::Word);
    match (multiply.addend == half, multiply.result == half) {
        (true, true) => dot(a, b, count, half.part(addend)).to_f16(),
        (false, false) => stepwise(multiply, a, b, count, addend),
        (true, false) => dot(a, b, count, single.part(f16_to_f32(addend).to_bits())).to_f32(),
        (false, true) => f32_to_f16(f32::from_bits(dot(a, b, count, single.part(addend)).to_f32())),
    }
}

/// Returns a sum in `f32`: computed in one step, but in two for the `tf32` of `wmma`.
#[inline(always)]
fn stepwise(multiply: &Multiply, a: &Line, b: &Line, count: usize, addend: u32) -> u32 {
    let single = Element::Word;
    if multiply.shape != [16, 16, 8] {
        return dot(a, b, count, single.part(addend)).to_f32();
    }
    let first = dot(&a.quarter(0), &b.quarter(0), 4, single.part(addend)).to_f32();
    dot(&a.quarter(1), &b.quarter(1), 4, single.part(first)).to_f32()
}

/// Returns one sum of floats.
#[inline(always)]
fn sum<const TINY: bool>(multiply: &Multiply, a: [&Line; 2], b: [&Line; 2], count: usize, addend: u32) -> u32 {
    let half = multiply.result == Element::F16;
    if !TINY {
        return summed(multiply, a[0], b[0], count, addend);
    }
    let mut total = 0;
    for step in 0..2 {
        let sum = dot(a[step], b[step], count / 2, multiply.result.part(total));
        total = if half { sum.to_f16() } else { sum.to_f32() };
    }
    if half {
        f32_to_f16(f16_to_f32(total) + f16_to_f32(addend))
    } else {
        canonical(f32::from_bits(total) + f32::from_bits(addend)).to_bits()
    }
}

/// Multiplies floats of up to 19 bits.
#[inline(always)]
fn floats<const TINY: bool>(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
    if let Some(selector) = multiply.sparse {
        return sparse_floats::<TINY>(machine, multiply, operands, selector);
    }
    let [left, right, _] = multiply.fragments();
    let a = lines::<TINY>(machine, left, multiply.left, operands.left);
    let b = lines::<TINY>(machine, right, multiply.right, operands.right);
    let mut sums = addends(machine, multiply, operands.addend);
    let [rows, columns, depth] = multiply.shape.map(|size| size as usize);
    for row in 0..rows.min(MAX_MATRIX_LINES) {
        for column in 0..columns.min(MAX_MATRIX_LINES) {
            let position_in_sums = at(multiply, row, column);
            let (a, b) = ([&a[0][row], &a[1][row]], [&b[0][column], &b[1][column]]);
            sums[position_in_sums] = sum::<TINY>(multiply, a, b, depth, sums[position_in_sums]);
        }
    }
    store(machine, multiply, operands.result, &sums);
}

impl Rule for Floats {
    #[inline(always)]
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
        floats::<false>(machine, multiply, operands);
    }
}

impl Rule for TinyFloats {
    #[inline(always)]
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
        floats::<true>(machine, multiply, operands);
    }
}

/// Largest number of columns of a sparse A, both in full and as it is held.
const MAX_SPARSE_COLUMNS: usize = 128;

/// Returns the columns of the elements that are held, for each row of a sparse A.
///
/// One or two lanes of a group of four hold the bits of a row; 16 bits name the columns of eight units. A unit is one element,
/// half a `tf32` or a pair of 4-bit integers.
fn columns(machine: &Machine<'_>, multiply: &Multiply, list: u32, selector: u32) -> [[u8; MAX_SPARSE_COLUMNS / 2]; 16] {
    let words = machine.registers.row::<u32>(machine.env.code.list(list));
    let bits = multiply.left.bits();
    let held = multiply.shape[2] / 2;
    let units = match bits {
        32 => held * 2,
        4 => held / 2,
        _ => held,
    };
    let mut columns = [[0; MAX_SPARSE_COLUMNS / 2]; 16];
    for (row, columns) in columns.iter_mut().enumerate() {
        let (group, upper) = (row as u32 % 8, row as u32 / 8);
        let unit = |index: u32| {
            let (lane, shift) = match units {
                ..=8 => (selector, 16 * upper + 2 * index),
                9..=16 if bits < 16 => (2 * selector + upper, 2 * index),
                9..=16 => (2 * selector + index / 8, 16 * upper + 2 * (index % 8)),
                _ => (upper + 2 * (index / 16), 2 * (index % 16)),
            };
            let word = words[(4 * group + lane) as usize % WARP_LANES];
            4 * (index / 2) + (word >> shift & 3)
        };
        for (index, position_in_sums) in columns.iter_mut().enumerate().take(held as usize) {
            let index = index as u32;
            *position_in_sums = match bits {
                32 => unit(2 * index) / 2,
                4 => 2 * unit(index / 2) + index % 2,
                _ => unit(index),
            } as u8;
        }
    }
    columns
}

/// Runs `mma.sp` on floats.
#[inline(never)]
fn sparse_floats<const TINY: bool>(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands, selector: u32) {
    let [left, right, _] = multiply.fragments();
    let a = lines::<TINY>(machine, left, multiply.left, operands.left);
    let zero = Element::Word.part(0);
    let mut parts = [[zero; MAX_SPARSE_COLUMNS / 2]; 8];
    elements(machine, right, multiply.right, operands.right, |_, line, position, raw| {
        parts[line as usize % 8][position % (MAX_SPARSE_COLUMNS / 2)] = multiply.right.part(raw);
    });
    let selected = columns(machine, multiply, operands.metadata, selector);
    let mut sums = addends(machine, multiply, operands.addend);
    let held = multiply.shape[2] as usize / 2;
    for row in 0..16 {
        for (column, parts) in parts.iter().enumerate() {
            let b = select_column::<TINY>(parts, &selected[row][..held]);
            let position_in_sums = at(multiply, row, column);
            let (a, b) = ([&a[0][row], &a[1][row]], [&b[0], &b[1]]);
            sums[position_in_sums] = sum::<TINY>(multiply, a, b, held, sums[position_in_sums]);
        }
    }
    store(machine, multiply, operands.result, &sums);
}

/// Selects the elements of a column of B that meet the held elements of a row of A.
fn select_column<const TINY: bool>(parts: &[UnpackedFloat; MAX_SPARSE_COLUMNS / 2], positions: &[u8]) -> [Line; 2] {
    let mut lines = [Line::EMPTY; 2];
    for (position, position_in_sums) in positions.iter().enumerate() {
        let (half, index) = step::<TINY>(position);
        lines[half].set(index % PRODUCTS_PER_SUM, parts[usize::from(*position_in_sums) % (MAX_SPARSE_COLUMNS / 2)]);
    }
    lines
}

/// `u8 s8 u4 s4`
pub(crate) struct Integers;

impl Rule for Integers {
    #[inline(always)]
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
        let [left, right, _] = multiply.fragments();
        let (mut a, mut b) =
            ([[0_i32; MAX_SPARSE_COLUMNS]; MAX_MATRIX_LINES], [[0_i32; MAX_SPARSE_COLUMNS]; MAX_MATRIX_LINES]);
        elements(machine, left, multiply.left, operands.left, |_, line, position, raw| {
            a[line as usize % MAX_MATRIX_LINES][position % MAX_SPARSE_COLUMNS] = multiply.left.integer(raw);
        });
        elements(machine, right, multiply.right, operands.right, |_, line, position, raw| {
            b[line as usize % MAX_MATRIX_LINES][position % MAX_SPARSE_COLUMNS] = multiply.right.integer(raw);
        });
        if let Some(selector) = multiply.sparse {
            spread(&mut a, &columns(machine, multiply, operands.metadata, selector), multiply.shape[2] as usize / 2);
        }
        let mut sums = addends(machine, multiply, operands.addend);
        let [rows, columns, depth] = multiply.shape.map(|size| size as usize);
        for (row, a) in a.iter().enumerate().take(rows) {
            for (column, b) in b.iter().enumerate().take(columns) {
                // There are at most 128 products of 16 bits.
                let total: i32 = a[..depth.min(MAX_SPARSE_COLUMNS)].iter().zip(b).map(|(a, b)| a * b).sum();
                let position_in_sums = at(multiply, row, column);
                let addend = sums[position_in_sums].cast_signed();
                let joined = if multiply.saturate { addend.saturating_add(total) } else { addend.wrapping_add(total) };
                sums[position_in_sums] = joined.cast_unsigned();
            }
        }
        store(machine, multiply, operands.result, &sums);
    }
}

/// Puts the held elements of each row of a sparse A into their columns.
fn spread(
    lines: &mut [[i32; MAX_SPARSE_COLUMNS]; MAX_MATRIX_LINES],
    selected: &[[u8; MAX_SPARSE_COLUMNS / 2]; 16],
    held: usize,
) {
    for (line, selected) in lines.iter_mut().zip(selected) {
        let mut whole = [0; MAX_SPARSE_COLUMNS];
        for (value, position_in_sums) in line.iter().zip(selected).take(held) {
            whole[usize::from(*position_in_sums) % MAX_SPARSE_COLUMNS] += value;
        }
        *line = whole;
    }
}

/// `b1`
pub(crate) struct Bits;

impl Rule for Bits {
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
        let [left, right, _] = multiply.fragments();
        let words = |fragment: Fragment, list: u32| {
            let mut lines = [[0_u32; 8]; 16];
            for register in 0..fragment.registers(1) {
                let row = machine.registers.row::<u32>(machine.env.code.list(list + register));
                for (lane, word) in row.iter().enumerate() {
                    let (line, position) = fragment.position(1, register, lane as u32, 0);
                    lines[line as usize % 16][position as usize / 32 % 8] = *word;
                }
            }
            lines
        };
        let (a, b) = (words(left, operands.left), words(right, operands.right));
        let mut sums = addends(machine, multiply, operands.addend);
        for row in 0..multiply.shape[0].min(16) as usize {
            for column in 0..multiply.shape[1].min(16) as usize {
                let joined = a[row].iter().zip(&b[column]);
                let ones: u32 = joined.map(|(a, b)| if multiply.and { a & b } else { a ^ b }.count_ones()).sum();
                let position_in_sums = at(multiply, row, column);
                sums[position_in_sums] = sums[position_in_sums].wrapping_add(ones);
            }
        }
        store(machine, multiply, operands.result, &sums);
    }
}

/// `f64`
pub(crate) struct Doubles;

/// Returns `a * b + c`, rounded once in the given mode.
fn fused(rounding: u8, a: f64, b: f64, c: f64) -> f64 {
    let value = match rounding {
        mode::ZERO => round::fma_f64::<{ mode::ZERO }>(a, b, c),
        mode::DOWN => round::fma_f64::<{ mode::DOWN }>(a, b, c),
        mode::UP => round::fma_f64::<{ mode::UP }>(a, b, c),
        _ => a.mul_add(b, c),
    };
    if !value.is_nan() {
        return value;
    }
    // The result is the first NaN operand, made quiet, or else the NaN of an invalid operation.
    let bits = [a, b, c].into_iter().find(|operand| operand.is_nan()).map_or(0xfff8 << 48, f64::to_bits);
    f64::from_bits(bits | 1 << 51)
}

impl Rule for Doubles {
    #[inline(always)]
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
        let [left, right, sum] = multiply.fragments();
        let (mut a, mut b, mut sums) = (
            [[0.0; PRODUCTS_PER_SUM]; MAX_MATRIX_LINES],
            [[0.0; PRODUCTS_PER_SUM]; MAX_MATRIX_LINES],
            [0.0; MAX_ACCUMULATOR_ELEMENTS],
        );
        doubles(machine, left, operands.left, |line, position, value| {
            a[line % MAX_MATRIX_LINES][position % PRODUCTS_PER_SUM] = value
        });
        doubles(machine, right, operands.right, |line, position, value| {
            b[line % MAX_MATRIX_LINES][position % PRODUCTS_PER_SUM] = value
        });
        doubles(machine, sum, operands.addend, |row, column, value| sums[at(multiply, row, column)] = value);
        let depth = multiply.shape[2] as usize;
        for register in 0..sum.registers(64) {
            let mut row = [0_u64; WARP_LANES];
            for (lane, value) in row.iter_mut().enumerate() {
                let (line, column) = sum.position(64, register, lane as u32, 0);
                let (line, column) = (line as usize, column as usize);
                let products = a[line % MAX_MATRIX_LINES].iter().zip(&b[column % MAX_MATRIX_LINES]).take(depth);
                let total = products
                    .fold(sums[at(multiply, line, column)], |total, (a, b)| fused(multiply.rounding, *a, *b, total));
                *value = total.to_bits();
            }
            let slot = machine.env.code.list(operands.result + register);
            machine.registers.set(slot, machine.mask, &row);
        }
    }
}

/// `m8n8k4` on `f16`: four products, each computed by eight lanes.
pub(crate) struct Quads;

/// Returns which of the four products a lane takes part in.
fn quad(lane: usize) -> usize {
    lane / 4 % 4
}

/// Returns one sum of `m8n8k4`.
fn quad_sum(multiply: &Multiply, a: [u32; 4], b: [u32; 4], addend: u32) -> u32 {
    let half = Element::F16;
    let addend = multiply.addend.value(addend);
    let product = |total: f32, (a, b): (&u32, &u32)| half.value(*a & 0xffff).mul_add(half.value(*b & 0xffff), total);
    if multiply.result == half {
        return f32_to_f16(a.iter().zip(&b).rev().fold(addend, product));
    }
    canonical(a.iter().zip(&b).fold(0.0, product) + addend).to_bits()
}

impl Rule for Quads {
    fn run(machine: &mut Machine<'_>, multiply: &Multiply, operands: &Operands) {
        let [left, right, sum] = multiply.fragments();
        let (mut a, mut b) = ([[[0_u32; 4]; 8]; 4], [[[0_u32; 4]; 8]; 4]);
        elements(machine, left, Element::F16, operands.left, |lane, line, position, raw| {
            a[quad(lane)][line as usize % 8][position % 4] = raw;
        });
        elements(machine, right, Element::F16, operands.right, |lane, line, position, raw| {
            b[quad(lane)][line as usize % 8][position % 4] = raw;
        });
        let mut addend = [[[0_u32; 8]; 8]; 4];
        elements(machine, sum, multiply.addend, operands.addend, |lane, row, column, raw| {
            addend[quad(lane)][row as usize % 8][column % 8] = raw;
        });
        let (bits, per) = (multiply.result.bits(), per_register(multiply.result.bits()));
        for register in 0..sum.registers(bits) {
            let row: [u32; WARP_LANES] = std::array::from_fn(|lane| {
                (0..per).fold(0, |word, index| {
                    let (line, column) = sum.position(bits, register, lane as u32, index);
                    let (line, column, quad) = (line as usize % 8, column as usize % 8, quad(lane));
                    let value = quad_sum(multiply, a[quad][line], b[quad][column], addend[quad][line][column]);
                    word | value << (bits * index % 32)
                })
            });
            let slot = machine.env.code.list(operands.result + register);
            machine.registers.set(slot, machine.mask, &row);
        }
    }
}
