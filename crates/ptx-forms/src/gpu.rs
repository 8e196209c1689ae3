//! Any driver library as a device: NVIDIA's for recorded answers, softcuda to compare with them.
//!
//! Each case has its own module and buffers. A failed launch leaves an unusable context. The device then drops it, and the next
//! case gets a new one if the driver makes one.

#![expect(unsafe_code, reason = "calls the driver API")]

use crate::case::{Argument, Case};
use crate::device::{Device, DeviceAnswer, DeviceError};
use katydid_cuda_sys as sys;
use katydid_driver::{Driver, DriverChoice, open};
use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};

/// `CU_JIT_ERROR_LOG_BUFFER`, its size in bytes, and `CU_JIT_OPTIMIZATION_LEVEL`.
const JIT_OPTIONS: [u32; 3] = [5, 6, 7];
/// Levels of optimisation: the highest, and none.
const OPTIMIZATION_LEVELS: [usize; 2] = [4, 0];
/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const ATTRIBUTE_COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const ATTRIBUTE_CLUSTER: u32 = 4;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED_ATTRIBUTE: u32 = 8;
/// Dynamic shared memory that needs no opt-in, in bytes.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// The first device of a driver library.
pub struct Gpu {
    driver: Driver,
    context: sys::CUcontext,
}

/// A buffer of a case.
struct Buffer {
    address: sys::CUdeviceptr,
    size: usize,
    output: bool,
}

/// Converts a result to an error with the name of its call.
fn check_call(call: &'static str, result: sys::CUresult) -> Result<(), DeviceError> {
    result.ok().map_err(|code| DeviceError::Call { call, code: code.0 })
}

impl Gpu {
    /// Opens the first device of the library at `path`, or of the system's driver.
    ///
    /// # Errors
    ///
    /// When there is no such library or device.
    pub fn open(path: Option<&Path>) -> Result<Self, DeviceError> {
        let choice = path.map_or(DriverChoice::Auto, |path| DriverChoice::Path(path.to_owned()));
        Ok(Self { driver: Driver::new(open(&choice, None)?), context: sys::CUcontext(null_mut()) })
    }

    /// Returns whether the device is the CPU.
    pub fn is_soft(&self) -> bool {
        self.driver.is_soft()
    }

    /// Returns the name that the device reports.
    ///
    /// # Errors
    ///
    /// When the driver does not return it.
    pub fn name(&self) -> Result<String, DeviceError> {
        let mut name = [0_u8; 256];
        // SAFETY: the buffer has the size that is said.
        check_call("cuDeviceGetName", unsafe {
            self.driver.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, 0)
        })?;
        Ok(text_of(&name))
    }

    /// Drops the context.
    fn discard(&mut self) {
        // SAFETY: the context is this process's. What it says of the failure that made it useless is known already.
        let _ = unsafe { self.driver.cuCtxDestroy_v2(self.context) };
        self.context = sys::CUcontext(null_mut());
    }

    /// Makes a context unless there is one.
    fn ready(&mut self) -> Result<(), DeviceError> {
        if !self.context.0.is_null() {
            return Ok(());
        }
        // SAFETY: the output is a field that lives.
        check_call("cuCtxCreate", unsafe {
            self.driver.cuCtxCreate_v2(&raw mut self.context, 0, sys::CUdevice::default())
        })
    }

    /// Loads the text. A refusal comes with its log.
    fn load(&self, case: &Case) -> Result<sys::CUmodule, DeviceAnswer> {
        let image = CString::new(case.text.as_str()).unwrap_or_default();
        let mut log = vec![0_u8; 4096];
        let mut options = JIT_OPTIONS;
        let level = OPTIMIZATION_LEVELS[usize::from(!case.optimize)];
        let mut values: [*mut c_void; 3] =
            [log.as_mut_ptr().cast(), without_provenance_mut(log.len()), without_provenance_mut(level)];
        let mut module = sys::CUmodule(null_mut());
        // SAFETY: the image is terminated; the options have their values, and the log the size that is said.
        let result = unsafe {
            self.driver.cuModuleLoadDataEx(
                &raw mut module,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr().cast(),
            )
        };
        match result.ok() {
            Ok(()) => Ok(module),
            Err(code) => Err(DeviceAnswer::Refused { code: code.0, log: text_of(&log) }),
        }
    }

    /// Returns the entry `k`, with enough dynamic shared memory for its launch.
    fn entry(&self, module: sys::CUmodule, case: &Case) -> Result<sys::CUfunction, DeviceError> {
        let mut function = sys::CUfunction(null_mut());
        // SAFETY: the output is a local, the name is terminated, the module was just loaded.
        check_call("cuModuleGetFunction", unsafe {
            self.driver.cuModuleGetFunction(&raw mut function, module, c"k".as_ptr().cast())
        })?;
        if case.dynamic > DEFAULT_SHARED_BYTES {
            let attribute = MAX_DYNAMIC_SHARED_ATTRIBUTE;
            // SAFETY: the function is of the module.
            check_call("cuFuncSetAttribute", unsafe {
                self.driver.cuFuncSetAttribute(function, attribute, case.dynamic as i32)
            })?;
        }
        Ok(function)
    }

    /// Makes a buffer that holds `content`, then zeroes.
    fn buffer(&self, content: &[u8], size: usize, output: bool) -> Result<Buffer, DeviceError> {
        let mut address = 0;
        // SAFETY: the output is a local.
        check_call("cuMemAlloc", unsafe { self.driver.cuMemAlloc_v2(&raw mut address, size.max(1)) })?;
        // SAFETY: the buffer has that size.
        check_call("cuMemsetD8", unsafe { self.driver.cuMemsetD8_v2(address, 0, size.max(1)) })?;
        if !content.is_empty() {
            let source = content.as_ptr().cast();
            // SAFETY: both have as many bytes.
            check_call("cuMemcpyHtoD", unsafe { self.driver.cuMemcpyHtoD_v2(address, source, content.len()) })?;
        }
        Ok(Buffer { address, size, output })
    }

    /// Launches the case and waits for it.
    fn launch(&self, function: sys::CUfunction, case: &Case, values: &mut [Vec<u8>]) -> sys::CUresult {
        let mut parameters: Vec<*mut c_void> = values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        let mut attributes = attributes(case);
        let config = sys::CUlaunchConfig {
            gridDimX: case.grid[0],
            gridDimY: case.grid[1],
            gridDimZ: case.grid[2],
            blockDimX: case.block[0],
            blockDimY: case.block[1],
            blockDimZ: case.block[2],
            sharedMemBytes: case.dynamic,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
            ..Default::default()
        };
        // SAFETY: the configuration points to locals; a parameter points to as many bytes as the kernel takes, which the
        // author of the case answers for.
        let launched = unsafe {
            self.driver.cuLaunchKernelEx(&raw const config, function, parameters.as_mut_ptr().cast(), null_mut())
        };
        if launched != sys::CUresult::SUCCESS {
            return launched;
        }
        // SAFETY: has no preconditions.
        unsafe { self.driver.cuCtxSynchronize() }
    }

    /// Reads the outputs.
    fn outputs(&self, buffers: &[Buffer]) -> Result<Vec<u8>, DeviceError> {
        let mut out = Vec::new();
        for buffer in buffers.iter().filter(|buffer| buffer.output) {
            let start = out.len();
            out.resize(start + buffer.size, 0);
            let target = out[start..].as_mut_ptr().cast();
            // SAFETY: both have as many bytes.
            check_call("cuMemcpyDtoH", unsafe { self.driver.cuMemcpyDtoH_v2(target, buffer.address, buffer.size) })?;
        }
        Ok(out)
    }

    /// Runs the loaded case.
    fn run(&mut self, module: sys::CUmodule, case: &Case) -> Result<DeviceAnswer, DeviceError> {
        let function = self.entry(module, case)?;
        let mut buffers = Vec::new();
        let mut values = Vec::new();
        for argument in &case.arguments {
            let buffer = match argument {
                Argument::Scalar(bytes) => {
                    values.push(bytes.clone());
                    continue;
                }
                Argument::Input(bytes) => self.buffer(bytes, bytes.len(), false)?,
                Argument::InOut(bytes) => self.buffer(bytes, bytes.len(), true)?,
                Argument::Output(size) => self.buffer(&[], *size, true)?,
            };
            values.push(buffer.address.to_le_bytes().to_vec());
            buffers.push(buffer);
        }
        if let Err(code) = self.launch(function, case, &mut values).ok() {
            self.discard();
            return Ok(DeviceAnswer::Faulted { code: code.0, log: code.to_string() });
        }
        let outputs = self.outputs(&buffers)?;
        for buffer in buffers {
            // SAFETY: it was allocated above and nothing uses it any more.
            check_call("cuMemFree", unsafe { self.driver.cuMemFree_v2(buffer.address) })?;
        }
        // SAFETY: nothing of it runs any more.
        check_call("cuModuleUnload", unsafe { self.driver.cuModuleUnload(module) })?;
        Ok(DeviceAnswer::Done(outputs))
    }
}

/// Returns the attributes of a launch.
fn attributes(case: &Case) -> Vec<sys::CUlaunchAttribute> {
    let mut out = Vec::new();
    if case.cooperative {
        out.push(sys::CUlaunchAttribute {
            id: ATTRIBUTE_COOPERATIVE,
            value: [1, 0, 0, 0, 0, 0, 0, 0],
            ..Default::default()
        });
    }
    if let Some([x, y, z]) = case.cluster {
        let first = u64::from(x) | u64::from(y) << 32;
        let value = [first, u64::from(z), 0, 0, 0, 0, 0, 0];
        out.push(sys::CUlaunchAttribute { id: ATTRIBUTE_CLUSTER, value, ..Default::default() });
    }
    out
}

/// Returns the text before the first NUL.
fn text_of(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().trim().to_owned()
}

impl Device for Gpu {
    fn ask(&mut self, case: &Case) -> Result<DeviceAnswer, DeviceError> {
        self.ready()?;
        match self.load(case) {
            Ok(module) => self.run(module, case),
            Err(refusal) => Ok(refusal),
        }
    }
}
