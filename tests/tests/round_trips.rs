//! How often a program waits for the network, and how much it sends: counted replies and bytes, never times. On a link with a
//! delay of 1 ms, a step takes one millisecond for each wait and no more, since everything else is sent meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::paths::Paths;
use katydid_tests::program::{self, Outcome};
use katydid_tests::server::Server;
use katydid_tests::traffic::{DelayModel, Traffic, counting};
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;

/// Counts the traffic on the network while a program runs.
fn traffic_of(paths: &Paths, server: &Server, name: &str, arguments: &[String]) -> Result<Arc<Traffic>> {
    traffic_with(paths, server, &[], name, arguments)
}

/// Counts the traffic on the network while a program runs with options of `katydid run`.
fn traffic_with(
    paths: &Paths,
    server: &Server,
    options: &[&str],
    name: &str,
    arguments: &[String],
) -> Result<Arc<Traffic>> {
    Ok(run(paths, server, DelayModel::AtOnce, options, name, arguments)?.0)
}

/// Runs a program over a network with these properties, and returns the time it took.
fn run(
    paths: &Paths,
    server: &Server,
    manner: DelayModel,
    options: &[&str],
    name: &str,
    arguments: &[String],
) -> Result<(Arc<Traffic>, Duration)> {
    let traffic = Arc::default();
    let address = counting(server.tcp(), manner, &traffic)?;
    let way = Way::Served { name: "tcp", address, as_stream: false };
    let mut command = way.job(paths, options, &paths.program(name, Variant::Static));
    let outcome = program::run(command.args(arguments), WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", outcome.errors());
    Ok((traffic, outcome.took))
}

/// Programs, and the number of waits for the worker in a step of each.
const PROGRAM_STEPS: [(&str, u64); 2] = [("launch_bound", 1), ("long_loop", 1)];

/// Each step has 48 kernels, an upload, two events, two stream waits, and a result that is copied to pinned memory and waited
/// for. On a link it costs that one wait. A network with a delay adds none. Neither does a network on which the program hears
/// nothing before it has sent all that it has to send.
#[test]
fn a_step_of_many_calls_waits_for_its_result_alone() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let late = DelayModel::Late(Duration::from_micros(500));
    for (name, per_step) in PROGRAM_STEPS {
        for (manner, label) in
            [(DelayModel::AtOnce, "at once"), (late, "0.5 ms each way"), (DelayModel::Held, "held back")]
        {
            let of = |steps: u64| run(&paths, &server, manner, &[], name, &[steps.to_string()]);
            let ((few, start), (many, end)) = (of(10)?, of(60)?);
            let counted = |traffic: &Traffic| match manner {
                DelayModel::Held => traffic.rounds.load(Ordering::Relaxed),
                _ => traffic.replies.load(Ordering::Relaxed),
            };
            let waited = counted(&many) - counted(&few);
            println!("{name}, {label}: {:?} a step, {start:?} for 10", end.saturating_sub(start) / 50);
            ensure!(waited <= 50 * per_step, "{name}, {label}: 50 steps waited {waited} times");
        }
    }
    Ok(())
}

/// A kernel writes into a large pinned block and into many small ones, 17 MiB in all. Once it is done, the replies that the
/// program asks for travel together, and small blocks come in one piece.
#[test]
fn pinned_memory_comes_back_together() -> Result<()> {
    /// The most replies of a step, and the most times that replies are let go for it. The large block has 16 pieces, and there
    /// are 40 small ones.
    const MAX_ROUND_TRIPS: (u64, u64) = (18, 12);
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let counted = |steps: u64| -> Result<[u64; 2]> {
        let (traffic, _) = run(&paths, &server, DelayModel::Held, &[], "mapped_steps", &[steps.to_string()])?;
        Ok([&traffic.replies, &traffic.rounds].map(|count| count.load(Ordering::Relaxed)))
    };
    let (few, many) = (counted(2)?, counted(6)?);
    let [replies, rounds] = [0, 1].map(|at| many[at] - few[at]);
    ensure!(
        replies <= 4 * MAX_ROUND_TRIPS.0 && rounds <= 4 * MAX_ROUND_TRIPS.1,
        "4 steps: {replies} replies in {rounds} rounds"
    );
    Ok(())
}

/// The server has the images of the first start.
#[test]
fn a_second_start_sends_no_images() -> Result<()> {
    /// Bytes of more than a megabyte of code, with room for what the build of the program makes of it.
    const CODE_BYTES: u64 = 512 << 10;
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let mut sent = [0; 2];
    for bytes in &mut sent {
        *bytes = traffic_of(&paths, &server, "thrust_algorithms", &[])?.sent.load(Ordering::Relaxed);
    }
    let [first, second] = sent;
    ensure!(second + CODE_BYTES < first, "{first} bytes, then {second}");
    Ok(())
}

/// A lower bound of the larger of the two modules of `used_code`, in bytes, in one kind of machine code alone.
const LARGE_MODULE: u64 = 500_000;

/// Returns the bytes that `used_code` sends. With the argument `both` it uses its large module too.
fn sent_of_used_code(paths: &Paths, server: &Server, name: &str, arguments: &[&str]) -> Result<u64> {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Ok(traffic_of(paths, server, name, &arguments)?.sent.load(Ordering::Relaxed))
}

/// Starts a server that keeps no images, so that each start sends what it loads.
fn forgetful(paths: &Paths) -> Result<Server> {
    Ok(Server::start(paths, "soft", &["--module-cache-size", "1"])?)
}

/// softcuda's device has compute capability 9.0. The program that also has code for 8.0 sends no more than the one without.
#[test]
fn machine_code_for_other_devices_is_not_sent() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = forgetful(&paths)?;
    let size = |name| std::fs::metadata(paths.program(name, Variant::Static)).map(|file| file.len());
    let (own, more) = (size("used_code")?, size("used_code_80_90")?);
    ensure!(more > own + LARGE_MODULE, "the programs have {own} and {more} bytes");
    let own = sent_of_used_code(&paths, &server, "used_code", &["both"])?;
    let more = sent_of_used_code(&paths, &server, "used_code_80_90", &["both"])?;
    ensure!(more < own + LARGE_MODULE / 10, "{own} bytes were sent, and {more} with other code beside");
    Ok(())
}

/// A program does not load a module that it does not use, unless its user wants all modules loaded at once.
#[test]
fn modules_are_sent_when_they_are_used() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = forgetful(&paths)?;
    let sent_once = sent_of_used_code(&paths, &server, "used_code", &[])?;
    let both = sent_of_used_code(&paths, &server, "used_code", &["both"])?;
    ensure!(sent_once + LARGE_MODULE < both, "{sent_once} bytes for one module, {both} for both");
    let traffic = Arc::default();
    let address = counting(server.tcp(), DelayModel::AtOnce, &traffic)?;
    let way = Way::Served { name: "tcp", address, as_stream: false };
    let mut command = way.command(&paths, &paths.program("used_code", Variant::Static));
    let outcome = program::run(command.env("CUDA_MODULE_LOADING", "EAGER"), WAIT_TIMEOUT)?;
    ensure!(outcome.status.success(), "{}", outcome.errors());
    let all = traffic.sent.load(Ordering::Relaxed);
    ensure!(sent_once + LARGE_MODULE < all, "{sent_once} bytes for one module, {all} for all");
    Ok(())
}

/// A library takes device memory when the program first asks for one of its kernels. As without Katydid, the program reads from
/// its environment how its user wants modules loaded.
#[test]
fn code_takes_memory_when_it_is_used() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let direct = Way::Direct { name: "soft", folder: Some(paths.soft()) };
    let [shm, tcp] = Way::through(&server);
    for (loading, word) in [("LAZY", "lazy"), ("EAGER", "eager")] {
        for way in [&direct, &shm, &tcp] {
            let mut command = way.command(&paths, &paths.program("lazy_code", Variant::Static));
            let outcome = program::run(command.env("CUDA_MODULE_LOADING", loading), WAIT_TIMEOUT)?;
            let expected =
                format!("{word}\na library takes 0\na function of it takes 1\nwithout it 0\nPASS lazy_code\n");
            ensure!(outcome.text() == expected, "{way}, {loading}:\n{}{}", outcome.text(), outcome.errors());
        }
    }
    Ok(())
}

/// A start sends less to a server that has the images.
#[test]
fn a_server_that_is_started_again_has_the_images_of_the_last_one() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let mut last = Server::start(&paths, "soft", &[])?;
    let first = sent_of_used_code(&paths, &last, "used_code", &["both"])?;
    ensure!(last.stop()?, "{}", last.log());
    let server = last.successor(&paths, "soft", &[], &[])?;
    let second = sent_of_used_code(&paths, &server, "used_code", &["both"])?;
    ensure!(second + LARGE_MODULE < first, "{first} bytes, and {second} with another server");
    Ok(())
}

/// The cached hash identifies an image in a file that has not changed since another program loaded it. In that case no process
/// can read more of the file than its first page . A changed file is hashed again, whatever its time says.
#[test]
fn a_second_start_does_not_read_an_image_in_a_file() -> Result<()> {
    /// Bytes of the image, and of all else that is sent at most.
    const IMAGE_BYTES: (u64, u64) = (4 << 20, 1 << 20);
    let paths = Paths::of_this_test()?;
    let (folder, program) = (tempfile::tempdir()?, paths.program("file_image", Variant::Static));
    let file = folder.path().join("image");
    let status = Command::new(&program).arg("make").arg(&file).arg((IMAGE_BYTES.0 >> 20).to_string()).status()?;
    ensure!(status.success(), "the image cannot be made: {status}");
    let server = Server::start(&paths, "soft", &[])?;
    let load = |way: &Way, further: &[&str]| -> Result<Outcome> {
        let mut command = way.job(&paths, &[], &program);
        command.arg("load").arg(&file).args(further).env("KATYDID_CACHE", folder.path().join("cache"));
        Ok(program::run(&mut command, WAIT_TIMEOUT)?)
    };
    let loaded = |way: &Way, further: &[&str]| -> Result<()> {
        let outcome = load(way, further)?;
        ensure!(outcome.text() == "loaded\n", "{}\n{}{}", outcome.ending(), outcome.text(), outcome.errors());
        Ok(())
    };
    let [by_memory, tcp] = Way::through(&server);
    let loads = |further: &[&str], sends: bool| -> Result<()> {
        let traffic: Arc<Traffic> = Arc::default();
        let address = counting(server.tcp(), DelayModel::AtOnce, &traffic)?;
        loaded(&Way::Served { name: "tcp", address, as_stream: false }, further)?;
        let sent = traffic.sent.load(Ordering::Relaxed);
        let is_right = if sends { sent > IMAGE_BYTES.0 } else { sent < IMAGE_BYTES.1 };
        ensure!(is_right, "{sent} bytes were sent, {further:?}");
        Ok(())
    };
    // A file changed recently could change again with the same time.
    while file.metadata()?.modified()?.elapsed().unwrap_or_default() < Duration::from_millis(2100) {
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(load(&tcp, &["hidden"])?.status.code() != Some(0), "what is not read yet is not known");
    loads(&[], true)?;
    loads(&["hidden"], false)?;
    // Hashes made for a network also serve where memory takes images, and the other way round.
    loaded(&by_memory, &["hidden"])?;
    let time = file.metadata()?.modified()?;
    let changed = File::options().write(true).open(&file)?;
    changed.write_all_at(b"changed", IMAGE_BYTES.0)?;
    changed.set_modified(time)?;
    loads(&[], true)?;
    std::thread::sleep(Duration::from_millis(2100));
    loaded(&by_memory, &[])?;
    loads(&["hidden"], false)
}

/// The server notices damage on the disk, gets the images again and keeps them again. Programs run even if the server has no
/// room to keep images.
#[test]
fn images_that_are_damaged_or_cannot_be_kept_are_sent_again() -> Result<()> {
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let sent = || sent_of_used_code(&paths, &server, "used_code", &["both"]);
    let first = sent()?;
    for image in std::fs::read_dir(server.images())? {
        let image = image?.path();
        let mut bytes = std::fs::read(&image)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&image, bytes)?;
    }
    let (damaged, repaired) = (sent()?, sent()?);
    ensure!(repaired + LARGE_MODULE < damaged.min(first), "{first} bytes, {damaged} after damage, then {repaired}");
    std::fs::remove_dir_all(server.images())?;
    let without = sent()?;
    ensure!(repaired + LARGE_MODULE < without, "{without} bytes without a folder for images");
    Ok(())
}

/// Copies that repeat themselves, in both directions. With compression, fewer bytes cross the network, and the program, which
/// checks every byte that comes back, sees no difference. Programs that do not ask for it pay nothing.
#[test]
fn packed_copies_are_fewer_bytes_on_the_network_and_the_same_in_memory() -> Result<()> {
    /// The least bytes that compression saves, of 590,000 bytes each way from ordinary memory, in six copies.
    const SAVED_BYTES: u64 = 400_000;
    let paths = Paths::of_this_test()?;
    let server = Server::start(&paths, "soft", &[])?;
    let bytes = |packing| -> Result<[u64; 2]> {
        let traffic = traffic_with(&paths, &server, &["--packing", packing], "bandwidth", &[])?;
        Ok([&traffic.sent, &traffic.received].map(|bytes| bytes.load(Ordering::Relaxed)))
    };
    let (off, _, always) = (bytes("off")?, bytes("auto")?, bytes("always")?);
    ensure!(always[0] + SAVED_BYTES < off[0] && always[1] + SAVED_BYTES < off[1], "{off:?} and {always:?} bytes");
    Ok(())
}
