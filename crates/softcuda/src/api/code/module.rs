//! Modules: code in the current context.
//!
//! The load itself reports faults of an image: 200 for bytes of no known form, 209 if nothing in it suits the device, 218 for PTX
//! that is wrong or needs something that the interpreter lacks.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::time::Instant;

use katydid_cuda_sys::{CUfunction, CUjit_option, CUmodule, CUresult};

use crate::code::jit::Options;
use crate::code::module::{self, Module};
use crate::code::module_image::{Code, CodeRefusal};
use crate::context::stack;
use crate::ffi::{Buffer, MaybeOut, Out, Outcome, Text, api};
use crate::graphs;
use crate::process::{settings, state};

/// `CU_MODULE_EAGER_LOADING` and `CU_MODULE_LAZY_LOADING`.
const LOADING_MODES: (u32, u32) = (1, 2);

/// Loads code into the current context.
fn load(code: Result<Code, CodeRefusal>, options: Option<&Options>) -> Outcome<CUmodule> {
    let context = stack::usable()?;
    let start = Instant::now();
    let loaded = code.and_then(|code| module::load(&context, &code));
    if let Some(options) = options {
        options.answer_time(start.elapsed());
        let info = loaded.as_ref().ok().filter(|_| options.is_verbose()).map(|module| module.describe());
        let error = loaded.as_ref().err().map_or("", |refusal| &refusal.log);
        options.answer_logs(&info.unwrap_or_default(), error);
    }
    loaded.map(|module| as_handle(&module)).map_err(|refusal| refusal.code)
}

/// Returns the handle of a module.
pub(super) fn as_handle(module: &Module) -> CUmodule {
    CUmodule(std::ptr::without_provenance_mut(module.handle))
}

/// Reads the code of a file.
pub(super) fn read_file(path: &Text<'_>) -> Outcome<Result<Code, CodeRefusal>> {
    let path = std::str::from_utf8(path.bytes()).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    let bytes = std::fs::read(path).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    Ok(Code::from_bytes(&bytes))
}

api! {
    /// Loads a file. Fails with 301 if it cannot be read.
    fn cuModuleLoad(module: Out<CUmodule>, path: Text<'_>) {
        stack::usable()?;
        module.set(load(read_file(&path)?, None)?);
    }

    /// Loads a wrapper, a container or PTX. Machine code has nothing for this device (209).
    fn cuModuleLoadData(module: Out<CUmodule>, image: *const c_void) {
        // SAFETY: the caller's image, complete by its promise.
        module.set(load(unsafe { Code::at(image) }, None)?);
    }

    /// Loads the image as `cuModuleLoadData` does.
    fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: *const c_void) {
        // SAFETY: the caller's image, complete by its promise.
        module.set(load(unsafe { Code::at(image) }, None)?);
    }

    /// Loads an image. It answers logs, times and threads and limits registers; other options are hints.
    fn cuModuleLoadDataEx(
        module: Out<CUmodule>,
        image: *const c_void,
        count: u32,
        kinds: *mut CUjit_option,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the caller's arrays have `count` entries each.
        let options = unsafe { Options::new(count, kinds, values) }?;
        // SAFETY: the caller's image, complete by its promise.
        let code = unsafe { Code::at(image) }.map(|code| code.with_options(&options));
        module.set(load(code, Some(&options))?);
    }

    /// Waits for the context's work, then frees the variables.
    fn cuModuleUnload(module: CUmodule) {
        graphs::forbid()?;
        state::ready()?;
        module::unload(module.address() as usize)?;
    }

    /// Returns the loading mode: lazy unless the environment says otherwise.
    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        state::ready()?;
        mode.set(if settings::eager_loading() { LOADING_MODES.0 } else { LOADING_MODES.1 });
    }

    /// Returns a function, always with the same handle. An unknown name fails with 500.
    fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: Text<'_>) {
        let function_record = module::resolve(module)?.function(name.name()?)?;
        function.set(CUfunction(std::ptr::without_provenance_mut(function_record.handle)));
    }

    /// Fails: addresses have 32 bits here, and no module of a current context has such.
    fn cuModuleGetGlobal(_address: MaybeOut<u32>, _size: MaybeOut<u32>, module: CUmodule, _name: Text<'_>) {
        module::resolve(module)?;
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }

    /// Returns a variable; one of the two outputs may be null. An unknown name fails with 500.
    fn cuModuleGetGlobal_v2(address: MaybeOut<u64>, size: MaybeOut<usize>, module: CUmodule, name: Text<'_>) {
        if !address.is_wanted() && !size.is_wanted() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (start, bytes) = module::resolve(module)?.global(name.name()?)?;
        address.set(start);
        size.set(bytes as usize);
    }

    /// Returns the number of kernels; device functions do not count.
    fn cuModuleGetFunctionCount(count: Out<u32>, module: CUmodule) {
        count.set(module::resolve(module)?.kernels().len() as u32);
    }

    /// Returns the kernels in the order of the text, up to the capacity of the buffer.
    fn cuModuleEnumerateFunctions(functions: Buffer<CUfunction>, capacity: u32, module: CUmodule) {
        let module = module::resolve(module)?;
        let functions_of_module = module.kernels().iter().map(|kernel| module.function(&kernel.name)).collect::<Outcome<Vec<_>>>()?;
        let handles = functions_of_module.iter().map(|function| CUfunction(std::ptr::without_provenance_mut(function.handle)));
        functions.fill(capacity as usize, handles)?;
    }
}
