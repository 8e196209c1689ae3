// Functions that are called by pointers: linked (-rdc=true), their addresses are patched when the code is loaded.
typedef int (*function)(int);
__device__ int counter = 3;
__device__ __noinline__ int one(int x) { return x + counter; }
__device__ __noinline__ int two(int x) { return x * 7 + counter; }
__device__ function functions[2] = {one, two};
extern "C" __global__ void k(unsigned long long *out, int n) {
    out[0] = (unsigned long long)(n & 1 ? one : two);
    out[1] = functions[n & 1](n);
}
