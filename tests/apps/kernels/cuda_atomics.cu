// libcu++: atomics with orders and scopes, reference atomics, a barrier, a latch and a semaphore of device scope, and
// the fixed-size containers and numeric helpers of cuda::std in device code.
#include "buffer.h"

#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/optional>
#include <cuda/std/tuple>

struct Shared {
    cuda::atomic<int, cuda::thread_scope_device> counter{0};
    cuda::atomic<unsigned long long, cuda::thread_scope_system> wide{1};
    cuda::atomic<float, cuda::thread_scope_device> real{0.0f};
    cuda::atomic<signed char, cuda::thread_scope_device> narrow{0};
    cuda::counting_semaphore<cuda::thread_scope_device, 2> two{2};
    cuda::latch<cuda::thread_scope_device> all{64};
    int inside = 0, most = 0, after_latch = 0;
};

__global__ void make(Shared *place) { new (place) Shared(); }

__global__ void use(Shared *s, int *plain) {
    s->counter.fetch_add(int(threadIdx.x), cuda::memory_order_relaxed);
    s->wide.fetch_max(1ull << threadIdx.x, cuda::memory_order_acq_rel);
    s->real.fetch_add(0.5f, cuda::memory_order_seq_cst);
    s->narrow.fetch_add(1, cuda::memory_order_release);
    cuda::atomic_ref<int, cuda::thread_scope_block> here(*plain);
    here.fetch_xor(1 << (threadIdx.x % 31));
    int seen = here.load(cuda::memory_order_acquire);
    while (!here.compare_exchange_weak(seen, seen + (1 << 4))) {}
    // At most two threads are between these at a time.
    if (threadIdx.x % 8 == 0) {
        s->two.acquire();
        int now = atomicAdd(&s->inside, 1) + 1;
        atomicMax(&s->most, now);
        atomicSub(&s->inside, 1);
        s->two.release();
    }
    s->all.arrive_and_wait();
    atomicAdd(&s->after_latch, s->counter.load() == 64 * 63 / 2);
}

// The barriers are made by `init` below, not by their constructors.
#pragma nv_diag_suppress static_var_with_dynamic_init

// Producers and consumers in one block hand tiles over through a pair of barriers.
__global__ void hand_over(const int *in, int *out, int tiles) {
    __shared__ cuda::barrier<cuda::thread_scope_block> full, empty;
    __shared__ int tile[32];
    if (threadIdx.x == 0) init(&full, 64), init(&empty, 64);
    __syncthreads();
    bool producer = threadIdx.x < 32;
    int lane = int(threadIdx.x % 32);
    for (int t = 0; t < tiles; t++) {
        if (producer) {
            empty.arrive_and_wait();
            tile[lane] = in[t * 32 + lane];
            (void)full.arrive();
        } else {
            (void)empty.arrive();
            full.arrive_and_wait();
            out[t * 32 + lane] = tile[31 - lane] * 2;
        }
    }
}

__global__ void helpers(int *out) {
    cuda::std::array<int, 8> squares{};
    for (int i = 0; i < 8; i++) squares[i] = i * i;
    auto [sum, first] = cuda::std::tuple<int, int>(squares[3] + squares[7], squares.front());
    cuda::std::complex<float> z(3, 4), w = z * z;
    cuda::std::optional<int> maybe = threadIdx.x % 2 ? cuda::std::optional<int>(7) : cuda::std::nullopt;
    out[threadIdx.x] = sum + first + int(w.imag()) * 100 + maybe.value_or(1) * 10000 + cuda::std::popcount(255u) * 100000;
}

int main() {
    Buffer<Shared> shared(1);
    Buffer<int> plain(1);
    make<<<1, 1>>>(shared);
    use<<<1, 64>>>(shared, plain);
    RAN();
    Shared s;
    OK(cudaMemcpy(static_cast<void *>(&s), shared, sizeof s, cudaMemcpyDeviceToHost));
    CHECK(s.counter.load() == 2016 && s.wide.load() == 1ull << 63, "%d, %llx", s.counter.load(), s.wide.load());
    CHECK(s.real.load() == 32 && s.narrow.load() == 64, "%g, %d", s.real.load(), s.narrow.load());
    CHECK(s.most >= 1 && s.most <= 2 && s.inside == 0, "%d at a time", s.most);
    CHECK(s.after_latch == 64, "%d saw everything behind the latch", s.after_latch);
    const int tiles = 9;
    std::vector<int> in(tiles * 32);
    for (size_t i = 0; i < in.size(); i++) in[i] = int(i * i % 1000);
    Buffer<int> device_in(in), out(in.size()), values(2);
    hand_over<<<1, 64>>>(device_in, out, tiles);
    RAN();
    std::vector<int> o = out.read();
    for (size_t i = 0; i < o.size(); i++) CHECK_QUIETLY(o[i] == in[i / 32 * 32 + 31 - i % 32] * 2, "handed over %zu: %d", i, o[i]);
    helpers<<<1, 2>>>(values);
    RAN();
    CHECK(values.read()[0] == 812458 && values.read()[1] == 872458, "%d, %d", values.read()[0], values.read()[1]);
    printf("64 threads used 6 kinds of atomics, %d tiles were handed over\n", tiles);
    return finish("cuda_atomics");
}
