//! Clusters of blocks: what a launch may ask for is checked at the call, how many fit is asked of the worker.
//!
//! Everything that is wrong with clusters has the code 912, as measured on driver 580. A limit that only the code of a kernel
//! knows (`.maxclusterrank`) is the driver's to check, when the launch's turn comes.
#![expect(unsafe_code, reason = "reads configurations of C callers")]

use katydid_cuda_sys::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUresult, function_attribute, launch_attribute};
use katydid_wire::message::kdClusters;

use crate::code::properties::Code;
use crate::context::request::call;
use crate::context::stack;
use crate::ffi::arguments::out;
use crate::launch::target::Target;

/// Most blocks of a cluster, and of one that is larger than what every device can run.
const PORTABLE: u32 = 8;
const LARGEST: u32 = 16;

/// More attributes than any driver has.
const MOST_ATTRIBUTES: u32 = 64;

/// The cluster that attributes ask for; none of any size is no wish.
fn asked(attributes: &[CUlaunchAttribute]) -> Option<[u32; 3]> {
    let attribute = attributes.iter().rfind(|attribute| attribute.id == launch_attribute::CLUSTER_DIMENSION)?;
    let [first, second, ..] = attribute.value;
    let cluster = [first as u32, (first >> 32) as u32, second as u32];
    (cluster != [0; 3]).then_some(cluster)
}

/// Refuses a launch whose cluster cannot be.
pub(crate) fn check(code: &Code, grid: [u32; 3], attributes: &[CUlaunchAttribute]) -> Result<(), CUresult> {
    // Old drivers have no such attributes, and no clusters.
    let value = |id: u32| code.attribute(id).unwrap_or(0).cast_unsigned();
    let first = function_attribute::REQUIRED_CLUSTER_WIDTH;
    let fixed = [value(first), value(first + 1), value(first + 2)];
    let fixed = (!fixed.contains(&0)).then_some(fixed);
    let wrong = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    let Some(cluster) = asked(attributes).or(fixed) else {
        return if value(function_attribute::CLUSTER_SIZE_MUST_BE_SET) == 0 { Ok(()) } else { wrong };
    };
    let large = value(function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
    let most = if large { LARGEST } else { PORTABLE };
    let size = cluster.iter().try_fold(1, |size: u32, axis| size.checked_mul(*axis)).unwrap_or(u32::MAX);
    let fits = (1..=most).contains(&size)
        && fixed.is_none_or(|fixed| fixed == cluster)
        && grid.iter().zip(cluster).all(|(blocks, axis)| blocks % axis == 0);
    if fits { Ok(()) } else { wrong }
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
    if config.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract.
    let config = unsafe { config.read_unaligned() };
    if config.numAttrs > MOST_ATTRIBUTES || (config.numAttrs > 0 && config.attrs.is_null()) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the attributes are there, by the contract.
    let attributes = (0..config.numAttrs as usize).map(|at| unsafe { config.attrs.add(at).read_unaligned() });
    let cluster = asked(&attributes.collect::<Vec<_>>()).unwrap_or_default();
    stack::active()?;
    let (function, kernel) = Target::of(function)?.wire();
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
    use katydid_wire::facts::{Answer, FunctionFacts};

    /// Code whose cluster is fixed to `cluster`, if none of it is 0, and that may have large ones.
    fn code(cluster: [i32; 3], must: i32, large: i32) -> Code {
        let mut attributes = vec![Answer { code: 0, value: 0 }; 16];
        attributes[10].value = must;
        (0..3).for_each(|axis| attributes[11 + axis].value = cluster[axis]);
        attributes[14].value = large;
        Code::decode(&FunctionFacts { attributes, parameters: Vec::new() }.encode()).unwrap()
    }

    fn wish(cluster: [u32; 3]) -> Vec<CUlaunchAttribute> {
        let mut attribute =
            CUlaunchAttribute { id: launch_attribute::CLUSTER_DIMENSION, ..CUlaunchAttribute::default() };
        attribute.value[0] = u64::from(cluster[0]) | u64::from(cluster[1]) << 32;
        attribute.value[1] = u64::from(cluster[2]);
        vec![attribute]
    }

    const WRONG: Result<(), CUresult> = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);

    #[test]
    fn clusters_that_cannot_be_are_refused_at_the_call() {
        let (plain, large, fixed) = (code([0; 3], 0, 0), code([0; 3], 0, 1), code([2, 1, 1], 0, 0));
        assert_eq!(check(&plain, [5, 1, 1], &[]), Ok(()));
        assert_eq!(check(&plain, [96, 4, 4], &wish([0; 3])), Ok(()));
        assert_eq!(check(&plain, [96, 4, 4], &wish([2, 2, 2])), Ok(()));
        assert_eq!(check(&large, [96, 4, 4], &wish([16, 1, 1])), Ok(()));
        for cluster in [[0, 1, 1], [5, 1, 1], [16, 1, 1], [u32::MAX, u32::MAX, 2]] {
            assert_eq!(check(&plain, [96, 4, 4], &wish(cluster)), WRONG, "{cluster:?}");
        }
        assert_eq!((check(&fixed, [8, 1, 1], &[]), check(&fixed, [5, 1, 1], &[])), (Ok(()), WRONG));
        assert_eq!(check(&fixed, [8, 1, 1], &wish([4, 1, 1])), WRONG);
        assert_eq!(check(&code([0; 3], 1, 0), [8, 1, 1], &[]), WRONG);
    }
}
