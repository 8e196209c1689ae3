// The kernels of the random programs, as PTX. Each combines bytes of two places so that their order matters, and each
// gets the places in another way.
#pragma once

// One byte for each thread, `n` of them.
#define BEGIN_BYTES                                                                                            \
    ".reg .pred %p; .reg .b32 %r<4>, %i, %n, %salt, %a, %b; .reg .b64 %dst, %src, %at;\n"
#define INDEX                                                                                                  \
    "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %i, %r1, %r2, %r3;\n"        \
    "setp.ge.u32 %p, %i, %n; @%p bra done;\n"
// dst[i] = dst[i] * 5 + src[i] + salt + i
#define MIX                                                                                                    \
    "cvt.u64.u32 %at, %i; add.s64 %dst, %dst, %at; add.s64 %src, %src, %at;\n"                                 \
    "ld.u8 %a, [%dst]; ld.u8 %b, [%src]; mad.lo.u32 %a, %a, 5, %b; add.u32 %a, %a, %salt; add.u32 %a, %a, %i;\n" \
    "st.u8 [%dst], %a;\n"
#define PLACES                                                                                                 \
    "ld.param.u64 %dst, [dst]; ld.param.u64 %src, [src]; ld.param.u32 %n, [n]; ld.param.u32 %salt, [salt];\n"
#define PARAMETERS "(.param .u64 dst, .param .u64 src, .param .u32 n, .param .u32 salt)\n"

// Words of `constants` and `field` in the modules.
constexpr unsigned CONSTANT_BYTES = 4096, FIELD_BYTES = 65536;

inline const char *const RANDOM_PTX =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .const .align 16 .b8 constants[4096];\n"
    ".visible .global .align 16 .b8 field[65536];\n"

    ".visible .entry mix" PARAMETERS "{" BEGIN_BYTES PLACES INDEX MIX "done: ret; }\n"

    // The same, with the parameters in one struct.
    ".visible .entry mix_of_struct(.param .align 8 .b8 all[24]) {" BEGIN_BYTES
    "ld.param.u64 %dst, [all]; ld.param.u64 %src, [all+8]; ld.param.u32 %n, [all+16]; ld.param.u32 %salt, [all+20];\n"
    INDEX MIX "done: ret; }\n"

    // The same, with that struct in memory.
    ".visible .entry mix_of_table(.param .u64 table) {" BEGIN_BYTES
    "ld.param.u64 %at, [table]; ld.u64 %dst, [%at]; ld.u64 %src, [%at+8]; ld.u32 %n, [%at+16]; ld.u32 %salt, [%at+20];\n"
    INDEX MIX "done: ret; }\n"

    // dst[(i * salt + 1) % n] = its bytes * 3 + src[i]; n is a power of two and salt is odd
    ".visible .entry scatter" PARAMETERS "{" BEGIN_BYTES PLACES INDEX
    "cvt.u64.u32 %at, %i; add.s64 %src, %src, %at; ld.u8 %b, [%src];\n"
    "mad.lo.u32 %a, %i, %salt, 1; sub.u32 %r1, %n, 1; and.b32 %a, %a, %r1; cvt.u64.u32 %at, %a; add.s64 %dst, %dst, %at;\n"
    "ld.u8 %a, [%dst]; mad.lo.u32 %a, %a, 3, %b; st.u8 [%dst], %a;\n"
    "done: ret; }\n"

    // The sources of these are of the module.
    ".visible .entry mix_of_constants" PARAMETERS "{" BEGIN_BYTES PLACES INDEX
    "mov.u64 %src, constants; cvta.const.u64 %src, %src;\n" MIX "done: ret; }\n"
    ".visible .entry mix_of_field" PARAMETERS "{" BEGIN_BYTES PLACES INDEX
    "mov.u64 %src, field; cvta.global.u64 %src, %src;\n" MIX "done: ret; }\n";

// What the struct of two kernels is.
struct Places {
    unsigned long long dst, src;
    unsigned n, salt;
};
