//! Libraries and their kernels: code without a context.
//!
//! A kernel's handle is the same in all contexts. Functions, modules and variables belong to the current one.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{c_char, c_void};
use std::time::Instant;

use katydid_cuda_sys::{CUfunction, CUjit_option, CUkernel, CUlibrary, CUlibraryOption, CUmodule};
use katydid_driver_rules::device::check_cache_config;

use super::function::param_info;
use super::module;
use crate::code::function;
use crate::code::jit::Options;
use crate::code::library::{self, LibraryKernel, resolve, resolve_kernel};
use crate::code::module_image::{AddressOnlyMemory, Code, CodeRefusal, describe};
use crate::context::{primary, stack};
use crate::ffi::{Buffer, MaybeOut, Out, Outcome, Text, api};
use crate::process::{device, state};

/// Loads a library; it belongs to no context. Where a log is wanted, the code is compiled just for that: what is wrong with it
/// shows by the codes of later calls all the same.
fn load(code: Result<Code, CodeRefusal>, options: &Options) -> Outcome<CUlibrary> {
    state::ready()?;
    let start = Instant::now();
    let code = code.map(|code| code.with_options(options));
    if options.wants_logs() {
        let program = match &code {
            Ok(code) => code.load(&mut AddressOnlyMemory::default()),
            Err(refusal) => Err(refusal.clone()),
        };
        let info = program.as_ref().ok().filter(|_| options.is_verbose()).map(describe);
        options.answer_logs(&info.unwrap_or_default(), program.as_ref().err().map_or("", |refusal| &refusal.log));
    }
    options.answer_time(start.elapsed());
    Ok(CUlibrary(std::ptr::without_provenance_mut(library::load(code)?.handle)))
}

/// Returns the kernel of a handle.
fn kernel(handle: CUkernel) -> Outcome<std::sync::Arc<LibraryKernel>> {
    resolve_kernel(handle.address() as usize)
}

/// Returns the handle of a kernel.
fn as_handle(kernel: &LibraryKernel) -> CUkernel {
    CUkernel(std::ptr::without_provenance_mut(kernel.handle))
}

api! {
    /// Loads an image, of which it always makes a copy. Register limits count; other options are hints.
    fn cuLibraryLoadData(
        library: Out<CUlibrary>,
        image: *const c_void,
        jit_kinds: *mut CUjit_option,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        _kinds: *mut CUlibraryOption,
        _values: *mut *mut c_void,
        _count: u32,
    ) {
        // SAFETY: the caller's arrays have `jit_count` entries each.
        let options = unsafe { Options::new(jit_count, jit_kinds, jit_values) }?;
        // SAFETY: the caller's image, complete by its promise.
        library.set(load(unsafe { Code::at(image) }, &options)?);
    }

    /// Loads a file. Fails with 301 if it cannot be read.
    fn cuLibraryLoadFromFile(
        library: Out<CUlibrary>,
        path: Text<'_>,
        jit_kinds: *mut CUjit_option,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        _kinds: *mut CUlibraryOption,
        _values: *mut *mut c_void,
        _count: u32,
    ) {
        // SAFETY: the caller's arrays have `jit_count` entries each.
        let options = unsafe { Options::new(jit_count, jit_kinds, jit_values) }?;
        library.set(load(module::read_file(&path)?, &options)?);
    }

    /// Unloads a library, with its kernels, functions and variables in all contexts.
    fn cuLibraryUnload(library: CUlibrary) {
        state::ready()?;
        library::unload(library)?;
    }

    /// Returns a kernel; needs no context. Faults of the image show here first.
    fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, name: Text<'_>) {
        kernel.set(as_handle(&*resolve(library)?.kernel(name.name()?)?));
    }

    /// Counts the kernels; needs no current context.
    fn cuLibraryGetKernelCount(count: Out<u32>, library: CUlibrary) {
        count.set(resolve(library)?.kernels()?.len() as u32);
    }

    /// Returns the kernels in the order of the text, up to the capacity of the buffer.
    fn cuLibraryEnumerateKernels(kernels: Buffer<CUkernel>, capacity: u32, library: CUlibrary) {
        let library = resolve(library)?;
        kernels.fill(capacity as usize, library.kernels()?.iter().map(|kernel| as_handle(kernel)))?;
    }

    /// Returns the library's module in the current context, and loads it there if necessary.
    fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) {
        let library = resolve(library)?;
        module.set(module::as_handle(&*library.module(&*stack::usable()?)?));
    }

    /// Returns a variable in the current context. An unknown name fails with 500.
    fn cuLibraryGetGlobal(address: MaybeOut<u64>, size: MaybeOut<usize>, library: CUlibrary, name: Text<'_>) {
        let library = resolve(library)?;
        let (start, bytes) = library.module(&*stack::usable()?)?.global(name.name()?)?;
        address.set(start);
        size.set(bytes as usize);
    }

    /// Returns a managed variable, in the current context or the first device's primary one. The runtime calls it before it has a
    /// context, as soon as the program touches such a variable. Variables that are not managed do not count.
    fn cuLibraryGetManaged(address: MaybeOut<u64>, size: MaybeOut<usize>, library: CUlibrary, name: Text<'_>) {
        let library = resolve(library)?;
        let context = stack::usable().or_else(|_| primary::first())?;
        let (start, bytes) = library.module(&context)?.managed(name.name()?)?;
        address.set(start);
        size.set(bytes as usize);
    }

    /// Returns the kernel's function in the current context: the same one each time.
    fn cuKernelGetFunction(function: Out<CUfunction>, of: CUkernel) {
        let function_record = kernel(of)?.function(&*stack::usable()?)?;
        function.set(CUfunction(std::ptr::without_provenance_mut(function_record.handle)));
    }

    /// Returns the kernel's library. Fails with 400 once that is unloaded.
    fn cuKernelGetLibrary(library: Out<CUlibrary>, of: CUkernel) {
        library.set(CUlibrary(std::ptr::without_provenance_mut(kernel(of)?.library()?.handle)));
    }

    /// Returns the name, which lives as long as the kernel.
    fn cuKernelGetName(name: Out<*const c_char>, of: CUkernel) {
        name.set(kernel(of)?.name.as_ptr());
    }

    /// Returns an attribute of the kernel, as set for the device.
    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, of: CUkernel, device: i32) {
        let kernel = kernel(of)?;
        device::get(device)?;
        value.set(function::attribute(&kernel.kernel, &kernel.settings(device), attribute)?);
    }

    /// Sets an attribute of the kernel, for all contexts of the device.
    fn cuKernelSetAttribute(attribute: u32, value: i32, of: CUkernel, device: i32) {
        let kernel = kernel(of)?;
        device::get(device)?;
        function::set_attribute(&kernel.kernel, &kernel.settings(device), attribute, value)?;
    }

    /// Checks the kernel; the configuration is a hint without effect.
    fn cuKernelSetCacheConfig(of: CUkernel, config: u32, device: i32) {
        kernel(of)?;
        device::get(device)?;
        check_cache_config(config)?;
    }

    /// Returns offset and size of a parameter. An index past the last one fails with 1 and writes nothing.
    fn cuKernelGetParamInfo(of: CUkernel, index: usize, offset: MaybeOut<usize>, size: MaybeOut<usize>) {
        let kernel = kernel(of)?;
        stack::usable()?;
        param_info(&kernel.kernel, index, &offset, &size)?;
    }
}
