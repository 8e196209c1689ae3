//! The settings that a program can change on a function.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::cluster::{self, Cluster};
use katydid_ptx_exec::Kernel;

use crate::ffi::Outcome;
use crate::process::attributes::DEFAULT_BLOCK_SHARED_BYTES;

/// A cluster that a program sets on a kernel, axis by axis. It counts once all three axes are set.
#[derive(Debug, Default)]
pub(crate) struct ClusterSetting([AtomicI32; 3]);

impl ClusterSetting {
    /// Returns the value of an axis: from the code if that fixes it, else as set.
    pub(crate) fn axis(&self, kernel: &Kernel, axis: usize) -> i32 {
        let of_code = kernel.required_cluster.map(|cluster| i32::try_from(cluster[axis]).unwrap_or(i32::MAX));
        of_code.unwrap_or_else(|| self.0[axis].load(Ordering::Relaxed))
    }

    /// Sets an axis, unless the code fixes it.
    pub(crate) fn set(&self, kernel: &Kernel, axis: usize, value: i32) -> Outcome {
        if kernel.required_cluster.is_some() || value < 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.0[axis].store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the cluster of a kernel, if code or program have fixed it.
    pub(super) fn cluster(&self, kernel: &Kernel) -> Option<Cluster> {
        cluster::fixed([0, 1, 2].map(|axis| self.axis(kernel, axis)))
    }
}

/// Settings of a function. A library's kernel and its functions in all contexts of a device share them.
pub(crate) struct FunctionSettings {
    /// Most dynamic shared memory of a launch, in bytes.
    pub(crate) most_dynamic: AtomicU32,
    /// Preferred share of shared memory in percent, -1 for none: a hint.
    pub(super) carveout: AtomicI32,
    /// Whether larger clusters than portable ones are allowed.
    pub(super) large_clusters: AtomicI32,
    /// Cluster scheduling: a hint.
    pub(super) scheduling: AtomicI32,
    /// The cluster that launches get.
    pub(crate) cluster: ClusterSetting,
}

impl FunctionSettings {
    /// Returns the initial settings of a kernel.
    pub(crate) fn for_kernel(kernel: &Kernel) -> Arc<Self> {
        Arc::new(Self {
            most_dynamic: AtomicU32::new(DEFAULT_BLOCK_SHARED_BYTES.saturating_sub(kernel.static_shared)),
            carveout: AtomicI32::new(-1),
            large_clusters: AtomicI32::new(0),
            scheduling: AtomicI32::new(0),
            cluster: ClusterSetting::default(),
        })
    }

    /// Returns whether clusters may be larger than the size that every device can run.
    pub(crate) fn allows_large_clusters(&self) -> bool {
        self.large_clusters.load(Ordering::Relaxed) != 0
    }
}
