//! Kept answers: what a GPU made of the cases of one group, in one file.
//!
//! A file is a few lines of text that say whose answers these are, an empty line, and a zstd frame:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | records, then for each: |
//! | 2 + n | name |
//! | 8 | the question it answers (`Case::question`) |
//! | 1 | 0 done, 1 refused, 2 faulted |
//! | 4 | done: number of its output among the outputs; else the `CUresult` |
//! | 4 | outputs, then for each: 4 bytes of length, and the bytes |
//!
//! All numbers are little-endian. Equal outputs are kept once.

use crate::case::Case;
use crate::device::DeviceAnswer;
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// First line of a file.
const FORMS_FILE_MAGIC: &str = "katydid-forms 1";

/// Largest unpacked content that is accepted, in bytes.
const MAX_UNPACKED_BYTES: u64 = 64 << 20;

/// Why recorded answers are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error that the system returned.
        error: std::io::Error,
    },
    /// The contents of the file are invalid.
    #[error("{}: is damaged or of another version; record it again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Source of the answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// Name of the GPU.
    pub device: String,
    /// Version of its driver.
    pub driver: String,
    /// The day, as `2026-11-21`.
    pub date: String,
}

/// An answer and its question.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    question: u64,
    answer: DeviceAnswer,
}

/// The recorded answers of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordedAnswers {
    /// Device and driver that gave the answers.
    pub origin: Origin,
    records: HashMap<String, Record>,
}

impl RecordedAnswers {
    /// Creates a store without answers, for this device and driver.
    pub fn new(origin: Origin) -> Self {
        Self { origin, records: HashMap::new() }
    }

    /// Stores the answer to a case.
    pub fn keep(&mut self, case: &Case, answer: DeviceAnswer) {
        self.records.insert(case.name.clone(), Record { question: case.question(), answer });
    }

    /// Returns the answer to exactly this question.
    pub fn answer(&self, case: &Case) -> Option<&DeviceAnswer> {
        self.records.get(&case.name).filter(|record| record.question == case.question()).map(|record| &record.answer)
    }

    /// Returns the number of answers.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether there are no answers.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// When it exists and is invalid.
    pub fn read(path: &Path) -> Result<Option<Self>, StoreError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::File { path: path.to_owned(), error }),
        };
        let answers = Self::from_bytes(&bytes);
        answers.map(Some).ok_or_else(|| StoreError::Damaged { path: path.to_owned() })
    }

    /// Writes a file.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), StoreError> {
        std::fs::write(path, self.to_bytes()).map_err(|error| StoreError::File { path: path.to_owned(), error })
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(2).position(|pair| pair == b"\n\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.lines();
        let mut line = |key: &str| Some(lines.next()?.strip_prefix(key)?.trim().to_owned());
        line(FORMS_FILE_MAGIC)?;
        let origin = Origin { device: line("device ")?, driver: line("driver ")?, date: line("date ")? };
        let mut unpacked = Vec::new();
        let decoder = ruzstd::decoding::StreamingDecoder::new(&bytes[end + 2..]).ok()?;
        decoder.take(MAX_UNPACKED_BYTES).read_to_end(&mut unpacked).ok()?;
        let records = Reader(&unpacked).records()?;
        Some(Self { origin, records })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let Origin { device, driver, date } = &self.origin;
        let mut out = format!("{FORMS_FILE_MAGIC}\ndevice {device}\ndriver {driver}\ndate {date}\n\n").into_bytes();
        let packed = self.packed();
        out.extend(ruzstd::encoding::compress_to_vec(packed.as_slice(), ruzstd::encoding::CompressionLevel::Fastest));
        out
    }

    /// Returns the content of the frame, with records sorted by name.
    fn packed(&self) -> Vec<u8> {
        let mut names: Vec<&String> = self.records.keys().collect();
        names.sort();
        let mut indices: HashMap<&[u8], u32> = HashMap::new();
        let mut outputs: Vec<&[u8]> = Vec::new();
        let mut out = (names.len() as u32).to_le_bytes().to_vec();
        for name in names {
            let record = &self.records[name];
            let (stage, number) = match &record.answer {
                DeviceAnswer::Done(output) => {
                    let index = *indices.entry(output).or_insert_with(|| {
                        outputs.push(output);
                        outputs.len() as u32 - 1
                    });
                    (0, index)
                }
                DeviceAnswer::Refused { code, .. } => (1, *code),
                DeviceAnswer::Faulted { code, .. } => (2, *code),
            };
            out.extend((name.len() as u16).to_le_bytes());
            out.extend(name.as_bytes());
            out.extend(record.question.to_le_bytes());
            out.push(stage);
            out.extend(number.to_le_bytes());
        }
        out.extend((outputs.len() as u32).to_le_bytes());
        for output in outputs {
            out.extend((output.len() as u32).to_le_bytes());
            out.extend(output);
        }
        out
    }
}

/// The remaining bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn records(mut self) -> Option<HashMap<String, Record>> {
        let count = self.number(4)?;
        let mut found = Vec::new();
        for _ in 0..count {
            let length = self.number(2)? as usize;
            let name = String::from_utf8(self.take(length)?.to_vec()).ok()?;
            found.push((name, self.number(8)?, self.number(1)?, self.number(4)?));
        }
        let mut outputs = Vec::new();
        for _ in 0..self.number(4)? {
            let length = self.number(4)? as usize;
            outputs.push(self.take(length)?);
        }
        let record = |(name, question, stage, number): (String, u64, u64, u64)| {
            let (code, log) = (number as u32, String::new());
            let answer = match stage {
                0 => DeviceAnswer::Done(outputs.get(number as usize)?.to_vec()),
                1 => DeviceAnswer::Refused { code, log },
                _ => DeviceAnswer::Faulted { code, log },
            };
            Some((name, Record { question, answer }))
        };
        found.into_iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;

    fn case(name: &str) -> Case {
        program::parse(name, "//! Nothing.\n//! output 4\n").unwrap().case
    }

    fn recorded_answers() -> RecordedAnswers {
        let mut answers = RecordedAnswers::new(Origin {
            device: "NVIDIA H200".to_owned(),
            driver: "580.1".to_owned(),
            date: "2026-11-21".to_owned(),
        });
        answers.keep(&case("a"), DeviceAnswer::Done(vec![1, 2, 3]));
        answers.keep(&case("b"), DeviceAnswer::Done(vec![1, 2, 3]));
        answers.keep(&case("c"), DeviceAnswer::Refused { code: 218, log: String::new() });
        answers.keep(&case("d"), DeviceAnswer::Faulted { code: 700, log: String::new() });
        answers
    }

    #[test]
    fn answers_survive_being_written_and_read() {
        assert_eq!(RecordedAnswers::from_bytes(&recorded_answers().to_bytes()), Some(recorded_answers()));
    }

    #[test]
    fn an_answer_belongs_to_one_question() {
        let other = Case { dynamic: 16, ..case("a") };
        assert_eq!((recorded_answers().answer(&case("a")).is_some(), recorded_answers().answer(&other)), (true, None));
    }

    #[test]
    fn a_file_cut_short_is_damaged() {
        let bytes = recorded_answers().to_bytes();
        for end in 0..bytes.len() {
            assert_eq!(RecordedAnswers::from_bytes(&bytes[..end]), None, "cut at {end}");
        }
    }
}
