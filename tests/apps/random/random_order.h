// The order of work: the streams of a thread, the work that each of them and the thread know to be done, and the many ways
// to order one after another.
//
// The rule: one lane (a stream, used by one thread) at a time works with memory. Before another lane takes it, that lane is
// ordered after the first in a random way, unless it already is: by the order of a stream, by an earlier wait, or by what the
// default stream and those that block with it guarantee each other.
#pragma once

#include <thread>

#include "random_work.h"

struct Lane {
    CUstream stream;
    // It is in order with the default stream.
    bool blocks;
    uint64_t given = 0;
    // Of each lane, how much of its work everything that comes here is behind.
    std::vector<uint64_t> behind;
};

// The first lanes of each thread: the default stream, the thread's own, two that all threads share; the rest are its own.
constexpr int DEFAULT = 0, OWN_DEFAULT = 1, SHARED = 2, FIRST_OWN = 4, LANES = 8;
// Of these, one is not in order with the default stream and never captured by another thread.
constexpr int CAPTURED = FIRST_OWN;

constexpr size_t WORDS = 8192;

struct Order {
    Random &random;
    std::vector<Lane> lanes;
    // How much of each lane's work the thread knows to be done.
    std::vector<uint64_t> done;
    // Words for streams that wait for each other, each used once; and memory that no thread reads.
    CUdeviceptr words = 0, scratch = 0;
    size_t words_used = 0;
    // How often each of the ways was taken.
    enum Way { Events, Values, Streams, EventsOnHost, Queries, StreamQueries, Contexts, Handed, Implied, WAYS };
    uint64_t taken[WAYS] = {};

    explicit Order(Random &source) : random(source) {}

    void start(const CUstream (&shared)[2]) {
        const CUstream first[] = {nullptr, CU_STREAM_PER_THREAD, shared[0], shared[1]};
        for (int i = 0; i < LANES; i++) {
            Lane lane = {i < FIRST_OWN ? first[i] : nullptr, i != SHARED + 1, 0, std::vector<uint64_t>(LANES)};
            lanes.push_back(lane);
            if (i >= FIRST_OWN) make_stream(i);
        }
        done.resize(LANES);
        OK(cuMemAlloc(&words, WORDS * 8));
        OK(cuMemAlloc(&scratch, 4096));
        OK(cuMemsetD8(words, 0, WORDS * 8));
        OK(cuStreamSynchronize(nullptr));
    }

    void finish() {
        for (int i = FIRST_OWN; i < LANES; i++) OK(cuStreamDestroy(lanes[i].stream));
        OK(cuMemFree(words));
        OK(cuMemFree(scratch));
    }

    // By what the lane is called this time: two of them have two names.
    CUstream stream(int lane) {
        return lane == DEFAULT && random.one_in(2) ? CU_STREAM_LEGACY : lanes[lane].stream;
    }

    void make_stream(int lane) {
        int least = 0, greatest = 0;
        lanes[lane].blocks = lane != CAPTURED && random.one_in(2);
        OK(cuCtxGetStreamPriorityRange(&least, &greatest));
        OK(cuStreamCreateWithPriority(&lanes[lane].stream, lanes[lane].blocks ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING,
                                      random.one_in(2) ? greatest : least));
    }

    // The stream of a lane goes, with work in it; the next one is behind that.
    void renew(int lane) {
        CUevent last = record(lane);
        OK(cuStreamDestroy(lanes[lane].stream));
        make_stream(lane);
        OK(cuStreamWaitEvent(lanes[lane].stream, last, 0));
        lanes[lane].given++;
        OK(cuEventDestroy(last));
    }

    CUevent record(int lane) {
        const unsigned flags[] = {CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING};
        CUevent event;
        OK(cuEventCreate(&event, flags[random.below(4)]));
        OK(cuEventRecord(event, stream(lane)));
        return event;
    }

    static void raise(std::vector<uint64_t> &to, const std::vector<uint64_t> &by) {
        for (size_t i = 0; i < to.size(); i++) to[i] = std::max(to[i], by[i]);
    }

    // What work that is given to `later` is behind of `earlier` from now on: all that was given so far.
    void put_behind(std::vector<uint64_t> &later, int earlier) {
        raise(later, lanes[earlier].behind);
        later[earlier] = lanes[earlier].given;
    }

    // A copy, a fill or a kernel is about to be given: the default stream and those that block with it wait for each other.
    void join(int lane) {
        std::vector<uint64_t> &behind = lanes[lane].behind;
        if (lane == DEFAULT) {
            for (int other = 1; other < LANES; other++)
                if (lanes[other].blocks) put_behind(behind, other);
        } else if (lanes[lane].blocks) {
            put_behind(behind, DEFAULT);
        }
    }

    bool is_behind(int lane, const Buffer &buffer) const {
        if (buffer.lane < 0 || buffer.lane == lane) return true;
        return buffer.stamp <= std::max(lanes[lane].behind[buffer.lane], done[buffer.lane]);
    }

    bool is_at_rest(const Buffer &buffer) const { return buffer.lane < 0 || buffer.stamp <= done[buffer.lane]; }

    // Records work of a lane that touches these buffers.
    void given(int lane, const std::vector<Buffer *> &buffers) {
        lanes[lane].given++;
        raise(lanes[lane].behind, done);
        for (Buffer *buffer : buffers) {
            buffer->lane = lane;
            buffer->stamp = lanes[lane].given;
        }
    }

    // Memory that came from another thread joins the order of this one.
    void take_over(int lane, Buffer &buffer) {
        if (buffer.last) {
            taken[Handed]++;
            if (lane >= 0 && random.one_in(2)) {
                OK(cuStreamWaitEvent(stream(lane), buffer.last, 0));
                given(lane, {&buffer});
            } else {
                wait_for(buffer.last);
            }
            OK(cuEventDestroy(buffer.last));
            buffer.last = nullptr;
        } else if (buffer.behind_default) {
            join(DEFAULT);
            OK(random.one_in(2) ? cuMemsetD8(scratch, 1, 100) : cuMemsetD32Async(scratch, 1, 1000, stream(DEFAULT)));
            given(DEFAULT, {&buffer});
            buffer.behind_default = false;
        }
    }

    void wait_for(CUevent event) {
        if (random.one_in(2)) {
            OK(cuEventSynchronize(event));
            return;
        }
        CUresult got;
        while ((got = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
        OK(got);
    }

    // Whatever is given to `lane` from now on is behind the last work with this memory. `is_joined`: it is a copy, a fill or a kernel.
    void order(int lane, Buffer &buffer, bool is_joined) {
        take_over(lane, buffer);
        bool before = is_behind(lane, buffer);
        if (is_joined) join(lane);
        if (is_behind(lane, buffer)) {
            taken[Implied] += !before;
            return;
        }
        int earlier = buffer.lane;
        size_t way = random.below(6);
        if (way < 3) {
            taken[Events]++;
            CUevent event = record(earlier);
            OK(cuStreamWaitEvent(stream(lane), event, 0));
            OK(cuEventDestroy(event));
            put_behind(lanes[lane].behind, earlier);
        } else if (way < 5 && words_used < WORDS) {
            taken[Values]++;
            CUdeviceptr word = words + 8 * words_used++;
            unsigned value = unsigned(random.below(1000)) + 1;
            lanes[earlier].given++;
            if (random.one_in(2)) {
                OK(cuStreamWriteValue64(stream(earlier), word, value, 0));
                OK(cuStreamWaitValue64(stream(lane), word, value, CU_STREAM_WAIT_VALUE_GEQ));
            } else {
                OK(cuStreamWriteValue32(stream(earlier), word, value, 0));
                OK(cuStreamWaitValue32(stream(lane), word, value, CU_STREAM_WAIT_VALUE_EQ));
            }
            put_behind(lanes[lane].behind, earlier);
        } else {
            wait_for_lane(earlier);
        }
    }

    // Waits until the thread may touch the memory itself.
    void settle(Buffer &buffer) {
        take_over(-1, buffer);
        if (!is_at_rest(buffer)) wait_for_lane(buffer.lane);
        buffer.lane = -1;
    }

    void wait_for_lane(int lane) {
        size_t way = random.below(8);
        if (way < 3) {
            taken[Streams]++;
            OK(cuStreamSynchronize(stream(lane)));
        } else if (way < 6) {
            taken[EventsOnHost]++;
            CUevent event = record(lane);
            wait_for(event);
            OK(cuEventDestroy(event));
        } else if (way == 6) {
            taken[StreamQueries]++;
            CUstream asked = stream(lane);
            CUresult got;
            while ((got = cuStreamQuery(asked)) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
            OK(got);
        } else {
            wait_for_context();
        }
        put_behind(done, lane);
    }

    void wait_for_context() {
        taken[Contexts]++;
        std::unique_lock<std::shared_mutex> held(world.capture);
        OK(cuCtxSynchronize());
        for (int lane = 0; lane < LANES; lane++) put_behind(done, lane);
    }
};
