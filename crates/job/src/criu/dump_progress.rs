//! Progress of a dump: the bytes that CRIU has written, observed from outside, because CRIU does not report them.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Time between two checks of CRIU's files.
const DUMP_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Does `work`, and reports meanwhile how many bytes the files of `folder` have.
pub(crate) fn watched<T>(folder: &Path, notify: &(dyn Fn(u64) + Sync), work: impl FnOnce() -> T) -> T {
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(DUMP_PROGRESS_INTERVAL) {
                notify(bytes_in(folder));
            }
        });
        let done = work();
        drop(end);
        done
    })
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|stat| stat.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn dump_progress_is_reported_while_files_grow() {
        let folder = tempfile::tempdir().unwrap();
        let (reports, seen) = (Mutex::new(Vec::new()), mpsc::channel());
        let notify = |bytes| {
            reports.lock().unwrap().push(bytes);
            let _ = seen.0.send(bytes);
        };
        watched(folder.path(), &notify, || {
            for (name, all) in [("pages-1.img", 10), ("pages-2.img", 20)] {
                fs::write(folder.path().join(name), [0; 10]).unwrap();
                while seen.1.recv().unwrap() != all {}
            }
        });
        assert!(reports.lock().unwrap().is_sorted());
    }
}
