// Green contexts: partitions of a device's multiprocessors, invalid requests, and two contexts that live over all steps, each
// with a stream, a default stream and an event.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "embedded_ptx.h"
#include "first_device.h"
#include "steps.h"

constexpr unsigned WORDS = 4096;

// Calls that CUDA's documentation forbids without saying which code they return.
#define REFUSED(call) CHECK((call) != CUDA_SUCCESS, "taken")

static CUdevice device;
static CUcontext primary;

static unsigned count_of(const CUdevResource &resource) { return resource.type == CU_DEV_RESOURCE_TYPE_SM ? resource.sm.smCount : 0; }

static CUdevResource all_of_device() {
    CUdevResource all = {};
    OK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    int multiprocessors;
    OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK(count_of(all) == unsigned(multiprocessors), "%u, not %d", count_of(all), multiprocessors);
    return all;
}

// Two groups where the device has room for two, else one.
static std::vector<CUdevResource> split(const CUdevResource &all) {
    unsigned least = std::max(1u, all.sm.minSmPartitionSize), number = 0;
    OK(cuDevSmResourceSplitByCount(nullptr, &number, &all, nullptr, 0, least));
    CHECK(number >= 1 && number * least <= count_of(all), "%u groups of %u", number, least);
    std::vector<CUdevResource> groups(std::min(number, 2u));
    CUdevResource rest = {}, again[2];
    number = unsigned(groups.size());
    OK(cuDevSmResourceSplitByCount(groups.data(), &number, &all, &rest, 0, least));
    CHECK(number == groups.size(), "%u", number);
    unsigned sum = count_of(rest);
    for (const CUdevResource &group : groups) {
        CHECK(count_of(group) >= least, "%u", count_of(group));
        sum += count_of(group);
    }
    CHECK(sum <= count_of(all), "%u of %u", sum, count_of(all));
    number = 1;
    REFUSED(cuDevSmResourceSplitByCount(again, &number, &all, nullptr, 0, count_of(all) + 1));
    REFUSED(cuDevSmResourceSplitByCount(again, nullptr, &all, nullptr, 0, least));
    CUdevResource none = {};
    REFUSED(cuDevSmResourceSplitByCount(again, &number, &none, nullptr, 0, 0));
    return groups;
}

struct Part {
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr;
    CUstream stream = nullptr, plain = nullptr;
    CUevent event = nullptr;
    CUdeviceptr from = 0, to = 0;
    unsigned multiprocessors = 0;
};

static Part made_of(CUdevResource group) {
    Part part;
    CUdevResourceDesc description;
    CUdevResource own = {}, same = {};
    unsigned long long id = 0, other = 0;
    CUgreenCtx found;
    CUcontext owner;
    OK(cuDevResourceGenerateDesc(&description, &group, 1));
    REFUSED(cuGreenCtxCreate(&part.green, description, device, 0));
    OK(cuGreenCtxCreate(&part.green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&part.context, part.green));
    OK(cuGreenCtxGetDevResource(part.green, &own, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuCtxGetDevResource(part.context, &same, CU_DEV_RESOURCE_TYPE_SM));
    part.multiprocessors = count_of(own);
    CHECK(count_of(own) == count_of(group) && count_of(same) == count_of(group), "%u, %u", count_of(own), count_of(same));
    OK(cuGreenCtxGetId(part.green, &id));
    OK(cuGreenCtxGetId(part.green, &other));
    CHECK(id == other, "%llu, %llu", id, other);
    REFUSED(cuGreenCtxStreamCreate(&part.stream, part.green, CU_STREAM_DEFAULT, 0));
    OK(cuGreenCtxStreamCreate(&part.stream, part.green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamGetGreenCtx(part.stream, &found));
    CHECK(found == part.green, "another green context");
    OK(cuStreamGetCtx_v2(part.stream, &owner, &found));
    CHECK(owner == primary && found == part.green, "other contexts");
    // Objects made while the green context is current belong to the primary context, and outlive the green one.
    OK(cuCtxPushCurrent(part.context));
    OK(cuStreamGetGreenCtx(nullptr, &found));
    CHECK(found == part.green, "another green context");
    OK(cuEventCreate(&part.event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&part.from, 4 * WORDS));
    OK(cuMemAlloc(&part.to, 4 * WORDS));
    OK(cuCtxPopCurrent(&owner));
    CHECK(owner == part.context, "another context");
    OK(cuStreamCreate(&part.plain, CU_STREAM_NON_BLOCKING));
    OK(cuStreamGetGreenCtx(part.plain, &found));
    CHECK(found == nullptr, "a green context");
    return part;
}

// Runs the kernel in the part's stream, and then, after an event, in a stream of the primary context or in its default stream.
static void work(Part &part, CUfunction add, int step, bool in_default, Checksum &sum) {
    unsigned words = WORDS;
    int term = step;
    void *there[] = {&part.to, &words, &part.from, &term}, *back[] = {&part.from, &words, &part.to, &term};
    OK(cuMemsetD32Async(part.from, unsigned(step + 1), WORDS, part.stream));
    OK(cuLaunchKernel(add, WORDS / 128, 1, 1, 128, 1, 1, 0, part.stream, there, nullptr));
    OK(cuGreenCtxRecordEvent(part.green, part.event));
    OK(cuStreamWaitEvent(part.plain, part.event, 0));
    if (in_default) {
        OK(cuEventSynchronize(part.event));
        OK(cuCtxPushCurrent(part.context));
        OK(cuLaunchKernel(add, WORDS / 128, 1, 1, 128, 1, 1, 0, nullptr, back, nullptr));
        OK(cuCtxSynchronize());
        OK(cuCtxPopCurrent(nullptr));
    } else {
        OK(cuLaunchKernel(add, WORDS / 128, 1, 1, 128, 1, 1, 0, part.plain, back, nullptr));
        OK(cuEventRecord(part.event, part.plain));
        OK(cuGreenCtxWaitEvent(part.green, part.event));
        OK(cuStreamSynchronize(part.plain));
    }
    OK(cuStreamSynchronize(part.stream));
    std::vector<unsigned> host(WORDS);
    OK(cuMemcpyDtoH(host.data(), part.from, 4 * WORDS));
    unsigned wanted = unsigned((step + 1) * 3 + step) * 3 + unsigned(step);
    for (unsigned word : host) CHECK_QUIETLY(word == wanted, "%u, not %u", word, wanted);
    sum.bytes(host.data(), 4 * WORDS);
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 10);
    begin_on_first(&device, &primary);
    CUmodule module;
    CUfunction add;
    OK(cuModuleLoadData(&module, MODULE_PTX));
    OK(cuModuleGetFunction(&add, module, "add"));
    CUdevResource all = all_of_device();
    CUdevResource unknown;
    REFUSED(cuDeviceGetDevResource(device, &unknown, CU_DEV_RESOURCE_TYPE_INVALID));
    std::vector<Part> parts;
    for (const CUdevResource &group : split(all)) parts.push_back(made_of(group));
    for (int step = 0; step < steps; step++) {
        // A sum of each part alone, so that the line is the same where a device has room for only one.
        Checksum sum;
        for (Part &part : parts) {
            CUdevResource own = {};
            sum = Checksum();
            work(part, add, step, step % 3 == 2, sum);
            OK(cuGreenCtxGetDevResource(part.green, &own, CU_DEV_RESOURCE_TYPE_SM));
            CHECK(count_of(own) == part.multiprocessors, "%u, not %u", count_of(own), part.multiprocessors);
        }
        told(step, sum);
    }
    for (Part &part : parts) {
        OK(cuStreamDestroy(part.stream));
        OK(cuGreenCtxDestroy(part.green));
        // The primary context still has these.
        OK(cuMemsetD32Async(part.from, 0, WORDS, part.plain));
        OK(cuEventRecord(part.event, part.plain));
        OK(cuEventSynchronize(part.event));
        OK(cuEventDestroy(part.event));
        OK(cuStreamDestroy(part.plain));
        OK(cuMemFree(part.from));
        OK(cuMemFree(part.to));
    }
    OK(cuModuleUnload(module));
    OK(cuDevicePrimaryCtxRelease(device));
    return finish("kept_green");
}
