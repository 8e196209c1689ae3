// Tables of unnamed functions that NVIDIA's libraries ask the driver for: cuFFT walks modules with one, and cuBLASLt reads the
// layout of multiprocessors from another.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

#include "check.h"
#include "embedded_ptx.h"
#include "first_device.h"

using Words = const void *const *;

static Words table(std::initializer_list<unsigned char> id) {
    CUuuid uuid;
    const void *found = nullptr;
    memcpy(uuid.bytes, id.begin(), 16);
    OK(cuGetExportTable(&found, &uuid));
    return static_cast<Words>(found);
}

static size_t words_of(Words table) { return reinterpret_cast<size_t>(table[0]) / 8; }

static void note(void *seen, CUfunction function, const char *) { static_cast<std::set<CUfunction> *>(seen)->insert(function); }

static void kernels(CUcontext context) {
    Words tools = table({0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e});
    auto each = reinterpret_cast<int (*)(CUcontext, CUmodule, void (*)(void *, CUfunction, const char *), void *, CUmodule)>(const_cast<void *>(tools[7]));
    CUmodule module;
    CUfunction add, bump;
    std::set<CUfunction> seen;
    OK(cuModuleLoadData(&module, MODULE_PTX));
    CHECK(words_of(tools) > 7, "%zu words", words_of(tools));
    CHECK(each(context, module, note, &seen, module) > 0, "nothing visited");
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&bump, module, "bump"));
    CHECK(seen == (std::set<CUfunction>{add, bump}), "%zu functions", seen.size());
    OK(cuModuleUnload(module));
    printf("kernels of a module\n");
}

static void places(CUdevice device) {
    Words map = table({0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca});
    auto get = reinterpret_cast<CUresult (*)(unsigned char **, unsigned char **)>(const_cast<void *>(map[4]));
    auto give_back = reinterpret_cast<CUresult (*)(unsigned char *, unsigned char *)>(const_cast<void *>(map[13]));
    unsigned char *cluster = nullptr, *place = nullptr;
    int processors = 0;
    CHECK(words_of(map) > 13, "%zu words", words_of(map));
    OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    OK(get(&cluster, &place));
    // No two pairs of processors are at one place.
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < processors / 2; i++) seen.insert({cluster[i], place[i]});
    CHECK(seen.size() == size_t(processors / 2), "%zu places of %d", seen.size(), processors / 2);
    OK(give_back(cluster, place));
    OK(give_back(nullptr, nullptr));
    printf("places of multiprocessors\n");
}

static void contexts(CUcontext context) {
    Words tools = table({0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2});
    auto context_id = reinterpret_cast<CUresult (*)(CUcontext, unsigned long long *)>(const_cast<void *>(tools[4]));
    auto stream_id = reinterpret_cast<CUresult (*)(CUcontext, void *, unsigned long long *)>(const_cast<void *>(tools[39]));
    auto object = reinterpret_cast<CUresult (*)(CUcontext, CUstream, void **, int)>(const_cast<void *>(tools[51]));
    unsigned long long told = 0, wanted = 1;
    void *behind = nullptr;
    CUstream stream;
    OK(cuStreamCreate(&stream, 0));
    OK(context_id(context, &told));
    OK(cuCtxGetId(context, &wanted));
    CHECK(told == wanted, "%llu", told);
    OK(object(context, stream, &behind, 0));
    CHECK(behind && behind != stream, "the stream itself");
    OK(stream_id(context, behind, &told));
    OK(cuStreamGetId(stream, &wanted));
    CHECK(told == wanted, "%llu, wanted %llu", told, wanted);
    OK(cuStreamDestroy(stream));
    printf("contexts and streams\n");
}

// What `body` writes to standard error.
template <class Body>
static std::string errors_of(Body body) {
    char text[4096];
    FILE *file = tmpfile();
    int kept = dup(2);
    CHECK(file && kept >= 0 && dup2(fileno(file), 2) == 2, "standard error cannot be turned");
    body();
    dup2(kept, 2);
    close(kept);
    rewind(file);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    return std::string(text, length);
}

// A slot that NVIDIA's driver has and Katydid has not is named with its table, once, and so is an unknown table. What
// the driver's own slot would do with these arguments is not known, so it is not asked.
static void not_built() {
    if (getenv("KATYDID_SERVER") || dlsym(RTLD_DEFAULT, "katydid_softcuda_marker")) {
        Words tools = table({0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e});
        auto slot = reinterpret_cast<CUresult (*)(CUcontext, int)>(const_cast<void *>(tools[33]));
        CHECK(tools[93] == nullptr, "a slot that the driver leaves empty");
        std::string said = errors_of([&] { EXPECT(CUDA_ERROR_NOT_SUPPORTED, slot(nullptr, 7)); });
        CHECK(said.find("slot 33 of the private table TOOLS_MODULE (6e163fbe-b958-") != std::string::npos, "%s", said.c_str());
        said = errors_of([&] { EXPECT(CUDA_ERROR_NOT_SUPPORTED, slot(nullptr, 7)); });
        CHECK(said.empty(), "said again: %s", said.c_str());
        CUuuid unknown = {};
        const void *found = &unknown;
        unknown.bytes[15] = 0x2a;
        said = errors_of([&] { EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetExportTable(&found, &unknown)); });
        CHECK(!found && said.find("00000000-0000-0000-0000-00000000002a") != std::string::npos, "%s", said.c_str());
    }
    printf("what is not there is named\n");
}

int main() {
    CUdevice device;
    CUcontext context;
    begin_on_first(&device, &context);
    kernels(context);
    places(device);
    contexts(context);
    not_built();
    return finish("private_tables");
}
