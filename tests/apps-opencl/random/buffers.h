// Operations on buffers, their parts, and shared virtual memory.
#pragma once
#include "model.h"

// Where parts of buffers may begin, on all devices that are looked for.
enum { ALIGNMENT = 4096 };

static cl_bool has_svm;

static void CL_CALLBACK destroyed(cl_mem mem, void *host) {
    (void)mem;
    free(host);
    atomic_fetch_add(&destructors_told, 1);
}

static void fill_new(lane *l, rng *r, object *o) {
    command c = begin(l, r);
    byte value = (byte)next(r);
    memset(o->shadow, value, o->size);
    touch(&c, o, 1);
    if (o->form == SVM)
        CHECK(clEnqueueSVMMemFill(queue_of(&c), o->host, &value, 1, o->size, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueFillBuffer(queue_of(&c), o->mem, &value, 1, 0, o->size, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

static object *new_object(lane *l, form form, size_t size) {
    object *o = calloc(1, sizeof *o);
    o->form = form, o->size = size, o->shadow = malloc(size);
    REQUIRE(o->shadow);
    l->all += size;
    return o;
}

static cl_mem_flags some_flags(rng *r) {
    cl_mem_flags host[] = {0, 0, CL_MEM_ALLOC_HOST_PTR, CL_MEM_USE_HOST_PTR, CL_MEM_COPY_HOST_PTR,
                           CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR};
    cl_mem_flags access[] = {0, 0, 0, 0, CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS};
    cl_mem_flags device[] = {0, CL_MEM_READ_WRITE};
    return host[below(r, 6)] | access[below(r, 7)] | device[below(r, 2)];
}

// The memory that a flag wants, with the object's contents: its own, or one that may go when the object is made.
static byte *given(object *o, rng *r) {
    if (!(o->flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR))) return NULL;
    byte *host = aligned_alloc(4096, (o->size + 4095) / 4096 * 4096);
    REQUIRE(host);
    scribble(o->shadow, o->size, next(r));
    memcpy(host, o->shadow, o->size);
    if (o->flags & CL_MEM_USE_HOST_PTR) o->host = host;
    return host;
}

// What was given for copying goes at once; memory that an object uses when that is gone.
static void made(object *o, byte *given) {
    if (given != o->host) free(given);
    atomic_fetch_add(&destructors_due, 1);
    CHECK(clSetMemObjectDestructorCallback(o->mem, destroyed, o->host));
}

static object *make_buffer(lane *l, rng *r, size_t most) {
    cl_int code;
    object *o = new_object(l, BUFFER, sized(r, most));
    o->flags = some_flags(r);
    byte *host = given(o, r);
    o->mem = clCreateBuffer(l->context, o->flags, o->size, host, &code);
    CHECK(code);
    made(o, host);
    if (!host) fill_new(l, r, o);
    return o;
}

static object *make_svm(lane *l, rng *r) {
    object *o = new_object(l, SVM, sized(r, 1 << 20));
    o->host = clSVMAlloc(l->context, CL_MEM_READ_WRITE, o->size, chance(r, 50) ? 0 : 64);
    REQUIRE(o->host);
    fill_new(l, r, o);
    return o;
}

static object *make_part(rng *r, object *of) {
    cl_int code;
    if (of->size <= (size_t)ALIGNMENT) return NULL;
    size_t offset = below(r, of->size / (size_t)ALIGNMENT) * (size_t)ALIGNMENT;
    cl_buffer_region region = {offset, sized(r, of->size - offset)};
    object *o = calloc(1, sizeof *o);
    o->form = PART, o->whole = of, o->offset = offset, o->size = region.size, o->shadow = of->shadow + offset;
    o->flags = of->flags;
    o->mem = clCreateSubBuffer(of->mem, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    CHECK(code);
    of->parts++;
    atomic_fetch_add(&destructors_due, 1);
    CHECK(clSetMemObjectDestructorCallback(o->mem, destroyed, NULL));
    return o;
}

// A new object in a free place, as far as there is memory for it.
static void op_make(lane *l, rng *r) {
    object **place = &l->objects[below(r, POOL)];
    size_t most = ALL - l->all < LARGEST ? ALL - l->all : LARGEST;
    if (*place || most < 4096) return;
    object *of = l->objects[below(r, POOL)];
    if (of && of->form == BUFFER && chance(r, 60)) *place = make_part(r, of);
    else if (has_svm && chance(r, 20)) *place = make_svm(l, r);
    else *place = make_buffer(l, r, most);
}

// A range of an object, and where it is in its shadow.
typedef struct { size_t at, size; byte *shadow; } range;

static range some_range(rng *r, const object *o) {
    size_t size = chance(r, 10) ? o->size : sized(r, o->size);
    size_t at = below(r, o->size - size + 1);
    return (range){at, size, o->shadow + at};
}

static void op_write(lane *l, rng *r) {
    object *o = pick(l, r, 1, RUNS);
    if (!o || !host_writes(o)) return;
    range part = some_range(r, o);
    int blocking = chance(r, 40);
    check *from = expect(l, part.size);
    scribble(from->wanted, part.size, next(r));
    memcpy(from->block + GUARD, from->wanted, part.size), memcpy(part.shadow, from->wanted, part.size);
    command c = begin(l, r);
    touch(&c, o, 1);
    if (o->form == SVM)
        CHECK(clEnqueueSVMMemcpy(queue_of(&c), (cl_bool)blocking, o->host + part.at, from->block + GUARD, part.size, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueWriteBuffer(queue_of(&c), o->mem, (cl_bool)blocking, part.at, part.size, from->block + GUARD, waits(&c), list(&c), wanted(&c)));
    digest_of(l, part.shadow, part.size);
    // A write that is waited for has taken its bytes, and need not have ended: nothing is known of what was before it.
    if (blocking && o->form != SVM) memset(from->block + GUARD, 0x5a, part.size), memset(from->wanted, 0x5a, part.size);
    end(&c, blocking && o->form == SVM, from);
}

static void op_read(lane *l, rng *r) {
    object *o = pick(l, r, 0, RUNS);
    if (!o || !host_reads(o)) return;
    range part = some_range(r, o);
    int blocking = chance(r, 40);
    check *to = expect(l, part.size);
    memcpy(to->wanted, part.shadow, part.size);
    digest_of(l, part.shadow, part.size);
    command c = begin(l, r);
    touch(&c, o, 0);
    if (o->form == SVM)
        CHECK(clEnqueueSVMMemcpy(queue_of(&c), (cl_bool)blocking, to->block + GUARD, o->host + part.at, part.size, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueReadBuffer(queue_of(&c), o->mem, (cl_bool)blocking, part.at, part.size, to->block + GUARD, waits(&c), list(&c), wanted(&c)));
    end(&c, blocking, to);
}

// Between two objects, or two ranges of one that do not overlap.
static void op_copy(lane *l, rng *r) {
    object *to = pick(l, r, 1, RUNS), *from = to ? pick(l, r, 0, to->form == SVM ? 1 << SVM : BUFFERS) : NULL;
    if (!from) return;
    size_t size = sized(r, to->size < from->size ? to->size : from->size);
    size_t at = below(r, to->size - size + 1), start = below(r, from->size - size + 1);
    byte *target = to->shadow + at, *source = from->shadow + start;
    if (root(to) == root(from) && target < source + size && source < target + size) return;
    memcpy(target, source, size);
    digest_of(l, target, size);
    command c = begin(l, r);
    touch(&c, from, 0), touch(&c, to, 1);
    if (to->form == SVM)
        CHECK(clEnqueueSVMMemcpy(queue_of(&c), CL_FALSE, to->host + at, from->host + start, size, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueCopyBuffer(queue_of(&c), from->mem, to->mem, start, at, size, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

static void op_fill(lane *l, rng *r) {
    object *o = pick(l, r, 1, RUNS);
    byte pattern[128];
    size_t unit = (size_t)1 << below(r, 8);
    if (!o || o->size < unit) return;
    scribble(pattern, unit, next(r));
    size_t units = sized(r, o->size / unit), at = below(r, o->size / unit - units + 1) * unit;
    for (size_t i = 0; i < units; i++) memcpy(o->shadow + at + i * unit, pattern, unit);
    digest(l, at + units);
    command c = begin(l, r);
    touch(&c, o, 1);
    if (o->form == SVM)
        CHECK(clEnqueueSVMMemFill(queue_of(&c), o->host + at, pattern, unit, units * unit, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueFillBuffer(queue_of(&c), o->mem, pattern, unit, at, units * unit, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

// A box in memory: its origin, and the pitches of what it lies in.
typedef struct { size_t origin[3], row, slice, size; } place;

// A place that has room for a box, beginning a little into it, with gaps or without.
static place some_place(rng *r, const size_t *box) {
    place p = {{below(r, 3), below(r, 3), below(r, 2)}, 0, 0, 0};
    p.row = p.origin[0] + box[0] + below(r, 5), p.slice = p.row * (p.origin[1] + box[1] + below(r, 3));
    p.size = p.slice * (p.origin[2] + box[2]);
    return p;
}

static size_t row_at(const place *p, size_t y, size_t z) {
    return (p->origin[2] + z) * p->slice + (p->origin[1] + y) * p->row + p->origin[0];
}

static void copy_box(byte *to, const place *at, const byte *from, const place *start, const size_t *box) {
    for (size_t z = 0; z < box[2]; z++)
        for (size_t y = 0; y < box[1]; y++) memcpy(to + row_at(at, y, z), from + row_at(start, y, z), box[0]);
}

static void op_rect(lane *l, rng *r) {
    int way = (int)below(r, 3), blocking = chance(r, 40);
    size_t box[3] = {sized(r, 5000), sized(r, 60), sized(r, 12)};
    place there = some_place(r, box), here = some_place(r, box);
    // PoCL ends the process that copies a box between parts.
    unsigned forms = way == 2 ? 1 << BUFFER : BUFFERS;
    object *o = pick(l, r, way == 1, forms);
    if (!o || o->size < there.size || (way == 0 && !host_reads(o)) || (way == 1 && !host_writes(o))) return;
    command c;
    if (way == 2) {
        object *to = pick(l, r, 1, forms);
        if (!to || root(to) == root(o) || to->size < here.size) return;
        copy_box(to->shadow, &here, o->shadow, &there, box);
        digest_of(l, to->shadow, here.size);
        c = begin(l, r);
        touch(&c, o, 0), touch(&c, to, 1);
        CHECK(clEnqueueCopyBufferRect(queue_of(&c), o->mem, to->mem, there.origin, here.origin, box, there.row, there.slice, here.row,
                                      here.slice, waits(&c), list(&c), wanted(&c)));
        end(&c, 0, NULL);
        return;
    }
    check *host = expect(l, here.size);
    byte *block = host->block + GUARD;
    scribble(block, here.size, next(r));
    memcpy(host->wanted, block, here.size);
    c = begin(l, r);
    touch(&c, o, way);
    if (way == 0) {
        copy_box(host->wanted, &here, o->shadow, &there, box);
        CHECK(clEnqueueReadBufferRect(queue_of(&c), o->mem, (cl_bool)blocking, there.origin, here.origin, box, there.row, there.slice,
                                      here.row, here.slice, block, waits(&c), list(&c), wanted(&c)));
    } else {
        copy_box(o->shadow, &there, block, &here, box);
        CHECK(clEnqueueWriteBufferRect(queue_of(&c), o->mem, (cl_bool)blocking, there.origin, here.origin, box, there.row, there.slice,
                                       here.row, here.slice, block, waits(&c), list(&c), wanted(&c)));
    }
    digest_of(l, host->wanted, here.size);
    end(&c, blocking && way == 0, host);
}
