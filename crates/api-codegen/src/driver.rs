//! Product `functions.rs`: the table of functions of a driver library, and one method a function.
//!
//! The driver crate supplies `Driver` with a field `functions: Functions` and a method `missing`.

use std::fmt::Write;

use katydid_api_spec::{Api, Class, Function};

use crate::text::{c_signature, c_types, names};

/// Generates the table of driver functions that the worker calls.
pub fn generate(api: &Api) -> String {
    let functions: Vec<_> = api.functions.iter().filter(|function| callable(function)).collect();
    let mut out = String::new();
    out.push_str("/// Addresses found in a driver library; what it lacks is `None`.\npub(crate) struct Functions {\n");
    for function in &functions {
        let _ = writeln!(
            out,
            "    {}: Option<unsafe extern \"C\" fn({}) -> sys::CUresult>,",
            function.name,
            c_types(function)
        );
    }
    out.push_str("}\n\nimpl Functions {\n    /// Looks every name up.\n    ///\n    /// # Safety\n    ///\n");
    out.push_str(
        "    /// `find` must answer with the function that the driver API defines under that name, or null.\n",
    );
    out.push_str(
        "    pub(crate) unsafe fn load(find: impl Fn(&std::ffi::CStr) -> *mut sys::void) -> Self {\n        Self {\n",
    );
    for function in &functions {
        let name = &function.name;
        let _ = writeln!(
            out,
            "            // SAFETY: by the caller's promise the address has this signature, or is null (`None`)."
        );
        let _ = writeln!(out, "            {name}: unsafe {{ std::mem::transmute(find(c\"{name}\")) }},");
    }
    out.push_str("        }\n    }\n}\n\nimpl Driver {\n");
    for function in &functions {
        method(&mut out, function);
    }
    out.push_str("}\n");
    out
}

/// The worker has no per-thread default streams of its own, and no signature is known for a function without
/// a version and parameters.
fn callable(function: &Function) -> bool {
    function.alias.is_none() && !(function.class == Class::Refused && function.version.is_none())
}

fn method(out: &mut String, function: &Function) {
    let name = &function.name;
    let comma = if function.params.is_empty() { "" } else { ", " };
    let _ = writeln!(out, "    /// Calls `{name}` of the driver library.\n    ///\n    /// # Safety\n    ///");
    let _ = writeln!(out, "    /// As the CUDA driver API demands of its callers.");
    let _ = writeln!(out, "    pub unsafe fn {name}(&self{comma}{}) -> sys::CUresult {{", c_signature(function));
    let _ = writeln!(out, "        match self.functions.{name} {{");
    let _ = writeln!(out, "            // SAFETY: the caller's promise is handed on.");
    let _ = writeln!(out, "            Some(entry_point) => unsafe {{ entry_point({}) }},", names(function));
    let _ = writeln!(out, "            None => self.missing(\"{name}\"),\n        }}\n    }}\n");
}
