//! What the worker does with messages of our own (`spec/session.api`): one file a concept, one function a message.
//!
//! A handler of an enqueued message returns the code of the call; of a call, code and reply; of a blocking call, the
//! job that an executor runs. An error is the call's code or the end of the session.

#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

mod code;
mod context;
mod event;
mod facts;
mod graph;
mod green;
mod memory;
mod output;
mod places;
mod stream_attribute;
mod textures;
mod upcall;

use katydid_cuda_sys::CUresult;

use crate::calls::executor::Job;
use crate::calls::fault::Fault;

pub(crate) use crate::handlers::code::function::{
    kdFunctionFacts, kdFunctionSetAttribute, kdFunctionSetCacheConfig, kdKernelFunction, kdLibraryKernel,
    kdModuleFunction,
};
pub(crate) use crate::handlers::code::image::{kdImagePiece, kdImageRecall, uses_pieces};
pub(crate) use crate::handlers::code::launch::kdLaunch;
pub(crate) use crate::handlers::code::library::{
    kdLibraryGlobal, kdLibraryKernelNames, kdLibraryLoad, kdLibraryModule,
};
pub(crate) use crate::handlers::code::link::{kdLink, kdLinked};
pub(crate) use crate::handlers::code::module::{kdModuleFunctionNames, kdModuleGlobal, kdModuleLoad};
pub(crate) use crate::handlers::code::occupancy::{kdAvailableSharedMemory, kdClusters, kdOccupancy};
pub(crate) use crate::handlers::memory::copy::{kdCopy, kdCopyIn, kdCopyInStaged, kdCopyOut, kdCopyOutStaged};
pub(crate) use crate::handlers::memory::device::{
    kdDeviceGrow, kdDeviceInfo, kdDeviceShrink, kdIdle, kdManagedDrop, kdManagedHold, kdPeerAtomics, kdReclaim,
    kdReclaimDevices, kdReclaimDone,
};
pub(crate) use crate::handlers::memory::fill::kdFill;
pub(crate) use crate::handlers::memory::host::{
    kdHostPull, kdHostPush, kdHostPushWords, kdHostRegister, kdHostUnregister, pull_task, push_now, push_words_now,
};
pub(crate) use crate::handlers::memory::packed::{kdCopyInPacked, kdCopyOutPacked};
pub(crate) use crate::handlers::memory::rows::{kdRowsIn, kdRowsInStaged, kdRowsOut, kdRowsOutStaged};
pub(crate) use crate::handlers::memory::share::{
    kdEventBorrow, kdEventLend, kdForeignMap, kdForeignUnmap, kdMemoryBorrow, kdMemoryLend, kdMemoryTakeBack,
};
pub(crate) use crate::handlers::memory::virtual_memory::{
    kdAddressFree, kdAddressReserve, kdMemoryAccess, kdMemoryCreate, kdMemoryGranularity, kdMemoryMap, kdMemoryRelease,
    kdMemorySetAccess, kdMemoryUnmap,
};
pub(crate) use crate::handlers::textures::array::{
    kdArrayCopy, kdArrayCreate, kdArrayDestroy, kdArrayMap, kdArrayNeeds, kdArraySparse, kdMipmapCreate, kdMipmapLevel,
};
pub(crate) use crate::handlers::textures::reference::{
    kdReferenceEnd, kdSurfaceReference, kdSurfaceReferenceSet, kdTextureReference, kdTextureReferenceSet,
};
pub(crate) use crate::handlers::textures::tensor_map::kdTensorMap;
pub(crate) use crate::handlers::textures::texture::{
    kdLinearTextureWidth, kdSurfaceCreate, kdSurfaceDestroy, kdTextureCreate, kdTextureDestroy,
};
pub(crate) use context::{
    kdContextCreate, kdContextLimit, kdContextRelease, kdContextReset, kdContextRetain, kdContextSetLimit,
};
pub(crate) use event::kdElapsedTime;
pub(crate) use facts::{kdEnvironment, kdFacts};
pub(crate) use graph::{
    bytes_task, fill_stage, kdGraphArguments, kdGraphChange, kdGraphCondition, kdGraphDestroy, kdGraphForget,
    kdGraphInstantiate, kdGraphLaunch, kdGraphUpload, kdUpcallBytes, kdUpcallData, kdUpcallsBegin,
};
pub(crate) use green::{kdGreenCreate, kdGreenEnd, kdGreenStream, kdResource, kdResourceSplit};
pub(crate) use output::kdOutput;
pub(crate) use places::kdProcessorPlaces;
pub(crate) use stream_attribute::{kdStreamAttribute, kdStreamSetAttribute};
pub(crate) use upcall::{kdHostFunction, kdStreamCallback, kdUpcallNext, upcall_task};

/// What a handler of an enqueued message returns.
type Enqueued = Result<CUresult, Fault>;
/// What a handler of a call returns.
type Called<R> = Result<(CUresult, R), Fault>;
/// What a handler of a blocking call returns.
type Detached<R> = Result<Job<R>, Fault>;

/// Success, with a reply.
fn done<R>(reply: R) -> Called<R> {
    Ok((CUresult::SUCCESS, reply))
}
