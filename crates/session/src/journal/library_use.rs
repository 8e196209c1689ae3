//! Which library is used in which context, in the order in which that began.
//!
//! A driver gives a library memory in a context when something of it is first used there. A replay uses it at the same
//! place in the order, so that its variables come back at their addresses. What is a use (580.159.04, H100, 2026-11-26, by the
//! memory that it takes): launches, functions, variables, and in the current context also parameters and occupancy of a kernel;
//! an attribute or a preference that is set for a kernel on a device, in all contexts that there are on it by then. Names, and
//! attributes that are asked for, are none.

use std::collections::BTreeMap;

use katydid_wire::codec::Message as _;
use katydid_wire::message::{kdKernelFunction, kdLibraryKernel, kdLibraryModule};

use super::{Frame, Journal, Kind};

/// All uses.
#[derive(Debug, Default)]
pub(crate) struct LibraryUse {
    /// Number of the first frame that used a library in a context.
    first: BTreeMap<(u32, u32), u64>,
    /// The context in which each kernel was launched last, by its id: what a launch looks at.
    launched: Vec<u32>,
    /// The first launch of each kernel in each context.
    launches: BTreeMap<(u32, u32), u64>,
}

impl LibraryUse {
    pub(super) fn note(&mut self, library: u32, context: u32, order: u64) {
        self.first.entry((library, context)).or_insert(order);
    }

    /// Library, context and number, in the order of the numbers.
    pub(crate) fn in_order(&self) -> Vec<(u32, u32, u64)> {
        let mut all: Vec<_> =
            self.first.iter().map(|((library, context), order)| (*library, *context, *order)).collect();
        all.sort_by_key(|(.., order)| *order);
        all
    }

    /// Kernel, context and number of each first launch.
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

    /// A new kernel has the id.
    fn forget_kernel(&mut self, kernel: u32) {
        if let Some(context) = self.launched.get_mut(kernel as usize) {
            *context = 0;
        }
        while let Some((&known, _)) = self.launches.range((kernel, 0)..=(kernel, u32::MAX)).next() {
            self.launches.remove(&known);
        }
    }
}

impl Journal {
    /// What was just made uses a library.
    pub(super) fn note_use(&mut self, kind: Kind, made: &Frame) {
        let library = match (kind, made.opcode) {
            (Kind::Module, kdLibraryModule::OPCODE) => made.word(4),
            (Kind::Function, kdKernelFunction::OPCODE) => self.library_of(made.word(4)),
            (Kind::Kernel, _) => return self.uses.forget_kernel(made.word(0)),
            _ => return,
        };
        self.uses.note(library, made.context, made.order);
    }

    /// The library of a kernel; 0 for none.
    fn library_of(&self, kernel: u32) -> u32 {
        let entry = self.get(Kind::Kernel, u64::from(kernel));
        entry.and_then(|entry| Some(kdLibraryKernel::decode(entry.made.payload()).ok()?.library)).unwrap_or(0)
    }

    /// Whether the library of a kernel is in use in a context.
    pub(crate) fn is_used(&self, kernel: u32, context: u32) -> bool {
        self.uses.first.contains_key(&(self.library_of(kernel), context))
    }

    /// The driver is asked about a kernel in a context, which loads its library there.
    pub(crate) fn used(&mut self, kernel: u32, context: u32, order: u64) {
        let library = if self.is_off { 0 } else { self.library_of(kernel) };
        if library != 0 {
            self.uses.note(library, context, order);
        }
    }

    /// A kernel is launched in a context. All but the first launch cost one look.
    pub(crate) fn launched(&mut self, kernel: u32, context: u32, order: u64) {
        let index = kernel as usize;
        if kernel == 0 || self.is_off || self.uses.launched.get(index) == Some(&context) {
            return;
        }
        let library = self.library_of(kernel);
        if library == 0 {
            return;
        }
        if index >= self.uses.launched.len() {
            self.uses.launched.resize(index + 1, 0);
        }
        self.uses.launched[index] = context;
        self.uses.launches.entry((kernel, context)).or_insert(order);
        self.uses.note(library, context, order);
    }
}
