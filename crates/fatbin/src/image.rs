//! An image as parts at any addresses, and its flat form for the wire.
//!
//! The flat form, little-endian: `kind` u32, `count` u32, then the `count` lengths as u64 (the table), then the parts,
//! each followed by zeros up to a multiple of 8.

use crate::compilation::Compilation;
use crate::container::{CONTAINER_MAGIC, Container};
use crate::elf::{ELF_MAGIC, elf_length};
use crate::entry::{EntryKind, until_nul};
use crate::error::{ModuleImageError, check_limit, check_there};
use crate::linked::linked_texts;
use crate::ptx::Ptx;

/// First word of a wrapper.
pub(crate) const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// First word of a container of toolkits before CUDA 4.
pub(crate) const ANCIENT_MAGIC: u32 = 0x1ee5_5a01;
/// Most parts of an image: one container for each object file of a program.
pub(crate) const MAX_IMAGE_PARTS: usize = 1 << 16;

/// The kind of an image; the numbers are those of the flat form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ModuleImageKind {
    /// PTX text, here without its final NUL.
    Ptx = 1,
    /// A cubin: an ELF file.
    Elf = 2,
    /// A fatbin container without a wrapper.
    Container = 3,
    /// A version 1 wrapper; its only part is the container.
    Wrapper = 4,
    /// A version 2 wrapper; the first part is its own container, the others are those of its array.
    LinkedWrapper = 5,
}

impl ModuleImageKind {
    fn from_number(number: u32) -> Result<Self, ModuleImageError> {
        let kinds = [Self::Ptx, Self::Elf, Self::Container, Self::Wrapper, Self::LinkedWrapper];
        let field = "the kind";
        kinds
            .into_iter()
            .find(|kind| *kind as u32 == number)
            .ok_or(ModuleImageError::Field { field, value: number.into() })
    }
}

/// A module image: PTX, cubin or fatbin, as `cuModuleLoadData` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleImage<'a> {
    pub(crate) kind: ModuleImageKind,
    pub(crate) parts: Vec<&'a [u8]>,
}

impl<'a> ModuleImage<'a> {
    pub(crate) fn new(kind: ModuleImageKind, parts: Vec<&'a [u8]>) -> Self {
        Self { kind, parts }
    }

    /// Parses the image in a file's bytes. Bytes after the image are ignored.
    ///
    /// # Errors
    /// The reason why there is no valid image.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, ModuleImageError> {
        match bytes.first_chunk().map(|word| u32::from_le_bytes(*word)) {
            Some(WRAPPER_MAGIC) => Err(ModuleImageError::WrapperInFile),
            Some(ANCIENT_MAGIC) => Err(ModuleImageError::Ancient),
            Some(CONTAINER_MAGIC) => Ok(Self::new(ModuleImageKind::Container, vec![whole_container(bytes)?])),
            Some(ELF_MAGIC) => Ok(Self::new(ModuleImageKind::Elf, vec![whole_elf(bytes)?])),
            _ => Ok(Self::new(ModuleImageKind::Ptx, vec![until_nul(bytes)])),
        }
    }

    /// Returns the kind of the image.
    #[must_use]
    pub fn kind(&self) -> ModuleImageKind {
        self.kind
    }

    /// Returns the bytes of each part; [`ModuleImageKind`] says what the parts are.
    #[must_use]
    pub fn parts(&self) -> &[&'a [u8]] {
        &self.parts
    }

    /// Returns its containers; PTX text and cubins have none.
    ///
    /// # Errors
    /// One of the containers is damaged.
    pub fn containers(&self) -> Result<Vec<Container<'a>>, ModuleImageError> {
        match self.kind {
            ModuleImageKind::Ptx | ModuleImageKind::Elf => Ok(Vec::new()),
            _ => self.parts.iter().map(|part| Container::new(part)).collect(),
        }
    }

    /// Returns the PTX for a device of architecture `sm` (such as 90); without `sm`, of the highest one. It is one text, or for
    /// separately compiled programs one for each object file, to be linked.
    ///
    /// # Errors
    /// [`ModuleImageError::NoPtx`], or the image is damaged.
    pub fn ptx(&self, sm: Option<u32>) -> Result<Vec<Ptx<'a>>, ModuleImageError> {
        if let (ModuleImageKind::Ptx, [text, ..]) = (self.kind, &self.parts[..]) {
            return Ok(vec![Ptx { sm: 0, text: String::from_utf8_lossy(text), compilation: Compilation::default() }]);
        }
        if let (ModuleImageKind::Elf, [file, ..]) = (self.kind, &self.parts[..]) {
            let linked = linked_texts(file)?;
            return if linked.is_empty() { Err(no_ptx_in_cubin(file, sm)) } else { Ok(linked) };
        }
        let containers = self.containers()?;
        // The first part of a linked program is the link of the array's parts: the same code again.
        let objects = if containers.len() > 1 { &containers[1..] } else { &containers[..] };
        let mut texts = Vec::new();
        for container in objects {
            if let Some(entry) = container.best_ptx(sm)? {
                texts.push(Ptx { sm: entry.sm, text: entry.text()?, compilation: entry.compilation() });
            }
        }
        if texts.is_empty() { Err(no_ptx(&containers, sm)) } else { Ok(texts) }
    }

    /// Returns whether nvcc built it into a program or library that has machine code for a device of architecture `sm`. Images
    /// that programs load themselves have no wrapper.
    #[must_use]
    pub fn is_built_in_machine_code(&self, sm: u32) -> bool {
        let is_built_in = matches!(self.kind, ModuleImageKind::Wrapper | ModuleImageKind::LinkedWrapper);
        let containers = if is_built_in { self.containers().unwrap_or_default() } else { Vec::new() };
        let mut entries = containers.iter().flat_map(Container::entries).flatten();
        entries.any(|entry| entry.kind == EntryKind::CUBIN && entry.suits(sm))
    }

    /// Returns the flat form in one piece.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.for_devices(&[]).encode()
    }

    /// Parses the flat form. It checks that the parts are complete, not their contents.
    ///
    /// # Errors
    /// The reason why the bytes are no valid image.
    pub fn decode(flat: &'a [u8]) -> Result<Self, ModuleImageError> {
        let mut remaining = flat;
        let kind = ModuleImageKind::from_number(u32::from_le_bytes(take(&mut remaining)?))?;
        let count = u32::from_le_bytes(take(&mut remaining)?) as usize;
        let expected = if kind == ModuleImageKind::LinkedWrapper { 1..=MAX_IMAGE_PARTS } else { 1..=1 };
        if !expected.contains(&count) {
            return Err(ModuleImageError::Field { field: "the number of parts", value: count as u64 });
        }
        check_there("the table of parts", count as u64 * 8, remaining.len() as u64)?;
        let (table, mut remaining) = remaining.split_at(count * 8);
        let mut parts = Vec::with_capacity(count);
        for length in table.as_chunks().0 {
            let length = u64::from_le_bytes(*length);
            check_there("a part", length.saturating_add(7) & !7, remaining.len() as u64)?;
            let (padded, after) = remaining.split_at(length.next_multiple_of(8) as usize);
            parts.push(&padded[..length as usize]);
            remaining = after;
        }
        check_limit("what follows the parts", remaining.len() as u64, 0)?;
        Ok(Self { kind, parts })
    }
}

fn take<const N: usize>(remaining: &mut &[u8]) -> Result<[u8; N], ModuleImageError> {
    let (needed, available) = (N as u64, remaining.len() as u64);
    let (field, after) =
        remaining.split_first_chunk().ok_or(ModuleImageError::CutOff { what: "the flat form", needed, available })?;
    *remaining = after;
    Ok(*field)
}

fn whole_container(bytes: &[u8]) -> Result<&[u8], ModuleImageError> {
    let header = bytes.first_chunk().ok_or(ModuleImageError::CutOff {
        what: "a container",
        needed: crate::container::CONTAINER_HEADER_BYTES as u64,
        available: bytes.len() as u64,
    })?;
    let length = crate::container::container_length(header)?;
    slice_of(bytes, "a container", 0, length)
}

fn whole_elf(bytes: &[u8]) -> Result<&[u8], ModuleImageError> {
    let length = elf_length(|offset, length| slice_of(bytes, "a cubin", offset, length))?;
    slice_of(bytes, "a cubin", 0, length)
}

fn slice_of<'a>(bytes: &'a [u8], what: &'static str, offset: u64, length: u64) -> Result<&'a [u8], ModuleImageError> {
    let end = offset.saturating_add(length);
    check_there(what, end, bytes.len() as u64)?;
    Ok(&bytes[offset as usize..end as usize])
}

fn no_ptx(containers: &[Container<'_>], sm: Option<u32>) -> ModuleImageError {
    let entries = containers.iter().flat_map(Container::entries).flatten();
    let mut names: Vec<String> = entries.map(|entry| entry_name(&entry)).collect();
    names.sort();
    names.dedup();
    let hint = if names.is_empty() { String::new() } else { format!(" (it has {})", names.join(", ")) };
    let sm = sm.unwrap_or(0);
    ModuleImageError::NoPtx { major: sm / 10, minor: sm % 10, hint }
}

/// Returns the error for a cubin alone: it is machine code for the architecture in its header.
fn no_ptx_in_cubin(file: &[u8], sm: Option<u32>) -> ModuleImageError {
    let sm = sm.unwrap_or(0);
    let hint = machine_of(file).map_or_else(String::new, |arch| format!(" (it is machine code for {arch})"));
    ModuleImageError::NoPtx { major: sm / 10, minor: sm % 10, hint }
}

/// Returns the architecture in the flags of an ELF header: their second byte since version 8 of the binary interface, their first
/// one before.
fn machine_of(file: &[u8]) -> Option<u8> {
    let at = if *file.get(8)? >= 8 { 49 } else { 48 };
    file.get(at).copied().filter(|arch| *arch > 0)
}

fn entry_name(entry: &crate::FatbinEntry<'_>) -> String {
    match entry.kind {
        crate::EntryKind::PTX => format!("PTX for {}", entry.sm),
        crate::EntryKind::CUBIN => format!("machine code for {}", entry.sm),
        crate::EntryKind::LTO => format!("LTO code for {}", entry.sm),
        other => format!("kind {}", other.0),
    }
}
