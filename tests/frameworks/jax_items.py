"""Items with JAX: XLA's own kernels, NVIDIA's libraries under it, and how it takes memory."""

import os
import sys

MEMORY = {
    "memory_preallocated": {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".50"},
    "memory_async": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "memory_plain": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
}
# Several items share the device, so that none but the item about it takes memory in advance.
os.environ.update(MEMORY.get(sys.argv[1] if len(sys.argv) > 1 else "", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}))
# Equal results in every run: no measured choice among kernels, no order of sums that changes.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"

import numpy as np

from said import absent, item, near, need, run, same, timed

jax = need("jax")
import jax.numpy as jnp
from jax import lax

try:
    DEVICES = jax.devices("cuda")
except RuntimeError as error:
    absent(f"JAX sees no device: {error}")


def say(name, array):
    same(name, np.asarray(array))


def close(name, array, tolerance=1e-4):
    near(name, np.linalg.norm(np.asarray(array, dtype=np.float64)), tolerance)


def _network(weights, x):
    for weight, bias in weights:
        x = jnp.tanh(x @ weight + bias)
    return x


def _weights(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [(jax.random.normal(k, (a, b)) / a**0.5, jnp.zeros(b)) for k, a, b in zip(keys, sizes, sizes[1:])]


@item
def transformations():
    """jit, grad, vmap, scan, while, cond, custom derivatives."""
    with timed("first_call"):
        jnp.zeros(1).block_until_ready()
    weights = _weights(jax.random.key(1), (32, 64, 64, 1))
    x = jax.random.normal(jax.random.key(2), (128, 32))
    wanted = jnp.sin(x.sum(1, keepdims=True))

    @jax.jit
    def step(weights):
        loss, slopes = jax.value_and_grad(lambda w: jnp.mean((_network(w, x) - wanted) ** 2))(weights)
        return loss, jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes)

    losses = []
    for _ in range(50):
        loss, weights = step(weights)
        losses.append(loss)
    assert losses[-1] < losses[0]
    say("losses", jnp.stack(losses))
    say("vmap", jax.jit(jax.vmap(lambda row: jnp.outer(row, row).sum(0)))(x))
    say("hessian", jax.hessian(lambda v: jnp.sum(jnp.sin(v) ** 3))(x[0]))
    say("scan", lax.scan(lambda carry, row: (carry * 0.9 + row, carry.sum()), jnp.zeros(32), x)[1])
    same("while", int(lax.while_loop(lambda n: n < 1000, lambda n: n * 3 + 1, 1)))
    say("cond", lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x[1]))


@item
def devices():
    """pmap and shardings over all devices there are."""
    count = len(DEVICES)
    same("devices", count)
    rows = jnp.arange(count * 1000.0).reshape(count, 1000)
    summed = jax.pmap(lambda row: lax.psum(row, "all"), axis_name="all")(rows)
    say("psum", summed)
    mesh = jax.sharding.Mesh(np.array(DEVICES), ("rows",))
    spread = jax.device_put(rows, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows")))
    say("sharded", jax.jit(lambda x: jnp.cumsum(x, 1) * 2)(spread))
    back = np.asarray(jax.device_put(np.arange(5000), DEVICES[-1]))
    assert (back == np.arange(5000)).all()


@item
def libraries():
    """Matrix products, factorisations, transforms, convolutions, sorting."""
    # Products of 19 bits would not pass the checks below.
    jax.config.update("jax_default_matmul_precision", "highest")
    key = jax.random.key(3)
    a = jax.random.normal(key, (160, 160))
    spd = a @ a.T + 160 * jnp.eye(160)
    for kind in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64):
        close(f"product_{kind.__name__}", jnp.abs(a.astype(kind) @ a.astype(kind)).astype(jnp.float32), 1e-3)
    assert jnp.allclose(spd @ jnp.linalg.solve(spd, a), a, atol=1e-3)
    u, s, v = jnp.linalg.svd(a)
    assert jnp.allclose(u @ jnp.diag(s) @ v, a, atol=1e-3)
    close("svd", s)
    close("eigh", jnp.linalg.eigh(spd)[0])
    close("qr", jnp.abs(jnp.linalg.qr(a)[1]))
    close("cholesky", jnp.linalg.cholesky(spd))
    close("fft", jnp.abs(jnp.fft.fft2(a)))
    assert jnp.allclose(jnp.fft.irfft(jnp.fft.rfft(a)), a, atol=1e-4)
    images = jax.random.normal(key, (4, 8, 32, 32))
    close("convolution", lax.conv(images, jax.random.normal(key, (16, 8, 3, 3)), (1, 1), "SAME"))
    numbers = jax.random.randint(key, (50000,), 0, 1 << 30)
    say("sorted", jnp.sort(numbers))
    say("argsort", jnp.argsort(numbers, stable=True))
    say("counted", jnp.bincount(numbers % 64, length=64))
    say("uniform", jax.random.uniform(key, (10000,)))


@item
def callbacks():
    """Functions of the program that a compiled one calls, in its middle."""

    @jax.jit
    def mixed(x):
        host = jax.pure_callback(lambda v: np.sqrt(np.asarray(v)) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return host * 2

    seen = []
    say("mixed", mixed(jnp.arange(1000.0)))

    @jax.jit
    def told(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return x + 1

    for number in range(5):
        told(jnp.full(10, float(number))).block_until_ready()
    jax.effects_barrier()
    same("seen", seen)


def _fill():
    blocks = [jnp.full((1 << 18,), number, jnp.int32) for number in range(64)]
    total = sum(int(block[0]) + int(block[-1]) for block in blocks)
    same("sum", total)
    a = jax.random.normal(jax.random.key(4), (512, 512))
    for _ in range(20):
        a = jnp.tanh(a @ a)
    close("chain", a)
    try:
        np.asarray(jnp.ones((1 << 50,), jnp.uint8)[0])
        same("full", "accepted")
    except Exception as error:
        same("full", type(error).__name__)
    same("after", float(jnp.ones(1000).sum()))


@item
def memory_preallocated():
    """Half of the device's memory in one piece, as JAX does unless told otherwise (three quarters)."""
    _fill()
    figures = DEVICES[0].memory_stats()
    near("limit", figures["bytes_limit"], 0.05)
    assert figures["bytes_in_use"] <= figures["bytes_limit"]


@item
def memory_async():
    """The driver's stream-ordered pools under JAX."""
    _fill()


@item
def memory_plain():
    """Each array by an allocation of the driver."""
    _fill()


@item
def speed():
    """Steps of a small network, compiled."""
    import time

    weights = _weights(jax.random.key(5), (512, 2048, 2048, 512))
    x = jax.random.normal(jax.random.key(6), (256, 512))

    @jax.jit
    def step(weights):
        slopes = jax.grad(lambda w: jnp.mean((_network(w, x) - x) ** 2))(weights)
        return jax.tree.map(lambda w, s: w - 0.01 * s, weights, slopes)

    for number in range(210):
        if number == 10:
            jax.block_until_ready(weights)
            begun = time.perf_counter()
        weights = step(weights)
    jax.block_until_ready(weights)
    print(f"time step {(time.perf_counter() - begun) / 200:.6f}", flush=True)
    close("weights", weights[0][0], 1e-3)


@item
def sampling():
    """numpyro's NUTS: while loops and conditions inside while loops, which XLA makes graphs with conditional nodes of."""
    numpyro = need("numpyro")
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    x = np.linspace(0, 1, 100)
    y = 2 * x + 1 + 0.1 * np.sin(50 * x)

    def model():
        slope, offset = (numpyro.sample(name, dist.Normal(0, 5)) for name in ("slope", "offset"))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(slope * x + offset, spread), obs=y)

    chain = MCMC(NUTS(model), num_warmup=40, num_samples=40, progress_bar=False)
    chain.run(jax.random.PRNGKey(0))
    samples = chain.get_samples()
    assert abs(float(samples["slope"].mean()) - 2) < 0.5 and abs(float(samples["offset"].mean()) - 1) < 0.5
    close("slope", samples["slope"], 1e-2)


if __name__ == "__main__":
    run()
