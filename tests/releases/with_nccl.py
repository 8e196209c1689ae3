"""What NCCL does in communicators of one and of two ranks, up to the first kernel: one JSON document on standard output.

The one argument is the folder of the release. A collective of one rank is a copy, and one of two ranks a kernel.
"""

import ctypes
import json
import sys
from pathlib import Path

UNIQUE_ID_BYTES = 128
INT32, SUM = 2, 0
COUNT = 1 << 16

PASSED, FAILED = [], {}


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * UNIQUE_ID_BYTES)]


def library(folder):
    nccl = ctypes.CDLL(str(next(Path(folder).glob("**/libnccl.so.2"))))
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    return nccl


def caller(nccl):
    """A function that calls one of the library's, and notes what came of it."""

    def call(name, *arguments):
        if not hasattr(nccl, name):
            return False
        code = getattr(nccl, name)(*arguments)
        if code == 0:
            PASSED.append(name)
            return True
        last = (nccl.ncclGetLastError(None) or b"").decode().strip().splitlines()
        FAILED[name] = f"{nccl.ncclGetErrorString(code).decode()}: {last[-1] if last else ''}"
        return False

    return call


def one_rank(call):
    driver = ctypes.CDLL("libcuda.so.1")
    unique, comm, window = UniqueId(), ctypes.c_void_p(), ctypes.c_void_p()
    rank, size = ctypes.c_int(-1), ctypes.c_int(-1)
    source, target = ctypes.c_void_p(), ctypes.c_void_p()
    if not (call("ncclGetUniqueId", ctypes.byref(unique)) and call("ncclCommInitRank", ctypes.byref(comm), 1, unique, 0)):
        return
    call("ncclCommUserRank", comm, ctypes.byref(rank))
    call("ncclCommCount", comm, ctypes.byref(size))
    numbers, back = (ctypes.c_int * COUNT)(*range(COUNT)), (ctypes.c_int * COUNT)()
    bytes_ = ctypes.c_size_t(ctypes.sizeof(numbers))
    if call("ncclMemAlloc", ctypes.byref(source), bytes_) and call("ncclMemAlloc", ctypes.byref(target), bytes_):
        call("ncclCommRegister", comm, source, bytes_, ctypes.byref(window))
        assert driver.cuMemcpyHtoD_v2(source, numbers, bytes_) == 0
        call("ncclAllReduce", source, target, ctypes.c_size_t(COUNT), INT32, SUM, comm, None)
        assert driver.cuMemcpyDtoH_v2(back, target, bytes_) == 0
        if list(back) != list(numbers):
            FAILED["ncclAllReduce"] = "the sum of one rank is another"
        if window:
            call("ncclCommDeregister", comm, window)
        call("ncclMemFree", source)
        call("ncclMemFree", target)
    call("ncclCommFinalize", comm)
    call("ncclCommDestroy", comm)


def two_ranks(call):
    comms = (ctypes.c_void_p * 2)()
    if call("ncclCommInitAll", comms, 2, (ctypes.c_int * 2)(0, 1)):
        for comm in comms:
            call("ncclCommDestroy", ctypes.c_void_p(comm))


def main():
    nccl, number = library(sys.argv[1]), ctypes.c_int()
    call = caller(nccl)
    call("ncclGetVersion", ctypes.byref(number))
    one_rank(call)
    two_ranks(call)
    passed = list(dict.fromkeys(PASSED))
    print(json.dumps({"versions": {}, "passed": passed, "failed": FAILED}), flush=True)


main()
