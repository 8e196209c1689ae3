// Not a test by itself: a kernel built as machine code alone, in a program that ignores errors. It launches the kernel,
// or queries its attributes (`ask`), and prints the codes of that and of the following copy.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

__global__ void fill(int *cells) { cells[threadIdx.x] = 7; }

int main(int argc, char **argv) {
    int *cells, first = -1;
    cudaMalloc(&cells, 32 * sizeof(int));
    cudaMemset(cells, 0, 32 * sizeof(int));
    if (argc > 1 && !strcmp(argv[1], "ask")) {
        cudaFuncAttributes attributes;
        cudaFuncGetAttributes(&attributes, fill);
    } else {
        fill<<<1, 32>>>(cells);
    }
    cudaError_t refused = cudaGetLastError(), later = cudaMemcpy(&first, cells, sizeof first, cudaMemcpyDeviceToHost);
    printf("%d, then %d: %d\n", refused, later, first);
    return 0;
}
