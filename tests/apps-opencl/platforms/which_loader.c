// Which loader stands between a program and its drivers, by the name that it gives itself, and how many platforms it finds.
#include "check.h"

// Of an extension that no header has: what a loader says of itself.
typedef cl_int(CL_API_CALL *loader_info)(cl_uint what, size_t room, void *place, size_t *needed);
#define LOADER_NAME 3

int main(void) {
    loader_info ask = (loader_info)clGetExtensionFunctionAddress("clGetICDLoaderInfoOCLICD");
    char name[256] = "no loader";
    if (ask) CHECK(ask(LOADER_NAME, sizeof name, name, NULL));
    cl_uint count = 0;
    CHECK(clGetPlatformIDs(0, NULL, &count));
    printf("%s, platforms: %u\n", name, count);
    return 0;
}
