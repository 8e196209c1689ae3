// Not a test by itself: the program that the tests of the whole system kill, watch and disturb.
//
//   fixture idle          starts CUDA, says `ready`, waits for the end of its input, does one more thing, says `done`
//   fixture endless       says `ready`, then launches and synchronises until a call fails, and says the error
//   fixture stuck         says `ready`, then synchronises with a kernel that never ends
//   fixture hold BYTES [FILE]  like `idle`, with that much device memory; or waits until the file exists
//   fixture idles BYTES [FILE]  takes that much memory of each device in blocks of many sizes, frees all but one, then waits like `idle`,
//                         or until the file exists; takes the same again, and checks the block that it kept, before `done`
//   fixture takes KIND BYTES  makes one `block`, `array` or `mapping` of that much device memory, says `had`
//   fixture outlives FILE like `endless`, but after the error it waits for the file before it ends
//   fixture quits FILE    says `ready`, waits for the file, says `quits` and calls _exit, with the GPU's side as it is
//   fixture waits FILE ON says `ready`, waits for the file, launches a kernel, says `runs` when that does, ends it when the file ON
//                         exists, says `ended` and the kernel's count
//   fixture reads FILE    says each line of its input, and `end of input`; after the first of these makes FILE.held and waits for the
//                         file; stops at a line `end` or the end of input, launches a kernel, says `done` on both streams
//   fixture launches FILE a host function in a stream waits for the file, beside 200 launches that each use changed pinned memory;
//                         says how many arrived
//   fixture saves FILE    says `ready`, and catches signals that ask it to end; when the file exists, does the same as `count 100`
//   fixture locks N       like `count`, with all present and future memory locked; first says how many MiB of shared memory it has,
//                         or that it may not lock
//   fixture count N       launches N kernels, says how many arrived
//   fixture copies MIB    repeatedly copies that much in and out, other bytes each time, and says `ready` after some rounds; names the
//                         first call that fails, with its error, and then the error of one more call; status 4 if
//                         a copy that was reported as done had not brought all bytes
//
// The exit status is 0 when all went well, and 3 when a CUDA call failed, after `error N NAME` on a line of its own.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void raise(int *cell) { atomicAdd(cell, 1); }

__global__ void forever(volatile int *cell) {
    while (*cell >= 0) *cell = *cell / 2;
}

// Marks that it runs, and ends when the program sets the flag.
__global__ void wait_for(volatile int *flags, int *cell) {
    flags[0] = 1;
    while (flags[1] == 0) {}
    atomicAdd(cell, 1);
}

static void tell(cudaError_t got) {
    printf("error %d %s\n", int(got), cudaGetErrorName(got));
    fflush(stdout);
}

static void need(cudaError_t got) {
    if (got == cudaSuccess) return;
    tell(got);
    exit(3);
}

static int *cell;

static void say(const char *word) {
    printf("%s\n", word);
    fflush(stdout);
}

static void until_input_ends() {
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

static void until_there(const char *file) {
    while (access(file, F_OK) != 0) usleep(1000);
}

static int idle(size_t bytes, const char *file) {
    // In several blocks, which a restore takes one after the other.
    for (size_t taken = 0, size; taken < bytes; taken += size) {
        void *held = nullptr;
        size = std::min(size_t(64) << 20, bytes - taken);
        need(cudaMalloc(&held, size));
        need(cudaMemset(held, 1, size));
        need(cudaDeviceSynchronize());
    }
    say("ready");
    if (file) until_there(file);
    else until_input_ends();
    raise<<<1, 1>>>(cell);
    need(cudaGetLastError());
    need(cudaDeviceSynchronize());
    say("done");
    return 0;
}

// Blocks that fill the driver's pieces of memory, and blocks that share them.
static void take_and_free(size_t bytes) {
    const size_t sizes[] = {24 << 20, 5 << 20, 1 << 20, 40 << 10, 9 << 20};
    std::vector<void *> blocks;
    for (size_t taken = 0, size; taken < bytes; taken += size) {
        size = std::min(sizes[blocks.size() % 5], bytes - taken);
        blocks.push_back(nullptr);
        need(cudaMalloc(&blocks.back(), size));
    }
    for (void *block : blocks) need(cudaFree(block));
}

// On each visible device; the first is current afterwards.
static void take_and_free_everywhere(size_t bytes) {
    int count = 0;
    need(cudaGetDeviceCount(&count));
    while (count-- > 0) {
        need(cudaSetDevice(count));
        take_and_free(bytes);
    }
}

static int idles(size_t bytes, const char *file) {
    std::vector<unsigned char> seen(3 << 20);
    void *kept = nullptr;
    int counted = 0;
    raise<<<1, 1>>>(cell);
    take_and_free_everywhere(bytes);
    need(cudaMalloc(&kept, seen.size()));
    need(cudaMemset(kept, 7, seen.size()));
    need(cudaDeviceSynchronize());
    say("ready");
    if (file) until_there(file);
    else until_input_ends();
    take_and_free_everywhere(bytes);
    raise<<<1, 1>>>(cell);
    need(cudaMemcpy(&counted, cell, sizeof counted, cudaMemcpyDeviceToHost));
    need(cudaMemcpy(seen.data(), kept, seen.size(), cudaMemcpyDeviceToHost));
    const bool is_whole = std::all_of(seen.begin(), seen.end(), [](unsigned char byte) { return byte == 7; });
    say(counted == 2 && is_whole ? "done" : "lost what it had");
    return 0;
}

static int takes(const char *kind, size_t bytes) {
    if (strcmp(kind, "block") == 0) {
        void *block = nullptr;
        need(cudaMalloc(&block, bytes));
    } else if (strcmp(kind, "array") == 0) {
        cudaArray_t array;
        cudaChannelFormatDesc texel = cudaCreateChannelDesc<float4>();
        const size_t rows = 1 << 10;
        need(cudaMallocArray(&array, &texel, bytes / rows / sizeof(float4), rows));
    } else {
        CUmemGenericAllocationHandle memory;
        CUmemAllocationProp request = {};
        request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        request.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        void *entry = nullptr;
        need(cudaGetDriverEntryPointByVersion("cuMemCreate", &entry, 12000, cudaEnableDefault, nullptr));
        auto create = reinterpret_cast<decltype(&cuMemCreate)>(entry);
        need(cudaError_t(create(&memory, bytes >> 21 << 21, &request, 0)));
    }
    say("had");
    return 0;
}

static int endless() {
    say("ready");
    for (;;) {
        raise<<<8, 32>>>(cell);
        need(cudaGetLastError());
        need(cudaDeviceSynchronize());
    }
}

static int stuck() {
    forever<<<1, 32>>>(cell);
    need(cudaGetLastError());
    say("ready");
    need(cudaDeviceSynchronize());
    return 0;
}

static int outlives(const char *file) {
    say("ready");
    cudaError_t got = cudaSuccess;
    while (got == cudaSuccess) {
        raise<<<8, 32>>>(cell);
        got = cudaDeviceSynchronize();
    }
    tell(got);
    until_there(file);
    return 3;
}

static int quits(const char *file) {
    say("ready");
    until_there(file);
    say("quits");
    _exit(0);
}

// The thread that ends the kernel calls nothing of CUDA, so a checkpoint does not hold it.
static int waits(const char *file, const char *on) {
    int *flags = nullptr, counted = 0;
    need(cudaHostAlloc(&flags, 2 * sizeof(int), cudaHostAllocMapped));
    volatile int *seen = flags;
    seen[0] = seen[1] = 0;
    std::thread other([=] {
        while (seen[0] == 0) usleep(1000);
        say("runs");
        until_there(on);
        seen[1] = 1;
    });
    say("ready");
    until_there(file);
    wait_for<<<1, 1>>>(flags, cell);
    need(cudaGetLastError());
    need(cudaMemcpy(&counted, cell, sizeof counted, cudaMemcpyDeviceToHost));
    other.join();
    // A checkpoint that waits for the kernel has this held.
    need(cudaDeviceSynchronize());
    printf("ended %d\n", counted);
    return 0;
}

__global__ void raise_if(const volatile int *word, int *cell) {
    if (*word > 0) atomicAdd(cell, 1);
}

struct Gate {
    const char *file;
    std::atomic<bool> has_begun{false};
};

static void CUDART_CB open_gate(void *data) {
    auto *gate = static_cast<Gate *>(data);
    gate->has_begun = true;
    until_there(gate->file);
}

// A line without its end, read byte by byte: what follows is left for later reads. False: there is none.
static bool read_line(char *line, size_t room) {
    size_t length = 0;
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n')
        if (length + 1 < room) line[length++] = byte;
    line[length] = 0;
    return length > 0;
}

static int reads(const std::string &file) {
    char line[64];
    for (bool is_first = true;; is_first = false) {
        bool is_line = read_line(line, sizeof line);
        say(is_line ? (std::string("read ") + line).c_str() : "end of input");
        if (is_first) {
            fclose(fopen((file + ".held").c_str(), "w"));
            while (access(file.c_str(), F_OK) != 0) usleep(2000);
        } else if (!is_line || strcmp(line, "end") == 0) {
            break;
        }
    }
    raise<<<1, 1>>>(cell);
    need(cudaDeviceSynchronize());
    say("done");
    fprintf(stderr, "done\n");
    return 0;
}

static int launches(const char *file) {
    Gate gate{file};
    cudaStream_t waiting, other;
    int *word = nullptr, arrived = 0;
    for (auto *each : {&waiting, &other}) need(cudaStreamCreateWithFlags(each, cudaStreamNonBlocking));
    need(cudaMallocHost(&word, sizeof *word));
    *word = 0;
    // A driver may wait for all streams to load a kernel, which it does when that is first launched.
    raise_if<<<1, 1, 0, other>>>(word, cell);
    need(cudaDeviceSynchronize());
    need(cudaLaunchHostFunc(waiting, open_gate, &gate));
    while (!gate.has_begun) usleep(1000);
    for (int i = 0; i < 200; i++) {
        ++*word;
        raise_if<<<1, 1, 0, other>>>(word, cell);
    }
    need(cudaGetLastError());
    need(cudaDeviceSynchronize());
    need(cudaMemcpy(&arrived, cell, sizeof arrived, cudaMemcpyDeviceToHost));
    printf("%d\n", arrived);
    return arrived == 200 ? 0 : 1;
}

static int count(long n) {
    int arrived = 0;
    for (long i = 0; i < n; i++) raise<<<1, 1>>>(cell);
    need(cudaGetLastError());
    need(cudaMemcpy(&arrived, cell, sizeof arrived, cudaMemcpyDeviceToHost));
    printf("%d\n", arrived);
    return arrived == n ? 0 : 1;
}

// Bytes of shared memory that the process has in use.
static long shared_memory() {
    char line[256];
    long kibibytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "RssShmem: %ld", &kibibytes);
    if (status) fclose(status);
    return kibibytes << 10;
}

static int locks(long n) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == 0) printf("%ld MiB\n", shared_memory() >> 20);
    else say("may not lock");
    return count(n);
}

// Like programs that save their state when a batch system asks them to end.
static int saves(const char *file) {
    for (int asks : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU}) signal(asks, [](int) {});
    say("ready");
    until_there(file);
    return count(100);
}

static int copies(size_t mebibytes) {
    const size_t words = mebibytes << 18;
    std::vector<unsigned> there(words), back(words);
    unsigned *device = nullptr;
    need(cudaMalloc(&device, words * sizeof(unsigned)));
    for (unsigned round = 0;; round++) {
        for (size_t i = 0; i < words; i++) there[i] = unsigned(i) * 2654435761u + round;
        const char *which = "in";
        cudaError_t got = cudaMemcpy(device, there.data(), words * sizeof(unsigned), cudaMemcpyHostToDevice);
        if (got == cudaSuccess) {
            which = "out";
            got = cudaMemcpy(back.data(), device, words * sizeof(unsigned), cudaMemcpyDeviceToHost);
        }
        if (got != cudaSuccess) {
            say(which);
            tell(got);
            tell(cudaMemcpy(device, there.data(), sizeof(unsigned), cudaMemcpyHostToDevice));
            return 3;
        }
        if (back != there) return say("a copy was not whole"), 4;
        if (round == 3) say("ready");
    }
}

// The bus of each device that is visible, in their order.
static int devices() {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorNoDevice) count = 0;
    else if (code != cudaSuccess) return 1;
    printf("%d:", count);
    for (int device = 0; device < count; device++) {
        char place[32] = "";
        if (cudaDeviceGetPCIBusId(place, sizeof place, device) != cudaSuccess) return 1;
        printf(" %.2s", place + 5);
    }
    printf("\n");
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const char *number = argc > 2 ? argv[2] : "0";
    // Before any call that needs a device.
    if (strcmp(what, "devices") == 0) return devices();
    need(cudaMalloc(&cell, sizeof(int)));
    need(cudaMemset(cell, 0, sizeof(int)));
    if (strcmp(what, "idle") == 0) return idle(0, nullptr);
    if (strcmp(what, "hold") == 0) return idle(strtoull(number, nullptr, 10), argc > 3 ? argv[3] : nullptr);
    if (strcmp(what, "idles") == 0) return idles(strtoull(number, nullptr, 10), argc > 3 ? argv[3] : nullptr);
    if (strcmp(what, "takes") == 0) return takes(number, strtoull(argc > 3 ? argv[3] : "0", nullptr, 10));
    if (strcmp(what, "endless") == 0) return endless();
    if (strcmp(what, "stuck") == 0) return stuck();
    if (strcmp(what, "outlives") == 0) return outlives(number);
    if (strcmp(what, "quits") == 0) return quits(number);
    if (strcmp(what, "waits") == 0 && argc > 3) return waits(number, argv[3]);
    if (strcmp(what, "reads") == 0) return reads(number);
    if (strcmp(what, "launches") == 0) return launches(number);
    if (strcmp(what, "saves") == 0) return saves(number);
    if (strcmp(what, "locks") == 0) return locks(atol(number));
    if (strcmp(what, "count") == 0) return count(atol(number));
    if (strcmp(what, "copies") == 0) return copies(strtoul(number, nullptr, 10));
    fprintf(stderr, "usage: fixture idle | hold BYTES [FILE] | idles BYTES [FILE] | takes KIND BYTES | endless | stuck | outlives FILE | quits FILE | waits FILE ON | reads FILE | launches FILE | saves FILE | locks N | count N | copies MIB | devices\n");
    return 2;
}
