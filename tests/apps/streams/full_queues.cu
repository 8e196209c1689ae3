// Full queues: a stream that waits for a host function takes about a thousand launches, and the next one waits. The rest of
// the program goes on, and so does the function.
#include "check.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

__global__ void count(unsigned *cell) { ++*cell; }

struct Stream {
    cudaStream_t handle;
    explicit Stream(unsigned flags = cudaStreamNonBlocking) { OK(cudaStreamCreateWithFlags(&handle, flags)); }
    ~Stream() { OK(cudaStreamDestroy(handle)); }
};

struct Cell {
    unsigned *device;
    explicit Cell(const Stream &stream) {
        OK(cudaMalloc(&device, sizeof *device));
        OK(cudaMemsetAsync(device, 0, sizeof *device, stream.handle));
    }
    ~Cell() { OK(cudaFree(device)); }
    void raise(const Stream &stream) { count<<<1, 1, 0, stream.handle>>>(device); }
    unsigned value(const Stream &stream) {
        unsigned got = 0;
        OK(cudaMemcpyAsync(&got, device, sizeof got, cudaMemcpyDeviceToHost, stream.handle));
        OK(cudaStreamSynchronize(stream.handle));
        return got;
    }
};

// A stream waits at the gate until it is opened.
struct Gate {
    std::atomic<bool> is_open{false};
    void close(const Stream &stream) { OK(cudaLaunchHostFunc(stream.handle, wait, this)); }
    void open_soon() {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        is_open = true;
    }

  private:
    static void CUDART_CB wait(void *gate) {
        while (!static_cast<Gate *>(gate)->is_open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
};

// More than any link holds, on its way to a driver that takes no more.
static void launches_without_end() {
    const unsigned launches = 200000;
    Stream stream;
    Cell cell{stream};
    Gate gate;
    gate.close(stream);
    std::thread opener([&] { gate.open_soon(); });
    for (unsigned i = 0; i < launches; i++) cell.raise(stream);
    opener.join();
    const unsigned got = cell.value(stream);
    CHECK(got == launches, "%u of %u launches", got, launches);
    printf("%u launches behind a function\n", launches);
}

// The default stream comes after the others without having been given a function itself.
static void launches_without_end_in_another_stream() {
    const unsigned launches = 200000;
    Stream stream{cudaStreamDefault};
    Cell cell{stream};
    Gate gate;
    unsigned got = 0;
    gate.close(stream);
    std::thread opener([&] { gate.open_soon(); });
    for (unsigned i = 0; i < launches; i++) count<<<1, 1>>>(cell.device);
    opener.join();
    OK(cudaMemcpy(&got, cell.device, sizeof got, cudaMemcpyDeviceToHost));
    CHECK(got == launches, "%u of %u launches", got, launches);
    printf("%u launches behind a function of another stream\n", launches);
}

static void CUDART_CB raise(void *number) { ++*static_cast<unsigned *>(number); }

// As many host functions as launches; each waits for the earlier ones.
static void functions_without_end() {
    const unsigned functions = 3000;
    Stream stream;
    Cell cell{stream};
    Gate gate;
    unsigned called = 0;
    gate.close(stream);
    std::thread opener([&] { gate.open_soon(); });
    for (unsigned i = 0; i < functions; i++) {
        OK(cudaLaunchHostFunc(stream.handle, raise, &called));
        cell.raise(stream);
    }
    opener.join();
    const unsigned got = cell.value(stream);
    CHECK(got == functions && called == functions, "%u launches, %u functions", got, called);
    printf("%u functions among launches\n", functions);
}

// One thread waits in a launch; the others do not wait for it. What NVIDIA's driver has them do is not known: there the
// function ends by itself.
template <typename Give> static void other_threads_go_on(Give give) {
    Stream stream, other;
    Gate gate;
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    const bool is_soft = strstr(properties.name, "softcuda") != nullptr;
    gate.close(stream);
    std::thread opener([&] {
        if (!is_soft) gate.open_soon();
    });
    std::thread worker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        // Freed once the gate is open: that waits for all that a device has to do.
        Cell own{other};
        cudaEvent_t event;
        OK(cudaEventCreate(&event));
        for (int i = 0; i < 10; i++) own.raise(other);
        OK(cudaEventRecord(event, other.handle));
        OK(cudaEventSynchronize(event));
        OK(cudaEventQuery(event));
        const unsigned got = own.value(other);
        CHECK(got == 10, "%u launches of 10", got);
        OK(cudaEventDestroy(event));
        gate.is_open = true;
    });
    give(stream);
    opener.join();
    worker.join();
    OK(cudaStreamSynchronize(stream.handle));
}

static void other_threads_go_on_beside_launches() {
    Stream stream;
    Cell cell{stream};
    other_threads_go_on([&](const Stream &full) {
        for (int i = 0; i < 3000; i++) cell.raise(full);
    });
    const unsigned got = cell.value(stream);
    CHECK(got == 3000, "%u launches of 3000", got);
    printf("other threads go on beside launches\n");
}

// Of memory that the program does its part of.
static void other_threads_go_on_beside_copies() {
    const size_t size = 4096;
    Stream stream;
    Cell cell{stream};
    unsigned *host = static_cast<unsigned *>(aligned_alloc(size, size));
    memset(host, 1, size);
    CHECK(cell.value(stream) == 0, "it counts");
    OK(cudaHostRegister(host, size, cudaHostRegisterDefault));
    other_threads_go_on([&](const Stream &full) {
        for (int i = 0; i < 700; i++) {
            OK(cudaMemcpyAsync(host + i, cell.device, sizeof *host, cudaMemcpyDeviceToHost, full.handle));
        }
    });
    int wrong = 0;
    for (int i = 0; i < 700; i++) wrong += host[i] != 0;
    CHECK(wrong == 0, "%d copies wrong", wrong);
    OK(cudaHostUnregister(host));
    free(host);
    printf("other threads go on beside copies\n");
}

int main() {
    {
        // A kernel is loaded when it is launched first, for which a driver may wait for all that it has to do.
        Stream stream;
        Cell cell{stream};
        cell.raise(stream);
        CHECK(cell.value(stream) == 1, "it does not count");
    }
    launches_without_end();
    launches_without_end_in_another_stream();
    functions_without_end();
    other_threads_go_on_beside_launches();
    other_threads_go_on_beside_copies();
    return finish("full_queues");
}
