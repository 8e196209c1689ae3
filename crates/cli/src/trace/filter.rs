//! Filter of the calls that are shown, as `-e` defines: names of functions with `*`, groups, and `!` before what is left out.

use std::str::FromStr;

use katydid_cuda_sys::Function;

/// Names of groups, and prefixes of the functions in them.
const FUNCTION_GROUPS: [(&str, &[&str]); 8] = [
    ("launch", &["cuLaunch", "cuGraphLaunch"]),
    ("copy", &["cuMemcpy"]),
    ("fill", &["cuMemset"]),
    (
        "memory",
        &["cuMemAlloc", "cuMemFree", "cuMemHost", "cuMemPool", "cuMemCreate", "cuMemMap", "cuArray", "cuMipmapped"],
    ),
    ("stream", &["cuStream"]),
    ("event", &["cuEvent"]),
    ("module", &["cuModule", "cuLibrary", "cuKernel", "cuFunc", "cuLink"]),
    ("graph", &["cuGraph"]),
];
/// Filters for all functions, and for calls that failed.
const ALL_FILTER: &str = "all";
const FAILED_FILTER: &str = "error";

/// Filter of the calls that are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filter {
    /// In order; the last rule that matches decides.
    rules: Vec<(bool, Rule)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Group(&'static [&'static str]),
    /// A name, with `*` for any characters.
    Name(String),
    All,
    Failed,
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rules = text.split(',').map(str::trim).map(rule).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }
}

fn rule(word: &str) -> Result<(bool, Rule), String> {
    let (is_shown, word) = word.strip_prefix('!').map_or((true, word), |word| (false, word.trim_start()));
    if word.is_empty() {
        let position = if is_shown { "between two commas, or at an end of the list," } else { "behind !" };
        return Err(format!("a name is missing: write one {position} or take the sign away"));
    }
    let group = FUNCTION_GROUPS.iter().find(|(name, _)| *name == word);
    let rule = match (word, group) {
        (ALL_FILTER, _) => Rule::All,
        (FAILED_FILTER, _) => Rule::Failed,
        (_, Some((_, starts))) => Rule::Group(starts),
        (name, None) => Rule::Name(name.to_owned()),
    };
    if let Rule::Name(name) = &rule
        && !Function::ALL.iter().any(|function| fits(name, function.name()))
    {
        let groups: Vec<&str> = FUNCTION_GROUPS.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "{name} is not a function of CUDA's: write names such as cuMemcpy*, or {}, {FAILED_FILTER}, {ALL_FILTER}, each with ! to leave it out",
            groups.join(", ")
        ));
    }
    Ok((is_shown, rule))
}

impl Filter {
    /// Whether a call of that function is shown. If the first rule leaves something out, all else is shown.
    pub(crate) fn shows(&self, name: &str, has_failed: bool) -> bool {
        let fits = |rule: &Rule| match rule {
            Rule::All => true,
            Rule::Failed => has_failed,
            Rule::Group(starts) => starts.iter().any(|start| name.starts_with(start)),
            Rule::Name(pattern) => fits(pattern, name),
        };
        let last = self.rules.iter().rev().find(|(_, rule)| fits(rule));
        last.map_or_else(|| self.rules.first().is_some_and(|(is_shown, _)| !is_shown), |(is_shown, _)| *is_shown)
    }
}

/// Whether a name matches a pattern. `cuMemAlloc` also matches the function to which the header maps it, `cuMemAlloc_v2`.
fn fits(pattern: &str, name: &str) -> bool {
    let plain = name.rsplit_once("_v").filter(|(_, version)| version.bytes().all(|byte| byte.is_ascii_digit()));
    matches(pattern.as_bytes(), name.as_bytes())
        || plain.is_some_and(|(plain, _)| matches(pattern.as_bytes(), plain.as_bytes()))
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => matches(rest, name) || (!name.is_empty() && matches(pattern, &name[1..])),
        (Some((literal, rest)), Some((found, more))) => literal == found && matches(rest, more),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_names(filter: &str, names: &[&str]) -> Vec<String> {
        let filter: Filter = filter.parse().unwrap();
        names.iter().filter(|name| filter.shows(name, name.contains("Query"))).map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_groups_and_what_is_left_out() {
        let names = ["cuInit", "cuLaunchKernel", "cuMemcpyHtoD_v2", "cuMemAlloc_v2", "cuStreamQuery"];
        assert_eq!(shown_names("launch,copy", &names), ["cuLaunchKernel", "cuMemcpyHtoD_v2"]);
        assert_eq!(shown_names("cuMemAlloc", &names), ["cuMemAlloc_v2"]);
        assert_eq!(shown_names("cuM*", &names), ["cuMemcpyHtoD_v2", "cuMemAlloc_v2"]);
        assert_eq!(shown_names("!cuInit,!copy", &names), ["cuLaunchKernel", "cuMemAlloc_v2", "cuStreamQuery"]);
        assert_eq!(shown_names("all,!memory", &names).len(), 4);
        assert_eq!(shown_names("error", &names), ["cuStreamQuery"]);
    }

    #[test]
    fn a_name_of_nothing_is_refused_with_what_there_is() {
        let error = "cuLaunchKernal".parse::<Filter>().unwrap_err();
        assert!(error.contains("cuLaunchKernal") && error.contains("launch, copy"), "{error}");
    }

    #[test]
    fn a_name_that_is_missing_is_refused() {
        for text in ["", ",", " ", "launch,", ",launch", "launch,,copy", "!", "launch,!", "! ,launch"] {
            let error = text.parse::<Filter>().unwrap_err();
            assert!(error.contains("a name is missing"), "{text:?}: {error}");
        }
        assert_eq!(
            shown_names("! cuInit , !copy", &["cuInit", "cuMemcpyHtoD_v2", "cuLaunchKernel"]),
            ["cuLaunchKernel"]
        );
    }
}
