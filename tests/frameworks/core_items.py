"""Items with NVIDIA's own Python: cuda.bindings (driver, runtime, NVRTC) and cuda.core."""

import ctypes

import numpy as np

from said import absent, item, need, run, same, timed

need("cuda.bindings")
from cuda.bindings import driver, nvrtc, runtime

SOURCE = rb"""
extern "C" __global__ void axpy(float a, const float* x, float* y, size_t count) {
    size_t place = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (place < count) y[place] = a * x[place] + y[place];
}
template <typename T> __device__ T squared(T x) { return x * x; }
template <typename T> __global__ void square(T* x, int count) {
    for (int place = threadIdx.x; place < count; place += blockDim.x) x[place] = squared(x[place]);
}
"""


def done(answer):
    """The results of a call that must have succeeded."""
    assert int(answer[0]) == 0, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def compiled(options=(), names=()):
    """PTX of the source above for this device, and the names that it gives to instances of templates."""
    major, minor = (
        done(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), 0))
        for part in ("MAJOR", "MINOR")
    )
    program = done(nvrtc.nvrtcCreateProgram(SOURCE, b"source.cu", 0, None, None))
    for name in names:
        done(nvrtc.nvrtcAddNameExpression(program, name))
    flags = [f"--gpu-architecture=compute_{major}{minor}".encode(), *options]
    done(nvrtc.nvrtcCompileProgram(program, len(flags), flags))
    text = b" " * done(nvrtc.nvrtcGetPTXSize(program))
    done(nvrtc.nvrtcGetPTX(program, text))
    lowered = [done(nvrtc.nvrtcGetLoweredName(program, name)) for name in names]
    done(nvrtc.nvrtcDestroyProgram(program))
    return text, lowered


def begin():
    """The primary context of the first device."""
    if int(driver.cuInit(0)[0]) != 0:
        absent("the driver has no device")
    context = done(driver.cuDevicePrimaryCtxRetain(0))
    done(driver.cuCtxSetCurrent(context))


@item
def bindings():
    """NVRTC to PTX, the driver's module, launches with ctypes, events, and a template by its name."""
    with timed("first_call"):
        begin()
    text, (name,) = compiled(names=[b"square<int>"])
    module = done(driver.cuModuleLoadData(np.char.array(text).ctypes.data))
    kernel = done(driver.cuModuleGetFunction(module, b"axpy"))
    count = 10000
    x, y = np.arange(count, dtype=np.float32), np.ones(count, np.float32)
    places = [done(driver.cuMemAlloc(x.nbytes)) for _ in range(2)]
    stream = done(driver.cuStreamCreate(0))
    for place, host in zip(places, (x, y)):
        done(driver.cuMemcpyHtoDAsync(place, host.ctypes.data, host.nbytes, stream))
    arguments = (
        (3.0, int(places[0]), int(places[1]), count),
        (ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    )
    marks = [done(driver.cuEventCreate(0)) for _ in range(2)]
    done(driver.cuEventRecord(marks[0], stream))
    done(driver.cuLaunchKernel(kernel, 40, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
    done(driver.cuEventRecord(marks[1], stream))
    out = np.empty_like(y)
    done(driver.cuMemcpyDtoHAsync(out.ctypes.data, places[1], out.nbytes, stream))
    done(driver.cuStreamSynchronize(stream))
    assert np.array_equal(out, 3 * x + 1)
    assert done(driver.cuEventElapsedTime(*marks)) >= 0
    same("axpy", out)
    numbers = np.arange(500, dtype=np.int32)
    place = done(driver.cuMemAlloc(numbers.nbytes))
    done(driver.cuMemcpyHtoD(place, numbers.ctypes.data, numbers.nbytes))
    square = done(driver.cuModuleGetFunction(module, name))
    done(driver.cuLaunchKernel(square, 1, 1, 1, 64, 1, 1, 0, 0, ((int(place), 500), (ctypes.c_void_p, ctypes.c_int)), 0))
    done(driver.cuMemcpyDtoH(numbers.ctypes.data, place, numbers.nbytes))
    same("square", numbers)
    for one in (*places, place):
        done(driver.cuMemFree(one))
    done(driver.cuModuleUnload(module))
    same("unknown", str(driver.cuModuleGetFunction(module, b"axpy")[0]))


@item
def runtime_calls():
    """The runtime's functions: memory, streams, a captured graph, properties, errors that stay and go."""
    facts = done(runtime.cudaGetDeviceProperties(0))
    same("name", facts.name.rstrip(b"\0").decode())
    same("capability", f"{facts.major}.{facts.minor}")
    place = done(runtime.cudaMalloc(4096))
    done(runtime.cudaMemset(place, 0x5A, 4096))
    host = np.zeros(4096, np.uint8)
    kind = runtime.cudaMemcpyKind
    done(runtime.cudaMemcpy(host.ctypes.data, place, 4096, kind.cudaMemcpyDeviceToHost))
    assert (host == 0x5A).all()
    stream = done(runtime.cudaStreamCreate())
    done(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal))
    done(runtime.cudaMemsetAsync(place, 7, 2048, stream))
    done(runtime.cudaMemsetAsync(place + 2048, 9, 2048, stream))
    graph = done(runtime.cudaStreamEndCapture(stream))
    ready = done(runtime.cudaGraphInstantiate(graph, 0))
    done(runtime.cudaGraphLaunch(ready, stream))
    done(runtime.cudaStreamSynchronize(stream))
    done(runtime.cudaMemcpy(host.ctypes.data, place, 4096, kind.cudaMemcpyDeviceToHost))
    same("graph", host)
    same("wrong_device", str(runtime.cudaSetDevice(999)[0]))
    same("last", str(runtime.cudaGetLastError()[0]))
    same("then", str(runtime.cudaGetLastError()[0]))
    pool = done(runtime.cudaMallocAsync(1 << 20, stream))
    done(runtime.cudaFreeAsync(pool, stream))
    pinned = done(runtime.cudaMallocHost(4096))
    ctypes.memset(pinned, 3, 4096)
    done(runtime.cudaMemcpy(place, pinned, 4096, kind.cudaMemcpyHostToDevice))
    done(runtime.cudaMemcpy(host.ctypes.data, place, 4096, kind.cudaMemcpyDeviceToHost))
    same("pinned", host)
    done(runtime.cudaFreeHost(pinned))
    done(runtime.cudaFree(place))
    done(runtime.cudaDeviceSynchronize())


@item
def core():
    """cuda.core: programs, linked code, launches, buffers, streams and events."""
    need("cuda.core")
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    code = SOURCE.decode().replace('extern "C" ', "")
    arch = f"compute_{''.join(map(str, device.compute_capability))}"
    program = Program(code, code_type="c++", options=ProgramOptions(std="c++17", arch=arch))
    made = program.compile("ptx", name_expressions=("axpy", "square<double>"))
    axpy, square = made.get_kernel("axpy"), made.get_kernel("square<double>")
    x, y = device.allocate(4000, stream=stream), device.allocate(4000, stream=stream)
    host = np.arange(1000, dtype=np.float32)
    out = np.empty_like(host)
    for place in (x, y):
        done(driver.cuMemcpyHtoDAsync(int(place.handle), host.ctypes.data, host.nbytes, stream.handle))
    config = LaunchConfig(grid=4, block=256)
    before = stream.record()
    launch(stream, config, axpy, np.float32(2), x, y, np.uint64(1000))
    after = stream.record()
    done(driver.cuMemcpyDtoHAsync(out.ctypes.data, int(y.handle), out.nbytes, stream.handle))
    stream.sync()
    after.sync()
    assert np.array_equal(out, 3 * host) and before.is_done
    same("axpy", out)
    limit, registers = axpy.attributes.max_threads_per_block, square.attributes.num_regs
    # Functions in older versions.
    limit, registers = (value() if callable(value) else value for value in (limit, registers))
    same("attributes", limit >= 256 and registers > 0)
    x.close(stream)
    y.close(stream)
    stream.close()


if __name__ == "__main__":
    run()
