// Graphs of the random programs: captured or built, launched again and again, changed between pending launches.
#pragma once

#include "random_steps.h"

inline void Slot::step_graph() {
    size_t way = random.below(10);
    if (graphs.empty() || (way == 0 && graphs.size() < 4)) return new_graph();
    size_t index = random.below(graphs.size());
    if (way < 7) launch(graphs[index]);
    else if (way < 9) change_graph(graphs[index]);
    else end_graph(index);
}

inline void Slot::new_graph() {
    Graph made = {};
    for (size_t wanted = 1 + random.below(6); wanted-- > 0;) {
        Work work = {};
        if (!propose(work, true)) continue;
        bool of_host = work.is_copy() && work.to.of->is_of_host() && work.from.of->is_of_host();
        if (!of_host) made.works.push_back(work);
    }
    if (made.works.empty()) return;
    if (random.one_in(2)) capture(made);
    else build(made);
    if (random.one_in(2)) OK(cuGraphInstantiate(&made.exec, made.graph, 0));
    else OK(cuGraphInstantiateWithFlags(&made.exec, made.graph, 0));
    for (const Work &work : made.works)
        for (Buffer *buffer : work.buffers()) buffer->graphs++;
    graphs.push_back(made);
    launch(graphs.back());
}

inline void Slot::capture(Graph &made) {
    std::shared_lock<std::shared_mutex> held(world.capture);
    CUstream stream = order.lanes[CAPTURED].stream;
    made.nodes.clear();
    OK(cuStreamBeginCapture(stream, random.one_in(2) ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED));
    for (const Work &work : made.works) issue(work, stream, false, true);
    OK(cuStreamEndCapture(stream, &made.graph));
}

// Each work comes after earlier ones that touch the same memory, and after no other.
inline void Slot::build(Graph &made) {
    made.nodes.clear();
    OK(cuGraphCreate(&made.graph, 0));
    for (size_t i = 0; i < made.works.size(); i++) {
        std::vector<CUgraphNode> before;
        std::vector<Buffer *> mine = made.works[i].buffers();
        for (size_t j = 0; j < i; j++) {
            bool meets = false;
            for (Buffer *buffer : made.works[j].buffers()) meets |= std::find(mine.begin(), mine.end(), buffer) != mine.end();
            if (meets) before.push_back(made.nodes[j]);
        }
        made.nodes.push_back(add_node(made.graph, before, made.works[i]));
    }
}

// The same work on the same memory, otherwise.
inline void Slot::change(Work &work) {
    work.value = unsigned(random.next());
    if (work.what == What::Scatter) work.value = (work.value & 0xffff) | 1;
    if (work.what != What::Copy) return;
    work.to = place(work.to.of, work.width);
    work.from = place(work.from.of, work.width);
}

inline void Slot::change_graph(Graph &graph) {
    if (!graph.nodes.empty() && random.one_in(2)) {
        size_t index = random.below(graph.works.size());
        Work &work = graph.works[index];
        if (work.what == What::Block || work.height > 1) return;
        change(work);
        set_node(graph.exec, graph.nodes[index], work);
        return launch(graph);
    }
    bool is_built = !graph.nodes.empty();
    Graph other = graph;
    CUgraphExecUpdateResultInfo info = {};
    for (Work &work : other.works)
        if (work.what != What::Block && work.height == 1) change(work);
    if (is_built) build(other);
    else capture(other);
    for (const Work &work : other.works) tell(work, is_built ? "updates, built," : "updates, captured,", -1);
    OK(cuGraphExecUpdate(graph.exec, other.graph, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "result %d", info.result);
    OK(cuGraphDestroy(graph.graph));
    // Nodes of the graph that it was made of are named where it is changed.
    if (is_built) {
        OK(cuGraphExecDestroy(graph.exec));
        OK(cuGraphInstantiate(&other.exec, other.graph, 0));
    }
    graph = other;
    launch(graph);
}

inline void Slot::launch(const Graph &graph) {
    int lane = any_lane();
    std::vector<Buffer *> touched;
    for (const Work &work : graph.works)
        for (Buffer *buffer : work.buffers()) touched.push_back(buffer);
    for (Buffer *buffer : touched) order.order(lane, *buffer, false);
    OK(cuGraphLaunch(graph.exec, order.stream(lane)));
    order.given(lane, touched);
    for (const Work &work : graph.works) {
        tell(work, "launches", lane);
        model(work);
    }
    counts[int(graph.works[0].what)]++;
}

// The graph may still be running.
inline void Slot::end_graph(size_t index) {
    Graph &graph = graphs[index];
    OK(cuGraphExecDestroy(graph.exec));
    OK(cuGraphDestroy(graph.graph));
    for (const Work &work : graph.works)
        for (Buffer *buffer : work.buffers()) buffer->graphs--;
    graphs.erase(graphs.begin() + long(index));
}
