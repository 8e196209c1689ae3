"""Items with numba-cuda: its compiler makes PTX, the driver links it."""

import math
import warnings

import numpy as np

from said import absent, item, need, run, same, timed

# Releases of numba-cuda ask numpy for a name that later numpys have no more.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
numba_cuda = need("numba_cuda")
need("numba")
from numba import cuda, float32, float64, int32, vectorize, guvectorize
from numba.core.errors import NumbaPerformanceWarning
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

# The grids are small on purpose.
warnings.simplefilter("ignore", NumbaPerformanceWarning)

RANDOM = np.random.default_rng(7)


@item
def kernels():
    """One kernel over several types, with device functions, shared memory and a two-dimensional grid."""

    @cuda.jit(device=True)
    def scaled(a, x, y):
        return a * x + y

    @cuda.jit
    def axpy(a, x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = scaled(a, x[i], y[i])

    for kind in (np.int32, np.int64, np.float32, np.float64, np.complex64):
        x, y = (RANDOM.integers(-99, 99, 1000).astype(kind) for _ in range(2))
        out = cuda.device_array_like(x)
        with timed(f"first_{np.dtype(kind).name}"):
            axpy[8, 128](kind(3), cuda.to_device(x), cuda.to_device(y), out)
            cuda.synchronize()
        assert np.array_equal(out.copy_to_host(), kind(3) * x + y)
        same(f"axpy_{np.dtype(kind).name}", out.copy_to_host())

    tile = 16

    @cuda.jit
    def multiply(a, b, c):
        left, right = cuda.shared.array((tile, tile), float64), cuda.shared.array((tile, tile), float64)
        column, row = cuda.grid(2)
        total = float64(0)
        for start in range(0, a.shape[1], tile):
            left[cuda.threadIdx.y, cuda.threadIdx.x] = a[row, start + cuda.threadIdx.x]
            right[cuda.threadIdx.y, cuda.threadIdx.x] = b[start + cuda.threadIdx.y, column]
            cuda.syncthreads()
            for k in range(tile):
                total += left[cuda.threadIdx.y, k] * right[k, cuda.threadIdx.x]
            cuda.syncthreads()
        c[row, column] = total

    a, b = RANDOM.random((64, 64)), RANDOM.random((64, 64))
    c = np.zeros_like(a)
    multiply[(4, 4), (tile, tile)](a, b, c)
    assert np.allclose(c, a @ b, rtol=1e-12)
    same("product", c)


@item
def atomics():
    """Atomic functions on global and shared memory; sums of whole numbers, so that their order does not show."""

    @cuda.jit
    def count(values, bins, extremes):
        mine = cuda.shared.array(16, int32)
        if cuda.threadIdx.x < 16:
            mine[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            cuda.atomic.add(mine, values[i] % 16, 1)
            cuda.atomic.min(extremes, 0, values[i])
            cuda.atomic.max(extremes, 1, values[i])
        cuda.syncthreads()
        if cuda.threadIdx.x < 16:
            cuda.atomic.add(bins, cuda.threadIdx.x, mine[cuda.threadIdx.x])

    values = RANDOM.integers(0, 100000, 20000).astype(np.int32)
    bins, extremes = np.zeros(16, np.int32), np.array([1 << 30, -1], np.int32)
    count[8, 128](values, bins, extremes)
    assert np.array_equal(bins, np.bincount(values % 16, minlength=16))
    assert extremes.tolist() == [values.min(), values.max()]
    same("bins", bins)

    @cuda.jit
    def exchange(cells, won):
        if cuda.atomic.cas(cells, 0, 0, cuda.grid(1) + 1) == 0:
            cuda.atomic.add(won, 0, 1)

    cells, won = np.zeros(1, np.int32), np.zeros(1, np.int32)
    exchange[4, 64](cells, won)
    assert won[0] == 1 and 1 <= cells[0] <= 256
    same("winners", won)


@item
def cooperative():
    """A grid that waits for itself between steps."""

    @cuda.jit
    def steps(cells):
        grid = cuda.cg.this_grid()
        i = cuda.grid(1)
        for _ in range(10):
            left = cells[(i - 1) % cells.size]
            grid.sync()
            cells[i] = cells[i] + left
            grid.sync()

    cells = np.arange(256, dtype=np.int64)
    wanted = cells.copy()
    for _ in range(10):
        wanted = wanted + np.roll(wanted, 1)
    steps[2, 128](cells)
    assert np.array_equal(cells, wanted)
    same("cells", cells)


@item
def streams():
    """Streams, events, pinned and mapped memory, and what is on a stream in its order."""

    @cuda.jit
    def add(cells, value):
        i = cuda.grid(1)
        if i < cells.size:
            cells[i] += value

    host = cuda.pinned_array(4096, np.int32)
    host[:] = 0
    lanes = [cuda.stream() for _ in range(3)]
    begin, end = cuda.event(), cuda.event()
    outs = []
    for number, lane in enumerate(lanes):
        device = cuda.to_device(host, stream=lane)
        begin.record(lane)
        for step in range(5):
            add[32, 128, lane](device, number * 10 + step)
        end.record(lane)
        outs.append(device.copy_to_host(stream=lane))
    for lane in lanes:
        lane.synchronize()
    assert begin.elapsed_time(end) >= 0
    for number, out in enumerate(outs):
        assert (out == sum(number * 10 + step for step in range(5))).all()
        same(f"stream_{number}", out)
    mapped = cuda.mapped_array(256, np.int32)
    mapped[:] = 1
    add[2, 128](mapped, 41)
    cuda.synchronize()
    assert (np.asarray(mapped) == 42).all()
    managed = cuda.managed_array(256, np.int32)
    managed[:] = 1
    add[2, 128](managed, 6)
    cuda.synchronize()
    assert (np.asarray(managed) == 7).all()
    same("managed", np.array(managed))


@item
def functions():
    """Universal functions, reductions, and the random numbers of the library."""

    @vectorize(["float64(float64, float64)", "float32(float32, float32)"], target="cuda")
    def wave(x, y):
        return math.sin(x) * math.exp(-y) + math.sqrt(abs(x * y))

    x, y = RANDOM.random(5000), RANDOM.random(5000)
    out = wave(x, y)
    assert np.allclose(out, np.sin(x) * np.exp(-y) + np.sqrt(np.abs(x * y)), rtol=1e-12)
    same("wave", out)

    @guvectorize(["void(float64[:], float64[:])"], "(n)->(n)", target="cuda")
    def running(row, out):
        total = 0.0
        for i in range(row.shape[0]):
            total += row[i]
            out[i] = total

    rows = RANDOM.random((64, 32))
    out = running(rows)
    assert np.allclose(out, np.cumsum(rows, axis=1))
    same("running", out)

    total = cuda.reduce(lambda a, b: a + b)
    numbers = RANDOM.integers(0, 1000, 10000)
    assert total(numbers) == numbers.sum()
    same("total", int(total(numbers)))

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        inside = 0
        for _ in range(50):
            x = xoroshiro128p_uniform_float32(states, i)
            y = xoroshiro128p_uniform_float32(states, i)
            if x * x + y * y <= float32(1):
                inside += 1
        out[i] = inside

    states = create_xoroshiro128p_states(512, seed=3)
    drawn = np.zeros(512, np.int32)
    draw[4, 128](states, drawn)
    assert abs(4 * drawn.sum() / (512 * 50) - math.pi) < 0.1
    same("drawn", drawn)


@item
def warps():
    """Votes, shuffles and matching within a warp."""

    @cuda.jit
    def exchange(out, votes):
        lane = cuda.laneid
        value = lane * lane
        for distance in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        out[cuda.grid(1)] = cuda.shfl_sync(0xFFFFFFFF, value, 0)
        votes[cuda.grid(1)] = cuda.ballot_sync(0xFFFFFFFF, lane % 3 == 0) + cuda.popc(cuda.activemask())

    out, votes = np.zeros(64, np.int32), np.zeros(64, np.int64)
    exchange[2, 32](out, votes)
    assert (out == sum(lane * lane for lane in range(32))).all()
    same("sums", out)
    same("votes", votes)


@item
def errors():
    """What the driver refuses is what numba says, and the device is fine afterwards."""
    for grid, block, name in ((1, 4096, "block"), (0, 32, "grid")):
        try:
            _nothing()[grid, block]()
            cuda.synchronize()
            same(name, "accepted")
        except Exception as error:
            same(name, type(error).__name__)
    try:
        cuda.device_array(1 << 50, np.uint8)
        same("memory", "accepted")
    except Exception as error:
        same("memory", type(error).__name__)
    _nothing()[1, 32]()
    cuda.synchronize()
    same("afterwards", "fine")


def _nothing():
    @cuda.jit
    def nothing():
        pass

    return nothing


if __name__ == "__main__":
    if not cuda.is_available():
        absent("numba sees no device")
    run()
