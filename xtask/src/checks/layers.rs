//! Checks that crates depend on each other in one direction: program -> shim -> wire <- worker -> driver.
//!
//! A crate may use the crates in its row, and in turn those that they may use. Every other edge between crates of the project is
//! an error. Tests are free: only ordinary and build dependencies count, and every build script may generate code.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::checks::{directories, modules};
use crate::output::step;
use crate::shell;
use crate::tree::Tree;

/// Crates that each crate may use, without the `katydid-` before the names.
const ALLOWED_CRATES: &[(&str, &[&str])] = &[
    ("api-spec", &[]),
    ("api-codegen", &["api-spec"]),
    ("cuda-sys", &[]),
    ("opencl-sys", &[]),
    ("wire", &["cuda-sys"]),
    ("transport", &["wire"]),
    ("arena", &["wire"]),
    ("fatbin", &[]),
    ("scratch", &[]),
    ("hash-cache", &[]),
    ("image", &["scratch"]),
    ("driver-rules", &["cuda-sys"]),
    ("graph", &["cuda-sys"]),
    ("export-table", &["cuda-sys"]),
    ("ptx", &[]),
    ("ptx-exec", &["ptx"]),
    ("client", &["wire", "transport", "arena", "fatbin", "export-table", "driver-rules", "cuda-sys", "opencl-sys"]),
    ("shim-cuda", &["client", "graph", "driver-rules", "hash-cache"]),
    ("shim-opencl", &["client", "opencl-sys"]),
    ("shim-nvml", &["client"]),
    ("softcuda", &["ptx-exec", "fatbin", "graph", "driver-rules", "export-table", "cuda-sys"]),
    ("driver", &["cuda-sys"]),
    ("ptx-forms", &["ptx-exec", "driver", "cuda-sys"]),
    ("session-core", &["wire", "transport", "image"]),
    ("session-opencl", &["opencl-sys", "session-core", "arena"]),
    ("session", &["driver", "session-core", "arena", "fatbin", "driver-rules"]),
    ("worker", &["session", "session-opencl", "session-core"]),
    ("http", &[]),
    ("server", &["transport", "scratch", "http"]),
    ("job", &["transport", "image", "http"]),
    ("criu-launcher", &[]),
    ("cli-core", &["server", "worker", "client", "job"]),
    ("machine", &[]),
    ("bench", &["cli-core", "driver", "machine"]),
    ("cli", &["bench", "cli-core", "image"]),
    ("tests", &[]),
    ("xtask", &["tests", "machine"]),
];

/// Code generators, which any build script may use.
const GENERATOR_CRATES: [&str; 2] = ["api-codegen", "api-spec"];

/// A dependency between two crates of the project.
#[derive(Debug, PartialEq, Eq)]
struct Edge {
    from: String,
    to: String,
    in_build_script: bool,
}

/// Fails on every edge that is not allowed, and on every crate that is not listed.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    check(tree, false)
}

/// Checks the layers; with `shows_edges`, prints each use inside a cycle of modules.
pub(crate) fn check(tree: &Tree, shows_edges: bool) -> Result<()> {
    step("layers: crates and modules depend on each other in one direction only; directories are small");
    let metadata = shell::read(&mut shell::cargo(&tree.root, &["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is not JSON")?;
    let (crates, edges) = read(&metadata)?;
    let faults = faults(&crates, &edges);
    if !faults.is_empty() {
        bail!("{}\nThe allowed dependencies are in xtask/src/checks/layers.rs", faults.join("\n"));
    }
    let faults = modules::faults(&tree.root, shows_edges)?;
    if !faults.is_empty() {
        bail!("{}\nThe rules are in xtask/src/checks/modules.rs", faults.join("\n"));
    }
    let faults = directories::faults(&tree.root)?;
    if !faults.is_empty() {
        bail!("{}\nThe rule is in xtask/src/checks/directories.rs", faults.join("\n"));
    }
    Ok(())
}

fn short(name: &str) -> &str {
    name.strip_prefix("katydid-").unwrap_or(name)
}

/// Returns all crates, and all edges between them that count.
fn read(metadata: &Value) -> Result<(BTreeSet<String>, Vec<Edge>)> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let name = |value: &Value| value["name"].as_str().map(|name| short(name).to_owned());
    let crates: BTreeSet<String> = packages.iter().filter_map(name).collect();
    let mut edges = Vec::new();
    for package in packages {
        let from = name(package).unwrap_or_default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = name(dependency).unwrap_or_default();
            let kind = dependency["kind"].as_str();
            if crates.contains(&to) && dependency["path"].is_string() && kind != Some("dev") {
                edges.push(Edge { from: from.clone(), to, in_build_script: kind == Some("build") });
            }
        }
    }
    Ok((crates, edges))
}

fn faults(crates: &BTreeSet<String>, edges: &[Edge]) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED_CRATES.iter().copied().collect();
    let unlisted = crates.iter().filter(|name| !allowed.contains_key(name.as_str()));
    let mut faults: Vec<String> =
        unlisted.map(|name| format!("{name} stands in no row of the allowed dependencies")).collect();
    for edge in edges {
        let generates = edge.in_build_script && GENERATOR_CRATES.contains(&edge.to.as_str());
        if !generates && !reaches(&allowed, &edge.from, &edge.to) {
            faults.push(format!("{} may not depend on {}", edge.from, edge.to));
        }
    }
    faults
}

/// Returns whether `from` may use `to`, directly or through other crates.
fn reaches(allowed: &BTreeMap<&str, &[&str]>, from: &str, to: &str) -> bool {
    allowed.get(from).is_some_and(|next| next.iter().any(|next| *next == to || reaches(allowed, next, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(from: &str, to: &str, in_build_script: bool) -> Vec<String> {
        let crates = [from, to].map(str::to_owned).into_iter().collect();
        faults(&crates, &[Edge { from: from.into(), to: to.into(), in_build_script }])
    }

    #[test]
    fn a_dependency_may_skip_a_layer_but_not_turn_round() {
        assert!(fault("shim-cuda", "wire", false).is_empty());
        assert_eq!(fault("wire", "shim-cuda", false), ["wire may not depend on shim-cuda"]);
        assert_eq!(fault("client", "driver", false), ["client may not depend on driver"]);
    }

    #[test]
    fn a_build_script_may_generate_code() {
        assert!(fault("wire", "api-codegen", true).is_empty());
        assert_eq!(fault("wire", "api-codegen", false).len(), 1);
    }

    #[test]
    fn a_new_crate_must_be_given_its_place() {
        let crates = ["unlisted".to_owned()].into_iter().collect();
        assert_eq!(faults(&crates, &[]), ["unlisted stands in no row of the allowed dependencies"]);
    }
}
