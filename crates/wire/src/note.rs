//! The server's note to a worker, sent with a program's hello: lines of text with a word and its value.
//!
//! | line           | meaning                                                        |
//! |----------------|----------------------------------------------------------------|
//! | `memory BYTES` | most device memory of the session; no such line: no limit      |
//! | `key DIGITS`   | the session's key; no such line: it cannot be taken up again   |
//! | `processors 1` | OpenCL may show processors; no such line: it may not           |
//!
//! Unknown words are ignored: the server is trusted, and starts only workers of its own kind.

use crate::key::SessionKey;

/// The server's settings for a worker's session: limits and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// Most device memory of the session, in bytes; none: no limit.
    pub memory_limit: Option<u64>,
    /// Key by which a program or a supervisor names the session later.
    pub key: SessionKey,
    /// Whether OpenCL programs may use processors, on which their code runs as the server's user.
    pub processors: bool,
}

impl Note {
    /// Encodes the note as text, one line for each field.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut lines = String::new();
        if let Some(limit) = self.memory_limit {
            lines += &format!("memory {limit}\n");
        }
        if !self.key.is_none() {
            lines += &format!("key {}\n", self.key.spelled());
        }
        if self.processors {
            lines += "processors 1\n";
        }
        lines.into_bytes()
    }

    /// Decodes the lines. Unreadable lines are ignored.
    #[must_use]
    pub fn decode(note: &[u8]) -> Self {
        let value = |word: &str| {
            let lines = str::from_utf8(note).unwrap_or_default().lines();
            lines.filter_map(|line| line.split_once(' ')).find(|(found, _)| *found == word).map(|(_, value)| value)
        };
        let memory_limit = value("memory").and_then(|bytes| bytes.parse().ok()).filter(|limit| *limit != 0);
        let key = value("key").and_then(SessionKey::from_spelled).unwrap_or(SessionKey::NONE);
        Self { memory_limit, key, processors: value("processors") == Some("1") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back() {
        for memory_limit in [None, Some(4096)] {
            for key in [SessionKey::NONE, SessionKey([0xa5; 16])] {
                for processors in [false, true] {
                    let note = Note { memory_limit, key, processors };
                    assert_eq!(Note::decode(&note.encode()), note);
                }
            }
        }
    }

    #[test]
    fn a_note_of_another_kind_is_skipped() {
        let nothing = Note { memory_limit: None, key: SessionKey::NONE, processors: false };
        for note in [
            &b"processors"[..],
            b"processors 2",
            b"processors yes",
            b"memory",
            b"memory x",
            b"memory 0",
            b"mem 7",
            b"\xff",
            b"memory 7 8",
            b"key 12",
            b"",
        ] {
            assert_eq!(Note::decode(note), nothing);
        }
        assert_eq!(Note::decode(b"new thing\nmemory 7\n").memory_limit, Some(7));
    }
}
