// Attributes of streams: initial values, settable values, copies; no more bytes are written than each has.
#include <cuda.h>

#include <cstring>

#include "check.h"
#include "first_device.h"

static CUdevice device;
static CUstream stream;

static int device_value(CUdevice_attribute which) {
    int value = 0;
    OK(cuDeviceGetAttribute(&value, which, device));
    return value;
}

static CUstreamAttrValue marked() {
    CUstreamAttrValue value;
    memset(&value, 0xaa, sizeof value);
    return value;
}

// The bytes after the attribute's own are left alone.
static void check_rest(const CUstreamAttrValue &value, size_t used, const char *name) {
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&value);
    for (size_t index = used; index < sizeof value; index++)
        CHECK_QUIETLY(bytes[index] == 0xaa, "%s wrote byte %zu", name, index);
}

static void first_values() {
    CUstreamAttrValue value = marked();
    OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    check_rest(value, 4, "policy");
    value = marked();
    OK(cuStreamGetAttribute(nullptr, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    CHECK(value.priority == 0, "priority %d", value.priority);
    check_rest(value, 4, "priority");
    value = marked();
    OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    CHECK(value.memSyncDomainMap.default_ == 0 && value.memSyncDomainMap.remote == 1, "domains %d %d",
          value.memSyncDomainMap.default_, value.memSyncDomainMap.remote);
    check_rest(value, 2, "domain map");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(stream, static_cast<CUstreamAttrID>(2), &value));
    printf("first values\n");
}

static void window(CUdeviceptr memory) {
    CUstreamAttrValue value = {}, got = marked();
    value.accessPolicyWindow.base_ptr = reinterpret_cast<void *>(memory);
    value.accessPolicyWindow.num_bytes = 4096;
    value.accessPolicyWindow.hitRatio = 0.5f;
    value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
    value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
    OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &got));
    CHECK(got.accessPolicyWindow.num_bytes == 4096 && got.accessPolicyWindow.hitRatio == 0.5f, "%zu bytes",
          got.accessPolicyWindow.num_bytes);
    check_rest(got, 32, "window");
    value.accessPolicyWindow.num_bytes = device_value(CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE) + size_t(1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    value.accessPolicyWindow.num_bytes = 4096;
    value.accessPolicyWindow.hitRatio = 1.5f;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    printf("window\n");
}

static void set_and_copy() {
    CUstreamAttrValue value = {}, got = {};
    CUstream other;
    OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
    value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
    OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    value.syncPolicy = static_cast<CUsynchronizationPolicy>(9);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    value = {};
    value.memSyncDomainMap.remote = device_value(CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    OK(cuStreamCopyAttributes(other, stream));
    OK(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
    CHECK(got.syncPolicy == CU_SYNC_POLICY_BLOCKING_SYNC, "policy %d", got.syncPolicy);
    OK(cuStreamDestroy(other));
    printf("set and copied\n");
}

static void affinity() {
    CUexecAffinityParam told;
    int supported = 1;
    OK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device));
    CHECK(supported == 0, "support %d", supported);
    OK(cuCtxGetExecAffinity(&told, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    CHECK(int(told.param.smCount.val) == device_value(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), "%u multiprocessors",
          told.param.smCount.val);
    EXPECT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, cuCtxGetExecAffinity(&told, static_cast<CUexecAffinityType>(1)));
    printf("affinity\n");
}

int main() {
    CUcontext context;
    CUdeviceptr memory;
    begin_on_first(&device, &context);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&memory, 1 << 20));
    first_values();
    window(memory);
    set_and_copy();
    affinity();
    unsigned one = 1;
    OK(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 0x1000));
    return finish("stream_attributes");
}
