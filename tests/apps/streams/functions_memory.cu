// Memory of the program that streams, host functions and copies use in turns. Each sees what earlier ones in the stream
// wrote, whichever side accesses the memory, and whatever was queued before any of them ran.
#include "check.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

constexpr int N = 2048, BYTES = N * sizeof(unsigned);

__global__ void raise(unsigned *cells, unsigned by) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) cells[i] = cells[i] * 3 + by + i;
}
__global__ void take(unsigned *to, const unsigned *from) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) to[i] = from[i];
}
__global__ void every_other(unsigned *cells, int first, unsigned value) {
    for (int i = 2 * threadIdx.x + first; i < N; i += 2 * blockDim.x) cells[i] = value + i;
}

__global__ void count(unsigned *cell) { ++*cell; }
// Takes a while.
__global__ void linger(unsigned *cell, int turns) {
    unsigned value = *cell;
    while (turns-- > 0) value = value * 1664525 + 1013904223 + (value >> 7);
    *cell = value;
}

__managed__ unsigned variable[N];

enum Kind { PINNED, REGISTERED, MANAGED, VARIABLE, MAPPED, KINDS };
static const char *const NAMES[] = {"pinned", "registered", "managed", "a variable's", "mapped"};

template <typename F> static F driver(const char *name, F) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    OK(cudaGetDriverEntryPointByVersion(name, &found, 12020, cudaEnableDefault, &result));
    return reinterpret_cast<F>(found);
}
#define DRIVER(name) driver(#name, decltype(&name)())

// A block of the host's memory, mapped for the program and the device.
struct Mapping {
    CUdeviceptr start;
    size_t size;
    Mapping() {
        CUmemAllocationProp request = {};
        request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        request.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
        CUmemAccessDesc grants[2] = {};
        grants[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        grants[1].location.type = CU_MEM_LOCATION_TYPE_HOST;
        for (CUmemAccessDesc &grant : grants) grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CUmemGenericAllocationHandle block;
        OK(DRIVER(cuMemGetAllocationGranularity)(&size, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        OK(DRIVER(cuMemAddressReserve)(&start, size, 0, 0, 0));
        OK(DRIVER(cuMemCreate)(&block, size, &request, 0));
        OK(DRIVER(cuMemMap)(start, size, 0, block, 0));
        OK(DRIVER(cuMemRelease)(block));
        OK(DRIVER(cuMemSetAccess)(start, size, grants, 2));
    }
    ~Mapping() {
        OK(DRIVER(cuMemUnmap)(start, size));
        OK(DRIVER(cuMemAddressFree)(start, size));
    }
    Mapping(const Mapping &) = delete;
};

// Memory of one kind: its address for the program, and for kernels.
struct Memory {
    Kind kind;
    unsigned *host, *device;
    std::unique_ptr<Mapping> mapping;
    explicit Memory(Kind wanted) : kind(wanted) {
        if (kind == MANAGED) {
            OK(cudaMallocManaged(&device, BYTES));
            host = device;
        } else if (kind == VARIABLE) {
            host = device = variable;
        } else if (kind == MAPPED) {
            mapping = std::make_unique<Mapping>();
            host = device = reinterpret_cast<unsigned *>(mapping->start);
        } else if (kind == PINNED) {
            OK(cudaHostAlloc(&host, BYTES, cudaHostAllocMapped));
            OK(cudaHostGetDevicePointer(&device, host, 0));
        } else {
            host = static_cast<unsigned *>(aligned_alloc(4096, BYTES));
            OK(cudaHostRegister(host, BYTES, cudaHostRegisterMapped));
            OK(cudaHostGetDevicePointer(&device, host, 0));
        }
        memset(host, 0, BYTES);
    }
    ~Memory() {
        if (kind == MANAGED) OK(cudaFree(device));
        else if (kind == PINNED) OK(cudaFreeHost(host));
        else if (kind == REGISTERED) {
            OK(cudaHostUnregister(host));
            free(host);
        }
    }
    Memory(const Memory &) = delete;
};

struct Stream {
    cudaStream_t handle;
    Stream() { OK(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
    ~Stream() { OK(cudaStreamDestroy(handle)); }
};

// A stream waits at the gate until it is opened.
struct Gate {
    std::atomic<bool> is_open{false};
    void close(cudaStream_t stream) { OK(cudaLaunchHostFunc(stream, wait, this)); }
    void open() { is_open = true; }

  private:
    static void CUDART_CB wait(void *gate) {
        while (!static_cast<Gate *>(gate)->is_open) std::this_thread::yield();
    }
};

// A host function that raises the cells, like the kernel of that name, and keeps their previous sum.
struct Raise {
    unsigned *cells, by;
    uint64_t seen = 0;
    void give(cudaStream_t stream) { OK(cudaLaunchHostFunc(stream, run, this)); }

  private:
    static void CUDART_CB run(void *data) {
        Raise *raise = static_cast<Raise *>(data);
        raise->seen = 0;
        for (int i = 0; i < N; i++) {
            raise->seen += raise->cells[i];
            raise->cells[i] = raise->cells[i] * 3 + raise->by + unsigned(i);
        }
    }
};

// The expected cells.
struct Model {
    unsigned cells[N] = {};
    void raise(unsigned by) {
        for (int i = 0; i < N; i++) cells[i] = cells[i] * 3 + by + unsigned(i);
    }
    uint64_t sum() const {
        uint64_t all = 0;
        for (unsigned cell : cells) all += cell;
        return all;
    }
    void check(const unsigned *got, const char *what, const char *of) const {
        int wrong = 0;
        for (int i = 0; i < N; i++) wrong += got[i] != cells[i];
        CHECK(wrong == 0, "%s, %s memory: %d cells wrong, the first %u, wanted %u", what, of, wrong, got[0], cells[0]);
    }
};

static void kernels_and_functions_see_what_each_other_wrote() {
    for (int kind = 0; kind < KINDS; kind++) {
        Stream stream;
        Memory memory{Kind(kind)};
        Gate gate;
        Raise first{memory.host, 7}, second{memory.host, 11};
        Model model;
        unsigned *copies, got[2 * N];
        OK(cudaMalloc(&copies, 2 * BYTES));
        gate.close(stream.handle);
        first.give(stream.handle);
        take<<<1, 128, 0, stream.handle>>>(copies, memory.device);
        raise<<<1, 128, 0, stream.handle>>>(memory.device, 5);
        second.give(stream.handle);
        take<<<1, 128, 0, stream.handle>>>(copies + N, memory.device);
        gate.open();
        OK(cudaStreamSynchronize(stream.handle));
        OK(cudaMemcpy(got, copies, sizeof got, cudaMemcpyDeviceToHost));
        model.raise(7);
        model.check(got, "behind the first function", NAMES[kind]);
        model.raise(5);
        CHECK(first.seen == 0 && second.seen == model.sum(), "%s: a function saw other sums", NAMES[kind]);
        model.raise(11);
        model.check(got + N, "behind the second function", NAMES[kind]);
        model.check(memory.host, "at the end", NAMES[kind]);
        OK(cudaFree(copies));
    }
    printf("kernels and functions take turns with %d kinds of memory\n", KINDS);
}

static void copies_and_fills_wait_for_functions_but_not_functions_for_them() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Stream stream;
        Memory memory{Kind(kind)}, other{Kind(kind)};
        Gate gate;
        Raise first{memory.host, 7}, second{memory.host, 11}, third{other.host, 13}, fourth{other.host, 1};
        Model model, filled;
        unsigned *copies, got[2 * N];
        OK(cudaMalloc(&copies, 2 * BYTES));
        gate.close(stream.handle);
        first.give(stream.handle);
        OK(cudaMemcpyAsync(copies, memory.host, BYTES, cudaMemcpyHostToDevice, stream.handle));
        second.give(stream.handle);
        OK(cudaMemcpy2DAsync(copies + N, BYTES / 4, memory.host, BYTES / 4, BYTES / 4, 4, cudaMemcpyHostToDevice, stream.handle));
        // The program has opened no gate yet: none of these calls may wait.
        OK(cudaMemcpyAsync(other.host, copies, BYTES, cudaMemcpyDeviceToHost, stream.handle));
        third.give(stream.handle);
        OK(cudaMemsetAsync(other.device, 1, BYTES, stream.handle));
        fourth.give(stream.handle);
        gate.open();
        OK(cudaStreamSynchronize(stream.handle));
        OK(cudaMemcpy(got, copies, sizeof got, cudaMemcpyDeviceToHost));
        model.raise(7);
        model.check(got, "a copy behind the first function", NAMES[kind]);
        CHECK(third.seen == model.sum(), "%s: a function behind a copy saw another sum", NAMES[kind]);
        model.raise(11);
        model.check(got + N, "a copy of rows behind the second function", NAMES[kind]);
        for (unsigned &cell : filled.cells) cell = 0x01010101;
        CHECK(fourth.seen == filled.sum(), "%s: a function behind a fill saw another sum", NAMES[kind]);
        filled.raise(1);
        filled.check(other.host, "behind a fill", NAMES[kind]);
        OK(cudaFree(copies));
    }
    printf("copies and fills take their turn\n");
}

// What a copy returns from, a kernel before it has written to memory that the program looks at.
static void copies_that_wait_wait_for_kernels_too() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Stream stream;
        Memory memory{Kind(kind)};
        Model model;
        unsigned *device, got[N];
        OK(cudaMalloc(&device, BYTES));
        OK(cudaMemset(device, 2, BYTES));
        raise<<<1, 128>>>(memory.device, 5);
        OK(cudaMemcpy(got, device, BYTES, cudaMemcpyDeviceToHost));
        model.raise(5);
        model.check(memory.host, "once a copy has returned", NAMES[kind]);
        // The kernel's cells are overwritten in part, and stay so.
        raise<<<1, 128, 0, stream.handle>>>(memory.device, 9);
        OK(cudaMemsetAsync(memory.device, 1, BYTES / 4, stream.handle));
        OK(cudaMemcpyAsync(memory.host + N / 2, device, BYTES / 4, cudaMemcpyDeviceToHost, stream.handle));
        OK(cudaStreamSynchronize(stream.handle));
        model.raise(9);
        for (int i = 0; i < N / 4; i++) model.cells[i] = 0x01010101, model.cells[N / 2 + i] = 0x02020202;
        model.check(memory.host, "overwritten in part", NAMES[kind]);
        OK(cudaFree(device));
    }
    printf("what overwrites a kernel's cells comes after it\n");
}

// The program writes every other cell while the GPU's are among them, and not taken back yet.
static void neighbours_of_what_the_program_writes_are_the_gpus() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Stream one, other;
        Memory memory{Kind(kind)};
        Model model;
        unsigned *device;
        OK(cudaMalloc(&device, BYTES));
        every_other<<<1, 128, 0, one.handle>>>(memory.device, 1, 100);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        for (int i = 0; i < N; i += 2) memory.host[i] = model.cells[i] = 1000 + i;
        take<<<1, 128, 0, other.handle>>>(device, memory.device);
        OK(cudaStreamSynchronize(other.handle));
        OK(cudaStreamSynchronize(one.handle));
        for (int i = 1; i < N; i += 2) model.cells[i] = 100 + i;
        model.check(memory.host, "among the program's cells", NAMES[kind]);
        OK(cudaFree(device));
    }
    printf("the program and the GPU write side by side\n");
}

// Ordinary memory has been read or written when a copy returns, whatever the other side is: the program uses it at once, and so
// does its next copy.
static void copies_of_ordinary_memory_are_done_when_they_return() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Stream stream, other;
        Memory memory{Kind(kind)};
        Gate gate, second;
        Raise function{memory.host, 7};
        Model model;
        unsigned *device, got[N] = {}, ordinary[N] = {};
        auto soon = [](Gate &gate) {
            return std::thread([&gate] {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                gate.open();
            });
        };
        OK(cudaMalloc(&device, BYTES));
        gate.close(stream.handle);
        function.give(stream.handle);
        std::thread opens = soon(gate);
        OK(cudaMemcpyAsync(ordinary, memory.host, BYTES, cudaMemcpyHostToHost, stream.handle));
        model.raise(7);
        model.check(ordinary, "copied to ordinary memory", NAMES[kind]);
        OK(cudaMemcpyAsync(device, ordinary, BYTES, cudaMemcpyHostToDevice, other.handle));
        OK(cudaMemcpyAsync(got, device, BYTES, cudaMemcpyDeviceToHost, other.handle));
        model.check(got, "copied on from there", NAMES[kind]);
        opens.join();
        memset(memory.host, 0, BYTES);
        second.close(stream.handle);
        opens = soon(second);
        OK(cudaMemcpyAsync(memory.host, ordinary, BYTES, cudaMemcpyHostToHost, stream.handle));
        memset(ordinary, 0, BYTES);
        OK(cudaStreamSynchronize(stream.handle));
        model.check(memory.host, "copied from ordinary memory", NAMES[kind]);
        opens.join();
        OK(cudaFree(device));
    }
    printf("copies of ordinary memory are done when they return\n");
}

// A stream that is in order with the default one has its copies between the host's memory in order with that as well.
static void copies_of_the_hosts_memory_wait_for_the_default_stream() {
    for (int kind = 0; kind < KINDS; kind++) {
        Memory memory{Kind(kind)};
        Gate gate;
        Model model;
        cudaStream_t stream;
        unsigned ordinary[N] = {}, rows[N] = {};
        OK(cudaStreamCreate(&stream));
        gate.close(cudaStreamLegacy);
        raise<<<1, 128, 0, cudaStreamLegacy>>>(memory.device, 5);
        std::thread opens([&gate] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            gate.open();
        });
        OK(cudaMemcpyAsync(ordinary, memory.host, BYTES, cudaMemcpyDefault, stream));
        model.raise(5);
        model.check(ordinary, "copied behind the default stream", NAMES[kind]);
        OK(cudaMemcpy2DAsync(rows, BYTES / 2, memory.host, BYTES / 2, BYTES / 4, 2, cudaMemcpyDefault, stream));
        for (int i = 0; i < N; i++) model.cells[i] *= i % (N / 2) < N / 4;
        model.check(rows, "rows copied behind the default stream", NAMES[kind]);
        opens.join();
        OK(cudaStreamDestroy(stream));
    }
    printf("copies of the host's memory are behind the default stream\n");
}

// The same of copies and fills that only the program can do, where the default stream is at work with the memory and no function
// of the program's is to come.
// Not of small copies to the device: where nothing is in their stream, NVIDIA's driver reads the bytes at once.
static void copies_and_fills_wait_for_the_default_stream() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Memory memory{Kind(kind)};
        Model other;
        cudaStream_t stream;
        unsigned *device, *scratch;
        OK(cudaStreamCreate(&stream));
        OK(cudaMalloc(&device, BYTES));
        OK(cudaMalloc(&scratch, sizeof *scratch));
        auto raise_late = [&](unsigned by) {
            linger<<<1, 1, 0, cudaStreamLegacy>>>(scratch, 1 << 19);
            raise<<<1, 128, 0, cudaStreamLegacy>>>(memory.device, by);
        };
        OK(cudaMemsetAsync(device, 2, BYTES, stream));
        raise_late(9);
        OK(cudaMemcpyAsync(memory.host, device, BYTES, cudaMemcpyDeviceToHost, stream));
        OK(cudaDeviceSynchronize());
        for (unsigned &cell : other.cells) cell = 0x02020202;
        other.check(memory.host, "copied out behind the default stream", NAMES[kind]);
        raise_late(1);
        OK(cudaMemsetAsync(memory.device, 1, BYTES, stream));
        OK(cudaDeviceSynchronize());
        for (unsigned &cell : other.cells) cell = 0x01010101;
        other.check(memory.host, "filled behind the default stream", NAMES[kind]);
        OK(cudaFree(scratch));
        OK(cudaFree(device));
        OK(cudaStreamDestroy(stream));
    }
    printf("copies and fills are behind the default stream\n");
}

// What a copy behind a function is to write must still be there then: the end of a registration waits.
static void registrations_end_behind_functions() {
    Stream stream;
    Gate gate;
    unsigned *device, *host = static_cast<unsigned *>(aligned_alloc(4096, BYTES));
    memset(host, 0, BYTES);
    OK(cudaMalloc(&device, BYTES));
    OK(cudaMemset(device, 2, BYTES));
    OK(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    gate.close(stream.handle);
    OK(cudaMemcpyAsync(host, device, BYTES, cudaMemcpyDeviceToHost, stream.handle));
    std::thread opens([&gate] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        gate.open();
    });
    OK(cudaHostUnregister(host));
    CHECK(host[0] == 0x02020202 && host[N - 1] == 0x02020202, "it ended before: %x, %x", host[0], host[N - 1]);
    opens.join();
    free(host);
    OK(cudaFree(device));
    printf("registrations end behind functions\n");
}

// Memory is given back, which waits for the GPU, while that waits for a function that reads memory.
static void memory_goes_while_functions_run() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Stream stream;
        Memory memory{Kind(kind)};
        Memory *leaving = new Memory{Kind(kind)};
        Gate gate;
        Raise function{memory.host, 7};
        Model model;
        raise<<<1, 128, 0, stream.handle>>>(memory.device, 5);
        gate.close(stream.handle);
        raise<<<1, 128, 0, stream.handle>>>(leaving->device, 5);
        function.give(stream.handle);
        raise<<<1, 128, 0, stream.handle>>>(memory.device, 2);
        std::thread giver([=] { delete leaving; });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        gate.open();
        OK(cudaStreamSynchronize(stream.handle));
        giver.join();
        for (unsigned by : {5, 7, 2}) model.raise(by);
        model.check(memory.host, "at the end", NAMES[kind]);
    }
    printf("memory goes while functions run\n");
}

// One thread launches, and functions look at the memory that kernels reach, while another one makes blocks and frees them, whose
// pages go back to the system.
static void memory_comes_and_goes_beside_launches() {
    constexpr size_t LARGE = 4 << 20, MANY = 12;
    Stream stream;
    unsigned *cell, launches = 0;
    std::atomic<bool> is_done{false};
    OK(cudaMallocManaged(&cell, sizeof *cell));
    *cell = 0;
    OK(cudaDeviceSynchronize());
    std::thread other([&] {
        for (int round = 0; round < 12; round++) {
            void *managed[MANY], *pinned;
            for (void *&block : managed) OK(cudaMallocManaged(&block, LARGE));
            OK(cudaMallocHost(&pinned, LARGE));
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            for (void *block : managed) OK(cudaFree(block));
            OK(cudaFreeHost(pinned));
        }
        is_done = true;
    });
    while (!is_done) {
        for (int i = 0; i < 8; i++, launches++) {
            count<<<1, 1, 0, stream.handle>>>(cell);
            OK(cudaLaunchHostFunc(stream.handle, [](void *) {}, nullptr));
        }
        OK(cudaStreamSynchronize(stream.handle));
    }
    other.join();
    CHECK(*cell == launches, "%u of %u launches", *cell, launches);
    OK(cudaFree(cell));
    printf("memory comes and goes beside launches\n");
}

// A launch waits once the driver's queue is full, and one that stands still for a function has room when that has run.
static void functions_run_while_queues_are_full() {
    const int launches = 3000;
    for (int kind = 0; kind < KINDS; kind++) {
        Stream stream;
        Memory memory{Kind(kind)};
        Gate gate;
        Raise first{memory.host, 7}, second{memory.host, 11};
        Model model;
        unsigned *device, got[N + 1];
        OK(cudaMalloc(&device, sizeof got));
        OK(cudaMemset(device, 0, sizeof got));
        gate.close(stream.handle);
        std::thread opener([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            gate.open();
        });
        first.give(stream.handle);
        for (int i = 0; i < launches; i++) count<<<1, 1, 0, stream.handle>>>(device + N);
        raise<<<1, 128, 0, stream.handle>>>(memory.device, 5);
        second.give(stream.handle);
        for (int i = 0; i < launches; i++) count<<<1, 1, 0, stream.handle>>>(device + N);
        take<<<1, 128, 0, stream.handle>>>(device, memory.device);
        opener.join();
        OK(cudaStreamSynchronize(stream.handle));
        OK(cudaMemcpy(got, device, sizeof got, cudaMemcpyDeviceToHost));
        for (unsigned by : {7, 5}) model.raise(by);
        CHECK(first.seen == 0 && second.seen == model.sum(), "%s: a function saw other sums", NAMES[kind]);
        model.raise(11);
        model.check(got, "behind a full queue", NAMES[kind]);
        CHECK(got[N] == 2 * launches, "%u launches of %d", got[N], 2 * launches);
        OK(cudaFree(device));
    }
    printf("functions run while queues are full\n");
}

static void graphs_fill_memory_of_the_programs() {
    for (int kind = 0; kind < MANAGED; kind++) {
        Stream stream;
        Memory memory{Kind(kind)};
        Model model;
        unsigned *device, got[N];
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        cudaGraphNode_t fill, kernel;
        cudaMemsetParams params = {};
        cudaKernelNodeParams launch = {};
        OK(cudaMalloc(&device, BYTES));
        params.dst = memory.device;
        params.value = 3;
        params.elementSize = 4;
        params.width = N;
        params.height = 1;
        void *arguments[] = {&device, &memory.device};
        launch.func = reinterpret_cast<void *>(take);
        launch.gridDim = dim3(1);
        launch.blockDim = dim3(128);
        launch.kernelParams = arguments;
        OK(cudaGraphCreate(&graph, 0));
        OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &params));
        OK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
        OK(cudaGraphInstantiate(&exec, graph, 0));
        for (unsigned value : {3, 8}) {
            params.value = value;
            OK(cudaGraphExecMemsetNodeSetParams(exec, fill, &params));
            OK(cudaGraphLaunch(exec, stream.handle));
            OK(cudaStreamSynchronize(stream.handle));
            OK(cudaMemcpy(got, device, BYTES, cudaMemcpyDeviceToHost));
            for (unsigned &cell : model.cells) cell = value;
            model.check(got, "behind a fill in a graph", NAMES[kind]);
            model.check(memory.host, "filled by a graph", NAMES[kind]);
        }
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(graph));
        OK(cudaFree(device));
    }
    printf("graphs fill memory of the program's\n");
}

// A kernel is loaded when it is launched first, for which a driver may wait for all that it has to do.
static void load() {
    unsigned *cells;
    OK(cudaMalloc(&cells, BYTES));
    raise<<<1, 128>>>(cells, 1);
    take<<<1, 128>>>(cells, cells);
    count<<<1, 1>>>(cells);
    every_other<<<1, 128>>>(cells, 0, 1);
    linger<<<1, 1>>>(cells, 1);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(cells));
}

int main() {
    load();
    kernels_and_functions_see_what_each_other_wrote();
    copies_and_fills_wait_for_functions_but_not_functions_for_them();
    copies_of_ordinary_memory_are_done_when_they_return();
    copies_of_the_hosts_memory_wait_for_the_default_stream();
    copies_and_fills_wait_for_the_default_stream();
    copies_that_wait_wait_for_kernels_too();
    registrations_end_behind_functions();
    neighbours_of_what_the_program_writes_are_the_gpus();
    memory_goes_while_functions_run();
    memory_comes_and_goes_beside_launches();
    functions_run_while_queues_are_full();
    graphs_fill_memory_of_the_programs();
    return finish("functions_memory");
}
