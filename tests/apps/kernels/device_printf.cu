// printf in kernels: the text reaches the program's own stdout by the next synchronisation at the latest.
//
// One thread prints at a time, so that the order is defined; the host's lines between show when the text arrived.
#include "check.h"

__global__ void whole_numbers(int *returned) {
    returned[0] = printf("  decimal %d %i, unsigned %u, hex %x %X, octal %o, char %c\n", -7, 1 << 30, 4000000000u, 48879,
                         48879, 8, 'k');
    returned[1] = printf("  long %ld %lld %llu %llx\n", -5000000000l, -1ll, ~0ull, 0x123456789abcdefull);
    returned[2] = printf("  short %hd %hu, plain text, 100%%\n", short(-3), (unsigned short)200);
    returned[3] = printf("  widths [%5d] [%-5d] [%05d] [%+d] [%#x] [%*d]\n", 42, 42, 42, 42, 42, 7, 42);
    returned[4] = printf("  nothing to fill in\n");
}

__global__ void fractions() {
    printf("  float %f, precise %.3f, exponent %e, short %g %g\n", 1.5f, 2.0 / 3.0, 12345.678, 0.0001, 1e10);
    printf("  special %f %f %f, padded [%10.2f] [%-10.1f]\n", 1.0 / 0.0, -1.0 / 0.0, -0.0, 3.14159, 2.5);
}

__global__ void texts(int which) {
    const char *names[3] = {"first", "second", "third"};
    printf("  text [%s] [%10s] [%-8s] [%.3s]\n", names[which], "right", "left", "shortened");
}

__global__ void in_turn(int block) {
    if (int(blockIdx.x) == block && threadIdx.x == 0) printf("  block %d of %d\n", int(blockIdx.x), int(gridDim.x));
}

__global__ void many_lines(int lines) {
    for (int i = 0; i < lines; i++) printf("  line %d: %d squared is %d\n", i, i, i * i);
}

// The host's own line, which ends up before or after the device's text: that shows when the text arrived.
static void say(const char *what) {
    printf("%s:\n", what);
    fflush(stdout);
}

// Waits until the device's text is in this program's stdout.
static void arrive() {
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
    fflush(stdout);
}

int main() {
    int *device_returned, returned[5];
    OK(cudaMalloc(&device_returned, sizeof returned));
    whole_numbers<<<1, 1>>>(device_returned);
    say("whole numbers");
    arrive();
    OK(cudaMemcpy(returned, device_returned, sizeof returned, cudaMemcpyDeviceToHost));
    printf("returned: %d %d %d %d %d\n", returned[0], returned[1], returned[2], returned[3], returned[4]);
    fractions<<<1, 1>>>();
    say("fractions");
    arrive();
    // A launch may bring the text of those before it, so the host speaks first.
    say("texts");
    for (int which = 0; which < 3; which++) texts<<<1, 1>>>(which);
    arrive();
    say("blocks");
    for (int block = 0; block < 4; block++) in_turn<<<4, 32>>>(block);
    arrive();
    many_lines<<<1, 1>>>(40);
    say("lines");
    arrive();
    OK(cudaFree(device_returned));
    return finish("device_printf");
}
