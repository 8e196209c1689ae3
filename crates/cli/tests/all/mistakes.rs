//! A wrong flag, variable or file is reported in one line before anything runs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use rustix::fs::inotify;

use crate::common::{HomeFolder, stand_in};

/// A text that only a running program prints.
const RAN_LINE: &str = "the program ran";

/// Checks that the command is refused with this status and one line with these words, and that the program has not run.
fn is_refused(command: &mut Command, status: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{command:?}: {errors}");
    words.iter().for_each(|word| assert!(errors.contains(word), "no {word} in {errors}"));
    assert!(errors.len() < 600 && !String::from_utf8_lossy(&output.stdout).contains(RAN_LINE), "{command:?}: {errors}");
}

#[test]
fn a_variable_that_holds_what_it_cannot_is_refused_whatever_a_flag_says() {
    let home = HomeFolder::new();
    let file = home.path("file");
    fs::write(&file, "").unwrap();
    let (file, long) = (file.to_str().unwrap(), "x".repeat(4097));
    for (name, value) in [
        ("KATYDID_SOFT_DEVICES", "0"),
        ("KATYDID_SOFT_DEVICES", "none"),
        ("KATYDID_SOFT_DEVICES", "17"),
        ("KATYDID_SERVER", "carrier-pigeon:coop"),
        ("KATYDID_CERTS", "/nonexistent/certs"),
        ("KATYDID_CACHE", "relative"),
        ("KATYDID_CACHE", "/proc/self/fdinfo"),
        ("KATYDID_CACHE", file),
        ("KATYDID_LIB", "/nonexistent/lib"),
        ("KATYDID_CRIU", "/nonexistent/criu"),
        ("KATYDID_OPENCL_DRIVERS", "libpocl.so.2:/nonexistent/libpocl.so"),
        ("KATYDID_SOFT_SHARED", file),
        ("KATYDID_SOFT_DISPLACE", "/nonexistent/bytes"),
        ("KATYDID_LINK_TIMEOUT", "-5s"),
        ("KATYDID_NAME", &long),
        ("KATYDID_MEMORY", "1"),
        ("KATYDID_LINK_TIMEOUT", "278h"),
    ] {
        for command in ["run", "trace"] {
            let mut line = home.katydid(&[command, "--driver", "soft", "--", "echo", RAN_LINE]);
            is_refused(line.env(name, value), 2, &[name, "correct it, or unset it"]);
        }
        is_refused(home.katydid(&["serve", "--driver", "soft"]).env(name, value), 2, &[name]);
        is_refused(home.katydid(&["restore", "/nonexistent/i", "--driver", "soft"]).env(name, value), 2, &[name]);
    }
}

#[test]
fn non_utf8_variable_is_refused() {
    let home = HomeFolder::new();
    let value = OsStr::from_bytes(b"na\xffme");
    for name in ["KATYDID_NAME", "KATYDID_SERVER", "KATYDID_LINK"] {
        for command in ["run", "trace"] {
            let mut line = home.katydid(&[command, "--driver", "soft", "--", "echo", RAN_LINE]);
            is_refused(line.env(name, value), 2, &[name, "UTF-8"]);
        }
    }
}

#[test]
fn a_wrong_config_file_is_refused_whatever_a_flag_says() {
    let home = HomeFolder::new();
    fs::create_dir_all(home.path(".config/katydid")).unwrap();
    for (text, word) in [
        ("sever = \"unix:/x\"\n", "`sever`"),
        ("server = \"carrier-pigeon:coop\"\n", "carrier-pigeon"),
        ("module_cache_size = \"much\"\n", "module_cache_size"),
    ] {
        fs::write(home.path(".config/katydid/config.toml"), text).unwrap();
        for flags in [["--driver", "soft"], ["--server", "unix:/nonexistent/k"]] {
            let line = [&["run"], &flags[..], &["--", "echo", RAN_LINE]].concat();
            is_refused(&mut home.katydid(&line), 2, &[word, "config.toml"]);
        }
    }
}

#[test]
fn the_config_file_is_read_once() {
    let home = HomeFolder::new();
    let server = stand_in(&home, "softcuda");
    fs::create_dir_all(home.path(".config/katydid")).unwrap();
    let file = home.path(".config/katydid/config.toml");
    fs::write(&file, format!("server = '{server}'\n")).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    // Two opens in a row would be reported as one; with the close between them they are not.
    inotify::add_watch(&watch, &file, inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_NOWRITE).unwrap();
    let output = home.output(&["run", "--", "echo", RAN_LINE]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(RAN_LINE), "{output:?}");
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut opened = 0;
    while let Ok(event) = reader.next() {
        opened += u32::from(event.events().contains(inotify::ReadFlags::OPEN));
    }
    assert_eq!(opened, 1);
}

#[test]
fn required_gpu_is_never_softcuda() {
    let home = HomeFolder::new();
    let server = stand_in(&home, "softcuda");
    for command in ["run", "trace"] {
        let with = |flags: &[&str]| {
            let mut line = home.katydid(&[&[command], flags, &["--", "echo", RAN_LINE]].concat());
            line.env("KATYDID_REQUIRE_GPU", "1");
            line
        };
        is_refused(&mut with(&["--driver", "soft"]), 2, &["KATYDID_REQUIRE_GPU", "leave one of them out"]);
        is_refused(&mut with(&["--server", &server]), 3, &["KATYDID_REQUIRE_GPU", "softcuda"]);
        let restore = ["restore", "/nonexistent/i", "--server", &server];
        is_refused(home.katydid(&restore).env("KATYDID_REQUIRE_GPU", "1"), 3, &["KATYDID_REQUIRE_GPU", "softcuda"]);
        is_refused(home.katydid(&restore).arg("--require-gpu"), 3, &["--require-gpu", "softcuda"]);
        is_refused(&mut home.katydid(&restore), 1, &["/nonexistent/i"]);
        let unset = with(&["--server", &server]).env("KATYDID_REQUIRE_GPU", "0").output().unwrap();
        assert!(String::from_utf8_lossy(&unset.stdout).contains(RAN_LINE), "{unset:?}");
    }
}

#[test]
fn name_that_no_server_accepts_is_refused() {
    let home = HomeFolder::new();
    let long = "x".repeat(4097);
    for command in ["run", "trace"] {
        is_refused(&mut home.katydid(&[command, "--name", &long, "--", "echo", RAN_LINE]), 2, &["--name", "4096"]);
    }
}

#[test]
fn invalid_driver_file_is_reported_once() {
    let home = HomeFolder::new();
    let listen = format!("unix:{}", home.path("k").display());
    is_refused(
        &mut home.katydid(&["serve", "--listen", &listen, "--driver", "/etc/passwd"]),
        3,
        &["--driver: /etc/passwd", "libcuda.so.1"],
    );
}

#[test]
fn full_stdout_fails_and_a_closed_pipe_does_not() {
    let home = HomeFolder::new();
    for line in [&["--help"][..], &["--version"], &["run", "--help"], &["completions", "bash"], &["images", "ls"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        is_refused(home.katydid(line).stdout(full), 1, &["cannot write the output", "free space"]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output =
            home.katydid(line).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {output:?}");
    }
}

#[test]
fn a_limit_of_the_size_of_files_ends_no_command_without_a_word() {
    let home = HomeFolder::new();
    let limited = |line: &[&str]| {
        let inner = home.katydid(line);
        let mut outer = Command::new("sh");
        outer.args(["-c", "ulimit -f 0; exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
        outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        outer.output().unwrap()
    };
    let output = limited(&["doctor", "--json"]);
    assert!(output.status.code().is_some(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document.is_array() || document["status"] == output.status.code().unwrap(), "{document}");
}

#[test]
fn malformed_s3_addresses_are_not_taken_for_folders() {
    let home = HomeFolder::new();
    for address in ["s3:bucket", "s3:/bucket/image", "S3:bucket", "s3://"] {
        for line in [
            &["inspect", address][..],
            &["images", "ls", address],
            &["images", "verify", address],
            &["images", "gc", address],
            &["restore", address, "--driver", "soft"],
            &["run", "--driver", "soft", "--image", address, "--every", "60s", "--", "echo", RAN_LINE],
        ] {
            is_refused(&mut home.katydid(line), 2, &[address, "s3://BUCKET/PREFIX"]);
        }
    }
}

/// Checks man(1)'s output, if that is installed.
#[test]
fn a_man_page_shows_rows_and_examples_as_lines() {
    let home = HomeFolder::new();
    assert!(home.output(&["man", home.folder.path().to_str().unwrap()]).status.success());
    let shown = |page: &str| {
        let groff = Command::new("groff")
            .args(["-man", "-Tascii", "-P-cbou"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut groff = groff.ok()?;
        groff.stdin.take().unwrap().write_all(&fs::read(home.path(page)).unwrap()).unwrap();
        Some(String::from_utf8(groff.wait_with_output().unwrap().stdout).unwrap())
    };
    let Some(whole) = shown("katydid.1") else { return };
    let has_line = |text: &str, begins: &str| text.lines().any(|line| line.trim_start().starts_with(begins));
    for begins in [
        "75     run, restore:",
        "126    the program cannot be",
        "127    the program was",
        "2. KATYDID_SERVER",
        "3. server =",
    ] {
        assert!(has_line(&whole, begins), "no line {begins} in\n{whole}");
    }
    for (page, begins) in [
        ("katydid-certs.1", "katydid certs client"),
        ("katydid-trace.1", "katydid trace -e launch"),
        ("katydid-run.1", "katydid run --server"),
    ] {
        let text = shown(page).unwrap();
        assert!(has_line(&text, begins), "no line {begins} in\n{text}");
    }
}
