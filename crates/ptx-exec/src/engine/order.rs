//! The order in which the blocks of a grid start: x first, and in a launch of clusters one cluster after the other.

/// Blocks in a grid and in each of its clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockOrder {
    /// Blocks along each axis of the grid.
    pub(crate) grid: [u32; 3],
    /// Blocks of a cluster, by which those of the grid can be divided; 1 each in a launch without clusters.
    pub(crate) cluster: [u32; 3],
}

impl BlockOrder {
    /// Blocks of a cluster.
    pub(crate) fn size(self) -> u32 {
        self.cluster.iter().product()
    }

    /// Clusters along each axis.
    pub(crate) fn clusters(self) -> [u32; 3] {
        std::array::from_fn(|axis| self.grid[axis] / self.cluster[axis].max(1))
    }

    /// Index of the block that starts as number `number`.
    pub(crate) fn index(self, number: u64) -> [u32; 3] {
        let size = u64::from(self.size()).max(1);
        let (cluster, within) = (index_of(number / size, self.clusters()), index_of(number % size, self.cluster));
        std::array::from_fn(|axis| cluster[axis] * self.cluster[axis] + within[axis])
    }

    /// The reverse of `index`.
    pub(crate) fn number(self, index: [u32; 3]) -> u64 {
        let cluster = together(self.cluster_of(index), self.clusters());
        cluster * u64::from(self.size()) + u64::from(self.rank(index))
    }

    /// Index of the cluster that a block is in.
    pub(crate) fn cluster_of(self, index: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| index[axis] / self.cluster[axis].max(1))
    }

    /// Index of a block in its cluster.
    pub(crate) fn index_in_cluster(self, index: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| index[axis] % self.cluster[axis].max(1))
    }

    /// Number of a block in its cluster.
    pub(crate) fn rank(self, index: [u32; 3]) -> u32 {
        together(self.index_in_cluster(index), self.cluster) as u32
    }
}

/// A number as an index, x first.
fn index_of(number: u64, sizes: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(sizes[0]).max(1), u64::from(sizes[1]).max(1));
    [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
}

/// The reverse of `index_of`.
fn together(index: [u32; 3], sizes: [u32; 3]) -> u64 {
    let ([x, y, z], [width, height, _]) = (index.map(u64::from), sizes.map(u64::from));
    (z * height + y) * width + x
}

/// Where the number of a block stands in an address of shared memory.
pub(crate) const BLOCK_RANK_SHIFT: u32 = 24;

/// Most blocks of a cluster, for kernels that ask to go beyond the portable 8.
pub const MAX_CLUSTER_BLOCKS: u32 = 16;

/// Offset `address` in block `rank` instead of where it was.
pub(crate) fn address_in_block(address: u64, rank: u32) -> u64 {
    (address & ((1 << BLOCK_RANK_SHIFT) - 1)) | u64::from(rank) << BLOCK_RANK_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_x_first() {
        let order = BlockOrder { grid: [4, 3, 2], cluster: [1; 3] };
        let indices = [0, 3, 4, 23].map(|number| order.index(number));
        assert_eq!(indices, [[0, 0, 0], [3, 0, 0], [0, 1, 0], [3, 2, 1]]);
        assert_eq!(indices.map(|index| order.number(index)), [0, 3, 4, 23]);
    }

    #[test]
    fn blocks_of_a_cluster_follow_each_other() {
        let order = BlockOrder { grid: [4, 4, 2], cluster: [2, 2, 1] };
        let indices: Vec<_> = (0..6).map(|number| order.index(number)).collect();
        assert_eq!(indices, [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [2, 0, 0], [3, 0, 0]]);
        assert!((0..32).all(|number| order.number(order.index(number)) == number));
        assert_eq!((order.rank([3, 1, 0]), order.cluster_of([3, 1, 1]), order.clusters()), (3, [1, 0, 1], [2, 2, 2]));
    }
}
