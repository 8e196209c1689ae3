// Module variables, and holders of their addresses: none, the program, device memory, pinned memory, the program's own
// memory, a parameter of a graph, another variable, a table of functions. A driver may place variables elsewhere in the
// next process. Code finds its own variables there; a holder of an old address does not.
//
//   kept_variables [STEPS [HOLDER]]    HOLDER: none, told, device, pinned, host, graph, variable or functions; none unless given
#include <cuda.h>

#include <cstring>
#include <string>

#include "steps.h"

// `step` mixes `table` and a number of the hidden `hidden`, and gives their sum. `point` writes the address of `table`
// somewhere. `named` holds one, in a module of its own. `choose` calls a function by a pointer.
static const char *const TABLE_PTX = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .global .align 4 .b32 first = 1;
.visible .global .align 8 .b32 table[64];
.global .align 4 .b32 hidden[8] = {3, 1, 4, 1, 5, 9, 2, 6};
.visible .const .align 4 .b32 factor = 31;

.visible .entry step(.param .u64 out, .param .u32 number)
{
    .reg .pred %p;
    .reg .b32 %r<12>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [number];
    ld.const.u32 %r2, [factor];
    mov.u64 %d2, table;
    mov.u64 %d3, hidden;
    mov.u32 %r3, 0;
    mov.u32 %r4, 0;
turn:
    mul.wide.u32 %d4, %r3, 4;
    add.s64 %d4, %d2, %d4;
    ld.global.u32 %r5, [%d4];
    and.b32 %r6, %r3, 7;
    mul.wide.u32 %d5, %r6, 4;
    add.s64 %d5, %d3, %d5;
    ld.global.u32 %r7, [%d5];
    mad.lo.s32 %r5, %r5, %r2, %r7;
    add.s32 %r5, %r5, %r1;
    st.global.u32 [%d4], %r5;
    add.s32 %r7, %r7, %r5;
    st.global.u32 [%d5], %r7;
    xor.b32 %r4, %r4, %r5;
    add.s32 %r3, %r3, 1;
    setp.lt.u32 %p, %r3, 64;
    @%p bra turn;
    ld.global.u32 %r8, [first];
    add.s32 %r8, %r8, %r4;
    st.global.u32 [first], %r8;
    cvta.to.global.u64 %d1, %d1;
    st.global.u32 [%d1], %r8;
    ret;
}

.visible .entry point(.param .u64 out)
{
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    mov.u64 %d2, table;
    cvta.global.u64 %d2, %d2;
    add.s64 %d2, %d2, 8;
    cvta.to.global.u64 %d1, %d1;
    st.global.u64 [%d1], %d2;
    ret;
}

.visible .entry follow(.param .u64 pointer, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [pointer];
    ld.param.u64 %d2, [out];
    ld.u32 %r1, [%d1];
    cvta.to.global.u64 %d2, %d2;
    st.global.u32 [%d2], %r1;
    ret;
}
)";

static const char *const NAMED_PTX = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .global .align 4 .b32 named[4] = {2, 7, 1, 8};
.visible .global .align 8 .u64 to_named[1] = {generic(named)};

.visible .entry through(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    ld.global.u64 %d2, [to_named];
    ld.u32 %r1, [%d2+4];
    mad.lo.s32 %r2, %r1, 17, 1;
    st.u32 [%d2+4], %r2;
    cvta.to.global.u64 %d1, %d1;
    st.global.u32 [%d1], %r2;
    ret;
}
)";

static const char *const FUNCTIONS_PTX = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .global .align 4 .b32 calls = 0;

.func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [value];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}

.visible .entry choose(.param .u64 out, .param .u32 number)
{
    .reg .b32 %r<5>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [number];
    mov.u64 %d2, twice;
    {
        .param .b32 value;
        .param .b32 result;
        st.param.b32 [value], %r1;
        prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (result), %d2, (value), prototype;
        ld.param.b32 %r2, [result];
    }
    ld.global.u32 %r3, [calls];
    add.u32 %r3, %r3, %r2;
    st.global.u32 [calls], %r3;
    cvta.to.global.u64 %d1, %d1;
    st.global.u32 [%d1], %r3;
    ret;
}
)";

static CUmodule load(const char *text) {
    CUmodule module;
    OK(cuModuleLoadData(&module, text));
    return module;
}

static CUfunction function(CUmodule module, const char *name) {
    CUfunction found;
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

static void launch(CUfunction function, void **arguments) { OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr)); }

static unsigned read(CUdeviceptr at) {
    unsigned value = 0;
    OK(cuMemcpyDtoH(&value, at, sizeof value));
    return value;
}

// A graph of one kernel that reads where `pointer` points.
static CUgraphExec following(CUfunction follow, CUdeviceptr pointer, CUdeviceptr out) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    void *arguments[] = {&pointer, &out};
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    kernel.func = follow;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    const std::string holder = argc > 2 ? argv[2] : "none";
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    CUmodule module = load(TABLE_PTX);
    CUfunction step_function = function(module, "step"), point = function(module, "point"), follow = function(module, "follow");
    CUdeviceptr out, table = 0;
    unsigned long long *pinned = nullptr, held = 0;
    size_t size;
    OK(cuMemAlloc(&out, 4096));
    OK(cuMemsetD8(out, 0, 4096));
    CUdeviceptr slot = out + 1024;
    CUfunction through = nullptr, choose = nullptr;
    if (holder == "told") OK(cuModuleGetGlobal(&table, &size, module, "table"));
    if (holder == "variable") through = function(load(NAMED_PTX), "through");
    if (holder == "functions") choose = function(load(FUNCTIONS_PTX), "choose");
    CUgraphExec graph = nullptr;
    if (holder == "device" || holder == "host" || holder == "graph") {
        void *arguments[] = {&slot};
        launch(point, arguments);
        // The program itself holds what it copies, and device memory no longer does.
        if (holder != "device") {
            OK(cuMemcpyDtoH(&held, slot, sizeof held));
            OK(cuMemsetD8(slot, 0, sizeof held));
        }
        if (holder == "graph") graph = following(follow, held, out);
    }
    if (holder == "pinned") {
        OK(cuMemHostAlloc(reinterpret_cast<void **>(&pinned), 4096, CU_MEMHOSTALLOC_DEVICEMAP));
        CUdeviceptr seen;
        OK(cuMemHostGetDevicePointer(&seen, pinned, 0));
        void *arguments[] = {&seen};
        launch(point, arguments);
        OK(cuCtxSynchronize());
    }
    for (int number = 0; number < steps; number++) {
        Checksum sum;
        void *arguments[] = {&out, &number};
        launch(step_function, arguments);
        sum.add(read(out));
        if (table) sum.add(read(table + 4 * (number % 64)));
        unsigned long long pointer = pinned ? *pinned : held;
        if (holder == "device") OK(cuMemcpyDtoH(&pointer, slot, sizeof pointer));
        if (graph) {
            OK(cuGraphLaunch(graph, nullptr));
            sum.add(read(out));
        } else if (pointer) {
            void *arguments[] = {&pointer, &out};
            launch(follow, arguments);
            sum.add(read(out));
        }
        if (through) {
            void *arguments[] = {&out};
            launch(through, arguments);
            sum.add(read(out));
        }
        if (choose) {
            void *arguments[] = {&out, &number};
            launch(choose, arguments);
            sum.add(read(out));
        }
        told(number, sum);
    }
    if (graph) OK(cuGraphExecDestroy(graph));
    OK(cuMemFree(out));
    if (pinned) OK(cuMemFreeHost(pinned));
    OK(cuDevicePrimaryCtxRelease(device));
    return finish("kept_variables");
}
