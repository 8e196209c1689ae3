//! Texts and the trees they parse to, side by side in `golden/`.
//!
//! `KATYDID_BLESS=1 cargo test -p katydid-ptx` rewrites the trees; the difference is then reviewed like code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use katydid_ptx::ast::{Function, Initial, Item, Module, Operand, Statement, Variable};
use std::fmt::Write;
use std::path::Path;

/// Formats a tree with one line per item or statement, so that differences read well.
fn dump(module: &Module<'_>) -> String {
    let mut out = format!("version {:?} target {:?} bits {}\n", module.version, module.target, module.address_size);
    for item in &module.items {
        match item {
            Item::Variable(variable) => writeln!(out, "{}", variable_line(variable)).unwrap(),
            Item::Function(function) => dump_function(function, &mut out),
            Item::Alias { name, target, line } => writeln!(out, "alias {name} = {target} (line {line})").unwrap(),
        }
    }
    out
}

fn variable_line(variable: &Variable<'_>) -> String {
    let Variable { linkage, space, align, vector, ty, name, count, dimensions, line, .. } = variable;
    let initial: Vec<String> = variable.initial.iter().map(initial_text).collect();
    format!(
        "{linkage:?} {space:?} align {align} v{vector} {ty} {name} count {count:?} {dimensions:?} = {initial:?} (line {line})"
    )
}

fn initial_text(initial: &Initial<'_>) -> String {
    match initial {
        Initial::List(list) => format!("{:?}", list.iter().map(initial_text).collect::<Vec<_>>()),
        other => format!("{other:x?}"),
    }
}

fn dump_function(function: &Function<'_>, out: &mut String) {
    let Function { linkage, entry, name, directives, line, .. } = function;
    writeln!(out, "{linkage:?} {} {name} {directives:?} (line {line})", if *entry { "entry" } else { "func" }).unwrap();
    for (kind, list) in [("returns", &function.returns), ("param", &function.params)] {
        for variable in list {
            writeln!(out, "  {kind} {}", variable_line(variable)).unwrap();
        }
    }
    match &function.body {
        Some(body) => dump_body(body, 1, out),
        None => writeln!(out, "  declared").unwrap(),
    }
}

fn dump_body(body: &[Statement<'_>], depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    for statement in body {
        match statement {
            Statement::Label(name, line) => writeln!(out, "{indent}{name}: (line {line})").unwrap(),
            Statement::Declare(variable) => writeln!(out, "{indent}{}", variable_line(variable)).unwrap(),
            Statement::Instruction(instruction) => {
                let guard = instruction
                    .guard
                    .map(|guard| format!("@{}{} ", if guard.negated { "!" } else { "" }, guard.register));
                let operands: Vec<String> = instruction.operands.iter().map(operand_text).collect();
                writeln!(
                    out,
                    "{indent}{}{} | {}",
                    guard.unwrap_or_default(),
                    instruction.full_name(),
                    operands.join(" | ")
                )
                .unwrap();
            }
            Statement::Block(inner) => {
                writeln!(out, "{indent}block").unwrap();
                dump_body(inner, depth + 1, out);
            }
            Statement::Prototype(function) => dump_function(function, out),
            Statement::Targets { name, targets, .. } => writeln!(out, "{indent}targets {name} {targets:?}").unwrap(),
        }
    }
}

fn operand_text(operand: &Operand<'_>) -> String {
    format!("{operand:x?}")
}

fn check(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = std::fs::read_to_string(folder.join(format!("{name}.ptx"))).unwrap();
    let tree = dump(&katydid_ptx::parse(&text).unwrap_or_else(|error| panic!("{error}")));
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("KATYDID_BLESS").is_some() {
        std::fs::write(&path, &tree).unwrap();
    }
    assert_eq!(tree, std::fs::read_to_string(&path).unwrap_or_default(), "{} differs", path.display());
}

#[test]
fn directives_and_variables_parse_as_recorded() {
    check("module");
}

#[test]
fn instructions_and_scopes_parse_as_recorded() {
    check("body");
}
