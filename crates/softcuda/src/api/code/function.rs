//! Functions of modules.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_char;

use katydid_cuda_sys::{CUfunction, CUmodule, CUresult};
use katydid_driver_rules::device::{FUNCTION_LOADING_STATE_LOADED, check_cache_config};
use katydid_ptx_exec::Kernel;

use crate::code::function::{self, resolve};
use crate::code::library::callable;
use crate::context::stack;
use crate::ffi::{MaybeOut, Out, Outcome, api};

/// Returns offset and size of a parameter. An index past the last one fails with `INVALID_VALUE` and writes nothing.
pub(super) fn param_info(kernel: &Kernel, index: usize, offset: &MaybeOut<usize>, size: &MaybeOut<usize>) -> Outcome {
    let param = kernel.params.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    offset.set(param.offset as usize);
    size.set(param.size as usize);
    Ok(())
}

api! {
    /// Returns an attribute of a function. Needs no current context; if there is one, it must be the function's.
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, of: CUfunction) {
        let function = function::resolve(of)?;
        if stack::handle() != 0 {
            callable(of, &*stack::usable()?)?;
        }
        value.set(function::attribute(&function.kernel, &function.settings, attribute)?);
    }

    /// Sets dynamic shared memory, up to the opt-in limit, or a hint. Facts of the code cannot be set.
    fn cuFuncSetAttribute(of: CUfunction, attribute: u32, value: i32) {
        function::resolve(of)?;
        let (kernel, settings) = callable(of, &*stack::usable()?)?;
        function::set_attribute(&kernel, &settings, attribute, value)?;
    }

    /// Checks the function; the configuration is a hint without effect.
    fn cuFuncSetCacheConfig(of: CUfunction, config: u32) {
        function::resolve(of)?;
        callable(of, &*stack::usable()?)?;
        check_cache_config(config)?;
    }

    /// Checks the arguments; the configuration is an obsolete hint without effect.
    fn cuFuncSetSharedMemConfig(of: CUfunction, config: u32) {
        function::resolve(of)?;
        callable(of, &*stack::usable()?)?;
        if config > 2 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
    }

    /// Returns the module of a function. The kernel of a library fails with 400.
    fn cuFuncGetModule(module: Out<CUmodule>, of: CUfunction) {
        module.set(CUmodule(std::ptr::without_provenance_mut(resolve(of)?.module)));
    }

    /// Returns the name, which lives as long as the function.
    fn cuFuncGetName(name: Out<*const c_char>, of: CUfunction) {
        name.set(resolve(of)?.name.as_ptr());
    }

    /// Returns offset and size of a parameter. The kernel of a library fails with 400.
    fn cuFuncGetParamInfo(of: CUfunction, index: usize, offset: MaybeOut<usize>, size: MaybeOut<usize>) {
        param_info(&resolve(of)?.kernel, index, &offset, &size)?;
    }

    /// Returns "loaded": code is decoded when its module is loaded.
    fn cuFuncIsLoaded(state: Out<u32>, of: CUfunction) {
        resolve(of)?;
        state.set(FUNCTION_LOADING_STATE_LOADED);
    }

    /// Checks the function; its code is loaded already.
    fn cuFuncLoad(of: CUfunction) {
        resolve(of)?;
    }
}
