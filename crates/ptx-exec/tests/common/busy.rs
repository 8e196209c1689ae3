//! A kernel with some of everything that a running grid can be in the middle of.

/// Number of threads in a block, whose last warp is not full.
pub(crate) const THREADS: u32 = 72;

/// Returns the text of the kernel. Its parameters are the results (a word for each thread) and a counter. It has loops with
/// divergence, calls with frames in local memory, warp operations, barriers, shared memory and a variable. Blocks of a
/// cooperative launch also wait for each other.
pub(crate) fn text(cooperative: bool) -> String {
    // Every block adds one to the first word of the workspace and waits until all three have done so.
    let meet = "
        mov.u32 %r10, %envreg1; mov.u32 %r11, %envreg2; mov.b64 %d9, {%r11, %r10};
        bar.sync 0;
        setp.ne.u32 %p2, %r1, 0; @%p2 bra MET;
        atom.add.acq_rel.gpu.u32 %r12, [%d9], 1;
        WAIT: ld.acquire.gpu.u32 %r12, [%d9]; setp.lt.u32 %p2, %r12, 3; @%p2 bra WAIT;
        MET: bar.sync 0;";
    let meet = if cooperative { meet } else { "" };
    format!(
        ".global .align 4 .u32 salt[4] = {{11, 22, 33, 44}};
        .func (.param .b32 r) mix(.param .b32 x, .param .b32 n) {{
            .local .align 8 .b8 kept[16]; .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<3>;
            ld.param.b32 %r1, [x]; ld.param.b32 %r2, [n]; mov.u64 %d1, kept; st.local.u32 [%d1+4], %r1;
            setp.eq.u32 %p, %r2, 0; @%p bra LEAF;
            sub.u32 %r3, %r2, 1; mad.lo.u32 %r4, %r1, 5, %r2;
            {{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r4; st.param.b32 [b], %r3;
               call.uni (c), mix, (a, b); ld.param.b32 %r5, [c]; }}
            ld.local.u32 %r6, [%d1+4]; xor.b32 %r1, %r6, %r5;
            LEAF: add.u32 %r1, %r1, 7; st.param.b32 [r], %r1; ret;
        }}
        .visible .entry k(.param .u64 out, .param .u64 counter) {{
            .shared .align 4 .b8 slots[512];
            .reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %d<12>; .reg .f64 %f<3>;
            ld.param.u64 %d1, [out]; ld.param.u64 %d2, [counter];
            mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, {THREADS}, %r1;
            mad.wide.u32 %d3, %r3, 4, %d1; mov.u32 %r4, slots; mad.lo.u32 %r4, %r1, 4, %r4;
            cvt.rn.f64.u32 %f1, %r3; mov.u32 %r5, 0; mov.u32 %r6, %r3;
            LOOP: and.b32 %r7, %r6, 3; setp.ne.u32 %p1, %r7, 0; @%p1 bra OTHER;
            and.b32 %r8, %r1, 7;
            {{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r6; st.param.b32 [b], %r8;
               call.uni (c), mix, (a, b); ld.param.b32 %r6, [c]; }}
            bra.uni JOIN;
            OTHER: mul.wide.u32 %d4, %r7, 4; mov.u64 %d5, salt; add.u64 %d5, %d5, %d4; ld.global.u32 %r9, [%d5];
            mad.lo.u32 %r6, %r6, 1664525, %r9; fma.rn.f64 %f1, %f1, 0d3FF199999999999A, 0d3FE0000000000000;
            atom.global.add.u32 %r9, [%d2], 1;
            JOIN: st.shared.u32 [%r4], %r6; bar.sync 0;
            mov.u32 %r9, slots; ld.shared.u32 %r9, [%r9+64]; bar.sync 0; add.u32 %r6, %r6, %r9;
            shfl.sync.bfly.b32 %r9, %r6, 1, 31, 0xffffffff; xor.b32 %r6, %r6, %r9;
            add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 24; @%p3 bra LOOP;
            {meet}
            cvt.rzi.u32.f64 %r9, %f1; add.u32 %r6, %r6, %r9; st.global.u32 [%d3], %r6; ret;
        }}"
    )
}
