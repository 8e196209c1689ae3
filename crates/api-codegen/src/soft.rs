//! Product `soft_entry.rs`: every exported symbol of softcuda.
//!
//! Functions that it has call `crate::api::<name>` with the C arguments; the others refuse by name. softcuda
//! supplies `crate::ffi` (entry, refused) and `crate::ffi::with_per_thread_default`.

use std::collections::BTreeSet;

use katydid_api_spec::{Api, Body, Function};

use crate::stub::{addresses, symbol, variant};
use crate::text::{function_path, names};

/// Generates the product; `implemented` are the functions that softcuda has.
pub fn generate(api: &Api, implemented: &BTreeSet<String>) -> String {
    let mut out = String::new();
    for name in implemented.iter().filter(|name| !api.functions.iter().any(|f| f.name == **name)) {
        out.push_str(&format!("compile_error!(\"softcuda has `{name}`, which is not in spec/cuda.api\");\n"));
    }
    for function in &api.functions {
        symbol(&mut out, function, &body(function, implemented));
    }
    addresses(&mut out, api);
    out
}

fn body(function: &Function, implemented: &BTreeSet<String>) -> String {
    let (path, names) = (function_path(function), names(function));
    match &function.alias {
        Some(alias) if implemented.contains(&alias.base) => variant(&alias.base, &names),
        None if implemented.contains(&function.name) => format!(
            "    // SAFETY: the caller's promise, above, is handed on.\n    \
             crate::ffi::entry({path}, || unsafe {{ crate::api::{}({names}) }})\n",
            function.name
        ),
        _ => {
            if let Body::Always(code) = function.body {
                return format!("    crate::ffi::entry({path}, || sys::CUresult({code}))\n");
            }
            let unused = if names.is_empty() { String::new() } else { format!("    let _ = ({names},);\n") };
            format!("{unused}    crate::ffi::refused({path})\n")
        }
    }
}
