"""Parts of PyTorch's own tests that its wheel carries: the samples of its operators, each on the device and on the CPU.

    torch_suite.py FIRST-LAST     operators whose names begin with letters from FIRST to LAST

Each operator's samples are those that PyTorch's tests make; what is compared between the ways is whether the device's
results are the CPU's, sample by sample. A sample that fails natively must fail through Katydid in the same way.
"""

import sys
import types
import unittest

from said import absent, need, of_katydid, same

torch = need("torch")
if not torch.cuda.is_available():
    absent("PyTorch sees no device")
# Before the tests' helpers lock these flags.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
# The tests' helpers want a package that only compares texts in sources; nothing here does.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase, assert_expected_inline=None))
try:
    from torch.testing._internal.common_methods_invocations import op_db
except Exception as error:
    absent(f"this PyTorch carries no operators' samples: {type(error).__name__}: {error}")

# Samples of an operator that are run; the first ones are the plain ones.
SAMPLES = 4
# Operators whose results are random, not initialised, or those of another process.
LEFT_OUT = ("empty", "new_empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "uniform", "exponential", "cauchy",
            "geometric", "log_normal", "resize", "nn.functional.rrelu", "svd_lowrank", "pca_lowrank", "nonzero_static")


def moved(value, device):
    """A sample's arguments on another device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    return value


def outcome(op, sample):
    """Whether the device's result is the CPU's, or how it failed."""
    arguments = (sample.input, sample.args, sample.kwargs)

    def result(device):
        first, others, named = (moved(part, device) for part in arguments)
        try:
            made = op(first, *others, **named)
            # A copy that is not waited for may still be on its way to the processor.
            torch.cuda.synchronize()
            return made
        except torch.AcceleratorError:
            raise
        except Exception as error:
            return type(error).__name__

    here, there = result("cpu"), result("cuda")
    if isinstance(here, str) or isinstance(there, str):
        return f"cpu:{here if isinstance(here, str) else 'ran'},device:{there if isinstance(there, str) else 'ran'}"
    try:
        torch.testing.assert_close(moved(there, "cpu"), here, rtol=1e-3, atol=1e-3, equal_nan=True)
        return "equal"
    except AssertionError:
        return "unequal"
    except Exception as error:
        return f"incomparable:{type(error).__name__}"


def main():
    first, last = sys.argv[1].split("-")
    torch.manual_seed(0)
    count = {}
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        is_left_out = any(word in op.name for word in LEFT_OUT)
        if is_left_out or not first <= op.name.lstrip("_")[0].lower() <= last or torch.float32 not in op.dtypes:
            continue
        try:
            samples = [sample for sample, _ in zip(op.sample_inputs("cpu", torch.float32), range(SAMPLES))]
        except Exception as error:
            same(name, f"no samples:{type(error).__name__}")
            continue
        said = [outcome(op, sample) for sample in samples]
        same(name, ",".join(said))
        for word in said:
            count[word.split(":")[0]] = count.get(word.split(":")[0], 0) + 1
    torch.cuda.synchronize()
    of_katydid()
    for word, number in sorted(count.items()):
        print(f"version {word} {number}", flush=True)


if __name__ == "__main__":
    main()
