//! Every exported symbol, generated from `spec/cuda.api` and the functions of [`crate::api`], and the marker that tells
//! this library from NVIDIA's.

#![allow(unsafe_code, reason = "exported symbols are unsafe to declare and to call")]
#![allow(missing_docs, unreachable_pub, clippy::too_many_arguments, reason = "generated under the vendor's names")]

use katydid_cuda_sys as sys;

include!(concat!(env!("OUT_DIR"), "/soft_entry.rs"));

/// Exists only in this library. `katydid doctor` uses it to tell which driver a worker has.
#[unsafe(no_mangle)]
pub static katydid_softcuda_marker: u32 = 1;
