// Clocks of the device advance, sleeping takes its time, and warps, lanes and blocks read their own indices.
#include "buffer.h"

constexpr int OUTS = 12;

__global__ void look(long long *out) {
    long long *o = out + (blockIdx.x * blockDim.x + threadIdx.x) * OUTS;
    unsigned long long before, after;
    unsigned lane, warp, warps, less, greater, equal, sm, sms;
    long long first = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(before));
    __nanosleep(20000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(after));
    long long second = clock64();
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warps));
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(less));
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(greater));
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(equal));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(sms));
    o[0] = second > first, o[1] = after >= before, o[2] = lane, o[3] = warp < warps, o[4] = less, o[5] = greater, o[6] = equal;
    o[7] = sm < sms, o[8] = clock() != 0, o[9] = warpSize, o[10] = gridDim.x * 100 + blockDim.x, o[11] = __isGlobal(out) + 2 * __isShared(&o[0]);
}

int main() {
    const int blocks = 3, threads = 70;
    Buffer<long long> out(blocks * threads * OUTS);
    look<<<blocks, threads>>>(out);
    RAN();
    std::vector<long long> all = out.read();
    for (int t = 0; t < blocks * threads; t++) {
        const long long *o = &all[t * OUTS];
        unsigned lane = unsigned(t % threads % 32);
        CHECK_QUIETLY(o[0] == 1 && o[1] == 1 && o[8] == 1, "clocks of thread %d", t);
        CHECK_QUIETLY(o[2] == lane && o[3] == 1 && o[7] == 1 && o[9] == 32, "numbers of thread %d", t);
        CHECK_QUIETLY(o[4] == (1u << lane) - 1 && o[5] == ~((1u << lane) - 1) && o[6] == 1u << lane, "masks of thread %d", t);
        CHECK_QUIETLY(o[10] == 370 && o[11] == 1, "sizes of thread %d", t);
    }
    printf("%d threads know the time and their places\n", blocks * threads);
    return finish("clocks");
}
