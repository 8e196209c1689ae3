// Large copies between ordinary memory and the device while another thread launches kernels in the same stream, or in one
// ordered with it. A kernel sees all or nothing of a copy in, and a copy out has all or nothing of a kernel's output.
#include "check.h"

#include <atomic>
#include <thread>
#include <vector>

constexpr size_t WORDS = 6 << 20;
constexpr size_t ROW = 4096;
// Distance between the words that are checked.
constexpr size_t STEP = 32 << 10;
constexpr int SAMPLES = WORDS / STEP;
constexpr int ROUNDS = 6;

static_assert(SAMPLES <= 1024, "a block looks at all of them");

// Counts words that differ from the first.
__global__ void look(const int *words, int *torn) {
    if (words[threadIdx.x * STEP] != words[0]) atomicAdd(torn, 1);
}

__global__ void put(int *words, int value) { words[threadIdx.x * STEP] = value; }

// What went wrong in the other thread; only the main thread prints.
static std::atomic<int> wrong{0};

static void need(cudaError_t got) {
    if (got != cudaSuccess) wrong++;
}

// The stream of the copies and that of the kernels.
struct Streams {
    const char *what;
    cudaStream_t copies, kernels;
};

// Another thread launches kernels in the stream while this one copies.
template <typename Kernel, typename Copy> static void beside(cudaStream_t stream, Kernel kernel, Copy copy) {
    std::atomic<bool> is_over{false}, has_begun{false};
    std::thread other([&] {
        cudaEvent_t done;
        need(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        for (int number = 1; !is_over; number++) {
            kernel(number);
            need(cudaEventRecord(done, stream));
            has_begun = true;
            need(cudaEventSynchronize(done));
        }
        need(cudaEventDestroy(done));
    });
    while (!has_begun) std::this_thread::yield();
    for (int round = 1; round <= ROUNDS; round++) copy(round);
    is_over = true;
    other.join();
}

// Rows with gaps on the host's side travel in another way than consecutive bytes.
static void copy(int *device, int *host, cudaMemcpyKind kind, bool has_gaps, cudaStream_t stream) {
    bool is_in = kind == cudaMemcpyHostToDevice;
    if (!has_gaps) {
        OK(cudaMemcpyAsync(is_in ? device : host, is_in ? host : device, WORDS * sizeof(int), kind, stream));
        return;
    }
    size_t row = ROW * sizeof(int), wide = row + 64;
    if (is_in) OK(cudaMemcpy2DAsync(device, row, host, wide, row, WORDS / ROW, kind, stream));
    else OK(cudaMemcpy2DAsync(host, wide, device, row, row, WORDS / ROW, kind, stream));
}

// Returns the place in host memory of one of the device's words.
static size_t place(size_t word, bool has_gaps) { return has_gaps ? word / ROW * (ROW + 16) + word % ROW : word; }

static void copies_in(const Streams &streams, bool has_gaps) {
    int *words, *torn, host_torn = -1;
    std::vector<int> host(WORDS + WORDS / ROW * 16);
    OK(cudaMalloc(&words, WORDS * sizeof(int)));
    OK(cudaMalloc(&torn, sizeof(int)));
    OK(cudaMemset(words, 0, WORDS * sizeof(int)));
    OK(cudaMemset(torn, 0, sizeof(int)));
    OK(cudaDeviceSynchronize());
    auto kernel = [&](int) { look<<<1, SAMPLES, 0, streams.kernels>>>(words, torn); };
    beside(streams.kernels, kernel, [&](int round) {
        for (size_t word = 0; word < WORDS; word += STEP) host[place(word, has_gaps)] = round;
        copy(words, host.data(), cudaMemcpyHostToDevice, has_gaps, streams.copies);
    });
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&host_torn, torn, sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(host_torn == 0, "%s, gaps %d: %d words were those of another copy", streams.what, has_gaps, host_torn);
    OK(cudaFree(words));
    OK(cudaFree(torn));
}

static void copies_out(const Streams &streams, bool has_gaps) {
    int *words, torn = 0;
    std::vector<int> host(WORDS + WORDS / ROW * 16);
    OK(cudaMalloc(&words, WORDS * sizeof(int)));
    OK(cudaMemset(words, 0, WORDS * sizeof(int)));
    OK(cudaDeviceSynchronize());
    auto kernel = [&](int number) { put<<<1, SAMPLES, 0, streams.kernels>>>(words, number); };
    beside(streams.kernels, kernel, [&](int) {
        copy(words, host.data(), cudaMemcpyDeviceToHost, has_gaps, streams.copies);
        OK(cudaStreamSynchronize(streams.copies));
        for (size_t word = 0; word < WORDS; word += STEP) torn += host[place(word, has_gaps)] != host[0];
    });
    CHECK(torn == 0, "%s, gaps %d: %d words were those of another kernel", streams.what, has_gaps, torn);
    OK(cudaFree(words));
}

// More threads than can be in progress at once, each with copies of its own size in the single default stream.
static void crowd() {
    std::atomic<int> differ{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 20; thread++) {
        threads.emplace_back([&differ, thread] {
            int *device;
            std::vector<int> there(thread % 3 == 0 ? 2 << 20 : 100 << 10), back(there.size());
            need(cudaMalloc(&device, there.size() * sizeof(int)));
            for (int round = 0; round < 3; round++) {
                for (size_t i = 0; i < there.size(); i++) there[i] = thread + round + int(i);
                need(cudaMemcpy(device, there.data(), there.size() * sizeof(int), cudaMemcpyHostToDevice));
                need(cudaMemcpy(back.data(), device, there.size() * sizeof(int), cudaMemcpyDeviceToHost));
                differ += back != there;
            }
            need(cudaFree(device));
        });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK(differ == 0, "%d copies came back otherwise", differ.load());
}

int main() {
    cudaStream_t one, blocking;
    OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    OK(cudaStreamCreate(&blocking));
    const Streams all[] = {
        {"one stream", one, one},
        {"the default stream and a blocking one", nullptr, blocking},
        {"a blocking stream and the default one", blocking, nullptr},
    };
    for (const Streams &streams : all) {
        for (bool has_gaps : {false, true}) {
            copies_in(streams, has_gaps);
            copies_out(streams, has_gaps);
        }
        printf("copies beside kernels: %s\n", streams.what);
    }
    crowd();
    printf("copies beside copies\n");
    CHECK(wrong == 0, "%d calls of the other thread failed", wrong.load());
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(blocking));
    OK(cudaDeviceSynchronize());
    return finish("whole_copies");
}
