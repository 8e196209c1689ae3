//! Runs those items of the compatibility run that softcuda supports and that need only what `cargo xtask setup` fetches. Each
//! runs on softcuda directly, and through Katydid over shared memory, a unix socket and TCP, with equal results.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use katydid_tests::frameworks::trial::Fixture;
use katydid_tests::frameworks::{Item, Verdict, items, python, toolkit};
use katydid_tests::paths::Paths;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

#[test]
fn items_of_nvidias_own_python_say_the_same_on_every_way() -> Result<()> {
    items_say_the_same("core")
}

#[test]
fn items_of_numba_say_the_same_on_every_way() -> Result<()> {
    items_say_the_same("numba")
}

#[test]
fn items_of_cupy_say_the_same_on_every_way() -> Result<()> {
    items_say_the_same("cupy")
}

#[test]
fn items_of_monitors_say_the_same_on_every_way() -> Result<()> {
    items_say_the_same("nvml")
}

fn items_say_the_same(family: &str) -> Result<()> {
    let paths = Paths::of_this_test()?;
    let python = python(&paths);
    ensure!(python.exists(), "there is no Python with frameworks; run `cargo xtask setup` first");
    let server = Server::start(&paths, "soft", &[])?;
    let [shm, tcp] = Way::through(&server);
    let ways = vec![shm, Way::as_stream(&server), tcp];
    let native = Way::Direct { name: "soft", folder: Some(paths.soft()) };
    let variables = toolkit(&paths);
    let driver = "soft".to_owned();
    let is_wanted = |item: &Item| item.is_soft && !item.is_suite() && item.is_among(&[family.to_owned()]);
    for mut item in items()?.into_iter().filter(is_wanted) {
        item.seconds = WAIT_TIMEOUT.as_secs();
        let (paths, python, native, ways) = (paths.clone(), python.clone(), native.clone(), ways.clone());
        let (driver, variables) = (driver.clone(), variables.clone());
        let fixture = Fixture { paths, python, native, ways, driver, variables, deadline: None };
        let results = RefCell::new(Vec::new());
        fixture.run(&item, &|result| results.borrow_mut().push(result));
        let results = results.into_inner();
        ensure!(results.len() == 4, "{} was not run on every way: {results:?}", item.name);
        for result in results {
            ensure!(result.verdict == Verdict::Passed, "{} {}: {:?}", result.item, result.way, result.verdict);
        }
    }
    Ok(())
}
