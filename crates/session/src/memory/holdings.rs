//! Device memory of a session beside the blocks that it allocates: variables of its code, heaps and stacks of its kernels,
//! managed memory.
//!
//! All of it counts against the session's limit, at the call at which a driver would refuse it. The rules:
//!
//! - A module's variables count in its context. A library's count once in every context there is, as drivers load it eagerly.
//! - The heap of device code's `malloc` counts as a whole in a context, from when the program chooses its size or finds a
//!   function of code that allocates.
//! - The stack of all threads, and the buffer of `printf`, count as far as they exceed what a context begins with. A function
//!   with more local memory than that counts as such a stack, from when it is found.
//! - A managed block counts where the program allocates it, wherever its pages are.
//!
//! - A module's machine code counts with it.
//!
//! Code that a driver compiles from PTX, and a context's own memory, do not count.

use std::collections::{BTreeMap, HashMap};

/// Bytes of the stack of a thread in a new context.
const DEFAULT_STACK_BYTES: u64 = 1 << 10;
/// Bytes of the heap of `malloc` in a new context.
pub(super) const DEFAULT_HEAP_BYTES: u64 = 8 << 20;

/// Memory that code takes when it is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CodeNeeds {
    /// Bytes of its variables.
    pub(crate) bytes: u64,
    /// Whether it allocates memory on the device.
    pub(crate) uses_heap: bool,
}

/// A library, and whether one of its kernels was found.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) needs: CodeNeeds,
    pub(super) is_used: bool,
    /// Local bytes of a thread in its largest kernel.
    pub(super) local: u64,
}

/// Charges of a context.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContextCharge {
    /// For the heap of `malloc`.
    pub(super) heap: u64,
    /// For stacks beyond their first size.
    pub(super) stacks: u64,
    /// For the buffer of `printf` beyond its first size.
    pub(super) output: u64,
    /// The first size of that buffer, once the program has chosen another.
    pub(super) first_output: Option<u64>,
    /// Bytes of a thread's stack as the program chose them.
    pub(super) stack: u64,
    /// Local bytes of a thread in the largest function.
    pub(super) local: u64,
}

impl ContextCharge {
    pub(super) fn bytes(&self) -> u64 {
        self.heap.saturating_add(self.stacks).saturating_add(self.output)
    }
}

/// Device memory that modules, libraries, contexts and managed blocks take.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    pub(super) modules: HashMap<u32, CodeNeeds>,
    pub(super) libraries: HashMap<u32, Library>,
    /// Every context except green ones, which share the memory of their primary context.
    pub(super) contexts: BTreeMap<u32, ContextCharge>,
    /// By address: size, and the context with which the block ends; 0: none.
    pub(super) managed: BTreeMap<u64, (u64, u32)>,
}

impl Holdings {
    /// Returns how often a library counts.
    pub(super) fn copies(&self) -> u64 {
        self.contexts.len().max(1) as u64
    }

    /// Returns the bytes that libraries take again in one more context.
    pub(super) fn copy_of_libraries(&self) -> u64 {
        let variables = self.libraries.values().map(|it| it.needs.bytes).fold(0, u64::saturating_add);
        if self.contexts.is_empty() { 0 } else { variables }
    }

    /// Returns the memory for kernels of libraries in a new context on a device with this many resident threads.
    pub(super) fn new_rooms(&self, threads: u64) -> ContextCharge {
        let has_heap = self.libraries.values().any(|it| it.is_used && it.needs.uses_heap);
        let local = self.libraries.values().map(|it| it.local).max().unwrap_or(0);
        let heap = if has_heap { DEFAULT_HEAP_BYTES } else { 0 };
        ContextCharge { heap, stacks: stacks(0, local, threads), local, ..ContextCharge::default() }
    }

    /// Returns whether a managed block begins at the address.
    pub(crate) fn is_managed(&self, address: u64) -> bool {
        self.managed.contains_key(&address)
    }

    /// Returns whether code allocates memory on the device: a module's own, or that of a library.
    pub(super) fn uses_heap(&self, module: u32, library: u32) -> bool {
        let of_module = self.modules.get(&module).is_some_and(|needs| needs.uses_heap);
        of_module || self.libraries.get(&library).is_some_and(|it| it.needs.uses_heap)
    }
}

/// The code of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CodeOrigin {
    Module(u32),
    Library(u32),
}

/// Returns the bytes of all stacks beyond their first size, if a function needs `local` bytes of each.
pub(super) fn stacks(stack: u64, local: u64, threads: u64) -> u64 {
    stack.max(local).saturating_sub(DEFAULT_STACK_BYTES).saturating_mul(threads)
}
