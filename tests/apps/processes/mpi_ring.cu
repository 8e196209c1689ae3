// Ranks of an MPI program in a ring: in each step, a rank computes on the device and sends its border to the next
// rank; the first rank sums all checksums. Other ranks print nothing; the kept output is that of two ranks.
#include "steps.h"

#include <mpi.h>
#include <vector>

constexpr int N = 2048;

__global__ void mix(unsigned *data, unsigned border, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) data[i] = data[i] * 1664525u + salt + (i == 0 ? border : unsigned(i));
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 30);
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned *data;
    std::vector<unsigned> host(N);
    OK(cudaMalloc(&data, N * sizeof(unsigned)));
    OK(cudaMemset(data, rank + 1, N * sizeof(unsigned)));
    unsigned border = rank;
    for (int step = 0; step < steps; step++) {
        mix<<<N / 128, 128>>>(data, border, step);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host.data(), data, N * sizeof(unsigned), cudaMemcpyDeviceToHost));
        MPI_Sendrecv(&host[N - 1], 1, MPI_UNSIGNED, (rank + 1) % ranks, step, &border, 1, MPI_UNSIGNED,
                     (rank + ranks - 1) % ranks, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        Checksum mine, all;
        mine.bytes(host.data(), N * sizeof(unsigned));
        unsigned long long value = mine.value, total = 0;
        MPI_Reduce(&value, &total, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        all.add(total);
        if (rank == 0) told(step, all);
    }
    OK(cudaFree(data));
    MPI_Finalize();
    if (rank != 0) return 0;
    return finish("mpi_ring");
}
