//! Templates that turn an operation on one lane into one on 32, compiled for the baseline CPU, AVX2 and AVX-512.
//!
//! Loops run over fixed arrays that cannot overlap, so that the compiler can vectorise them. An operation must therefore be
//! branch-free and `#[inline(always)]`. The results of lanes outside the mask are dropped, so an operation must accept any
//! operands.

use super::element::Element;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{Raw, WARP_LANES};

/// `d = f(a)`
pub(crate) trait Unary {
    /// Type of the source.
    type A: Element;
    /// Type of the destination.
    type D: Element;
    /// Computes the result of one lane.
    fn apply(a: Self::A) -> Self::D;
}

/// `d = f(a, b)`
pub(crate) trait Binary {
    /// Type of the first source.
    type A: Element;
    /// Type of the second source.
    type B: Element;
    /// Type of the destination.
    type D: Element;
    /// Computes the result of one lane.
    fn apply(a: Self::A, b: Self::B) -> Self::D;
}

/// `d = f(a, b, c)`
pub(crate) trait Ternary {
    /// Type of the first source.
    type A: Element;
    /// Type of the second source.
    type B: Element;
    /// Type of the third source.
    type C: Element;
    /// Type of the destination.
    type D: Element;
    /// Computes the result of one lane.
    fn apply(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// `p = f(a, b)`
pub(crate) trait Compare {
    /// Type of both sources.
    type A: Element;
    /// Computes the result of one lane.
    fn apply(a: Self::A, b: Self::A) -> bool;
}

/// The lane that an element lives in.
type Lane<E> = <E as Element>::Lane;

/// `out = f(a)`. The arrays are parameters, which tells the compiler that they do not overlap.
#[inline(always)]
fn map1<O: Unary>(out: &mut [Lane<O::D>; WARP_LANES], a: &[Lane<O::A>; WARP_LANES]) {
    for lane in 0..WARP_LANES {
        out[lane] = O::apply(O::A::read(a[lane])).write();
    }
}

/// `out = f(a, b)`
#[inline(always)]
fn map2<O: Binary>(out: &mut [Lane<O::D>; WARP_LANES], a: &[Lane<O::A>; WARP_LANES], b: &[Lane<O::B>; WARP_LANES]) {
    for lane in 0..WARP_LANES {
        out[lane] = O::apply(O::A::read(a[lane]), O::B::read(b[lane])).write();
    }
}

/// `out = f(a, b, c)`
#[inline(always)]
fn map3<O: Ternary>(
    out: &mut [Lane<O::D>; WARP_LANES],
    a: &[Lane<O::A>; WARP_LANES],
    b: &[Lane<O::B>; WARP_LANES],
    c: &[Lane<O::C>; WARP_LANES],
) {
    for lane in 0..WARP_LANES {
        out[lane] = O::apply(O::A::read(a[lane]), O::B::read(b[lane]), O::C::read(c[lane])).write();
    }
}

/// Computes `f(a, b)` as one bit per lane. It first makes the bits in an array, which vectorises; joining them is cheap.
#[inline(always)]
fn compare_bits<O: Compare>(a: &[Lane<O::A>; WARP_LANES], b: &[Lane<O::A>; WARP_LANES]) -> u32 {
    let mut bits = [0_u32; WARP_LANES];
    for lane in 0..WARP_LANES {
        bits[lane] = u32::from(O::apply(O::A::read(a[lane]), O::A::read(b[lane]))) << lane;
    }
    bits.iter().fold(0, |all, bit| all | bit)
}

/// One unary instruction.
#[inline(always)]
fn unary_body<O: Unary>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let mut out = [Raw::ZERO; WARP_LANES];
    map1::<O>(&mut out, machine.registers.row(inst.a));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// One binary instruction.
#[inline(always)]
fn binary_body<O: Binary>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let mut out = [Raw::ZERO; WARP_LANES];
    map2::<O>(&mut out, machine.registers.row(inst.a), machine.registers.row(inst.b));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// One ternary instruction.
#[inline(always)]
fn ternary_body<O: Ternary>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let mut out = [Raw::ZERO; WARP_LANES];
    let registers = &machine.registers;
    map3::<O>(&mut out, registers.row(inst.a), registers.row(inst.b), registers.row(inst.c));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `setp`: `finish` combines the result with a predicate, if there is one.
#[inline(always)]
fn compare_body<O: Compare>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let bits = compare_bits::<O>(machine.registers.row(inst.a), machine.registers.row(inst.b));
    crate::alu::predicate::finish(machine, inst, bits);
    Flow::Next
}

/// Makes the AVX2 and AVX-512 versions of a template, and the function that selects one of the three.
macro_rules! dispatched {
    ($(#[$doc:meta])* $name:ident, $avx2:ident, $body:ident, $bound:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
        fn $avx2<O: $bound>(machine: &mut $crate::engine::machine::Machine<'_>, inst: &$crate::engine::machine::Inst) -> $crate::engine::machine::Flow {
            $body::<O>(machine, inst)
        }

        $(#[$doc])*
        pub(crate) fn $name<O: $bound>() -> $crate::engine::machine::Exec {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
                fn avx512<O: $bound>(
                    machine: &mut $crate::engine::machine::Machine<'_>,
                    inst: &$crate::engine::machine::Inst,
                ) -> $crate::engine::machine::Flow {
                    $body::<O>(machine, inst)
                }
                match $crate::alu::level() {
                    $crate::alu::level::AVX512 => return avx512::<O>,
                    $crate::alu::level::AVX2 => return $avx2::<O>,
                    _ => {}
                }
            }
            $body::<O>
        }
    };
}

pub(crate) use dispatched;

/// Makes the versions of a template that also takes the version as a constant: `body::<O, LEVEL>`.
macro_rules! dispatched_by_level {
    ($(#[$doc:meta])* $name:ident, $body:ident, $bound:ident) => {
        $(#[$doc])*
        pub(crate) fn $name<O: $bound>() -> $crate::engine::machine::Exec {
            use $crate::alu::level;
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
                fn avx512<O: $bound>(
                    machine: &mut $crate::engine::machine::Machine<'_>,
                    inst: &$crate::engine::machine::Inst,
                ) -> $crate::engine::machine::Flow {
                    $body::<O, { level::AVX512 }>(machine, inst)
                }
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
                fn avx2<O: $bound>(
                    machine: &mut $crate::engine::machine::Machine<'_>,
                    inst: &$crate::engine::machine::Inst,
                ) -> $crate::engine::machine::Flow {
                    $body::<O, { level::AVX2 }>(machine, inst)
                }
                match $crate::alu::level() {
                    level::AVX512 => return avx512::<O>,
                    level::AVX2 => return avx2::<O>,
                    _ => {}
                }
            }
            $body::<O, { level::BASELINE }>
        }
    };
}

pub(crate) use dispatched_by_level;

dispatched!(
    /// Code for a unary operation.
    unary, unary_avx2, unary_body, Unary
);
dispatched!(
    /// Code for a binary operation.
    binary, binary_avx2, binary_body, Binary
);
dispatched!(
    /// Code for a ternary operation.
    ternary, ternary_avx2, ternary_body, Ternary
);
dispatched!(
    /// Code for a comparison into predicates.
    compare, compare_avx2, compare_body, Compare
);

/// Declares operations: `Name(A, B) -> D = |a, b| expression;`, one to three operands.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident $(<$($g:ident: $gb:path),*>)? $([$(const $c:ident: $ct:ty),*])? ($($args:tt)*) -> $d:ty = |$($v:ident),*| $body:expr;)*) => {
        $($crate::alu::lanes::operation!($(#[$doc])* $name [$($($g: $gb),*)?] [$($($c: $ct),*)?] ($($args)*) -> $d = |$($v),*| $body);)*
    };
}
pub(crate) use operations;

/// One operation of `operations!`.
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident [$($g:ident: $gb:path),*] [$($c:ident: $ct:ty),*] ($a:ty) -> $d:ty = |$x:ident| $body:expr) => {
        $(#[$doc])*
        pub(crate) struct $name<$($g,)* $(const $c: $ct),*>($(std::marker::PhantomData<$g>),*);
        impl<$($g: $gb,)* $(const $c: $ct),*> $crate::alu::lanes::Unary for $name<$($g,)* $($c),*> {
            type A = $a;
            type D = $d;

            #[inline(always)]
            fn apply($x: $a) -> $d {
                $body
            }
        }
    };
    ($(#[$doc:meta])* $name:ident [$($g:ident: $gb:path),*] [$($c:ident: $ct:ty),*] ($a:ty, $b:ty) -> $d:ty = |$x:ident, $y:ident| $body:expr) => {
        $(#[$doc])*
        pub(crate) struct $name<$($g,)* $(const $c: $ct),*>($(std::marker::PhantomData<$g>),*);
        impl<$($g: $gb,)* $(const $c: $ct),*> $crate::alu::lanes::Binary for $name<$($g,)* $($c),*> {
            type A = $a;
            type B = $b;
            type D = $d;

            #[inline(always)]
            fn apply($x: $a, $y: $b) -> $d {
                $body
            }
        }
    };
    ($(#[$doc:meta])* $name:ident [$($g:ident: $gb:path),*] [$($c:ident: $ct:ty),*] ($a:ty, $b:ty, $e:ty) -> $d:ty = |$x:ident, $y:ident, $z:ident| $body:expr) => {
        $(#[$doc])*
        pub(crate) struct $name<$($g,)* $(const $c: $ct),*>($(std::marker::PhantomData<$g>),*);
        impl<$($g: $gb,)* $(const $c: $ct),*> $crate::alu::lanes::Ternary for $name<$($g,)* $($c),*> {
            type A = $a;
            type B = $b;
            type C = $e;
            type D = $d;

            #[inline(always)]
            fn apply($x: $a, $y: $b, $z: $e) -> $d {
                $body
            }
        }
    };
}
pub(crate) use operation;
