// One thread of the random programs: its memory, streams, modules and graphs, and the steps it takes with them.
#pragma once

#include "random_order.h"
#include "steps.h"

struct Module {
    CUmodule module;
    CUfunction functions[WHATS];
};

// Works in the order in which the model does them.
struct Graph {
    std::vector<Work> works;
    CUgraph graph;
    CUgraphExec exec;
    // Of a graph that was captured they are not known.
    std::vector<CUgraphNode> nodes;
};

inline CUfunction function_of(CUmodule module, const char *name) {
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

inline Module functions_of(CUmodule module) {
    Module all = {module, {}};
    const std::pair<What, const char *> names[] = {{What::Mix, "mix"},         {What::Struct, "mix_of_struct"},       {What::Table, "mix_of_table"},
                                                   {What::Scatter, "scatter"}, {What::Constants, "mix_of_constants"}, {What::Field, "mix_of_field"}};
    for (const auto &[what, name] : names) all.functions[int(what)] = function_of(module, name);
    return all;
}

class Slot {
  public:
    Slot(uint64_t seed, int slot) : seed(seed), slot(slot), random{seed * 1000003 + uint64_t(slot)}, order(random) {}

    // Runs once, on any thread.
    void start(const CUstream (&shared)[2]) {
        order.start(shared);
        modules.push_back(functions_of(world.module));
    }

    // Runs on the thread that takes the next steps, before it starts.
    void enter() { OK(cuCtxSetCurrent(world.context)); }
    void leave() {
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        order.put_behind(order.done, OWN_DEFAULT);
    }

    void take_steps(int count);
    // Returns memory that this thread no longer needs, in a state in which another one can have it.
    std::vector<Buffer *> hand_out();
    void adopt(Buffer *buffer) {
        // It comes in the order of a stream that all threads share: as if its last work were this thread's.
        if (buffer->lane >= 0) order.given(buffer->lane, {buffer});
        held += buffer->size;
        buffers.push_back(buffer);
    }
    // Checks and frees everything.
    void finish();

    // Hash of all bytes that were checked.
    uint64_t digest = 0;
    uint64_t counts[WHATS] = {}, made[SORTS] = {}, steps[16] = {};

  private:
    const uint64_t seed;
    const int slot;
    int step = 0;
    Random random;

  public:
    Order order;

  private:
    std::vector<Buffer *> buffers;
    std::vector<Module> modules;
    std::vector<Graph> graphs;
    size_t held = 0;

    int any_lane() { return int(random.below(LANES)); }

    template <class Fits> Buffer *pick(Fits fits, const Buffer *but = nullptr, const Buffer *nor = nullptr) {
        std::vector<Buffer *> all;
        for (Buffer *one : buffers)
            if (one != but && one != nor && fits(*one)) all.push_back(one);
        return all.empty() ? nullptr : all[random.below(all.size())];
    }

    // A place for `width` bytes that are aligned to `unit`.
    Side place(Buffer *buffer, size_t width, size_t unit = 1) {
        return {buffer, random.below((buffer->size - width) / unit + 1) * unit, 0, 1};
    }

    bool propose(Work &work, bool in_graph);
    bool propose_copy(Work &work, bool in_graph);
    bool propose_block(Work &work, bool in_graph);
    bool propose_fill(Work &work, bool in_graph);
    bool may_have(const Buffer &one, bool in_graph) const;
    bool is_reached(const Buffer &one) const;
    bool propose_kernel(Work &work);
    bool propose_of_module(Work &work);
    bool propose_word(Work &work);
    bool propose_host(Work &work);
    bool box(Side &side, size_t width, size_t height, size_t depth);

    void give(const Work &work, int lane);
    void tell(const Work &work, const char *how, int lane) const;
    void after_copy(const Work &work, int lane, bool waits);
    void check(const Buffer &buffer, size_t at, const uint8_t *got, size_t size, const char *how);

    void step_work();
    void step_batch();
    void step_make();
    void make_one(Sort sort, size_t size);
    void step_free();
    void free_one(Buffer *buffer);
    void step_churn();
    void step_touch();
    void step_look();
    void look(Buffer *buffer, size_t at, size_t size);
    void look_at_array(Buffer *buffer);
    void step_graph();
    void new_graph();
    void capture(Graph &graph);
    void build(Graph &graph);
    void change(Work &work);
    void change_graph(Graph &graph);
    void launch(const Graph &graph);
    void end_graph(size_t index);
    void step_renew();
    void step_elapsed();
    void step_context();
    void step_module();
    void load_module();
    void unload_module();
    void step_prefetch();
};
