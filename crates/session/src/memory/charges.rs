//! Charges device memory to a session, and refunds it ([`crate::memory::holdings`]).

#![expect(unsafe_code, reason = "asks the driver for limits")]

use katydid_cuda_sys::{CUresult, device_attribute, function_attribute, limit};
use katydid_fatbin::OwnedImage;
use katydid_session_core::GpuMemory;
use katydid_wire::facts::FunctionFacts;

use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::device::gather::current_device;
use crate::memory::holdings::{CodeNeeds, CodeOrigin, DEFAULT_HEAP_BYTES, Library, stacks};
use crate::state::Session;

/// Most managed blocks of a session at a time.
const MAX_MANAGED_BLOCKS: usize = 1 << 22;
/// Largest code, in bytes, that is searched for its variables without a limit: unpacking it takes longer than loading it.
const LARGE_CODE_BYTES: usize = 4 << 20;

impl Session {
    /// Charges bytes of device memory.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the limit leaves less; nothing is charged then.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<(), Fault> {
        if bytes > self.device.bytes_left() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        self.device.charge(bytes);
        self.shared.usage.set_memory(self.device.backed_bytes());
        Ok(())
    }

    /// Refunds bytes of device memory.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.device.refund(bytes);
        self.shared.usage.set_memory(self.device.backed_bytes());
    }

    /// Charges an array of so many bytes in the current context; returns the memory that it takes.
    ///
    /// # Errors
    ///
    /// As [`Session::charge`].
    pub(crate) fn charge_array(&mut self, bytes: u64) -> Result<GpuMemory, Fault> {
        let context = self.current;
        let (memory, added) = self.tables.arrays.take_memory(context, bytes);
        match self.charge(added) {
            Ok(()) => Ok(memory),
            Err(fault) => {
                self.tables.arrays.give_back(context, memory);
                Err(fault)
            }
        }
    }

    /// Returns the memory that an image takes on the current context's device, or the first one. An unreadable image counts
    /// as nothing: whether a driver loads it is not the session's decision.
    pub(crate) fn needs_of(&self, image: &OwnedImage) -> CodeNeeds {
        if self.device.limit().is_none() && image.length() > LARGE_CODE_BYTES {
            return CodeNeeds::default();
        }
        let device = self.device_at_hand();
        let [major, minor] = [device_attribute::COMPUTE_CAPABILITY_MAJOR, device_attribute::COMPUTE_CAPABILITY_MINOR]
            .map(|attribute| self.fact(device, attribute as i32));
        let sm = u32::try_from(major * 10 + minor).unwrap_or(0);
        let declared = image.image().variables(sm, self.driver().is_soft()).unwrap_or_default();
        let bytes = declared.bytes().saturating_add(declared.code_bytes);
        CodeNeeds { bytes, uses_heap: declared.uses_heap }
    }

    /// Returns the current context's device, or the first one.
    fn device_at_hand(&self) -> i32 {
        if self.entered == 0 { 0 } else { current_device(self.driver()).unwrap_or(0) }
    }

    /// Returns an attribute of a device; 0 for an unknown one.
    fn fact(&self, device: i32, attribute: i32) -> u64 {
        let facts = usize::try_from(device).ok().and_then(|ordinal| self.facts.devices.get(ordinal));
        let answer = facts.and_then(|facts| facts.attribute(attribute)).filter(|answer| answer.code == 0);
        answer.and_then(|answer| u64::try_from(answer.value).ok()).unwrap_or(0)
    }

    /// Charges a module that is about to be loaded; [`Session::forget_code`] refunds it.
    pub(crate) fn hold_module(&mut self, module: u32, needs: CodeNeeds) -> Result<(), Fault> {
        self.charge(needs.bytes)?;
        self.holdings.modules.insert(module, needs);
        Ok(())
    }

    /// Charges a library that is about to be loaded; [`Session::forget_code`] refunds it.
    pub(crate) fn hold_library(&mut self, library: u32, needs: CodeNeeds) -> Result<(), Fault> {
        self.charge(needs.bytes.saturating_mul(self.holdings.copies()))?;
        self.holdings.libraries.insert(library, Library { needs, is_used: false, local: 0 });
        Ok(())
    }

    /// Refunds a module or library that is gone, or was not loaded after all.
    pub(crate) fn forget_code(&mut self, origin: CodeOrigin) {
        let bytes = match origin {
            CodeOrigin::Module(module) => self.holdings.modules.remove(&module).map_or(0, |needs| needs.bytes),
            CodeOrigin::Library(library) => {
                let gone = self.holdings.libraries.remove(&library);
                gone.map_or(0, |it| it.needs.bytes.saturating_mul(self.holdings.copies()))
            }
        };
        self.refund(bytes);
    }

    /// Charges the memory that a new context takes at once; [`Session::forget_context`] refunds it.
    pub(crate) fn hold_context(&mut self, context: u32, device: i32) -> Result<(), Fault> {
        let rooms = self.holdings.new_rooms(self.resident_threads(device));
        self.charge(self.holdings.copy_of_libraries().saturating_add(rooms.bytes()))?;
        self.holdings.contexts.insert(context, rooms);
        Ok(())
    }

    /// Refunds a context that is gone, or was not made after all; its modules have left the tables.
    pub(crate) fn forget_context(&mut self, context: u32) {
        let Some(rooms) = self.holdings.contexts.remove(&context) else { return };
        // The last context leaves the libraries to the next.
        let mut bytes = self.holdings.copy_of_libraries().saturating_add(rooms.bytes());
        self.holdings.modules.retain(|module, needs| {
            let is_there = self.tables.modules.get(*module).is_ok();
            bytes += if is_there { 0 } else { needs.bytes };
            is_there
        });
        self.holdings.managed.retain(|_, (size, owner)| {
            bytes += if *owner == context { *size } else { 0 };
            *owner != context
        });
        self.refund(bytes);
    }

    /// Charges a function or kernel that was found: its code may allocate, and its threads need stacks.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY`; nothing is charged then.
    pub(crate) fn hold_function(&mut self, origin: CodeOrigin, facts: &FunctionFacts) -> Result<(), Fault> {
        let (module, library) = match origin {
            CodeOrigin::Module(module) => (module, self.tables.library_modules.get(&module).copied().unwrap_or(0)),
            CodeOrigin::Library(library) => (0, library),
        };
        let local = facts.attributes.get(function_attribute::LOCAL_SIZE_BYTES as usize).filter(|it| it.code == 0);
        let local = local.and_then(|it| u64::try_from(it.value).ok()).unwrap_or(0);
        let contexts = match origin {
            CodeOrigin::Module(_) => vec![self.current],
            CodeOrigin::Library(_) => self.holdings.contexts.keys().copied().collect(),
        };
        let heap = if self.holdings.uses_heap(module, library) { self.heap_limit() } else { 0 };
        let threads = self.resident_threads(self.device_at_hand());
        let mut bytes = 0_u64;
        for rooms in contexts.iter().filter_map(|context| self.holdings.contexts.get(context)) {
            let stacks = stacks(rooms.stack, rooms.local.max(local), threads);
            bytes = bytes.saturating_add(stacks.saturating_sub(rooms.stacks));
            bytes = bytes.saturating_add(if rooms.heap == 0 { heap } else { 0 });
        }
        self.charge(bytes)?;
        for context in contexts {
            let Some(rooms) = self.holdings.contexts.get_mut(&context) else { continue };
            rooms.local = rooms.local.max(local);
            rooms.stacks = rooms.stacks.max(stacks(rooms.stack, rooms.local, threads));
            rooms.heap = if rooms.heap == 0 { heap } else { rooms.heap };
        }
        if let Some(library) = self.holdings.libraries.get_mut(&library) {
            library.is_used = true;
            library.local = library.local.max(local);
        }
        Ok(())
    }

    /// Returns the size of the `malloc` heap of the current context, or of a new one.
    fn heap_limit(&self) -> u64 {
        // SAFETY: the output is a local.
        let answer = ask::<usize>(|out| unsafe { self.driver().cuCtxGetLimit(out, limit::MALLOC_HEAP_SIZE) });
        answer.map_or(DEFAULT_HEAP_BYTES, |bytes| bytes as u64)
    }

    /// Returns the number of threads that a device holds at a time.
    fn resident_threads(&self, device: i32) -> u64 {
        let of = |attribute: u32| self.fact(device, attribute as i32);
        of(device_attribute::MULTIPROCESSOR_COUNT) * of(device_attribute::MAX_THREADS_PER_MULTIPROCESSOR)
    }

    /// Charges a limit of the current context, which the driver has changed from `previous_limit` to `value`.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY`; then the old limit counts.
    pub(crate) fn hold_limit(&mut self, limit_kind: u32, previous_limit: u64, value: u64) -> Result<(), Fault> {
        let (context, threads) = (self.current, self.resident_threads(self.device_at_hand()));
        let Some(current) = self.holdings.contexts.get(&context) else { return Ok(()) };
        let mut next_holding = *current;
        match limit_kind {
            limit::STACK_SIZE => {
                next_holding.stack = value;
                next_holding.stacks = stacks(value, current.local, threads);
            }
            limit::PRINTF_FIFO_SIZE => {
                let first = *next_holding.first_output.get_or_insert(previous_limit);
                next_holding.output = value.saturating_sub(first);
            }
            limit::MALLOC_HEAP_SIZE => next_holding.heap = value,
            _ => return Ok(()),
        }
        let (held, bytes) = (current.bytes(), next_holding.bytes());
        self.charge(bytes.saturating_sub(held))?;
        self.refund(held.saturating_sub(bytes));
        self.holdings.contexts.insert(context, next_holding);
        Ok(())
    }

    /// Charges a managed block, which ends with a context or, with 0, with none.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or `INVALID_VALUE` for a block that is charged already.
    pub(crate) fn hold_managed(&mut self, address: u64, size: u64, context: u32) -> Result<(), Fault> {
        if self.holdings.is_managed(address) || (context != 0 && !self.holdings.contexts.contains_key(&context)) {
            return Err(CUresult::ERROR_INVALID_VALUE.into());
        }
        if self.holdings.managed.len() >= MAX_MANAGED_BLOCKS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY.into());
        }
        self.charge(size)?;
        self.holdings.managed.insert(address, (size, context));
        Ok(())
    }

    /// Refunds a managed block.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for an unknown one.
    pub(crate) fn forget_managed(&mut self, address: u64) -> Result<(), Fault> {
        let (size, _) = self.holdings.managed.remove(&address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.refund(size);
        Ok(())
    }
}
