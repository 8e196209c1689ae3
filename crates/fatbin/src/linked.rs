//! The output of a software device's linker: an ELF file, like the real linker's, whose only contents are the linked texts in
//! their own section.
//!
//! | offset            | bytes | what                                                        |
//! |------------------:|------:|-------------------------------------------------------------|
//! |                 0 |    64 | ELF64 header of a CUDA executable                           |
//! |                64 |     n | `.katydid.ptx`: for each text its length (48 bits), most    |
//! |                   |       | registers of a thread (14 bits, 0: no limit), contraction   |
//! |                   |       | (2 bits: not told, not done, done), then the text           |
//! |            64 + n |     m | names of the sections                                       |
//! | next multiple of 8|   192 | section headers: none, texts, names                         |
//!
//! So it is sent and copied like any cubin, and a program that checks its first bytes finds what it expects.

use std::borrow::Cow;

use crate::compilation::Compilation;
use crate::elf::{Section, sections};
use crate::error::{ModuleImageError, check_there};
use crate::ptx::Ptx;

/// Name of the section with the texts.
const TEXTS_SECTION: &str = ".katydid.ptx";
/// All names of sections, each with its NUL; the first one is empty.
const SECTION_NAMES: &str = "\0.katydid.ptx\0.shstrtab\0";
/// Machine number of CUDA.
const EM_CUDA: u16 = 190;
const ELF_HEADER_BYTES: usize = 64;
/// Bits of a text's length, and of its registers.
const LENGTH_BITS: u32 = 48;
const REGISTER_BITS: u32 = 14;
const MAX_REGISTERS: u32 = (1 << REGISTER_BITS) - 1;

/// Makes an image of `texts`, which belong together, each with its compilation options.
#[must_use]
pub fn linked_image(texts: &[(&str, Compilation)]) -> Vec<u8> {
    let mut file = header();
    for (text, compilation) in texts {
        file.extend((text.len() as u64 | encode(*compilation) << LENGTH_BITS).to_le_bytes());
        file.extend(text.as_bytes());
    }
    let names = file.len();
    file.extend(SECTION_NAMES.as_bytes());
    file.resize(file.len().next_multiple_of(8), 0);
    let table = file.len() as u64;
    file.extend([0; 64]);
    file.extend(section(1, 1, ELF_HEADER_BYTES, names - ELF_HEADER_BYTES));
    file.extend(section(TEXTS_SECTION.len() as u32 + 2, 3, names, SECTION_NAMES.len()));
    file[40..48].copy_from_slice(&table.to_le_bytes());
    file
}

/// Encodes a compilation in 16 bits.
fn encode(compilation: Compilation) -> u64 {
    let registers = compilation.max_registers.unwrap_or(0).min(MAX_REGISTERS);
    let contracts = compilation.contracts.map_or(0, |contracts| 1 + u64::from(contracts));
    u64::from(registers) | contracts << REGISTER_BITS
}

/// Decodes a compilation from 16 bits.
fn decode(bits: u64) -> Compilation {
    let registers = bits as u32 & MAX_REGISTERS;
    let contracts = match bits >> REGISTER_BITS {
        0 => None,
        kind => Some(kind > 1),
    };
    Compilation { max_registers: Some(registers).filter(|registers| *registers > 0), contracts }
}

/// Returns the ELF header, without the offset of the section headers.
fn header() -> Vec<u8> {
    let mut header = vec![0; ELF_HEADER_BYTES];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    // Executable, machine, version; then sizes of headers, number of sections, and which of them has the names.
    for (at, value) in [(16, 2), (18, EM_CUDA), (20, 1), (52, 64), (54, 56), (58, 64), (60, 3), (62, 2)] {
        header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    header
}

/// Returns a section header: offset of the name, type, offset and size in the file.
fn section(name: u32, kind: u32, offset: usize, size: usize) -> [u8; 64] {
    let mut section = [0; 64];
    section[..4].copy_from_slice(&name.to_le_bytes());
    section[4..8].copy_from_slice(&kind.to_le_bytes());
    section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
    section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
    section
}

/// Returns the texts in an image of [`linked_image`]; none for any other ELF file.
pub(crate) fn linked_texts(file: &[u8]) -> Result<Vec<Ptx<'_>>, ModuleImageError> {
    let Some(Section { mut bytes, .. }) = sections(file)?.into_iter().find(|section| section.name == TEXTS_SECTION)
    else {
        return Ok(Vec::new());
    };
    let mut texts = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk() {
        let head = u64::from_le_bytes(*head);
        let length = head & ((1 << LENGTH_BITS) - 1);
        check_there("a linked text", length, rest.len() as u64)?;
        let (text, after) = rest.split_at(length as usize);
        let text =
            std::str::from_utf8(text).map_err(|_| ModuleImageError::Field { field: "a linked text", value: 0 })?;
        texts.push(Ptx { sm: 0, text: Cow::Borrowed(text), compilation: decode(head >> LENGTH_BITS) });
        bytes = after;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ModuleImage, ModuleImageKind};

    #[test]
    fn texts_come_out_as_they_went_in_and_the_image_is_whole() {
        let limited = Compilation { max_registers: Some(32), contracts: Some(false) };
        let contracted = Compilation { max_registers: None, contracts: Some(true) };
        let inputs = [("one", Compilation::default()), ("", limited), ("three", contracted)];
        let file = linked_image(&inputs);
        let texts = linked_texts(&file).unwrap();
        let texts: Vec<_> = texts.iter().map(|ptx| (ptx.text.as_ref(), ptx.compilation)).collect();
        assert_eq!(texts, inputs);
        let padded = [&file[..], &[1; 10]].concat();
        let image = ModuleImage::from_bytes(&padded).unwrap();
        assert_eq!((image.kind(), image.parts()), (ModuleImageKind::Elf, &[&file[..]][..]));
        assert_eq!(image.ptx(Some(90)).unwrap().len(), 3);
    }

    #[test]
    fn damage_is_an_error_and_another_file_has_no_texts() {
        let file = linked_image(&[("text", Compilation::default())]);
        for length in 0..file.len() {
            assert!(linked_texts(&file[..length]).is_err(), "{length}");
        }
        let mut damaged = file.clone();
        damaged[64..72].fill(0xff);
        assert!(linked_texts(&damaged).is_err());
        let mut other = file;
        other[64 + 12 + 2] = b'x';
        assert_eq!(linked_texts(&other).unwrap(), []);
    }
}
