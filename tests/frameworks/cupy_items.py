"""Items with CuPy: its kernels come from NVRTC, its libraries are NVIDIA's."""

import os

# softcuda runs PTX and nothing else: kernels by NVRTC as text, and none of those that the wheel carries as machine code
# (it would not even say that they failed).
if os.environ.get("ITEM_DRIVER") == "soft":
    os.environ.update(CUPY_COMPILE_WITH_PTX="1", CUPY_ACCELERATORS="")

import numpy as np

from said import absent, item, near, need, run, same, timed

cp = need("cupy")

try:
    COUNT = cp.cuda.runtime.getDeviceCount()
except cp.cuda.runtime.CUDARuntimeError as error:
    absent(f"CuPy sees no device: {error}")

RANDOM = np.random.default_rng(11)


def say(name, array):
    same(name, cp.asnumpy(array))


def close(name, array, tolerance=1e-6):
    near(name, np.linalg.norm(cp.asnumpy(array).astype(np.complex128)), tolerance)


@item
def elementwise():
    """Universal functions, broadcasting, indexing, and the kernels that a program writes in pieces."""
    with timed("first_call"):
        cp.zeros(1).sum().item()
    x, y = RANDOM.random((200, 300)), RANDOM.random(300)
    on = cp.asarray(x)
    for name in ("sin", "exp", "sqrt", "log1p", "arctan", "floor", "square"):
        out = getattr(cp, name)(on)
        assert np.allclose(cp.asnumpy(out), getattr(np, name)(x), rtol=1e-12)
        say(name, out)
    say("broadcast", on * cp.asarray(y) + 1)
    say("where", cp.where(on > 0.5, on, -on))
    say("strided", on[::3, 5:50:7].T.copy())
    say("integers", cp.arange(1000) // 7 % 5)
    say("bits", cp.bitwise_xor(cp.arange(1000), 0x55) << 2)
    say("complex", cp.exp(1j * cp.linspace(0, 3, 500)))
    say("half", cp.linspace(0, 1, 500).astype(cp.float16) * 3)
    wave = cp.ElementwiseKernel("float64 x, float64 y", "float64 z", "z = sin(x) * y + 1", "wave")
    say("kernel", wave(on, cp.asarray(y)))

    @cp.fuse()
    def fused(a, b):
        return cp.sqrt(a * a + b * b)

    say("fused", fused(on, on + 1))


@item
def raw():
    """Kernels in C++ as text: one, a module with templates, shared memory, constants, device symbols."""
    source = r"""
    extern "C" __global__ void reverse(const float* in, float* out, int count) {
        extern __shared__ float tile[];
        int place = blockIdx.x * blockDim.x + threadIdx.x;
        if (place < count) tile[threadIdx.x] = in[place];
        __syncthreads();
        if (place < count) out[place] = tile[blockDim.x - 1 - threadIdx.x];
    }"""
    kernel = cp.RawKernel(source, "reverse")
    x = cp.arange(1024, dtype=cp.float32)
    out = cp.empty_like(x)
    kernel((8,), (128,), (x, out, 1024), shared_mem=128 * 4)
    assert np.array_equal(cp.asnumpy(out), np.arange(1024, dtype=np.float32).reshape(8, 128)[:, ::-1].ravel())
    say("reversed", out)
    same("registers", kernel.num_regs > 0)
    module = cp.RawModule(code=r"""
    __constant__ int table[4];
    __device__ long long counted;
    template <typename T> __global__ void look(T* out, int count) {
        int place = blockIdx.x * blockDim.x + threadIdx.x;
        if (place < count) { out[place] = (T)table[place % 4]; atomicAdd((unsigned long long*)&counted, 1ull); }
    }""", name_expressions=["look<int>", "look<double>"])
    table = cp.ndarray(4, cp.int32, module.get_global("table"))
    table[...] = cp.asarray([5, 6, 7, 8], dtype=cp.int32)
    for name, kind in (("look<int>", cp.int32), ("look<double>", cp.float64)):
        out = cp.zeros(1000, kind)
        module.get_function(name)((8,), (128,), (out, 1000))
        say(name, out)
    same("counted", int(cp.ndarray((), cp.int64, module.get_global("counted"))))


@item
def streams():
    """Streams, events, pinned memory, functions of the program on a stream, captured graphs."""
    lanes = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    pinned = cp.cuda.alloc_pinned_memory(4096 * 8)
    host = np.frombuffer(pinned, np.float64, 4096)
    host[:] = np.arange(4096)
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    outs = []
    for number, lane in enumerate(lanes):
        with lane:
            begin.record()
            x = cp.empty(4096)
            x.set(host, stream=lane)
            for step in range(5):
                x = x * 2 + number
            end.record()
            outs.append(x)
    for number, (lane, out) in enumerate(zip(lanes, outs)):
        lane.synchronize()
        say(f"stream_{number}", out)
    assert cp.cuda.get_elapsed_time(begin, end) >= 0
    told = []
    lanes[0].launch_host_func(told.append, "told")
    lanes[0].synchronize()
    same("told", told)
    with lanes[1] as lane:
        x = cp.arange(1000.0)
        x + 1
        lane.synchronize()
        lane.begin_capture()
        cp.add(x, 1, out=x)
        cp.multiply(x, 2, out=x)
        graph = lane.end_capture()
        for _ in range(3):
            graph.launch(lane)
        lane.synchronize()
        say("graph", x)


@item
def memory():
    """Its own pool, the driver's pools, managed memory, and memory that is full."""
    for name, allocator in (
        ("pool", cp.cuda.MemoryPool().malloc), ("async", cp.cuda.MemoryAsyncPool().malloc),
        ("managed", cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc),
    ):
        with cp.cuda.using_allocator(allocator):
            kept = [cp.full(1 << (10 + number % 8), number) for number in range(60)]
            del kept[::3]
            kept += [cp.full(3000, number) for number in range(20)]
            same(name, int(sum(int(part[-1]) for part in kept)))
            del kept
    free, total = cp.cuda.runtime.memGetInfo()
    assert 0 < free <= total
    try:
        cp.cuda.alloc(total * 4)
        same("full", "accepted")
    except cp.cuda.memory.OutOfMemoryError:
        same("full", "refused")
    same("after", int(cp.ones(1000, dtype=cp.int32).view()[3]))


@item
def reductions():
    """Sums, extremes, scans and counting, which use CUB where it can run."""
    x = RANDOM.integers(0, 1 << 40, 100000)
    on = cp.asarray(x)
    for name in ("sum", "min", "max", "argmax"):
        assert getattr(on, name)() == getattr(x, name)()
        same(name, int(getattr(on, name)()))
    near("mean", float(cp.asarray(RANDOM.random((300, 300))).mean(axis=0)[7]), 1e-12)
    say("cumsum", cp.cumsum(on))
    say("histogram", cp.bincount(on % 64))
    kernel = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "squares")
    same("squares", int(kernel(cp.arange(5000))))


@item
def sorting():
    """Sorting, which uses Thrust."""
    x = RANDOM.integers(0, 1 << 40, 100000)
    on = cp.asarray(x)
    assert np.array_equal(cp.asnumpy(cp.sort(on)), np.sort(x))
    say("argsort", cp.argsort(on, kind="stable"))
    say("unique", cp.unique(on % 1000))
    say("partition", cp.sort(cp.partition(on, 100)[:100]))
    say("rows", cp.sort(on.reshape(100, 1000), axis=1))


@item
def linear_algebra():
    """cuBLAS and cuSOLVER."""
    a, b = cp.asarray(RANDOM.random((120, 120))), cp.asarray(RANDOM.random((120, 5)))
    spd = a @ a.T + 120 * cp.eye(120)
    for kind in (np.float32, np.float64, np.complex64, np.complex128):
        close(f"product_{np.dtype(kind).name}", a.astype(kind) @ a.astype(kind), 1e-5)
    assert cp.allclose(a @ cp.linalg.solve(a, b), b)
    u, s, v = cp.linalg.svd(a)
    assert cp.allclose((u * s) @ v, a)
    q, r = cp.linalg.qr(a)
    assert cp.allclose(q @ r, a)
    values, vectors = cp.linalg.eigh(spd)
    assert cp.allclose(vectors @ cp.diag(values) @ vectors.T, spd)
    lower = cp.linalg.cholesky(spd)
    assert cp.allclose(lower @ lower.T, spd)
    for name, array in (("svd", s), ("eigh", values), ("cholesky", lower), ("inverse", cp.linalg.inv(spd))):
        close(name, array, 1e-9)


@item
def transforms():
    """cuFFT."""
    for shape in ((1024,), (1000,), (997,), (16, 60), (8, 12, 20)):
        x = cp.asarray(RANDOM.random(shape))
        spectrum = cp.fft.fftn(x)
        assert np.allclose(cp.asnumpy(spectrum), np.fft.fftn(cp.asnumpy(x)))
        assert cp.allclose(cp.fft.ifftn(spectrum).real, x)
        close("x".join(map(str, shape)), spectrum, 1e-10)
    real = cp.asarray(RANDOM.random((32, 500)).astype(np.float32))
    close("rfft", cp.fft.rfft(real))
    close("irfft", cp.fft.irfft(cp.fft.rfft(real)))


@item
def sparse():
    """cuSPARSE."""
    from cupyx.scipy import sparse as thin

    dense = RANDOM.random((200, 150)) * (RANDOM.random((200, 150)) < 0.05)
    for name, kind in (("csr", thin.csr_matrix), ("csc", thin.csc_matrix), ("coo", thin.coo_matrix)):
        matrix = kind(cp.asarray(dense))
        vector = cp.asarray(RANDOM.random(150))
        assert np.allclose(cp.asnumpy(matrix @ vector), dense @ cp.asnumpy(vector))
        close(name, matrix @ vector, 1e-10)
        close(f"{name}_twice", (matrix @ matrix.T).toarray(), 1e-10)
    same("entries", int(thin.csr_matrix(cp.asarray(dense)).nnz))


@item
def random_numbers():
    """cuRAND by both of CuPy's interfaces."""
    cp.random.seed(7)
    say("uniform", cp.random.random(10000))
    say("normal", cp.random.standard_normal(10000))
    say("integers", cp.random.randint(0, 1000, 5000))
    say("permutation", cp.random.permutation(500))
    generator = cp.random.Generator(cp.random.Philox4x3210(9))
    say("philox", generator.random(5000))
    say("gamma", generator.standard_gamma(2.0, 500))


@item
def textures():
    """A texture object that a kernel of the program's reads."""
    kernel = cp.RawKernel(r"""
    extern "C" __global__ void read(cudaTextureObject_t image, float* out, int width, int height) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
        if (x < width) out[y * width + x] = tex2D<float>(image, x + 0.5f, y + 0.5f);
    }""", "read")
    channel = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, cp.cuda.runtime.cudaChannelFormatKindFloat)
    array = cp.cuda.texture.CUDAarray(channel, 60, 40)
    image = RANDOM.random((40, 60)).astype(np.float32)
    array.copy_from(image)
    source = cp.cuda.texture.ResourceDescriptor(cp.cuda.runtime.cudaResourceTypeArray, cuArr=array)
    clamp = cp.cuda.runtime.cudaAddressModeClamp
    point, element = cp.cuda.runtime.cudaFilterModePoint, cp.cuda.runtime.cudaReadModeElementType
    texture = cp.cuda.texture.TextureObject(source, cp.cuda.texture.TextureDescriptor((clamp, clamp), point, element))
    out = cp.zeros((40, 60), cp.float32)
    kernel((1, 40), (64,), (texture, out, 60, 40))
    assert np.array_equal(cp.asnumpy(out), image)
    say("image", out)


@item
def devices():
    """What it tells of the devices, and copies between two of them where there are two."""
    same("count", COUNT)
    facts = cp.cuda.runtime.getDeviceProperties(0)
    for name in ("name", "totalGlobalMem", "multiProcessorCount", "major", "minor", "warpSize", "clockRate"):
        if name in facts:
            same(name, facts[name])
    if COUNT < 2:
        return
    with cp.cuda.Device(0):
        x = cp.arange(100000)
    with cp.cuda.Device(1):
        y = cp.asarray(x)
        same("there", int(y.sum()))


if __name__ == "__main__":
    run()
