// Memory of every kind, for the random programs: how to allocate and free each.
#pragma once

#include <cstdlib>
#include <shared_mutex>

#include "random_kernels.h"
#include "random_model.h"

// What all threads share.
struct World {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUmemoryPool pool;
    // No thread waits for a whole context while a stream is being captured.
    std::shared_mutex capture;
};
inline World world;

// Of blocks that are mapped: what each device has as the least, or a multiple.
constexpr size_t LARGEST = 40 << 20, BLOCK = 2 << 20;

inline void expect_range(const Buffer &buffer) {
    CUdeviceptr start = 0;
    size_t size = 0;
    OK(cuMemGetAddressRange(&start, &size, buffer.device + buffer.size - 1));
    CHECK(start == buffer.device && size >= buffer.size, "%s memory of %zu bytes has %zu", SORT_NAMES[int(buffer.sort)], buffer.size, size);
}

inline void make_mapped(Buffer &buffer) {
    CUmemAllocationProp request = {};
    request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc grant = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemAddressReserve(&buffer.device, buffer.size, 0, 0, 0));
    OK(cuMemCreate(&buffer.block, buffer.size, &request, 0));
    OK(cuMemMap(buffer.device, buffer.size, 0, buffer.block, 0));
    OK(cuMemSetAccess(buffer.device, buffer.size, &grant, 1));
}

inline void make_array(Random &random, Buffer &buffer) {
    const CUarray_format formats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32};
    const size_t format = random.below(3), channels = size_t(1) << random.below(3);
    CUDA_ARRAY3D_DESCRIPTOR request = {};
    request.Width = random.size(4096);
    request.Height = random.below(3) ? random.size(100) : 0;
    request.Depth = request.Height && random.one_in(2) ? random.size(9) : 0;
    request.Format = formats[format];
    request.NumChannels = unsigned(channels);
    OK(cuArray3DCreate(&buffer.array, &request));
    buffer.element = channels << format;
    buffer.pitch = request.Width * buffer.element;
    buffer.rows = std::max<size_t>(request.Height, 1);
    buffer.depth = std::max<size_t>(request.Depth, 1);
    buffer.size = buffer.pitch * buffer.rows * buffer.depth;
}

inline void make_on_host(Buffer &buffer) {
    if (buffer.sort == Sort::Registered) {
        // No two share a page.
        size_t pages = (buffer.size + 4095) / 4096 * 4096;
        buffer.host = static_cast<uint8_t *>(aligned_alloc(4096, pages));
        OK(cuMemHostRegister(buffer.host, buffer.size, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    } else {
        unsigned flags = CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE;
        if (buffer.sort == Sort::Combined) flags |= CU_MEMHOSTALLOC_WRITECOMBINED;
        void *host = nullptr;
        OK(cuMemHostAlloc(&host, buffer.size, flags));
        buffer.host = static_cast<uint8_t *>(host);
    }
    OK(cuMemHostGetDevicePointer(&buffer.device, buffer.host, 0));
}

// Makes memory of a sort, of about that many bytes; stream-ordered memory comes in the order of `stream`.
inline Buffer *make(Random &random, Sort sort, size_t size, CUstream stream) {
    Buffer *buffer = new Buffer{sort, size, {}};
    void *host = nullptr;
    switch (sort) {
    case Sort::Plain: OK(cuMemAlloc(&buffer->device, size)); break;
    case Sort::Pitched: {
        size_t row = random.size(size), rows = std::min<size_t>(std::max<size_t>(size / row, 1), 200), wide = (row + 511) / 512 * 512;
        OK(cuMemAllocPitch(&buffer->device, &buffer->pitch, row, rows, 4 << random.below(3)));
        CHECK(buffer->pitch >= row && buffer->pitch % 4 == 0, "a pitch of %zu for %zu", buffer->pitch, row);
        // As many bytes on every device.
        buffer->size = std::min(wide, buffer->pitch) * rows;
        break;
    }
    case Sort::Ordered: OK(cuMemAllocAsync(&buffer->device, size, stream)); break;
    case Sort::Pooled: OK(cuMemAllocFromPoolAsync(&buffer->device, size, world.pool, stream)); break;
    case Sort::Managed: OK(cuMemAllocManaged(&buffer->device, size, CU_MEM_ATTACH_GLOBAL)); break;
    case Sort::Mapped:
        buffer->size = (1 + size / 3 / BLOCK) * BLOCK;
        make_mapped(*buffer);
        break;
    case Sort::Array: make_array(random, *buffer); break;
    case Sort::Pageable:
        host = malloc(size);
        buffer->host = static_cast<uint8_t *>(host);
        break;
    default: make_on_host(*buffer);
    }
    if (sort == Sort::Plain || sort == Sort::Mapped) expect_range(*buffer);
    buffer->model.resize(buffer->size);
    return buffer;
}

// Frees idle memory; stream-ordered memory goes in the order of `stream`.
inline void give_back(Buffer *buffer, CUstream stream) {
    switch (buffer->sort) {
    case Sort::Ordered:
    case Sort::Pooled: OK(cuMemFreeAsync(buffer->device, stream)); break;
    case Sort::Mapped:
        OK(cuMemUnmap(buffer->device, buffer->size));
        OK(cuMemRelease(buffer->block));
        OK(cuMemAddressFree(buffer->device, buffer->size));
        break;
    case Sort::Array: OK(cuArrayDestroy(buffer->array)); break;
    case Sort::Registered:
        OK(cuMemHostUnregister(buffer->host));
        free(buffer->host);
        break;
    case Sort::Pinned:
    case Sort::Combined: OK(cuMemFreeHost(buffer->host)); break;
    case Sort::Pageable: free(buffer->host); break;
    case Sort::Field:
    case Sort::Constants: break;
    default: OK(cuMemFree(buffer->device));
    }
    delete buffer;
}
