//! What a program has mapped of a memory object, and the memory that was lent to it for that.

use std::collections::HashMap;
use std::ops::Range;

use katydid_opencl_sys::Code;
use katydid_wire::opencl::transfer_extent::TransferExtent;

use crate::host::contents::ContentsVersion;
use crate::host::mapped_pages::{MappedPages, Shown};
use crate::host::rows::Rows;

/// What an unmap does.
#[derive(Debug)]
pub(crate) enum UnmapAction {
    /// Nothing, of a map for reading.
    Nothing,
    /// The form and the extent are written from the region.
    Written(u32, TransferExtent),
    /// The worker does what there is to be done for a region of memory that it has too, which may have been written.
    Shared(TransferExtent, bool),
    /// The worker does what there is to be done for a region of an image in memory that it has too.
    InPlace(TransferExtent, bool),
}

/// One region that is mapped.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) back: UnmapAction,
    pub(crate) region: Rows,
    /// The number of the read that fills it ([`crate::host::pending_reads`]), if no thread has waited for that; else 0.
    pub(crate) read_number: u64,
    /// Kept until it is unmapped; none where the memory is the whole object's or the program's own.
    pub(crate) pages: Option<MappedPages>,
    /// What the region shows of the object while only the program changes it; none if that is not known.
    pub(crate) shows: Option<Shown>,
}

/// What is mapped of an object.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// By address; a region may be mapped again.
    regions: HashMap<usize, Vec<Map>>,
    /// The whole buffer's memory, so that maps of one byte agree about it.
    whole: Option<MappedPages>,
    /// The part of that memory, by addresses, that shows the buffer's contents of a state since the last map was unmapped.
    shown: Option<(ContentsVersion, Range<usize>)>,
}

impl Maps {
    /// Regions that are mapped.
    pub(crate) fn count(&self) -> u32 {
        self.regions.values().map(|maps| maps.len() as u32).sum()
    }

    /// The address of the whole buffer's memory.
    pub(crate) fn whole(&mut self, size: u64) -> Result<usize, Code> {
        if self.whole.is_none() {
            self.whole = Some(MappedPages::new(size as usize)?);
        }
        Ok(self.whole.as_ref().map_or(0, |pages| pages.start))
    }

    /// Whether a region of the whole buffer's memory shows the contents of a state.
    pub(crate) fn shows(&self, region: &Rows, version: ContentsVersion) -> bool {
        let shown = self.shown.as_ref().filter(|shown| self.regions.is_empty() && version == shown.0);
        shown.is_some_and(|(_, part)| part.start <= region.start && region.start + region.width <= part.end)
    }

    /// Notes that a region of it does, which was unmapped.
    pub(crate) fn note_unmapped(&mut self, region: &Rows, version: ContentsVersion) {
        self.shown = self.regions.is_empty().then(|| (version, region.start..region.start + region.width));
    }

    /// Notes a region that was mapped.
    pub(crate) fn add(&mut self, map: Map) {
        self.regions.entry(map.region.start).or_default().push(map);
    }

    /// The region at an address that was mapped last, which is mapped no more.
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
