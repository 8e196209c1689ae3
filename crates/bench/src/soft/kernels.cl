// The kernels of `kernels.cu` in OpenCL C: the same work for a work-item as for a thread. The sum of a group goes through
// local memory, since not every OpenCL has shuffles.

#define TILE 32
#define BODIES 256

kernel void sgemm(global const float *a, global const float *b, global float *c, int n)
{
    local float left[TILE][TILE], right[TILE][TILE];
    int x = get_local_id(0), y = get_local_id(1);
    int row = get_group_id(1) * TILE + y, column = get_group_id(0) * TILE + x;
    float sum = 0.0f;
    for (int tile = 0; tile < n; tile += TILE) {
        left[y][x] = a[row * n + tile + x];
        right[y][x] = b[(tile + y) * n + column];
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int k = 0; k < TILE; ++k)
            sum = fma(left[y][k], right[k][x], sum);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * n + column] = sum;
}

kernel void nbody(global const float4 *bodies, global float4 *result, int n)
{
    local float4 near[BODIES];
    int me = get_global_id(0), mine = get_local_id(0);
    float4 body = bodies[me];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int tile = 0; tile < n; tile += BODIES) {
        near[mine] = bodies[tile + mine];
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
        for (int k = 0; k < BODIES; ++k) {
            float dx = near[k].x - body.x, dy = near[k].y - body.y, dz = near[k].z - body.z;
            float square = fma(dx, dx, fma(dy, dy, fma(dz, dz, 0.01f)));
            float inverse = native_rsqrt(square);
            float scale = near[k].w * inverse * inverse * inverse;
            ax = fma(dx, scale, ax);
            ay = fma(dy, scale, ay);
            az = fma(dz, scale, az);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    result[me] = (float4)(ax, ay, az, 0.0f);
}

kernel void stencil(global const float *in, global float *out, int n)
{
    int x = get_global_id(0) + 1, y = get_global_id(1) + 1;
    if (x >= n - 1 || y >= n - 1)
        return;
    int plane = n * n, at = plane + y * n + x;
    float below = in[at - plane], here = in[at];
    for (int z = 1; z < n - 1; ++z) {
        float above = in[at + plane];
        float around = in[at - 1] + in[at + 1] + in[at - n] + in[at + n];
        out[at] = fma(0.1f, around + below + above, 0.4f * here);
        below = here;
        here = above;
        at += plane;
    }
}

float normal(float d)
{
    float k = 1.0f / fma(0.2316419f, fabs(d), 1.0f);
    float series = fma(k, 1.330274429f, -1.821255978f);
    series = fma(k, series, 1.781477937f);
    series = fma(k, series, -0.356563782f);
    series = fma(k, series, 0.31938153f) * k;
    float tail = 0.39894228f * native_exp(-0.5f * d * d) * series;
    return d > 0.0f ? 1.0f - tail : tail;
}

kernel void blackscholes(global const float *price, global const float *strike, global const float *years,
                         global float *call, global float *put, int n)
{
    const float rate = 0.02f, volatility = 0.3f;
    for (int at = get_global_id(0); at < n; at += get_global_size(0)) {
        float s = price[at], x = strike[at], t = years[at];
        float root = sqrt(t);
        float d1 = native_divide(native_log(native_divide(s, x)) + (rate + 0.5f * volatility * volatility) * t,
                                 volatility * root);
        float d2 = d1 - volatility * root;
        float n1 = normal(d1), n2 = normal(d2);
        float discounted = x * native_exp(-rate * t);
        float value = s * n1 - discounted * n2;
        call[at] = value;
        put[at] = value + discounted - s;
    }
}

kernel void reduction(global const float *in, global float *out, int n)
{
    local float sums[256];
    int mine = get_local_id(0);
    float sum = 0.0f;
    for (int at = get_global_id(0); at < n; at += get_global_size(0))
        sum += in[at];
    sums[mine] = sum;
    for (int step = 128; step > 0; step /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (mine < step)
            sums[mine] += sums[mine + step];
    }
    if (mine == 0)
        out[get_group_id(0)] = sums[0];
}

kernel void histogram(global const uint *in, global uint *counts, int n)
{
    local uint mine[256];
    mine[get_local_id(0)] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int at = get_global_id(0); at < n; at += get_global_size(0)) {
        uint word = in[at];
        atomic_add(&mine[word & 255], 1);
        atomic_add(&mine[word >> 8 & 255], 1);
        atomic_add(&mine[word >> 16 & 255], 1);
        atomic_add(&mine[word >> 24], 1);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&counts[get_local_id(0)], mine[get_local_id(0)]);
}
