// Copies of tensors by maps: boxes that come and go, their edges, a swizzle, a reduction, and more than two dimensions.
#include "check.h"

#include <cuda.h>
#include <cuda/ptx>
#include <vector>

namespace ptx = cuda::ptx;

constexpr int WIDTH = 40, HEIGHT = 12, PITCH = 44, COLUMNS = 32, ROWS = 4, BOX = COLUMNS * ROWS;

using Encode = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                            const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode encode() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    return Encode(function);
}

// A box at (x, y) goes to `out` and, a row lower, is added to the tensor.
__global__ void boxes(const __grid_constant__ CUtensorMap map, int x, int y, int *out, bool add) {
    __shared__ alignas(1024) int box[BOX];
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_proxy_async(ptx::space_shared);
        int corner[2] = {x, y};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &map, corner, &barrier);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof box);
    }
    __syncthreads();
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int at = threadIdx.x; at < BOX; at += blockDim.x) out[at] = box[at];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        int corner[2] = {x, y + 1};
        if (add) ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, ptx::op_add, &map, corner, box);
        else ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, corner, box);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

// The same of a tensor of four dimensions, of which each box is one row and one plane.
__global__ void deep(const __grid_constant__ CUtensorMap map, int *out) {
    __shared__ alignas(128) int box[8];
    __shared__ uint64_t barrier;
    ptx::mbarrier_init(&barrier, 1);
    ptx::fence_proxy_async(ptx::space_shared);
    int corner[4] = {4, 1, 2, 1};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &map, corner, &barrier);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof box);
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int at = 0; at < 8; at++) out[at] = box[at];
}

// What element (x, y) of the tensor holds at first.
int element(int x, int y) { return 1000 * y + x; }

void check(int x, int y, bool swizzled, bool add) {
    std::vector<int> tensor(PITCH * HEIGHT), box(BOX), after(PITCH * HEIGHT);
    for (int at = 0; at < PITCH * HEIGHT; at++) tensor[at] = element(at % PITCH, at / PITCH);
    int *memory, *out;
    OK(cudaMalloc(&memory, tensor.size() * 4));
    OK(cudaMalloc(&out, BOX * 4));
    OK(cudaMemcpy(memory, tensor.data(), tensor.size() * 4, cudaMemcpyHostToDevice));
    CUtensorMap map;
    cuuint64_t sizes[2] = {WIDTH, HEIGHT}, strides[1] = {PITCH * 4};
    cuuint32_t tile[2] = {COLUMNS, ROWS}, steps[2] = {1, 1};
    auto swizzle = swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
    OK(encode()(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, memory, sizes, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    boxes<<<1, 32>>>(map, x, y, out, add);
    OK(cudaMemcpy(box.data(), out, BOX * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(after.data(), memory, after.size() * 4, cudaMemcpyDeviceToHost));
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < COLUMNS; column++) {
            int tx = x + column, ty = y + row;
            bool inside = tx >= 0 && tx < WIDTH && ty >= 0 && ty < HEIGHT;
            int value = inside ? element(tx, ty) : 0;
            int piece = swizzled ? (column / 4 ^ row % 8) * 4 + column % 4 : column;
            CHECK(box[row * COLUMNS + piece] == value, "(%d, %d): %d, wanted %d", tx, ty, box[row * COLUMNS + piece], value);
            if (tx < 0 || tx >= WIDTH || ty + 1 < 0 || ty + 1 >= HEIGHT) continue;
            int wanted = value + (add ? element(tx, ty + 1) : 0);
            int now = after[(ty + 1) * PITCH + tx];
            CHECK(now == wanted, "(%d, %d) afterwards: %d, wanted %d", tx, ty + 1, now, wanted);
            tensor[(ty + 1) * PITCH + tx] = wanted;
        }
    }
    CHECK(tensor == after, "something outside of the box has changed");
    OK(cudaFree(memory));
    OK(cudaFree(out));
}

void check_deep() {
    std::vector<int> tensor(16 * 3 * 4 * 2);
    for (size_t at = 0; at < tensor.size(); at++) tensor[at] = int(at);
    int *memory, *out, found[8];
    OK(cudaMalloc(&memory, tensor.size() * 4));
    OK(cudaMalloc(&out, sizeof found));
    OK(cudaMemcpy(memory, tensor.data(), tensor.size() * 4, cudaMemcpyHostToDevice));
    CUtensorMap map;
    cuuint64_t sizes[4] = {16, 3, 4, 2}, strides[3] = {64, 192, 768};
    cuuint32_t tile[4] = {8, 1, 1, 1}, steps[4] = {1, 1, 1, 1};
    OK(encode()(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 4, memory, sizes, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    deep<<<1, 1>>>(map, out);
    OK(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
    for (int at = 0; at < 8; at++) {
        int wanted = 4 + at + 16 * (1 + 3 * (2 + 4 * 1));
        CHECK(found[at] == wanted, "element %d: %d, wanted %d", at, found[at], wanted);
    }
    OK(cudaFree(memory));
    OK(cudaFree(out));
}

int main() {
    check(0, 0, false, false);
    check(-5, 2, false, true);
    check(20, 9, false, false);
    check(4, 3, true, true);
    check(36, -2, true, false);
    check_deep();
    return finish("tensor_copies");
}
