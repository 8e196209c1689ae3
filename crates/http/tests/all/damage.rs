//! Stored requests, whole and damaged: a short run of the fuzz target `http`, without a fuzzer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "../../../../fuzz/bodies/http.rs"]
mod http;

use std::fs;
use std::path::Path;

use http::ask;

/// Changes tried in every run; `KATYDID_MUTATIONS` has more.
const MUTATIONS: u32 = 1_500;

/// Requests, and inputs that have caused faults.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http");
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

#[test]
fn kept_requests_are_answered_and_kept_troubles_are_not() {
    let all = corpus();
    assert!(all.len() >= 6);
    for (name, bytes) in all {
        assert_eq!(ask(&bytes), !name.contains("bad_"), "{name}");
    }
}

#[test]
fn every_cut_and_many_changes_are_survived() {
    let mut state = 0x2545_f491_u32;
    let mut next = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below.max(1)
    };
    let all = corpus();
    for (_, bytes) in &all {
        for end in 0..bytes.len() {
            ask(&bytes[..end]);
        }
    }
    let mutation_count =
        std::env::var("KATYDID_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(MUTATIONS);
    for _ in 0..mutation_count {
        let mut bytes = all[next(all.len())].1.clone();
        for _ in 0..=next(4) {
            let (at, length) = (next(bytes.len()), next(16));
            match next(4) {
                0 => bytes[at] = next(256) as u8,
                1 => drop(bytes.drain(at..(at + length).min(bytes.len()))),
                2 => drop(bytes.splice(at..at, std::iter::repeat_n(b'9', length)).collect::<Vec<_>>()),
                _ => {
                    let (_, other) = &all[next(all.len())];
                    let from = next(other.len());
                    let piece: Vec<u8> = other[from..(from + length).min(other.len())].to_vec();
                    drop(bytes.splice(at..at, piece).collect::<Vec<_>>());
                }
            }
            if bytes.is_empty() {
                bytes.push(b'G');
            }
        }
        ask(&bytes);
    }
}
