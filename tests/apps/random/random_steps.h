// The steps of a thread of the random programs.
#pragma once

#include "random_thread.h"

constexpr size_t KERNEL_BYTES = 32768, HELD = 64 << 20;

// Whether memory can be part of a graph, and of a kernel.
inline bool Slot::may_have(const Buffer &one, bool in_graph) const { return !in_graph || one.sort != Sort::Pageable; }
inline bool Slot::is_reached(const Buffer &one) const { return one.device && !one.is_heavy(); }

inline bool Slot::propose(Work &work, bool in_graph) {
    work.form = unsigned(random.below(1 << 16));
    work.value = unsigned(random.next());
    switch (random.below(in_graph ? 12 : 14)) {
    case 0:
    case 1:
    case 2: return propose_copy(work, in_graph);
    case 3:
    case 4: return propose_block(work, in_graph);
    case 5:
    case 6: return propose_fill(work, in_graph);
    case 7:
    case 8:
    case 9: return propose_kernel(work);
    case 10: return propose_of_module(work);
    case 11: return propose_host(work);
    case 12: return propose_word(work);
    default:
        work.what = What::Table;
        work.table.of = pick([](const Buffer &one) { return one.is_on_device() && one.size >= 32; });
        if (!work.table.of) return false;
        work.table = place(work.table.of, 24, 8);
        return propose_kernel(work);
    }
}

inline bool Slot::propose_copy(Work &work, bool in_graph) {
    work.what = What::Copy;
    auto fits = [&](const Buffer &one) { return !one.array && may_have(one, in_graph); };
    Buffer *to = pick(fits), *from = pick(fits, to);
    if (!to || !from) return false;
    work.width = random.size(std::min(to->size, from->size));
    work.to = place(to, work.width);
    work.from = place(from, work.width);
    return true;
}

// Puts a box of bytes somewhere into one side, with gaps between rows and planes; false if it does not fit.
inline bool Slot::box(Side &side, size_t width, size_t height, size_t depth) {
    const Buffer &of = *side.of;
    if (of.array) {
        if (width > of.pitch || height > of.rows || depth > of.depth) return false;
        size_t x = random.below((of.pitch - width) / of.element + 1) * of.element;
        size_t y = random.below(of.rows - height + 1), z = random.below(of.depth - depth + 1);
        side = {side.of, (z * of.rows + y) * of.pitch + x, of.pitch, of.rows};
        return true;
    }
    size_t pitch = width + (random.one_in(3) ? 0 : random.size(200)), rows = height + random.below(3);
    size_t whole = ((depth - 1) * rows + height - 1) * pitch + width;
    if (whole > of.size) return false;
    side = {side.of, random.below(of.size - whole + 1), pitch, rows};
    return true;
}

inline bool Slot::propose_block(Work &work, bool in_graph) {
    work.what = What::Block;
    // softcuda's graphs have no copies of arrays.
    auto fits = [&](const Buffer &one) { return may_have(one, in_graph) && !(in_graph && one.array); };
    Buffer *to = pick(fits), *from = pick(fits, to);
    if (!to || !from || (to->array && from->array && to->element != from->element)) return false;
    size_t element = std::max(to->element, from->element), least = std::min(to->size, from->size);
    for (int attempt = 0; attempt < 8; attempt++) {
        size_t widest = std::min({least, to->array ? to->pitch : least, from->array ? from->pitch : least});
        work.width = random.size(std::max<size_t>(widest / element, 1)) * element;
        work.height = random.size(std::max<size_t>(least / work.width, 1));
        work.depth = random.one_in(2) ? 1 : random.size(8);
        work.height = std::max<size_t>(work.height / work.depth, 1);
        work.to = {to};
        work.from = {from};
        if (box(work.to, work.width, work.height, work.depth) && box(work.from, work.width, work.height, work.depth)) return true;
    }
    return false;
}

inline bool Slot::propose_fill(Work &work, bool in_graph) {
    work.what = What::Fill;
    work.unit = 1u << random.below(3);
    Buffer *to = pick([&](const Buffer &one) { return one.device && one.size >= work.unit && may_have(one, in_graph); });
    if (!to) return false;
    size_t most = to->size / work.unit;
    work.width = random.size(most);
    work.to = place(to, work.width * work.unit, work.unit);
    work.to.pitch = work.width * work.unit;
    size_t room = to->size - work.to.at;
    if (random.one_in(2) || room / work.to.pitch < 2) return true;
    work.to.pitch += random.below(60) * work.unit;
    work.height = std::max<size_t>(random.size(std::max<size_t>(room / work.to.pitch, 1)), 1);
    return true;
}

// Of what is set already when it is a kernel with a table.
inline bool Slot::propose_kernel(Work &work) {
    bool has_table = work.table.of != nullptr;
    const What whats[] = {What::Mix, What::Struct, What::Scatter};
    if (!has_table) work.what = whats[random.below(3)];
    // Where no memory is shared, kernels reach the host's only by their parameters.
    auto reaches = [&](const Buffer &one) { return is_reached(one) && !(has_table && one.is_of_host()); };
    Buffer *to = pick([&](const Buffer &one) { return reaches(one) && one.sort != Sort::Constants; }, work.table.of);
    Buffer *from = pick(reaches, to, work.table.of);
    if (!to || !from) return false;
    work.width = random.size(std::min({to->size, from->size, KERNEL_BYTES}));
    if (work.what == What::Scatter) {
        while (work.width & (work.width - 1)) work.width &= work.width - 1;
        work.value = (work.value & 0xffff) | 1;
    }
    work.to = place(to, work.width);
    work.from = place(from, work.width);
    work.function = modules[random.below(modules.size())].functions[int(work.what)];
    return true;
}

inline bool Slot::propose_of_module(Work &work) {
    Buffer *from = pick([](const Buffer &one) { return one.is_of_module(); });
    Buffer *to = pick([&](const Buffer &one) { return is_reached(one) && one.sort != Sort::Constants; }, from);
    if (!to || !from) return false;
    work.what = from->sort == Sort::Field ? What::Field : What::Constants;
    work.width = random.size(std::min({to->size, from->size, KERNEL_BYTES}));
    work.to = place(to, work.width);
    work.from = {from};
    work.function = modules[from->module].functions[int(work.what)];
    return true;
}

inline bool Slot::propose_word(Work &work) {
    work.what = What::Word;
    Buffer *to = pick([](const Buffer &one) { return one.sort == Sort::Plain && one.size >= 4; });
    if (!to) return false;
    work.width = 4;
    work.to = place(to, 4, 4);
    return true;
}

inline bool Slot::propose_host(Work &work) {
    work.what = What::Host;
    Buffer *to = pick([](const Buffer &one) { return one.host && !one.is_heavy() && one.sort != Sort::Combined && one.sort != Sort::Pageable; });
    if (!to) return false;
    work.width = random.size(to->size);
    work.to = place(to, work.width);
    return true;
}

// With RANDOM_CALLS_TRACE in the environment each step is told on standard error.
inline void Slot::tell(const Work &work, const char *how, int lane) const {
    static const bool is_told = getenv("RANDOM_CALLS_TRACE") != nullptr;
    if (!is_told) return;
    fprintf(stderr, "%d.%d %s lane %d: %s %zux%zux%zu", slot, step, how, lane, WHAT_NAMES[int(work.what)], work.width, work.height, work.depth);
    for (const Side *side : {&work.to, &work.from, &work.table})
        if (side->of) fprintf(stderr, ", %s %zx at %zu of %zu", SORT_NAMES[int(side->of->sort)], size_t(address(*side) - side->at), side->at, side->of->size);
    fprintf(stderr, ", form %x value %x\n", work.form, work.value);
}

// Gives work to a lane once it may touch all of its memory there.
inline void Slot::give(const Work &work, int lane) {
    bool is_joined = work.what != What::Host && work.what != What::Word;
    bool of_host = work.is_copy() && work.to.of->is_of_host() && work.from.of->is_of_host();
    bool waits = lane == DEFAULT && (work.is_copy() || work.what == What::Fill) && random.one_in(2);
    for (Buffer *buffer : work.buffers()) {
        if (of_host) order.settle(*buffer);
        else order.order(lane, *buffer, is_joined);
    }
    tell(work, waits ? "waits" : "gives", lane);
    issue(work, order.stream(lane), waits, false);
    order.given(lane, work.buffers());
    model(work);
    counts[int(work.what)]++;
    if (work.is_copy()) after_copy(work, lane, waits);
}

// Records what is known to be done once a copy returns, by "API synchronization behavior" of the driver's manual.
inline void Slot::after_copy(const Work &work, int lane, bool waits) {
    Buffer &to = *work.to.of, &from = *work.from.of;
    // Blocks may name memory of the host as the device's.
    bool is_told_to_host = to.sort == Sort::Pageable || (waits && work.what == What::Copy && to.is_of_host());
    if (is_told_to_host && from.is_on_device()) order.put_behind(order.done, lane);
    else if (from.sort == Sort::Pageable && to.is_on_device()) from.lane = -1;
}

inline void Slot::check(const Buffer &buffer, size_t at, const uint8_t *got, size_t size, const char *how) {
    for (size_t i = 0; i < size; i++) digest = (digest ^ got[i]) * 0x100000001b3ull;
    if (memcmp(got, buffer.model.data() + at, size) == 0) return;
    size_t first = 0, wrong = 0;
    for (size_t i = size; i-- > 0;) {
        if (got[i] == buffer.model[at + i]) continue;
        wrong++;
        first = i;
    }
    CHECK(false, "seed %llu, thread %d, step %d, %s: %s memory of %zu bytes, %zu at %zu: %zu wrong, the first at %zu: %02x, not %02x",
          (unsigned long long)seed, slot, step, how, SORT_NAMES[int(buffer.sort)], buffer.size, size, at, wrong, at + first, got[first],
          buffer.model[at + first]);
    fflush(stdout);
    _Exit(1);
}

inline void Slot::step_work() {
    Work work = {};
    if (propose(work, false)) give(work, any_lane());
}

inline void Slot::step_batch() {
    std::vector<Work> all;
    std::vector<Buffer *> touched;
    int lane = SHARED + int(random.below(LANES - SHARED));
    for (size_t wanted = 1 + random.below(4); wanted-- > 0;) {
        Work work = {};
        if (!propose_copy(work, false) || (work.to.of->is_of_host() && work.from.of->is_of_host())) continue;
        bool is_apart = true;
        for (Buffer *buffer : work.buffers()) is_apart &= std::find(touched.begin(), touched.end(), buffer) == touched.end();
        if (!is_apart) continue;
        for (Buffer *buffer : work.buffers()) touched.push_back(buffer);
        all.push_back(work);
    }
    if (all.empty()) return;
    for (Buffer *buffer : touched) order.order(lane, *buffer, false);
    issue_batch(all, order.stream(lane));
    order.given(lane, touched);
    for (const Work &work : all) {
        tell(work, "batch", lane);
        model(work);
        if (work.from.of->sort == Sort::Pageable) work.from.of->lane = -1;
    }
}

// Memory with random bytes in it.
inline void Slot::make_one(Sort sort, size_t size) {
    int lane = any_lane();
    Buffer *buffer = make(random, sort, size, order.stream(lane));
    if (sort == Sort::Ordered || sort == Sort::Pooled) order.given(lane, {buffer});
    made[int(sort)]++;
    held += buffer->size;
    buffers.push_back(buffer);
    std::vector<uint8_t> bytes(buffer->size);
    random.fill(bytes);
    if (buffer->host && random.one_in(2)) {
        memcpy(buffer->host, bytes.data(), bytes.size());
        buffer->model = bytes;
        return;
    }
    Buffer source = {Sort::Pageable, buffer->size, bytes};
    source.host = bytes.data();
    Work copy = {buffer->array ? What::Block : What::Copy, {buffer}, {&source}, buffer->size};
    copy.form = unsigned(random.below(1 << 16));
    if (buffer->array) {
        copy.width = buffer->pitch;
        copy.height = buffer->rows;
        copy.depth = buffer->depth;
        copy.to = {buffer, 0, buffer->pitch, buffer->rows};
        copy.from = {&source, 0, buffer->pitch, buffer->rows};
    }
    give(copy, any_lane());
    order.settle(source);
}

inline void Slot::step_make() {
    const Sort sorts[] = {Sort::Plain,   Sort::Plain,    Sort::Plain,      Sort::Pitched, Sort::Ordered, Sort::Ordered,  Sort::Pooled,  Sort::Managed,
                          Sort::Pinned, Sort::Pinned, Sort::Combined, Sort::Registered, Sort::Mapped,  Sort::Array,   Sort::Array, Sort::Pageable, Sort::Pageable};
    Sort sort = sorts[random.below(sizeof sorts / sizeof *sorts)];
    size_t size = random.size(sort == Sort::Managed ? 16 << 10 : LARGEST);
    if (held + size < HELD) make_one(sort, size);
}

inline void Slot::free_one(Buffer *buffer) {
    // What was allocated without a stream is waited for by what frees it.
    bool waits_itself = (buffer->sort == Sort::Plain || buffer->sort == Sort::Pitched) && !buffer->last && !buffer->behind_default;
    int lane = any_lane();
    if (buffer->sort == Sort::Ordered || buffer->sort == Sort::Pooled) {
        order.order(lane, *buffer, false);
        order.given(lane, {buffer});
    } else if (!waits_itself || random.one_in(2)) {
        order.settle(*buffer);
    }
    held -= buffer->size;
    buffers.erase(std::find(buffers.begin(), buffers.end(), buffer));
    give_back(buffer, order.stream(lane));
}

inline void Slot::step_free() {
    Buffer *buffer = pick([](const Buffer &one) { return !one.graphs && !one.is_of_module(); });
    if (buffer) free_one(buffer);
}

// Memory goes, and as much of its kind comes at once: most likely in the same place.
inline void Slot::step_churn() {
    Buffer *buffer = pick([](const Buffer &one) { return !one.graphs && !one.is_of_module(); });
    if (!buffer) return;
    Sort sort = buffer->sort;
    size_t size = buffer->size;
    free_one(buffer);
    make_one(sort, std::min(size, LARGEST));
}

// The program reads and writes memory without any call.
inline void Slot::step_touch() {
    Buffer *buffer = pick([](const Buffer &one) { return one.host && one.sort != Sort::Combined; });
    if (!buffer) return;
    order.settle(*buffer);
    size_t size = random.size(buffer->size), at = place(buffer, size).at;
    check(*buffer, at, buffer->host + at, size, "looked at");
    size = random.size(std::min<size_t>(buffer->size, 1 << 20));
    at = place(buffer, size).at;
    unsigned salt = unsigned(random.next());
    tell({What::Host, {buffer, at}, {}, size}, "touches", -1);
    stir(buffer->host + at, size, salt);
    stir(buffer->model_at(at), size, salt);
}

inline void Slot::look(Buffer *buffer, size_t at, size_t size) {
    if (buffer->array) return look_at_array(buffer);
    if (buffer->host) {
        order.settle(*buffer);
        return check(*buffer, at, buffer->host + at, size, "read");
    }
    std::vector<uint8_t> got(size);
    Buffer target = {Sort::Pageable, size, std::vector<uint8_t>(size)};
    target.host = got.data();
    Work copy = {What::Copy, {&target}, {buffer, at}, size};
    copy.form = unsigned(random.below(1 << 16));
    give(copy, any_lane());
    order.settle(target);
    check(*buffer, at, got.data(), size, "copied");
}

inline void Slot::look_at_array(Buffer *buffer) {
    std::vector<uint8_t> got(buffer->size);
    Buffer target = {Sort::Pageable, buffer->size, std::vector<uint8_t>(buffer->size)};
    target.host = got.data();
    Work copy = {What::Block, {&target, 0, buffer->pitch, buffer->rows}, {buffer, 0, buffer->pitch, buffer->rows}, buffer->pitch};
    copy.height = buffer->rows;
    copy.depth = buffer->depth;
    give(copy, any_lane());
    order.settle(target);
    check(*buffer, 0, got.data(), buffer->size, "copied");
}

inline void Slot::step_look() {
    Buffer *buffer = pick([](const Buffer &) { return true; });
    if (!buffer) return;
    size_t size = random.size(buffer->size);
    look(buffer, place(buffer, size).at, size);
}

inline void Slot::step_renew() { order.renew(FIRST_OWN + int(random.below(LANES - FIRST_OWN))); }

inline void Slot::step_elapsed() {
    int lane = any_lane();
    CUevent first, last;
    float time = -1;
    OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&last, CU_EVENT_BLOCKING_SYNC));
    CUstream stream = order.stream(lane);
    OK(cuEventRecord(first, stream));
    Work work = {};
    if (propose(work, false)) give(work, lane);
    OK(cuEventRecord(last, stream));
    OK(cuEventSynchronize(last));
    order.put_behind(order.done, lane);
    EXPECT(CUDA_SUCCESS, cuEventQuery(first));
    OK(cuEventElapsedTime(&time, first, last));
    CHECK(time >= 0, "%f ms", time);
    OK(cuEventDestroy(first));
    OK(cuEventDestroy(last));
}

inline void Slot::step_context() {
    CUcontext current = nullptr;
    OK(cuCtxPushCurrent(world.context));
    step_work();
    OK(cuCtxPopCurrent(&current));
    CHECK(current == world.context, "another context was current");
    if (random.below(20)) return;
    // Another context, with memory and a stream of its own, that ends with them.
    CUcontext other;
    CUdeviceptr memory;
    CUstream stream;
    uint8_t got[1000] = {};
    OK(cuCtxCreate(&other, nullptr, 0, world.device));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&memory, sizeof got));
    OK(cuMemsetD8Async(memory, 7, sizeof got, stream));
    OK(cuMemcpyDtoHAsync(got, memory, sizeof got, stream));
    OK(cuCtxSynchronize());
    CHECK(got[0] == 7 && got[999] == 7, "%d and %d", got[0], got[999]);
    OK(cuCtxDestroy(other));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == world.context, "another context is current");
}

inline void Slot::load_module() {
    CUmodule module;
    OK(cuModuleLoadData(&module, RANDOM_PTX));
    modules.push_back(functions_of(module));
    const std::pair<Sort, const char *> variables[] = {{Sort::Field, "field"}, {Sort::Constants, "constants"}};
    for (const auto &[sort, name] : variables) {
        Buffer *buffer = new Buffer{sort, 0, {}};
        OK(cuModuleGetGlobal(&buffer->device, &buffer->size, module, name));
        CHECK(buffer->size == (sort == Sort::Field ? FIELD_BYTES : CONSTANT_BYTES), "%s has %zu bytes", name, buffer->size);
        buffer->model.resize(buffer->size);
        buffer->module = modules.size() - 1;
        buffers.push_back(buffer);
        made[int(sort)]++;
    }
}

inline void Slot::unload_module() {
    for (int lane = 0; lane < LANES; lane++) order.wait_for_lane(lane);
    for (size_t i = buffers.size(); i-- > 0;) {
        if (!buffers[i]->is_of_module()) continue;
        look(buffers[i], 0, buffers[i]->size);
        delete buffers[i];
        buffers.erase(buffers.begin() + long(i));
    }
    OK(cuModuleUnload(modules.back().module));
    modules.pop_back();
}

inline void Slot::step_module() {
    if (modules.size() == 1) load_module();
    else if (graphs.empty()) unload_module();
}

inline void Slot::step_prefetch() {
    Buffer *buffer = pick([](const Buffer &one) { return one.sort == Sort::Managed; });
    if (!buffer) return;
    int lane = any_lane();
    CUmemLocation where = {random.one_in(2) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, 0};
    order.order(lane, *buffer, false);
    OK(cuMemPrefetchAsync(buffer->device, buffer->size, where, 0, order.stream(lane)));
    order.given(lane, {buffer});
}

inline void Slot::take_steps(int count) {
    using Step = void (Slot::*)();
    const std::pair<int, Step> choices[] = {
        {40, &Slot::step_work},  {4, &Slot::step_batch},   {8, &Slot::step_make},  {3, &Slot::step_free},   {3, &Slot::step_churn},
        {6, &Slot::step_touch},  {6, &Slot::step_look},    {14, &Slot::step_graph}, {2, &Slot::step_renew}, {2, &Slot::step_elapsed},
        {2, &Slot::step_context}, {2, &Slot::step_module}, {1, &Slot::step_prefetch}};
    while (count-- > 0) {
        int at = int(random.below(93)), choice = 0;
        step++;
        while (at >= choices[choice].first) at -= choices[choice++].first;
        steps[choice]++;
        (this->*choices[choice].second)();
    }
}

inline std::vector<Buffer *> Slot::hand_out() {
    std::vector<Buffer *> out;
    for (size_t i = buffers.size(); i-- > 0;) {
        Buffer &buffer = *buffers[i];
        if (buffer.graphs || buffer.is_of_module() || random.below(3)) continue;
        if (!buffer.last && !buffer.behind_default && !order.is_at_rest(buffer)) {
            bool is_shared = buffer.lane == DEFAULT || buffer.lane == SHARED || buffer.lane == SHARED + 1;
            if (is_shared && random.one_in(2)) {
                // Its next user finds it in the order of that stream.
                out.push_back(&buffer);
            } else if (order.lanes[buffer.lane].blocks && random.one_in(2)) {
                buffer.behind_default = true;
                buffer.lane = -1;
            } else {
                buffer.last = order.record(buffer.lane);
                buffer.lane = -1;
            }
        } else {
            buffer.lane = -1;
        }
        if (out.empty() || out.back() != &buffer) out.push_back(&buffer);
        held -= buffer.size;
        buffers.erase(buffers.begin() + long(i));
    }
    return out;
}

inline void Slot::finish() {
    while (!graphs.empty()) end_graph(graphs.size() - 1);
    while (modules.size() > 1) unload_module();
    while (!buffers.empty()) {
        look(buffers.back(), 0, buffers.back()->size);
        free_one(buffers.back());
    }
    for (int lane = 0; lane < LANES; lane++) order.wait_for_lane(lane);
    order.finish();
}
