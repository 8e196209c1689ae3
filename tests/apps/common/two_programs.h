// Helpers for pairs of programs: the connection between them, over which they send values and descriptors and wait for
// each other; and blocks of memory that they send over it.
#pragma once

#include <cuda.h>

#include "check.h"

#include <cstring>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// The socket to the other program.
inline int peer;

inline void must(bool so, const char *what) {
    if (so) return;
    printf("%s failed\n", what);
    exit(1);
}

template <class T> void tell(const T &what) { must(write(peer, &what, sizeof what) == ssize_t(sizeof what), "write"); }

template <class T> T hear() {
    T what;
    must(recv(peer, &what, sizeof what, MSG_WAITALL) == ssize_t(sizeof what), "read");
    return what;
}

// Waits until the other program has come to the same point.
inline void meet() {
    tell(char('m'));
    hear<char>();
}

// A message of one byte and room for one descriptor.
class Parcel {
  public:
    Parcel() {
        part_ = {&byte_, 1};
        head.msg_iov = &part_;
        head.msg_iovlen = 1;
        head.msg_control = space_;
        head.msg_controllen = sizeof space_;
    }
    Parcel(const Parcel &) = delete;

    msghdr head = {};

  private:
    char byte_ = 'd';
    alignas(cmsghdr) char space_[CMSG_SPACE(sizeof(int))] = {};
    iovec part_;
};

inline void send_descriptor(int descriptor) {
    Parcel parcel;
    cmsghdr *rights = CMSG_FIRSTHDR(&parcel.head);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    must(sendmsg(peer, &parcel.head, 0) == 1, "sendmsg");
}

inline int receive_descriptor() {
    Parcel parcel;
    must(recvmsg(peer, &parcel.head, 0) == 1, "recvmsg");
    const cmsghdr *rights = CMSG_FIRSTHDR(&parcel.head);
    must(rights && rights->cmsg_type == SCM_RIGHTS, "recvmsg of a descriptor");
    int descriptor = -1;
    memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    return descriptor;
}

// Maps a block at a new address, for a device to read and write.
inline CUdeviceptr mapped(CUmemGenericAllocationHandle block, size_t size, CUdevice device) {
    CUdeviceptr at;
    CUmemAccessDesc grant = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemAddressReserve(&at, size, 0, 0, 0));
    OK(cuMemMap(at, size, 0, block, 0));
    OK(cuMemSetAccess(at, size, &grant, 1));
    return at;
}

inline void unmapped(CUdeviceptr at, size_t size, CUmemGenericAllocationHandle block) {
    OK(cuMemUnmap(at, size));
    OK(cuMemAddressFree(at, size));
    OK(cuMemRelease(block));
}

// Starts the other program, which does `part` and ends with what it returns; the process to wait for. Before either has
// called the driver.
inline pid_t begin_other(int (*part)()) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    peer = pair[child == 0];
    close(pair[child != 0]);
    if (child == 0) {
        int code = part();
        fflush(stdout);
        _exit(code);
    }
    return child;
}

inline void end_other(pid_t child) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the other program: %d", status);
}

// Whether every word from `first` on is `value`.
inline bool all_are(CUdeviceptr first, size_t words, uint32_t value) {
    std::vector<uint32_t> host(words);
    OK(cuMemcpyDtoH(host.data(), first, 4 * words));
    for (uint32_t word : host)
        if (word != value) return false;
    return true;
}
