// The kernels of `katydid bench soft`. `kernels.ptx` is what nvcc 13.0 makes of this file:
//
//     nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu
//
// `kernels.cl` holds the same kernels in OpenCL C.

#define TILE 32
#define BODIES 256
#define WIDTH 32

// C = A * B for square matrices of `n` rows, a multiple of TILE; blocks of TILE x TILE threads.
extern "C" __global__ void sgemm(const float *a, const float *b, float *c, int n)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int tile = 0; tile < n; tile += TILE) {
        left[y][x] = a[row * n + tile + x];
        right[y][x] = b[(tile + y) * n + column];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k)
            sum = fmaf(left[y][k], right[k][x], sum);
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Accelerations of `n` bodies, a multiple of BODIES; blocks of BODIES threads.
extern "C" __global__ void nbody(const float4 *bodies, float4 *result, int n)
{
    __shared__ float4 near[BODIES];
    int me = blockIdx.x * BODIES + threadIdx.x;
    float4 body = bodies[me];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int tile = 0; tile < n; tile += BODIES) {
        near[threadIdx.x] = bodies[tile + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BODIES; ++k) {
            float dx = near[k].x - body.x, dy = near[k].y - body.y, dz = near[k].z - body.z;
            float square = fmaf(dx, dx, fmaf(dy, dy, fmaf(dz, dz, 0.01f)));
            float inverse = rsqrtf(square);
            float scale = near[k].w * inverse * inverse * inverse;
            ax = fmaf(dx, scale, ax);
            ay = fmaf(dy, scale, ay);
            az = fmaf(dz, scale, az);
        }
        __syncthreads();
    }
    result[me] = make_float4(ax, ay, az, 0.0f);
}

// One step of heat flow in a box of n x n x n cells, seven points; blocks of 32 x 8 threads, each thread a column.
extern "C" __global__ void stencil(const float *in, float *out, int n)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x + 1;
    int y = blockIdx.y * blockDim.y + threadIdx.y + 1;
    if (x >= n - 1 || y >= n - 1)
        return;
    int plane = n * n, at = plane + y * n + x;
    float below = in[at - plane], here = in[at];
    for (int z = 1; z < n - 1; ++z) {
        float above = in[at + plane];
        float around = in[at - 1] + in[at + 1] + in[at - n] + in[at + n];
        out[at] = fmaf(0.1f, around + below + above, 0.4f * here);
        below = here;
        here = above;
        at += plane;
    }
}

// The normal distribution, by a polynomial (Abramowitz and Stegun 26.2.17).
__device__ float normal(float d)
{
    float k = 1.0f / fmaf(0.2316419f, fabsf(d), 1.0f);
    float series = fmaf(k, 1.330274429f, -1.821255978f);
    series = fmaf(k, series, 1.781477937f);
    series = fmaf(k, series, -0.356563782f);
    series = fmaf(k, series, 0.31938153f) * k;
    float tail = 0.39894228f * __expf(-0.5f * d * d) * series;
    return d > 0.0f ? 1.0f - tail : tail;
}

// Prices of `n` options: call and put.
extern "C" __global__ void blackscholes(const float *price, const float *strike, const float *years, float *call,
                                        float *put, int n)
{
    const float rate = 0.02f, volatility = 0.3f;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < n; at += gridDim.x * blockDim.x) {
        float s = price[at], x = strike[at], t = years[at];
        float root = sqrtf(t);
        float d1 = __fdividef(__logf(__fdividef(s, x)) + (rate + 0.5f * volatility * volatility) * t, volatility * root);
        float d2 = d1 - volatility * root;
        float n1 = normal(d1), n2 = normal(d2);
        float discounted = x * __expf(-rate * t);
        float value = s * n1 - discounted * n2;
        call[at] = value;
        put[at] = value + discounted - s;
    }
}

// Sums of `n` numbers, one a block of 256 threads: warps by shuffles, then the warps of the block.
extern "C" __global__ void reduction(const float *in, float *out, int n)
{
    __shared__ float warps[WIDTH];
    float sum = 0.0f;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < n; at += gridDim.x * blockDim.x)
        sum += in[at];
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0.0f;
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, step);
        if (threadIdx.x == 0)
            out[blockIdx.x] = sum;
    }
}

// How often each byte occurs in `n` words; blocks of 256 threads count in shared memory first.
extern "C" __global__ void histogram(const unsigned *in, unsigned *counts, int n)
{
    __shared__ unsigned mine[256];
    mine[threadIdx.x] = 0;
    __syncthreads();
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < n; at += gridDim.x * blockDim.x) {
        unsigned word = in[at];
        atomicAdd(&mine[word & 255], 1);
        atomicAdd(&mine[word >> 8 & 255], 1);
        atomicAdd(&mine[word >> 16 & 255], 1);
        atomicAdd(&mine[word >> 24], 1);
    }
    __syncthreads();
    atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}
