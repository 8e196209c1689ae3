//! The ELF note that names the build of a library for programs.
//!
//! A restored program keeps the library that it was started with, whatever is installed at its restore. The note tells a
//! supervisor which mapped files are Katydid's, and whether this build understands them. Little-endian:
//!
//! | offset | bytes | field |
//! |-------:|------:|-------|
//! | 0 | 4 | length of the owner: 8 |
//! | 4 | 4 | length of what follows the owner: 56 |
//! | 8 | 4 | kind: 1 |
//! | 12 | 8 | owner: `Katydid` and a zero byte |
//! | 20 | 4 | [`handshake::PROTOCOL_VERSION`] |
//! | 24 | 4 | [`job::JOB_PROTOCOL_VERSION`] |
//! | 28 | 32 | [`SPEC_HASH`] |
//! | 60 | 16 | release, text padded with zeros |
//!
//! The layout never changes, so that every build can read the note of every other one.

use std::fmt;

use crate::message::SPEC_HASH;
use crate::printable::printable;
use crate::{handshake, job};

const NOTE_OWNER: [u8; 8] = *b"Katydid\0";
const NOTE_KIND: u32 = 1;
const DESCRIPTION_BYTES: usize = 56;
const RELEASE_BYTES: usize = 16;
const NOTE_BYTES: usize = 12 + NOTE_OWNER.len() + DESCRIPTION_BYTES;

/// The note of this build, for a static in the section `.note.katydid`.
#[derive(Debug)]
#[repr(C, align(4))]
pub struct BuildNote([u8; NOTE_BYTES]);

impl BuildNote {
    /// Returns the note of this build.
    #[must_use]
    pub const fn current() -> Self {
        let mut note = [0; NOTE_BYTES];
        copy(&mut note, 0, &(NOTE_OWNER.len() as u32).to_le_bytes());
        copy(&mut note, 4, &(DESCRIPTION_BYTES as u32).to_le_bytes());
        copy(&mut note, 8, &NOTE_KIND.to_le_bytes());
        copy(&mut note, 12, &NOTE_OWNER);
        copy(&mut note, 20, &handshake::PROTOCOL_VERSION.to_le_bytes());
        copy(&mut note, 24, &job::JOB_PROTOCOL_VERSION.to_le_bytes());
        copy(&mut note, 28, &SPEC_HASH);
        copy(&mut note, 60, env!("CARGO_PKG_VERSION").as_bytes());
        Self(note)
    }

    /// Returns the note as it is embedded in the library's file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Copies as much of `from` as fits.
const fn copy(to: &mut [u8; NOTE_BYTES], offset: usize, from: &[u8]) {
    let mut index = 0;
    while index < from.len() && offset + index < NOTE_BYTES {
        to[offset + index] = from[index];
        index += 1;
    }
}

/// The build of a library for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryBuild {
    /// Version of frames and layouts.
    pub protocol: u32,
    /// Version of the job protocol.
    pub job_protocol: u32,
    /// Hash of the API description.
    pub spec_hash: [u8; 32],
    /// Release, for display only.
    pub release: String,
}

impl LibraryBuild {
    /// Describes the library that this code is compiled into.
    #[must_use]
    pub fn current() -> Self {
        Self {
            protocol: handshake::PROTOCOL_VERSION,
            job_protocol: job::JOB_PROTOCOL_VERSION,
            spec_hash: SPEC_HASH,
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Returns whether supervisors and workers of this build understand a program with that library.
    #[must_use]
    pub fn is_understood(&self) -> bool {
        let own = Self::current();
        (self.protocol, self.job_protocol, self.spec_hash) == (own.protocol, own.job_protocol, own.spec_hash)
    }

    /// Finds the note among the notes of a library, given the contents of one of its `PT_NOTE` segments.
    #[must_use]
    pub fn find(mut notes: &[u8]) -> Option<Self> {
        while !notes.is_empty() {
            let (head, rest) = notes.split_first_chunk::<12>()?;
            let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let (owner, rest) = rest.split_at_checked(word(0).checked_next_multiple_of(4)? as usize)?;
            let (description, rest) = rest.split_at_checked(word(4).checked_next_multiple_of(4)? as usize)?;
            if (owner, word(8)) == (&NOTE_OWNER, NOTE_KIND) {
                return Self::read(description);
            }
            notes = rest;
        }
        None
    }

    fn read(description: &[u8]) -> Option<Self> {
        let (protocol, rest) = description.split_first_chunk()?;
        let (job_protocol, rest) = rest.split_first_chunk()?;
        let (spec_hash, rest) = rest.split_first_chunk()?;
        let release = rest.get(..RELEASE_BYTES)?.split(|byte| *byte == 0).next()?;
        Some(Self {
            protocol: u32::from_le_bytes(*protocol),
            job_protocol: u32::from_le_bytes(*job_protocol),
            spec_hash: *spec_hash,
            release: printable(&String::from_utf8_lossy(release)),
        })
    }
}

impl fmt::Display for LibraryBuild {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.spec_hash;
        let Self { release, protocol, job_protocol, .. } = self;
        write!(out, "katydid {release} (protocol {protocol}.{job_protocol}, interface {a:02x}{b:02x}{c:02x}{d:02x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note of another owner, whose description is padded to whole words.
    const OTHER: &[u8] = b"\x04\0\0\0\x05\0\0\0\x03\0\0\0GNU\0abcde\0\0\0";

    #[test]
    fn the_note_is_found_behind_others() {
        let notes = [OTHER, &BuildNote::current().0].concat();
        let build = LibraryBuild::find(&notes).unwrap();
        assert_eq!(build, LibraryBuild::current());
        assert!(build.is_understood());
        assert_eq!(LibraryBuild::find(OTHER), None);
    }

    #[test]
    fn a_build_with_another_interface_is_not_understood() {
        let own = LibraryBuild::current();
        assert!(!LibraryBuild { spec_hash: [7; 32], ..own.clone() }.is_understood());
        assert!(!LibraryBuild { job_protocol: own.job_protocol + 1, ..own.clone() }.is_understood());
        assert!(LibraryBuild { release: "9.9.9".into(), ..own }.is_understood());
    }

    #[test]
    fn a_cut_or_damaged_note_is_none() {
        let note = BuildNote::current().0;
        for length in 0..note.len() {
            assert_eq!(LibraryBuild::find(&note[..length]), None, "{length}");
        }
        for at in 0..12 {
            let mut damaged = note;
            damaged[at] ^= 0xff;
            assert_eq!(LibraryBuild::find(&damaged), None, "{at}");
        }
    }
}
