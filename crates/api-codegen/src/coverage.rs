//! Product `docs/api-coverage.md`: what happens to each function, for readers.

use std::collections::HashSet;
use std::fmt::Write;

use katydid_api_spec::{Api, Body, Class, Function};

/// Generates the page; `soft` lists the functions that softcuda has, one name a line.
pub fn generate(api: &Api, soft: &str) -> String {
    let soft: HashSet<&str> = soft.lines().map(str::trim).collect();
    let mut out = String::from(
        "# Coverage of the CUDA driver API\n\nGenerated from `spec/cuda.api` by `cargo xtask bless`; a test compares.\n\n\
         `local`: answered in the program's process. `enqueue`: queued, the call does not wait. `call`: waits for the\n\
         worker. `blocking`: may wait for the GPU. `upcall`: runs a function of the program. `refused`: returns\n\
         `CUDA_ERROR_NOT_SUPPORTED` and says its name once. A code behind the class: the answer is always that one, as it\n\
         is with the driver. softcuda: the software driver has it.\n\n",
    );
    summary(&mut out, api, &soft);
    out.push_str("\n| function | class | journal | since | softcuda |\n|---|---|---|---|---|\n");
    for function in &api.functions {
        let since = function.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
        let soft = if has(&soft, function) { "yes" } else { "" };
        let always = if let Body::Always(code) = function.body { format!(" {code}") } else { String::new() };
        let (name, class, journal) = (&function.name, function.class, &function.journal);
        let _ = writeln!(out, "| {name} | {class}{always} | {journal} | {since} | {soft} |");
    }
    out
}

fn summary(out: &mut String, api: &Api, soft: &HashSet<&str>) {
    out.push_str("| class | functions | of them in softcuda |\n|---|---:|---:|\n");
    for class in Class::ALL {
        let of_class: Vec<_> = api.functions.iter().filter(|function| function.class == class).collect();
        let in_soft = of_class.iter().filter(|function| has(soft, function)).count();
        let _ = writeln!(out, "| {class} | {} | {in_soft} |", of_class.len());
    }
    let _ =
        writeln!(out, "| all | {} | {} |", api.functions.len(), api.functions.iter().filter(|f| has(soft, f)).count());
}

fn has(soft: &HashSet<&str>, function: &Function) -> bool {
    if matches!(function.body, Body::Always(_)) {
        return true;
    }
    let name = function.alias.as_ref().map_or(&function.name, |alias| &alias.base);
    soft.contains(name.as_str())
}
