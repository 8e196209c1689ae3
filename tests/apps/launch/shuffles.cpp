// shfl.sync in its four modes, by the rules of the PTX ISA: which lane is read, and whether it is in range, for 54 pairs of a
// distance and of a clamp with segments. All lanes of a warp take part, or only some, while the others take another branch or
// have exited. A value read from an inactive lane is undefined, and not compared; whether that lane is in range is.
#include <cuda.h>

#include <string>
#include <vector>

#include "check.h"
#include "first_device.h"

// Block i uses the i-th pair; out has the value and the predicate of each lane that takes part.
static const char *const PTX = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry shuffle(.param .u64 pairs, .param .u64 out, .param .u32 members, .param .u32 named, .param .u32 ends)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [pairs];
    ld.param.u64 %d2, [out];
    ld.param.u32 %r6, [members];
    ld.param.u32 %r7, [named];
    ld.param.u32 %r8, [ends];
    mov.u32 %r1, %tid.x;
    mov.u32 %r9, %ctaid.x;
    mad.lo.u32 %r10, %r9, 32, %r1;
    mul.wide.u32 %d3, %r10, 8;
    add.s64 %d2, %d2, %d3;
    mul.wide.u32 %d3, %r9, 8;
    add.s64 %d1, %d1, %d3;
    ld.global.v2.u32 {%r4, %r5}, [%d1];
    add.u32 %r2, %r1, 1000;
    shr.u32 %r10, %r6, %r1;
    and.b32 %r10, %r10, 1;
    setp.eq.u32 %p1, %r10, 0;
    setp.ne.u32 %p2, %r8, 0;
    and.pred %p2, %p1, %p2;
    @%p2 exit;
    @%p1 bra DONE;
    shfl.sync.MODE.b32 %r3|%p3, %r2, %r4, %r5, %r7;
    selp.u32 %r11, 1, 0, %p3;
    st.global.v2.u32 [%d2], {%r3, %r11};
DONE:
    ret;
}
)";

struct Pair {
    unsigned b, c;
};
struct Answer {
    unsigned value, in_range;
};
enum Mode { UP, DOWN, BUTTERFLY, INDEX };
static const char *const NAMES[] = {"up", "down", "bfly", "idx"};

// The lane that is read, and whether it is in range: the PTX ISA, shfl.sync.
static int source(Mode mode, int lane, Pair pair, bool *in_range) {
    int b = pair.b & 31, clamp = pair.c & 31, segments = pair.c >> 8 & 31, from;
    int most = (lane & segments) | (clamp & ~segments), least = lane & segments;
    if (mode == UP) from = lane - b;
    else if (mode == DOWN) from = lane + b;
    else if (mode == BUTTERFLY) from = lane ^ b;
    else from = least | (b & ~segments);
    *in_range = mode == UP ? from >= most : from <= most;
    return *in_range ? from : lane;
}

// `members` take part and name the lanes of `named`; the others end first, or go another way.
static unsigned run(CUfunction shuffle, Mode mode, const std::vector<Pair> &pairs, CUdeviceptr memory, unsigned members, unsigned named, unsigned ends) {
    size_t length = pairs.size() * 32 * sizeof(Answer);
    CUdeviceptr out = memory + pairs.size() * sizeof(Pair);
    std::vector<Answer> got(pairs.size() * 32);
    void *arguments[] = {&memory, &out, &members, &named, &ends};
    OK(cuMemsetD8(out, 0xff, length));
    OK(cuLaunchKernel(shuffle, unsigned(pairs.size()), 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuMemcpyDtoH(got.data(), out, length));
    unsigned defined = 0;
    for (size_t i = 0; i < got.size(); i++) {
        int lane = int(i % 32);
        Pair pair = pairs[i / 32];
        if (!(members >> lane & 1)) {
            CHECK_QUIETLY(got[i].value == ~0u, "%s: lane %d has written", NAMES[mode], lane);
            continue;
        }
        bool in_range;
        int from = source(mode, lane, pair, &in_range);
        CHECK_QUIETLY(got[i].in_range == unsigned(in_range), "%s b %u c %#x, lane %d of %#x: in range %u", NAMES[mode], pair.b, pair.c, lane, members, got[i].in_range);
        if (!(members >> from & 1)) continue;
        defined++;
        CHECK_QUIETLY(got[i].value == 1000u + unsigned(from), "%s b %u c %#x, lane %d of %#x: %u and not %d", NAMES[mode], pair.b, pair.c, lane, members, got[i].value, 1000 + from);
    }
    return defined;
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    std::vector<Pair> pairs;
    for (unsigned b : {0u, 1u, 2u, 5u, 16u, 31u})
        for (unsigned segments : {0u, 0x18u, 0x1cu})
            for (unsigned clamp : {0u, 0x13u, 31u}) pairs.push_back({b, segments << 8 | clamp});
    CUdeviceptr memory;
    OK(cuMemAlloc(&memory, pairs.size() * (sizeof(Pair) + 32 * sizeof(Answer))));
    OK(cuMemcpyHtoD(memory, pairs.data(), pairs.size() * sizeof(Pair)));
    for (Mode mode : {UP, DOWN, BUTTERFLY, INDEX}) {
        std::string text = PTX;
        text.replace(text.find("MODE"), 4, NAMES[mode]);
        CUmodule module;
        CUfunction shuffle;
        OK(cuModuleLoadData(&module, text.c_str()));
        OK(cuModuleGetFunction(&shuffle, module, "shuffle"));
        unsigned defined = run(shuffle, mode, pairs, memory, ~0u, ~0u, 0);
        for (unsigned members : {0xffu, 0xa5a5f00fu}) {
            defined += run(shuffle, mode, pairs, memory, members, members, 0);
            defined += run(shuffle, mode, pairs, memory, members, members, 1);
            // Lanes that have ended may be named: none waits for them.
            defined += run(shuffle, mode, pairs, memory, members, ~0u, 1);
        }
        printf("%s: %u values\n", NAMES[mode], defined);
        OK(cuModuleUnload(module));
    }
    OK(cuMemFree(memory));
    return finish("shuffles");
}
