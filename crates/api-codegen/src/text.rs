//! How types and parameters read in generated Rust. `sys` is cuda-sys in every product.

use katydid_api_spec::{Function, Param, ParameterKind, Sort, Type};

/// A type of the C ABI.
pub(crate) fn c_type(ty: &Type) -> String {
    if ty.is_scalar() { ty.0.clone() } else { format!("sys::{ty}") }
}

/// The type of a parameter in the C signature.
pub(crate) fn c_param(kind: &ParameterKind) -> String {
    match kind {
        ParameterKind::Value(ty) | ParameterKind::New(ty) => c_type(ty),
        ParameterKind::Out(ty) | ParameterKind::OutNew(ty) => format!("*mut {}", c_type(ty)),
        ParameterKind::InBytes => "*const u8".to_owned(),
        ParameterKind::OutBytes => "*mut u8".to_owned(),
        ParameterKind::Pointer { levels, target } => {
            let stars: String = levels.iter().map(|mutable| if *mutable { "*mut " } else { "*const " }).collect();
            format!("{stars}{}", c_type(target))
        }
    }
}

/// `name: type` of all parameters, as a C signature lists them.
pub(crate) fn c_signature(function: &Function) -> String {
    list(&function.params, |param| format!("{}: {}", param.name, c_param(&param.kind)))
}

/// The types of all parameters, for a function pointer.
pub(crate) fn c_types(function: &Function) -> String {
    list(&function.params, |param| c_param(&param.kind))
}

/// The names of all parameters, for a call.
pub(crate) fn names(function: &Function) -> String {
    list(&function.params, |param| param.name.clone())
}

/// The type of a value inside a message: handles are ids, enumerations 32 bits, sizes and addresses 64.
pub(crate) fn wire_type(ty: &Type) -> &'static str {
    match ty.0.as_str() {
        "u8" => "u8",
        "u16" => "u16",
        "i32" | "CUdevice" => "i32",
        "i64" => "i64",
        "f32" => "f32",
        "f64" => "f64",
        "u64"
        | "usize"
        | "CUdeviceptr"
        | "CUmemGenericAllocationHandle"
        | "CUtexObject"
        | "CUsurfObject"
        | "CUgraphConditionalHandle" => "u64",
        _ => "u32",
    }
}

/// What of a parameter travels with the request: its field and type.
pub(crate) fn request_field(param: &Param) -> Option<(&str, &'static str)> {
    match &param.kind {
        ParameterKind::Value(ty) => Some((&param.name, wire_type(ty))),
        ParameterKind::OutNew(_) | ParameterKind::New(_) => Some((&param.name, "u32")),
        ParameterKind::InBytes => Some((&param.name, "&'a [u8]")),
        ParameterKind::Out(_) | ParameterKind::OutBytes | ParameterKind::Pointer { .. } => None,
    }
}

/// What of a parameter travels with the reply: its field and type.
pub(crate) fn reply_field(param: &Param) -> Option<(&str, &'static str)> {
    match &param.kind {
        ParameterKind::Out(ty) if ty.1 != Sort::Structure => Some((&param.name, wire_type(ty))),
        ParameterKind::Out(_) | ParameterKind::OutBytes => Some((&param.name, "Vec<u8>")),
        _ => None,
    }
}

/// Path of a function's variant, as `sys::Function::name`.
pub(crate) fn function_path(function: &Function) -> String {
    format!("sys::Function::{}", function.name)
}

fn list(params: &[Param], text: impl Fn(&Param) -> String) -> String {
    params.iter().map(text).collect::<Vec<_>>().join(", ")
}
