//! The start order of the blocks of a grid: x first, and cluster by cluster in a launch with clusters.

/// Blocks in a grid and in each of its clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockOrder {
    /// Blocks along each axis of the grid.
    pub(crate) grid: [u32; 3],
    /// Blocks of a cluster, which divide those of the grid; 1 each in a launch without clusters.
    pub(crate) cluster: [u32; 3],
}

impl BlockOrder {
    /// Returns the blocks of a cluster.
    pub(crate) fn size(self) -> u32 {
        self.cluster.iter().product()
    }

    /// Returns the clusters along each axis.
    pub(crate) fn clusters(self) -> [u32; 3] {
        std::array::from_fn(|axis| self.grid[axis] / self.cluster[axis].max(1))
    }

    /// Returns the index of the block that starts as number `number`.
    pub(crate) fn index(self, number: u64) -> [u32; 3] {
        let size = u64::from(self.size()).max(1);
        let (cluster, within) = (index_of(number / size, self.clusters()), index_of(number % size, self.cluster));
        std::array::from_fn(|axis| cluster[axis] * self.cluster[axis] + within[axis])
    }

    /// Returns the number of a block by its index.
    pub(crate) fn number(self, index: [u32; 3]) -> u64 {
        let cluster = together(self.cluster_of(index), self.clusters());
        cluster * u64::from(self.size()) + u64::from(self.rank(index))
    }

    /// Returns the index of a block's cluster.
    pub(crate) fn cluster_of(self, index: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| index[axis] / self.cluster[axis].max(1))
    }

    /// Returns the index of a block in its cluster.
    pub(crate) fn index_in_cluster(self, index: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| index[axis] % self.cluster[axis].max(1))
    }

    /// Returns the number of a block in its cluster.
    pub(crate) fn rank(self, index: [u32; 3]) -> u32 {
        together(self.index_in_cluster(index), self.cluster) as u32
    }
}

/// Converts a number to an index, x first.
fn index_of(number: u64, sizes: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(sizes[0]).max(1), u64::from(sizes[1]).max(1));
    [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
}

/// Converts an index to a number.
fn together(index: [u32; 3], sizes: [u32; 3]) -> u64 {
    let ([x, y, z], [width, height, _]) = (index.map(u64::from), sizes.map(u64::from));
    (z * height + y) * width + x
}

/// Position of a block's rank in an address of shared memory.
pub(crate) const BLOCK_RANK_SHIFT: u32 = 24;

/// Most blocks of a cluster, for kernels that exceed the portable 8.
pub const MAX_CLUSTER_BLOCKS: u32 = 16;

/// Moves offset `address` to block `rank`.
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
