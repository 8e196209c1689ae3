// Device memory that frees itself, for programs about the results of kernels.
#pragma once

#include "check.h"

#include <cuda_runtime.h>
#include <vector>

// `size` elements on the device, filled from a host vector or with zero bytes.
template <class T> struct Buffer {
    T *data = nullptr;
    size_t size;
    explicit Buffer(size_t n) : size(n) {
        OK(cudaMalloc(&data, n * sizeof(T)));
        OK(cudaMemset(data, 0, n * sizeof(T)));
    }
    explicit Buffer(const std::vector<T> &from) : size(from.size()) {
        OK(cudaMalloc(&data, size * sizeof(T)));
        write(from);
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { OK(cudaFree(data)); }
    void write(const std::vector<T> &from) {
        OK(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    // Waits for the kernels before it.
    std::vector<T> read() const {
        std::vector<T> to(size);
        OK(cudaMemcpy(to.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
    operator T *() const { return data; }
};

// Checks after a launch that it was accepted, and ended without a fault.
#define RAN()                        \
    do {                             \
        OK(cudaGetLastError());      \
        OK(cudaDeviceSynchronize()); \
    } while (0)
