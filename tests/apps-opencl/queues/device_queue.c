// A queue to which kernels enqueue, on a device that has none: a code, and the session goes on. Only through Katydid: PoCL
// ends the process that asks. Where a device has such queues, there is nothing to see.
#include "check.h"

int main(void) {
    set_up(0);
    cl_uint queues = 0;
    cl_int asked = CL_INVALID_QUEUE_PROPERTIES, then;
    CHECK(clGetDeviceInfo(device, CL_DEVICE_MAX_ON_DEVICE_QUEUES, sizeof queues, &queues, NULL));
    cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_ON_DEVICE, 0};
    if (queues == 0) clCreateCommandQueueWithProperties(context, device, list, &asked);
    clReleaseCommandQueue(clCreateCommandQueue(context, device, 0, &then));
    printf("%s", code_name(asked));
    printf(", then %s\n", code_name(then));
    tear_down();
    return 0;
}
