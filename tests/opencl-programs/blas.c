// CLBlast through its C interface: results against sums on the host, printed as checksums of rounded values.
#define CL_TARGET_OPENCL_VERSION 120
#include <clblast_c.h>
#include <stdio.h>
#include <stdlib.h>
#define N 96
static float a[N*N], b[N*N], c[N*N];
int main(void) {
    cl_platform_id p; cl_device_id d; cl_int e;
    if (clGetPlatformIDs(1, &p, 0) || clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 1, &d, 0)) return 1;
    cl_context x = clCreateContext(0, 1, &d, 0, 0, &e); cl_command_queue q = clCreateCommandQueue(x, d, 0, &e);
    for (int i = 0; i < N*N; i++) { a[i] = (float)(i % 13) / 4; b[i] = (float)(i % 7) / 2; }
    cl_mem A = clCreateBuffer(x, CL_MEM_READ_WRITE|CL_MEM_COPY_HOST_PTR, sizeof a, a, &e), B = clCreateBuffer(x, CL_MEM_READ_WRITE|CL_MEM_COPY_HOST_PTR, sizeof b, b, &e), C = clCreateBuffer(x, CL_MEM_READ_WRITE, sizeof c, 0, &e);
    cl_event ev; int s = CLBlastSgemm(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes, N, N, N, 1.0f, A, 0, N, B, 0, N, 0.0f, C, 0, N, &q, &ev);
    clFinish(q); clEnqueueReadBuffer(q, C, 1, 0, sizeof c, c, 0, 0, 0);
    double worst = 0; for (int i = 0; i < N; i++) for (int j = 0; j < N; j++) { double t = 0; for (int k = 0; k < N; k++) t += a[i*N+k]*b[j*N+k]; double r = t - c[i*N+j]; if (r < 0) r = -r; if (r > worst) worst = r; }
    printf("sgemm %d right %d\n", s, worst < 1e-2);
    s = CLBlastSaxpy(N*N, 2.0f, A, 0, 1, B, 0, 1, &q, &ev); clEnqueueReadBuffer(q, B, 1, 0, sizeof c, c, 0, 0, 0);
    int ok = 1; for (int i = 0; i < N*N; i++) ok &= c[i] == b[i] + 2*a[i]; printf("saxpy %d right %d\n", s, ok);
    s = CLBlastSgemv(CLBlastLayoutRowMajor, CLBlastTransposeNo, N, N, 1.0f, A, 0, N, B, 0, 1, 0.0f, C, 0, 1, &q, &ev); clEnqueueReadBuffer(q, C, 1, 0, N*4, c, 0, 0, 0);
    printf("sgemv %d %.3f\n", s, c[5]); return 0; }
