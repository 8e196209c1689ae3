// Images that come and go: nothing tells of their ends where no command uses them any more, and the memory of one that a command
// still reads becomes no other image's.
#include "check.h"
#include <dirent.h>

enum { W = 32, H = 16, BYTES = W * H * 4, ROUNDS = 40 };

static const size_t none[3], whole[3] = {W, H, 1};
static unsigned char host[BYTES], back[BYTES];

static cl_mem image_of(int value) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc shape = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = W, .image_height = H};
    memset(host, value, sizeof host);
    cl_int code;
    cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, &format, &shape, host, &code);
    CHECK(code);
    return image;
}

static void read_back(cl_mem image) {
    CHECK(clEnqueueReadImage(queue, image, CL_TRUE, none, whole, 0, 0, back, 0, NULL, NULL));
}

static int is_all(int value) {
    for (int i = 0; i < BYTES; i++)
        if (back[i] != (unsigned char)value) return 0;
    return 1;
}

// Threads of this process that wait for callbacks.
static int callback_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file)) count += strcmp(name, "katydid-upcall\n") == 0;
        if (file) fclose(file);
    }
    if (tasks) closedir(tasks);
    return count;
}

// A copy that waits for the program, out of an image whose handle is gone, while others come and go.
static int copies_what_was_there(int round) {
    cl_int code;
    cl_mem from = image_of(round), to = image_of(0);
    cl_event gate = clCreateUserEvent(context, &code);
    CHECK(code);
    CHECK(clEnqueueCopyImage(queue, from, to, none, none, whole, 1, &gate, NULL));
    CHECK(clFlush(queue));
    CHECK(clReleaseMemObject(from));
    cl_mem later = image_of(round + 100);
    CHECK(clReleaseMemObject(later));
    later = image_of(round + 50);
    CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
    CHECK(clReleaseEvent(gate));
    read_back(to);
    int is_right = is_all(round);
    read_back(later);
    is_right &= is_all(round + 50);
    CHECK(clReleaseMemObject(to));
    CHECK(clReleaseMemObject(later));
    return is_right;
}

int main(void) {
    set_up(0);
    int right = 0;
    for (int round = 0; round < ROUNDS; round++) {
        cl_mem unused = image_of(round), read = image_of(round + 1);
        CHECK(clReleaseMemObject(unused));
        read_back(read);
        right += is_all(round + 1);
        CHECK(clReleaseMemObject(read));
    }
    printf("%d of %d are right, %d threads wait for callbacks\n", right, ROUNDS, callback_threads());
    for (int round = right = 0; round < ROUNDS; round++) right += copies_what_was_there(round);
    printf("%d of %d are right\n", right, ROUNDS);
    tear_down();
    return 0;
}
