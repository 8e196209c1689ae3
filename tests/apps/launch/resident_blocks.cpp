// Blocks that wait for each other in ordinary launches, lanes that read inactive lanes, and textures over memory made of
// several mappings.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"
#include "first_device.h"

static const char *const PTX = R"(
.version 7.0
.target sm_70
.address_size 64

// Each thread adds 1 to the first word and waits until all threads of all blocks have; then it adds 1 to the second one.
.visible .entry meet(.param .u64 words)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [words];
    mov.u32 %r1, %nctaid.x;
    mov.u32 %r3, %ntid.x;
    mul.lo.u32 %r1, %r1, %r3;
    red.global.add.u32 [%d1], 1;
WAIT:
    ld.volatile.global.u32 %r2, [%d1];
    setp.lt.u32 %p, %r2, %r1;
    @%p bra WAIT;
    red.global.add.u32 [%d1+4], 1;
    ret;
}

// Lanes 0 to 7 read the lane that is b beyond theirs, of segments that c gives: out[lane], with 77 for the others.
.visible .entry read_lanes(.param .u64 out, .param .u32 b, .param .u32 c)
{
    .reg .pred %p;
    .reg .b32 %r<7>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r4, [b];
    ld.param.u32 %r5, [c];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d1, %d1, %d2;
    add.u32 %r2, %r1, 1000;
    mov.u32 %r3, 77;
    setp.gt.u32 %p, %r1, 7;
    vote.sync.ballot.b32 %r6, !%p, 0xffffffff;
    @%p bra DONE;
    shfl.sync.down.b32 %r3, %r2, %r4, %r5, %r6;
DONE:
    st.global.u32 [%d1], %r3;
    ret;
}

// out[i] = the texel i of a line, or (i % width, i / width) of a plane.
.visible .entry fetch(.param .u64 texture, .param .u64 out, .param .u32 width, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<12>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [texture];
    ld.param.u64 %d2, [out];
    ld.param.u32 %r1, [width];
    ld.param.u32 %r2, [count];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r3, %r3, %r4, %r5;
    setp.ge.u32 %p, %r3, %r2;
    @%p ret;
    mul.wide.u32 %d3, %r3, 4;
    add.s64 %d2, %d2, %d3;
    setp.eq.u32 %p, %r1, 0;
    @%p bra LINE;
    rem.u32 %r4, %r3, %r1;
    div.u32 %r5, %r3, %r1;
    tex.2d.v4.u32.s32 {%r6, %r7, %r8, %r9}, [%d1, {%r4, %r5}];
    st.global.u32 [%d2], %r6;
    ret;
LINE:
    tex.1d.v4.u32.s32 {%r6, %r7, %r8, %r9}, [%d1, {%r3}];
    st.global.u32 [%d2], %r6;
    ret;
}
)";

static CUdevice device;
static CUmodule module;

static CUfunction function(const char *name) {
    CUfunction found;
    OK(cuModuleGetFunction(&found, module, name));
    return found;
}

static void blocks_meet() {
    CUfunction meet = function("meet");
    int multiprocessors, each;
    OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, meet, 32, 0));
    CUdeviceptr words;
    OK(cuMemAlloc(&words, 8));
    for (unsigned blocks : {24u, unsigned(multiprocessors * each)}) {
        unsigned counted[2];
        void *arguments[] = {&words};
        OK(cuMemsetD32(words, 0, 2));
        OK(cuLaunchKernel(meet, blocks, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
        OK(cuCtxSynchronize());
        OK(cuMemcpyDtoH(counted, words, sizeof counted));
        CHECK(counted[1] == 32 * blocks, "%u of %u", counted[1], blocks);
    }
    OK(cuMemFree(words));
    printf("all blocks that a device holds wait for each other\n");
}

static void lanes_read(unsigned b, unsigned c, std::vector<unsigned> expected) {
    CUdeviceptr out;
    unsigned got[32];
    OK(cuMemAlloc(&out, sizeof got));
    void *arguments[] = {&out, &b, &c};
    OK(cuLaunchKernel(function("read_lanes"), 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuMemcpyDtoH(got, out, sizeof got));
    OK(cuMemFree(out));
    for (unsigned lane = 0; lane < 8; lane++) CHECK_QUIETLY(got[lane] == expected[lane], "lane %u, %u beyond: %u", lane, b, got[lane]);
    CHECK_QUIETLY(got[8] == 77, "%u", got[8]);
}

// Reads `words` texels through a texture over `at` and compares them with what is there.
static void read_texture(CUdeviceptr at, unsigned width, unsigned height, const std::vector<unsigned> &words, const char *what) {
    CUDA_RESOURCE_DESC resource = {};
    CUDA_TEXTURE_DESC how = {};
    if (width) {
        resource.resType = CU_RESOURCE_TYPE_PITCH2D;
        resource.res.pitch2D = {at, CU_AD_FORMAT_UNSIGNED_INT32, 1, width, height, 4 * width};
    } else {
        resource.resType = CU_RESOURCE_TYPE_LINEAR;
        resource.res.linear = {at, CU_AD_FORMAT_UNSIGNED_INT32, 1, 4 * words.size()};
    }
    how.addressMode[0] = how.addressMode[1] = CU_TR_ADDRESS_MODE_CLAMP;
    how.flags = CU_TRSF_READ_AS_INTEGER;
    CUtexObject texture;
    CUdeviceptr out;
    unsigned count = words.size();
    OK(cuTexObjectCreate(&texture, &resource, &how, nullptr));
    OK(cuMemAlloc(&out, 4 * count));
    OK(cuMemsetD8(out, 0, 4 * count));
    void *arguments[] = {&texture, &out, &width, &count};
    OK(cuLaunchKernel(function("fetch"), (count + 255) / 256, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuCtxSynchronize());
    std::vector<unsigned> got(count);
    OK(cuMemcpyDtoH(got.data(), out, 4 * count));
    OK(cuMemFree(out));
    OK(cuTexObjectDestroy(texture));
    unsigned wrong = 0;
    for (unsigned i = 0; i < count; i++) wrong += got[i] != words[i];
    CHECK(wrong == 0, "%s: %u of %u texels", what, wrong, count);
}

static void textures_over_several_mappings() {
    constexpr size_t LINE = 2 << 20;
    constexpr unsigned WIDTH = 640, HEIGHT = 533;
    std::vector<unsigned> words(WIDTH * HEIGHT);
    Numbers numbers(9);
    for (unsigned &word : words) word = numbers.next();
    // Two blocks side by side, with the texture over the line between them.
    CUmemAllocationProp properties = {};
    CUmemAccessDesc access = {};
    CUmemGenericAllocationHandle blocks[2];
    CUdeviceptr range;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemAddressReserve(&range, 2 * LINE, 0, 0, 0));
    for (int i : {0, 1}) {
        OK(cuMemCreate(&blocks[i], LINE, &properties, 0));
        OK(cuMemMap(range + i * LINE, LINE, 0, blocks[i], 0));
    }
    OK(cuMemSetAccess(range, 2 * LINE, &access, 1));
    CUdeviceptr at = range + LINE - 512 * 1024;
    OK(cuMemcpyHtoD(at, words.data(), 4 * words.size()));
    read_texture(at, WIDTH, HEIGHT, words, "a plane over two mappings");
    read_texture(at, 0, 0, words, "a line over two mappings");
    OK(cuMemUnmap(range, 2 * LINE));
    for (CUmemGenericAllocationHandle block : blocks) OK(cuMemRelease(block));
    OK(cuMemAddressFree(range, 2 * LINE));
    // Allocations one after the other, some of which lie over such a line wherever a driver or Katydid puts them.
    std::vector<CUdeviceptr> places(6);
    for (CUdeviceptr &place : places) {
        OK(cuMemAlloc(&place, 4 * words.size()));
        OK(cuMemcpyHtoD(place, words.data(), 4 * words.size()));
    }
    for (CUdeviceptr place : places) {
        read_texture(place, WIDTH, HEIGHT, words, "a plane");
        read_texture(place, 0, 0, words, "a line");
    }
    for (CUdeviceptr place : places) OK(cuMemFree(place));
    printf("textures over several mappings\n");
}

int main() {
    CUcontext context;
    begin_on_first(&device, &context);
    OK(cuModuleLoadData(&module, PTX));
    blocks_meet();
    lanes_read(16, 31, {0, 0, 0, 0, 0, 0, 0, 0});
    lanes_read(4, 31, {1004, 1005, 1006, 1007, 0, 0, 0, 0});
    lanes_read(4, 0x181f, {1004, 1005, 1006, 1007, 1004, 1005, 1006, 1007});
    printf("lanes that take no part give 0\n");
    textures_over_several_mappings();
    OK(cuModuleUnload(module));
    return finish("resident_blocks");
}
