//! Product `entry.rs`: every exported symbol of the shim.
//!
//! Each symbol is an entry guard: panics stop there, and an error becomes the `CUresult` that the program sees. The
//! shim supplies `crate::ffi` (entry, out, call, enqueue, refused), `crate::ffi::{wire, owning_context, position}`,
//! `crate::ffi::with_per_thread_default`, `crate::ffi::objects`, and the hand-written bodies that lines name.

use std::fmt::Write;

use katydid_api_spec::{Api, Body, Class, Context, Function, JournalRule, Param, ParameterKind, Sort};

use crate::text::{c_signature, c_type, function_path, names, wire_type};

/// Generates the exported functions of libcuda.so.1 that the shim does not write by hand.
pub fn generate(api: &Api) -> String {
    let mut out = String::new();
    for function in &api.functions {
        symbol(&mut out, function, &body(function));
    }
    addresses(&mut out, api);
    out
}

/// The frame of one exported symbol around `body`.
pub(crate) fn symbol(out: &mut String, function: &Function, body: &str) {
    let name = &function.name;
    let _ = writeln!(
        out,
        "/// `{name}` (spec/cuda.api:{}): {}; journal {}.",
        function.line, function.class, function.journal
    );
    let _ = writeln!(
        out,
        "///\n/// # Safety\n///\n/// Pointers must be null or valid as the CUDA driver API demands of its callers."
    );
    let _ = writeln!(out, "#[unsafe(no_mangle)]");
    let _ = writeln!(out, "pub unsafe extern \"C\" fn {name}({}) -> sys::CUresult {{", c_signature(function));
    let is_unread = function.class == Class::Refused || matches!(function.body, Body::Always(_));
    if is_unread && !function.params.is_empty() {
        let _ = writeln!(out, "    let _ = ({},);", names(function));
    }
    out.push_str(body);
    out.push_str("}\n\n");
}

/// `symbol`: the address of each exported function, by its number.
pub(crate) fn addresses(out: &mut String, api: &Api) {
    out.push_str("/// The address of an exported function, as `cuGetProcAddress` hands it out.\n");
    out.push_str("pub(crate) fn symbol(function: sys::Function) -> *const sys::void {\n    match function {\n");
    for function in &api.functions {
        let _ = writeln!(out, "        {} => {} as *const sys::void,", function_path(function), function.name);
    }
    out.push_str("    }\n}\n");
}

fn body(function: &Function) -> String {
    let path = function_path(function);
    if function.class == Class::Refused {
        return format!("    crate::ffi::refused({path})\n");
    }
    if let Some(alias) = &function.alias {
        return variant(&alias.base, &names(function));
    }
    let inner = match &function.body {
        Body::By(by) | Body::Via(by) => format!(
            "        // SAFETY: the caller's promise, above, is handed on.\n        unsafe {{ crate::{by}({}) }}\n",
            names(function)
        ),
        Body::Always(code) => format!("        Err(sys::CUresult({code}))\n"),
        Body::Generated => generated(function),
    };
    match detail(function) {
        Some(detail) => {
            format!("    crate::ffi::detailed({path}, || {detail}, || {{\n{inner}    }})\n")
        }
        None => format!("    crate::ffi::entry({path}, || {{\n{inner}    }})\n"),
    }
}

/// What a trace records of a call, as an expression over its parameters; none where they say nothing of work or memory.
fn detail(function: &Function) -> Option<String> {
    const KERNEL: &str = "f";
    let has = |name: &str| function.params.iter().any(|param| param.name == name);
    let of_type = |type_name: &str| {
        let is_it = |kind: &ParameterKind| matches!(kind, ParameterKind::Value(ty) if ty.0 == type_name);
        function.params.iter().find(|param| is_it(&param.kind)).map(|param| param.name.as_str())
    };
    let lookup = match function.name.as_str() {
        "cuGetProcAddress" | "cuGetProcAddress_v2" => Some("symbol(symbol, cudaVersion, flags)"),
        "cuGetExportTable" => Some("table(pExportTableId)"),
        _ => None,
    };
    if let Some(lookup) = lookup {
        return Some(pointed_detail("", lookup));
    }
    let is_local = matches!(function.body, Body::Always(_)) || function.class == Class::Refused;
    let starts = |start: &str| function.name.starts_with(start);
    if is_local || !(starts("cuLaunch") || starts("cuMem") || starts("cuGraphLaunch") || of_type("CUstream").is_some())
    {
        return None;
    }
    let mut parts = String::new();
    if let Some(stream) = of_type("CUstream") {
        let _ = write!(parts, ".stream({stream})");
    }
    if let Some(bytes) = bytes(function) {
        let _ = write!(parts, ".bytes({bytes})");
    }
    if starts("cuLaunch") && of_type("CUfunction") == Some(KERNEL) {
        if has("gridDimX") {
            parts.push_str(
                ".kernel(f, sharedMemBytes).shape([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ])",
            );
        } else if !has("config") {
            parts.push_str(".kernel(f, 0)");
        }
    }
    let pointed = [("CUlaunchConfig", "config", ", f"), ("CUDA_MEMCPY2D", "rows", ""), ("CUDA_MEMCPY3D", "slices", "")];
    for param in &function.params {
        let ty = crate::text::c_param(&param.kind);
        let entry = pointed.iter().find(|(name, ..)| ty == format!("*const sys::{name}"));
        if let Some((_, method, more)) = entry {
            let name = &param.name;
            return Some(pointed_detail(&parts, &format!("{method}({name}{more})")));
        }
    }
    (!parts.is_empty()).then(|| format!("crate::ffi::CallDetail::default(){parts}"))
}

/// The expression of a detail that reads what a parameter points to; `parts` are the calls before it.
fn pointed_detail(parts: &str, call: &str) -> String {
    format!(
        "{{\n        let detail = crate::ffi::CallDetail::default(){parts};\n        \
         // SAFETY: null or readable, by `# Safety`.\n        unsafe {{ detail.{call} }}\n    }}"
    )
}

/// How many bytes a function copies, fills or allocates, as an expression.
fn bytes(function: &Function) -> Option<String> {
    let is_size = |name: &str| {
        function
            .params
            .iter()
            .any(|param| param.name == name && matches!(&param.kind, ParameterKind::Value(ty) if ty.0 == "usize"))
    };
    if let Some(name) = ["ByteCount", "bytesize"].into_iter().find(|name| is_size(name)) {
        return Some(format!("{name} as u64"));
    }
    if function.name.starts_with("cuMemPrefetchAsync") && is_size("count") {
        return Some("count as u64".to_owned());
    }
    let width = [("D8", 1), ("D16", 2), ("D32", 4)]
        .into_iter()
        .find(|(unit, _)| function.name.starts_with("cuMemset") && function.name.contains(unit))?
        .1;
    match (is_size("N"), is_size("Width") && is_size("Height")) {
        (true, _) => Some(format!("(N as u64).saturating_mul({width})")),
        (_, true) => Some(format!("(Width as u64).saturating_mul(Height as u64).saturating_mul({width})")),
        _ => None,
    }
}

/// A per-thread variant is its base with another default stream.
pub(crate) fn variant(base: &str, names: &str) -> String {
    format!(
        "    // SAFETY: the caller's promise, above, is handed on.\n    \
         crate::ffi::with_per_thread_default(|| unsafe {{ {base}({names}) }})\n"
    )
}

fn generated(function: &Function) -> String {
    let mut out = String::new();
    for param in &function.params {
        argument(&mut out, function, param);
    }
    let object_parameter = object_parameter(function);
    let fields: Vec<_> = function
        .params
        .iter()
        .filter_map(|param| match &param.kind {
            ParameterKind::Value(_) => Some(param.name.clone()),
            ParameterKind::OutNew(_) => Some(format!("{}: id", param.name)),
            _ => None,
        })
        .collect();
    let message = format!("&katydid_wire::message::{} {{ {} }}", function.name, fields.join(", "));
    let sent = sent(function, &message);
    let outs: Vec<_> = function
        .params
        .iter()
        .filter_map(|param| if let ParameterKind::Out(ty) = &param.kind { Some((&param.name, ty)) } else { None })
        .collect();
    let _ = match (object_parameter, outs.is_empty()) {
        (Some(_), true) => writeln!(out, "        let (made, _) = crate::ffi::objects::make(|id| {sent})?;"),
        (Some(_), false) => writeln!(out, "        let (made, reply) = crate::ffi::objects::make(|id| {sent})?;"),
        (None, true) if function.class == Class::Enqueue => {
            let _ = writeln!(out, "        {sent}");
            return out;
        }
        (None, true) => writeln!(out, "        {sent}?;"),
        (None, false) => writeln!(out, "        let reply = {sent}?;"),
    };
    if let Some(name) = object_parameter {
        let _ = writeln!(out, "        {name}.write(made);");
    }
    for (name, ty) in outs {
        if ty.1 == Sort::Structure {
            let _ =
                writeln!(out, "        {name}.write(crate::ffi::structure(\"{}\", &reply.{name})?);", function.name);
            continue;
        }
        let cast = if ty.0 == "usize" { " as usize" } else { "" };
        let _ = writeln!(out, "        {name}.write(reply.{name}{cast});");
    }
    out.push_str("        Ok(())\n");
    out
}

/// Checks a parameter, and turns it into what travels. A parameter that names the context of the call tells that first.
fn argument(out: &mut String, function: &Function, param: &Param) {
    let name = &param.name;
    if matches!(&function.context, Context::Of(of) if of == name) {
        let _ = writeln!(out, "        let context = crate::ffi::owning_context({name})?;");
    }
    match &param.kind {
        ParameterKind::Out(_) | ParameterKind::OutNew(_) => {
            let _ = writeln!(
                out,
                "        // SAFETY: null or writable for the whole call, by `# Safety`; `out` refuses null."
            );
            let _ = writeln!(out, "        let {name} = unsafe {{ crate::ffi::out({name}) }}?;");
        }
        ParameterKind::Value(_) if ended(function) == Some(name) => {
            let _ = writeln!(out, "        let (context, {name}) = crate::ffi::objects::end({name})?;");
        }
        ParameterKind::Value(ty) if ty.is_handle() => {
            let _ = writeln!(out, "        let {name} = crate::ffi::wire({name})?;");
        }
        ParameterKind::Value(ty) if ty.0 == "CUdevice" => {
            let _ = writeln!(out, "        let {name} = crate::ffi::position({name})?;");
        }
        ParameterKind::Value(ty) if c_type(ty) != wire_type(ty) && ty.0 == "usize" => {
            let _ = writeln!(out, "        let {name} = {name} as u64;");
        }
        _ => {}
    }
}

/// The parameter in which the caller wants a new object.
fn object_parameter(function: &Function) -> Option<&String> {
    function.params.iter().find(|param| matches!(param.kind, ParameterKind::OutNew(_))).map(|param| &param.name)
}

/// The parameter whose object the function ends, if generated code keeps that.
fn ended(function: &Function) -> Option<&String> {
    let JournalRule::Destroy(object) = &function.journal else { return None };
    let is_kept = |kind: &ParameterKind| matches!(kind, ParameterKind::Value(ty) if ty.object().is_some());
    function.params.iter().find(|param| param.name == object.param && is_kept(&param.kind)).map(|param| &param.name)
}

/// The expression that sends a message: an object that is to end is ended in its own context.
fn sent(function: &Function, message: &str) -> String {
    let verb = if function.class == Class::Enqueue { "enqueue" } else { "call" };
    let context = match &function.context {
        _ if ended(function).is_some() => "context",
        Context::Current => return format!("crate::ffi::{verb}({message})"),
        Context::Of(_) => "context",
        Context::Any => "crate::ffi::any_context()",
        Context::None => "0",
    };
    format!("crate::ffi::{verb}_in({context}, {message})")
}
