//! Checks that every symbol that releases of CUDA's runtime, NCCL and PyTorch look up (`spec/lookups.txt`) exists, or is
//! listed here.

use katydid_cuda_sys::{Function, FunctionClass, Lookup, proc_address};
use katydid_driver_rules::device::proc_address_flags;

/// Written by `cargo xtask lookups`.
const RELEASE_LOOKUPS: &str = include_str!("../../../../spec/lookups.txt");

/// Functions and private tables that releases look up and do without, as they do with driver 580.
/// `*` stands for any letters.
const ABSENT_LOOKUPS: [(&str, &str); 3] = [
    ("ERROR_LOG", "CUDA's runtime asks for it when it starts, and goes on"),
    (
        "cuGraphInstantiateWithParams_ptsz",
        "the runtime of CUDA 12.0 asks by the name of a symbol, which cuGetProcAddress does not take, and goes on",
    ),
    (
        "cuLogicalEndpoint*",
        "functions of CUDA 13.3, which driver 580 has not; NCCL asks for them when it starts, and goes on",
    ),
];

/// A line of the list.
struct LookupRow {
    name: &'static str,
    /// As in the line: 13.2, or - for none.
    version: &'static str,
    releases: &'static str,
    /// The id of a private table; none for a function.
    table: Option<katydid_export_table::Id>,
}

impl LookupRow {
    fn parse(line: &'static str) -> Option<Self> {
        let (table, rest) = match line.strip_prefix("table ") {
            Some(rest) => {
                let (name, rest) = rest.split_once(" (")?;
                let (id, rest) = rest.split_once(") ")?;
                let id = u128::from_str_radix(&id.replace('-', ""), 16).ok()?;
                (Some((name, id.to_be_bytes())), rest)
            }
            None => (None, line),
        };
        let (name, rest) = match table {
            Some((name, _)) => (name, rest),
            None => rest.split_once(' ')?,
        };
        let (version, releases) = rest.split_once(' ')?;
        Some(Self { name, version, releases, table: table.map(|(_, id)| id) })
    }

    /// Returns the version for `cuGetProcAddress`; none for a lookup by `dlsym`.
    fn number(&self) -> Option<u32> {
        let (major, minor) = self.version.split_once('.')?;
        Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
    }

    /// Returns the function behind the name, if there is one.
    fn function(&self) -> Option<Function> {
        let Some(version) = self.number() else {
            return (0..).map_while(Function::from_number).find(|function| function.name() == self.name);
        };
        match proc_address(self.name, version, false) {
            Lookup::Found(function) if proc_address_flags(version, 0).is_ok() => Some(function),
            _ => None,
        }
    }

    fn is_there(&self) -> bool {
        self.table.map_or_else(|| self.function().is_some(), |id| katydid_export_table::lookup(&id).is_some())
    }
}

fn read_requests() -> Vec<LookupRow> {
    let lines = RELEASE_LOOKUPS.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| LookupRow::parse(line).unwrap_or_else(|| panic!("spec/lookups.txt: no such line: {line}")))
        .collect()
}

#[test]
fn lookups_of_cuda_releases_are_served_or_listed_as_absent() {
    let fits = |name: &str, lookup: &LookupRow| match name.strip_suffix('*') {
        Some(start) => lookup.name.starts_with(start),
        None => name == lookup.name,
    };
    let is_named = |lookup: &LookupRow| ABSENT_LOOKUPS.iter().any(|(name, _)| fits(name, lookup));
    let lookups = read_requests();
    let not_served: Vec<String> = lookups
        .iter()
        .filter(|lookup| !lookup.is_there() && !is_named(lookup))
        .map(|lookup| format!("{} of {}, which these ask for: {}", lookup.name, lookup.version, lookup.releases))
        .collect();
    assert!(not_served.is_empty(), "not served:\n{}", not_served.join("\n"));
    for (name, why) in ABSENT_LOOKUPS {
        let is_right = lookups.iter().any(|lookup| fits(name, lookup) && !lookup.is_there());
        assert!(is_right, "{name} ({why}) is there, or nothing asks for it: take it out of the list");
    }
    // Whether a release calls what it looks up shows when it runs; docs/evidence/2026-11-29-releases.json lists refused
    // calls.
    for lookup in
        lookups.iter().filter(|lookup| lookup.function().is_some_and(|it| it.class() == FunctionClass::Refused))
    {
        println!("refused when called: {} {}: {}", lookup.name, lookup.version, lookup.releases);
    }
}
