//! Part of product `dispatch.rs`: what of a message the journal keeps.
//!
//! The session crate supplies `Session::{made, changed, note_answer, ended}` and, in `crate::journal`, the kinds of objects
//! (`ObjectKind`), which of its properties a message sets (`Selector`), and the ids that end together (`only`, `span`).

use std::fmt::Write;

use katydid_api_spec::{Function, JournalRule, Object, ParameterKind};

use crate::text::wire_type;

/// The lines that follow a message's execution. What was made or set counts when that succeeded; what was to be ended
/// is gone from the session's tables whatever the driver said.
pub(crate) fn notes(function: &Function) -> String {
    let Some(object) = function.journal.object() else { return String::new() };
    let subject = subject(function, object);
    let note = match &function.journal {
        JournalRule::Create(_) => format!("session.made(head, {subject}, payload);"),
        JournalRule::Set(_) => format!("session.changed(head, {subject}, {}, payload);", selector(function, object)),
        JournalRule::Answer(_) => {
            format!("session.note_answer(head, {subject}, {}, payload);", selector(function, object))
        }
        _ => {
            return format!(
                "    session.ended(head, {}, {}, payload);\n",
                kind(function, object),
                range(function, object)
            );
        }
    };
    format!("    if status == sys::CUresult::SUCCESS {{\n        {note}\n    }}\n")
}

/// The lines that follow the execution of a message of OpenCL, whose handlers return only when they succeeded. Ids say what
/// kind of object they name.
pub(crate) fn opencl_note(function: &Function) -> String {
    let Some(object) = function.journal.object() else { return String::new() };
    let id = number(function, &object.param);
    match &function.journal {
        JournalRule::Create(_) => format!("session.journal.made(head, {id}, payload);"),
        JournalRule::Set(_) => {
            let property = object.selector.as_ref().map_or_else(|| "0".to_owned(), |name| number(function, name));
            format!("session.journal.changed(head, {id}, {property}, payload);")
        }
        JournalRule::Destroy(_) => format!("session.journal.ended({id});"),
        _ => String::new(),
    }
}

/// Two functions by which a journal that was read is checked: it may hold no other messages.
pub(crate) fn journal_checks<'a>(out: &mut String, messages: impl Iterator<Item = (u16, &'a Function)> + Clone) {
    let is_kept = |journal: &JournalRule| {
        matches!(journal, JournalRule::Create(_) | JournalRule::Set(_) | JournalRule::Answer(_))
    };
    let is_end = |journal: &JournalRule| matches!(journal, JournalRule::Destroy(_));
    let _ = writeln!(out, "/// Whether a message makes, changes or tells something that the journal keeps.");
    list(out, "is_kept", messages.clone(), is_kept);
    let _ = writeln!(out, "\n/// Whether a message ends what the journal keeps.");
    list(out, "is_end", messages, is_end);
}

fn list<'a>(
    out: &mut String,
    name: &str,
    messages: impl Iterator<Item = (u16, &'a Function)>,
    holds: impl Fn(&JournalRule) -> bool,
) {
    let _ = writeln!(out, "pub(crate) fn {name}(opcode: u16) -> bool {{\n    matches!(opcode,");
    let opcodes = messages.filter(|(_, function)| holds(&function.journal));
    let opcodes: Vec<_> = opcodes.map(|(opcode, _)| opcode.to_string()).collect();
    let none = if opcodes.is_empty() { "0" } else { "" };
    let _ = writeln!(out, "        {none}{}\n    )\n}}", opcodes.join(" | "));
}

/// Rust expression of the pair `(kind, id)` that names an object in the journal.
fn subject(function: &Function, object: &Object) -> String {
    let first = format!("({}, {})", kind(function, object), number(function, &object.param));
    match &object.other {
        Some(other) => {
            let kind = variant(&kind_of(function, other));
            format!("crate::journal::either({first}, ({kind}, {}))", number(function, other))
        }
        None => first,
    }
}

fn kind(function: &Function, object: &Object) -> String {
    if object.kind.is_none() && object_type(function, &object.param).is_some() {
        return variant("object");
    }
    variant(&object.kind.clone().unwrap_or_else(|| kind_of(function, &object.param)))
}

/// The word for what a parameter names: its type without the prefix, or its own name.
fn kind_of(function: &Function, param: &str) -> String {
    if param == Object::CURRENT {
        return "context".to_owned();
    }
    match function.params.iter().find(|other| other.name == param).map(|param| &param.kind) {
        Some(ParameterKind::Value(ty) | ParameterKind::New(ty) | ParameterKind::OutNew(ty)) if ty.is_handle() => {
            ty.0["CU".len()..].to_owned()
        }
        _ => param.to_owned(),
    }
}

/// The number of a parameter's type, if generated code keeps its objects.
fn object_type(function: &Function, param: &str) -> Option<usize> {
    match function.params.iter().find(|other| other.name == param).map(|param| &param.kind) {
        Some(ParameterKind::Value(ty) | ParameterKind::OutNew(ty)) => ty.object(),
        _ => None,
    }
}

fn variant(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    format!("crate::journal::ObjectKind::{}{rest}", first.to_uppercase())
}

/// A parameter as 64 bits. Objects of all types that generated code keeps are one kind: the type's number is the upper half.
fn number(function: &Function, name: &str) -> String {
    if let Some(ty) = object_type(function, name) {
        return format!("{ty}_u64 << 32 | u64::from(message.{name})");
    }
    if name == Object::CURRENT {
        return "u64::from(session.current)".to_owned();
    }
    let kind = function.params.iter().find(|param| param.name == name).map(|param| &param.kind);
    match kind {
        Some(ParameterKind::Value(ty)) if wire_type(ty) == "u64" => format!("message.{name}"),
        Some(ParameterKind::Out(_)) => format!("reply.{name}"),
        _ => format!("u64::from(message.{name})"),
    }
}

fn selector(function: &Function, object: &Object) -> String {
    let Some(name) = &object.selector else { return "crate::journal::Selector::Number(0)".to_owned() };
    let is_bytes = function.params.iter().any(|param| &param.name == name && param.kind == ParameterKind::InBytes);
    match is_bytes {
        true => "crate::journal::Selector::Whole".to_owned(),
        false => format!("crate::journal::Selector::Number({})", number(function, name)),
    }
}

/// The ids that end: all those in a range of addresses where the message has a size.
fn range(function: &Function, object: &Object) -> String {
    let first = number(function, &object.param);
    match function.params.iter().any(|param| param.name == "size") {
        true => format!("crate::journal::span({first}, message.size)"),
        false => format!("crate::journal::only({first})"),
    }
}
