// A program that prefers to write through io_uring, as libuv does, and keeps a ring over all steps where it gets one. Its
// results go through a file, by the ring or by a system call.
#include <cuda.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "first_device.h"
#include "steps.h"

constexpr size_t WORDS = 1 << 14, BYTES = 4 * WORDS;

// A ring that does one write at a time.
class Ring {
public:
    Ring() {
        io_uring_params made = {};
        number = int(syscall(SYS_io_uring_setup, 1, &made));
        if (number < 0) return;
        submitted = mapped(IORING_OFF_SQ_RING, made.sq_off.array + made.sq_entries * sizeof(unsigned));
        completed = mapped(IORING_OFF_CQ_RING, made.cq_off.cqes + made.cq_entries * sizeof(io_uring_cqe));
        entry = reinterpret_cast<io_uring_sqe *>(mapped(IORING_OFF_SQES, made.sq_entries * sizeof(io_uring_sqe)));
        offsets = made;
    }
    bool is_there() const { return number >= 0; }

    void write(int file, const void *data, size_t size) {
        *entry = {};
        entry->opcode = IORING_OP_WRITE;
        entry->fd = file;
        entry->addr = reinterpret_cast<uint64_t>(data);
        entry->len = unsigned(size);
        *word(submitted, offsets.sq_off.array) = 0;
        reinterpret_cast<std::atomic<unsigned> *>(word(submitted, offsets.sq_off.tail))->fetch_add(1);
        const long entered = syscall(SYS_io_uring_enter, number, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
        CHECK(entered == 1, "%ld", entered);
        const unsigned head = *word(completed, offsets.cq_off.head), mask = *word(completed, offsets.cq_off.ring_mask);
        const io_uring_cqe *all = reinterpret_cast<const io_uring_cqe *>(completed + offsets.cq_off.cqes);
        CHECK(all[head & mask].res == int(size), "%d of %zu bytes", all[head & mask].res, size);
        reinterpret_cast<std::atomic<unsigned> *>(word(completed, offsets.cq_off.head))->store(head + 1);
    }

private:
    int number;
    char *submitted, *completed;
    io_uring_sqe *entry;
    io_uring_params offsets;

    char *mapped(off_t part, size_t size) const {
        void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, number, part);
        OK(at == MAP_FAILED);
        return static_cast<char *>(at);
    }
    static unsigned *word(char *start, unsigned offset) { return reinterpret_cast<unsigned *>(start + offset); }
};

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 12);
    CUdevice device;
    CUcontext context;
    CUdeviceptr values;
    begin_on_first(&device, &context);
    OK(cuMemAlloc(&values, BYTES));
    OK(cuMemsetD32(values, 1, WORDS));
    Ring ring;
    const int file = memfd_create("written", 0);
    std::vector<uint32_t> computed(WORDS), read(WORDS);
    for (int step = 1; step <= steps; step++) {
        OK(cuMemsetD32(values + 4 * size_t(step), unsigned(step), WORDS / 2));
        OK(cuMemcpyDtoD(values + BYTES / 2, values, BYTES / 2));
        OK(cuMemcpyDtoH(computed.data(), values, BYTES));
        if (ring.is_there()) ring.write(file, computed.data(), BYTES);
        else CHECK(pwrite(file, computed.data(), BYTES, 0) == ssize_t(BYTES), "not all was written");
        CHECK(pread(file, read.data(), BYTES, 0) == ssize_t(BYTES), "not all was read");
        Checksum sum;
        sum.bytes(read.data(), BYTES);
        told(step, sum);
    }
    OK(cuMemFree(values));
    return finish("kept_rings");
}
