// Submits a piece of work in the random programs: by one of the calls that do it, or as a node of a graph.
#pragma once

#include "random_memory.h"

inline CUdeviceptr address(const Side &side) {
    return (side.of->device ? side.of->device : CUdeviceptr(side.of->host)) + side.at;
}

inline CUdeviceptr device_at(const Side &side) { return side.of->device + side.at; }
inline uint8_t *host_at(const Side &side) { return side.of->host + side.at; }

// One side of rows, as what it can be told to be; `form` chooses.
inline CUmemorytype kind_of(const Side &side, unsigned form) {
    if (side.of->array) return CU_MEMORYTYPE_ARRAY;
    if (!side.of->device) return CU_MEMORYTYPE_HOST;
    if (form % 3 == 0) return CU_MEMORYTYPE_UNIFIED;
    return side.of->is_of_host() && form % 3 == 1 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

// Fills in the fields of one side, which have the same names in all structs but for `src` and `dst`.
#define TELL_SIDE(rows, prefix, side, form)                                \
    do {                                                                   \
        rows.prefix##MemoryType = kind_of(side, form);                     \
        if (side.of->array) {                                              \
            rows.prefix##Array = side.of->array;                           \
            rows.prefix##XInBytes = side.at % side.of->pitch;              \
            rows.prefix##Y = side.at / side.of->pitch % side.of->rows;     \
        } else {                                                           \
            rows.prefix##Pitch = side.pitch;                               \
            if (rows.prefix##MemoryType == CU_MEMORYTYPE_HOST) rows.prefix##Host = host_at(side); \
            else rows.prefix##Device = address(side);                      \
        }                                                                  \
    } while (0)
#define TELL_PLANES(rows, prefix, side)                                                           \
    do {                                                                                          \
        if (side.of->array) rows.prefix##Z = side.at / side.of->pitch / side.of->rows;            \
        else rows.prefix##Height = side.rows;                                                     \
    } while (0)

inline CUDA_MEMCPY3D as_3d(const Work &work) {
    CUDA_MEMCPY3D rows = {};
    TELL_SIDE(rows, src, work.from, work.form / 8);
    TELL_SIDE(rows, dst, work.to, work.form / 32);
    TELL_PLANES(rows, src, work.from);
    TELL_PLANES(rows, dst, work.to);
    rows.WidthInBytes = work.width;
    rows.Height = work.height;
    rows.Depth = work.depth;
    return rows;
}

// `is_captured`: copies between contexts are no part of graphs.
inline void issue_block(const Work &work, CUstream stream, bool waits, bool is_captured) {
    bool on_device = !work.to.of->is_of_host() && !work.from.of->is_of_host();
    bool has_planes = work.depth > 1 || work.to.of->depth > 1 || work.from.of->depth > 1;
    if (!has_planes && work.form % 2 && (waits || !on_device)) {
        CUDA_MEMCPY2D rows = {};
        TELL_SIDE(rows, src, work.from, work.form / 8);
        TELL_SIDE(rows, dst, work.to, work.form / 32);
        rows.WidthInBytes = work.width;
        rows.Height = work.height;
        if (waits) OK(cuMemcpy2DUnaligned(&rows));
        else OK(cuMemcpy2DAsync(&rows, stream));
        return;
    }
    if (work.to.of->is_on_device() && work.from.of->is_on_device() && work.form % 4 == 2 && !is_captured) {
        CUDA_MEMCPY3D_PEER rows = {};
        TELL_SIDE(rows, src, work.from, 2);
        TELL_SIDE(rows, dst, work.to, 2);
        TELL_PLANES(rows, src, work.from);
        TELL_PLANES(rows, dst, work.to);
        rows.srcContext = rows.dstContext = world.context;
        rows.WidthInBytes = work.width;
        rows.Height = work.height;
        rows.Depth = work.depth;
        if (waits) OK(cuMemcpy3DPeer(&rows));
        else OK(cuMemcpy3DPeerAsync(&rows, stream));
        return;
    }
    CUDA_MEMCPY3D rows = as_3d(work);
    if (waits) OK(cuMemcpy3D(&rows));
    else OK(cuMemcpy3DAsync(&rows, stream));
}

inline void issue_copy(const Work &work, CUstream stream, bool waits, bool is_captured) {
    const Side &to = work.to, &from = work.from;
    size_t size = work.width;
    if (work.form % 3 == 0 || (!to.of->device && !from.of->device)) {
        if (waits) OK(cuMemcpy(address(to), address(from), size));
        else OK(cuMemcpyAsync(address(to), address(from), size, stream));
    } else if (work.form % 3 == 1 && to.of->is_on_device() && from.of->is_on_device() && !is_captured) {
        if (waits) OK(cuMemcpyPeer(address(to), world.context, address(from), world.context, size));
        else OK(cuMemcpyPeerAsync(address(to), world.context, address(from), world.context, size, stream));
    } else if (from.of->is_of_host() && to.of->device) {
        if (waits) OK(cuMemcpyHtoD(device_at(to), host_at(from), size));
        else OK(cuMemcpyHtoDAsync(device_at(to), host_at(from), size, stream));
    } else if (to.of->is_of_host()) {
        if (waits) OK(cuMemcpyDtoH(host_at(to), device_at(from), size));
        else OK(cuMemcpyDtoHAsync(host_at(to), device_at(from), size, stream));
    } else {
        if (waits) OK(cuMemcpyDtoD(device_at(to), device_at(from), size));
        else OK(cuMemcpyDtoDAsync(device_at(to), device_at(from), size, stream));
    }
}

inline void issue_fill(const Work &work, CUstream stream, bool waits) {
    CUdeviceptr at = device_at(work.to);
    unsigned value = work.value;
    if (work.height == 1) {
        if (work.unit == 1) OK(waits ? cuMemsetD8(at, uint8_t(value), work.width) : cuMemsetD8Async(at, uint8_t(value), work.width, stream));
        else if (work.unit == 2) OK(waits ? cuMemsetD16(at, uint16_t(value), work.width) : cuMemsetD16Async(at, uint16_t(value), work.width, stream));
        else OK(waits ? cuMemsetD32(at, value, work.width) : cuMemsetD32Async(at, value, work.width, stream));
        return;
    }
    size_t pitch = work.to.pitch, width = work.width, height = work.height;
    if (work.unit == 1) OK(waits ? cuMemsetD2D8(at, pitch, uint8_t(value), width, height) : cuMemsetD2D8Async(at, pitch, uint8_t(value), width, height, stream));
    else if (work.unit == 2) OK(waits ? cuMemsetD2D16(at, pitch, uint16_t(value), width, height) : cuMemsetD2D16Async(at, pitch, uint16_t(value), width, height, stream));
    else OK(waits ? cuMemsetD2D32(at, pitch, value, width, height) : cuMemsetD2D32Async(at, pitch, value, width, height, stream));
}

// The parameters of a launch; lives as long as the call.
struct Arguments {
    Places all;
    CUdeviceptr table = 0;
    void *list[4];
    unsigned threads, blocks;

    explicit Arguments(const Work &work)
        : all{device_at(work.to), work.from.of->device + work.from.at, unsigned(work.width), work.value},
          list{&all.dst, &all.src, &all.n, &all.salt}, threads(32u << work.form % 4), blocks(unsigned(work.width + threads - 1) / threads) {
        if (work.what == What::Struct) list[0] = &all;
        if (work.what != What::Table) return;
        table = device_at(work.table);
        list[0] = &table;
    }
    Arguments(const Arguments &) = delete;
};

inline void issue_kernel(const Work &work, CUstream stream) {
    Arguments arguments(work);
    if (work.what == What::Table) OK(cuMemcpyHtoDAsync(arguments.table, &arguments.all, sizeof(Places), stream));
    size_t packed = sizeof(Places);
    // The parameters of this one lie as those of a struct would.
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments.all, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed, CU_LAUNCH_PARAM_END};
    bool is_packed = work.what != What::Table && work.form / 4 % 4 == 0;
    OK(cuLaunchKernel(work.function, arguments.blocks, 1, 1, arguments.threads, 1, 1, 0, stream, is_packed ? nullptr : arguments.list,
                      is_packed ? extra : nullptr));
    if (work.what == What::Table) OK(cuMemsetD8Async(arguments.table, uint8_t(work.value), sizeof(Places), stream));
}

struct HostCall {
    uint8_t *at;
    size_t count;
    unsigned salt;
};

inline void CUDA_CB run_host_call(void *data) {
    const HostCall *call = static_cast<HostCall *>(data);
    stir(call->at, call->count, call->salt);
}

inline void CUDA_CB run_once(void *data) {
    run_host_call(data);
    delete static_cast<HostCall *>(data);
}

inline void CUDA_CB run_callback(CUstream, CUresult, void *data) { run_once(data); }

inline HostCall *host_call(const Work &work) { return new HostCall{host_at(work.to), work.width, work.value}; }

// Calls of a graph live as long as the program.
inline void issue_host(const Work &work, CUstream stream, bool is_kept) {
    if (is_kept) OK(cuLaunchHostFunc(stream, run_host_call, host_call(work)));
    else if (work.form % 2) OK(cuLaunchHostFunc(stream, run_once, host_call(work)));
    else OK(cuStreamAddCallback(stream, run_callback, host_call(work), 0));
}

inline void issue_word(const Work &work, CUstream stream) {
    if (work.form % 2) {
        OK(cuStreamWriteValue32(stream, device_at(work.to), work.value, 0));
        return;
    }
    CUstreamBatchMemOpParams write = {};
    write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = device_at(work.to);
    write.writeValue.value = work.value;
    OK(cuStreamBatchMemOp(stream, 1, &write, 0));
}

// Gives work to a stream. `waits`: by the call without a stream, which is of the default one. `is_captured`: the stream is.
inline void issue(const Work &work, CUstream stream, bool waits, bool is_captured) {
    switch (work.what) {
    case What::Copy: return issue_copy(work, stream, waits, is_captured);
    case What::Block: return issue_block(work, stream, waits, is_captured);
    case What::Fill: return issue_fill(work, stream, waits);
    case What::Host: return issue_host(work, stream, is_captured);
    case What::Word: return issue_word(work, stream);
    default: return issue_kernel(work, stream);
    }
}

// Does copies that do not overlap in one call.
inline void issue_batch(const std::vector<Work> &all, CUstream stream) {
    std::vector<CUdeviceptr> to, from;
    std::vector<size_t> sizes, first;
    std::vector<CUmemcpyAttributes> how;
    for (const Work &work : all) {
        CUmemcpyAttributes one = {};
        one.srcAccessOrder = work.from.of->sort == Sort::Pageable ? CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL : CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        to.push_back(address(work.to));
        from.push_back(address(work.from));
        sizes.push_back(work.width);
        first.push_back(how.size());
        how.push_back(one);
    }
    OK(cuMemcpyBatchAsync(to.data(), from.data(), sizes.data(), all.size(), how.data(), first.data(), how.size(), stream));
}

inline CUDA_KERNEL_NODE_PARAMS as_kernel(const Work &work, Arguments &arguments) {
    CUDA_KERNEL_NODE_PARAMS node = {};
    node.func = work.function;
    node.gridDimX = arguments.blocks;
    node.blockDimX = arguments.threads;
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = arguments.list;
    return node;
}

inline CUDA_MEMSET_NODE_PARAMS as_fill(const Work &work) {
    CUDA_MEMSET_NODE_PARAMS node = {};
    node.dst = device_at(work.to);
    node.pitch = work.to.pitch;
    node.value = work.value & (work.unit == 4 ? ~0u : (1u << 8 * work.unit) - 1);
    node.elementSize = work.unit;
    node.width = work.width;
    node.height = work.height;
    return node;
}

inline CUDA_HOST_NODE_PARAMS as_host(const Work &work) { return {run_host_call, host_call(work)}; }

// A copy without rows is one of single rows.
inline CUDA_MEMCPY3D as_copy(const Work &work) {
    Work rows = work;
    if (work.what == What::Copy) rows.to.pitch = rows.from.pitch = work.width;
    return as_3d(rows);
}

inline CUgraphNode add_node(CUgraph graph, const std::vector<CUgraphNode> &before, const Work &work) {
    CUgraphNode node = nullptr;
    const CUgraphNode *from = before.data();
    if (work.is_copy()) {
        CUDA_MEMCPY3D copy = as_copy(work);
        OK(cuGraphAddMemcpyNode(&node, graph, from, before.size(), &copy, world.context));
    } else if (work.what == What::Fill) {
        CUDA_MEMSET_NODE_PARAMS fill = as_fill(work);
        OK(cuGraphAddMemsetNode(&node, graph, from, before.size(), &fill, world.context));
    } else if (work.what == What::Host) {
        CUDA_HOST_NODE_PARAMS host = as_host(work);
        OK(cuGraphAddHostNode(&node, graph, from, before.size(), &host));
    } else {
        Arguments arguments(work);
        CUDA_KERNEL_NODE_PARAMS kernel = as_kernel(work, arguments);
        OK(cuGraphAddKernelNode(&node, graph, from, before.size(), &kernel));
    }
    return node;
}

// Changes a node of what was made of a graph.
inline void set_node(CUgraphExec exec, CUgraphNode node, const Work &work) {
    if (work.is_copy()) {
        CUDA_MEMCPY3D copy = as_copy(work);
        OK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, world.context));
    } else if (work.what == What::Fill) {
        CUDA_MEMSET_NODE_PARAMS fill = as_fill(work);
        OK(cuGraphExecMemsetNodeSetParams(exec, node, &fill, world.context));
    } else if (work.what == What::Host) {
        CUDA_HOST_NODE_PARAMS host = as_host(work);
        OK(cuGraphExecHostNodeSetParams(exec, node, &host));
    } else {
        Arguments arguments(work);
        CUDA_KERNEL_NODE_PARAMS kernel = as_kernel(work, arguments);
        OK(cuGraphExecKernelNodeSetParams(exec, node, &kernel));
    }
}
