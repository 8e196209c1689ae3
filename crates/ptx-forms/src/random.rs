//! Random programs: straight lines, branches, loops, shuffles, shared and local memory, calls, all made from a seed.
//!
//! Every program is defined for all values. Divisors are made odd, addresses are limited to their array, and loops count down.
//! Lanes take values only from lanes that are known to participate, and blocks synchronise only where all threads pass. Each
//! thread stores a mix of all its registers. Where the bits of a NaN matter, its payload is cleared. A GPU's compiler exchanges
//! operands, folds signs into them and drops operations that change nothing but a NaN.

use crate::case::{Argument, Case, Check};
use crate::rng::Rng;
use std::fmt::Write;

/// Number of programs.
const RANDOM_PROGRAMS: u64 = 256;

/// Threads per block, and blocks.
const THREADS_PER_BLOCK: u32 = 64;
const BLOCKS_PER_GRID: u32 = 2;

/// 32-bit words that each thread reads.
const INPUT_WORDS_PER_THREAD: u32 = 12;

/// Registers of each class: 32 and 64 bits, `f32` and `f64`.
const REGISTER_CLASSES: [(char, u64); 4] = [('r', 8), ('q', 4), ('f', 4), ('g', 3)];

/// Statements. `<r>` is a 32-bit source and `<R>` a 32-bit destination; `q f g p` likewise; `<i>` is a number below 32.
const STATEMENT_FORMS: &[&str] = &[
    "add.s32 <R>, <r>, <r>;",
    "sub.u32 <R>, <r>, <r>;",
    "mul.lo.u32 <R>, <r>, <r>;",
    "mul.hi.s32 <R>, <r>, <r>;",
    "mul.hi.u32 <R>, <r>, <r>;",
    "mad.lo.s32 <R>, <r>, <r>, <r>;",
    "mad.wide.u32 <Q>, <r>, <r>, <q>;",
    "mul.wide.s32 <Q>, <r>, <r>;",
    "add.u64 <Q>, <q>, <q>;",
    "sub.s64 <Q>, <q>, <q>;",
    "mul.lo.u64 <Q>, <q>, <q>;",
    "mul.hi.s64 <Q>, <q>, <q>;",
    "and.b32 <R>, <r>, <r>;",
    "or.b32 <R>, <r>, <r>;",
    "xor.b64 <Q>, <q>, <q>;",
    "not.b32 <R>, <r>;",
    "shl.b32 <R>, <r>, <i>;",
    "shr.s32 <R>, <r>, <r>;",
    "shr.u64 <Q>, <q>, <r>;",
    "shf.l.wrap.b32 <R>, <r>, <r>, <r>;",
    "shf.r.clamp.b32 <R>, <r>, <r>, <r>;",
    "min.s32 <R>, <r>, <r>;",
    "max.u32 <R>, <r>, <r>;",
    "abs.s32 <R>, <r>;",
    "neg.s64 <Q>, <q>;",
    "sad.u32 <R>, <r>, <r>, <r>;",
    "popc.b32 <R>, <r>;",
    "clz.b64 <R>, <q>;",
    "brev.b32 <R>, <r>;",
    "bfind.s32 <R>, <r>;",
    "bfe.u32 <R>, <r>, <i>, <i>;",
    "bfe.s64 <Q>, <q>, <i>, <i>;",
    "bfi.b32 <R>, <r>, <r>, <i>, <i>;",
    "prmt.b32 <R>, <r>, <r>, <r>;",
    "lop3.b32 <R>, <r>, <r>, <r>, 0x6a;",
    "dp4a.s32.u32 <R>, <r>, <r>, <r>;",
    "or.b32 t, <r>, 1; div.u32 <R>, <r>, t;",
    "or.b32 t, <r>, 1; rem.s32 <R>, <r>, t;",
    "or.b64 u, <q>, 1; div.s64 <Q>, <q>, u;",
    "or.b64 u, <q>, 1; rem.u64 <Q>, <q>, u;",
    "add.cc.u32 <R>, <r>, <r>; addc.u32 <R>, <r>, 0;",
    "sub.cc.u32 <R>, <r>, <r>; subc.cc.u32 <R>, <r>, <r>; subc.u32 <R>, <r>, 5;",
    "mad.lo.cc.u32 <R>, <r>, <r>, <r>; madc.hi.u32 <R>, <r>, <r>, <r>;",
    "add.rn.f32 <F>, <f>, <f>;",
    "sub.rz.f32 <F>, <f>, <f>;",
    "mul.rp.f32 <F>, <f>, <f>;",
    "fma.rn.f32 <F>, <f>, <f>, <f>;",
    "fma.rm.ftz.f32 <F>, <f>, <f>, <f>;",
    "mul.ftz.sat.f32 <F>, <f>, <f>;",
    "div.rn.f32 <F>, <f>, <f>;",
    "sqrt.rn.f32 <F>, <f>;",
    "min.f32 <F>, <f>, <f>;",
    "max.ftz.f32 <F>, <f>, <f>;",
    "abs.f32 <F>, <f>;",
    "add.rn.f64 <G>, <g>, <g>;",
    "mul.rm.f64 <G>, <g>, <g>;",
    "fma.rn.f64 <G>, <g>, <g>, <g>;",
    "div.rn.f64 <G>, <g>, <g>;",
    "neg.f64 <G>, <g>;",
    "cvt.rzi.s32.f32 <R>, <f>;",
    "cvt.rni.u64.f64 <Q>, <g>;",
    "cvt.rn.f32.s32 <F>, <r>;",
    "cvt.rz.f32.u64 <F>, <q>;",
    "cvt.rn.f64.s64 <G>, <q>;",
    "cvt.f64.f32 <G>, <f>;",
    "cvt.rn.f32.f64 <F>, <g>;",
    "cvt.s64.s32 <Q>, <r>;",
    "cvt.u32.u64 <R>, <q>;",
    "{ .reg .b16 h; cvt.u16.u32 h, <r>; cvt.s32.s8 <R>, h; }",
    "{ .reg .b16 h, k; mov.b32 {h, k}, <r>; fma.rn.f16 h, h, k, h; mov.b32 <R>, {k, h}; }",
    "add.f16x2 <R>, <r>, <r>;",
    "mov.b64 {t, <R>}, <q>;",
    "mov.b64 <Q>, {<r>, <r>};",
    "mov.b32 <F>, <r>;",
    "mov.f32 v, <f>; setp.num.f32 e, v, v; selp.f32 v, v, 0f7fffffff, e; mov.b32 <R>, v;",
    "mov.b64 <G>, <q>;",
    "mov.f64 w, <g>; setp.num.f64 e, w, w; selp.f64 w, w, 0d7ff8000000000000, e; mov.b64 <Q>, w;",
    "setp.lt.s32 <P>, <r>, <r>;",
    "setp.ge.u64 <P>, <q>, <q>;",
    "setp.neu.f32 <P>, <f>, <f>;",
    "setp.gt.and.f64 <P>, <g>, <g>, <p>;",
    "selp.b32 <R>, <r>, <r>, <p>;",
    "selp.b64 <Q>, <q>, <q>, <p>;",
    "slct.b32.s32 <R>, <r>, <r>, <r>;",
    "set.ne.u32.s32 <R>, <r>, <r>;",
    "@<p> add.s32 <R>, <r>, <r>;",
    "@!<p> xor.b64 <Q>, <q>, <q>;",
    "xor.pred <P>, <p>, <p>;",
    "and.b32 t, <r>, 28; cvt.u64.u32 u, t; add.u64 u, u, mine; st.local.b32 [u], <r>;",
    "and.b32 t, <r>, 31; cvt.u64.u32 u, t; add.u64 u, u, mine; ld.local.u8 <R>, [u];",
    "and.b32 t, <r>, 24; cvt.u64.u32 u, t; add.u64 u, u, mine; ld.local.b64 <Q>, [u];",
    "{ .param .b32 x, z; .param .b64 y; st.param.b32 [x], <r>; st.param.b64 [y], <q>; call (z), f, (x, y); ld.param.b32 <R>, [z]; }",
];

/// Exchanges between all lanes.
const SHUFFLE_FORMS: &[&str] = &[
    "shfl.sync.down.b32 <R>|<P>, <r>, <i>, 31, -1;",
    "shfl.sync.bfly.b32 <R>, <r>, <i>, 31, -1;",
    "shfl.sync.up.b32 <R>|<P>, <r>, <i>, 0, -1;",
    "shfl.sync.idx.b32 <R>|<P>, <r>, <r>, 0x181f, -1;",
];

/// Exchanges between the lanes of mask `<m>`.
const EXCHANGE_FORMS: &[&str] = &[
    "bfind.u32 t, <m>; shfl.sync.idx.b32 <R>, <r>, t, 31, <m>;",
    "vote.sync.ballot.b32 <R>, <p>, <m>;",
    "vote.sync.any.pred <P>, <p>, <m>;",
    "vote.sync.all.pred <P>, !<p>, <m>;",
    "match.any.sync.b32 <R>, <r>, <m>;",
    "redux.sync.xor.b32 <R>, <r>, <m>;",
    "redux.sync.max.s32 <R>, <r>, <m>;",
];

/// Exchanges between the threads of the block.
const BLOCK_EXCHANGE_FORMS: &[&str] = &[
    "st.shared.b32 [slot], <r>; bar.sync 0; ld.shared.b32 <R>, [next]; bar.sync 0;",
    "st.shared.b64 [slot], <q>; bar.sync 0; ld.shared.v2.b32 {t, <R>}, [next]; bar.sync 0;",
    "red.shared.add.u32 [sum], <r>; bar.sync 0; ld.shared.b32 <R>, [sum]; bar.sync 0;",
    "red.shared.max.s32 [sum+4], <r>; bar.sync 0; ld.shared.b32 <R>, [sum+4]; bar.sync 0;",
    "bar.red.or.pred <P>, 0, <p>;",
    "bar.red.popc.u32 <R>, 0, <p>;",
];

/// The mask of a whole warp.
const WARP_MASK: &str = "-1";

/// The position of a statement.
#[derive(Debug, Clone)]
struct StatementPosition {
    depth: u32,
    /// Whether all threads of the block pass it.
    meeting: bool,
    /// The lanes that pass, if known.
    mask: Option<String>,
}

/// A program being written.
struct Writer {
    rng: Rng,
    text: String,
    masks: u32,
    counters: u32,
    labels: u32,
}

impl Writer {
    /// Writes a template with its placeholders filled.
    fn line(&mut self, template: &str, mask: &str) {
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('<') {
            let (what, tail) = after.split_at(1);
            self.text += before;
            match what {
                "m" => self.text += mask,
                "i" => {
                    let number = self.rng.below(32);
                    let _ = write!(self.text, "{number}");
                }
                class => {
                    let class = class.to_ascii_lowercase();
                    let count = REGISTER_CLASSES
                        .iter()
                        .find(|(name, _)| class.starts_with(*name))
                        .map_or(3, |(_, count)| *count);
                    let number = self.rng.below(count);
                    let _ = write!(self.text, "{class}{number}");
                }
            }
            rest = tail.strip_prefix('>').unwrap_or(tail);
        }
        self.text += rest;
        self.text.push('\n');
    }

    /// Writes a few statements of any kind.
    fn statements(&mut self, position: &StatementPosition) {
        for _ in 0..3 + self.rng.below(8) {
            let mask = position.mask.clone().unwrap_or_default();
            match self.rng.below(20) {
                0 | 1 if position.depth < 3 => self.branch(position),
                2 if position.depth < 3 => self.repeat(position),
                3 if position.depth < 3 && position.mask.is_some() => self.repeat_evenly(position),
                4 | 5 if position.mask.is_some() => {
                    let template = *self.rng.pick(EXCHANGE_FORMS);
                    self.line(template, &mask);
                }
                6 if position.mask.as_deref() == Some(WARP_MASK) => {
                    let template = *self.rng.pick(SHUFFLE_FORMS);
                    self.line(template, &mask);
                }
                7 | 8 if position.meeting => {
                    let template = *self.rng.pick(BLOCK_EXCHANGE_FORMS);
                    self.line(template, &mask);
                }
                _ => {
                    let template = *self.rng.pick(STATEMENT_FORMS);
                    self.line(template, &mask);
                }
            }
        }
    }

    /// Writes a branch in which lanes diverge and converge again.
    fn branch(&mut self, position: &StatementPosition) {
        let (label, condition) = (self.labels, self.rng.below(3));
        self.labels += 1;
        let masks = position.mask.as_ref().map(|mask| {
            let (then_mask, other) = (self.masks, self.masks + 1);
            self.masks += 2;
            let _ = writeln!(self.text, "vote.sync.ballot.b32 m{then_mask}, p{condition}, {mask};");
            let _ = writeln!(self.text, "xor.b32 m{other}, m{then_mask}, {mask};");
            (format!("m{then_mask}"), format!("m{other}"))
        });
        let (then_mask, other) = masks.unzip();
        let inner = |mask| StatementPosition { depth: position.depth + 1, meeting: false, mask };
        let _ = writeln!(self.text, "@!p{condition} bra ELSE{label};");
        self.statements(&inner(then_mask));
        let _ = writeln!(self.text, "bra END{label};\nELSE{label}:");
        if self.rng.below(3) > 0 {
            self.statements(&inner(other));
        }
        let _ = writeln!(self.text, "END{label}:");
        if let Some(mask) = &position.mask {
            let _ = writeln!(self.text, "bar.warp.sync {mask};");
        }
    }

    /// Writes a loop in which each lane has its own count, up to seven.
    fn repeat(&mut self, position: &StatementPosition) {
        let (label, counter) = (self.labels, self.counters);
        (self.labels, self.counters) = (label + 1, counter + 1);
        let register = self.rng.below(8);
        let _ = writeln!(self.text, "and.b32 c{counter}, r{register}, 7;\nLOOP{label}:");
        let _ = writeln!(self.text, "setp.eq.u32 e, c{counter}, 0;\n@e bra OUT{label};");
        self.statements(&StatementPosition { depth: position.depth + 1, meeting: false, mask: None });
        let _ = writeln!(self.text, "sub.u32 c{counter}, c{counter}, 1;\nbra LOOP{label};\nOUT{label}:");
        if let Some(mask) = &position.mask {
            let _ = writeln!(self.text, "bar.warp.sync {mask};");
        }
    }

    /// Writes a loop that all lanes run three times.
    fn repeat_evenly(&mut self, position: &StatementPosition) {
        let (label, counter) = (self.labels, self.counters);
        (self.labels, self.counters) = (label + 1, counter + 1);
        let _ = writeln!(self.text, "mov.b32 c{counter}, 3;\nLOOP{label}:");
        self.statements(&StatementPosition { depth: position.depth + 1, ..position.clone() });
        let _ = writeln!(
            self.text,
            "sub.u32 c{counter}, c{counter}, 1;\nsetp.ne.u32 e, c{counter}, 0;\n@e bra LOOP{label};"
        );
    }
}

/// A function that programs call.
const FUNCTION_TEXT: &str = "\
.func (.param .b32 out) f(.param .b32 a, .param .b64 b)
{
.reg .b32 x, y, z;
.reg .pred p;
ld.param.v2.b32 {x, y}, [b];
ld.param.b32 z, [a];
mad.lo.u32 z, z, 31, x;
st.param.b32 [out], z;
setp.gt.s32 p, z, y;
@p ret;
shr.u32 z, z, 3;
st.param.b32 [out], z;
ret;
}
";

/// The head: every thread gets its own words, slot in shared memory, and local memory.
const KERNEL_HEAD: &str = "\
.visible .entry k(.param .u64 in, .param .u64 out)
{
.reg .b32 r<8>, t, tid, id, slot, next, sum;
.reg .b64 q<4>, u, mine, from;
.reg .f32 f<4>, v;
.reg .f64 g<3>, w;
.reg .pred p<3>, e;
.shared .align 8 .b8 room[528];
.local .align 8 .b8 own[32];
mov.u32 tid, %tid.x;
mov.u32 id, %ctaid.x;
mov.u32 t, %ntid.x;
mad.lo.u32 id, id, t, tid;
ld.param.u64 from, [in];
mad.wide.u32 from, id, 48, from;
ld.global.v4.b32 {r0, r1, r2, r3}, [from];
ld.global.v2.b64 {q0, q1}, [from+16];
ld.global.v4.b32 {r4, r5, r6, r7}, [from+32];
add.u64 q2, q0, 77;
xor.b64 q3, q1, q0;
mov.b32 f0, r1;
cvt.rn.f32.s32 f1, r2;
mov.b32 f2, r5;
mov.f32 f3, 0f3fc00000;
mov.b64 g0, q0;
cvt.rn.f64.s32 g1, r3;
mov.f64 g2, 0d4008000000000000;
setp.lt.s32 p0, r0, r4;
setp.gt.u32 p1, r1, r2;
setp.eq.u32 p2, tid, 7;
mov.u64 mine, own;
st.local.b64 [mine], q0;
st.local.b64 [mine+8], q1;
st.local.b64 [mine+16], q2;
st.local.b64 [mine+24], q3;
mov.u32 slot, room;
add.u32 sum, slot, 512;
add.u32 t, tid, 5;
and.b32 t, t, 63;
mad.lo.u32 next, t, 8, slot;
mad.lo.u32 slot, tid, 8, slot;
mov.b32 t, 0;
mov.b64 u, 0;
st.shared.b64 [slot], u;
setp.ne.u32 e, tid, 0;
@!e st.shared.b64 [sum], u;
bar.sync 0;
";

/// The tail, which combines all values of a thread to one number.
const KERNEL_TAIL: &str = "\
bar.sync 0;
ld.local.b64 u, [mine];
xor.b64 q0, q0, u;
ld.local.b64 u, [mine+24];
xor.b64 q1, q1, u;
";

/// Returns code that mixes every register into `t` and stores it.
fn tail() -> String {
    let mut out = KERNEL_TAIL.to_owned();
    out += "mov.b32 t, 17;\n";
    for (class, count) in REGISTER_CLASSES {
        for number in 0..count {
            let _ = match class {
                'r' => writeln!(out, "mad.lo.u32 t, t, 31, r{number};"),
                'f' => writeln!(
                    out,
                    "setp.num.f32 e, f{number}, f{number};\nselp.f32 v, f{number}, 0f7fffffff, e;\n\
                     mov.b32 slot, v;\nmad.lo.u32 t, t, 31, slot;"
                ),
                'g' => writeln!(
                    out,
                    "setp.num.f64 e, g{number}, g{number};\nselp.f64 w, g{number}, 0d7ff8000000000000, e;\n\
                     mov.b64 {{slot, next}}, w;\nmad.lo.u32 t, t, 31, slot;\nmad.lo.u32 t, t, 31, next;"
                ),
                _ => writeln!(
                    out,
                    "mov.b64 {{slot, next}}, {class}{number};\nmad.lo.u32 t, t, 31, slot;\nmad.lo.u32 t, t, 31, next;"
                ),
            };
        }
    }
    for number in 0..3 {
        let _ = writeln!(out, "selp.b32 slot, 3, 5, p{number};\nmad.lo.u32 t, t, 31, slot;");
    }
    out + "ld.param.u64 from, [out];\nmad.wide.u32 from, id, 4, from;\nst.global.b32 [from], t;\nret;\n}\n"
}

/// Returns the program of a seed.
fn text(seed: u64) -> String {
    let mut writer = Writer { rng: Rng::new(seed), text: String::new(), masks: 0, counters: 0, labels: 0 };
    let position = StatementPosition { depth: 0, meeting: true, mask: Some(WARP_MASK.to_owned()) };
    for _ in 0..3 {
        writer.statements(&position);
    }
    let registers = format!(".reg .b32 m<{}>, c<{}>;\n", writer.masks + 1, writer.counters + 1);
    format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n{FUNCTION_TEXT}{}{}{}",
        KERNEL_HEAD.replacen("{\n", &format!("{{\n{registers}"), 1),
        writer.text,
        tail()
    )
}

/// Returns all random programs.
pub(crate) fn cases() -> Vec<Case> {
    (0..RANDOM_PROGRAMS).map(case).collect()
}

/// Returns the program of a seed over random words.
fn case(seed: u64) -> Case {
    let mut rng = Rng::new(!seed);
    // Half of the words are small, so that comparisons and shifts see both.
    let words = (0..BLOCKS_PER_GRID * THREADS_PER_BLOCK * INPUT_WORDS_PER_THREAD)
        .map(|_| rng.next() as u32 >> (rng.below(2) * rng.below(32)));
    Case {
        name: format!("random {seed}"),
        text: text(seed),
        grid: [BLOCKS_PER_GRID, 1, 1],
        block: [THREADS_PER_BLOCK, 1, 1],
        dynamic: 0,
        cluster: None,
        cooperative: false,
        arguments: vec![
            Argument::Input(words.flat_map(u32::to_le_bytes).collect()),
            Argument::Output((BLOCKS_PER_GRID * THREADS_PER_BLOCK * 4) as usize),
        ],
        fault: 0,
        needs_driver: false,
        optimize: false,
        covers: Vec::new(),
        operands: None,
        check: Check::Exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceAnswer};
    use crate::interpreter::Interpreter;

    #[test]
    fn programs_are_different_and_use_all_that_there_is() {
        let texts: Vec<String> = (0..RANDOM_PROGRAMS).map(text).collect();
        let all = texts.join("");
        for needed in ["bra LOOP", "shfl.sync", "bar.red", "call (", "redux", "st.local", "match.any", "ELSE"] {
            assert!(all.contains(needed), "{needed}");
        }
        assert!(texts.iter().enumerate().all(|(index, text)| !texts[..index].contains(text)));
    }

    #[test]
    fn programs_run_to_their_end() {
        for seed in 0..8 {
            let answer = Interpreter.ask(&case(seed)).unwrap();
            assert!(matches!(answer, DeviceAnswer::Done(_)), "{seed}: {answer:?}");
        }
    }
}
