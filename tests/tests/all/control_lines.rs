//! Tests kept lines between a server and its workers, whole and damaged: a short run of the fuzz target `control` without a
//! fuzzer.

#[path = "../../../fuzz/bodies/control.rs"]
mod control;

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use control::read;

fn corpus() -> Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/control");
    fs::read_dir(folder)?.map(|entry| Ok(fs::read(entry?.path())?)).collect()
}

#[test]
fn each_kept_line_is_known_to_the_side_that_it_is_for() -> Result<()> {
    let all = corpus()?;
    ensure!(all.len() >= 11);
    for line in all {
        ensure!(read(&line) == 1, "{:?}", String::from_utf8_lossy(&line));
    }
    Ok(())
}

#[test]
fn every_cut_and_every_changed_byte_is_survived() -> Result<()> {
    for line in corpus()? {
        for end in 0..line.len() {
            read(&line[..end]);
        }
        for at in 0..line.len() {
            for byte in [0, b' ', b'\n', b'9', b'-', 0x1b, 0x7f, 0x80, 0xff] {
                let mut changed = line.clone();
                changed[at] = byte;
                read(&changed);
                changed.splice(at..at, vec![byte; 5000]);
                read(&changed);
            }
        }
    }
    Ok(())
}
