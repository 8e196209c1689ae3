//! A form as a kernel: every thread loads its row of operands, runs the form once, and stores the results.
//!
//! Operands and results lie in columns, each at a multiple of 16 bytes. Narrow results are stored with their whole register, so
//! that its upper bits are part of the answer. A body that names `room` gets a global variable of that name, with 32 bytes for
//! each row.

use crate::case::{Argument, Case, Check, Operands};
use crate::form::{Form, OperandSource, RUNS_PER_FORM};
use crate::kind::{Content, OperandKind};
use crate::rng::Rng;
use crate::values::values;
use std::fmt::Write;

/// Threads per block.
const THREADS_PER_BLOCK: u32 = 128;

/// Returns the bytes of a result in memory.
pub(crate) fn result_bytes(kind: OperandKind) -> usize {
    if kind.content == Content::Predicate { 1 } else { kind.register_bits() as usize / 8 }
}

/// Returns the bytes of all results of all rows.
pub(crate) fn output_bytes(form: &Form) -> usize {
    form.results.iter().map(|kind| result_bytes(*kind) * RUNS_PER_FORM).sum()
}

/// Returns the text of the kernel that runs a form.
pub(crate) fn text(form: &Form) -> String {
    let room = if form.body.contains("room") {
        format!(".global .align 32 .b8 room[{}];\n", 32 * RUNS_PER_FORM)
    } else {
        String::new()
    };
    let mut out = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n{room}.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .b32 row, word;\n.reg .b64 from, to, at, low, high;\n\
         ld.param.u64 from, [in];\nld.param.u64 to, [out];\nmov.u32 row, %ctaid.x;\nmov.u32 word, %ntid.x;\n\
         mul.lo.u32 row, row, word;\nmov.u32 word, %tid.x;\nadd.u32 row, row, word;\n",
    );
    let mut start = 0;
    for (index, source) in form.sources.iter().enumerate() {
        load(&mut out, source.kind, index, start);
        start = (start + source.kind.bytes() * RUNS_PER_FORM).next_multiple_of(16);
    }
    for (index, kind) in form.results.iter().enumerate() {
        clear(&mut out, *kind, index);
    }
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{{\n{}\n}}", form.body);
    let mut start = 0;
    for (index, kind) in form.results.iter().enumerate() {
        store(&mut out, *kind, index, start);
        start += result_bytes(*kind) * RUNS_PER_FORM;
    }
    out + "ret;\n}\n"
}

/// Writes the load of `a{index}`.
fn load(out: &mut String, kind: OperandKind, index: usize, start: usize) {
    let (register, ty, bytes) = (kind.register(), kind.loaded_as(), kind.bytes());
    let _ = write!(out, ".reg .{register} a{index};\nmad.wide.u32 at, row, {bytes}, from;\n");
    let _ = match register {
        "pred" => write!(out, "ld.global.u8 word, [at+{start}];\nsetp.ne.u32 a{index}, word, 0;\n"),
        "b128" => write!(out, "ld.global.{ty} {{low, high}}, [at+{start}];\nmov.b128 a{index}, {{low, high}};\n"),
        _ => writeln!(out, "ld.global.{ty} a{index}, [at+{start}];"),
    };
}

/// Declares `d{index}` and clears it: a form may leave some lanes unchanged.
fn clear(out: &mut String, kind: OperandKind, index: usize) {
    let register = kind.register();
    let _ = writeln!(out, ".reg .{register} d{index};");
    let _ = match register {
        "pred" => writeln!(out, "setp.ne.u32 d{index}, row, row;"),
        "b128" => write!(out, "mov.b64 low, 0;\nmov.b128 d{index}, {{low, low}};\n"),
        "f32" => writeln!(out, "mov.f32 d{index}, 0f00000000;"),
        "f64" => writeln!(out, "mov.f64 d{index}, 0d0000000000000000;"),
        _ => writeln!(out, "mov.{register} d{index}, 0;"),
    };
}

/// Writes the store of `d{index}`.
fn store(out: &mut String, kind: OperandKind, index: usize, start: usize) {
    let (register, bytes) = (kind.register(), result_bytes(kind));
    let _ = writeln!(out, "mad.wide.u32 at, row, {bytes}, to;");
    let _ = match register {
        "pred" => write!(out, "selp.u32 word, 1, 0, d{index};\nst.global.u8 [at+{start}], word;\n"),
        "b128" => write!(out, "mov.b128 {{low, high}}, d{index};\nst.global.v2.b64 [at+{start}], {{low, high}};\n"),
        _ => writeln!(out, "st.global.{register} [at+{start}], d{index};"),
    };
}

/// Returns the seed of an operand's values. Recorded answers belong to these words, so type names in them stay even if a Rust
/// type is renamed.
fn seed(index: usize, source: &OperandSource, has_near: bool) -> String {
    let OperandSource { kind: OperandKind { name, bits, content }, domain } = source;
    format!(
        "{index} Source {{ kind: Kind {{ name: {name:?}, bits: {bits}, content: {content:?} }}, domain: {domain:?} }} {has_near}"
    )
}

impl Form {
    /// Returns the case of the form over its values. An operand's values are related to those of the previous one if both have
    /// the same type.
    pub(crate) fn case(&self) -> Case {
        let mut columns: Vec<Vec<u128>> = Vec::new();
        for (index, source) in self.sources.iter().enumerate() {
            let near = index.checked_sub(1).filter(|before| self.sources[*before].kind == source.kind);
            let near = near.and_then(|before| columns.get(before)).map(Vec::as_slice);
            let mut rng = Rng::of(&seed(index, source, near.is_some()));
            let column = values(source.kind, source.domain, RUNS_PER_FORM, near, &mut rng);
            columns.push(column);
        }
        let mut input = Vec::new();
        for (source, column) in self.sources.iter().zip(&columns) {
            input.resize(input.len().next_multiple_of(16), 0);
            input.extend(column.iter().flat_map(|value| value.to_le_bytes()[..source.kind.bytes()].to_vec()));
        }
        Case {
            name: self.name.clone(),
            text: text(self),
            grid: [RUNS_PER_FORM as u32 / THREADS_PER_BLOCK, 1, 1],
            block: [THREADS_PER_BLOCK, 1, 1],
            dynamic: 0,
            cluster: None,
            cooperative: false,
            arguments: vec![Argument::Input(input), Argument::Output(output_bytes(self))],
            fault: 0,
            needs_driver: false,
            optimize: true,
            covers: Vec::new(),
            operands: Some(Operands {
                sources: self.sources.iter().map(|source| source.kind).collect(),
                results: self.results.clone(),
            }),
            check: match (self.bound, self.results.first()) {
                (None, _) => Check::Exact,
                (Some(bound), Some(result)) if bound.function.is_none() => Check::Near(bound, *result),
                (Some(bound), _) => Check::Function(bound),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::parse;

    #[test]
    fn a_form_becomes_a_kernel() {
        let families = parse("setp.lt.f32 : pred = f32 f32").unwrap();
        let form = &families[0].forms[0];
        let text = super::text(form);
        assert!(text.contains("ld.global.f32 a1, [at+2048];"), "{text}");
        assert!(text.contains("{\nsetp.lt.f32 d0, a0, a1;\n}"), "{text}");
        assert_eq!(super::output_bytes(form), 512);
    }
}
