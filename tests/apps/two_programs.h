// What programs that are two share: the way from one to the other, by which they tell each other values, send descriptors
// and wait for each other.
#pragma once

#include "check.h"

#include <cstring>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// The way to the other program.
static int peer;

static void must(bool so, const char *what) {
    if (so) return;
    printf("%s failed\n", what);
    exit(1);
}

template <class T> static void tell(const T &what) { must(write(peer, &what, sizeof what) == ssize_t(sizeof what), "write"); }

template <class T> static T hear() {
    T what;
    must(recv(peer, &what, sizeof what, MSG_WAITALL) == ssize_t(sizeof what), "read");
    return what;
}

// Nothing but that the other program has come so far.
static void meet() {
    tell(char('m'));
    hear<char>();
}

static void send_descriptor(int descriptor) {
    char byte = 'd';
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    must(sendmsg(peer, &message, 0) == 1, "sendmsg");
}

static int receive_descriptor() {
    char byte;
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    must(recvmsg(peer, &message, 0) == 1, "recvmsg");
    int descriptor = -1;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

// Starts the other program, which does `part` and ends with what it returns; the process to wait for. Before either has
// called the driver.
static pid_t begin_other(int (*part)()) {
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

static void end_other(pid_t child) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the other program: %d", status);
}
