//! Has the driver put variables where they were, when it would put them elsewhere.
//!
//! NVIDIA's driver has one stock of addresses a process, from which variables come in whole blocks of 2 MiB, in the first hole that
//! fits; what it reserves without a wish comes from the same holes, and takes no memory (580.159.04, H100, 2026-11-26). Where code
//! is loaded that needs other blocks beside, it has these first. So the code is loaded once to see where its variables would come
//! to lie, as many holes are filled as there are too many before the right one, and it is loaded to stay. Wanted blocks are held
//! from the beginning, lest something else be put there.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use katydid_cuda_sys::{CUdeviceptr, CUresult};
use katydid_driver::Driver;
use katydid_fatbin::OwnedImage;
use katydid_keep::{Record, Step};
use katydid_wire::codec::Message as _;
use katydid_wire::message::{kdKernelFunction, kdLibraryKernel, kdLibraryModule, kdModuleLoad};

use super::Kind;
use super::rebuild::used;
use crate::ask::ask;
use crate::handlers::image_of;
use crate::session::Session;
use crate::snapshot::{Found, Loaded, address_of};

/// Bytes of a block.
const BLOCK: u64 = 2 << 20;
/// Blocks that are looked through for a wanted one: 8 GiB of addresses.
const MOST: usize = 4096;
/// How often code is loaded to see where its variables would lie.
const TRIES: u32 = 8;

/// The blocks in which a variable lay.
fn blocks(variable: &Found) -> impl Iterator<Item = CUdeviceptr> + use<> {
    let last = variable.address.saturating_add(variable.size.max(1) - 1) / BLOCK;
    (variable.address / BLOCK..=last).take(MOST).map(|block| block * BLOCK)
}

/// Which of some variables the driver tells of, and where it would lie.
type Probe<'a> = &'a dyn Fn(&[&Found]) -> Option<(usize, CUdeviceptr)>;

/// A stock of addresses.
pub(crate) trait Holes {
    /// The first free block.
    fn take(&self) -> Option<CUdeviceptr>;
    /// It is free again.
    fn give_back(&self, block: CUdeviceptr);
}

/// That of a driver.
pub(crate) struct OfDriver(Arc<Driver>);

impl fmt::Debug for OfDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfDriver")
    }
}

impl Holes for OfDriver {
    fn take(&self) -> Option<CUdeviceptr> {
        // SAFETY: asks for addresses only; the output is a local.
        ask(|out| unsafe { self.0.cuMemAddressReserve(out, BLOCK as usize, BLOCK as usize, 0, 0) }).ok()
    }

    fn give_back(&self, block: CUdeviceptr) {
        // SAFETY: taken by `take`, and nothing was mapped there. One that is not freed is lost to this worker.
        let _: CUresult = unsafe { self.0.cuMemAddressFree(block, BLOCK as usize) };
    }
}

/// Where variables lay, and which of their blocks are held for them.
#[derive(Debug)]
pub(crate) struct Places<H: Holes = OfDriver> {
    holes: H,
    /// By object: a module's id, or a library's with the context above 32 bits.
    wanted: BTreeMap<u64, Vec<Found>>,
    held: BTreeSet<CUdeviceptr>,
    /// The number of the frame that loads each module; ghosts before it had the same id.
    last: BTreeMap<u64, u64>,
}

impl<H: Holes> Places<H> {
    /// Holds the blocks of these variables, as far as they are free.
    fn hold(holes: H, wanted: BTreeMap<u64, Vec<Found>>) -> Self {
        let mut places = Self { holes, wanted, held: BTreeSet::new(), last: BTreeMap::new() };
        let all = places.wanted.values().flatten().flat_map(blocks).collect();
        let taken = places.reach(&all);
        let (held, others): (BTreeSet<_>, BTreeSet<_>) = taken.into_iter().partition(|block| all.contains(block));
        places.held = held;
        places.give_back(others);
        places
    }

    /// Takes blocks until all of `wanted` are among them, or there are too many; in the order in which they came.
    fn reach(&self, wanted: &BTreeSet<CUdeviceptr>) -> Vec<CUdeviceptr> {
        let (mut taken, mut left) = (Vec::new(), wanted.len());
        while left > 0 && taken.len() < MOST {
            let Some(block) = self.holes.take() else { break };
            left -= usize::from(wanted.contains(&block));
            taken.push(block);
        }
        taken
    }

    /// Fills the holes by which the variables of `object` would come to lie elsewhere, until what is returned is given back.
    /// `probe` tells the address that one of these would have, the first of which that can be told, as static ones cannot. Nothing
    /// is done where no block is held: what came before has them all.
    fn settle(&mut self, object: u64, probe: Probe<'_>) -> Vec<CUdeviceptr> {
        let mut filled = Vec::new();
        let variables = self.wanted.remove(&object).unwrap_or_default();
        let own: BTreeSet<_> = variables.iter().flat_map(blocks).filter(|block| self.held.contains(block)).collect();
        let telling: Vec<_> = variables.iter().filter(|it| blocks(it).any(|block| own.contains(&block))).collect();
        self.held.retain(|block| !own.contains(block));
        self.give_back(own);
        if telling.is_empty() {
            return filled;
        }
        for _ in 0..TRIES {
            let told = probe(&telling).map(|(which, now)| (now, telling[which].address));
            let Some((now, was)) = told.filter(|(now, was)| now != was) else { break };
            match self.nearer(now, was) {
                blocks if blocks.is_empty() => break,
                blocks => filled.extend(blocks),
            }
        }
        filled
    }

    /// Fills as many holes as lie between where a variable comes to lie `now` and where it `was`: behind as many as are taken
    /// before it is placed. None where that leads nowhere.
    fn nearer(&self, now: CUdeviceptr, was: CUdeviceptr) -> Vec<CUdeviceptr> {
        let (now, was) = (now / BLOCK * BLOCK, was / BLOCK * BLOCK);
        let mut taken = self.reach(&BTreeSet::from([now, was]));
        let place = |block| taken.iter().position(|one| *one == block);
        let between = place(was).zip(place(now)).map_or(0, |(was, now)| was.saturating_sub(now));
        self.give_back(taken.split_off(between));
        taken
    }

    /// What will be replayed, in its order.
    pub(super) fn expect(&mut self, records: &[Record]) {
        let loads = records.iter().filter(|record| (record.step, record.opcode) == (Step::Frame, kdModuleLoad::OPCODE));
        self.last = loads.filter_map(|record| Some((word(record, 0)?.into(), record.order))).collect();
    }

    fn give_back<B: IntoIterator<Item = CUdeviceptr>>(&self, blocks: B) {
        blocks.into_iter().for_each(|block| self.holes.give_back(block));
    }
}

impl<H: Holes> Drop for Places<H> {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.give_back(held);
    }
}

/// Code that a record loads.
struct Loads {
    object: u64,
    /// None: a module, whose image comes with the record.
    library: Option<u32>,
}

impl Session {
    /// Has the rebuild put variables where they were, by object. Software devices put them there anyhow, or never.
    pub(crate) fn insist(&mut self, variables: BTreeMap<u64, Vec<Found>>) {
        let driver = Arc::clone(&self.shared.driver);
        self.replay.places = (!driver.is_soft()).then(|| Places::hold(OfDriver(driver), variables));
    }

    /// Fills holes so that what `record` loads will have its variables where they were. What is returned is given back when it
    /// is loaded.
    pub(super) fn make_place(
        &mut self,
        record: &Record,
        images: &mut dyn FnMut(u32) -> Option<Vec<u8>>,
    ) -> Vec<CUdeviceptr> {
        let Some(places) = &self.replay.places else { return Vec::new() };
        let is_ghost = |it: &Loads| it.library.is_none() && places.last.get(&it.object) != Some(&record.order);
        let Some(loads) = self.loads(record).filter(|it| !is_ghost(it)) else { return Vec::new() };
        let image = match loads.library {
            Some(library) => self.journal.image(Kind::Library, library),
            None => record.image.and_then(images).and_then(|flat| image_of(&flat).ok()).map(Arc::new),
        };
        let is_there = self.enter_for(&self.head_of(record)).is_ok();
        let Some(image) = image.filter(|_| is_there) else { return Vec::new() };
        let Some(mut places) = self.replay.places.take() else { return Vec::new() };
        let filled =
            places.settle(loads.object, &|variables| probe(self.driver(), loads.library.is_some(), &image, variables));
        self.replay.places = Some(places);
        filled
    }

    /// Gives back what [`Session::make_place`] filled.
    pub(super) fn end_place(&self, filled: Vec<CUdeviceptr>) {
        if let Some(places) = &self.replay.places {
            places.give_back(filled);
        }
    }

    fn loads(&self, record: &Record) -> Option<Loads> {
        let library = match (record.step, record.opcode) {
            (Step::Frame, kdModuleLoad::OPCODE) => {
                return Some(Loads { object: word(record, 0)?.into(), library: None });
            }
            (Step::Use, _) => used(record),
            (Step::Launch, _) => self.journal.library_of(used(record)),
            // What a kernel takes is asked for with it, which loads the library.
            (Step::Frame, kdLibraryKernel::OPCODE | kdLibraryModule::OPCODE) => word(record, 4)?,
            (Step::Frame, kdKernelFunction::OPCODE) => self.journal.library_of(word(record, 4)?),
            _ => return None,
        };
        let context = if record.context == 0 { self.current } else { record.context };
        Some(Loads { object: u64::from(library) | u64::from(context) << 32, library: Some(library) })
    }
}

/// Four bytes of a record's payload.
fn word(record: &Record, at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*record.payload.get(at..)?.first_chunk()?))
}

/// Where the first of `variables` that can be told would lie if `image` were loaded in the current context, which it is for a moment;
/// and which one that is.
fn probe(driver: &Driver, is_library: bool, image: &OwnedImage, variables: &[&Found]) -> Option<(usize, CUdeviceptr)> {
    let loaded = load(driver, is_library, image).ok()?;
    let told = |it: &Found| Some(address_of(driver, loaded, &it.name).ok()?.0);
    let first = variables.iter().enumerate().find_map(|(which, it)| Some((which, told(it)?)));
    // SAFETY: nobody else knows it.
    let _: CUresult = unsafe {
        match loaded {
            Loaded::Module(module) => driver.cuModuleUnload(module),
            Loaded::Library(library) => driver.cuLibraryUnload(library),
        }
    };
    first
}

fn load(driver: &Driver, is_library: bool, image: &OwnedImage) -> Result<Loaded, CUresult> {
    let code = image.as_ptr().cast();
    // SAFETY: the image is whole and outlives what is made of it, there are no options, and the outputs are locals.
    unsafe {
        if is_library {
            let (ids, values) = (ptr::null_mut(), ptr::null_mut());
            let (options, choices) = (ptr::null_mut(), ptr::null_mut());
            let load = |out| driver.cuLibraryLoadData(out, code, ids, values, 0, options, choices, 0);
            return ask(load).map(Loaded::Library);
        }
        ask(|out| driver.cuModuleLoadData(out, code)).map(Loaded::Module)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Blocks from 1 on, the lowest first.
    #[derive(Debug)]
    struct Stock {
        taken: RefCell<BTreeSet<CUdeviceptr>>,
    }

    impl Stock {
        fn with(taken: impl IntoIterator<Item = u64>) -> Self {
            Self { taken: RefCell::new(taken.into_iter().map(|block| block * BLOCK).collect()) }
        }

        fn blocks(&self) -> Vec<u64> {
            self.taken.borrow().iter().map(|block| block / BLOCK).collect()
        }

        /// Where a variable would lie of code that has `before` blocks first.
        fn place(&self, before: usize) -> Option<CUdeviceptr> {
            let taken: Vec<_> = (0..=before).filter_map(|_| Holes::take(&self)).collect();
            taken.iter().for_each(|block| Holes::give_back(&self, *block));
            taken.last().copied()
        }
    }

    impl Holes for &Stock {
        fn take(&self) -> Option<CUdeviceptr> {
            let mut taken = self.taken.borrow_mut();
            let block = (1..10_000).map(|block| block * BLOCK).find(|block| !taken.contains(block))?;
            taken.insert(block);
            Some(block)
        }

        fn give_back(&self, block: CUdeviceptr) {
            assert!(self.taken.borrow_mut().remove(&block), "{block:#x} was not taken");
        }
    }

    fn found(name: &str, address: u64, size: u64) -> Found {
        Found { name: name.to_owned(), address, size }
    }

    #[test]
    fn variables_come_to_lie_where_they_were() {
        for before in [0, 1, 3] {
            let stock = Stock::with([2]);
            let of_7 = vec![found("static", 8 * BLOCK, 4), found("v7", 8 * BLOCK + 4, 4)];
            let wanted = [(7, of_7), (9, vec![found("v9", 11 * BLOCK - 4, 8)])];
            let mut places = Places::hold(&stock, wanted.into());
            assert_eq!(stock.blocks(), [2, 8, 10, 11], "held, and nothing else");
            let probes = Cell::new(0);
            let filled = places.settle(7, &|variables| {
                probes.set(probes.get() + 1);
                let told = variables.iter().position(|it| it.name == "v7")?;
                Some((told, stock.place(before)? + 4))
            });
            assert_eq!((stock.place(before), probes.get()), (Some(8 * BLOCK), 2), "{before} blocks before");
            places.give_back(filled);
            assert_eq!(stock.blocks(), [2, 10, 11]);
            drop(places);
            assert_eq!(stock.blocks(), [2], "what nobody came for is free again");
        }
    }

    #[test]
    fn what_comes_to_lie_right_or_nowhere_fills_nothing() {
        let stock = Stock::with([4]);
        let variables = [(1, 4 * BLOCK), (2, BLOCK), (3, u64::MAX), (5, 2 * BLOCK)]
            .map(|(object, at)| (object, vec![found("v", at, 8)]));
        let mut places = Places::hold(&stock, variables.into());
        assert_eq!(stock.blocks(), [1, 2, 4]);
        assert_eq!(places.settle(1, &|_| None), [0; 0], "somebody has its block");
        assert_eq!(places.settle(2, &|_| Some((0, stock.place(0)?))), [0; 0], "there anyhow");
        assert_eq!(places.settle(3, &|_| None), [0; 0], "out of reach");
        assert_eq!(places.settle(4, &|_| None), [0; 0], "nobody knows of it");
        assert_eq!(places.settle(5, &|_| Some((0, stock.place(4)?))), [0; 0], "never so near");
        assert_eq!(stock.blocks(), [4]);
    }
}
