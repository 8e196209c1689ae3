//! Results of the checks of `katydid doctor`.

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    Warn,
    Fail,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) status: Status,
    pub(super) detail: String,
    /// The remedy; `None` if nothing is to be done.
    pub(super) remedy: Option<String>,
}

impl Finding {
    /// A check that passed; `detail` says what it found.
    pub(super) fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, detail: detail.into(), remedy: None }
    }

    /// A check whose result may disappoint, although programs run.
    pub(super) fn warn(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    /// A check whose failure keeps programs from running.
    pub(super) fn fail(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}
