//! Clusters: the cluster of a launch, and how many clusters the device holds, as on an H200 with driver 580.

use katydid_driver_rules::cluster::{self, Cluster, ClusterLimits, MAX_CLUSTER_BLOCKS};
use katydid_ptx_exec::Kernel;

use crate::code::function_settings::FunctionSettings;
use crate::ffi::Outcome;

// The interpreter and the rules of the driver state it for themselves, since neither crate may use the other.
const _: () = assert!(katydid_ptx_exec::MAX_CLUSTER_BLOCKS == MAX_CLUSTER_BLOCKS);

/// Returns the most blocks that a kernel's cluster may have with its settings.
fn most(settings: &FunctionSettings) -> u32 {
    cluster::most(settings.allows_large_clusters())
}

/// Settles the cluster of a launch.
pub(crate) fn of_launch(
    requested: Option<Cluster>,
    grid: [u32; 3],
    kernel: &Kernel,
    settings: &FunctionSettings,
) -> Outcome<Option<Cluster>> {
    let limits = ClusterLimits {
        fixed: settings.cluster.cluster(kernel),
        is_needed: kernel.needs_cluster,
        max_blocks: most(settings).min(kernel.max_cluster.unwrap_or(MAX_CLUSTER_BLOCKS)),
    };
    limits.of_launch(requested, grid)
}

/// Returns how many clusters the device holds at once if it holds `blocks` of their blocks. Blocks take turns, so it holds at
/// least one cluster of any size.
pub(crate) fn active(cluster: Option<Cluster>, blocks: u32) -> u32 {
    let Some(cluster) = cluster else { return 0 };
    let size: u32 = cluster.iter().product();
    if blocks == 0 { 0 } else { (blocks / size.max(1)).max(1) }
}

/// Returns the largest cluster of a kernel if the device holds `blocks` of its blocks.
pub(crate) fn potential(settings: &FunctionSettings, blocks: u32) -> u32 {
    if blocks == 0 { 0 } else { most(settings) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::module_image::{AddressOnlyMemory, Code};
    use katydid_cuda_sys::CUresult;
    use std::sync::Arc;

    fn kernel(directives: &str) -> Arc<Kernel> {
        let text =
            format!(".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k() {directives} {{ ret; }}");
        let program = Code::from_bytes(text.as_bytes()).unwrap().load(&mut AddressOnlyMemory::default()).unwrap();
        program.kernel("k").unwrap()
    }

    fn cluster(kernel: &Kernel, requested: Option<Cluster>, grid: [u32; 3]) -> Outcome<Option<Cluster>> {
        of_launch(requested, grid, kernel, &FunctionSettings::for_kernel(kernel))
    }

    const INVALID_CLUSTER: Outcome<Option<Cluster>> = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);

    #[test]
    fn code_and_launch_must_agree() {
        let fixed = kernel(".reqnctapercluster 2");
        assert_eq!(cluster(&fixed, None, [8, 4, 1]), Ok(Some([2, 1, 1])));
        assert_eq!(cluster(&fixed, None, [5, 1, 1]), INVALID_CLUSTER);
        assert_eq!(cluster(&fixed, Some([4, 1, 1]), [8, 4, 1]), INVALID_CLUSTER);
        let explicit = kernel(".explicitcluster .maxclusterrank 4");
        assert_eq!(cluster(&explicit, None, [8, 1, 1]), INVALID_CLUSTER);
        assert_eq!(cluster(&explicit, Some([1, 1, 1]), [8, 1, 1]), Ok(Some([1, 1, 1])));
        assert_eq!(cluster(&explicit, Some([8, 1, 1]), [8, 1, 1]), INVALID_CLUSTER);
    }

    #[test]
    fn a_program_can_fix_what_code_leaves_open() {
        let (plain, fixed) = (kernel(""), kernel(".reqnctapercluster 2"));
        let settings = FunctionSettings::for_kernel(&plain);
        assert_eq!(settings.cluster.set(&fixed, 0, 4), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!((settings.cluster.axis(&fixed, 0), settings.cluster.axis(&plain, 0)), (2, 0));
        for (axis, value) in [2, 1, 1].into_iter().enumerate() {
            assert_eq!(of_launch(None, [5, 1, 1], &plain, &settings), Ok(None));
            settings.cluster.set(&plain, axis, value).unwrap();
        }
        assert_eq!(of_launch(None, [5, 1, 1], &plain, &settings), INVALID_CLUSTER);
        assert_eq!(of_launch(None, [8, 1, 1], &plain, &settings), Ok(Some([2, 1, 1])));
    }
}
