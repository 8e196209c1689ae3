//! The library uses of each context, in the order of first uses.
//!
//! A driver allocates memory for a library in a context when something of it is first used there. A replay uses it at the
//! same place in the order, so that its variables come back at their addresses. Launches, functions and variables are uses.
//! In the current context, so are parameters and occupancy of a kernel. Setting an attribute or a preference of a kernel on
//! a device is a use in all contexts that exist on the device at that moment. Names, and queries of attributes, are no uses.
//! The memory that a driver takes shows this (580.159.04, H100, 2026-11-26).

use std::collections::BTreeMap;

/// First uses of libraries and first launches of kernels, by context.
#[derive(Debug, Default)]
pub(crate) struct LibraryUse {
    /// Number of the first frame that used a library in a context.
    pub(super) first: BTreeMap<(u32, u32), u64>,
    /// The context of each kernel's last launch, by the kernel's id: launches check it.
    pub(super) launched: Vec<u32>,
    /// The first launch of each kernel in each context.
    pub(super) launches: BTreeMap<(u32, u32), u64>,
}

impl LibraryUse {
    pub(super) fn note(&mut self, library: u32, context: u32, order: u64) {
        self.first.entry((library, context)).or_insert(order);
    }

    /// Returns library, context and number, in the order of the numbers.
    pub(crate) fn in_order(&self) -> Vec<(u32, u32, u64)> {
        let mut all: Vec<_> =
            self.first.iter().map(|((library, context), order)| (*library, *context, *order)).collect();
        all.sort_by_key(|(.., order)| *order);
        all
    }

    /// Returns kernel, context and number of each first launch.
    pub(super) fn launches(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.launches.iter().map(|((kernel, context), order)| (*kernel, *context, *order))
    }

    pub(super) fn end_context(&mut self, context: u32) {
        self.first.retain(|(_, other), _| *other != context);
        self.launches.retain(|(_, other), _| *other != context);
        self.launched.iter_mut().filter(|other| **other == context).for_each(|other| *other = 0);
    }

    pub(super) fn end_library(&mut self, library: u32) {
        self.first.retain(|(other, _), _| *other != library);
    }

    /// Forgets the launches of an id's earlier kernel.
    pub(super) fn forget_kernel(&mut self, kernel: u32) {
        if let Some(context) = self.launched.get_mut(kernel as usize) {
            *context = 0;
        }
        while let Some((&known, _)) = self.launches.range((kernel, 0)..=(kernel, u32::MAX)).next() {
            self.launches.remove(&known);
        }
    }
}
