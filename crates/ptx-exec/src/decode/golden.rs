//! Golden tests: texts in `tests/golden` and the code they decode to, constants and slots included.
//!
//! `KATYDID_BLESS=1 cargo test -p katydid-ptx-exec` rewrites the listings; the difference is then reviewed like code.

use super::decode;
use crate::api::GlobalMemory;
use crate::engine::machine::{Code, Inst};
use crate::load::globals;
use crate::load::link::LinkedProgram;
use crate::slot::{CONSTANT_BIT, NEGATED_BIT, NO_SLOT};
use std::fmt::Write;
use std::path::Path;

/// Memory that has only addresses.
struct Addresses(u64);

impl GlobalMemory for Addresses {
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        let start = self.0.next_multiple_of(align);
        self.0 = start + size;
        Some(start)
    }

    fn write(&mut self, _: u64, _: &[u8]) {}
}

/// Formats a slot: `c3` is row 3 of the constants, `.7` word 7 of the frame.
fn slot(slot: u32) -> String {
    match slot {
        NO_SLOT => "-".to_owned(),
        slot if slot & CONSTANT_BIT != 0 => format!("c{}", (slot & !CONSTANT_BIT) / 32),
        slot => format!(".{slot}"),
    }
}

fn guard(inst: &Inst) -> String {
    match inst.guard {
        NO_SLOT => String::new(),
        guard if guard & NEGATED_BIT != 0 => format!("@!.{} ", guard & !NEGATED_BIT),
        guard => format!("@.{guard} "),
    }
}

fn listing(text: &str, code: &Code) -> String {
    let mut out = String::new();
    for function in &code.functions {
        writeln!(
            out,
            "function at {}: {} rows, {} bytes local, {:?} -> {:?}",
            function.entry, function.rows, function.local_bytes, function.params, function.returns
        )
        .unwrap();
    }
    for (row, constant) in code.constants.iter().enumerate() {
        writeln!(out, "c{row} = {:#x}", constant.0[0]).unwrap();
    }
    let mut last = 0;
    for (pc, inst) in code.insts.iter().enumerate() {
        if inst.line != last {
            last = inst.line;
            writeln!(out, "; {}", text.lines().nth(last as usize - 1).unwrap_or_default().trim()).unwrap();
        }
        let [d, a, b, c, x] = [inst.d, inst.a, inst.b, inst.c, inst.x].map(slot);
        writeln!(out, "{pc:4}: {}d {d} a {a} b {b} c {c} x {x} imm {:#x}", guard(inst), inst.imm).unwrap();
    }
    let lists: Vec<String> = code.lists.iter().map(|entry| slot(*entry)).collect();
    writeln!(out, "lists {lists:?}").unwrap();
    out
}

fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = std::fs::read_to_string(folder.join(format!("{name}.ptx"))).unwrap();
    let modules = [katydid_ptx::parse(&text).unwrap()];
    let linked = LinkedProgram::new(&modules).unwrap();
    let globals = globals::allocate(&linked, &mut Addresses(0x1000)).unwrap();
    let code = decode(&linked, &globals, &[]).unwrap_or_else(|error| panic!("{error}")).code;
    let (listing, path) = (listing(&text, &code), folder.join(format!("{name}.txt")));
    if std::env::var_os("KATYDID_BLESS").is_some() {
        std::fs::write(&path, &listing).unwrap();
    }
    assert_eq!(listing, std::fs::read_to_string(&path).unwrap_or_default(), "{} differs", path.display());
}

#[test]
fn a_loop_reuses_slots_of_dead_registers() {
    check("loop");
}

#[test]
fn calls_and_vectors_use_local_memory_and_lists() {
    check("call");
}

#[test]
fn values_of_one_path_share_no_slot_with_those_of_the_other_that_live_on() {
    check("branch");
}
