//! Describes each thread of processes for the message of a failed test: its state, where it waits in the kernel, and its stack.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Most frames of a stack that are shown.
const MAX_STACK_FRAMES: usize = 40;
/// Most lines of a debugger's output that are shown for a process.
const MAX_STACK_LINES: usize = 400;
/// A debugger that cannot reach a process, such as a frozen one, is ended after this time. Nothing depends on its output.
const DEBUGGER_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a debugger is installed.
static HAS_GDB: LazyLock<bool> = LazyLock::new(|| {
    let mut command = Command::new("gdb");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
});

/// Returns a description of all threads of `pids`; those that have ended meanwhile are left out.
#[must_use]
pub fn of(pids: &[u32]) -> String {
    let mut text = String::new();
    for pid in pids {
        text += &kernel_side(*pid);
    }
    // Done last: a debugger stops the process, which others may notice.
    for pid in pids.iter().filter(|_| *HAS_GDB) {
        text += &user_side(*pid);
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// Returns the kernel's view of a process and its threads.
fn kernel_side(pid: u32) -> String {
    let status = read(&format!("/proc/{pid}/status"));
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
    let command = read(&format!("/proc/{pid}/cmdline")).replace('\0', " ").trim_end().to_owned();
    if status.is_empty() {
        return String::new();
    }
    let mut text = format!("process {pid} {}, child of {}: {command}\n", field("State:"), field("PPid:"));
    if field("TracerPid:") != "0" {
        text += &format!("  traced by {}\n", field("TracerPid:"));
    }
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let task = task.path().display().to_string();
        let number = task.rsplit('/').next().unwrap_or_default();
        let stat = read(&format!("{task}/stat"));
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        let [name, wait_channel, call] = ["comm", "wchan", "syscall"].map(|file| read(&format!("{task}/{file}")));
        text += &format!("  thread {number} {name}: {state}, in {wait_channel}, system call {call}\n");
        text.extend(read(&format!("{task}/stack")).lines().map(|line| format!("    {line}\n")));
    }
    text
}

/// Returns the stacks of a process, as `gdb` prints them.
fn user_side(pid: u32) -> String {
    let Ok(output_file) = tempfile::NamedTempFile::new() else { return String::new() };
    let Ok(out) = output_file.reopen() else { return String::new() };
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", &pid.to_string()]);
    command.args(["-ex", &format!("thread apply all backtrace {MAX_STACK_FRAMES}")]);
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).spawn() else {
        return String::new();
    };
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && start.elapsed() < DEBUGGER_TIMEOUT {
        sleep(Duration::from_millis(10));
    }
    // The debugger may have ended.
    let _ = child.kill();
    let _ = child.wait();
    if read(&format!("/proc/{pid}/status")).is_empty() {
        return String::new();
    }
    let output_file = fs::read_to_string(output_file.path()).unwrap_or_default();
    let stack_lines = output_file.lines().filter(|line| line.starts_with("Thread ") || line.starts_with('#'));
    let lines: Vec<String> = stack_lines.take(MAX_STACK_LINES).map(|line| format!("  {line}\n")).collect();
    format!("stacks of {pid}:\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_shown_with_its_threads_and_where_they_wait() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        crate::watch::until("it sleeps", || kernel_side(child.id()).contains(" sleep: S, in ")).unwrap();
        let text = of(&[child.id()]);
        assert!(text.contains(&format!("process {} S (sleeping)", child.id())) && text.contains("sleep 600"), "{text}");
        assert!(!*HAS_GDB || text.contains("#0 "), "{text}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of(&[child.id()]), "", "of one that is gone");
    }
}
