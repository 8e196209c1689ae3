"""PyOpenCL: arrays, reductions, scans and sorting; what comes out depends on nothing but the input."""

import numpy as np
import pyopencl as cl
import pyopencl.array as array
from pyopencl.elementwise import ElementwiseKernel
from pyopencl.reduction import ReductionKernel
from pyopencl.scan import GenericScanKernel

context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
queue = cl.CommandQueue(context)
numbers = (np.arange(10000) * 7919 % 1009).astype(np.int32)
here = array.to_device(queue, numbers)
print("sum", int(array.sum(here).get()), int(numbers.sum()))
print("max", int(array.max(here).get()), "dot", int(array.dot(here, here, dtype=np.int64).get()))
twice = array.empty_like(here)
ElementwiseKernel(context, "int *x, int *y", "y[i] = 2 * x[i] + 1", "twice")(here, twice)
print("elementwise", (twice.get() == 2 * numbers + 1).all())
scan = GenericScanKernel(context, np.int32, arguments="__global int *x", input_expr="x[i]", scan_expr="a+b", neutral="0",
                         output_statement="x[i] = item")
scan(twice)
print("scan", (twice.get() == np.cumsum(2 * numbers + 1, dtype=np.int32)).all())
squares = ReductionKernel(context, np.int64, neutral="0", reduce_expr="a+b", map_expr="(long)x[i]*x[i]",
                          arguments="__global int *x")
print("squares", int(squares(here).get()), int((numbers.astype(np.int64) ** 2).sum()))
