"""What CUDA's runtime does without kernels, a step at a time: one JSON document on standard output.

The one argument is the folder of the release.
"""

import ctypes
import json
import sys
from pathlib import Path

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
NON_BLOCKING, GLOBAL_CAPTURE, MANAGED_GLOBAL = 1, 0, 1
COUNT = 1 << 12

PASSED, FAILED = [], {}


def main():
    cuda = ctypes.CDLL(str(next(Path(sys.argv[1]).glob("**/libcudart.so.1[23]"))))
    cuda.cudaGetErrorName.restype = ctypes.c_char_p

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        if code == 0:
            PASSED.append(name)
        else:
            FAILED[name] = cuda.cudaGetErrorName(code).decode()

    def made(name, *arguments):
        handle = ctypes.c_void_p()
        call(name, ctypes.byref(handle), *arguments)
        return handle

    number, properties = ctypes.c_int(), ctypes.create_string_buffer(1 << 13)
    numbers, back = (ctypes.c_int * COUNT)(*range(COUNT)), (ctypes.c_int * COUNT)()
    size = ctypes.c_size_t(ctypes.sizeof(numbers))
    call("cudaGetDeviceCount", ctypes.byref(number))
    call("cudaDriverGetVersion", ctypes.byref(number))
    call("cudaGetDeviceProperties_v2" if hasattr(cuda, "cudaGetDeviceProperties_v2") else "cudaGetDeviceProperties", properties, 0)
    device, pinned = made("cudaMalloc", size), made("cudaMallocHost", size)
    managed = made("cudaMallocManaged", size, MANAGED_GLOBAL)
    stream, event = made("cudaStreamCreateWithFlags", NON_BLOCKING), made("cudaEventCreate")
    call("cudaMemcpy", device, numbers, size, HOST_TO_DEVICE)
    call("cudaMemcpyAsync", pinned, device, size, DEVICE_TO_HOST, stream)
    call("cudaEventRecord", event, stream)
    call("cudaEventSynchronize", event)
    call("cudaStreamBeginCapture", stream, GLOBAL_CAPTURE)
    call("cudaMemsetAsync", device, 0, size, stream)
    call("cudaMemcpyAsync", device, pinned, size, HOST_TO_DEVICE, stream)
    graph, runnable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cudaStreamEndCapture", stream, ctypes.byref(graph))
    call("cudaGraphInstantiateWithFlags", ctypes.byref(runnable), graph, ctypes.c_ulonglong(0))
    call("cudaGraphLaunch", runnable, stream)
    call("cudaStreamSynchronize", stream)
    call("cudaMemcpy", managed, device, size, DEVICE_TO_HOST)
    call("cudaMemcpy", back, device, size, DEVICE_TO_HOST)
    if list(back) != list(range(COUNT)):
        FAILED["cudaMemcpy"] = "the numbers are others"
    pooled = made("cudaMallocAsync", size, stream)
    call("cudaFreeAsync", pooled, stream)
    call("cudaGraphExecDestroy", runnable)
    call("cudaGraphDestroy", graph)
    call("cudaFree", managed)
    call("cudaFreeHost", pinned)
    call("cudaFree", device)
    call("cudaStreamDestroy", stream)
    call("cudaEventDestroy", event)
    call("cudaDeviceReset")
    passed = [name for name in dict.fromkeys(PASSED) if name not in FAILED]
    print(json.dumps({"versions": {}, "passed": passed, "failed": FAILED}), flush=True)


main()
