//! What the worker does with messages of our own (`spec/session.api`): one file a concept, one function a message.
//!
//! A handler of an enqueued message returns the code of the call; of a call, code and reply; of a blocking call, the
//! job that an executor runs. An error is the call's code or the end of the session.

#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

mod array;
mod context;
mod copy;
mod device;
mod event;
mod facts;
mod fill;
mod function;
mod graph;
mod green;
mod host;
mod image;
mod launch;
mod library;
mod link;
mod module;
mod occupancy;
mod options;
mod output;
mod packed;
mod pieces;
mod places;
mod reference;
mod rows;
mod share;
mod stream_attribute;
mod tensor_map;
mod texture;
mod upcall;
mod virtual_memory;

use katydid_cuda_sys::CUresult;

use crate::fault::Fault;
use crate::session::Job;

pub(crate) use array::{
    kdArrayCopy, kdArrayCreate, kdArrayDestroy, kdArrayMap, kdArrayNeeds, kdArraySparse, kdMipmapCreate, kdMipmapLevel,
};
pub(crate) use context::{
    kdContextCreate, kdContextLimit, kdContextRelease, kdContextReset, kdContextRetain, kdContextSetLimit,
};
pub(crate) use copy::{kdCopy, kdCopyIn, kdCopyInStaged, kdCopyOut, kdCopyOutStaged};
pub(crate) use device::{
    kdDeviceGrow, kdDeviceInfo, kdDeviceShrink, kdGivenBack, kdIdle, kdManagedDrop, kdManagedHold, kdPeerAtomics,
    kdPlea, kdWanted,
};
pub(crate) use event::kdElapsedTime;
pub(crate) use facts::{kdEnvironment, kdFacts};
pub(crate) use fill::kdFill;
pub(crate) use function::{
    kdFunctionFacts, kdFunctionSetAttribute, kdFunctionSetCacheConfig, kdKernelFunction, kdLibraryKernel,
    kdModuleFunction,
};
pub(crate) use graph::{
    bytes_task, fill_stage, kdGraphArguments, kdGraphChange, kdGraphCondition, kdGraphDestroy, kdGraphForget,
    kdGraphInstantiate, kdGraphLaunch, kdGraphUpload, kdUpcallBytes, kdUpcallData, kdUpcallsBegin,
};
pub(crate) use green::{kdGreenCreate, kdGreenEnd, kdGreenStream, kdResource, kdResourceSplit};
pub(crate) use host::{
    kdHostPull, kdHostPush, kdHostPushWords, kdHostRegister, kdHostUnregister, pull_task, push_now, push_words_now,
};
pub(crate) use image::{kdImagePiece, kdImageRecall, uses_pieces};
pub(crate) use launch::kdLaunch;
pub(crate) use library::{kdLibraryGlobal, kdLibraryKernelNames, kdLibraryLoad, kdLibraryModule};
pub(crate) use link::{kdLink, kdLinked};
pub(crate) use module::{kdModuleFunctionNames, kdModuleGlobal, kdModuleLoad};
pub(crate) use occupancy::{kdAvailableSharedMemory, kdClusters, kdOccupancy};
pub(crate) use output::kdOutput;
pub(crate) use packed::{kdCopyInPacked, kdCopyOutPacked};
pub(crate) use places::kdProcessorPlaces;
pub(crate) use reference::{
    kdReferenceEnd, kdSurfaceReference, kdSurfaceReferenceSet, kdTextureReference, kdTextureReferenceSet,
};
pub(crate) use rows::{kdRowsIn, kdRowsInStaged, kdRowsOut, kdRowsOutStaged};
pub(crate) use share::{
    kdEventBorrow, kdEventLend, kdForeignMap, kdForeignUnmap, kdMemoryBorrow, kdMemoryLend, kdMemoryTakeBack,
};
pub(crate) use stream_attribute::{kdStreamAttribute, kdStreamSetAttribute};
pub(crate) use tensor_map::kdTensorMap;
pub(crate) use texture::{kdLinearTextureWidth, kdSurfaceCreate, kdSurfaceDestroy, kdTextureCreate, kdTextureDestroy};
pub(crate) use upcall::{kdHostFunction, kdStreamCallback, kdUpcallNext, upcall_task};
pub(crate) use virtual_memory::{
    kdAddressFree, kdAddressReserve, kdMemoryAccess, kdMemoryCreate, kdMemoryGranularity, kdMemoryMap, kdMemoryRelease,
    kdMemorySetAccess, kdMemoryUnmap,
};

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
