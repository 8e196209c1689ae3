// What the programs of `katydid bench checkpoint` compute besides the kernels of `bench soft`. `kernels.ptx` is what nvcc
// 13.0 makes of this file:
//
//     nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu

// Bodies fly on for a moment: what pulls at them changes their speeds, these change their places.
extern "C" __global__ void fly(float4 *bodies, float4 *speeds, const float4 *pulls, int n)
{
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= n)
        return;
    const float moment = 0.0001f;
    float4 body = bodies[me], speed = speeds[me], pull = pulls[me];
    speed.x = fmaf(moment, pull.x, speed.x);
    speed.y = fmaf(moment, pull.y, speed.y);
    speed.z = fmaf(moment, pull.z, speed.z);
    body.x = fmaf(moment, speed.x, body.x);
    body.y = fmaf(moment, speed.y, body.y);
    body.z = fmaf(moment, speed.z, body.z);
    speeds[me] = speed;
    bodies[me] = body;
}

// Another matrix to find eigenvalues of, and intervals that hold all of them.
extern "C" __global__ void widen(float *diagonal, float *low, float *high, int n)
{
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= n)
        return;
    diagonal[me] = fmaf(0.999f, diagonal[me], 0.001f * (me % 7));
    low[me] = -16.0f;
    high[me] = 16.0f;
}

// Eigenvalues of a symmetric matrix with one diagonal beside the main one, a thread each: halves the interval that holds
// number `me`, by the count of eigenvalues below its middle (Sturm).
extern "C" __global__ void bisect(const float *diagonal, const float *beside, float *low, float *high, int n)
{
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= n)
        return;
    float middle = 0.5f * (low[me] + high[me]);
    float pivot = diagonal[0] - middle;
    int below = pivot < 0.0f;
    for (int k = 1; k < n; ++k) {
        if (fabsf(pivot) < 1e-20f)
            pivot = -1e-20f;
        pivot = diagonal[k] - middle - beside[k] * beside[k] / pivot;
        below += pivot < 0.0f;
    }
    if (below > me)
        high[me] = middle;
    else
        low[me] = middle;
}
