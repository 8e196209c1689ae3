// Hand-written PTX text, for programs that give modules to the driver themselves.
#pragma once

// Two kernels and two variables. `add` takes four parameters with a gap for alignment; `bump` none.
inline const char *const MODULE_PTX = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .const .align 4 .b32 factor = 3;
.visible .global .align 4 .b32 counter = 10;

// out[i] = in[i] * factor + term, as long as i < n
.visible .entry add(.param .u64 out, .param .u32 n, .param .u64 in, .param .s32 term)
{
    .reg .pred %p;
    .reg .b32 %r<9>;
    .reg .b64 %d<7>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [n];
    ld.param.u64 %d2, [in];
    ld.param.s32 %r2, [term];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p, %r6, %r1;
    @%p bra done;
    cvta.to.global.u64 %d3, %d1;
    cvta.to.global.u64 %d4, %d2;
    mul.wide.u32 %d5, %r6, 4;
    add.s64 %d3, %d3, %d5;
    add.s64 %d4, %d4, %d5;
    ld.global.u32 %r7, [%d4];
    ld.const.u32 %r8, [factor];
    mad.lo.s32 %r7, %r7, %r8, %r2;
    st.global.u32 [%d3], %r7;
done:
    ret;
}

.visible .entry bump()
{
    .reg .b32 %r<2>;
    ld.global.u32 %r1, [counter];
    add.s32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    ret;
}
)";

// Starts like PTX, and then does not parse.
inline const char *const BROKEN_PTX = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry broken()
{
    this is not an instruction;
    ret;
}
)";
