//! Clusters of blocks: the call checks a launch's cluster, and the worker answers how many fit.
//!
//! The driver checks a limit that only a kernel's code knows (`.maxclusterrank`), when the launch reaches it.
#![expect(unsafe_code, reason = "reads configurations of C callers")]

use katydid_cuda_sys::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUresult, function_attribute};
use katydid_driver_rules::caller;
use katydid_driver_rules::cluster::{self, ClusterLimits, requested_cluster};
use katydid_driver_rules::launch;
use katydid_wire::message::kdClusters;

use crate::code::properties::Code;
use crate::context::request::call;
use crate::context::stack;
use crate::ffi::arguments::out;
use crate::launch::target::LaunchTarget;

/// Refuses a launch with an impossible cluster.
pub(crate) fn check(code: &Code, grid: [u32; 3], attributes: &[CUlaunchAttribute]) -> Result<(), CUresult> {
    // Old drivers have no such attributes, and no clusters.
    let value = |id: u32| code.attribute(id).unwrap_or(0);
    let first = function_attribute::REQUIRED_CLUSTER_WIDTH;
    let limits = ClusterLimits {
        fixed: cluster::fixed([value(first), value(first + 1), value(first + 2)]),
        is_needed: value(function_attribute::CLUSTER_SIZE_MUST_BE_SET) != 0,
        max_blocks: cluster::most(value(function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0),
    };
    limits.of_launch(requested_cluster(attributes), grid).map(drop)
}

/// # Safety
///
/// `target` is null or writable; `config` is null or readable, with as many attributes as it says.
unsafe fn question(
    target: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
    potential: bool,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    // SAFETY: null or readable, by the contract.
    let config = unsafe { caller::read(config) }?;
    // SAFETY: the attributes are there, by the contract.
    let attributes = unsafe { launch::attributes(&config) }?;
    let cluster = requested_cluster(&attributes.collect::<Vec<_>>()).unwrap_or_default();
    stack::active()?;
    let (function, kernel) = LaunchTarget::of(function)?.wire();
    let answer = call(&kdClusters {
        function,
        kernel,
        gridX: config.gridDimX,
        gridY: config.gridDimY,
        gridZ: config.gridDimZ,
        blockX: config.blockDimX,
        blockY: config.blockDimY,
        blockZ: config.blockDimZ,
        sharedSize: config.sharedMemBytes,
        clusterX: cluster[0],
        clusterY: cluster[1],
        clusterZ: cluster[2],
        potential: u32::from(potential),
    })?;
    target.write(answer.answer);
    Ok(())
}

/// # Safety
///
/// As [`question`].
pub(crate) unsafe fn max_potential_size(
    target: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { question(target, function, config, true) }
}

/// # Safety
///
/// As [`question`].
pub(crate) unsafe fn max_active(
    target: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { question(target, function, config, false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_wire::facts::{DriverAnswer, FunctionFacts};

    /// Makes code whose cluster is fixed to `cluster`, if none of it is 0, and that may have large ones.
    fn code(cluster: [i32; 3], must: i32, large: i32) -> Code {
        let mut attributes = vec![DriverAnswer { code: 0, value: 0 }; 16];
        attributes[10].value = must;
        (0..3).for_each(|axis| attributes[11 + axis].value = cluster[axis]);
        attributes[14].value = large;
        Code::decode(&FunctionFacts { attributes, parameters: Vec::new() }.encode()).unwrap()
    }

    const INVALID_CLUSTER: Result<(), CUresult> = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);

    #[test]
    fn cluster_attributes_of_the_function_apply_to_a_launch() {
        let (plain, fixed) = (code([0; 3], 0, 0), code([2, 1, 1], 0, 0));
        assert_eq!(
            (check(&plain, [5, 1, 1], &[]), check(&code([0; 3], 1, 0), [8, 1, 1], &[])),
            (Ok(()), INVALID_CLUSTER)
        );
        assert_eq!((check(&fixed, [8, 1, 1], &[]), check(&fixed, [5, 1, 1], &[])), (Ok(()), INVALID_CLUSTER));
        let large = |large| check(&code([16, 1, 1], 0, large), [16, 1, 1], &[]);
        assert_eq!((large(0), large(1)), (INVALID_CLUSTER, Ok(())));
    }
}
