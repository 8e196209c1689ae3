// Ranks of an MPI program in a ring: each step computes on the device, hands its border to the next rank, and adds all
// checksums up on the first. Ranks beyond the first print nothing; the kept output is that of four ranks.
#include "check.h"

#include <mpi.h>

#define N 1024
#define STEPS 20

int main(int argc, char **argv) {
    int rank, ranks;
    static int values[N];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    set_up(0);
    for (int i = 0; i < N; i++) values[i] = rank + 1;
    cl_mem buffer = buffer_of(CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof values, values);
    // PoCL's cache of programs fails at times when processes compile one program at once: the first rank fills it alone.
    if (rank > 0) MPI_Barrier(MPI_COMM_WORLD);
    cl_program program = build("__kernel void churn(__global uint *v, uint border, uint salt) {\n"
                               "    size_t i = get_global_id(0);\n"
                               "    v[i] = v[i] * 1664525u + salt + (i == 0 ? border : (uint)i);\n"
                               "}\n", NULL);
    cl_kernel churn = kernel_of(program, "churn");
    if (rank == 0) MPI_Barrier(MPI_COMM_WORLD);
    CHECK(clSetKernelArg(churn, 0, sizeof buffer, &buffer));
    int border = rank;
    for (int step = 0; step < STEPS; step++) {
        CHECK(clSetKernelArg(churn, 1, sizeof border, &border));
        CHECK(clSetKernelArg(churn, 2, sizeof step, &step));
        launch(churn, N);
        CHECK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
        MPI_Sendrecv(&values[N - 1], 1, MPI_INT, (rank + 1) % ranks, step, &border, 1, MPI_INT,
                     (rank + ranks - 1) % ranks, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        unsigned long mine = sum_of(values, N), all = 0;
        MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("step %d: %lu\n", step, all), fflush(stdout);
    }
    clReleaseKernel(churn), clReleaseProgram(program), clReleaseMemObject(buffer);
    tear_down();
    MPI_Finalize();
    return 0;
}
