// Irregular work: breadth-first search with queues, a sparse product with a warp per row, a hash table filled by
// compare and swap, and persistent threads that fetch tasks which create further tasks.
#include "buffer.h"

#include <algorithm>
#include <map>

struct Graph {
    std::vector<int> starts, targets;
};

static Graph random_graph(int nodes, Numbers &numbers) {
    Graph graph;
    for (int node = 0; node < nodes; node++) {
        graph.starts.push_back(int(graph.targets.size()));
        for (unsigned edge = numbers.below(7); edge > 0; edge--) graph.targets.push_back(int(numbers.below(unsigned(nodes))));
    }
    graph.starts.push_back(int(graph.targets.size()));
    return graph;
}

__global__ void expand(const int *starts, const int *targets, int *levels, const int *queue, int queued, int *next, int *count, int level) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= queued) return;
    for (int edge = starts[queue[i]]; edge < starts[queue[i] + 1]; edge++)
        if (atomicCAS(&levels[targets[edge]], -1, level) == -1) next[atomicAdd(count, 1)] = targets[edge];
}

static int search(const Graph &graph, int nodes) {
    Buffer<int> starts(graph.starts), targets(graph.targets), levels(std::vector<int>(nodes, -1)), a(nodes), b(nodes), count(1);
    std::vector<int> wanted(nodes, -1), queue = {0};
    a.write({0}), levels.write({0});
    int queued = 1, level = 0;
    for (int *from = a, *to = b; queued > 0; std::swap(from, to)) {
        level++;
        OK(cudaMemset(count, 0, sizeof(int)));
        expand<<<(queued + 63) / 64, 64>>>(starts, targets, levels, from, queued, to, count, level);
        RAN();
        queued = count.read()[0];
    }
    wanted[0] = 0;
    for (size_t at = 0; at < queue.size(); at++)
        for (int edge = graph.starts[queue[at]]; edge < graph.starts[queue[at] + 1]; edge++) {
            int node = graph.targets[edge];
            if (wanted[node] >= 0) continue;
            wanted[node] = wanted[queue[at]] + 1;
            queue.push_back(node);
        }
    CHECK(levels.read() == wanted, "levels of the search");
    return level;
}

__global__ void multiply(const int *starts, const int *columns, const float *vector, float *out, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int i = starts[row] + lane; i < starts[row + 1]; i += 32) sum += vector[columns[i]] * 2;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0) out[row] = sum;
}

constexpr unsigned SLOTS = 1024, FREE = 0xffffffffu;

__global__ void count_words(const unsigned *words, int n, unsigned *keys, unsigned *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned slot = words[i] * 2654435761u % SLOTS;
    for (;; slot = (slot + 1) % SLOTS) {
        unsigned old = atomicCAS(&keys[slot], FREE, words[i]);
        if (old == FREE || old == words[i]) break;
    }
    atomicAdd(&counts[slot], 1);
}

// A task n creates two of n/2; each thread goes on until none is left. Counts all tasks.
__global__ void work(int *queue, int *ends, int *pending, int *done) {
    while (atomicAdd(pending, 0) > 0) {
        int at = atomicAdd(&ends[0], 0);
        if (at >= atomicAdd(&ends[1], 0) || atomicCAS(&ends[0], at, at + 1) != at) continue;
        int task;
        while ((task = atomicExch(&queue[at], 0)) == 0) {}
        atomicAdd(done, 1);
        if (task > 1) {
            atomicAdd(pending, 2);
            int to = atomicAdd(&ends[1], 2);
            atomicExch(&queue[to], task / 2), atomicExch(&queue[to + 1], task / 2);
        }
        atomicSub(pending, 1);
    }
}

int main() {
    const int nodes = 600, n = 3000;
    Numbers numbers(404);
    Graph graph = random_graph(nodes, numbers);
    int levels = search(graph, nodes);
    std::vector<float> vector(nodes);
    for (int i = 0; i < nodes; i++) vector[i] = float(i % 50);
    Buffer<int> starts(graph.starts), columns(graph.targets);
    Buffer<float> device_vector(vector), product(nodes);
    multiply<<<nodes / 4, 128>>>(starts, columns, device_vector, product, nodes);
    RAN();
    std::vector<float> p = product.read();
    for (int row = 0; row < nodes; row++) {
        float sum = 0;
        for (int i = graph.starts[row]; i < graph.starts[row + 1]; i++) sum += vector[graph.targets[i]] * 2;
        CHECK_QUIETLY(p[row] == sum, "row %d: %g, wanted %g", row, p[row], sum);
    }
    std::vector<unsigned> words(n);
    std::map<unsigned, unsigned> wanted;
    for (unsigned &word : words) wanted[word = numbers.below(500)]++;
    Buffer<unsigned> device_words(words), keys(std::vector<unsigned>(SLOTS, FREE)), counts(SLOTS);
    count_words<<<(n + 127) / 128, 128>>>(device_words, n, keys, counts);
    RAN();
    std::vector<unsigned> k = keys.read(), c = counts.read();
    size_t distinct = 0;
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        if (k[slot] == FREE) continue;
        distinct++;
        CHECK_QUIETLY(wanted[k[slot]] == c[slot], "%u occurs %u times", k[slot], c[slot]);
    }
    CHECK(distinct == wanted.size(), "%zu distinct words", distinct);
    Buffer<int> queue(std::vector<int>(4096, 0)), ends(std::vector<int>{0, 1}), pending(std::vector<int>{1}), done(1);
    queue.write({300});
    work<<<2, 32>>>(queue, ends, pending, done);
    RAN();
    CHECK(done.read()[0] == 511, "%d tasks", done.read()[0]);
    printf("%d nodes in %d levels, %zu distinct words, %d tasks\n", nodes, levels, distinct, done.read()[0]);
    return finish("graph_search");
}
