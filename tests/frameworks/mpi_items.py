"""Items with MPI: two ranks on the devices there are, by mpi4py or by the C library itself, and kernels from PTX."""

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys

from said import absent, item, of_katydid, run, same

# out[i] = (left + right) / 2 of its neighbours in `in`, for 0 < i < n - 1
KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry smooth(.param .u64 out, .param .u64 in, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<7>;
    .reg .f64 %f<4>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [in];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    add.u32 %r6, %r5, 2;
    setp.ge.u32 %p, %r6, %r1;
    @%p bra done;
    mul.wide.u32 %d3, %r5, 8;
    add.s64 %d4, %d2, %d3;
    add.s64 %d5, %d1, %d3;
    ld.global.f64 %f1, [%d4];
    ld.global.f64 %f2, [%d4+16];
    add.f64 %f3, %f1, %f2;
    mul.f64 %f3, %f3, 0d3FE0000000000000;
    st.global.f64 [%d5+8], %f3;
done:
    ret;
}
\0"""
CELLS, STEPS, RANKS = 20000, 50, 2


def _launcher():
    """The launcher's bare name: called by its path, Open MPI's puts its own folder of libraries before all others, and
    where the system's driver lies in that folder its ranks have that one."""
    found = [name for name in ("mpirun", "mpiexec") if shutil.which(name)]
    return found[0] if found else absent("there is no mpirun")


@item
def halo():
    """Neighbouring halves of a row, smoothed by two ranks that exchange their edges after every step."""
    launcher = _launcher()
    told = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    options = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in told or "OpenRTE" in told else []
    command = [launcher, *options, "-n", str(RANKS), sys.executable, "-B", os.path.abspath(__file__), "rank"]
    ended = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(ended.stderr)
    absences = [line for line in ended.stderr.splitlines() if line.startswith("absent: ")]
    if absences:
        absent(absences[0].removeprefix("absent: "))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank "))
    assert len(lines) == RANKS, ended.stdout
    for line in lines:
        _, number, value = line.split()
        same(f"rank_{number}", value)


class Plain:
    """MPI's C library by its standard names; handles differ between its makers."""

    def __init__(self):
        name = ctypes.util.find_library("mpi") or ctypes.util.find_library("mpich")
        if not name:
            sys.exit("absent: there is neither mpi4py nor a shared library of MPI")
        self.library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        try:
            handle = lambda symbol: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, symbol)))
            self.world, self.double = handle("ompi_mpi_comm_world"), handle("ompi_mpi_double")
            self.ignored = ctypes.c_void_p(0)
        except ValueError:
            self.world, self.double = ctypes.c_int(0x44000000), ctypes.c_int(0x4C00080B)
            self.ignored = ctypes.c_void_p(1)
        self.library.MPI_Init(None, None)
        number = ctypes.c_int()
        self.library.MPI_Comm_rank(self.world, ctypes.byref(number))
        self.rank = number.value

    def exchange(self, value, other):
        sent, got = ctypes.c_double(value), ctypes.c_double()
        one, to, tag = ctypes.c_int(1), ctypes.c_int(other), ctypes.c_int(7)
        code = self.library.MPI_Sendrecv(
            ctypes.byref(sent), one, self.double, to, tag, ctypes.byref(got), one, self.double, to, tag, self.world,
            self.ignored,
        )
        assert code == 0, code
        return got.value

    def end(self):
        self.library.MPI_Finalize()


class ByMpi4py:
    """The same by mpi4py."""

    def __init__(self):
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.rank = self.world.Get_rank()

    def exchange(self, value, other):
        return self.world.sendrecv(value, dest=other, source=other)

    def end(self):
        pass


def _transport():
    try:
        return ByMpi4py()
    except ImportError:
        return Plain()


def rank():
    """One rank: its half of the row, with the neighbour's edge behind its own."""
    mpi = _transport()
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        assert code == 0, f"{name} returned {code}"

    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    call("cuDeviceGet", ctypes.byref(device), mpi.rank % count.value)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"smooth")
    size = CELLS * 8
    blocks = [ctypes.c_uint64(), ctypes.c_uint64()]
    row = (ctypes.c_double * CELLS)(*(((at * 2654435761 + mpi.rank * 97) % 1000) / 8 for at in range(CELLS)))
    for block in blocks:
        call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(size))
        call("cuMemcpyHtoD_v2", block, row, ctypes.c_size_t(size))
    cells = ctypes.c_uint32(CELLS)
    # The last cell of rank 0 and the first of rank 1 belong to the other.
    own, foreign = (CELLS - 2, CELLS - 1) if mpi.rank == 0 else (1, 0)
    edge = ctypes.c_double()
    for step in range(STEPS):
        source, target = blocks[step % 2], blocks[(step + 1) % 2]
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(it) for it in (target, source, cells)))
        call("cuLaunchKernel", function, (CELLS + 127) // 128, 1, 1, 128, 1, 1, 0, None, pointers, None)
        call("cuMemcpyDtoH_v2", ctypes.byref(edge), ctypes.c_uint64(target.value + own * 8), ctypes.c_size_t(8))
        edge.value = mpi.exchange(edge.value, 1 - mpi.rank)
        place = ctypes.c_uint64(target.value + foreign * 8)
        call("cuMemcpyHtoD_v2", place, ctypes.byref(edge), ctypes.c_size_t(8))
    call("cuMemcpyDtoH_v2", row, blocks[STEPS % 2], ctypes.c_size_t(size))
    of_katydid()
    # One write: the ranks' lines meet in one pipe.
    os.write(1, f"rank {mpi.rank} {sum(row).hex()}\n".encode())
    mpi.end()


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        rank()
    else:
        run()
