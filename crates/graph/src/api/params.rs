//! Parameters of nodes from C structures, checked with the driver library's help.

#![expect(unsafe_code, reason = "reads structures of C callers")]

use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent,
    CUgraphNodeParams, CUkernel, CUresult, Pod, node_type,
};

use super::Graphs;
use super::raw::{read, values};
use crate::backend::{Backend, Launch};
use crate::outcome::Outcome;
use crate::params::{Arguments, Attributes, Batch, Host, Kernel, Memcpy, Memset, Params};

/// Most operations of one batch.
const MAX_BATCH_MEMORY_OPERATIONS: u32 = 256;

/// Decodes the payload of generic parameters as one of its members.
pub(super) fn payload<T: Pod>(params: &CUgraphNodeParams) -> Outcome<T> {
    let bytes: Vec<u8> = params.payload.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.get(..size_of::<T>()).and_then(T::from_bytes).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Encodes a member into the payload.
pub(super) fn store<T: Pod>(params: &mut CUgraphNodeParams, member: &T) {
    for (word, bytes) in params.payload.iter_mut().zip(member.to_bytes().as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

/// Converts parameters of CUDA 11 to those of CUDA 12.
pub(super) fn modern(old: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: old.func,
        gridDimX: old.gridDimX,
        gridDimY: old.gridDimY,
        gridDimZ: old.gridDimZ,
        blockDimX: old.blockDimX,
        blockDimY: old.blockDimY,
        blockDimZ: old.blockDimZ,
        sharedMemBytes: old.sharedMemBytes,
        kernelParams: old.kernelParams,
        extra: old.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

/// Converts parameters of CUDA 12 to those of CUDA 11, without fields that a program of CUDA 11 cannot see.
pub(super) fn ancient(new: &CUDA_KERNEL_NODE_PARAMS) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: new.func,
        gridDimX: new.gridDimX,
        gridDimY: new.gridDimY,
        gridDimZ: new.gridDimZ,
        blockDimX: new.blockDimX,
        blockDimY: new.blockDimY,
        blockDimZ: new.blockDimZ,
        sharedMemBytes: new.sharedMemBytes,
        kernelParams: new.kernelParams,
        extra: new.extra,
    }
}

/// Returns the answer of `cuGraphKernelNodeGetParams`, without the function of a kernel. Its pointers live as long as the
/// node's parameters.
pub(super) fn described(kernel: &Kernel) -> CUDA_KERNEL_NODE_PARAMS {
    let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (kernel.grid, kernel.block);
    let pointer = |address: usize| std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(address);
    let (array, extra) = match kernel.is_packed {
        true => (0, kernel.arguments.extra()),
        false => (kernel.arguments.array(), 0),
    };
    CUDA_KERNEL_NODE_PARAMS {
        func: katydid_cuda_sys::CUfunction(pointer(kernel.function)),
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: kernel.shared,
        kernelParams: pointer(array).cast(),
        extra: pointer(extra).cast(),
        kern: CUkernel(pointer(kernel.kernel)),
        ctx: CUcontext(pointer(kernel.context)),
    }
}

/// Every function: pointers are null or as the driver API documents them.
impl<B: Backend> Graphs<B> {
    /// Makes a kernel node's parameters from a launch.
    ///
    /// # Errors
    ///
    /// As for the launch.
    ///
    /// # Safety
    ///
    /// `array` and `extra` of the launch are null or as the driver API documents them for the function.
    pub unsafe fn kernel_params(&self, launch: &Launch) -> Outcome<Params> {
        // SAFETY: handed on.
        let code = unsafe { self.backend.kernel(launch) }?;
        let is_packed = launch.array.is_null() && !launch.extra.is_null();
        let (function, kernel) = if self.backend.is_kernel(launch.function) {
            (0, launch.function)
        } else {
            (launch.function, launch.kernel)
        };
        Ok(Params::Kernel(Kernel {
            function,
            kernel,
            context: code.context,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            arguments: Arguments::new(code.bytes, code.offsets),
            is_packed,
            attributes: launch.attributes.clone(),
            name: code.name,
            code: code.keep_alive,
        }))
    }

    pub(super) unsafe fn described_kernel(
        &self,
        params: &CUDA_KERNEL_NODE_PARAMS,
        attributes: Attributes,
    ) -> Outcome<Params> {
        let launch = Launch {
            function: params.func.0.addr(),
            kernel: params.kern.0.addr(),
            context: params.ctx.0.addr(),
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared: params.sharedMemBytes,
            array: params.kernelParams,
            extra: params.extra,
            attributes,
        };
        // A launch accepts a kernel in place of a function, a node does not (driver 580.159.04).
        if self.backend.is_kernel(launch.function) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        // SAFETY: handed on. Too large a packed buffer is 1 here, though 701 in a launch.
        let params = unsafe { self.kernel_params(&launch) };
        params.map_err(|code| match code {
            CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES => CUresult::ERROR_INVALID_VALUE,
            other => other,
        })
    }

    /// Makes a copy node's parameters.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for an empty copy, and as for the copy.
    pub fn copy_params(&self, copy: &CUDA_MEMCPY3D, context: CUcontext) -> Outcome<Params> {
        let context = self.backend.context(context)?;
        if copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.backend.copy(copy, context)?;
        Ok(Params::Memcpy(Memcpy { copy: *copy, context }))
    }

    /// Makes a fill node's parameters.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE` for an empty fill, and as for the fill.
    pub fn fill_params(&self, fill: &CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Outcome<Params> {
        let context = self.backend.context(context)?;
        let row = fill.width.checked_mul(fill.elementSize as usize);
        let fits = row.is_some_and(|row| fill.height <= 1 || fill.pitch >= row);
        if !matches!(fill.elementSize, 1 | 2 | 4) || fill.width == 0 || fill.height == 0 || !fits {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.backend.fill(fill, context)?;
        let pitch = if fill.height == 1 { 0 } else { fill.pitch };
        let fill = CUDA_MEMSET_NODE_PARAMS { pitch, ..*fill };
        Ok(Params::Memset(Memset { fill, context }))
    }

    pub(super) fn host_params(&self, host: &CUDA_HOST_NODE_PARAMS) -> Outcome<Params> {
        if host.func == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Params::Host(Host { function: host.func, data: host.userData.expose_provenance() }))
    }

    pub(super) fn checked_event(&self, event: CUevent) -> Outcome<CUevent> {
        if event.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.backend.event(event).map(|()| event)
    }

    pub(super) unsafe fn batch_params(&self, batch: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Outcome<Params> {
        let context = self.backend.context(batch.ctx)?;
        if batch.count > MAX_BATCH_MEMORY_OPERATIONS || batch.flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the contract of all functions here.
        let operations = unsafe { values(batch.paramArray.cast_const(), batch.count as usize) }?;
        operations.iter().try_for_each(|operation| self.backend.word(operation, context))?;
        Ok(Params::Batch(Batch { operations: Arc::new(operations), flags: 0, context }))
    }

    /// Makes parameters of the types that need no other objects; `ERROR_NOT_SUPPORTED` for other types.
    pub(super) unsafe fn generic_params(&self, params: &CUgraphNodeParams, attributes: Attributes) -> Outcome<Params> {
        let context = |word: usize| CUcontext(std::ptr::with_exposed_provenance_mut(params.payload[word] as usize));
        match params.type_ {
            // SAFETY: the contract of all functions here.
            node_type::KERNEL => unsafe { self.described_kernel(&payload(params)?, attributes) },
            node_type::MEMCPY if params.payload[0] == 0 => {
                let mut inner = CUgraphNodeParams::default();
                let size = inner.payload.len() - 2;
                inner.payload[..size].copy_from_slice(&params.payload[2..]);
                self.copy_params(&payload(&inner)?, context(1))
            }
            node_type::MEMSET => self.fill_params(&payload(params)?, context(5)),
            node_type::HOST => self.host_params(&payload(params)?),
            node_type::EMPTY => Ok(Params::Empty),
            node_type::WAIT_EVENT => self.checked_event(event_of(params)).map(Params::WaitEvent),
            node_type::EVENT_RECORD => self.checked_event(event_of(params)).map(Params::RecordEvent),
            // SAFETY: the contract of all functions here.
            node_type::BATCH_MEM_OP => unsafe { self.batch_params(&payload(params)?) },
            node_type::MEMCPY => Err(CUresult::ERROR_INVALID_VALUE),
            node_type::GRAPH..=node_type::CONDITIONAL => Err(CUresult::ERROR_NOT_SUPPORTED),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

fn event_of(params: &CUgraphNodeParams) -> CUevent {
    CUevent(std::ptr::with_exposed_provenance_mut(params.payload[0] as usize))
}

/// Reads the caller's generic parameters; checks that reserved fields are zero.
///
/// # Safety
///
/// `params` is null or readable.
pub(super) unsafe fn generic(params: *const CUgraphNodeParams) -> Outcome<CUgraphNodeParams> {
    // SAFETY: handed on.
    let params = unsafe { read(params) }?;
    let clean = params.reserved0 == [0; 3] && params.reserved2 == 0;
    if clean { Ok(params) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Layout of allocation nodes in `CUgraphNodeParams`.
pub(super) type GenericAlloc = CUDA_MEM_ALLOC_NODE_PARAMS;
/// Layout of conditional nodes in `CUgraphNodeParams`.
pub(super) type GenericConditional = CUDA_CONDITIONAL_NODE_PARAMS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_the_payload_comes_back_as_it_was_stored() {
        let mut params = CUgraphNodeParams::default();
        let alloc = GenericAlloc { bytesize: 77, dptr: 0x1234, ..GenericAlloc::default() };
        store(&mut params, &alloc);
        let back: GenericAlloc = payload(&params).unwrap();
        assert_eq!((back.bytesize, back.dptr), (77, 0x1234));
        assert_eq!(params.payload[14], 0x1234);
    }

    #[test]
    fn reserved_fields_must_be_zero() {
        let dirty = CUgraphNodeParams { reserved0: [1, 0, 0], ..CUgraphNodeParams::default() };
        // SAFETY: locals, and null.
        unsafe {
            assert!(generic(&dirty).is_err() && generic(std::ptr::null()).is_err());
            assert!(generic(&CUgraphNodeParams::default()).is_ok());
        }
    }
}
