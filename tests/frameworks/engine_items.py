"""Which kernels NVIDIA's libraries choose: the same natively and through Katydid, over a sweep of shapes.

Each operation is captured into a graph. The names and launch shapes of its kernel nodes say which engine or algorithm
cuBLAS, cuDNN or cuFFT has chosen.
"""

import ctypes

from said import absent, item, need, run, same

KERNEL = 0


class KernelNodeParams(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v3`, as far as it is read here: 72 bytes, dimensions in blocks and threads."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("shape", ctypes.c_uint * 6),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class Driver:
    """The functions of the driver that look into a graph."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, (name, code)

    def nodes(self, graph):
        count = ctypes.c_size_t()
        self("cuGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
        return [ctypes.c_void_p(node) for node in nodes]

    def kernel(self, node):
        """Name, grid, block and dynamic shared memory of a kernel node; the node's kind otherwise."""
        kind, params, name = ctypes.c_int(), KernelNodeParams(), ctypes.c_char_p()
        self("cuGraphNodeGetType", node, ctypes.byref(kind))
        if kind.value != KERNEL:
            return f"node of kind {kind.value}"
        self("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
        if params.function:
            self("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(params.function))
        else:
            self("cuKernelGetName", ctypes.byref(name), ctypes.c_void_p(params.kernel))
        return f"{name.value.decode()} {list(params.shape)} {params.shared}"


def chosen(torch, driver, work):
    """The kernels that `work` launches, sorted: parallel branches have no order."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        work()
    handle = ctypes.c_void_p(int(graph.raw_cuda_graph()))
    return sorted(driver.kernel(node) for node in driver.nodes(handle))


def sweep(title, works):
    torch = need("torch")
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        absent("this PyTorch does not show its graphs")
    driver = Driver()
    for name, work in works(torch):
        same(f"{title}.{name}", "; ".join(chosen(torch, driver, work)))


@item
def products():
    """cuBLAS and cuBLASLt: matrix products of many shapes and kinds of number."""

    def works(torch):
        for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            for m, n, k in [(1, 1, 64), (16, 16, 16), (33, 65, 127), (128, 128, 4096), (256, 256, 256), (1000, 10, 512),
                            (4096, 64, 64), (64, 4096, 768), (1024, 1024, 1024), (2048, 2048, 2048), (1, 4096, 4096)]:
                a, b = torch.randn(m, k, device="cuda").to(kind), torch.randn(k, n, device="cuda").to(kind)
                bias = torch.randn(n, device="cuda").to(kind)
                yield f"{kind}.{m}x{n}x{k}", lambda a=a, b=b: a @ b
                yield f"{kind}.{m}x{n}x{k}.bias", lambda a=a, b=b, bias=bias: torch.addmm(bias, a, b)
            c, d = torch.randn(24, 77, 64, device="cuda").to(kind), torch.randn(24, 64, 77, device="cuda").to(kind)
            yield f"{kind}.batched", lambda c=c, d=d: c @ d

    sweep("products", works)


@item
def convolutions():
    """cuDNN: convolutions forward, and with their slopes."""

    def works(torch):
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            for images, channels, side, filters, size in [(1, 3, 224, 64, 7), (8, 64, 56, 64, 3), (8, 64, 56, 128, 1),
                                                          (4, 32, 33, 48, 5), (16, 256, 14, 256, 3), (2, 8, 9, 8, 3)]:
                x = torch.randn(images, channels, side, side, device="cuda").to(kind).requires_grad_()
                w = torch.randn(filters, channels, size, size, device="cuda").to(kind).requires_grad_()
                name = f"{kind}.{images}x{channels}x{side}.{filters}x{size}"
                yield name, lambda x=x, w=w: torch.nn.functional.conv2d(x, w, padding=1)

                def slopes(x=x, w=w):
                    y = torch.nn.functional.conv2d(x, w, padding=1)
                    torch.autograd.grad(y, (x, w), torch.ones_like(y))

                yield f"{name}.slopes", slopes

    sweep("convolutions", works)


@item
def attention():
    """cuDNN's and PyTorch's own attention, as `scaled_dot_product_attention` chooses."""

    def works(torch):
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            for batch, heads, queries, keys, size in [(2, 12, 16, 16, 64), (2, 12, 1, 17, 64), (1, 8, 512, 512, 128), (4, 16, 128, 77, 32)]:
                q = torch.randn(batch, heads, queries, size, device="cuda").to(kind)
                k, v = (torch.randn(batch, heads, keys, size, device="cuda").to(kind) for _ in range(2))
                attend = torch.nn.functional.scaled_dot_product_attention
                yield f"{kind}.{batch}x{heads}x{queries}x{keys}x{size}", lambda q=q, k=k, v=v: attend(q, k, v)

    sweep("attention", works)


@item
def transforms():
    """cuFFT: transforms of small, odd, prime and large lengths, in one and two dimensions."""

    def works(torch):
        for kind in (torch.complex64, torch.complex128):
            for shape in [(8,), (100,), (127,), (1024,), (4099,), (65536,), (16, 60, 60), (4, 31, 64), (2, 512, 512)]:
                x = torch.randn(*shape, device="cuda").to(kind)
                over = tuple(range(-min(2, len(shape)), 0))
                yield f"{kind}.{shape}", lambda x=x, over=over: torch.fft.fftn(x, dim=over)
                yield f"{kind}.{shape}.real", lambda x=x: torch.fft.rfft(x.real)

    sweep("transforms", works)


if __name__ == "__main__":
    run()
