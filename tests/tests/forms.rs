//! softcuda, called through the driver API, answers every form and program as the GPU whose answers are kept did.
//!
//! The tests of `katydid-ptx-forms` hold the interpreter alone to the same answers. This test covers the way through a driver,
//! and programs that only a driver can start.

use std::path::Path;

use anyhow::{Result, ensure};
use katydid_ptx_forms::{Device, Gpu, compare, recorded, suite};
use katydid_tests::paths::Paths;

#[test]
fn softcuda_answers_as_the_gpu_did() -> Result<()> {
    let library = Paths::of_this_test()?.soft().join("libcuda.so.1");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/ptx-forms");
    let mut device = Gpu::open(Some(&library))?;
    ensure!(device.is_soft(), "{} is another driver", library.display());
    let (mut compared, mut different) = (0, Vec::new());
    for group in suite(&root)? {
        let recording = recorded(&root, &group)?.unwrap_or_default();
        for case in &group.cases {
            let Some(answer) = recording.answer(case) else { continue };
            compared += 1;
            if let Err(difference) = compare(case, answer, &device.ask(case)?) {
                different.push(format!("{}: {difference}", case.name));
            }
        }
    }
    ensure!(compared > 2_000, "only {compared} answers are kept");
    ensure!(different.is_empty(), "{} of {compared} differ:\n{}", different.len(), different.join("\n"));
    Ok(())
}
