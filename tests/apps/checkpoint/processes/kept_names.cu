// Objects that processes share under names that they did not have at first: POSIX semaphores, which the C library names only
// when they are complete, and a file of shared memory made in the same way. Each has one name at any time, by which a child
// started by exec finds it, at the beginning or later.
#include "family.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <semaphore.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>

// In the file of shared memory.
struct Board {
    uint64_t number;
    bool is_over;
};

static Board *mapped(int file) {
    void *at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(at != MAP_FAILED && close(file) == 0, "mmap");
    return static_cast<Board *>(at);
}

static const std::string FOLDER = "/dev/shm/";

// The three objects and their names, which all begin with a prefix that no other process uses.
struct Shared {
    std::string tag;
    Board *board;
    sem_t *ask, *answer;

    std::string board_name() const { return FOLDER + tag + "-board"; }
    std::string semaphore(const char *which) const { return "/" + tag + which; }

    // Makes them.
    Shared() {
        std::string first = FOLDER + "katydid-XXXXXX";
        int file = mkstemp(&first[0]);
        must(file >= 0 && ftruncate(file, sizeof(Board)) == 0, "mkstemp");
        tag = first.substr(FOLDER.size());
        board = mapped(file);
        must(link(first.c_str(), board_name().c_str()) == 0 && unlink(first.c_str()) == 0, "link");
        ask = sem_open(semaphore("-ask").c_str(), O_CREAT | O_EXCL, 0600, 0);
        answer = sem_open(semaphore("-answer").c_str(), O_CREAT | O_EXCL, 0600, 0);
        must(ask != SEM_FAILED && answer != SEM_FAILED, "sem_open");
    }
    // Opens them by name.
    explicit Shared(const char *known) : tag(known) {
        board = mapped(open(board_name().c_str(), O_RDWR));
        ask = sem_open(semaphore("-ask").c_str(), 0);
        answer = sem_open(semaphore("-answer").c_str(), 0);
        must(ask != SEM_FAILED && answer != SEM_FAILED, "sem_open by name");
    }
    // Checks that each has its single name, and that the name leads to this process' object.
    void check(int step) const {
        for (const char *which : {"-board", "-ask", "-answer"}) {
            std::string path = FOLDER + (which[1] == 'b' ? "" : "sem.") + tag + which;
            struct stat there;
            CHECK(stat(path.c_str(), &there) == 0 && there.st_nlink == 1, "%s in step %d", which, step);
        }
        Board *again = mapped(open(board_name().c_str(), O_RDWR));
        CHECK(again->number == board->number, "step %d", step);
        board->number++;
        CHECK(again->number == board->number, "step %d", step);
        munmap(again, sizeof *again);
    }
    void remove() const {
        must(unlink(board_name().c_str()) == 0, "unlink");
        must(sem_unlink(semaphore("-ask").c_str()) == 0 && sem_unlink(semaphore("-answer").c_str()) == 0, "sem_unlink");
    }
};

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) must(errno == EINTR, "sem_wait");
}

// A child that lives from the beginning: takes a step for each number that it gets.
static int helper(const char *tag) {
    Shared shared(tag);
    Field field(3);
    for (wait_for(shared.ask); !shared.board->is_over; wait_for(shared.ask)) {
        shared.board->number = field.step(unsigned(shared.board->number));
        sem_post(shared.answer);
    }
    OK(cudaFree(field.data));
    return 0;
}

// A child that comes later and does not stay.
static int visitor(const char *tag) {
    Shared shared(tag);
    shared.board->number *= 3;
    sem_post(shared.answer);
    return 0;
}

static pid_t start(const char *as, const std::string &tag) {
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        execl("/proc/self/exe", "kept_names", as, tag.c_str(), nullptr);
        _exit(1);
    }
    return pid;
}

static void await(pid_t pid) {
    int status = -1;
    must(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(status == 0, "a child ended with %x", status);
}

int main(int argc, char **argv) {
    if (argc > 2) return strcmp(argv[1], "helper") == 0 ? helper(argv[2]) : visitor(argv[2]);
    const int steps = steps_wanted(argc, argv, 12);
    Shared shared;
    shared.board->number = 1;
    pid_t child = start("helper", shared.tag);
    Field field(9);
    for (int step = 0; step < steps; step++) {
        shared.board->number = field.step(unsigned(shared.board->number));
        sem_post(shared.ask);
        wait_for(shared.answer);
        shared.check(step);
        if (step % 3 == 2) {
            pid_t guest = start("visitor", shared.tag);
            wait_for(shared.answer);
            await(guest);
        }
        Checksum sum;
        sum.add(shared.board->number);
        told(step, sum);
    }
    shared.board->is_over = true;
    sem_post(shared.ask);
    await(child);
    shared.remove();
    OK(cudaFree(field.data));
    return finish("kept_names");
}
