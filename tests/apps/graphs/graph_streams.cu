// Random work in several streams, done in three ways: directly, by the graph that a capture of these streams gives, and by a
// graph of the same nodes. It includes memory that nodes allocate, two-dimensional copies and fills, events of other streams,
// and updates from a new capture. Each launch is checked cell by cell against a model on the host. Arguments: the first seed
// and the number of seeds.
#include "check.h"

#include <algorithm>
#include <cstring>
#include <vector>

static const int BUFFERS = 6, SIDE = 8, CELLS = SIDE * SIDE, STREAMS = 3, MOST = 14, SEEDS = 8;
static const size_t PITCH = SIDE * sizeof(int);
// Bits for the memory that an operation touches: device buffers first, then the host buffer and the counter of calls.
static const int HOST = BUFFERS, CALLS = BUFFERS + 1;

enum class Kind { Mix, Copy, Plane, Fill, FillPlane, Out, Call, Scratch };
struct Operation {
    Kind kind;
    int stream, to, from, x, y, width, height;
    unsigned value;
    // Operations that it comes behind: the last one of its stream, and of each other stream the last that touches the same.
    std::vector<int> behind, waits;
};
typedef std::vector<Operation> Work;

struct Memory {
    int cells[BUFFERS][CELLS], host[CELLS], calls;
};
static int *device, *pinned, calls;
static cudaStream_t streams[STREAMS], side;
static cudaEvent_t forked, done[MOST], joined[STREAMS], gate, finished;

// The turns only take time.
__global__ void mix(int *to, const int *from, int value, int turns) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, kept = to[i];
    for (volatile int turn = 0; turn < turns; turn++) kept ^= 0;
    to[i] = kept * 5 + from[i] + value;
}
static void CUDART_CB call(void *) { calls++; }
static int *buffer(int index) { return device + index * CELLS; }
static int repeated(unsigned value) { return int((value & 0xff) * 0x01010101u); }

static unsigned touched(const Operation &it) {
    switch (it.kind) {
    case Kind::Call: return 1u << CALLS;
    case Kind::Out: return 1u << HOST | 1u << it.from;
    case Kind::Fill:
    case Kind::FillPlane:
    case Kind::Scratch: return 1u << it.to;
    default: return 1u << it.to | 1u << it.from;
    }
}

static Work random_work(Numbers &numbers) {
    Work work;
    for (int i = 0, count = 6 + int(numbers.below(MOST - 5)); i < count; i++) {
        Operation it;
        it.kind = Kind(numbers.below(8));
        it.stream = int(numbers.below(STREAMS));
        it.to = int(numbers.below(BUFFERS));
        it.from = (it.to + 1 + int(numbers.below(BUFFERS - 1))) % BUFFERS;
        it.x = int(numbers.below(SIDE));
        it.y = int(numbers.below(SIDE));
        it.width = 1 + int(numbers.below(unsigned(SIDE - it.x)));
        it.height = 1 + int(numbers.below(unsigned(SIDE - it.y)));
        it.value = numbers.below(1000);
        int last[STREAMS];
        std::fill(last, last + STREAMS, -1);
        for (int j = 0; j < i; j++)
            if (work[j].stream == it.stream || (touched(work[j]) & touched(it))) last[work[j].stream] = j;
        for (int stream = 0; stream < STREAMS; stream++) {
            if (last[stream] < 0) continue;
            it.behind.push_back(last[stream]);
            if (stream != it.stream) it.waits.push_back(last[stream]);
        }
        work.push_back(it);
    }
    return work;
}

// The model: what an operation does to memory.
static void mix_model(int *to, const int *from, unsigned value) {
    for (int i = 0; i < CELLS; i++) to[i] = int(unsigned(to[i]) * 5 + unsigned(from[i]) + value);
}
static void run(const Operation &it, Memory &memory) {
    int *to = memory.cells[it.to], *from = memory.cells[it.from], start = it.y * SIDE + it.x;
    switch (it.kind) {
    case Kind::Mix: mix_model(to, from, it.value); break;
    case Kind::Copy: memcpy(to + start, from + start, size_t(it.width) * sizeof(int)); break;
    case Kind::Out: memcpy(memory.host + start, from + start, size_t(it.width) * sizeof(int)); break;
    case Kind::Fill: std::fill(to + start, to + start + it.width, repeated(it.value)); break;
    case Kind::Plane:
        for (int row = 0; row < it.height; row++) memcpy(to + start + row * SIDE, from + start + row * SIDE, size_t(it.width) * sizeof(int));
        break;
    case Kind::FillPlane:
        for (int row = 0; row < it.height; row++) std::fill_n(to + start + row * SIDE, it.width, repeated(it.value));
        break;
    case Kind::Call: memory.calls++; break;
    case Kind::Scratch: {
        int scratch[CELLS];
        std::fill(scratch, scratch + CELLS, repeated(it.value));
        mix_model(to, scratch, it.value);
    }
    }
}

// One operation in its stream, which is captured or not.
static void issue(const Operation &it) {
    cudaStream_t stream = streams[it.stream];
    int start = it.y * SIDE + it.x, *to = buffer(it.to) + start, *from = buffer(it.from) + start;
    size_t width = size_t(it.width) * sizeof(int);
    switch (it.kind) {
    case Kind::Mix: mix<<<2, CELLS / 2, 0, stream>>>(buffer(it.to), buffer(it.from), int(it.value), 0); break;
    case Kind::Copy: OK(cudaMemcpyAsync(to, from, width, cudaMemcpyDeviceToDevice, stream)); break;
    case Kind::Plane: OK(cudaMemcpy2DAsync(to, PITCH, from, PITCH, width, size_t(it.height), cudaMemcpyDeviceToDevice, stream)); break;
    case Kind::Fill: OK(cudaMemsetAsync(to, int(it.value & 0xff), width, stream)); break;
    case Kind::FillPlane: OK(cudaMemset2DAsync(to, PITCH, int(it.value & 0xff), width, size_t(it.height), stream)); break;
    case Kind::Out: OK(cudaMemcpyAsync(pinned + start, from, width, cudaMemcpyDeviceToHost, stream)); break;
    case Kind::Call: OK(cudaLaunchHostFunc(stream, call, nullptr)); break;
    case Kind::Scratch: {
        int *scratch;
        OK(cudaMallocAsync(&scratch, CELLS * sizeof(int), stream));
        OK(cudaMemsetAsync(scratch, int(it.value & 0xff), CELLS * sizeof(int), stream));
        mix<<<2, CELLS / 2, 0, stream>>>(buffer(it.to), scratch, int(it.value), 0);
        OK(cudaFreeAsync(scratch, stream));
    }
    }
    OK(cudaGetLastError());
}

// Issues all operations, after the gate and before the event that marks their end; both belong to other streams.
static void issue_all(const Work &work, bool is_captured) {
    cudaStream_t first = streams[0];
    OK(cudaStreamWaitEvent(first, gate, is_captured ? cudaEventWaitExternal : cudaEventWaitDefault));
    OK(cudaEventRecord(forked, first));
    for (int s = 1; s < STREAMS; s++) OK(cudaStreamWaitEvent(streams[s], forked, 0));
    for (size_t i = 0; i < work.size(); i++) {
        for (int other : work[i].waits) OK(cudaStreamWaitEvent(streams[work[i].stream], done[other], 0));
        issue(work[i]);
        OK(cudaEventRecord(done[i], streams[work[i].stream]));
    }
    for (int s = 1; s < STREAMS; s++) {
        OK(cudaEventRecord(joined[s], streams[s]));
        OK(cudaStreamWaitEvent(first, joined[s], 0));
    }
    OK(cudaEventRecordWithFlags(finished, first, is_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
}

static cudaGraph_t captured(const Work &work) {
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
    issue_all(work, true);
    OK(cudaStreamEndCapture(streams[0], &graph));
    return graph;
}

// Builds the same operations as nodes.
struct Builder {
    cudaGraph_t graph;
    std::vector<cudaGraphNode_t> before;

    cudaGraphNode_t kernel(int *to, int *from, unsigned value) {
        int turns = 0;
        void *arguments[] = {&to, &from, &value, &turns};
        cudaKernelNodeParams params = {};
        params.func = reinterpret_cast<void *>(mix);
        params.gridDim = dim3(2);
        params.blockDim = dim3(CELLS / 2);
        params.kernelParams = arguments;
        cudaGraphNode_t made;
        OK(cudaGraphAddKernelNode(&made, graph, before.data(), before.size(), &params));
        return made;
    }
    cudaGraphNode_t fill(int *to, unsigned value, int width, int height) {
        cudaMemsetParams params = {};
        params.dst = to;
        params.pitch = PITCH;
        params.elementSize = 1;
        params.value = value & 0xff;
        params.width = size_t(width) * sizeof(int);
        params.height = size_t(height);
        cudaGraphNode_t made;
        OK(cudaGraphAddMemsetNode(&made, graph, before.data(), before.size(), &params));
        return made;
    }
    cudaGraphNode_t copy(int *to, int *from, int width, int height, cudaMemcpyKind kind) {
        cudaMemcpy3DParms params = {};
        params.srcPtr = make_cudaPitchedPtr(from, PITCH, SIDE, SIDE);
        params.dstPtr = make_cudaPitchedPtr(to, PITCH, SIDE, SIDE);
        params.extent = make_cudaExtent(size_t(width) * sizeof(int), size_t(height), 1);
        params.kind = kind;
        cudaGraphNode_t made;
        OK(cudaGraphAddMemcpyNode(&made, graph, before.data(), before.size(), &params));
        return made;
    }
    cudaGraphNode_t scratch(const Operation &it) {
        cudaMemAllocNodeParams params = {};
        params.poolProps.allocType = cudaMemAllocationTypePinned;
        params.poolProps.location = {cudaMemLocationTypeDevice, 0};
        params.bytesize = CELLS * sizeof(int);
        cudaGraphNode_t made;
        OK(cudaGraphAddMemAllocNode(&made, graph, before.data(), before.size(), &params));
        int *memory = static_cast<int *>(params.dptr);
        before = {made};
        before = {fill(memory, it.value, SIDE, SIDE)};
        before = {kernel(buffer(it.to), memory, it.value)};
        OK(cudaGraphAddMemFreeNode(&made, graph, before.data(), before.size(), memory));
        return made;
    }

    // The last node of an operation.
    cudaGraphNode_t add(const Operation &it) {
        int start = it.y * SIDE + it.x, *to = buffer(it.to) + start, *from = buffer(it.from) + start;
        switch (it.kind) {
        case Kind::Mix: return kernel(buffer(it.to), buffer(it.from), it.value);
        case Kind::Copy: return copy(to, from, it.width, 1, cudaMemcpyDeviceToDevice);
        case Kind::Plane: return copy(to, from, it.width, it.height, cudaMemcpyDeviceToDevice);
        case Kind::Out: return copy(pinned + start, from, it.width, 1, cudaMemcpyDeviceToHost);
        case Kind::Fill: return fill(to, it.value, it.width, 1);
        case Kind::FillPlane: return fill(to, it.value, it.width, it.height);
        case Kind::Scratch: return scratch(it);
        default: {
            cudaHostNodeParams params = {call, nullptr};
            cudaGraphNode_t made;
            OK(cudaGraphAddHostNode(&made, graph, before.data(), before.size(), &params));
            return made;
        }
        }
    }
};

static cudaGraph_t built(const Work &work) {
    Builder builder;
    cudaGraphNode_t begin, end;
    std::vector<cudaGraphNode_t> last;
    OK(cudaGraphCreate(&builder.graph, 0));
    OK(cudaGraphAddEventWaitNode(&begin, builder.graph, nullptr, 0, gate));
    for (const Operation &it : work) {
        builder.before.clear();
        for (int other : it.behind) builder.before.push_back(last[size_t(other)]);
        if (builder.before.empty()) builder.before.push_back(begin);
        last.push_back(builder.add(it));
    }
    OK(cudaGraphAddEventRecordNode(&end, builder.graph, last.data(), last.size(), finished));
    return builder.graph;
}

// Does the work once, by a graph or at once, between work of another stream that it waits for and that waits for it.
static void go(const Work &work, cudaGraphExec_t exec, Memory &memory, unsigned seed, const char *how) {
    mix<<<2, CELLS / 2, 0, side>>>(buffer(0), buffer(1), 11, 100);
    OK(cudaEventRecord(gate, side));
    if (exec) OK(cudaGraphLaunch(exec, streams[0]));
    else issue_all(work, false);
    OK(cudaStreamWaitEvent(side, finished, 0));
    mix<<<2, CELLS / 2, 0, side>>>(buffer(1), buffer(0), 13, 0);
    mix_model(memory.cells[0], memory.cells[1], 11);
    for (const Operation &it : work) run(it, memory);
    mix_model(memory.cells[1], memory.cells[0], 13);
    Memory got;
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(got.cells, device, sizeof got.cells, cudaMemcpyDeviceToHost));
    for (int b = 0; b < BUFFERS; b++)
        for (int i = 0; i < CELLS; i++)
            CHECK_QUIETLY(memory.cells[b][i] == got.cells[b][i], "seed %u, %s: buffer %d, cell %d: %d and not %d", seed, how, b, i, got.cells[b][i], memory.cells[b][i]);
    CHECK(!memcmp(memory.host, pinned, sizeof memory.host), "seed %u, %s: host memory", seed, how);
    CHECK(memory.calls == calls, "seed %u, %s: %d calls and not %d", seed, how, calls, memory.calls);
}

// The work with other values, made anew in the same manner.
static void renew(cudaGraphExec_t exec, const Work &work, cudaGraph_t (*make)(const Work &)) {
    cudaGraph_t graph = make(work);
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphExecUpdate(exec, graph, &info));
    OK(cudaGraphDestroy(graph));
}

static void one(unsigned seed) {
    Numbers numbers(seed);
    Work work = random_work(numbers);
    Memory memory = {};
    for (int i = 0; i < BUFFERS * CELLS; i++) memory.cells[0][i] = int(numbers.below(100));
    calls = 0;
    OK(cudaMemcpy(device, memory.cells, sizeof memory.cells, cudaMemcpyHostToDevice));
    memset(pinned, 0, sizeof memory.host);
    go(work, nullptr, memory, seed, "at once");
    cudaGraph_t (*const makers[])(const Work &) = {captured, built};
    cudaGraphExec_t execs[2];
    for (int i = 0; i < 2; i++) {
        cudaGraph_t graph = makers[i](work);
        OK(cudaGraphInstantiate(&execs[i], graph, 0));
        OK(cudaGraphDestroy(graph));
        for (int launch = 0; launch < 2; launch++) go(work, execs[i], memory, seed, i ? "built" : "captured");
    }
    // Memory of nodes keeps its addresses, so a graph that has some is not renewed.
    bool has_memory = std::any_of(work.begin(), work.end(), [](const Operation &it) { return it.kind == Kind::Scratch; });
    for (Operation &it : work) it.value = numbers.below(1000);
    for (int i = 0; i < 2; i++) {
        if (!has_memory) {
            renew(execs[i], work, makers[i]);
            go(work, execs[i], memory, seed, i ? "built anew" : "captured anew");
        }
        OK(cudaGraphExecDestroy(execs[i]));
    }
    printf("seed %u: %zu operations%s: %08x\n", seed, work.size(), has_memory ? ", memory of their own" : "", hash_of(&memory, sizeof memory));
}

int main(int argc, char **argv) {
    unsigned first = argc > 1 ? unsigned(atoi(argv[1])) : 1, count = argc > 2 ? unsigned(atoi(argv[2])) : SEEDS;
    OK(cudaMalloc(&device, BUFFERS * CELLS * sizeof(int)));
    OK(cudaMallocHost(&pinned, CELLS * sizeof(int)));
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    for (cudaStream_t &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<cudaEvent_t *> events = {&forked, &gate, &finished};
    for (cudaEvent_t &event : done) events.push_back(&event);
    for (cudaEvent_t &event : joined) events.push_back(&event);
    for (cudaEvent_t *event : events) OK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    for (unsigned seed = first; seed < first + count; seed++) one(seed);
    for (cudaEvent_t *event : events) OK(cudaEventDestroy(*event));
    for (cudaStream_t stream : streams) OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(side));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(device));
    return finish("graph_streams");
}
