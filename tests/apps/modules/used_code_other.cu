// Many long kernels, no two of which are alike: the large module of used_code.cu.
#include "used_code.h"

template <unsigned Which>
__global__ void stir(unsigned *value) {
    unsigned now = *value;
#pragma unroll
    for (unsigned step = 0; step < 200; step++) now = (now ^ now >> (1 + (step + Which) % 13)) * (2 * step + Which) + step;
    *value = now;
}

template <unsigned Which>
struct Stirring {
    static void run(unsigned which, unsigned *value) {
        if (which == Which) stir<Which><<<1, 1>>>(value);
        else Stirring<Which - 1>::run(which, value);
    }
};

template <>
struct Stirring<0> {
    static void run(unsigned, unsigned *) {}
};

void stir_over_there(unsigned *value) { Stirring<40>::run(17, value); }
