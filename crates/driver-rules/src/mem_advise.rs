//! A program's advice on ranges of managed memory, by pages: whether they are mostly read, their preferred location, their
//! users, their last prefetch.
//!
//! Only the caller knows whether a range is managed memory at all. Codes are those of driver 580.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUmemLocation, CUresult, advice, location_type, range_attribute as id};

/// The result of every function here.
type Outcome<T = ()> = Result<T, CUresult>;

/// Bytes of a page: advice holds for whole pages.
pub const PAGE_BYTES: u64 = 4096;

/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`: ordinals of no device.
const CPU_ORDINAL: i32 = -1;
const INVALID_ORDINAL: i32 = -2;

/// A location of memory, as the program named it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdviceTarget {
    kind: u32,
    id: i32,
}

impl AdviceTarget {
    const NONE: Self = Self { kind: location_type::NONE, id: INVALID_ORDINAL };
    const HOST: Self = Self { kind: location_type::HOST, id: CPU_ORDINAL };

    /// Returns the target of a device's ordinal, or of the host for -1.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for an ordinal beyond `devices` devices.
    pub fn of_ordinal(ordinal: i32, devices: usize) -> Outcome<Self> {
        if ordinal == CPU_ORDINAL {
            return Ok(Self::HOST);
        }
        let is_device = usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < devices);
        if is_device {
            Ok(Self { kind: location_type::DEVICE, id: ordinal })
        } else {
            Err(CUresult::ERROR_INVALID_DEVICE)
        }
    }

    /// Returns the target of a location. The machine counts as one node, number 0.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for an invalid device, `INVALID_VALUE` for an invalid location.
    pub fn of_location(location: CUmemLocation, devices: usize) -> Outcome<Self> {
        match location.type_ {
            location_type::DEVICE if location.id < 0 => Err(CUresult::ERROR_INVALID_DEVICE),
            location_type::DEVICE => Self::of_ordinal(location.id, devices),
            location_type::HOST => Ok(Self::HOST),
            location_type::HOST_NUMA if location.id == 0 => Ok(Self { kind: location.type_, id: 0 }),
            location_type::HOST_NUMA_CURRENT => Ok(Self { kind: location.type_, id: 0 }),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Returns the number in the older attributes: a device, -1 for any location of the host, -2 for none.
    fn ordinal(self) -> i32 {
        match self.kind {
            location_type::DEVICE => self.id,
            location_type::NONE => INVALID_ORDINAL,
            _ => CPU_ORDINAL,
        }
    }
}

/// A piece of advice for a range, as `cuMemAdvise` takes it.
#[derive(Clone, Copy, Debug)]
pub enum Advice {
    /// Mostly read, or not.
    ReadMostly(bool),
    /// Preferred location of the range; none: no preference.
    Preferred(Option<AdviceTarget>),
    /// Used from that target, or not.
    Accessed(AdviceTarget, bool),
}

impl Advice {
    /// Makes advice with an ordinal, which is ignored where no location is needed.
    ///
    /// # Errors
    /// The driver's code for unknown advice or an invalid device.
    pub fn with_ordinal(kind: u32, ordinal: i32, devices: usize) -> Outcome<Self> {
        Self::new(kind, || AdviceTarget::of_ordinal(ordinal, devices))
    }

    /// Makes advice with a location, whose type must always be valid. Only devices and the host as a whole access memory. A
    /// preferred node of the host has no effect, as measured on a GPU.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn with_location(kind: u32, location: CUmemLocation, devices: usize) -> Outcome<Self> {
        let kinds = location_type::DEVICE..=location_type::HOST_NUMA_CURRENT;
        if !kinds.contains(&location.type_) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let target = || AdviceTarget::of_location(location, devices).map_err(|_| CUresult::ERROR_INVALID_VALUE);
        let advice = Self::new(kind, target)?;
        let is_node = location.type_ >= location_type::HOST_NUMA;
        match advice {
            Self::Accessed(..) if is_node => Err(CUresult::ERROR_INVALID_VALUE),
            Self::Preferred(Some(_)) if is_node => Ok(Self::Preferred(None)),
            advice => Ok(advice),
        }
    }

    fn new(kind: u32, target: impl FnOnce() -> Outcome<AdviceTarget>) -> Outcome<Self> {
        Ok(match kind {
            advice::SET_READ_MOSTLY | advice::UNSET_READ_MOSTLY => Self::ReadMostly(kind == advice::SET_READ_MOSTLY),
            advice::SET_PREFERRED_LOCATION => Self::Preferred(Some(target()?)),
            advice::UNSET_PREFERRED_LOCATION => Self::Preferred(None),
            advice::SET_ACCESSED_BY | advice::UNSET_ACCESSED_BY => {
                Self::Accessed(target()?, kind == advice::SET_ACCESSED_BY)
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        })
    }
}

/// The advice on a run of pages.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PageAdvice {
    read_mostly: bool,
    preferred: AdviceTarget,
    accessed_by: Vec<AdviceTarget>,
    prefetched: AdviceTarget,
}

impl Default for PageAdvice {
    fn default() -> Self {
        Self {
            read_mostly: false,
            preferred: AdviceTarget::NONE,
            accessed_by: Vec::new(),
            prefetched: AdviceTarget::NONE,
        }
    }
}

/// Runs of pages, by first address: end and advice. They do not overlap; pages outside of them have no advice.
type Runs = BTreeMap<u64, (u64, PageAdvice)>;

/// The advice on all managed memory of a process.
#[derive(Debug, Default)]
pub struct Book(Mutex<Runs>);

/// Returns first address and end of a range's pages.
fn pages(start: u64, size: u64) -> (u64, u64) {
    (start / PAGE_BYTES * PAGE_BYTES, (start + size).next_multiple_of(PAGE_BYTES))
}

/// Applies `change` to all pages of `start..end`.
fn change(runs: &mut Runs, start: u64, end: u64, change: impl Fn(&mut PageAdvice)) {
    split(runs, start);
    split(runs, end);
    let mut at = start;
    while at < end {
        let next = runs.range(at..end).next().map(|(first, (last, _))| (*first, *last));
        let (first, last) = next.unwrap_or((end, end));
        if at < first {
            let mut page_advice = PageAdvice::default();
            change(&mut page_advice);
            runs.insert(at, (first, page_advice));
        }
        if let Some((_, page_advice)) = runs.get_mut(&first).filter(|_| first < end) {
            change(page_advice);
        }
        at = last.max(first);
    }
}

/// Splits the run that crosses `at`, if there is one.
fn split(runs: &mut Runs, at: u64) {
    let Some((&start, (end, page_advice))) = runs.range(..at).next_back() else { return };
    if *end > at {
        let (end, page_advice) = (*end, page_advice.clone());
        runs.insert(start, (at, page_advice.clone()));
        runs.insert(at, (end, page_advice));
    }
}

/// Returns the advice on all pages of a range, run by run.
fn over(runs: &Runs, start: u64, end: u64) -> Vec<PageAdvice> {
    let touching = runs.range(..end).filter(|(_, (last, _))| *last > start);
    let mut covered = 0;
    let mut advice_list: Vec<PageAdvice> = Vec::new();
    for (first, (last, page_advice)) in touching {
        covered += (*last).min(end) - (*first).max(start);
        advice_list.push(page_advice.clone());
    }
    if covered < end - start {
        advice_list.push(PageAdvice::default());
    }
    advice_list
}

impl Book {
    /// Creates a book without advice.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores advice for a range.
    pub fn advise(&self, start: u64, size: u64, advice: Advice) {
        let (start, end) = pages(start, size);
        change(&mut self.runs(), start, end, |known| match advice {
            Advice::ReadMostly(set) => known.read_mostly = set,
            Advice::Preferred(target) => known.preferred = target.unwrap_or(AdviceTarget::NONE),
            Advice::Accessed(target, set) => {
                known.accessed_by.retain(|other| *other != target);
                if set {
                    known.accessed_by.push(target);
                }
            }
        });
    }

    /// Stores the target of a range's last prefetch.
    pub fn prefetch(&self, start: u64, size: u64, target: AdviceTarget) {
        let (start, end) = pages(start, size);
        change(&mut self.runs(), start, end, |advice| advice.prefetched = target);
    }

    /// Forgets the advice on freed memory.
    pub fn forget(&self, start: u64, size: u64) {
        let (start, end) = pages(start, size);
        let mut runs = self.runs();
        split(&mut runs, start);
        split(&mut runs, end);
        runs.retain(|first, _| *first < start || *first >= end);
    }

    /// Returns the numbers that answer an attribute of a range, at most `capacity` of them.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown attribute, or an invalid capacity.
    pub fn attribute(&self, start: u64, size: u64, attribute: u32, capacity: usize) -> Outcome<Vec<i32>> {
        let (start, end) = pages(start, size);
        let advice_list = over(&self.runs(), start, end);
        let preferred = common(advice_list.iter().map(|advice| advice.preferred));
        let prefetched = common(advice_list.iter().map(|advice| advice.prefetched));
        let single = |value: i32| if capacity == 1 { Ok(vec![value]) } else { Err(CUresult::ERROR_INVALID_VALUE) };
        match attribute {
            id::READ_MOSTLY => single(i32::from(advice_list.iter().all(|advice| advice.read_mostly))),
            id::PREFERRED_LOCATION => single(preferred.ordinal()),
            id::LAST_PREFETCH_LOCATION => single(prefetched.ordinal()),
            id::PREFERRED_LOCATION_TYPE => single(preferred.kind.cast_signed()),
            id::PREFERRED_LOCATION_ID => single(preferred.id),
            id::LAST_PREFETCH_LOCATION_TYPE => single(prefetched.kind.cast_signed()),
            id::LAST_PREFETCH_LOCATION_ID => single(prefetched.id),
            id::ACCESSED_BY if capacity > 0 => Ok(accessors(&advice_list, capacity)),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

/// Returns the ordinals of those that use all of these pages, padded to `capacity` with ordinals of no device.
fn accessors(advice_list: &[PageAdvice], capacity: usize) -> Vec<i32> {
    let first = advice_list.first().map(|advice| advice.accessed_by.as_slice()).unwrap_or_default();
    let everywhere = |target: &&AdviceTarget| advice_list.iter().all(|advice| advice.accessed_by.contains(*target));
    let mut ordinals: Vec<i32> = first.iter().filter(everywhere).map(|target| target.ordinal()).collect();
    ordinals.resize(capacity, INVALID_ORDINAL);
    ordinals
}

/// Returns the target that all pages agree on, or none.
fn common(mut targets: impl Iterator<Item = AdviceTarget>) -> AdviceTarget {
    let first = targets.next().unwrap_or(AdviceTarget::NONE);
    if targets.all(|other| other == first) { first } else { AdviceTarget::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: AdviceTarget = AdviceTarget { kind: location_type::DEVICE, id: 0 };

    #[test]
    fn advice_for_a_part_does_not_cover_the_whole() {
        let mut runs = Runs::new();
        change(&mut runs, 0x2000, 0x4000, |advice| advice.read_mostly = true);
        change(&mut runs, 0x3000, 0x6000, |advice| advice.preferred = DEVICE);
        let read_mostly = |start, end| over(&runs, start, end).iter().all(|advice| advice.read_mostly);
        assert!(read_mostly(0x2000, 0x4000) && !read_mostly(0x2000, 0x5000) && !read_mostly(0x1000, 0x3000));
        let preferred = |start, end| common(over(&runs, start, end).iter().map(|advice| advice.preferred));
        assert_eq!((preferred(0x3000, 0x6000), preferred(0x2000, 0x6000)), (DEVICE, AdviceTarget::NONE));
        assert_eq!(preferred(0x8000, 0x9000), AdviceTarget::NONE);
    }

    #[test]
    fn advice_checks_its_location_only_where_it_has_one() {
        let code = |kind, ordinal| Advice::with_ordinal(kind, ordinal, 1).err();
        assert_eq!((code(1, 99), code(4, 99), code(3, -1), code(5, 0)), (None, None, None, None));
        assert_eq!([code(3, 99), code(5, -2), code(6, 99)], [Some(CUresult::ERROR_INVALID_DEVICE); 3]);
        assert_eq!([code(0, 0), code(7, 0)], [Some(CUresult::ERROR_INVALID_VALUE); 2]);
        let code = |kind, type_, id| Advice::with_location(kind, CUmemLocation { type_, id }, 1).err();
        assert_eq!((code(3, 3, 0), code(5, 2, 5), code(1, 3, 1)), (None, None, None));
        let refused = [code(1, 0, 0), code(3, 3, 1), code(5, 3, 0), code(6, 4, 0), code(3, 1, 99), code(2, 5, 0)];
        assert_eq!(refused, [Some(CUresult::ERROR_INVALID_VALUE); 6]);
    }
}
