// Two programs that cooperate like the ranks of a library of collectives: through unlinked files of shared memory, one of
// them registered; semaphores; and TCP and unix connections, with addresses in the file system and without. In each, one
// thread waits for descriptors, and another waits to be woken.
#include <cuda.h>

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <fcntl.h>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <vector>

#include "first_device.h"
#include "steps.h"
#include "two_programs.h"

constexpr size_t WORDS = 1 << 13, BYTES = 4 * WORDS;
constexpr unsigned THREADS = 256;
// Longest name, with the zero behind it.
constexpr size_t NAME = 64;
// Marks the end of the bytes over TCP.
constexpr uint64_t OVER = ~0ull;

// Memory that both programs have mapped.
struct Board {
    uint32_t words[2][WORDS];
    volatile uint64_t turn;
};

static const std::string FOLDER = "/dev/shm/";
// Prefix of the names that it makes: a killed run leaves some, which the killer may look for.
static std::string prefix = "katydid-";

template <class T> static void put(int to, const T &what) { must(send(to, &what, sizeof what, MSG_NOSIGNAL) == ssize_t(sizeof what), "send"); }

template <class T> static T got(int from) {
    T what;
    must(recv(from, &what, sizeof what, MSG_WAITALL) == ssize_t(sizeof what), "recv");
    return what;
}

static Board *mapped_board(int file) {
    void *at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(at != MAP_FAILED && close(file) == 0, "mmap");
    return static_cast<Board *>(at);
}

// One byte for the kind of address, then a name that no file has.
static socklen_t abstract(sockaddr_un &address, const std::string &name) {
    address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, name.data(), name.size());
    return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

static socklen_t named(sockaddr_un &address, const std::string &name) {
    address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, name.data(), name.size());
    return sizeof address;
}

template <class A> static const sockaddr *plain(const A &address) { return reinterpret_cast<const sockaddr *>(&address); }

static int socket_of(int family, int kind) {
    int made = socket(family, kind | SOCK_CLOEXEC, 0);
    must(made >= 0, "socket");
    return made;
}

// One program's view of the shared objects.
struct Shared {
    std::string tag;
    Board *board, *unregistered;
    sem_t *full, *empty;
    int tcp, stream, packets, listeners[2] = {-1, -1};
    sockaddr_un of_other;
    socklen_t length;

    std::string semaphore(const char *which) const { return "/" + tag + which; }
    std::string socket_name(unsigned rank) const { return tag + "-rank-" + std::to_string(rank); }
    std::string path() const { return "/tmp/" + tag + "-socket"; }

    // The first program makes everything, and the second opens it.
    explicit Shared(unsigned rank) {
        rank == 0 ? make() : find();
        sockaddr_un own;
        packets = socket_of(AF_UNIX, SOCK_DGRAM);
        socklen_t long_as = abstract(own, socket_name(rank));
        must(bind(packets, plain(own), long_as) == 0, "bind without a file");
        length = abstract(of_other, socket_name(1 - rank));
        meet();
        if (rank == 0) forget();
        meet();
    }

    void make() {
        std::string first = FOLDER + prefix + "XXXXXX";
        int file = mkstemp(&first[0]);
        must(file >= 0 && ftruncate(file, sizeof(Board)) == 0, "mkstemp");
        tag = first.substr(FOLDER.size());
        board = mapped_board(file);
        file = shm_open(semaphore("-other").c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
        must(file >= 0 && ftruncate(file, sizeof(Board)) == 0, "shm_open");
        unregistered = mapped_board(file);
        full = sem_open(semaphore("-full").c_str(), O_CREAT | O_EXCL, 0600, 0);
        empty = sem_open(semaphore("-empty").c_str(), O_CREAT | O_EXCL, 0600, 0);
        must(full != SEM_FAILED && empty != SEM_FAILED, "sem_open");
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        listeners[0] = socket_of(AF_INET, SOCK_STREAM);
        // Otherwise the kernel would keep the port for a minute after a connection ends.
        const int again = 1;
        must(setsockopt(listeners[0], SOL_SOCKET, SO_REUSEADDR, &again, sizeof again) == 0, "setsockopt");
        must(bind(listeners[0], plain(address), size) == 0 && listen(listeners[0], 4) == 0, "listen");
        must(getsockname(listeners[0], reinterpret_cast<sockaddr *>(&address), &size) == 0, "getsockname");
        sockaddr_un local;
        size = named(local, path());
        listeners[1] = socket_of(AF_UNIX, SOCK_STREAM);
        must(bind(listeners[1], plain(local), size) == 0 && listen(listeners[1], 4) == 0, "listen at a file");
        char told[NAME] = {};
        tag.copy(told, sizeof told - 1);
        must(write(peer, told, sizeof told) == sizeof told, "write");
        tell(address.sin_port);
        tcp = accept4(listeners[0], nullptr, nullptr, SOCK_CLOEXEC);
        stream = accept4(listeners[1], nullptr, nullptr, SOCK_CLOEXEC);
        must(tcp >= 0 && stream >= 0, "accept");
    }

    void find() {
        struct Name {
            char text[NAME];
        };
        tag = hear<Name>().text;
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = hear<in_port_t>();
        tcp = socket_of(AF_INET, SOCK_STREAM);
        must(connect(tcp, plain(address), sizeof address) == 0, "connect");
        sockaddr_un local;
        socklen_t size = named(local, path());
        stream = socket_of(AF_UNIX, SOCK_STREAM);
        must(connect(stream, plain(local), size) == 0, "connect to a file");
        board = mapped_board(open((FOLDER + tag).c_str(), O_RDWR));
        unregistered = mapped_board(shm_open(semaphore("-other").c_str(), O_RDWR, 0));
        full = sem_open(semaphore("-full").c_str(), 0);
        empty = sem_open(semaphore("-empty").c_str(), 0);
        must(full != SEM_FAILED && empty != SEM_FAILED, "sem_open by name");
    }

    // Both have everything open. One semaphore and the socket keep their names.
    void forget() const {
        must(unlink((FOLDER + tag).c_str()) == 0 && shm_unlink(semaphore("-other").c_str()) == 0, "unlink");
        must(sem_unlink(semaphore("-empty").c_str()) == 0, "sem_unlink");
    }

    void remove() const { must(sem_unlink(semaphore("-full").c_str()) == 0 && unlink(path().c_str()) == 0, "removing the names"); }

    void send_packet(uint64_t number) const {
        must(sendto(packets, &number, sizeof number, 0, plain(of_other), length) == sizeof number, "sendto");
    }
};

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) must(errno == EINTR, "sem_wait");
}

// A thread that sends requested numbers over TCP, and one that keeps received numbers until another thread wants them.
class Service {
  public:
    explicit Service(int tcp) : tcp_(tcp), asked_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        must(asked_ >= 0, "eventfd");
        thread_ = std::thread([this] { serve(); });
        keeper_ = std::thread([this] { keep(); });
    }
    ~Service() {
        thread_.join();
        keeper_.join();
        close(asked_);
    }
    Service(const Service &) = delete;

    // Neither 0 nor the end.
    void ask(uint64_t number) { must(write(asked_, &number, sizeof number) == sizeof number, "write to an eventfd"); }

    uint64_t next() {
        std::unique_lock<std::mutex> held(lock_);
        woken_.wait(held, [this] { return !kept_.empty(); });
        uint64_t number = kept_.front();
        kept_.erase(kept_.begin());
        return number;
    }

    // Ends the requests; the threads end when the other side has ended too.
    void end() { shutdown(tcp_, SHUT_WR); }

  private:
    void serve() {
        pollfd wanted[2] = {{tcp_, POLLIN, 0}, {asked_, POLLIN, 0}};
        for (bool is_over = false; !is_over;) {
            if (poll(wanted, 2, -1) < 0) {
                must(errno == EINTR, "poll");
                continue;
            }
            uint64_t number;
            if (wanted[1].revents & POLLIN && read(asked_, &number, sizeof number) == sizeof number) put(tcp_, number);
            if (wanted[0].revents) {
                is_over = recv(tcp_, &number, sizeof number, MSG_WAITALL) == 0;
                pass(is_over ? OVER : number);
            }
        }
    }

    void keep() {
        std::unique_lock<std::mutex> held(lock_);
        while (passed_ != OVER) {
            called_.wait(held, [this] { return passed_ != 0; });
            if (passed_ == OVER) return;
            kept_.push_back(passed_);
            passed_ = 0;
            woken_.notify_all();
        }
    }

    void pass(uint64_t number) {
        std::unique_lock<std::mutex> held(lock_);
        woken_.wait(held, [this] { return passed_ == 0; });
        passed_ = number;
        called_.notify_all();
    }

    const int tcp_, asked_;
    std::mutex lock_;
    std::condition_variable called_, woken_;
    uint64_t passed_ = 0;
    std::vector<uint64_t> kept_;
    std::thread thread_, keeper_;
};

// Objects of a rank on the device.
struct Side {
    CUdevice device;
    CUfunction add;
    CUstream stream;
    CUdeviceptr own, other, opened = 0;
    CUevent event, theirs;

    Side(Board *board) {
        CUcontext context;
        begin_on_first(&device, &context);
        add = load_add();
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuMemAlloc(&own, 4 << 20));
        OK(cuMemAlloc(&other, BYTES));
        OK(cuMemsetD32(own, 3, WORDS));
        OK(cuCtxSynchronize());
        OK(cuMemHostRegister(board, sizeof *board, CU_MEMHOSTREGISTER_PORTABLE));
        OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
        exchange();
    }

    // Each opens the other's event, and its memory where the driver can.
    void exchange() {
        CUipcEventHandle of_event;
        OK(cuIpcGetEventHandle(&of_event, event));
        tell(of_event);
        OK(cuIpcOpenEventHandle(&theirs, hear<CUipcEventHandle>()));
        unsigned capable = 0;
        OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, own));
        if (capable) {
            CUipcMemHandle of_memory;
            OK(cuIpcGetMemHandle(&of_memory, own));
            tell(of_memory);
            OK(cuIpcOpenMemHandle(&opened, hear<CUipcMemHandle>(), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        }
    }

    // to[i] = from[i] * 3 + term
    void enqueue(CUdeviceptr to, CUdeviceptr from, int term) {
        unsigned words = WORDS;
        void *parameters[] = {&to, &words, &from, &term};
        OK(cuLaunchKernel(add, WORDS / THREADS, 1, 1, THREADS, 1, 1, 0, stream, parameters, nullptr));
    }

    void close(Board *board) {
        if (opened) OK(cuIpcCloseMemHandle(opened));
        OK(cuEventDestroy(theirs));
        OK(cuMemHostUnregister(board));
        OK(cuMemFree(own));
        OK(cuMemFree(other));
        OK(cuEventDestroy(event));
        OK(cuStreamDestroy(stream));
    }
};

static uint64_t sum_of(const uint32_t (&words)[WORDS]) {
    Checksum sum;
    sum.add(words);
    return sum.value >> 1 | 1;
}

// One step of the second rank: the board's contents go through the device and back to the board.
static void answer(Side &side, Shared &shared, Service &service, int step) {
    wait_for(shared.full);
    OK(cuMemcpyHtoDAsync(side.other, shared.board->words[0], BYTES, side.stream));
    OK(cuStreamWaitEvent(side.stream, side.theirs, 0));
    side.enqueue(side.own, side.other, step);
    // Both are the same.
    side.enqueue(side.own, side.opened ? side.opened : side.other, 1);
    OK(cuMemcpyDtoHAsync(shared.board->words[1], side.own, BYTES, side.stream));
    OK(cuEventRecord(side.event, side.stream));
    OK(cuStreamSynchronize(side.stream));
    memcpy(shared.unregistered->words[1], shared.board->words[1], BYTES);
    service.ask(sum_of(shared.board->words[1]));
    put(shared.stream, got<uint64_t>(shared.stream) * 3);
    shared.send_packet(got<uint64_t>(shared.packets) + 1);
    sem_post(shared.empty);
}

static int second() {
    must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
    Shared shared(1);
    Side side(shared.board);
    {
        Service service(shared.tcp);
        for (int step = hear<int>(); step > 0; step = hear<int>()) answer(side, shared, service, step);
        service.end();
    }
    side.close(shared.board);
    meet();
    return failures != 0;
}

static Checksum step_of(Side &side, Shared &shared, Service &service, int step) {
    tell(step);
    side.enqueue(side.own, side.own, -step);
    OK(cuMemcpyDtoHAsync(shared.board->words[0], side.own, BYTES, side.stream));
    OK(cuEventRecord(side.event, side.stream));
    OK(cuStreamSynchronize(side.stream));
    sem_post(shared.full);
    shared.send_packet(uint64_t(step));
    put(shared.stream, uint64_t(step));
    uint64_t told = service.next();
    CHECK(told == sum_of(shared.board->words[1]), "another sum over TCP in step %d", step);
    CHECK(got<uint64_t>(shared.stream) == 3 * uint64_t(step), "step %d", step);
    CHECK(got<uint64_t>(shared.packets) == uint64_t(step) + 1, "step %d", step);
    wait_for(shared.empty);
    CHECK(memcmp(shared.unregistered->words[1], shared.board->words[1], BYTES) == 0, "step %d", step);
    OK(cuStreamWaitEvent(side.stream, side.theirs, 0));
    OK(cuMemcpyHtoDAsync(side.own, shared.board->words[1], BYTES, side.stream));
    OK(cuStreamSynchronize(side.stream));
    Checksum sum;
    sum.add(told);
    return sum;
}

// Checks the names of objects that others keep open.
static void check_names(const Shared &shared, int step) {
    struct stat there;
    CHECK(stat((FOLDER + "sem." + shared.tag + "-full").c_str(), &there) == 0 && there.st_nlink == 1, "step %d", step);
    CHECK(stat((FOLDER + shared.tag).c_str(), &there) != 0, "a name is back in step %d", step);
}

// Neither waits for the other if the other has failed.
static void fail_with_child(int) {
    siginfo_t how = {};
    if (waitid(P_ALL, 0, &how, WEXITED | WNOHANG | WNOWAIT) == 0 && how.si_pid != 0 && how.si_status != 0) _exit(1);
}

int main(int argc, char **argv) {
    const int steps = steps_wanted(argc, argv, 20);
    if (argc > 2) prefix = argv[2];
    pid_t child = begin_other(second);
    signal(SIGCHLD, fail_with_child);
    Shared shared(0);
    Side side(shared.board);
    {
        Service service(shared.tcp);
        for (int step = 1; step <= steps; step++) {
            Checksum sum = step_of(side, shared, service, step);
            check_names(shared, step);
            told(step, sum);
        }
        tell(0);
        service.end();
    }
    side.close(shared.board);
    meet();
    end_other(child);
    shared.remove();
    return finish("kept_ranks");
}
