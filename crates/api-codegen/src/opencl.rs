//! Products of OpenCL: exported symbols, the worker's dispatch, and the table that ICD loaders call through.
//!
//! Bodies of exported symbols are hand-written (`crate::<path>`), take the parameters without `errcode_ret`, and return
//! `Result`; what the C function returns decides which wrapper in `crate::ffi::returns` turns that into codes and nulls. The
//! worker's handlers (`crate::handlers::<name>`) must exist, or the session crate does not compile.

use std::fmt::Write;

use katydid_api_spec::{Api, Body, Class, Function};

use crate::journal;
use crate::source::SpecFiles;
use crate::text::{c_signature, c_type, c_types, function_path, names};

/// The parameter in which functions that return an object tell their code.
const CODE_PARAMETER: &str = "errcode_ret";

/// Product `opencl_entry.rs`: every exported symbol of the library for programs.
pub fn entries(api: &Api) -> String {
    let mut out = String::new();
    for function in &api.functions {
        let name = &function.name;
        let _ = writeln!(out, "/// `{name}` (spec/opencl.api:{}): {}.", function.line, function.class);
        let _ = writeln!(
            out,
            "///\n/// # Safety\n///\n/// Pointers must be null or valid as OpenCL demands of its callers."
        );
        let _ = writeln!(
            out,
            "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}({}){} {{",
            c_signature(function),
            arrow(function)
        );
        out.push_str(&body(function));
        out.push_str("}\n\n");
    }
    let placed: Vec<_> = api.functions.iter().filter(|function| function.version.is_some()).collect();
    out.push_str("/// What loaders call through; in the order of the vendor's `cl_icd_dispatch`.\n");
    let _ = writeln!(
        out,
        "pub(crate) static TABLE: crate::ffi::icd::DispatchTable<{}> = crate::ffi::icd::DispatchTable([",
        placed.len()
    );
    for function in &placed {
        let _ = writeln!(out, "    {} as *const sys::void,", function.name);
    }
    out.push_str("]);\n\n/// The address of an exported function.\n");
    out.push_str("pub(crate) fn symbol(function: sys::Function) -> *const sys::void {\n    match function {\n");
    for function in &api.functions {
        let _ = writeln!(out, "        {} => {} as *const sys::void,", function_path(function), function.name);
    }
    out.push_str("    }\n}\n");
    out
}

fn arrow(function: &Function) -> String {
    match function.returns.as_ref().map(|ty| ty.0.as_str()) {
        None => " -> i32".to_owned(),
        Some("nothing") => String::new(),
        Some("pointer") => " -> *mut sys::void".to_owned(),
        Some(_) => format!(" -> {}", function.returns.as_ref().map(c_type).unwrap_or_default()),
    }
}

fn body(function: &Function) -> String {
    let path = function_path(function);
    let tells = function.params.iter().any(|param| param.name == CODE_PARAMETER);
    let wrapper = match function.returns.as_ref().map(|ty| ty.0.as_str()) {
        None => "entry",
        Some("nothing") => "silent",
        Some(_) if tells => "object",
        Some(_) => "lookup",
    };
    let code = if tells { format!(", {CODE_PARAMETER}") } else { String::new() };
    if function.class == Class::Refused {
        let unused = names(function);
        let unused = if unused.is_empty() { String::new() } else { format!("    let _ = ({unused},);\n") };
        return format!("{unused}    crate::ffi::returns::refused_{wrapper}({path}{code})\n");
    }
    let parameters: Vec<_> =
        function.params.iter().filter(|param| param.name != CODE_PARAMETER).map(|param| param.name.as_str()).collect();
    let by = if let Body::By(by) | Body::Via(by) = &function.body { by.as_str() } else { "missing" };
    format!(
        "    // SAFETY: the caller's promise, above, is handed on.\n    \
         unsafe {{ crate::ffi::returns::{wrapper}({path}{code}, || crate::{by}({})) }}\n",
        parameters.join(", ")
    )
}

/// Product `opencl_dispatch.rs`: what the worker does with each message.
pub fn dispatch(source: &SpecFiles) -> String {
    let mut out = String::from(
        "/// Executes one frame.\n///\n/// # Errors\n///\n/// A breach of protocol, which ends the session, or the code that the program gets.\n\
         pub(crate) fn dispatch(session: &mut Session, head: &FrameHead, payload: &[u8]) -> Result<(), Fault> {\n    match head.opcode {\n",
    );
    for (opcode, function) in source.opencl_messages() {
        let name = &function.name;
        let _ = writeln!(out, "        {opcode} => {{\n            let message = message::{name}::decode(payload)?;");
        out.push_str(&executed(function));
        out.push_str("        }\n");
    }
    out.push_str("        opcode => Err(SessionError::UnknownOpcode { opcode }.into()),\n    }\n}\n\n");
    journal::journal_checks(&mut out, source.opencl_messages());
    out
}

/// The handler, what the journal notes, and the answer. What was to be ended is gone from the session's tables whatever
/// the driver said.
fn executed(function: &Function) -> String {
    let name = &function.name;
    let note = match journal::opencl_note(function) {
        note if note.is_empty() => note,
        note => format!("            {note}\n"),
    };
    match function.class {
        Class::Enqueue if note.is_empty() => format!("            crate::handlers::{name}(session, head, message)\n"),
        Class::Enqueue => {
            format!("            let done = crate::handlers::{name}(session, head, message);\n{note}            done\n")
        }
        Class::Blocking => format!(
            "            let job = crate::handlers::{name}(session, head, message)?;\n\
             {note}            session.detach(head, job)\n"
        ),
        _ => format!(
            "            let reply = crate::handlers::{name}(session, head, message)?;\n\
             {note}            session.answer(head, &reply)\n"
        ),
    }
}

/// Product `opencl_table.rs`: the same table as a driver fills it in, one entry a function.
pub fn table(api: &Api) -> String {
    let mut out = String::from(
        "/// The functions of a driver, as its objects point to them. An entry is null where a driver has no such function.\n\
         #[repr(C)]\n#[derive(Clone, Copy)]\npub struct Dispatch {\n",
    );
    for function in api.functions.iter().filter(|function| function.version.is_some()) {
        let (name, types, arrow) = (&function.name, c_types(function), arrow(function).replace("sys::", ""));
        let _ = writeln!(
            out,
            "    /// `{name}`.\n    pub {name}: Option<unsafe extern \"C\" fn({}){arrow}>,",
            types.replace("sys::", "")
        );
    }
    out.push_str("}\n");
    out
}

/// Product `docs/reference/opencl-coverage.md`: what happens to each function, for readers.
pub fn coverage(api: &Api) -> String {
    let mut out = String::from(
        "# Coverage of OpenCL\n\nGenerated from `spec/opencl.api` by `cargo xtask bless`; a test compares. What the classes mean stands in\n\
         `docs/reference/api-coverage.md`; `refused` here: the function returns `CL_INVALID_OPERATION` or null and says its name once,\n\
         and loaders are not told of it. `docs/explanation/opencl.md` says how the others work.\n\n| class | functions |\n|---|---:|\n",
    );
    for class in Class::ALL {
        let _ = writeln!(out, "| {class} | {} |", api.functions.iter().filter(|f| f.class == class).count());
    }
    let _ = writeln!(out, "| all | {} |\n\n| function | class | since |\n|---|---|---|", api.functions.len());
    for function in &api.functions {
        let since = function.version.map_or_else(|| "by name".to_owned(), |version| version.to_string());
        let _ = writeln!(out, "| {} | {} | {since} |", function.name, function.class);
    }
    out
}
