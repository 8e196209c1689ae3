//! Code as programs pass it: the PTX of an image that suits the device, or why there is none.

#![expect(unsafe_code, reason = "an image is a bare pointer without a length")]

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_fatbin::{Compilation, ModuleImage, ModuleImageError, ModuleImageKind, image_at};
use katydid_ptx_exec::{GlobalMemory, Kernel, KernelInfo, LoadError, Program, PtxSource, TargetDevice};

use crate::code::jit::Options;
use crate::ffi::report;
use crate::process::attributes::COMPUTE_CAPABILITY;

/// Why code was refused: a code for the caller, and a text for its error log.
#[derive(Clone, Debug)]
pub(crate) struct CodeRefusal {
    /// Result of the call.
    pub(crate) code: CUresult,
    /// Text for the log buffer.
    pub(crate) log: String,
}

impl From<ModuleImageError> for CodeRefusal {
    fn from(error: ModuleImageError) -> Self {
        let code = match error {
            ModuleImageError::NoPtx { .. } => CUresult::ERROR_NO_BINARY_FOR_GPU,
            ModuleImageError::Null => CUresult::ERROR_INVALID_VALUE,
            _ => CUresult::ERROR_INVALID_IMAGE,
        };
        Self { code, log: error.to_string() }
    }
}

impl From<LoadError> for CodeRefusal {
    fn from(error: LoadError) -> Self {
        let code = match error {
            LoadError::NewerPtx { .. } => CUresult::ERROR_UNSUPPORTED_PTX_VERSION,
            LoadError::OutOfMemory { .. } => CUresult::ERROR_OUT_OF_MEMORY,
            _ => CUresult::ERROR_INVALID_PTX,
        };
        Self { code, log: error.to_string() }
    }
}

impl CodeRefusal {
    /// Reports once on stderr what the software device or the image lacks. No caller of the driver shows the log, and "invalid
    /// PTX" would mislead its reader.
    fn reported(self) -> Self {
        static REPORTED_LOGS: Mutex<Option<HashSet<String>>> = Mutex::new(None);
        let is_informative = [CUresult::ERROR_NO_BINARY_FOR_GPU, CUresult::ERROR_INVALID_PTX].contains(&self.code);
        let mut logs = REPORTED_LOGS.lock().unwrap_or_else(PoisonError::into_inner);
        if is_informative && logs.get_or_insert_default().insert(self.log.clone()) {
            report(&self.log);
        }
        self
    }
}

/// A copy of an image: the caller may free the original after the call.
pub(crate) struct Code {
    /// Bytes of the image in its flat form.
    image: Vec<u8>,
    /// Options of the load, which precede those of the image.
    compilation: Compilation,
}

impl Code {
    /// Copies the image at a pointer of the caller.
    ///
    /// # Safety
    ///
    /// `image` must be null or point to a complete image that does not change during the call.
    pub(crate) unsafe fn at(image: *const c_void) -> Result<Self, CodeRefusal> {
        // SAFETY: the contract of this function.
        Ok(Self { image: unsafe { image_at(image.cast()) }?.encode(), compilation: Compilation::default() })
    }

    /// Reads the image in a file's bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, CodeRefusal> {
        Ok(Self { image: ModuleImage::from_bytes(bytes)?.encode(), compilation: Compilation::default() })
    }

    /// Returns the code with compiler options.
    pub(crate) fn with_options(self, options: &Options) -> Self {
        Self { compilation: options.compilation(), ..self }
    }

    /// Links and decodes the PTX that suits the device, and places variables in `memory`.
    pub(crate) fn load(&self, memory: &mut dyn GlobalMemory) -> Result<Program, CodeRefusal> {
        self.try_load(memory).map_err(CodeRefusal::reported)
    }

    /// Returns whether a GPU would run it: nvcc built it into the program, with machine code for this device.
    pub(crate) fn runs_on_gpus(&self) -> bool {
        let (major, minor) = COMPUTE_CAPABILITY;
        ModuleImage::decode(&self.image).is_ok_and(|image| image.is_built_in_machine_code(major * 10 + minor))
    }

    /// As `load`, without logging.
    fn try_load(&self, memory: &mut dyn GlobalMemory) -> Result<Program, CodeRefusal> {
        let (major, minor) = COMPUTE_CAPABILITY;
        let image = ModuleImage::decode(&self.image)?;
        let texts = image.ptx(Some(major * 10 + minor))?;
        // Text without a version directive was never meant to be PTX; the real driver calls it an invalid image.
        if image.kind() == ModuleImageKind::Ptx && !texts.iter().all(|ptx| ptx.text.contains(".version")) {
            let log = "the image is neither PTX nor a fatbin nor a cubin".to_owned();
            return Err(CodeRefusal { code: CUresult::ERROR_INVALID_IMAGE, log });
        }
        let sources = texts.iter().map(|ptx| {
            let Compilation { max_registers, contracts } = self.compilation.or(ptx.compilation);
            PtxSource { text: &ptx.text, max_registers, contracts: contracts.unwrap_or(true) }
        });
        let sources: Vec<PtxSource<'_>> = sources.collect();
        Ok(Program::load_sources(&sources, memory, TargetDevice { major, minor })?)
    }
}

/// What a compiler's log says of the code: the needs of each kernel.
pub(crate) fn describe(program: &Program) -> String {
    let line = |kernel: &Arc<Kernel>| {
        let KernelInfo { name, registers, static_shared, local_bytes, .. } = &***kernel;
        format!("info: '{name}' uses {registers} registers, {static_shared} bytes smem, {local_bytes} bytes lmem")
    };
    program.kernels().iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Memory of a program that is only looked at: addresses without anything behind them.
#[derive(Default)]
pub(crate) struct AddressOnlyMemory(u64);

impl GlobalMemory for AddressOnlyMemory {
    fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        let at = self.0.max(4096).checked_next_multiple_of(align.max(1))?;
        self.0 = at.checked_add(size)?;
        Some(at)
    }

    /// Does nothing: initial values of variables do not matter to an inspection.
    fn write(&mut self, _address: u64, _bytes: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> Option<CUresult> {
        let code = Code::from_bytes(text.as_bytes()).ok()?;
        code.load(&mut AddressOnlyMemory::default()).err().map(|refusal| refusal.code)
    }

    #[test]
    fn text_that_is_no_ptx_is_no_image_and_broken_ptx_is_broken_ptx() {
        assert_eq!(refusal("hello"), Some(CUresult::ERROR_INVALID_IMAGE));
        assert_eq!(refusal(".version 9.0\n.target sm_75\n.nonsense"), Some(CUresult::ERROR_INVALID_PTX));
    }
}
