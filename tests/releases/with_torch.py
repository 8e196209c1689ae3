"""What PyTorch and its libraries do without kernels of their own, a step at a time, and then with one: a JSON document at the end.

Kernels that come as text run on softcuda, so those of NVRTC may pass; PyTorch's own are machine code, and do not.
"""

import ctypes
import json
import os
import sys

# `_compile_kernel` looks for headers there, and this kernel includes none.
os.environ.setdefault("CUDA_HOME", "/usr")
STEPS = []
VERSIONS = {}


def step(function):
    STEPS.append(function)
    return function


def library(name):
    """The library of that name which the process has loaded, if it has: not every release needs each."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if f"/lib{name}.so" in line:
                return ctypes.CDLL(line.split(maxsplit=5)[5].strip())
    return None


def created(name, function, *arguments):
    handle, loaded = ctypes.c_void_p(), library(name)
    code = getattr(loaded, function)(ctypes.byref(handle), *arguments) if loaded else 0
    assert code == 0, f"{function} gives {code}"


@step
def imports():
    import torch

    VERSIONS["CUDA"] = torch.version.cuda


@step
def init():
    import torch

    assert torch.cuda.is_available(), "no device"
    torch.cuda.init()
    VERSIONS["code for"] = " ".join(torch.cuda.get_arch_list())


@step
def properties():
    import torch

    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory > 0 and torch.cuda.get_device_capability(0)[0] > 0
    assert torch.cuda.can_device_access_peer(0, 0) in (True, False)


@step
def memory():
    import torch

    one = torch.empty(1 << 20, dtype=torch.float32, device="cuda")
    assert torch.cuda.memory_allocated() >= 4 << 20 and one.data_ptr() != 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    torch.cuda.memory_stats()
    torch.cuda.memory_snapshot()
    del one
    torch.cuda.empty_cache()


@step
def copies():
    import torch

    host = torch.arange(1 << 16, dtype=torch.int32)
    device = host.cuda()
    other = torch.empty_like(device)
    other.copy_(device)
    assert torch.equal(other.cpu(), host)


@step
def streams():
    import torch

    host = torch.arange(1 << 16, dtype=torch.int32).pin_memory()
    assert host.is_pinned()
    side = torch.cuda.Stream(priority=-1)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    back = torch.empty_like(host).pin_memory()
    with torch.cuda.stream(side):
        first.record()
        back.copy_(host.cuda(non_blocking=True), non_blocking=True)
        last.record()
    torch.cuda.current_stream().wait_stream(side)
    last.synchronize()
    assert first.elapsed_time(last) >= 0 and last.query() and torch.equal(back, host)
    torch.cuda.synchronize()


@step
def graphs():
    import torch

    source = torch.arange(1 << 12, dtype=torch.int32).cuda()
    target = torch.empty_like(source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(target.cpu(), source.cpu())


@step
def expandable():
    import torch

    settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    torch.cuda.empty_cache()
    settings("expandable_segments:True")
    blocks = [torch.empty(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
    host = torch.arange(256, dtype=torch.uint8)
    blocks[2][:256].copy_(host)
    assert torch.equal(blocks[2][:256].cpu(), host)
    del blocks
    torch.cuda.empty_cache()
    settings("expandable_segments:False")


@step
def shared():
    import torch

    handle = torch.empty(1 << 20, dtype=torch.uint8, device="cuda").untyped_storage()._share_cuda_()
    assert handle[0] == 0


@step
def nccl():
    import torch
    from torch import distributed

    VERSIONS["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    one = torch.arange(1 << 10, dtype=torch.int32).cuda()
    distributed.all_reduce(one)
    both = torch.empty_like(one)
    distributed.all_gather_into_tensor(both, one)
    torch.cuda.synchronize()
    assert both.cpu().tolist() == list(range(1 << 10))
    distributed.destroy_process_group()


@step
def cublas():
    import torch

    assert torch.cuda.current_blas_handle() != 0
    created("cublasLt", "cublasLtCreate")


@step
def cudnn():
    import torch

    VERSIONS["cuDNN"] = str(torch.backends.cudnn.version())
    created("cudnn", "cudnnCreate")


@step
def cufft():
    plan = ctypes.c_int()
    code = library("cufft").cufftPlan1d(ctypes.byref(plan), 1000, 0x29, 4)
    assert code == 0, f"cufftPlan1d gives {code}"


@step
def curand():
    created("curand", "curandCreateGenerator", 100)


@step
def cusparse():
    created("cusparse", "cusparseCreate")


@step
def cusolver():
    created("cusolver", "cusolverDnCreate")


@step
def compiled():
    import torch

    if hasattr(torch.cuda, "_compile_kernel"):
        text = "extern \"C\" __global__ void twice(float *x, int n) { int i = threadIdx.x; if (i < n) x[i] += x[i]; }"
        double = torch.cuda._compile_kernel(text, "twice")
        numbers = torch.arange(4, dtype=torch.float32).cuda()
        double((1, 1, 1), (32, 1, 1), (numbers, 4))
        assert numbers.cpu().tolist() == [0, 2, 4, 6]


@step
def jiterator():
    import torch

    double = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    assert double(torch.arange(4, dtype=torch.float32).cuda()).cpu().tolist() == [0, 2, 4, 6]


@step
def kernel():
    import torch

    assert (torch.arange(4).cuda() + 1).cpu().tolist() == [1, 2, 3, 4]


def main():
    chosen = sys.argv[2:]
    passed, failed = [], {}
    for function in STEPS:
        name = function.__name__
        if chosen and name not in chosen:
            continue
        try:
            function()
            passed.append(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    print(json.dumps({"versions": VERSIONS, "passed": passed, "failed": failed}), flush=True)


main()
