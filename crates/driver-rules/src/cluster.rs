//! Clusters of a launch, with the rules of an H200 with driver 580.
//!
//! Code may fix the cluster of a kernel, a program may fix it where code does not, and a launch may request one; all given
//! clusters must agree. Every error of clusters has the code 912.

use katydid_cuda_sys::{CUlaunchAttribute, CUresult, launch_attribute};

use crate::outcome::Outcome;

/// Blocks along each axis.
pub type Cluster = [u32; 3];

/// Most blocks of a cluster that every device can run.
pub const MAX_PORTABLE_CLUSTER_BLOCKS: u32 = 8;
/// Most blocks of a cluster that a kernel can be allowed (`CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`).
pub const MAX_CLUSTER_BLOCKS: u32 = 16;

/// The limits that code and program have set for a kernel.
#[derive(Debug, Clone, Copy)]
pub struct ClusterLimits {
    /// The cluster of all launches, if it is fixed.
    pub fixed: Option<Cluster>,
    /// Whether a launch needs a cluster.
    pub is_needed: bool,
    /// Most blocks that a cluster of the kernel may have.
    pub max_blocks: u32,
}

/// Returns the cluster that launch attributes request; none for any size.
#[inline]
pub fn requested_cluster(attributes: &[CUlaunchAttribute]) -> Option<Cluster> {
    let attribute = attributes.iter().rfind(|attribute| attribute.id == launch_attribute::CLUSTER_DIMENSION)?;
    let [first, second, ..] = attribute.value;
    let cluster = [first as u32, (first >> 32) as u32, second as u32];
    (cluster != [0; 3]).then_some(cluster)
}

/// Returns three sides that are set one by one, if all are set.
#[inline]
pub fn fixed(sides: [i32; 3]) -> Option<Cluster> {
    (!sides.contains(&0)).then_some(sides.map(i32::cast_unsigned))
}

/// Returns the most blocks of a cluster, by whether large ones are allowed.
#[inline]
pub fn most(allows_large: bool) -> u32 {
    if allows_large { MAX_CLUSTER_BLOCKS } else { MAX_PORTABLE_CLUSTER_BLOCKS }
}

impl ClusterLimits {
    /// Returns the cluster of a launch, which may request one.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_CLUSTER_SIZE`.
    #[inline]
    pub fn of_launch(&self, requested: Option<Cluster>, grid: [u32; 3]) -> Outcome<Option<Cluster>> {
        let wrong = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
        let Some(cluster) = requested.or(self.fixed) else {
            return if self.is_needed { wrong } else { Ok(None) };
        };
        let size = cluster.iter().try_fold(1, |size: u32, axis| size.checked_mul(*axis)).unwrap_or(u32::MAX);
        let fits = (1..=self.max_blocks).contains(&size)
            && self.fixed.is_none_or(|fixed| fixed == cluster)
            && grid.iter().zip(cluster).all(|(blocks, axis)| blocks % axis == 0);
        if fits { Ok(Some(cluster)) } else { wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ClusterLimits =
        ClusterLimits { fixed: None, is_needed: false, max_blocks: MAX_PORTABLE_CLUSTER_BLOCKS };
    const INVALID_CLUSTER: Outcome<Option<Cluster>> = Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);

    fn requested(cluster: Cluster) -> [CUlaunchAttribute; 1] {
        let mut attribute =
            CUlaunchAttribute { id: launch_attribute::CLUSTER_DIMENSION, ..CUlaunchAttribute::default() };
        attribute.value[0] = u64::from(cluster[0]) | u64::from(cluster[1]) << 32;
        attribute.value[1] = u64::from(cluster[2]);
        [attribute]
    }

    #[test]
    fn attributes_ask_for_three_sides_or_none() {
        assert_eq!(requested_cluster(&requested([2, 3, 4])), Some([2, 3, 4]));
        assert_eq!((requested_cluster(&requested([0; 3])), requested_cluster(&[])), (None, None));
        assert_eq!((fixed([2, 1, 1]), fixed([2, 0, 1])), (Some([2, 1, 1]), None));
    }

    #[test]
    fn a_cluster_divides_the_grid_and_is_not_too_large() {
        assert_eq!(PLAIN.of_launch(None, [5, 1, 1]), Ok(None));
        assert_eq!(PLAIN.of_launch(Some([2, 2, 2]), [96, 4, 4]), Ok(Some([2, 2, 2])));
        let large = ClusterLimits { max_blocks: most(true), ..PLAIN };
        assert_eq!(large.of_launch(Some([16, 1, 1]), [96, 4, 4]), Ok(Some([16, 1, 1])));
        for cluster in [[0, 1, 1], [16, 1, 1], [4, 4, 1], [5, 1, 1], [1, 3, 1], [u32::MAX, u32::MAX, 2]] {
            assert_eq!(PLAIN.of_launch(Some(cluster), [96, 4, 4]), INVALID_CLUSTER, "{cluster:?}");
        }
    }

    #[test]
    fn code_and_launch_must_agree() {
        let fixed = ClusterLimits { fixed: Some([2, 1, 1]), ..PLAIN };
        assert_eq!(fixed.of_launch(None, [8, 4, 1]), Ok(Some([2, 1, 1])));
        assert_eq!(
            (fixed.of_launch(None, [5, 1, 1]), fixed.of_launch(Some([4, 1, 1]), [8, 4, 1])),
            (INVALID_CLUSTER, INVALID_CLUSTER)
        );
        let needed = ClusterLimits { is_needed: true, ..PLAIN };
        assert_eq!(needed.of_launch(None, [8, 1, 1]), INVALID_CLUSTER);
        assert_eq!(needed.of_launch(Some([1, 1, 1]), [8, 1, 1]), Ok(Some([1, 1, 1])));
    }
}
