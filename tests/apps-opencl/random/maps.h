// Mapped regions of buffers, images and shared virtual memory: made, left for a while, looked at, written and given back.
#pragma once
#include "images.h"

static byte *row_of(const mapping *m, size_t y, size_t z) { return m->place + z * m->slice + y * m->row; }

// The shadow of a row of a region.
static byte *shadow_of(const object *o, const mapping *m, size_t y, size_t z) {
    if (o->form != IMAGE) return o->shadow + m->at[0];
    return texel(o, m->at[0], m->at[1] + y, m->at[2] + z);
}

static size_t row_size(const object *o, const mapping *m) { return o->form == IMAGE ? m->size[0] * o->element : m->size[0]; }

static cl_map_flags some_map(rng *r, const object *o) {
    if (!is_free(o, 1)) return CL_MAP_READ;
    cl_map_flags all[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
    return all[below(r, 4)];
}

static void enqueue_map(command *c, object *o, mapping *m, int blocking) {
    cl_int code = CL_SUCCESS;
    if (o->form == SVM) {
        m->place = o->host + m->at[0];
        code = clEnqueueSVMMap(queue_of(c), (cl_bool)blocking, m->flags, m->place, m->size[0], waits(c), list(c), wanted(c));
    } else if (o->form == IMAGE) {
        m->place = clEnqueueMapImage(queue_of(c), o->mem, (cl_bool)blocking, m->flags, m->at, m->size, &m->row, &m->slice, waits(c),
                                     list(c), wanted(c), &code);
        if (o->kind == CL_MEM_OBJECT_IMAGE1D_ARRAY) m->row = m->slice;
    } else {
        m->place = clEnqueueMapBuffer(queue_of(c), o->mem, (cl_bool)blocking, m->flags, m->at[0], m->size[0], waits(c), list(c), wanted(c), &code);
        byte *host = root(o)->host;
        if (host) REQUIRE(m->place == host + o->offset + m->at[0]);
    }
    CHECK(code);
    REQUIRE(m->place);
}

static void look_at(lane *l, const object *o, const mapping *m) {
    for (size_t z = 0; z < m->size[2]; z++) {
        for (size_t y = 0; y < m->size[1]; y++) {
            const byte *wanted = shadow_of(o, m, y, z);
            digest_of(l, wanted, row_size(o, m));
            for (size_t i = 0; i < row_size(o, m); i++) {
                if (row_of(m, y, z)[i] == wanted[i]) continue;
                printf("byte %zu of row %zu of slice %zu is %02x in a map of form %d, flags %lu, and has to be %02x\n", i, y, z,
                       row_of(m, y, z)[i], o->form, (unsigned long)m->flags, wanted[i]);
                fflush(stdout);
                abort();
            }
        }
    }
}

static void change(lane *l, rng *r, object *o, mapping *m) {
    int all = m->flags & CL_MAP_WRITE_INVALIDATE_REGION || chance(r, 40);
    size_t from = all ? 0 : below(r, row_size(o, m)), size = all ? row_size(o, m) : sized(r, row_size(o, m) - from);
    for (size_t z = 0; z < m->size[2]; z++) {
        for (size_t y = 0; y < m->size[1]; y++) {
            byte *wanted = shadow_of(o, m, y, z) + from;
            scribble(wanted, size, next(r));
            memcpy(row_of(m, y, z) + from, wanted, size);
            digest_of(l, wanted, size);
        }
    }
}

static void op_unmap_of(lane *l, rng *r, object *o, int which) {
    mapping m = o->maps[which];
    for (int i = which; i + 1 < MAPS; i++) o->maps[i] = o->maps[i + 1];
    o->maps[MAPS - 1].place = NULL;
    root(o)->mapped--, root(o)->written -= m.flags != CL_MAP_READ;
    command c = begin(l, r);
    // Behind the map itself, too.
    touch(&c, o, 1);
    if (o->form == SVM) CHECK(clEnqueueSVMUnmap(queue_of(&c), m.place, waits(&c), list(&c), wanted(&c)));
    else CHECK(clEnqueueUnmapMemObject(queue_of(&c), o->mem, m.place, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

static int maps_of(const object *o) {
    int count = 0;
    while (count < MAPS && o->maps[count].place) count++;
    return count;
}

static void op_map(lane *l, rng *r) {
    object *o = pick(l, r, 0, RUNS | IMAGES);
    if (!o || maps_of(o) == MAPS || (o->form == SVM && o->mapped)) return;
    mapping m = {.flags = some_map(r, o), .size = {1, 1, 1}};
    if ((m.flags & CL_MAP_READ && !host_reads(o)) || (m.flags != CL_MAP_READ && !host_writes(o))) return;
    if (o->form == IMAGE) {
        box_of(r, o, m.at, m.size);
    } else {
        range part = some_range(r, o);
        m.at[0] = part.at, m.size[0] = part.size;
    }
    int blocking = chance(r, 50), writes = m.flags != CL_MAP_READ;
    // Some maps are given back before the program has looked whether they are there: what is mapped stays as it is.
    int leaves = !blocking && !(m.flags & CL_MAP_WRITE_INVALIDATE_REGION) && chance(r, 25);
    command c = begin(l, r);
    c.wants |= !blocking;
    // A map of a region for writing comes behind all others, and before all that follow.
    touch(&c, o, writes);
    enqueue_map(&c, o, &m, blocking);
    cl_event ready = c.event;
    if (ready) CHECK(clRetainEvent(ready));
    int queue = c.queue;
    end(&c, blocking, NULL);
    if (!blocking && !leaves) {
        if (chance(r, 30)) finish(l, queue);
        else CHECK(clWaitForEvents(1, &ready));
    }
    if (ready) CHECK(clReleaseEvent(ready));
    root(o)->mapped++, root(o)->written += writes;
    int at = maps_of(o);
    o->maps[at] = m;
    if (!leaves && !(m.flags & CL_MAP_WRITE_INVALIDATE_REGION)) look_at(l, o, &m);
    if (writes && !leaves) change(l, r, o, &m);
    if (leaves || chance(r, 60)) op_unmap_of(l, r, o, at);
}

// Gives back one of the maps that were left, of which other commands may have read meanwhile.
static void op_unmap(lane *l, rng *r) {
    object *o = l->objects[below(r, POOL)];
    int count = o ? maps_of(o) : 0;
    if (!count) return;
    int which = (int)below(r, (uint64_t)count);
    look_at(l, o, &o->maps[which]);
    op_unmap_of(l, r, o, which);
}
