// Atomic operations of system scope, or, with -DDEVICE, of smaller ones:
//   nvcc -arch=sm_90 -cubin -o system_90.cubin system_atomics.cu
//   nvcc -arch=sm_90 -DDEVICE -cubin -o device_90.cubin system_atomics.cu
#ifdef DEVICE
__global__ void add(int *p) { p[1] = atomicAdd(p, 1), atomicAdd_block(p + 2, 1), p[3] = atomicCAS(p + 4, 1, 2); }
#else
__global__ void add(int *p) { atomicAdd_system(p, 1); }
#endif
