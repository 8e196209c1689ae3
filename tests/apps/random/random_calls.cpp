// Long random sequences of calls from several threads, with each result checked against a model of all memory: mixtures
// of copies, fills, kernels, graphs, streams and threads that no author would think of.
//
//   random_calls [FIRST [COUNT]]       seeds; the same seed is the same sequence, and prints the same
//
// Each thread makes its own choices, and owns its memory for a round. Between rounds the threads meet, some end and
// others take their place, and memory changes hands while work on it is pending.
#include "first_device.h"
#include "meeting.h"
#include "random_graphs.h"

constexpr int THREADS = 3, ROUNDS = 5, STEPS = 24;

static void begin() {
    CUmemPoolProps request = {};
    begin_on_first(&world.device, &world.context);
    OK(cuModuleLoadData(&world.module, RANDOM_PTX));
    request.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    request.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    OK(cuMemPoolCreate(&world.pool, &request));
}

struct Play {
    std::vector<Slot *> slots;
    CUstream shared[2];
    // With the main thread.
    Meeting meeting{THREADS + 1};
    std::vector<Buffer *> given[THREADS];

    // Some rounds of one slot, on the calling thread.
    void rounds(int slot, int count) {
        slots[slot]->enter();
        while (count-- > 0) {
            slots[slot]->take_steps(STEPS);
            given[slot] = slots[slot]->hand_out();
            if (count == 0) slots[slot]->leave();
            meeting.wait();
            meeting.wait();
        }
    }

    void exchange(Random &random) {
        for (std::vector<Buffer *> &some : given) {
            for (Buffer *buffer : some) slots[random.below(THREADS)]->adopt(buffer);
            some.clear();
        }
    }
};

static void say(uint64_t seed, int round, const std::vector<Slot *> &slots) {
    Checksum sum;
    for (const Slot *slot : slots) sum.add(slot->digest);
    printf("seed %llu round %d %016llx\n", (unsigned long long)seed, round, (unsigned long long)sum.value);
    fflush(stdout);
}

static void play(uint64_t seed) {
    Play play;
    Random random{seed};
    int left[THREADS] = {};
    std::thread threads[THREADS];
    OK(cuStreamCreate(&play.shared[0], CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&play.shared[1], CU_STREAM_NON_BLOCKING));
    for (int slot = 0; slot < THREADS; slot++) {
        play.slots.push_back(new Slot(seed, slot));
        play.slots[slot]->start(play.shared);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int slot = 0; slot < THREADS; slot++) {
            if (left[slot]-- > 0) continue;
            if (threads[slot].joinable()) threads[slot].join();
            int count = std::min(ROUNDS - round, 1 + int(random.below(3)));
            left[slot] = count - 1;
            threads[slot] = std::thread([&play, slot, count] { play.rounds(slot, count); });
        }
        play.meeting.wait();
        play.exchange(random);
        say(seed, round, play.slots);
        play.meeting.wait();
    }
    for (std::thread &thread : threads) thread.join();
    for (Slot *slot : play.slots) slot->finish();
    say(seed, ROUNDS, play.slots);
    for (Slot *slot : play.slots) delete slot;
    for (CUstream stream : play.shared) OK(cuStreamDestroy(stream));
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], nullptr, 0) : 1, count = argc > 2 ? strtoull(argv[2], nullptr, 0) : argc > 1 ? 1 : 4;
    begin();
    for (uint64_t seed = first; seed < first + count; seed++) play(seed);
    OK(cuMemPoolDestroy(world.pool));
    OK(cuModuleUnload(world.module));
    OK(cuDevicePrimaryCtxRelease(world.device));
    return finish("random_calls");
}
