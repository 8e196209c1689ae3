//! Product `docs/reference/api-coverage.md`: what happens to each function, for readers.

use std::collections::BTreeSet;
use std::fmt::Write;

use katydid_api_spec::{Api, Body, Class, Function};

/// Generates the page; `soft` are the functions that softcuda has.
pub fn generate(api: &Api, soft: &BTreeSet<String>) -> String {
    let mut out = String::from(
        "# Coverage of the CUDA driver API\n\nGenerated from `spec/cuda.api` by `cargo xtask bless`; a test compares.\n\n\
         `local`: answered in the program's process. `enqueue`: queued, the call does not wait. `call`: waits for the\n\
         worker. `blocking`: may wait for the GPU. `upcall`: runs a function of the program. `refused`: returns\n\
         `CUDA_ERROR_NOT_SUPPORTED` and says its name once. A code behind the class: the answer is always that one (as it\n\
         is with the driver, or with a driver whose devices lack the feature); these are counted by themselves. softcuda: the\n\
         software driver has it.\n\n",
    );
    summary(&mut out, api, soft);
    out.push_str("\n| function | class | journal | since | softcuda |\n|---|---|---|---|---|\n");
    for function in &api.functions {
        let since = function.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
        let soft = if has(api, soft, function) { "yes" } else { "" };
        let always = always(api, function).map_or_else(String::new, |code| format!(" {code}"));
        let (name, class, journal) = (&function.name, function.class, &function.journal);
        let _ = writeln!(out, "| {name} | {class}{always} | {journal} | {since} | {soft} |");
    }
    out
}

fn summary(out: &mut String, api: &Api, soft: &BTreeSet<String>) {
    let row = |out: &mut String, name: &str, functions: &[&Function]| {
        let in_soft = functions.iter().filter(|function| has(api, soft, function)).count();
        let _ = writeln!(out, "| {name} | {} | {in_soft} |", functions.len());
    };
    let (fixed, served): (Vec<_>, Vec<_>) = api.functions.iter().partition(|it| always(api, it).is_some());
    out.push_str("| class | functions | of them in softcuda |\n|---|---:|---:|\n");
    for class in Class::ALL {
        let of_class: Vec<_> = served.iter().copied().filter(|function| function.class == class).collect();
        row(out, &class.to_string(), &of_class);
    }
    let codes: BTreeSet<u32> = fixed.iter().filter_map(|function| always(api, function)).collect();
    for code in codes {
        let of_code: Vec<_> = fixed.iter().copied().filter(|function| always(api, function) == Some(code)).collect();
        row(out, &format!("local, always {code}"), &of_code);
    }
    row(out, "all", &api.functions.iter().collect::<Vec<_>>());
}

/// What a variant for a per-thread default stream is a variant of, and else the function itself.
fn base<'a>(api: &'a Api, function: &'a Function) -> &'a Function {
    let named = function.alias.as_ref().and_then(|alias| api.functions.iter().find(|it| it.name == alias.base));
    named.unwrap_or(function)
}

/// The code that a function always answers.
fn always(api: &Api, function: &Function) -> Option<u32> {
    match base(api, function).body {
        Body::Always(code) => Some(code),
        _ => None,
    }
}

fn has(api: &Api, soft: &BTreeSet<String>, function: &Function) -> bool {
    always(api, function).is_some() || soft.contains(&base(api, function).name)
}
