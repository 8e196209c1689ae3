//! Selects what some devices can use of an image: its containers without machine code for other devices.
//!
//! A driver must do the same with the selection as with the whole image. So only entries that a driver surely skips are left out.
//! A container in which a device finds no code stays complete, so that the driver itself refuses it. A damaged container stays
//! complete too. A container that loses no entry keeps its bytes.

use crate::container::Container;
use crate::entry::{EntryKind, FatbinEntry};
use crate::image::{ModuleImage, ModuleImageKind};

/// Version of the selection rules and of the flat form; knowledge about selections of another version is invalid.
pub const SELECTION_RULES: u32 = 1;
/// Zeros that pad a part to a multiple of 8 bytes.
const ZERO_PADDING: &[u8] = &[0; 8];

/// The selected parts of an image, not copied.
#[derive(Debug)]
pub struct Selection<'a> {
    kind: ModuleImageKind,
    parts: Vec<SelectedPart<'a>>,
}

/// The selection of a part.
#[derive(Debug)]
enum SelectedPart<'a> {
    Whole(&'a [u8]),
    /// A container's header with the new length, and the entries that stay.
    Cut {
        header: Vec<u8>,
        entries: Vec<&'a [u8]>,
    },
}

impl<'a> ModuleImage<'a> {
    /// Selects the image for devices of these architectures (such as 90); without devices, all of it.
    #[must_use]
    pub fn for_devices(&self, devices: &[u32]) -> Selection<'a> {
        let is_whole = devices.is_empty() || matches!(self.kind(), ModuleImageKind::Ptx | ModuleImageKind::Elf);
        let part =
            |part: &&'a [u8]| if is_whole { None } else { cut(part, devices) }.unwrap_or(SelectedPart::Whole(part));
        Selection { kind: self.kind(), parts: self.parts().iter().map(part).collect() }
    }
}

impl Selection<'_> {
    /// Returns the head of the flat form, to be sent before [`Selection::pieces`].
    #[must_use]
    pub fn table(&self) -> Vec<u8> {
        let count = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        let mut table = [(self.kind as u32).to_le_bytes(), count.to_le_bytes()].concat();
        self.parts.iter().for_each(|part| table.extend_from_slice(&(part.length() as u64).to_le_bytes()));
        table
    }

    /// Returns the bytes after the table: parts and the zeros between them, not copied.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(SelectedPart::pieces)
    }

    /// Returns the flat form in one piece.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut flat = self.table();
        self.pieces().for_each(|piece| flat.extend_from_slice(piece));
        flat
    }
}

impl SelectedPart<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Whole(part) => part.len(),
            Self::Cut { header, entries } => header.len() + entries.iter().map(|entry| entry.len()).sum::<usize>(),
        }
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (first, more) = match self {
            Self::Whole(part) => (*part, &[][..]),
            Self::Cut { header, entries } => (&header[..], &entries[..]),
        };
        let padding = &ZERO_PADDING[..self.length().next_multiple_of(8) - self.length()];
        [first].into_iter().chain(more.iter().copied()).chain([padding])
    }
}

/// Removes the entries that none of the devices use from a container; `None` if it stays as it is.
fn cut<'a>(part: &'a [u8], devices: &[u32]) -> Option<SelectedPart<'a>> {
    let container = Container::new(part).ok()?;
    let all_entries = container.entries().collect::<Result<Vec<_>, _>>().ok()?;
    let suitable: Vec<&FatbinEntry<'_>> = all_entries.iter().filter(|entry| !is_for_others(entry, devices)).collect();
    let has_code = |device: &u32| suitable.iter().any(|entry| is_code(entry) && entry.suits(*device));
    if suitable.len() == all_entries.len() || !devices.iter().all(has_code) {
        return None;
    }
    let entries: Vec<&[u8]> = suitable.iter().map(|entry| entry.bytes()).collect();
    let header = container.header_for(entries.iter().map(|entry| entry.len() as u64).sum());
    Some(SelectedPart::Cut { header, entries })
}

/// Returns whether drivers run entries of this kind.
fn is_code(entry: &FatbinEntry<'_>) -> bool {
    matches!(entry.kind, EntryKind::PTX | EntryKind::CUBIN)
}

/// Returns whether no driver uses this entry for any of the devices.
fn is_for_others(entry: &FatbinEntry<'_>, devices: &[u32]) -> bool {
    let takes = |device: &u32| {
        major(entry.sm) == major(*device)
            && (entry.sm <= *device || entry.is_special() || entry.sm == SM_110_FORMER_NAME)
    };
    entry.kind == EntryKind::CUBIN && !devices.iter().any(takes)
}

/// The name of compute capability 11.0 before CUDA 13.
const SM_110_FORMER_NAME: u32 = 101;

fn major(sm: u32) -> u32 {
    if sm == SM_110_FORMER_NAME { 11 } else { sm / 10 }
}
