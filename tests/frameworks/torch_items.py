"""Items with PyTorch: training, graphs, streams, allocators, libraries, processes."""

import os
import sys
import threading

# Read by cuBLAS when it is first used, and by the allocator when it is first asked; set before PyTorch is imported.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
ALLOCATORS = {
    "memory_expandable": "expandable_segments:True",
    "memory_async": "backend:cudaMallocAsync",
    "memory_caching": "max_split_size_mb:64,garbage_collection_threshold:0.8",
}
if len(sys.argv) > 1 and sys.argv[1] in ALLOCATORS:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = ALLOCATORS[sys.argv[1]]

from said import absent, item, near, need, run, same, timed

torch = need("torch")
from torch import nn
from torch.nn import functional as F

if not torch.cuda.is_available():
    absent("PyTorch sees no device")

WORDS, LENGTH = 256, 64


class Block(nn.Module):
    """Attention and two layers."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.mix(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Letters(nn.Module):
    """A small transformer that guesses the next letter."""

    def __init__(self, width=128, depth=2):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, letters):
        return self.head(self.blocks(self.embed(letters)))


def texts(step, batch=16):
    """Seeded letters that can be learned: each follows from the one before."""
    start = torch.randint(0, WORDS, (batch, 1), generator=torch.Generator().manual_seed(step))
    return (start + 7 * torch.arange(LENGTH + 1)) % WORDS


def loss_of(model, letters):
    return F.cross_entropy(model(letters[:, :-1]).float().flatten(0, 1), letters[:, 1:].flatten())


def train(model, steps, kind=None, scaler=None):
    """Trains, and gives the loss of each step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for step in range(steps):
        letters = texts(step).pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda", kind or torch.bfloat16, enabled=kind is not None):
            loss = loss_of(model, letters)
        optimiser.zero_grad()
        if scaler is None:
            loss.backward()
            optimiser.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def fresh(width=128, depth=2):
    torch.manual_seed(1)
    return Letters(width, depth).cuda()


def say(name, tensor):
    """A tensor by the hash of its bytes; NumPy has no bfloat16."""
    same(name, tensor.detach().cpu().contiguous().view(torch.uint8).numpy())


def close(name, tensor, tolerance=1e-4):
    """A tensor by its norm, where the order of sums is the library's affair."""
    near(name, torch.linalg.vector_norm(tensor.detach().double().cpu()).item(), tolerance)


@item
def queries():
    """What torch.cuda tells of the machine, by CUDA and by NVML."""
    need("pynvml")
    with timed("first_call"):
        torch.zeros(1, device="cuda").item()
    facts = torch.cuda.get_device_properties(0)
    for name in ("name", "major", "minor", "total_memory", "multi_processor_count", "warp_size", "L2_cache_size"):
        same(name, getattr(facts, name))
    same("uuid", str(facts.uuid))
    same("devices", torch.cuda.device_count())
    same("arch", " ".join(torch.cuda.get_arch_list()))
    same("bf16", torch.cuda.is_bf16_supported())
    same("cudnn", torch.backends.cudnn.version())
    same("nccl", torch.cuda.nccl.version())
    same("cuda", torch.version.cuda)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    near("free", free, 0.05)
    same("priorities", torch.cuda.Stream.priority_range())
    for other in range(1, torch.cuda.device_count()):
        same(f"peer_{other}", torch.cuda.can_device_access_peer(0, other))
    assert 0 <= torch.cuda.utilization() <= 100 and torch.cuda.temperature() > 0


@item
def training():
    """A small transformer in float32, bfloat16 and, with a scaler, float16: every loss to the last bit."""
    torch.use_deterministic_algorithms(True)
    for name, kind in (("float32", None), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        scaler = torch.amp.GradScaler("cuda") if kind is torch.float16 else None
        model = fresh()
        with timed(name):
            losses = train(model, 30, kind, scaler)
        assert losses[-1] < losses[0] and torch.isfinite(losses).all()
        say(f"losses_{name}", losses)
        say(f"weights_{name}", torch.cat([p.flatten() for p in model.parameters()]))


@item
def compiled():
    """The same under torch.compile: Triton's kernels, loaded from files."""
    model = fresh()
    ready = torch.compile(model)
    with timed("first_step"):
        losses = train(ready, 1)
    losses = torch.cat([losses, train(ready, 19)])
    assert losses[-1] < losses[0]
    # Not to the last bit: the compiler chooses among its kernels by how long they take, and native runs differ from each other.
    for step, loss in enumerate(losses.tolist()):
        near(f"loss_{step}", loss, 1e-2)
    with timed("graphs"):
        torch.compiler.reset()
        reduced = torch.compile(fresh().eval(), mode="reduce-overhead")
        with torch.no_grad():
            for step in range(4):
                out = reduced(texts(step)[:, :-1].cuda()).clone()
    close("reduced", out, 1e-2)


@item
def graphs():
    """Captured graphs: a whole training step, private pools, callables, replays among other work."""
    model, side = fresh(), torch.cuda.Stream()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    letters = texts(0).cuda()

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(model, letters)
        loss.backward()
        optimiser.step()
        return loss

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for number in range(20):
        letters.copy_(texts(number))
        graph.replay()
        losses.append(loss.clone())
    losses = torch.stack(losses).cpu()
    assert losses[-1] < losses[0]
    say("losses", losses)

    wide = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    sample = torch.ones(8, 64, device="cuda", requires_grad=True)
    callable_ = torch.cuda.make_graphed_callables(wide, (sample,))
    out = callable_(torch.full((8, 64), 0.5, device="cuda", requires_grad=True))
    out.sum().backward()
    say("callable", out)
    say("gradients", torch.cat([p.grad.flatten() for p in wide.parameters()]))
    del graph, callable_
    torch.cuda.empty_cache()


@item
def streams():
    """Streams that wait for each other, events, times, priorities, work of several threads."""
    torch.manual_seed(2)
    x = torch.randn(1024, 1024, device="cuda")
    lanes = [torch.cuda.Stream(priority=-(number % 2)) for number in range(4)]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    value = x.clone()
    for number in range(40):
        lane = lanes[number % 4]
        lane.wait_stream(lanes[(number - 1) % 4] if number else torch.cuda.current_stream())
        with torch.cuda.stream(lane):
            value = torch.tanh(value @ x / 32)
            value.record_stream(lane)
    torch.cuda.current_stream().wait_stream(lane)
    end.record()
    end.synchronize()
    assert end.query() and begin.elapsed_time(end) > 0
    say("chain", value)

    results = [None] * 8

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = torch.full((256, 256), 1 / 256, device="cuda") * (number + 1)
            for _ in range(50):
                mine = mine @ torch.full_like(mine, 1 / 256)
            results[number] = mine.sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in enumerate(results):
        same(f"thread_{number}", result)
    external = torch.cuda.ExternalStream(lanes[0].cuda_stream)
    external.synchronize()
    torch.cuda.synchronize()


class Images(torch.utils.data.Dataset):
    """Seeded noise with a class that follows from it."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))
        return image, int(image.mean() > 0)


@item
def loader():
    """A DataLoader with processes and pinned memory before a convolutional net, in both layouts of memory."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    for name, layout in (("rows", torch.contiguous_format), ("channels", torch.channels_last)):
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(), nn.Flatten(), nn.Linear(32 * 15 * 15, 2),
        ).cuda().to(memory_format=layout)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        batches = torch.utils.data.DataLoader(Images(), 32, num_workers=2, pin_memory=True)
        losses = []
        with timed(name):
            for images, kinds in batches:
                assert images.is_pinned()
                images = images.cuda(non_blocking=True).to(memory_format=layout)
                loss = F.cross_entropy(net(images), kinds.cuda(non_blocking=True))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
        say(f"losses_{name}", torch.stack(losses))


def _allocate():
    """Allocates and frees in the manner of trainings, fills memory, and goes on after it was full."""
    generator = torch.Generator().manual_seed(4)
    kept, total = [], 0
    for step in range(400):
        size = int(2 ** (10 + 16 * torch.rand((), generator=generator).item()))
        kept.append(torch.full((size // 4,), step, dtype=torch.int32, device="cuda"))
        if len(kept) > 24:
            gone = kept.pop(int(torch.randint(len(kept), (), generator=generator)))
            total += int(gone[0]) + int(gone[-1])
    assert all(int(tensor.min()) == int(tensor.max()) for tensor in kept)
    same("sum", total)
    free, _ = torch.cuda.mem_get_info()
    try:
        torch.empty(free * 2, dtype=torch.uint8, device="cuda")
        same("full", "accepted")
    except torch.OutOfMemoryError:
        same("full", "refused")
    del kept
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after = torch.ones(1 << 20, device="cuda")
    same("after", after.sum().item())
    return torch.cuda.get_allocator_backend()


@item
def memory_caching():
    """The allocator that is the default, with settings."""
    same("backend", _allocate())
    figures = torch.cuda.memory_stats()
    same("allocations", figures["allocation.all.allocated"])
    same("reserved", figures["reserved_bytes.all.current"])
    same("retries", figures["num_alloc_retries"])


@item
def memory_expandable():
    """The allocator that maps its memory itself."""
    same("backend", _allocate())
    say("product", torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda"))


@item
def memory_async():
    """The driver's stream-ordered pools under PyTorch."""
    same("backend", _allocate())
    model = fresh()
    say("losses", train(model, 5))


@item
def linear_algebra():
    """cuSOLVER and cuBLAS: factorisations and solutions, right by what they are for."""
    torch.manual_seed(5)
    a = torch.randn(192, 192, device="cuda", dtype=torch.float64)
    spd = a @ a.T + 192 * torch.eye(192, device="cuda", dtype=torch.float64)
    b = torch.randn(192, 8, device="cuda", dtype=torch.float64)
    assert torch.allclose(a @ torch.linalg.solve(a, b), b)
    u, s, v = torch.linalg.svd(a)
    assert torch.allclose(u @ torch.diag(s) @ v, a)
    q, r = torch.linalg.qr(a)
    assert torch.allclose(q @ r, a)
    values, vectors = torch.linalg.eigh(spd)
    assert torch.allclose(vectors @ torch.diag(values) @ vectors.T, spd)
    lower = torch.linalg.cholesky(spd)
    assert torch.allclose(lower @ lower.T, spd)
    assert torch.allclose(torch.linalg.inv(spd) @ spd, torch.eye(192, device="cuda", dtype=torch.float64), atol=1e-9)
    for name, tensor in (("svd", s), ("qr", r.abs()), ("eigh", values), ("cholesky", lower)):
        close(name, tensor, 1e-10)
    close("least", torch.linalg.lstsq(a, b).solution, 1e-8)
    batch = torch.randn(32, 24, 24, device="cuda")
    close("determinants", torch.linalg.det(batch), 1e-3)
    near("lu", torch.linalg.lu_factor(spd).LU.diagonal().log().sum().item(), 1e-10)


@item
def transforms():
    """cuFFT, cuSPARSE and sorting."""
    torch.manual_seed(6)
    for size in (1024, 1000, 997):
        x = torch.randn(16, size, device="cuda", dtype=torch.float64)
        spectrum = torch.fft.rfft(x)
        assert torch.allclose(torch.fft.irfft(spectrum, n=size), x)
        close(f"rfft_{size}", torch.view_as_real(spectrum), 1e-10)
    image = torch.randn(4, 64, 96, device="cuda", dtype=torch.complex64)
    assert torch.allclose(torch.fft.ifft2(torch.fft.fft2(image)), image, atol=1e-5)
    close("fft2", torch.view_as_real(torch.fft.fft2(image)))
    dense = torch.randn(200, 300, device="cuda").relu() * (torch.rand(200, 300, device="cuda") < 0.1)
    other = torch.randn(300, 40, device="cuda")
    for name, thin in (("csr", dense.to_sparse_csr()), ("coo", dense.to_sparse())):
        out = thin @ other
        assert torch.allclose(out, dense @ other, atol=1e-4)
        close(name, out)
    numbers = torch.randint(0, 1 << 40, (100000,), device="cuda")
    ordered, places = numbers.sort(stable=True)
    say("sorted", ordered)
    say("places", places)
    say("unique", numbers.remainder(1000).unique())
    say("counted", torch.bincount(numbers.remainder(64), minlength=64))
    say("topk", numbers.topk(50).values)
    say("scan", numbers.cumsum(0))


@item
def layers():
    """cuDNN: convolutions, recurrent layers, attention in its forms, forwards and backwards."""
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(7)
    x = torch.randn(8, 16, 24, 24, device="cuda", requires_grad=True)
    for name, layer in (
        ("conv2d", nn.Conv2d(16, 32, 3, padding=1)), ("grouped", nn.Conv2d(16, 32, 3, groups=4)),
        ("transposed", nn.ConvTranspose2d(16, 8, 3, stride=2)), ("dilated", nn.Conv2d(16, 16, 3, dilation=2)),
    ):
        out = layer.cuda()(x)
        (gradient,) = torch.autograd.grad(out.square().mean(), x)
        close(name, out)
        close(f"{name}_gradient", gradient, 1e-3)
    volume = torch.randn(2, 4, 12, 12, 12, device="cuda")
    close("conv3d", nn.Conv3d(4, 8, 3).cuda()(volume))
    words = torch.randn(20, 8, 32, device="cuda")
    for name, layer in (("lstm", nn.LSTM(32, 48, 2)), ("gru", nn.GRU(32, 48, bidirectional=True))):
        out, _ = layer.cuda()(words)
        out.sum().backward()
        close(name, out)
    q, k, v = (torch.randn(4, 8, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    kinds = torch.nn.attention.SDPBackend
    for kind in (kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION, kinds.CUDNN_ATTENTION, kinds.MATH):
        try:
            with torch.nn.attention.sdpa_kernel(kind):
                close(kind.name.lower(), F.scaled_dot_product_attention(q, k, v, is_causal=True).float(), 1e-2)
        except RuntimeError as error:
            same(kind.name.lower(), str(error).splitlines()[0])


@item
def products():
    """cuBLAS and cuBLASLt in the kinds of numbers they have, and batches."""
    torch.manual_seed(8)
    for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        a, b = (torch.randn(384, 256, device="cuda").to(kind) for _ in range(2))
        say(str(kind).removeprefix("torch."), a @ b.mT)
        say(f"{kind}_batch".removeprefix("torch."), torch.bmm(a.unflatten(0, (6, 64)), b.unflatten(0, (6, 64)).mT))
    torch.backends.cuda.matmul.allow_tf32 = True
    say("tf32", torch.randn(256, 256, device="cuda") @ torch.randn(256, 256, device="cuda"))
    bytes_ = torch.randint(-9, 9, (64, 64), device="cuda", dtype=torch.int8)
    say("int8", torch._int_mm(bytes_, bytes_))
    say("linear", F.linear(torch.ones(32, 64, device="cuda"), torch.ones(16, 64, device="cuda"), torch.ones(16, device="cuda")))


@item
def random_numbers():
    """The device's random numbers and their state."""
    torch.manual_seed(9)
    say("normal", torch.randn(10000, device="cuda"))
    state = torch.cuda.get_rng_state()
    first = torch.rand(1000, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(1000, device="cuda"))
    say("uniform", first)
    say("permutation", torch.randperm(5000, device="cuda"))
    say("multinomial", torch.multinomial(torch.ones(100, device="cuda"), 50))
    say("dropout", F.dropout(torch.ones(1000, device="cuda"), 0.3))
    say("bernoulli", torch.empty(1000, device="cuda").bernoulli_(0.3))


def _other_process(tensors, event, answers):
    """The other side of `processes`: changes what it was lent."""
    event.wait()
    tensors[0].mul_(2)
    tensors[1].copy_(tensors[0].sum())
    torch.cuda.synchronize()
    answers.put(float(tensors[0][0]))
    # The owner may free the memory once this process is gone.
    answers.close()
    answers.join_thread()


@item
def processes():
    """Tensors and events lent to another process (cuIpc), which changes them."""
    context = torch.multiprocessing.get_context("spawn")
    tensors = [torch.arange(1 << 16, dtype=torch.float64, device="cuda") + 1, torch.zeros((), dtype=torch.float64, device="cuda")]
    event = torch.cuda.Event(interprocess=True)
    event.record()
    answers = context.Queue()
    child = context.Process(target=_other_process, args=(tensors, event, answers))
    child.start()
    same("answer", answers.get(timeout=90))
    child.join(30)
    same("status", child.exitcode)
    torch.cuda.synchronize()
    say("changed", tensors[0])
    same("sum", tensors[1].item())


@item
def forks():
    """A child made by fork after CUDA was used is told so, and the parent goes on."""
    torch.zeros(1, device="cuda")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(1, device="cuda")
            said = "accepted"
        except RuntimeError as error:
            said = str(error).splitlines()[0]
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    same("child", os.read(reader, 4096).decode())
    same("parent", torch.ones(1000, device="cuda").sum().item())


@item
def device_assertion():
    """A kernel that finds a wrong index ends this process's use of the device, in the same words."""
    try:
        torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
        torch.cuda.synchronize()
        same("assertion", "accepted")
    except RuntimeError as error:
        same("assertion", str(error).splitlines()[0])
    try:
        torch.zeros(4, device="cuda").sum().item()
        same("afterwards", "accepted")
    except RuntimeError as error:
        same("afterwards", str(error).splitlines()[0])


@item
def scripts():
    """TorchScript with its fuser, which compiles by NVRTC."""

    @torch.jit.script
    def fused(x, y):
        return torch.sigmoid(x) * torch.tanh(y) + torch.relu(x - y) * 0.5

    torch.manual_seed(10)
    x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    for _ in range(4):
        out = fused(x, y)
    assert torch.allclose(out, torch.sigmoid(x) * torch.tanh(y) + torch.relu(x - y) * 0.5, atol=1e-6)
    say("fused", out)
    say("jiterator", torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")(x))


@item
def profiler():
    """torch.profiler on the device: CUPTI sits under the driver, and sees no kernels where there is none; the rest works."""
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(11)
    x = torch.randn(256, 256, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            x = torch.tanh(x @ x)
        torch.cuda.synchronize()
    kernels = [event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    print(f"version kernels_seen {bool(kernels)}", flush=True)
    same("operators", sorted({event.name for event in profiled.events() if event.name.startswith("aten::")}))
    say("result", x)


def _ranks(number, ranks, answers, port):
    """One rank of `collectives`."""
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=number, world_size=ranks, device_id=device)
    whole = torch.arange(1 << 20, device=device, dtype=torch.int64) * (number + 1)
    dist.all_reduce(whole)
    mine = torch.full((1000,), number, device=device)
    parts = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(parts, mine)
    dist.broadcast(mine, 0)
    dist.barrier()
    answers.put((number, int(whole.sum()), int(torch.cat(parts).sum()), int(mine.sum())))
    dist.destroy_process_group()


def _collective(ranks):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    children = [context.Process(target=_ranks, args=(number, ranks, answers, port)) for number in range(ranks)]
    for child in children:
        child.start()
    for number, *sums in sorted(answers.get(timeout=100) for _ in children):
        same(f"rank_{number}", " ".join(map(str, sums)))
    for number, child in enumerate(children):
        child.join(30)
        same(f"status_{number}", child.exitcode)


@item
def collectives_of_one():
    """NCCL with one rank."""
    _collective(1)


@item
def collectives_of_two():
    """NCCL with two ranks, each with its device."""
    if torch.cuda.device_count() < 2:
        absent("there is one device")
    _collective(2)


@item
def two_devices():
    """Copies between two devices, and a model that lies on both."""
    if torch.cuda.device_count() < 2:
        absent("there is one device")
    torch.manual_seed(11)
    x = torch.randn(1 << 20, device="cuda:0")
    assert torch.equal(x.to("cuda:1").cpu(), x.cpu())
    first, second = nn.Linear(64, 64).to("cuda:0"), nn.Linear(64, 1).to("cuda:1")
    out = second(first(torch.ones(8, 64, device="cuda:0")).to("cuda:1"))
    out.sum().backward()
    say("gradient", first.weight.grad)


def _steps(model, batch, steps):
    """Seconds of a step, once it runs steadily."""
    import time

    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    letters = texts(0, batch).cuda()
    for step in range(steps + 5):
        if step == 5:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model, letters)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.cuda.synchronize()
    print(f"time step {(time.perf_counter() - begun) / steps:.6f}", flush=True)
    near("loss", loss.item(), 1e-2)


@item
def speed_of_launches():
    """Steps in bfloat16 so small that launching them is what they cost."""
    _steps(fresh(256, 8), 4, 60)


@item
def speed_of_computing():
    """Steps in bfloat16 so large that launching them costs nothing."""
    _steps(fresh(1536, 8), 128, 20)


@item
def speed_of_images():
    """A net of convolutions fed by a DataLoader with pinned memory."""
    import time

    torch.manual_seed(12)
    body = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(8):
        body += [nn.Conv2d(64, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU()]
    net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    images = torch.utils.data.TensorDataset(torch.randn(640, 3, 128, 128), torch.arange(640) % 10)
    batches = torch.utils.data.DataLoader(images, 32, num_workers=2, pin_memory=True, persistent_workers=True)
    for epoch in range(3):
        if epoch == 1:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        for batch, kinds in batches:
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(net(batch.cuda(non_blocking=True)).float(), kinds.cuda(non_blocking=True))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    torch.cuda.synchronize()
    print(f"time step {(time.perf_counter() - begun) / (2 * len(batches)):.6f}", flush=True)
    same("batches", len(batches))
    near("loss", loss, 0.1)


if __name__ == "__main__":
    run()
