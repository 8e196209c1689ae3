//! Several devices. A program's own `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` choose among the devices of the server,
//! whether private or shared. A program can use two devices at once.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::paths::Paths;
use katydid_tests::program;
use katydid_tests::server::Server;
use katydid_tests::verdict::judge;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

/// Sets the number of softcuda's devices, which lie on buses 1, 2 and 3.
const SERVER: (&str, &str) = ("KATYDID_SOFT_DEVICES", "3");
/// A program whose output does not depend on the number of devices.
const OF_SEVERAL: &str = "several_devices";
/// A program that allows a kernel more shared memory than the default.
const SETTING: &str = "scan";

/// Returns the devices that the fixture lists, on a server or on a private one.
fn listed_devices(paths: &Paths, server: Option<&Server>, variables: &[(&str, &str)]) -> Result<String> {
    let fixture = paths.program("fixture", Variant::Static);
    let mut command = Command::new(paths.katydid());
    command.args(["run", "--driver", "soft"]).env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_DEVICE_ORDER");
    if let Some(server) = server {
        command = Command::new(paths.katydid());
        command.args(["run", "--server", &server.unix()]);
        command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_DEVICE_ORDER");
    }
    command.envs([SERVER]).envs(variables.iter().copied()).arg("--").arg(fixture).arg("devices");
    let outcome = program::run(&mut command, WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}: {}", outcome.ending(), outcome.errors());
    Ok(outcome.text().trim_end().to_owned())
}

/// Choices of devices, and the buses that a program sees with each.
const CHOICES: [(&[(&str, &str)], &str); 7] = [
    (&[], "3: 01 02 03"),
    (&[("CUDA_VISIBLE_DEVICES", "2")], "1: 03"),
    (&[("CUDA_VISIBLE_DEVICES", "2,0")], "2: 03 01"),
    (&[("CUDA_VISIBLE_DEVICES", "1,9,0")], "1: 02"),
    (&[("CUDA_VISIBLE_DEVICES", "")], "0:"),
    (&[("CUDA_VISIBLE_DEVICES", "GPU-6b617479-6469-6420-736f-667463756402")], "1: 03"),
    (&[("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", "1,2")], "2: 02 03"),
];

#[test]
fn a_program_chooses_among_the_devices_of_its_own_server() -> Result<()> {
    let paths = Paths::of_this_test()?;
    for (variables, expected) in CHOICES {
        let seen = listed_devices(&paths, None, variables)?;
        ensure!(seen == expected, "{variables:?}: {seen}, not {expected}");
    }
    Ok(())
}

#[test]
fn each_program_chooses_for_itself_on_a_server_for_many() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start_with(&paths, "soft", &[], &[(SERVER.0, SERVER.1.into())])?;
    for (variables, expected) in CHOICES {
        let seen = listed_devices(&paths, Some(&server), variables)?;
        ensure!(seen == expected, "{variables:?}: {seen}, not {expected}");
    }
    Ok(())
}

#[test]
fn a_program_uses_two_devices_at_once() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start_with(&paths, "soft", &[], &[(SERVER.0, SERVER.1.into())])?;
    let [shm, tcp] = Way::through(&server);
    let direct = Way::Direct { name: "soft", folder: Some(paths.soft()) };
    for way in [direct, shm, Way::as_stream(&server), tcp] {
        let mut command = way.command(&paths, &paths.program(OF_SEVERAL, Variant::Plain));
        let outcome = program::run(command.env_remove("CUDA_VISIBLE_DEVICES").envs([SERVER]), WAIT_TIMEOUT)?;
        ensure!(outcome.errors().contains("two devices, peers"), "{way}: {}", outcome.errors());
        judge(&paths, OF_SEVERAL, &outcome).with_context(|| way.to_string())?;
    }
    Ok(())
}

/// A program has only the last of three devices. What it sets for its first device must apply to that one.
#[test]
fn kernels_are_set_up_for_the_device_that_was_chosen() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start_with(&paths, "soft", &[], &[(SERVER.0, SERVER.1.into())])?;
    for way in Way::through(&server) {
        let mut command = way.command(&paths, &paths.program(SETTING, Variant::Shared));
        let outcome = program::run(command.env("CUDA_VISIBLE_DEVICES", "2"), WAIT_TIMEOUT)?;
        judge(&paths, SETTING, &outcome).with_context(|| way.to_string())?;
    }
    Ok(())
}
