"""C++ that is compiled while the program runs: NVRTC and the driver through cuda.core and cuda.bindings.

Checks templates by their lowered names, options, compile errors, cubin-free loading of PTX, memory by streams, events,
launches of several dimensions, constants of a module, what the driver says of a text that is damaged, and that NVRTC finds
what it compiled before in the driver's cache.
"""

import ctypes
import os
import struct
import tempfile

import numpy as np
from cuda.bindings import driver, nvrtc
from cuda.core import Device, EventOptions, LaunchConfig, ObjectCode, Program, ProgramOptions, launch

# Before NVRTC asks for it the first time.
CACHE = tempfile.TemporaryDirectory()
os.environ["CUDA_CACHE_PATH"] = CACHE.name

SOURCE = r"""
#include <cuda_fp16.h>
template <class T, int N> __global__ void scale(const T *in, T *out, int count, T factor) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    for (int k = 0; k < N; k++) if (i + k < count) out[i + k] = in[i + k] * factor;
}
__constant__ float weights[3];
extern "C" __global__ void weigh(const float *in, float *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
    for (int k = -1; k <= 1; k++) sum += weights[k + 1] * in[y * width + (x + k + width) % width];
    out[y * width + x] = sum * FACTOR;
}
extern "C" __global__ void add_up(const int *in, int *total) {
    extern __shared__ int part[];
    part[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(total, part[0]);
}
"""


def plain(source):
    """Headers of the toolkit are not needed by every program: those that use none compile without."""
    return source.replace("#include <cuda_fp16.h>\n", "")


class Memory:
    """Device memory with the content of an array, and back."""

    def __init__(self, device, stream, array):
        self.array, self.stream = np.ascontiguousarray(array), stream
        self.buffer = device.memory_resource.allocate(self.array.nbytes, stream=stream)
        check(driver.cuMemcpyHtoDAsync(int(self.buffer.handle), self.array.ctypes.data, self.array.nbytes, stream.handle))

    def read(self):
        check(driver.cuMemcpyDtoHAsync(self.array.ctypes.data, int(self.buffer.handle), self.array.nbytes, self.stream.handle))
        self.stream.sync()
        return self.array


def check(result):
    code, *values = result
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else values


def compiled(device):
    options = ProgramOptions(std="c++17", arch=f"compute_{device.arch}", define_macro=[("FACTOR", "2.0f")])
    program = Program(plain(SOURCE), "c++", options=options)
    return program.compile("ptx", name_expressions=("scale<float, 4>", "scale<long long, 1>"))


def scaling(device, stream, module):
    for name, kind, each in (("scale<float, 4>", np.float32, 4), ("scale<long long, 1>", np.int64, 1)):
        numbers = np.arange(1001, dtype=kind)
        source, out = Memory(device, stream, numbers), Memory(device, stream, np.zeros_like(numbers))
        config = LaunchConfig(grid=-(-1001 // (64 * each)), block=64)
        kernel = module.get_kernel(name)
        launch(stream, config, kernel, source.buffer, out.buffer, np.int32(1001), kind(3))
        assert (out.read() == numbers * 3).all(), name


def weighing(device, stream, module):
    width, height = 37, 11
    image = np.random.default_rng(3).integers(0, 9, (height, width)).astype(np.float32)
    source, out = Memory(device, stream, image), Memory(device, stream, np.zeros_like(image))
    library = driver.CUlibrary(int(module.handle))
    address, size = check(driver.cuLibraryGetGlobal(library, b"weights"))
    assert size == 12
    check(driver.cuMemcpyHtoD(address, struct.pack("3f", 1, 2, 4), 12))
    config = LaunchConfig(grid=(5, 3), block=(8, 4))
    launch(stream, config, module.get_kernel("weigh"), source.buffer, out.buffer, np.int32(width), np.int32(height))
    wanted = 2 * (np.roll(image, 1, axis=1) + 2 * image + 4 * np.roll(image, -1, axis=1))
    assert (out.read() == wanted).all()


def summing(device, stream, module):
    numbers = np.arange(512, dtype=np.int32)
    source, total = Memory(device, stream, numbers), Memory(device, stream, np.zeros(1, dtype=np.int32))
    kernel = module.get_kernel("add_up")
    assert kernel.attributes.max_threads_per_block >= 128
    begin = stream.record(options=EventOptions(timing_enabled=True))
    launch(stream, LaunchConfig(grid=4, block=128, shmem_size=512), kernel, source.buffer, total.buffer)
    end = stream.record(options=EventOptions(timing_enabled=True))
    assert total.read()[0] == numbers.sum()
    assert end - begin >= 0


def errors(module):
    program = check_nvrtc(nvrtc.nvrtcCreateProgram(b"__global__ void k() { nothing(); }", b"broken.cu", 0, [], []))
    (code,) = nvrtc.nvrtcCompileProgram(program, 0, [])
    assert code == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
    size = check_nvrtc(nvrtc.nvrtcGetProgramLogSize(program))
    log = b" " * size
    check_nvrtc(nvrtc.nvrtcGetProgramLog(program, log))
    assert b"nothing" in log
    text = bytes(module.code)
    damaged = text.replace(b"ld.param", b"ld.prm", 1)
    for image, wanted in ((damaged, "CUDA_ERROR_INVALID_PTX"), (b"no image at all", "CUDA_ERROR_INVALID_IMAGE")):
        code, _ = driver.cuModuleLoadData(ctypes.create_string_buffer(image + b"\0").raw)
        assert code.name == wanted, code
    loaded = ObjectCode.from_ptx(text)
    assert loaded.get_kernel("add_up").attributes.num_regs > 0


def check_nvrtc(result):
    code, *values = result
    assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS, code
    return values[0] if values else None


def cached_files():
    """Names and sizes of what lies in the cache."""
    found = ((folder, name) for folder, _, names in os.walk(CACHE.name) for name in names)
    return {name: os.path.getsize(os.path.join(folder, name)) for folder, name in found if name != "index"}


def machine_code(text):
    program = check_nvrtc(nvrtc.nvrtcCreateProgram(text, b"cached.cu", 0, [], []))
    check_nvrtc(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"]))
    code = b" " * check_nvrtc(nvrtc.nvrtcGetCUBINSize(program))
    check_nvrtc(nvrtc.nvrtcGetCUBIN(program, code))
    return code


def caching():
    text = b'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
    # A program that is restored finds what it left there the first time.
    first, after = machine_code(text), cached_files()
    assert after, "nothing is kept"
    assert machine_code(text) == first and cached_files() == after
    assert machine_code(text.replace(b"2", b"3")) != first and cached_files().items() >= after.items()


def main():
    device = Device()
    device.set_current()
    stream = device.create_stream()
    module = compiled(device)
    scaling(device, stream, module)
    weighing(device, stream, module)
    summing(device, stream, module)
    errors(module)
    caching()
    print("NVRTC compiled 4 kernels, which ran; what does not compile or load says so")
    print("what NVRTC has compiled is in the cache")
    print("PASS nvrtc_kernels")


main()
