// Declarations shared by two separately compiled files.
#pragma once

struct Counter {
    int value;
    __device__ void add(int n);
    __device__ virtual int twice() const;
};

extern __device__ int shared_total;
extern __constant__ float shared_factors[4];
extern __device__ int (*chosen)(int);

__device__ float scaled(float x, int which);
__device__ int choose(int n);
template <class T> __host__ __device__ T clamp_between(T x, T low, T high) { return x < low ? low : x > high ? high : x; }
void launch_other(int *out);
