//! Product `dispatch.rs`: what the worker does with each message.
//!
//! Functions of CUDA are complete: decode, resolve handles, call the driver, answer. Session messages go to
//! `crate::handlers::<name>`, which must exist. The session crate supplies `Session::{handle, bind, forget,
//! driver, enqueued, answer, detach}`, and for the journal what `crate::journal` names.

use std::fmt::Write;

use katydid_api_spec::{Class, Function, JournalRule, ParameterKind, Sort};

use crate::journal;
use crate::source::SpecFiles;
use crate::text::c_type;

/// Generates the match from opcodes to handlers in the worker.
pub fn generate(source: &SpecFiles) -> String {
    let mut out = String::new();
    out.push_str(
        "/// Executes one frame.\n///\n/// # Errors\n///\n/// A breach of protocol, which ends the session, or the code that the program gets.\n",
    );
    out.push_str(
        "pub(crate) fn dispatch(session: &mut Session, head: &FrameHead, payload: &[u8]) -> Result<(), Fault> {\n",
    );
    out.push_str("    match head.opcode {\n");
    for (opcode, function) in source.messages() {
        let _ = writeln!(out, "        {opcode} => {}(session, head, payload),", function.name);
    }
    out.push_str("        opcode => Err(SessionError::UnknownOpcode { opcode }.into()),\n    }\n}\n\n");
    for (_, function) in source.messages() {
        let session_message = source.session.functions.iter().any(|f| f.name == function.name);
        handler(&mut out, function, if session_message { by_hand } else { complete });
    }
    journal::journal_checks(&mut out, source.messages());
    out
}

fn handler(out: &mut String, function: &Function, body: fn(&Function) -> String) {
    let name = &function.name;
    let _ = writeln!(out, "fn {name}(session: &mut Session, head: &FrameHead, payload: &[u8]) -> Result<(), Fault> {{");
    let _ = writeln!(out, "    let message = message::{name}::decode(payload)?;\n    let _ = &message;");
    out.push_str(&body(function));
    out.push_str("}\n\n");
}

fn by_hand(function: &Function) -> String {
    let name = &function.name;
    let notes = journal::notes(function);
    match function.class {
        Class::Enqueue => format!(
            "    let status = crate::handlers::{name}(session, head, message)?;\n\
             {notes}    session.enqueued(message::{name}::NAME, status);\n    Ok(())\n"
        ),
        Class::Blocking => {
            format!(
                "    let job = crate::handlers::{name}(session, head, message)?;\n\
                 {notes}    session.detach(head, job)\n"
            )
        }
        _ => format!(
            "    let (status, reply): (sys::CUresult, message::{name}Reply) = \
             crate::handlers::{name}(session, head, message)?;\n{}",
            reply_and_notes("&reply", &notes)
        ),
    }
}

/// The answer, and behind it what the journal notes of it.
fn reply_and_notes(reply: &str, notes: &str) -> String {
    match notes {
        "" => format!("    session.answer(head, status, {reply})\n"),
        notes => format!("    session.answer(head, status, {reply})?;\n{notes}    Ok(())\n"),
    }
}

fn complete(function: &Function) -> String {
    let mut out = String::new();
    for param in &function.params {
        let name = &param.name;
        match &param.kind {
            ParameterKind::Value(ty) if ty.is_handle() => {
                let _ = writeln!(out, "    let {name}: {} = session.handle(head, message.{name})?;", c_type(ty));
            }
            ParameterKind::Value(ty) => {
                let _ = writeln!(out, "    let {name} = message.{name} as {};", c_type(ty));
            }
            _ => {}
        }
    }
    match function.class {
        Class::Enqueue => enqueue(&mut out, function),
        Class::Blocking => detach(&mut out, function),
        _ => call(&mut out, function),
    }
    out
}

/// Outputs are locals of the C types, handed to the driver by address.
fn outputs(out: &mut String, function: &Function, indent: &str) {
    for param in &function.params {
        if let ParameterKind::Out(ty) | ParameterKind::OutNew(ty) = &param.kind {
            let _ = writeln!(out, "{indent}let mut {}: {} = Default::default();", param.name, c_type(ty));
        }
    }
}

fn driver_call(function: &Function) -> String {
    let arguments: Vec<_> = function
        .params
        .iter()
        .map(|param| match &param.kind {
            ParameterKind::Out(_) | ParameterKind::OutNew(_) => format!("&raw mut {}", param.name),
            _ => param.name.clone(),
        })
        .collect();
    format!("{}({})", function.name, arguments.join(", "))
}

const SAFETY_COMMENT: &str =
    "// SAFETY: handles come from the driver itself, outputs are locals that outlive the call.";

fn enqueue(out: &mut String, function: &Function) {
    outputs(out, function, "    ");
    let _ = writeln!(
        out,
        "    {SAFETY_COMMENT}\n    let status = unsafe {{ session.driver().{} }};",
        driver_call(function)
    );
    bookkeeping(out, function);
    out.push_str(&journal::notes(function));
    let _ = writeln!(out, "    session.enqueued(message::{}::NAME, status);\n    Ok(())", function.name);
}

fn call(out: &mut String, function: &Function) {
    outputs(out, function, "    ");
    let _ = writeln!(
        out,
        "    {SAFETY_COMMENT}\n    let status = unsafe {{ session.driver().{} }};",
        driver_call(function)
    );
    bookkeeping(out, function);
    out.push_str(&reply_and_notes(&format!("&{}", reply(function)), &journal::notes(function)));
}

/// A handle that the call made or ended enters or leaves the session's table.
fn bookkeeping(out: &mut String, function: &Function) {
    for param in &function.params {
        let name = &param.name;
        match (&param.kind, &function.journal) {
            (ParameterKind::OutNew(_), _) => {
                let _ = writeln!(out, "    if status == sys::CUresult::SUCCESS {{");
                let _ = writeln!(out, "        session.bind(message.{name}, {name})?;\n    }}");
            }
            (ParameterKind::Value(ty), JournalRule::Destroy(ended))
                if ty.is_handle() && ended.kind.is_none() && &ended.param == name =>
            {
                let _ = writeln!(out, "    session.forget::<{}>(message.{name});", c_type(ty));
            }
            _ => {}
        }
    }
}

fn detach(out: &mut String, function: &Function) {
    out.push_str("    session.detach(head, Box::new(move |driver| {\n");
    outputs(out, function, "        ");
    let _ =
        writeln!(out, "        {SAFETY_COMMENT}\n        let status = unsafe {{ driver.{} }};", driver_call(function));
    let _ = writeln!(out, "        (status, {})\n    }}))", reply(function));
}

fn reply(function: &Function) -> String {
    let fields: Vec<_> = function
        .params
        .iter()
        .filter_map(|param| match &param.kind {
            ParameterKind::Out(ty) if ty.1 == Sort::Structure => {
                Some(format!("{0}: sys::Pod::to_bytes(&{0})", param.name))
            }
            ParameterKind::Out(ty) if ty.0 == "usize" => Some(format!("{0}: {0} as u64", param.name)),
            ParameterKind::Out(_) => Some(param.name.clone()),
            _ => None,
        })
        .collect();
    format!("message::{}Reply {{ {} }}", function.name, fields.join(", "))
}
