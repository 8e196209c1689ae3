// assert in a kernel: sticky error 710 at the next synchronisation, and one line about it on stderr.
#include "check.h"

#include <cassert>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

__global__ void insist(int limit) { assert(int(threadIdx.x) < limit); }

// Everything that arrives on stderr while this lives goes to a file, so that it can be compared.
class Stderr {
    int kept = dup(2), file = memfd_create("stderr", 0);

  public:
    Stderr() { dup2(file, 2); }
    std::string text() {
        fflush(stderr);
        dup2(kept, 2);
        char bytes[4096];
        ssize_t n = pread(file, bytes, sizeof bytes, 0);
        return std::string(bytes, n > 0 ? n : 0);
    }
};

int main() {
    insist<<<1, 32>>>(32);
    OK(cudaDeviceSynchronize());
    Stderr captured;
    insist<<<1, 32>>>(31);
    cudaError_t got = cudaDeviceSynchronize();
    std::string text = captured.text();
    EXPECT(cudaErrorAssert, got);
    EXPECT(cudaErrorAssert, cudaDeviceSynchronize());
    void *more;
    EXPECT(cudaErrorAssert, cudaMalloc(&more, 16));
    printf("on stderr: %s", text.c_str());
    return finish("device_assert");
}
