//! What a check of `katydid doctor` comes to.

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    Warn,
    Fail,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) status: Status,
    pub(super) detail: String,
    /// What to do; none when nothing is to be done.
    pub(super) remedy: Option<String>,
}

impl Finding {
    /// A check that passed; `detail` says what was found.
    pub(super) fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, detail: detail.into(), remedy: None }
    }

    /// Programs run, but something may disappoint.
    pub(super) fn warn(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    /// Programs will not run like this.
    pub(super) fn fail(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}
