//! The part of a checkpoint that runs while the program is paused: it copies contents to where the program cannot change them.
//!
//! | where they lie | copied to | in a GiB |
//! |---|---|---|
//! | in this process: buffers and shared virtual memory of processors, what was read and not fetched | nowhere: a child keeps the pages ([`FrozenPages`]) | some 25 ms |
//! | on a device with room | memory of that device | as fast as the device copies |
//! | elsewhere, and where there is no child or no room | memory of the worker's | as fast as the driver reads |
//!
//! Without memory for any copy, contents go to the image at once.

#![expect(unsafe_code, reason = "reads mapped memory where there is no room for a copy")]

use std::collections::HashMap;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use katydid_image::{Region, Sink};
use katydid_session_core::{CHUNK_BYTES, ChunkError, Load, Progress, put_each};

use super::area::{Area, DirectRange};
use super::copier::{Copier, DeviceCopy};
use super::copy_memory::CopyMemory;
use super::error::ContentsError;
use super::frozen::{FrozenPages, PrivateMappings, pages};
use super::location::AreaLocation;
use crate::memory::free::free_memory;
use crate::memory::svm::PAGE_BYTES;
use crate::state::Session;

/// Environment variable that names where copies are made, to compare the ways: `process`, `device` or `host`.
const COPIES_VARIABLE: &str = "KATYDID_OPENCL_COPIES";

/// Where copies may be made; memory of the worker is always allowed.
#[derive(Debug, Clone, Copy)]
struct CopyPaths {
    process: bool,
    device: bool,
}

impl CopyPaths {
    fn requested() -> Self {
        let setting = std::env::var(COPIES_VARIABLE).unwrap_or_default();
        let is = |way: &str| setting.is_empty() || setting == way;
        Self { process: is("process"), device: is("device") }
    }
}

/// Where the copy of an area lies; the program cannot change it.
enum AreaCopy {
    /// In the child, at this address.
    Frozen(Arc<FrozenPages>, u64),
    /// In a buffer on the device.
    Device(DeviceCopy),
    /// In memory of the worker.
    Host(CopyMemory),
}

impl AreaCopy {
    /// Fills `out` with the bytes at an offset.
    fn load(&self, offset: u64, out: &mut [u8]) -> Result<(), ChunkError> {
        match self {
            Self::Frozen(frozen, address) => {
                frozen.read(address + offset, out).map_err(|error| ChunkError::Load(error.into()))?;
            }
            Self::Device(copy) => {
                let failed = |code| ChunkError::Load(ContentsError::Queue { code }.into());
                copy.read(offset, out).map_err(failed)?;
            }
            Self::Host(memory) => {
                let start = offset as usize;
                out.copy_from_slice(&memory.bytes()[start..start + out.len()]);
            }
        }
        Ok(())
    }
}

/// Contents that the program cannot change any more.
#[derive(Default)]
pub(crate) struct CapturedContents {
    /// A region without a copy is in the image already.
    regions: Vec<(Region, Option<AreaCopy>)>,
    progress: Arc<Progress>,
}

/// An area to be copied.
struct PendingArea<'a> {
    area: &'a Area,
    copier: Option<&'a Arc<Copier>>,
    direct: Option<DirectRange<'a>>,
    /// Whether there is memory for a copy.
    fits: bool,
}

impl PendingArea<'_> {
    /// Returns the addresses in this process.
    fn range(&self) -> Option<Range<u64>> {
        self.direct.as_ref().map(|direct| direct.address..direct.address + self.area.bytes)
    }
}

impl Session {
    /// Copies all contents. Without memory for a copy, contents go to the image at once.
    ///
    /// # Errors
    ///
    /// The first contents that cannot be saved. The session is unchanged.
    pub(crate) fn capture(&self, sink: &dyn Sink, progress: &Arc<Progress>) -> Result<CapturedContents, ContentsError> {
        let areas = self.areas()?;
        let copiers = self.copiers(&areas)?;
        progress.expect(areas.iter().map(|area| area.bytes).sum());
        let ways = CopyPaths::requested();
        let items = items(&areas, &copiers, ways);
        let frozen = freeze(&items).map(Arc::new);
        let mut copy_budget = self.device_copy_budget(&copiers, ways);
        let mut regions = Vec::new();
        for item in &items {
            let mut region = item.area.region();
            let copy = match (&frozen, &item.direct) {
                (Some(frozen), Some(direct)) if item.fits => Some(AreaCopy::Frozen(Arc::clone(frozen), direct.address)),
                _ if item.fits => Some(item.copy(&mut copy_budget)?),
                _ => {
                    region.chunks = item.put(sink, progress)?;
                    None
                }
            };
            regions.push((region, copy));
        }
        Ok(CapturedContents { regions, progress: Arc::clone(progress) })
    }

    /// Returns how many bytes of device memory copies may take: half of what the session leaves. Other processes may use the
    /// device too.
    fn device_copy_budget(&self, copiers: &HashMap<u32, Arc<Copier>>, ways: CopyPaths) -> u64 {
        let smallest = copiers.values().map(|copier| copier.device_bytes()).min().filter(|_| ways.device);
        smallest.unwrap_or(0).saturating_sub(self.shared.usage.memory()) / 2
    }
}

/// Returns all areas, with their addresses in this process if a child would keep those pages.
fn items<'a>(areas: &'a [Area], copiers: &'a HashMap<u32, Arc<Copier>>, ways: CopyPaths) -> Vec<PendingArea<'a>> {
    let mut copy_budget = free_memory() / 2;
    let item = |area: &'a Area| {
        let copier = copiers.get(&area.context);
        let direct = area.direct_range(copier.map(Arc::as_ref), true).filter(|_| ways.process);
        let fits = area.bytes <= copy_budget;
        copy_budget -= if fits { area.bytes } else { 0 };
        PendingArea { area, copier, direct, fits }
    };
    let mut items: Vec<PendingArea<'a>> = areas.iter().map(item).collect();
    let private = PrivateMappings::read();
    for item in &mut items {
        if item.range().is_some_and(|range| !private.holds(&range)) {
            item.direct = None;
        }
    }
    items
}

/// Makes a child that keeps the areas of this process; `None` if there are none, or the system refuses.
fn freeze(items: &[PendingArea<'_>]) -> Option<FrozenPages> {
    let ranges = |fits| {
        let of = move |item: &&PendingArea<'_>| item.fits == fits;
        items.iter().filter(of).filter_map(PendingArea::range).collect::<Vec<_>>()
    };
    let (frozen_ranges, streamed_ranges) = (ranges(true), ranges(false));
    if frozen_ranges.is_empty() {
        return None;
    }
    let unwanted: Vec<Range<u64>> =
        streamed_ranges.iter().map(|range| pages(range, PAGE_BYTES)).filter(|pages| !pages.is_empty()).collect();
    let frozen = FrozenPages::new(&unwanted).ok()?;
    frozen_ranges.iter().all(|range| frozen.has(range)).then_some(frozen)
}

impl PendingArea<'_> {
    /// Copies the area to its device if `copy_budget` allows, or else to the worker's memory.
    fn copy(&self, copy_budget: &mut u64) -> Result<AreaCopy, ContentsError> {
        let area = self.area;
        let can =
            matches!(area.location, AreaLocation::Buffer(..) | AreaLocation::Image(..)) && area.bytes <= *copy_budget;
        let copy = self.copier.filter(|_| can).map(|copier| DeviceCopy::of(copier, &area.location, area.bytes));
        if let Some(Ok(copy)) = copy {
            *copy_budget -= area.bytes;
            return Ok(AreaCopy::Device(copy));
        }
        let mut memory = CopyMemory::new(area.bytes)?;
        area.read(self.copier.map(Arc::as_ref), &mut memory)?;
        Ok(AreaCopy::Host(memory))
    }

    /// Writes the area to the image now.
    fn put(&self, sink: &dyn Sink, progress: &Progress) -> Result<Vec<katydid_image::ChunkId>, ContentsError> {
        if let Some(direct) = &self.direct {
            let address = direct.address;
            let load = |index: usize, out: &mut [u8]| {
                let from = ptr::with_exposed_provenance::<u8>((address + index as u64 * CHUNK_BYTES) as usize);
                // SAFETY: a chunk of the area, which is mapped, and which no code writes while the program is paused.
                unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
                Ok(())
            };
            return Ok(put_each(&lengths(self.area.bytes), &load, sink, progress)?);
        }
        let mut memory = CopyMemory::new(self.area.bytes)?;
        self.area.read(self.copier.map(Arc::as_ref), &mut memory)?;
        let copy = AreaCopy::Host(memory);
        let load = |index: usize, out: &mut [u8]| copy.load(index as u64 * CHUNK_BYTES, out);
        Ok(put_each(&lengths(self.area.bytes), &load, sink, progress)?)
    }
}

/// Returns the lengths of the chunks of `bytes`.
fn lengths(bytes: u64) -> Vec<usize> {
    (0..bytes.div_ceil(CHUNK_BYTES)).map(|index| CHUNK_BYTES.min(bytes - index * CHUNK_BYTES) as usize).collect()
}

impl CapturedContents {
    /// Returns how many bytes the session holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.regions.iter().map(|(region, _)| region.bytes).sum()
    }

    /// Writes everything to the image; runs on a thread of its own while the program goes on.
    ///
    /// # Errors
    ///
    /// The first error of a read or a write.
    pub(crate) fn write(&mut self, sink: &dyn Sink) -> Result<Vec<Region>, ContentsError> {
        let (mut all, mut locations) = (Vec::new(), Vec::new());
        for (region, copy) in &self.regions {
            let Some(copy) = copy else { continue };
            for (index, length) in lengths(region.bytes).into_iter().enumerate() {
                all.push(length);
                locations.push((copy, index as u64 * CHUNK_BYTES));
            }
        }
        let load: &Load<'_> = &|index, out| locations[index].0.load(locations[index].1, out);
        let mut names = put_each(&all, load, sink, &self.progress)?.into_iter();
        drop(locations);
        let named = |(mut region, copy): (Region, Option<AreaCopy>)| {
            if copy.is_some() {
                region.chunks = names.by_ref().take(region.bytes.div_ceil(CHUNK_BYTES) as usize).collect();
            }
            region
        };
        Ok(self.regions.drain(..).map(named).collect())
    }
}
