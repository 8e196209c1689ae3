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

/// Offset and size of a parameter; one past the last gives `INVALID_VALUE` and writes nothing.
pub(super) fn param_info(kernel: &Kernel, index: usize, offset: &MaybeOut<usize>, size: &MaybeOut<usize>) -> Outcome {
    let param = kernel.params.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    offset.set(param.offset as usize);
    size.set(param.size as usize);
    Ok(())
}

api! {
    /// A function is of one context, whether or not that is current.
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, of: CUfunction) {
        let function = function::resolve(of)?;
        if stack::handle() != 0 {
            callable(of, &*stack::usable()?)?;
        }
        value.set(function::attribute(&function.kernel, &function.settings, attribute)?);
    }

    /// Dynamic shared memory up to the opt-in limit; facts of the code cannot be set.
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

    /// A hint, and one of the past.
    fn cuFuncSetSharedMemConfig(of: CUfunction, config: u32) {
        function::resolve(of)?;
        callable(of, &*stack::usable()?)?;
        if config > 2 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
    }

    /// Of a module's function only: a library's kernel gives 400.
    fn cuFuncGetModule(module: Out<CUmodule>, of: CUfunction) {
        module.set(CUmodule(std::ptr::without_provenance_mut(resolve(of)?.module)));
    }

    /// The text lives as long as the function.
    fn cuFuncGetName(name: Out<*const c_char>, of: CUfunction) {
        name.set(resolve(of)?.name.as_ptr());
    }

    /// Of a module's function only: a library's kernel gives 400.
    fn cuFuncGetParamInfo(of: CUfunction, index: usize, offset: MaybeOut<usize>, size: MaybeOut<usize>) {
        param_info(&resolve(of)?.kernel, index, &offset, &size)?;
    }

    /// Code is decoded when its module is loaded.
    fn cuFuncIsLoaded(state: Out<u32>, of: CUfunction) {
        resolve(of)?;
        state.set(FUNCTION_LOADING_STATE_LOADED);
    }

    /// Code is loaded already.
    fn cuFuncLoad(of: CUfunction) {
        resolve(of)?;
    }
}
