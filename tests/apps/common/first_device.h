// Common start of driver API programs: the first device and its primary context, and in most programs a kernel.
#pragma once

#include <cuda.h>

#include "check.h"
#include "embedded_ptx.h"

// Starts the driver, retains the primary context once, and makes it current.
inline void begin_on_first(CUdevice *device, CUcontext *context) {
    OK(cuInit(0));
    OK(cuDeviceGet(device, 0));
    OK(cuDevicePrimaryCtxRetain(context, *device));
    OK(cuCtxSetCurrent(*context));
}

// Loads `add` of MODULE_PTX into the current context; its module lives as long as the context.
inline CUfunction load_add() {
    CUmodule module;
    CUfunction add;
    OK(cuModuleLoadData(&module, MODULE_PTX));
    OK(cuModuleGetFunction(&add, module, "add"));
    return add;
}
