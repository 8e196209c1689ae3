"""What the items of the compatibility run have in common: how they are found, and what they say.

A script holds the items of one framework, each a function under `@item`; `SCRIPT NAME` runs one of them. What an item
says is compared between the native run and the runs through Katydid, a line each:

    same NAME VALUE             equal to the last bit on every way
    near NAME TOLERANCE VALUE   within this relative tolerance, where the native result is not one and the same either
    time NAME SECONDS           reported, never compared
    version NAME VALUE          reported

All other lines are the framework's own and are ignored. An item asserts by itself that its results are right. Where
what it needs is not there it ends with status 77, its reason being the last line of standard error.
"""

import hashlib
import importlib
import os
import sys
import time
from contextlib import contextmanager

ABSENT = 77
ITEMS = {}


def item(function):
    """Makes a function an item of its script."""
    ITEMS[function.__name__] = function
    return function


def absent(reason):
    """Ends the item: what it needs is not there."""
    print(reason, file=sys.stderr, flush=True)
    sys.exit(ABSENT)


def need(name):
    """A module that the machine may lack."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # A package that is broken on the machine says so in many ways.
        absent(f"{name} cannot be imported: {type(error).__name__}: {error}")
    version = getattr(module, "__version__", None)
    if version is not None:
        print(f"version {name} {version}", flush=True)
    return module


def same(name, value):
    """A value that must be equal on every way: text and numbers as they are, arrays by the hash of their bytes."""
    if hasattr(value, "tobytes"):
        shape = "x".join(map(str, value.shape)) or "one"
        value = f"{value.dtype}:{shape}:{hashlib.sha256(value.tobytes()).hexdigest()[:32]}"
    elif isinstance(value, float):
        value = value.hex()
    print(f"same {name} {value}", flush=True)


def near(name, value, tolerance=1e-5):
    """A number that may differ by this part of it."""
    print(f"near {name} {tolerance!r} {float(value)!r}", flush=True)


@contextmanager
def timed(name):
    """Reports how long its body takes."""
    begun = time.perf_counter()
    yield
    print(f"time {name} {time.perf_counter() - begun:.6f}", flush=True)


def of_katydid():
    """Ends a process under `katydid run` that has another driver than Katydid's: what it says would be native."""
    if "KATYDID_SERVER" not in os.environ:
        return
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[5].strip() for line in maps if "/libcuda.so" in line}
    for path in sorted(loaded):
        if os.path.basename(os.path.dirname(path)) != "shim":
            sys.exit(f"not through Katydid: {path} is loaded; LD_LIBRARY_PATH is {os.environ.get('LD_LIBRARY_PATH')}")


def run():
    """Runs the item that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1] not in ITEMS:
        sys.exit(f"usage: {sys.argv[0]} ITEM, one of: {' '.join(ITEMS)}")
    ITEMS[sys.argv[1]]()
    of_katydid()
    # A backward pass is over before PyTorch's own thread has dropped its last tensors. Where Python ends meanwhile, the thread cannot
    # take Python's lock any more, and the process ends by SIGABRT: natively 1 run of 14.
    if "torch" in sys.modules:
        time.sleep(0.5)
