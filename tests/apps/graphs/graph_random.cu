// Random graphs: nested conditional nodes, child graphs, copies, fills, host functions, events and changes, each launch checked
// cell by cell against a model on the host. Arguments: the first seed and the number of seeds.
#include "check.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

static const int BUFFERS = 6, CELLS = 64, LOOPS = 256, SEEDS = 24;
// Bits for the memory that a node touches: device buffers first, then the two host buffers and the counter of calls.
static const int PINNED = BUFFERS, PAGEABLE = BUFFERS + 1, CALLS = BUFFERS + 2;

enum class Kind { Mix, Copy, Fill, Empty, Child, If, Switch, While, Out, In, Call, Record };
struct Node;
typedef std::vector<Node> Body;
struct Node {
    Kind kind;
    int to = 0, from = 0, offset = 0, width = 0, loop = 0;
    unsigned value = 0, turns = 0;
    bool enabled = true, outer_handle = false;
    std::vector<Body> bodies;
    cudaGraphNode_t made = nullptr;
};

struct Memory {
    int cells[BUFFERS][CELLS], host[2][CELLS], calls;
};
static int *device, *loops, *pinned, pageable[CELLS], calls;
static cudaEvent_t event;

__global__ void mix(int *to, const int *from, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[i] = to[i] * 5 + from[i] + value;
}
__global__ void choose(cudaGraphConditionalHandle handle, const int *cell, unsigned ways) {
    cudaGraphSetConditional(handle, unsigned(*cell) % ways);
}
__global__ void begin(cudaGraphConditionalHandle handle, int *left, int turns) {
    *left = turns;
    cudaGraphSetConditional(handle, turns > 0);
}
__global__ void next(cudaGraphConditionalHandle handle, int *left) { cudaGraphSetConditional(handle, --*left > 0); }
static void CUDART_CB call(void *) { calls++; }

static int *buffer(int index) { return device + index * CELLS; }
static int *host(int index) { return index == PAGEABLE ? pageable : pinned; }

// Makes random nodes.
struct Maker {
    Numbers numbers;
    int loop = 0, nodes = 0, depth = 0;
    explicit Maker(unsigned seed) : numbers(seed) {}

    // Child graphs may have child graphs, and no conditional nodes.
    Node node(int level, bool in_child) {
        static const Kind inside[] = {Kind::Mix, Kind::Mix, Kind::Mix, Kind::Copy, Kind::Copy, Kind::Fill, Kind::Empty,
                                      Kind::Child, Kind::If, Kind::Switch, Kind::While};
        static const Kind outside[] = {Kind::Out, Kind::In, Kind::Call, Kind::Record};
        Node node;
        bool at_top = level == 0 && numbers.below(4) == 0;
        do node.kind = at_top ? outside[numbers.below(4)] : inside[numbers.below(11)];
        while ((level == 3 && node.kind == Kind::Child) || ((level == 3 || in_child) && node.kind >= Kind::If && node.kind <= Kind::While));
        node.to = int(numbers.below(BUFFERS));
        node.from = (node.to + 1 + int(numbers.below(BUFFERS - 1))) % BUFFERS;
        node.offset = int(numbers.below(CELLS));
        node.width = 1 + int(numbers.below(unsigned(CELLS - node.offset)));
        node.value = numbers.below(1000);
        node.turns = numbers.below(4);
        node.outer_handle = numbers.below(2) == 0;
        if (node.kind == Kind::Out) node.to = PINNED + int(numbers.below(2));
        if (node.kind == Kind::In) node.from = PINNED + int(numbers.below(2));
        if (node.kind == Kind::While) node.loop = loop++;
        size_t count = 0;
        if (node.kind == Kind::Child || node.kind == Kind::While) count = 1;
        if (node.kind == Kind::If) count = 1 + numbers.below(2);
        if (node.kind == Kind::Switch) count = 1 + numbers.below(4);
        for (size_t i = 0; i < count; i++) node.bodies.push_back(body(level + 1, in_child || node.kind == Kind::Child));
        return node;
    }

    Body body(int level, bool in_child) {
        Body made;
        depth = std::max(depth, level);
        for (unsigned count = (level == 0 ? 4 : 1) + numbers.below(level == 0 ? 8 : 4); count-- > 0; nodes++) made.push_back(node(level, in_child));
        return made;
    }
};

static bool has_conditional(const Body &body);
static bool has_conditional(const Node &node) {
    if (node.kind >= Kind::If && node.kind <= Kind::While) return true;
    return std::any_of(node.bodies.begin(), node.bodies.end(), [](const Body &body) { return has_conditional(body); });
}
static bool has_conditional(const Body &body) {
    return std::any_of(body.begin(), body.end(), [](const Node &node) { return has_conditional(node); });
}

static unsigned touched(const Node &node) {
    unsigned bits = 0;
    if (node.kind == Kind::Call) bits |= 1u << CALLS;
    if (node.kind == Kind::Mix || node.kind == Kind::Copy || node.kind == Kind::Out || node.kind == Kind::In)
        bits |= 1u << node.to | 1u << node.from;
    if (node.kind == Kind::Fill) bits |= 1u << node.to;
    if (node.kind == Kind::If || node.kind == Kind::Switch) bits |= 1u << node.from;
    for (const Body &body : node.bodies)
        for (const Node &inner : body) bits |= touched(inner);
    return bits;
}

// The model: what a launch does to memory.
static unsigned ways_of(const Node &node) { return node.kind == Kind::If ? 2 : unsigned(node.bodies.size()) + 1; }
static void run(const Body &body, Memory &memory) {
    for (const Node &node : body) {
        if (!node.enabled) continue;
        switch (node.kind) {
        case Kind::Mix:
            for (int i = 0; i < CELLS; i++)
                memory.cells[node.to][i] = int(unsigned(memory.cells[node.to][i]) * 5 + unsigned(memory.cells[node.from][i]) + node.value);
            break;
        case Kind::Copy:
            memcpy(memory.cells[node.to] + node.offset, memory.cells[node.from] + node.offset, size_t(node.width) * sizeof(int));
            break;
        case Kind::Fill:
            for (int i = 0; i < node.width; i++) memory.cells[node.to][node.offset + i] = int(node.value);
            break;
        case Kind::Out:
            memcpy(memory.host[node.to - PINNED] + node.offset, memory.cells[node.from] + node.offset, size_t(node.width) * sizeof(int));
            break;
        case Kind::In:
            memcpy(memory.cells[node.to] + node.offset, memory.host[node.from - PINNED] + node.offset, size_t(node.width) * sizeof(int));
            break;
        case Kind::Call: memory.calls++; break;
        case Kind::Child: run(node.bodies[0], memory); break;
        case Kind::While:
            for (unsigned turn = 0; turn < node.turns; turn++) run(node.bodies[0], memory);
            break;
        case Kind::If:
        case Kind::Switch: {
            unsigned value = unsigned(memory.cells[node.from][node.offset]) % ways_of(node);
            size_t way = node.kind == Kind::Switch ? value : value ? 0 : 1;
            if (way < node.bodies.size()) run(node.bodies[way], memory);
            break;
        }
        case Kind::Empty:
        case Kind::Record: break;
        }
    }
}

// Builds a body into a driver's graph.
struct Builder {
    cudaGraph_t outermost;
    cudaGraph_t graph;
    std::vector<cudaGraphNode_t> before;

    cudaGraphNode_t kernel(const void *function, unsigned blocks, unsigned threads, void **arguments) {
        cudaKernelNodeParams params = kernel_params(function, blocks, threads, arguments);
        cudaGraphNode_t made;
        OK(cudaGraphAddKernelNode(&made, graph, before.data(), before.size(), &params));
        return made;
    }
    static cudaKernelNodeParams kernel_params(const void *function, unsigned blocks, unsigned threads, void **arguments) {
        cudaKernelNodeParams params = {};
        params.func = const_cast<void *>(function);
        params.gridDim = dim3(blocks);
        params.blockDim = dim3(threads);
        params.kernelParams = arguments;
        return params;
    }
    cudaGraphNode_t copy(void *to, const void *from, int width, cudaMemcpyKind kind) {
        cudaGraphNode_t made;
        OK(cudaGraphAddMemcpyNode1D(&made, graph, before.data(), before.size(), to, from, size_t(width) * sizeof(int), kind));
        return made;
    }
    static cudaMemsetParams fill_params(const Node &node) {
        cudaMemsetParams params = {};
        params.dst = buffer(node.to) + node.offset;
        params.elementSize = sizeof(int);
        params.value = node.value;
        params.width = size_t(node.width);
        params.height = 1;
        return params;
    }

    cudaGraphNode_t child(const Node &node) {
        cudaGraph_t inner;
        cudaGraphNode_t made;
        OK(cudaGraphCreate(&inner, 0));
        Builder{inner, inner, {}}.build(node.bodies[0]);
        OK(cudaGraphAddChildGraphNode(&made, graph, before.data(), before.size(), inner));
        OK(cudaGraphDestroy(inner));
        return made;
    }

    cudaGraphNode_t conditional(const Node &node) {
        cudaGraphConditionalHandle handle;
        OK(cudaGraphConditionalHandleCreate(&handle, node.outer_handle ? outermost : graph, 0, cudaGraphCondAssignDefault));
        bool loops_back = node.kind == Kind::While;
        int *cell = loops_back ? loops + node.loop : buffer(node.from) + node.offset;
        unsigned number = loops_back ? node.turns : ways_of(node);
        void *arguments[] = {&handle, &cell, &number};
        cudaGraphNode_t first = kernel(loops_back ? (const void *)begin : (const void *)choose, 1, 1, arguments), made;
        cudaGraphNodeParams params = {cudaGraphNodeTypeConditional};
        params.conditional.handle = handle;
        params.conditional.type = loops_back               ? cudaGraphCondTypeWhile
                                  : node.kind == Kind::If ? cudaGraphCondTypeIf
                                                          : cudaGraphCondTypeSwitch;
        params.conditional.size = unsigned(node.bodies.size());
        OK(cudaGraphAddNode(&made, graph, &first, nullptr, 1, &params));
        for (size_t i = 0; i < node.bodies.size(); i++) {
            Builder inside{outermost, params.conditional.phGraph_out[i], {}};
            // The last step of a loop comes after all others.
            inside.before = inside.build(node.bodies[i]);
            if (loops_back) inside.kernel((const void *)next, 1, 1, arguments);
        }
        return made;
    }

    cudaGraphNode_t add(const Node &node) {
        cudaGraphNode_t made;
        int *to = node.kind == Kind::Out ? host(node.to) : buffer(node.to), *from = node.kind == Kind::In ? host(node.from) : buffer(node.from);
        switch (node.kind) {
        case Kind::Mix: {
            void *arguments[] = {&to, &from, const_cast<unsigned *>(&node.value)};
            return kernel((const void *)mix, 2, CELLS / 2, arguments);
        }
        case Kind::Copy: return copy(to + node.offset, from + node.offset, node.width, cudaMemcpyDeviceToDevice);
        case Kind::Out: return copy(to + node.offset, from + node.offset, node.width, cudaMemcpyDeviceToHost);
        case Kind::In: return copy(to + node.offset, from + node.offset, node.width, cudaMemcpyHostToDevice);
        case Kind::Fill: {
            cudaMemsetParams params = fill_params(node);
            OK(cudaGraphAddMemsetNode(&made, graph, before.data(), before.size(), &params));
            return made;
        }
        case Kind::Call: {
            cudaHostNodeParams params = {call, nullptr};
            OK(cudaGraphAddHostNode(&made, graph, before.data(), before.size(), &params));
            return made;
        }
        case Kind::Record: OK(cudaGraphAddEventRecordNode(&made, graph, before.data(), before.size(), event)); return made;
        case Kind::Empty: OK(cudaGraphAddEmptyNode(&made, graph, before.data(), before.size())); return made;
        case Kind::Child: return child(node);
        default: return conditional(node);
        }
    }

    // Each node comes after earlier ones that touch the same memory, and after no other. Returns all nodes, in order.
    std::vector<cudaGraphNode_t> build(const Body &body) {
        std::vector<cudaGraphNode_t> nodes;
        for (size_t i = 0; i < body.size(); i++) {
            before.clear();
            for (size_t j = 0; j < i; j++)
                if (touched(body[i]) & touched(body[j])) before.push_back(nodes[j]);
            nodes.push_back(add(body[i]));
            const_cast<Node &>(body[i]).made = nodes.back();
        }
        return nodes;
    }
};

static void read_back(Memory &memory) {
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(memory.cells, device, sizeof memory.cells, cudaMemcpyDeviceToHost));
    memcpy(memory.host[0], pinned, sizeof memory.host[0]);
    memcpy(memory.host[1], pageable, sizeof memory.host[1]);
    memory.calls = calls;
}

static void compare(const Memory &wanted, unsigned seed, const char *when) {
    Memory got;
    read_back(got);
    for (int b = 0; b < BUFFERS; b++)
        for (int i = 0; i < CELLS; i++)
            CHECK_QUIETLY(wanted.cells[b][i] == got.cells[b][i], "seed %u, %s: buffer %d, cell %d: %d and not %d", seed, when, b, i, got.cells[b][i], wanted.cells[b][i]);
    CHECK(!memcmp(wanted.host, got.host, sizeof got.host), "seed %u, %s: host memory", seed, when);
    CHECK(wanted.calls == got.calls, "seed %u, %s: %d calls and not %d", seed, when, got.calls, wanted.calls);
}

// Other values for nodes of the outermost graph, by the functions that change one node.
static void change(cudaGraphExec_t exec, Body &body, Numbers &numbers) {
    for (Node &node : body) {
        if (numbers.below(2)) continue;
        node.value = numbers.below(1000);
        if (node.kind == Kind::Mix) {
            int *to = buffer(node.to), *from = buffer(node.from);
            void *arguments[] = {&to, &from, &node.value};
            cudaKernelNodeParams params = Builder::kernel_params((const void *)mix, 2, CELLS / 2, arguments);
            OK(cudaGraphExecKernelNodeSetParams(exec, node.made, &params));
        } else if (node.kind == Kind::Fill) {
            cudaMemsetParams params = Builder::fill_params(node);
            OK(cudaGraphExecMemsetNodeSetParams(exec, node.made, &params));
        }
        if (node.kind <= Kind::Fill && numbers.below(3) == 0) {
            node.enabled = !node.enabled;
            OK(cudaGraphNodeSetEnabled(exec, node.made, node.enabled));
        }
    }
}

// The same graph with other values, given as a whole.
static void renew(cudaGraphExec_t exec, Body &body, Numbers &numbers) {
    for (Node &node : body) {
        if (node.kind == Kind::Mix || node.kind == Kind::Fill) node.value = numbers.below(1000);
        for (Body &inner : node.bodies)
            for (Node &deep : inner) deep.value = numbers.below(1000);
    }
    cudaGraph_t other;
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphCreate(&other, 0));
    Builder{other, other, {}}.build(body);
    OK(cudaGraphExecUpdate(exec, other, &info));
    OK(cudaGraphDestroy(other));
}

static void one(unsigned seed) {
    Maker maker(seed);
    Body body = maker.body(0, false);
    Memory memory;
    for (int i = 0; i < BUFFERS * CELLS; i++) memory.cells[0][i] = int(maker.numbers.below(100));
    for (int i = 0; i < 2 * CELLS; i++) memory.host[0][i] = int(maker.numbers.below(100));
    memory.calls = calls = 0;
    OK(cudaMemcpy(device, memory.cells, sizeof memory.cells, cudaMemcpyHostToDevice));
    memcpy(pinned, memory.host[0], sizeof memory.host[0]);
    memcpy(pageable, memory.host[1], sizeof memory.host[1]);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaGraphCreate(&graph, 0));
    Builder{graph, graph, {}}.build(body);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 2; launch++) {
        OK(cudaGraphLaunch(exec, nullptr));
        run(body, memory);
        compare(memory, seed, launch ? "second launch" : "first launch");
    }
    change(exec, body, maker.numbers);
    OK(cudaGraphLaunch(exec, nullptr));
    run(body, memory);
    compare(memory, seed, "changed nodes");
    if (!has_conditional(body)) {
        for (Node &node : body)
            if (!node.enabled) OK(cudaGraphNodeSetEnabled(exec, node.made, node.enabled = true));
        renew(exec, body, maker.numbers);
        OK(cudaGraphLaunch(exec, nullptr));
        run(body, memory);
        compare(memory, seed, "renewed graph");
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    printf("seed %u: %d nodes, %d deep, %d loops: %08x\n", seed, maker.nodes, maker.depth, maker.loop, hash_of(&memory, sizeof memory));
}

int main(int argc, char **argv) {
    unsigned first = argc > 1 ? unsigned(atoi(argv[1])) : 1, count = argc > 2 ? unsigned(atoi(argv[2])) : SEEDS;
    OK(cudaMalloc(&device, BUFFERS * CELLS * sizeof(int)));
    OK(cudaMalloc(&loops, LOOPS * sizeof(int)));
    OK(cudaMallocHost(&pinned, CELLS * sizeof(int)));
    OK(cudaEventCreate(&event));
    for (unsigned seed = first; seed < first + count; seed++) one(seed);
    OK(cudaEventDestroy(event));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(loops));
    OK(cudaFree(device));
    return finish("graph_random");
}
