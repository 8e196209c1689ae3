//! Product `function.rs`: the functions as an enumeration, and the table behind `cuGetProcAddress`.

use std::fmt::Write;

use katydid_api_spec::{Api, Class};

/// Generates the enumeration of functions and the look-up by name.
pub fn generate(api: &Api) -> String {
    let mut out = String::new();
    enumeration(&mut out, api, "spec/cuda.api");
    tables(&mut out, api);
    lookups(&mut out, api);
    out
}

/// Product `handles.rs`: the types of handles, and two macros by which other crates implement what each has.
pub fn handles(api: &Api) -> String {
    let (handles, objects) = (api.types.handles.join(" "), api.types.objects.join(" "));
    let mut out = format!("handles! {{ {handles} }}\n\n");
    let list = |out: &mut String, name: &str, of: &str, types: &str| {
        let _ = writeln!(
            out,
            "/// Hands {of} to a macro of the caller's.\n#[macro_export]\nmacro_rules! {name} {{\n    \
             ($emit:ident) => {{\n        $emit! {{ {types} }}\n    }};\n}}\n"
        );
    };
    list(&mut out, "for_each_handle", "all types of handles", &handles);
    list(&mut out, "for_each_object", "those types whose objects generated code keeps", &objects);
    out
}

/// Product `function.rs` for OpenCL, whose functions have no versions of one name: the enumeration, and the names.
pub fn generate_plain(api: &Api) -> String {
    let mut out = String::new();
    enumeration(&mut out, api, "spec/opencl.api");
    out.push_str("impl Function {\n    /// All functions, in the order of their numbers.\n");
    let _ = writeln!(out, "    pub const ALL: [Self; {}] = [", api.functions.len());
    for function in &api.functions {
        let _ = writeln!(out, "        Self::{},", function.name);
    }
    out.push_str("    ];\n\n    /// The exported symbol.\n    pub fn name(self) -> &'static str {\n        NAMES[self as usize].0\n    }\n\n");
    out.push_str("    /// Whether calls are turned away by name.\n    pub fn is_refused(self) -> bool {\n        NAMES[self as usize].1\n    }\n}\n\n");
    out.push_str("static NAMES: &[(&str, bool)] = &[\n");
    for function in &api.functions {
        let _ = writeln!(out, "    (\"{}\", {}),", function.name, function.class == Class::Refused);
    }
    out.push_str("];\n");
    out
}

fn enumeration(out: &mut String, api: &Api, file: &str) {
    let _ = writeln!(out, "/// A function of the API; its number is its position in `{file}`.");
    out.push_str(
        "#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]\n#[repr(u16)]\npub enum Function {\n",
    );
    for function in &api.functions {
        let _ = writeln!(out, "    /// `{0}`: {1}.\n    {0},", function.name, function.class);
    }
    out.push_str("}\n\n");
}

fn tables(out: &mut String, api: &Api) {
    out.push_str("impl Function {\n    /// All functions, in the order of their numbers.\n");
    let _ = writeln!(out, "    pub const ALL: [Self; {}] = [", api.functions.len());
    for function in &api.functions {
        let _ = writeln!(out, "        Self::{},", function.name);
    }
    out.push_str("    ];\n\n    /// The number of the function.\n    pub fn number(self) -> u16 {\n        self as u16\n    }\n\n");
    out.push_str("    /// The function of a number.\n    pub fn from_number(number: u16) -> Option<Self> {\n");
    out.push_str("        Self::ALL.get(usize::from(number)).copied()\n    }\n\n");
    out.push_str("    /// The exported symbol.\n    pub fn name(self) -> &'static str {\n        ROWS[self as usize].0\n    }\n\n");
    out.push_str("    /// How a call travels.\n    pub fn class(self) -> FunctionClass {\n        ROWS[self as usize].1\n    }\n}\n\n");
    out.push_str("static ROWS: &[(&str, FunctionClass)] = &[\n");
    for function in &api.functions {
        let (name, class) = (&function.name, format!("{:?}", function.class));
        let _ = writeln!(out, "    (\"{name}\", FunctionClass::{class}),");
    }
    out.push_str("];\n\n");
}

/// Rows are sorted by name, variant and version, as the look-up expects.
fn lookups(out: &mut String, api: &Api) {
    let mut rows: Vec<_> = api
        .functions
        .iter()
        .filter_map(|function| {
            let version = function.version?.number();
            Some((function.lookup_name(), function.alias.is_some(), version, &function.name))
        })
        .collect();
    rows.sort();
    out.push_str("/// Name without suffixes, first version, per-thread variant, function.\n");
    out.push_str("static LOOKUPS: &[(&str, u32, bool, Function)] = &[\n");
    for (name, variant, version, symbol) in rows {
        let _ = writeln!(out, "    (\"{name}\", {version}, {variant}, Function::{symbol}),");
    }
    out.push_str("];\n");
}
