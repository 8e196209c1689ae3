//! The regions that a program has mapped of a memory object, and the memory for them.

use std::collections::HashMap;
use std::ops::Range;

use katydid_opencl_sys::Code;
use katydid_wire::opencl::transfer_extent::TransferExtent;

use crate::host::contents::ContentsVersion;
use crate::host::mapped_pages::{MappedPages, Shown};
use crate::host::rows::Rows;

/// The action of an unmap.
#[derive(Debug)]
pub(crate) enum UnmapAction {
    /// Nothing, for a map that was only read.
    Nothing,
    /// Writes the region back, with this form and extent.
    Written(u32, TransferExtent),
    /// The worker handles a region of shared memory; the flag says whether it may have been written.
    Shared(TransferExtent, bool),
    /// The worker handles a region of an image in shared memory; the flag says whether it may have been written.
    InPlace(TransferExtent, bool),
}

/// One mapped region.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) back: UnmapAction,
    pub(crate) region: Rows,
    /// The number of the read that fills it ([`crate::host::pending_reads`]), if no thread has waited for that; else 0.
    pub(crate) read_number: u64,
    /// Held until the unmap; `None` if the memory is the whole object's or the program's own.
    pub(crate) pages: Option<MappedPages>,
    /// What the region shows while only the program changes it; `None` if that is unknown.
    pub(crate) shows: Option<Shown>,
}

/// The mapped regions of an object.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// Maps by address; a region may be mapped several times.
    regions: HashMap<usize, Vec<Map>>,
    /// The whole buffer's memory, so that maps of one byte agree about it.
    whole: Option<MappedPages>,
    /// The address range in that memory that shows a version of the buffer's contents since the last unmap.
    shown: Option<(ContentsVersion, Range<usize>)>,
}

impl Maps {
    /// Returns the number of mapped regions.
    pub(crate) fn count(&self) -> u32 {
        self.regions.values().map(|maps| maps.len() as u32).sum()
    }

    /// Returns the address of the whole buffer's memory.
    pub(crate) fn whole(&mut self, size: u64) -> Result<usize, Code> {
        if self.whole.is_none() {
            self.whole = Some(MappedPages::new(size as usize)?);
        }
        Ok(self.whole.as_ref().map_or(0, |pages| pages.start))
    }

    /// Returns whether a region of the whole buffer's memory shows a version of the contents.
    pub(crate) fn shows(&self, region: &Rows, version: ContentsVersion) -> bool {
        let shown = self.shown.as_ref().filter(|shown| self.regions.is_empty() && version == shown.0);
        shown.is_some_and(|(_, part)| part.start <= region.start && region.start + region.width <= part.end)
    }

    /// Records that an unmapped region shows a version of the contents.
    pub(crate) fn note_unmapped(&mut self, region: &Rows, version: ContentsVersion) {
        self.shown = self.regions.is_empty().then(|| (version, region.start..region.start + region.width));
    }

    /// Adds a mapped region.
    pub(crate) fn add(&mut self, map: Map) {
        self.regions.entry(map.region.start).or_default().push(map);
    }

    /// Removes and returns the region at an address that was mapped last.
    pub(crate) fn take(&mut self, address: usize) -> Option<Map> {
        let maps = self.regions.get_mut(&address)?;
        let map = maps.pop();
        if maps.is_empty() {
            self.regions.remove(&address);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_counted_until_each_is_unmapped() {
        let mut maps = Maps::default();
        let whole = maps.whole(100).unwrap();
        assert_eq!(maps.whole(100), Ok(whole));
        for _ in 0..2 {
            let region = Rows::run(whole, 100);
            maps.add(Map { back: UnmapAction::Nothing, region, read_number: 0, pages: None, shows: None });
        }
        assert_eq!(maps.count(), 2);
        assert!(maps.take(whole).is_some() && maps.take(whole).is_some() && maps.take(whole).is_none());
        assert_eq!(maps.count(), 0);
    }
}
