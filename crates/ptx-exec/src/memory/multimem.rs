//! `multimem`: one address that stands for the same place in the memory of each device that is bound to a multicast object.
//!
//! The host tells which places an address stands for ([`Host::replicas`](crate::Host::replicas)); an ordinary address stands for
//! itself. A load reduces the values of all places to one, in the order of the devices. Stores and reductions go to every place,
//! element by element, each reduction atomically.

use crate::alu::convert::IntoFloat;
use crate::alu::element::{Bf16, F16};
use crate::alu::half::Small;
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::{Raw, lanes_of};
use crate::memory::atom::{self, Operation};
use crate::memory::word::Word;
use crate::types::Space;
use std::marker::PhantomData;

/// Reduces the values of all places to one.
trait Reduction {
    /// Type of the value in memory.
    type Word: Word;
    /// Type of the value in registers.
    type Lane: Raw;
    /// Returns the reduced value; the list has at least one value.
    fn reduce(values: &[Self::Word]) -> Self::Word;
}

/// A reduction of one value after the other, by an operation of `atom`.
struct SequentialReduction<O>(PhantomData<O>);

impl<O: Operation> Reduction for SequentialReduction<O> {
    type Word = O::Word;
    type Lane = O::Lane;

    fn reduce(values: &[O::Word]) -> O::Word {
        let reduced = values.iter().copied().reduce(|sum, value| O::apply(sum, value, O::Word::cut(0)));
        reduced.unwrap_or_else(|| O::Word::cut(0))
    }
}

/// A sum of 16-bit floats that is rounded only at its end: `.acc::f32`.
struct Wide<T>(PhantomData<T>);
/// Sums of pairs of 16-bit floats that are rounded only at their end: `.acc::f32`.
struct WidePair<T>(PhantomData<T>);

/// Returns the sum of the values, rounded at its end.
fn wide_sum<T: Small>(values: impl Iterator<Item = u32>) -> u32 {
    T::from_wide(values.map(|value| T::read(value).wide()).reduce(|sum, value| sum + value).unwrap_or(0.0)).write()
}

impl<T: Small> Reduction for Wide<T> {
    type Word = u16;
    type Lane = u32;

    fn reduce(values: &[u16]) -> u16 {
        wide_sum::<T>(values.iter().map(|value| u32::from(*value))) as u16
    }
}

impl<T: Small> Reduction for WidePair<T> {
    type Word = u32;
    type Lane = u32;

    fn reduce(values: &[u32]) -> u32 {
        let half = |shift: u32| wide_sum::<T>(values.iter().map(|value| value >> shift & 0xffff));
        half(0) | half(16) << 16
    }
}

/// Returns the places that the address of a lane stands for. A vector is aligned to its whole size.
fn replicas_of(machine: &Machine<'_>, inst: &Inst, lane: usize, size: u64) -> Result<Vec<u64>, FaultKind> {
    let address = machine.registers.row::<u64>(inst.a)[lane].wrapping_add(inst.imm);
    if !address.is_multiple_of(size) {
        return Err(FaultKind::MisalignedAddress(address));
    }
    Ok(machine.env.host.replicas(address).unwrap_or_else(|| vec![address]))
}

/// Runs `multimem.ld_reduce {d, ...}, [a + imm]`, with `c` registers in the list at `x`.
fn load<R: Reduction>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    machine.spinning = true;
    for lane in lanes_of(machine.mask) {
        if let Err(kind) = load_lane::<R>(machine, inst, lane) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

fn load_lane<R: Reduction>(machine: &mut Machine<'_>, inst: &Inst, lane: usize) -> Result<(), FaultKind> {
    let replicas = replicas_of(machine, inst, lane, R::Word::BYTES * u64::from(inst.c))?;
    let mut values = Vec::with_capacity(replicas.len());
    for index in 0..inst.c {
        let at = u64::from(index) * R::Word::BYTES;
        values.clear();
        for replica in &replicas {
            values.push(machine.read::<R::Word>(Space::Global, lane, replica.wrapping_add(at))?);
        }
        let slot = machine.env.code.list(inst.x + index);
        machine.registers.set_lane(slot, lane, R::Lane::narrow(R::reduce(&values).extended()));
    }
    Ok(())
}

/// Does `work` for each element of a store or reduction, at each of its places.
fn each<O: Operation>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    work: impl Fn(&mut Machine<'_>, usize, u64, O::Word) -> Result<(), FaultKind>,
) -> Flow {
    machine.spinning = true;
    for lane in lanes_of(machine.mask) {
        let replicas = match replicas_of(machine, inst, lane, O::Word::BYTES * u64::from(inst.c)) {
            Ok(replicas) => replicas,
            Err(kind) => return machine.fail(kind, lane),
        };
        for index in 0..inst.c {
            let slot = machine.env.code.list(inst.x + index);
            let value = O::Word::cut(machine.registers.row::<O::Lane>(slot)[lane].wide());
            for replica in &replicas {
                let at = replica.wrapping_add(u64::from(index) * O::Word::BYTES);
                if let Err(kind) = work(machine, lane, at, value) {
                    return machine.fail(kind, lane);
                }
            }
        }
    }
    Flow::Next
}

/// Runs `multimem.red [a + imm], {b, ...}`.
fn reduce<O: Operation>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each::<O>(machine, inst, |machine, lane, at, value| {
        let operation = |old| O::apply_far(old, value, O::Word::cut(0));
        machine.update::<O::Word>(Space::Global, lane, at, operation).map(|_| ())
    })
}

/// Runs `multimem.st [a + imm], {b, ...}`; `O` gives the sizes of words and registers.
fn store<O: Operation>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each::<O>(machine, inst, |machine, lane, at, value| machine.write::<O::Word>(Space::Global, lane, at, value))
}

/// Makes code for one of the three instructions.
#[derive(Debug, Clone, Copy)]
enum MultimemKind {
    Load,
    Reduce,
    Store,
}

impl atom::Visitor for MultimemKind {
    type Code = Exec;

    fn visit<O: Operation>(self) -> Exec {
        match self {
            Self::Load => load::<SequentialReduction<O>>,
            Self::Reduce => reduce::<O>,
            Self::Store => store::<O>,
        }
    }
}

/// Returns the code for `multimem.ld_reduce`; `wide` asks for a sum in `f32`.
pub(crate) fn load_code(name: &str, ty: &str, wide: bool) -> Option<Exec> {
    if !wide {
        return atom::visit(name, ty, MultimemKind::Load);
    }
    match (name, ty) {
        ("add", "f16") => Some(load::<Wide<F16>>),
        ("add", "bf16") => Some(load::<Wide<Bf16>>),
        ("add", "f16x2") => Some(load::<WidePair<F16>>),
        ("add", "bf16x2") => Some(load::<WidePair<Bf16>>),
        _ => None,
    }
}

/// Returns the code for `multimem.red`.
pub(crate) fn reduce_code(name: &str, ty: &str) -> Option<Exec> {
    atom::visit(name, ty, MultimemKind::Reduce)
}

/// Returns the code for `multimem.st` of elements of `bits` bits.
pub(crate) fn store_code(bits: u32) -> Option<Exec> {
    match bits {
        16 => atom::visit("cas", "b16", MultimemKind::Store),
        32 => atom::visit("exch", "b32", MultimemKind::Store),
        64 => atom::visit("exch", "b64", MultimemKind::Store),
        _ => None,
    }
}
