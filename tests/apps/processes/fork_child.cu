// A child made by fork alone cannot use CUDA that its parent had started; the parent goes on unharmed.
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

__global__ void raise(int *cell) { *cell += 1; }

// The whole child: every call fails in the same way, and none hangs.
static int child(int *device) {
    int host = 0, count = 0;
    void *more;
    EXPECT(cudaErrorInitializationError, cudaMalloc(&more, 16));
    EXPECT(cudaErrorInitializationError, cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    raise<<<1, 1>>>(device);
    EXPECT(cudaErrorInitializationError, cudaGetLastError());
    EXPECT(cudaErrorInitializationError, cudaDeviceSynchronize());
    // The runtime had counted the devices before the fork, and does not ask again.
    EXPECT(cudaSuccess, cudaGetDeviceCount(&count));
    fflush(stdout);
    return failures == 0 ? 0 : 1;
}

int main() {
    int *device, host = 0;
    OK(cudaMalloc(&device, sizeof(int)));
    OK(cudaMemset(device, 0, sizeof(int)));
    for (int round = 1; round <= 3; round++) {
        raise<<<1, 1>>>(device);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) _exit(child(device));
        raise<<<1, 1>>>(device);
        int status = -1;
        waitpid(pid, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child of round %d ended with status %d", round, status);
        OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
        CHECK(host == 2 * round, "%d in round %d", host, round);
    }
    OK(cudaFree(device));
    printf("3 children refused, the parent unharmed\n");
    return finish("fork_child");
}
