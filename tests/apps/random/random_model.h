// The random programs' model: the state of each piece of memory, and the effect of each piece of work on it.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "check.h"

// The same numbers for the same seed, in whichever thread (splitmix, 64 bits).
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
    // Returns a number from 0 to `bound` - 1.
    size_t below(size_t bound) { return next() % bound; }
    bool one_in(size_t count) { return below(count) == 0; }
    // Between 1 and `limit`; as often between 1 and 2 as between a million and two.
    size_t size(size_t limit) {
        int bits = 0;
        while (bits < 40 && limit >> (bits + 1)) bits++;
        size_t most = size_t(2) << below(bits + 1);
        return std::min(limit, most / 2 + below(std::max<size_t>(most / 2, 1)));
    }
    void fill(std::vector<uint8_t> &bytes) {
        uint64_t word = 0;
        for (size_t i = 0; i < bytes.size(); i++) {
            if (i % 8 == 0) word = next();
            bytes[i] = uint8_t(word >> i % 8 * 8);
        }
    }
};

// How memory was allocated.
enum class Sort { Plain, Pitched, Ordered, Pooled, Managed, Pinned, Combined, Registered, Mapped, Array, Field, Constants, Pageable, Count };
constexpr int SORTS = int(Sort::Count);
inline const char *const SORT_NAMES[SORTS] = {"plain",  "pitched",    "ordered", "pooled", "managed", "pinned",    "write-combined",
                                              "registered", "mapped", "array", "field",  "constants", "pageable"};

struct Buffer {
    Sort sort;
    size_t size;
    // Contents once all work so far is done.
    std::vector<uint8_t> model;
    CUdeviceptr device = 0;
    uint8_t *host = nullptr;
    CUarray array = nullptr;
    // Of an array: bytes of a row, rows of a plane, planes, bytes of an element. Pitched memory has a pitch too.
    size_t pitch = 0, rows = 0, depth = 1, element = 1;
    CUmemGenericAllocationHandle block = 0;
    size_t module = 0;
    // The lane whose work was the last with it, and which of that lane's; -1: it is at rest.
    int lane = -1;
    uint64_t stamp = 0;
    // Its last work in the hands of another thread: an event to wait for, or what the default stream alone waits for.
    CUevent last = nullptr;
    bool behind_default = false;
    // Graphs that use it.
    int graphs = 0;

    bool is_on_device() const {
        return sort == Sort::Plain || sort == Sort::Pitched || sort == Sort::Ordered || sort == Sort::Pooled || sort == Sort::Mapped;
    }
    // Of the host alone, for the rules about copies between host and host.
    bool is_of_host() const { return host && sort != Sort::Managed; }
    // Kernels are kept from it: where no memory is shared with the device's machine, all of it would travel time and again.
    bool is_heavy() const { return host && size > 64 << 10; }
    bool is_of_module() const { return sort == Sort::Field || sort == Sort::Constants; }
    uint8_t *model_at(size_t at) { return model.data() + at; }
};

enum class What { Copy, Block, Fill, Mix, Struct, Table, Scatter, Constants, Field, Word, Host, Count };
constexpr int WHATS = int(What::Count);
inline const char *const WHAT_NAMES[WHATS] = {"copies", "blocks copied", "fills", "kernels", "kernels by struct", "kernels by table",
                                              "scatters", "kernels of constants", "kernels of fields", "words written", "host functions"};

// One side of a copy: rows of `pitch` bytes, `rows` of them a plane.
struct Side {
    Buffer *of = nullptr;
    size_t at = 0, pitch = 0, rows = 1;
    size_t place(size_t y, size_t z) const { return at + (z * rows + y) * pitch; }
};

// One piece of work: it can be given to a stream, become a node of a graph, and be applied to the model.
struct Work {
    What what;
    Side to, from;
    size_t width = 0, height = 1, depth = 1;
    // The value of a fill, whose elements have `unit` bytes; the salt of a kernel.
    unsigned value = 0, unit = 1;
    // Chooses among equivalent calls.
    unsigned form = 0;
    // Where the table lies of a kernel that has one.
    Side table = {};
    CUfunction function = nullptr;

    bool is_copy() const { return what == What::Copy || what == What::Block; }
    std::vector<Buffer *> buffers() const {
        std::vector<Buffer *> all;
        for (Buffer *one : {to.of, from.of, table.of})
            if (one) all.push_back(one);
        return all;
    }
};

inline void put_value(uint8_t *at, unsigned value, unsigned unit) {
    for (unsigned byte = 0; byte < unit; byte++) at[byte] = uint8_t(value >> 8 * byte);
}

// The effect of a host function, on the model here and on the memory itself there.
inline void stir(uint8_t *bytes, size_t count, unsigned salt) {
    for (size_t i = 0; i < count; i++) bytes[i] = uint8_t(bytes[i] * 7 + salt + i);
}

inline void model_kernel(const Work &work, const uint8_t *from) {
    uint8_t *to = work.to.of->model_at(work.to.at);
    for (size_t i = 0; i < work.width; i++) {
        if (work.what == What::Scatter) {
            uint8_t &byte = to[(i * work.value + 1) % work.width];
            byte = uint8_t(byte * 3 + from[i]);
        } else {
            to[i] = uint8_t(to[i] * 5 + from[i] + work.value + i);
        }
    }
}

inline void model(const Work &work) {
    switch (work.what) {
    case What::Copy:
    case What::Block:
        for (size_t z = 0; z < work.depth; z++)
            for (size_t y = 0; y < work.height; y++)
                memcpy(work.to.of->model_at(work.to.place(y, z)), work.from.of->model_at(work.from.place(y, z)), work.width);
        return;
    case What::Fill:
        for (size_t y = 0; y < work.height; y++)
            for (size_t x = 0; x < work.width; x++)
                put_value(work.to.of->model_at(work.to.place(y, 0) + x * work.unit), work.value, work.unit);
        return;
    case What::Word: return put_value(work.to.of->model_at(work.to.at), work.value, 4);
    case What::Host: return stir(work.to.of->model_at(work.to.at), work.width, work.value);
    case What::Table:
        model_kernel(work, work.from.of->model_at(work.from.at));
        // No address of the table is kept: the table is gone once it was used.
        memset(work.table.of->model_at(work.table.at), int(work.value & 0xff), 24);
        return;
    default: return model_kernel(work, work.from.of->model_at(work.from.at));
    }
}
