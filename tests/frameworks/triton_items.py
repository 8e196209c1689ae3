"""Items with Triton: kernels in its language, which it compiles to machine code on the program's machine."""

from said import absent, item, need, run, same, timed

torch = need("torch")
triton = need("triton")
import triton.language as tl

if not torch.cuda.is_available():
    absent("PyTorch sees no device")


def say(name, tensor):
    same(name, tensor.detach().cpu().contiguous().view(torch.uint8).numpy())


@triton.jit
def _axpy(x, y, out, a, count, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < count
    value = a * tl.load(x + places, mask=inside) + tl.load(y + places, mask=inside)
    tl.store(out + places, value, mask=inside)


@item
def vectors():
    """A masked kernel on vectors of odd lengths."""
    torch.manual_seed(1)
    for count in (1, 1000, 98432):
        x, y = torch.randn(count, device="cuda"), torch.randn(count, device="cuda")
        out = torch.empty_like(x)
        with timed(f"launch_{count}"):
            _axpy[(triton.cdiv(count, 1024),)](x, y, out, 2.0, count, 1024)
            torch.cuda.synchronize()
        assert torch.allclose(out, 2 * x + y)
        say(f"axpy_{count}", out)


@triton.jit
def _softmax(out, rows, stride, columns, block: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, block)
    value = tl.load(rows + row * stride + places, mask=places < columns, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * stride + places, value / tl.sum(value, axis=0), mask=places < columns)


@triton.jit
def _normalise(x, weight, bias, out, columns, eps, block: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, block)
    inside = places < columns
    value = tl.load(x + row * columns + places, mask=inside, other=0.0)
    mean = tl.sum(value, axis=0) / columns
    spread = tl.where(inside, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(spread * spread, axis=0) / columns + eps)
    value = spread * scale * tl.load(weight + places, mask=inside) + tl.load(bias + places, mask=inside)
    tl.store(out + row * columns + places, value, mask=inside)


@item
def rows():
    """Reductions over rows: softmax and the normalisation of layers."""
    torch.manual_seed(2)
    x = torch.randn(513, 781, device="cuda")
    out = torch.empty_like(x)
    _softmax[(x.shape[0],)](out, x, x.stride(0), x.shape[1], triton.next_power_of_2(x.shape[1]))
    assert torch.allclose(out, torch.softmax(x, 1), atol=1e-6)
    say("softmax", out)
    weight, bias = torch.randn(781, device="cuda"), torch.randn(781, device="cuda")
    _normalise[(x.shape[0],)](x, weight, bias, out, 781, 1e-5, 1024)
    assert torch.allclose(out, torch.nn.functional.layer_norm(x, (781,), weight, bias), atol=1e-4)
    say("normalised", out)


TILES = [(64, 64, 32, 4), (128, 64, 32, 4), (64, 128, 64, 8)]


@triton.jit
def _multiply(a, b, c, m, n, k, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    row = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    column = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for start in range(0, k, tile_k):
        inner = start + tl.arange(0, tile_k)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + column[None, :], mask=(inner[:, None] < k) & (column[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + row[:, None] * n + column[None, :], total, mask=(row[:, None] < m) & (column[None, :] < n))


@item
def products():
    """Products of matrices on the matrix units, in several shapes of tiles and warps, and its own choice among them."""
    torch.manual_seed(3)
    m, n, k = 300, 260, 200
    a, b = torch.randn(m, k, device="cuda", dtype=torch.float16), torch.randn(k, n, device="cuda", dtype=torch.float16)
    for tile_m, tile_n, tile_k, warps in TILES:
        c = torch.empty(m, n, device="cuda")
        grid = (triton.cdiv(m, tile_m), triton.cdiv(n, tile_n))
        _multiply[grid](a, b, c, m, n, k, tile_m, tile_n, tile_k, num_warps=warps)
        assert torch.allclose(c, a.float() @ b.float(), atol=0.05, rtol=1e-2)
        say(f"product_{tile_m}x{tile_n}x{tile_k}", c)
    names = ("tile_m", "tile_n", "tile_k")
    choices = [triton.Config(dict(zip(names, tile)), num_warps=tile[3]) for tile in TILES]
    chosen = triton.autotune(configs=choices, key=["m", "n", "k"])(_multiply)
    c = torch.empty(m, n, device="cuda")
    chosen[lambda meta: (triton.cdiv(m, meta["tile_m"]), triton.cdiv(n, meta["tile_n"]))](a, b, c, m, n, k)
    assert torch.allclose(c, a.float() @ b.float(), atol=0.05, rtol=1e-2)


@triton.jit
def _count(values, bins, count, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < count
    value = tl.load(values + places, mask=inside, other=0)
    tl.atomic_add(bins + value, tl.where(inside, 1, 0), mask=inside)


@triton.jit
def _attend(q, k, v, out, length, scale, width: tl.constexpr, block: tl.constexpr):
    head = tl.program_id(1) * length * width
    row = tl.program_id(0) * block + tl.arange(0, block)
    inner = tl.arange(0, width)
    mine = tl.load(q + head + row[:, None] * width + inner[None, :])
    highest = tl.full((block,), -float("inf"), tl.float32)
    divisor = tl.zeros((block,), tl.float32)
    total = tl.zeros((block, width), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * block, block):
        column = start + tl.arange(0, block)
        key = tl.load(k + head + column[None, :] * width + inner[:, None])
        score = tl.dot(mine, key) * scale
        score = tl.where(row[:, None] >= column[None, :], score, -float("inf"))
        above = tl.maximum(highest, tl.max(score, 1))
        score = tl.exp(score - above[:, None])
        shrink = tl.exp(highest - above)
        divisor = divisor * shrink + tl.sum(score, 1)
        value = tl.load(v + head + column[:, None] * width + inner[None, :])
        total = tl.dot(score.to(tl.float16), value, total * shrink[:, None])
        highest = above
    tl.store(out + head + row[:, None] * width + inner[None, :], total / divisor[:, None])


@item
def attention():
    """Causal attention in one kernel, with running maxima."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(6, 256, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.empty(6, 256, 64, device="cuda")
    _attend[(256 // 64, 6)](q, k, v, out, 256, 64**-0.5, 64, 64)
    wanted = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    assert torch.allclose(out, wanted, atol=2e-2)
    say("attention", out)


@item
def atomics():
    """Atomic sums of whole numbers, and times by its own benchmark."""
    values = torch.randint(0, 50, (100000,), generator=torch.Generator().manual_seed(5), dtype=torch.int32).cuda()
    bins = torch.zeros(50, dtype=torch.int32, device="cuda")
    _count[(triton.cdiv(100000, 512),)](values, bins, 100000, 512)
    assert torch.equal(bins.long(), torch.bincount(values, minlength=50))
    say("bins", bins)
    x = torch.ones(1 << 20, device="cuda")
    assert triton.testing.do_bench(lambda: x + 1, warmup=5, rep=20) > 0


if __name__ == "__main__":
    run()
