// Functions of multi_module_other.cu that multi_module.cu uses.
#pragma once

// Launches the other unit's hidden kernel, which uses its hidden variable, and copies the result back.
int bump_over_there(int *device);
int read_hidden_over_there();

#ifdef __CUDACC_RDC__
extern __device__ int variable_over_there;
extern __device__ int shared_counter;
__device__ int doubled_over_there(int x);
// Adds 5 to `shared_counter` in a kernel of the other unit.
void raise_shared_counter();
#endif
