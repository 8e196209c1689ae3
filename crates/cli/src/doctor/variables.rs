//! Checks Katydid's variables in this environment for invalid values, which `run` would refuse.

use std::ffi::OsString;

use crate::args::variables::{VARIABLE_REMEDY, problems};
use crate::doctor::finding::Finding;

/// Name of the check.
const VARIABLES_CHECK_NAME: &str = "variables";

/// Returns a finding for each invalid variable, or one that there is none.
pub(super) fn checks(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Finding> {
    let found: Vec<Finding> =
        problems(variable).map(|problem| Finding::fail(VARIABLES_CHECK_NAME, problem, VARIABLE_REMEDY)).collect();
    if found.is_empty() {
        vec![Finding::ok(VARIABLES_CHECK_NAME, "those of Katydid that are set can be read")]
    } else {
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn each_variable_that_cannot_be_read_is_named() {
        let set =
            [("KATYDID_MEMORY", "lots"), ("KATYDID_SERVER", "foo"), ("KATYDID_LINK", "shm"), ("KATYDID_NAME", "")];
        let of = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value));
        let found = checks(of);
        assert_eq!(found.len(), 2, "{found:?}");
        for (finding, words) in found.iter().zip([["KATYDID_SERVER", "foo"], ["KATYDID_MEMORY", "lots"]]) {
            assert!(finding.status == Status::Fail && finding.remedy.is_some(), "{finding:?}");
            words.iter().for_each(|word| assert!(finding.detail.contains(word), "{finding:?}"));
        }
        assert_eq!(checks(|_| None)[0].status, Status::Ok);
    }
}
