//! Tests that report a failure at once: a run that is cut off never reaches the summary at its end.

use libtest_mimic::{Completion, Failed, Trial};

/// Makes a test with a name.
pub fn test<R>(name: impl Into<String>, runner: R) -> Trial
where
    R: FnOnce() -> Result<(), Failed> + Send + 'static,
{
    let name = name.into();
    Trial::test(name.clone(), move || runner().inspect_err(|failed| report_failure(&name, failed)))
}

/// Makes a test that may find that there is nothing to test.
pub fn ignorable_test<R>(name: impl Into<String>, runner: R) -> Trial
where
    R: FnOnce() -> Result<Completion, Failed> + Send + 'static,
{
    let name = name.into();
    Trial::ignorable_test(name.clone(), move || runner().inspect_err(|failed| report_failure(&name, failed)))
}

fn report_failure(name: &str, failed: &Failed) {
    eprintln!("{name}: {}", failed.message().unwrap_or("failed"));
}
