"""Kernels that numba compiles: its own PTX, linked by the driver, with what its runtime asks of the driver API.

Every result is compared with what NumPy makes of the same numbers. What is printed is the same on every driver.
"""

import math
import warnings

import numpy as np
from numba import cuda, float32, int32, vectorize
from numba.core.errors import NumbaPerformanceWarning

# The grids are small on purpose.
warnings.simplefilter("ignore", NumbaPerformanceWarning)

TILE = 8


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def multiply(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    row, column = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        left[cuda.threadIdx.x, cuda.threadIdx.y] = a[row, start + cuda.threadIdx.y]
        right[cuda.threadIdx.x, cuda.threadIdx.y] = b[start + cuda.threadIdx.x, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[cuda.threadIdx.x, k] * right[k, cuda.threadIdx.y]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def histogram(values, bins):
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, values[i] % bins.size, 1)


@cuda.jit
def extremes(values, out):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.min(out, 0, values[i])
        cuda.atomic.max(out, 1, values[i])


@cuda.jit(device=True)
def smooth(x, scale):
    return math.exp(-x * x * scale) * math.cos(x) + math.sqrt(abs(x))


@cuda.jit
def functions(x, out):
    i = cuda.grid(1)
    local = cuda.local.array(4, dtype=np.float64)
    if i < x.size:
        for k in range(4):
            local[k] = smooth(x[i], k + 1.0)
        out[i] = local[0] + local[i % 4] + math.log1p(abs(x[i])) + math.pow(abs(x[i]), 0.3)


@cuda.jit
def warp_sums(values, out):
    value = values[cuda.threadIdx.x]
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
    if cuda.laneid == 0:
        out[cuda.threadIdx.x // 32] = value
    odd = cuda.ballot_sync(0xFFFFFFFF, values[cuda.threadIdx.x] % 2 == 1)
    if cuda.threadIdx.x == 0:
        out[4] = cuda.popc(odd)


@cuda.jit
def out_of_range(values, at, out):
    if values[at] > 0:
        out[0] = 1
    elif at == 3:
        raise ValueError("a negative value")


@vectorize(["float64(float64, float64)"], target="cuda")
def distance(x, y):
    return math.hypot(x, y)


@cuda.reduce
def largest(a, b):
    return max(a, b)


def matrices(source):
    a = source.random((32, 24), dtype=np.float32)
    b = source.random((24, 16), dtype=np.float32)
    c = cuda.device_array((32, 16), dtype=np.float32)
    multiply[(4, 2), (TILE, TILE)](cuda.to_device(a), cuda.to_device(b), c)
    assert np.allclose(c.copy_to_host(), a @ b, rtol=1e-5)


def counts(source):
    values = source.integers(0, 1000, 5000, dtype=np.int32)
    bins = np.zeros(10, dtype=np.int32)
    histogram[4, 64](values, bins)
    assert (bins == np.bincount(values % 10, minlength=10)).all()
    found = np.array([10**6, -(10**6)], dtype=np.int32)
    extremes[(values.size + 127) // 128, 128](values, found)
    assert found.tolist() == [values.min(), values.max()]
    sums = np.zeros(5, dtype=np.int32)
    warp_sums[1, 128](values[:128], sums)
    assert sums[:4].tolist() == values[:128].reshape(4, 32).sum(axis=1).tolist()
    assert sums[4] == (values[:32] % 2).sum()
    assert largest(values) == values.max()


def mathematics(source):
    x = source.uniform(-3, 3, 500)
    out = np.zeros_like(x)
    functions[5, 100](x, out)
    smoothed = [np.exp(-x * x * k) * np.cos(x) + np.sqrt(abs(x)) for k in (1.0, 2.0, 3.0, 4.0)]
    own = np.choose(np.arange(500) % 4, smoothed)
    assert np.allclose(out, smoothed[0] + own + np.log1p(abs(x)) + abs(x) ** 0.3, rtol=1e-13)
    assert np.allclose(distance(x, out), np.hypot(x, out), rtol=1e-14)


def streams():
    n = 1000
    stream = cuda.stream()
    source = cuda.pinned_array(n, dtype=np.float32)
    source[:] = np.arange(n)
    x = cuda.to_device(source, stream=stream)
    out = cuda.device_array(n, dtype=np.float32, stream=stream)
    begin, end = cuda.event(), cuda.event()
    begin.record(stream)
    saxpy[(n + 127) // 128, 128, stream](np.float32(2), x, x, out)
    end.record(stream)
    host = out.copy_to_host(stream=stream)
    stream.synchronize()
    assert (host == np.arange(n) * 3).all()
    assert cuda.event_elapsed_time(begin, end) >= 0


def main():
    source = np.random.default_rng(7)
    matrices(source)
    counts(source)
    mathematics(source)
    streams()
    result = np.zeros(1, dtype=np.int32)
    out_of_range[1, 1](np.array([0, 5, 0, -1], dtype=np.int32), 1, result)
    assert result[0] == 1
    print("numba compiled 10 kinds of kernels, and each agrees with NumPy")
    print("PASS numba_kernels")


main()
