// Device memory full of pointers: a list that every step extends, shortens and walks, objects with virtual functions
// made on the device, and function pointers that a kernel stored there.
#include "steps.h"

#include <vector>

struct Node {
    Node *next;
    Node *far;
    unsigned value;
};

// The list's two ends, in device memory themselves.
struct List {
    Node *first;
    Node *last;
    unsigned length;
};

struct Cell {
    unsigned state;
    __device__ explicit Cell(unsigned start) : state(start) {}
    __device__ virtual unsigned turn(unsigned by) { return state += by; }
};

struct Doubled : Cell {
    __device__ explicit Doubled(unsigned start) : Cell(start) {}
    __device__ unsigned turn(unsigned by) override { return state = state * 2 + by; }
};

struct Linked : Cell {
    Cell *other;
    __device__ Linked(unsigned start, Cell *with) : Cell(start), other(with) {}
    __device__ unsigned turn(unsigned by) override { return state ^= other->turn(by) + by; }
};

constexpr int CELLS = 48;
constexpr size_t ROOM = sizeof(Linked);

using Operation = unsigned (*)(unsigned, unsigned);
__device__ __noinline__ unsigned plus(unsigned a, unsigned b) { return a + b; }
__device__ __noinline__ unsigned times(unsigned a, unsigned b) { return a * (b | 1); }
__device__ __noinline__ unsigned turned(unsigned a, unsigned b) { return a << (b % 31) | a >> (32 - b % 31) % 32; }

__global__ void append(List *list, Node *fresh, unsigned value) {
    *fresh = {nullptr, list->first ? list->first : fresh, value};
    if (list->last) list->last->next = fresh;
    else list->first = fresh;
    list->last = fresh;
    list->length++;
}

__global__ void drop_first(List *list) {
    list->first = list->first->next;
    // No pointer may lead to the node that is removed.
    for (Node *node = list->first; node; node = node->next) node->far = list->first;
    list->length--;
}

__global__ void walk(const List *list, unsigned *sum) {
    unsigned total = list->length;
    for (const Node *node = list->first; node; node = node->next) total = total * 31 + node->value + node->far->value;
    *sum = total;
}

__global__ void make_cells(char *room) {
    int i = threadIdx.x;
    Cell *before = reinterpret_cast<Cell *>(room + (i - 1) * ROOM);
    if (i % 3 == 0) new (room + i * ROOM) Cell(i);
    if (i % 3 == 1) new (room + i * ROOM) Doubled(i);
    if (i % 3 == 2) new (room + i * ROOM) Linked(i, before);
}

// One thread: the linked cells turn their neighbours.
__global__ void turn_cells(char *room, unsigned by, unsigned *sum) {
    unsigned total = 0;
    for (int i = 0; i < CELLS; i++) total = total * 31 + reinterpret_cast<Cell *>(room + i * ROOM)->turn(by + i);
    *sum = total;
}

__global__ void store_functions(Operation *table) {
    const Operation known[3] = {plus, times, turned};
    for (int i = 0; i < 6; i++) table[i] = known[i % 3];
}

__global__ void call_functions(const Operation *table, unsigned with, unsigned *sum) {
    unsigned total = with;
    for (int i = 0; i < 6; i++) total = table[(i + with) % 6](total, with + i);
    *sum = total;
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 24);
    List *list;
    char *cells;
    Operation *table;
    unsigned *sums, host[3];
    std::vector<Node *> nodes;
    OK(cudaMalloc(&list, sizeof(List)));
    OK(cudaMemset(list, 0, sizeof(List)));
    OK(cudaMalloc(&cells, CELLS * ROOM));
    OK(cudaMalloc(&table, 6 * sizeof(Operation)));
    OK(cudaMalloc(&sums, sizeof host));
    make_cells<<<1, CELLS>>>(cells);
    store_functions<<<1, 1>>>(table);
    size_t first = 0;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < 3; i++) {
            Node *fresh;
            OK(cudaMalloc(&fresh, sizeof(Node)));
            nodes.push_back(fresh);
            append<<<1, 1>>>(list, fresh, step * 100 + i);
        }
        if (step % 2) {
            drop_first<<<1, 1>>>(list);
            OK(cudaFree(nodes[first++]));
        }
        walk<<<1, 1>>>(list, sums);
        turn_cells<<<1, 1>>>(cells, step, sums + 1);
        call_functions<<<1, 1>>>(table, step, sums + 2);
        OK(cudaGetLastError());
        OK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
        Checksum sum;
        sum.add(host);
        told(step, sum);
    }
    for (; first < nodes.size(); first++) OK(cudaFree(nodes[first]));
    for (void *memory : {static_cast<void *>(list), static_cast<void *>(cells), static_cast<void *>(table), static_cast<void *>(sums)}) OK(cudaFree(memory));
    return finish("kept_pointers");
}
