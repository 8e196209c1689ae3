// All threads of a program wait for each other.
#pragma once

#include <condition_variable>
#include <mutex>

class Meeting {
    std::mutex lock;
    std::condition_variable all_here;
    const int threads;
    int here = 0;
    unsigned round = 0;

  public:
    explicit Meeting(int threads) : threads(threads) {}

    void wait() {
        std::unique_lock<std::mutex> held(lock);
        unsigned mine = round;
        if (++here == threads) {
            here = 0;
            round++;
            all_here.notify_all();
        } else {
            all_here.wait(held, [&] { return round != mine; });
        }
    }
};
