// What random_calls knows of its own objects: choices out of a seed, what each object holds (its shadow), which commands have
// touched it, and what commands have read that has to be looked at once they are known to have ended.
//
// The rule: a command waits, by events, markers or the order of its queue, for all commands before it that touch the same
// memory, if one of the two writes. So what each command sees follows from the seed alone, whatever the driver does when.
#pragma once
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

typedef unsigned char byte;

// Choices (splitmix64). What an operation chooses does not depend on what others chose before: it has a generator of its own.
typedef struct { uint64_t state; } rng;

static uint64_t next(rng *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t below(rng *r, uint64_t bound) { return next(r) % bound; }

static int chance(rng *r, int percent) { return (int)below(r, 100) < percent; }

// From 1 to `most`, each order of magnitude as likely as another.
static size_t sized(rng *r, size_t most) {
    int bits = 64 - __builtin_clzl(most);
    size_t top = (size_t)1 << below(r, (uint64_t)bits), value = top + below(r, top);
    return value < most ? value : most;
}

static void scribble(byte *place, size_t size, uint64_t seed) {
    rng r = {seed};
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word = next(&r);
        memcpy(place + at, &word, 8);
    }
    for (; at < size; at++) place[at] = (byte)next(&r);
}

enum { DEPENDENCIES = 6, MAPS = 3, POOL = 10, QUEUES = 3, TOUCHED = 4, HELPERS = 16 };
// Bytes of the largest buffer, of all of a lane's, and of what it may have under way.
enum { LARGEST = 40 << 20, ALL = 56 << 20, UNDER_WAY = 48 << 20 };

// A command that touches an object: its queue, which may be another thread's, and its event if it has one.
typedef struct { cl_command_queue queue; int writes; cl_event event; } dependency;

// A mapped region: of a buffer its offset and size, of an image its box.
typedef struct { byte *place; size_t at[3], size[3], row, slice; cl_map_flags flags; } mapping;

typedef enum { BUFFER, PART, IMAGE, SVM } form;

// A memory object. A part of a buffer, also an image that is one, has its shadow in that of the whole, which has its dependencies too.
typedef struct object {
    form form;
    cl_mem mem;
    cl_mem_flags flags;
    struct object *whole;
    byte *shadow, *host;
    size_t offset, size;
    int parts;
    dependency dependencies[DEPENDENCIES];
    int count;
    mapping maps[MAPS];
    int mapped, written;
    // Of an image.
    cl_mem_object_type kind;
    cl_image_format format;
    size_t element, extent[3];
} object;

// Memory that a command reads into or writes from, with what has to be there; looked at when the command is known to have ended.
typedef struct check {
    struct check *next;
    byte *block, *wanted;
    size_t size;
    int queue;
    cl_event event;
    // When it was begun, and by what.
    uint64_t step;
    const char *what;
} check;

enum { GUARD = 16 };

// What a thread has. Its digest is of its choices and of what they must have led to.
typedef struct lane {
    int number;
    uint64_t step;
    const char *what;
    rng choices;
    uint64_t digest;
    cl_context context;
    cl_program program;
    cl_kernel mix, join;
    cl_sampler samplers[2];
    cl_command_queue queues[QUEUES];
    object *objects[POOL], *shared;
    size_t all, under_way;
    check *checks;
    pthread_t helpers[HELPERS];
    int helping;
} lane;

static atomic_int callbacks_due, callbacks_told, destructors_due, destructors_told;

static int in_order(int queue) { return queue != 2; }

static void digest(lane *l, uint64_t value) { l->digest = (l->digest ^ value) * 0x100000001b3u; }

static object *root(const object *o) { return o->whole ? o->whole : (object *)o; }

// Of all bytes where there are few; of some of many.
static void digest_of(lane *l, const byte *bytes, size_t size) {
    for (size_t at = 0; at < size; at += 1 + size / 256) digest(l, bytes[at]);
}

// Checks.

static void forget(lane *l, check *c) {
    if (c->event) CHECK(clReleaseEvent(c->event));
    l->under_way -= c->size;
    free(c->block), free(c->wanted), free(c);
}

static void look(check *c) {
    byte *got = c->block + GUARD;
    for (size_t i = 0; i < GUARD; i++) REQUIRE(c->block[i] == 0xa5 && got[c->size + i] == 0xa5);
    if (memcmp(got, c->wanted, c->size) == 0) return;
    size_t at = 0, wrong = 0, last = 0;
    while (got[at] == c->wanted[at]) at++;
    for (size_t i = at; i < c->size; i++)
        if (got[i] != c->wanted[i]) wrong++, last = i;
    printf("step %lu, %s: %zu of %zu bytes are wrong, from %zu to %zu: %02x where %02x has to be\n", (unsigned long)c->step, c->what, wrong,
           c->size, at, last, got[at], c->wanted[at]);
    fflush(stdout);
    abort();
}

// Looks at all that `ended` says has ended, and forgets it.
static void settle(lane *l, int (*ended)(const check *, const void *), const void *what) {
    for (check **place = &l->checks; *place;) {
        check *c = *place;
        if (!ended(c, what)) {
            place = &c->next;
            continue;
        }
        *place = c->next;
        look(c);
        forget(l, c);
    }
}

static int is_of_queue(const check *c, const void *queue) { return c->queue == *(const int *)queue; }
static int is_one(const check *c, const void *one) { return c == one; }

static void queue_ended(lane *l, int queue) { settle(l, is_of_queue, &queue); }

static void finish(lane *l, int queue) {
    CHECK(clFinish(l->queues[queue]));
    queue_ended(l, queue);
}

// Memory between guards, and a copy of what will have to be in it, which the caller fills.
static check *expect(lane *l, size_t size) {
    while (l->under_way + size > UNDER_WAY && l->checks) finish(l, l->checks->queue);
    check *c = calloc(1, sizeof *c);
    c->block = malloc(size + 2 * GUARD), c->wanted = malloc(size), c->size = size;
    c->step = l->step, c->what = l->what;
    REQUIRE(c->block && c->wanted);
    memset(c->block, 0xa5, size + 2 * GUARD);
    l->under_way += size;
    return c;
}

// Commands.

typedef struct {
    lane *lane;
    rng *choices;
    int queue, count, touched, wants;
    cl_event waits[DEPENDENCIES * TOUCHED + 2], event;
    object *objects[TOUCHED];
    int writes[TOUCHED];
} command;

static void *set_later(void *data) {
    cl_event gate = data;
    rng r = {(uint64_t)(size_t)gate};
    usleep((useconds_t)below(&r, 1500));
    CHECK(clSetUserEventStatus(gate, CL_COMPLETE));
    CHECK(clReleaseEvent(gate));
    return NULL;
}

static void help(lane *l, void *(*work)(void *), void *data) {
    if (l->helping == HELPERS)
        while (l->helping) pthread_join(l->helpers[--l->helping], NULL);
    REQUIRE(pthread_create(&l->helpers[l->helping++], NULL, work, data) == 0);
}

static command begin(lane *l, rng *r) {
    command c = {.lane = l, .choices = r, .queue = (int)below(r, QUEUES), .wants = chance(r, 60)};
    if (chance(r, 4)) {
        cl_int code;
        cl_event gate = clCreateUserEvent(l->context, &code);
        CHECK(code);
        CHECK(clRetainEvent(gate));
        help(l, set_later, gate);
        c.waits[c.count++] = gate;
    }
    return c;
}

// The event of a dependency; one without has a marker of its queue, which comes behind it.
static cl_event event_of(dependency *d) {
    if (!d->event) CHECK(clEnqueueMarkerWithWaitList(d->queue, 0, NULL, &d->event));
    return d->event;
}

// The command will read or write an object: it waits for those before it.
static void touch(command *c, object *o, int writes) {
    object *whole = root(o);
    for (int i = 0; i < whole->count; i++) {
        dependency *d = &whole->dependencies[i];
        if (!writes && !d->writes) continue;
        int follows = d->queue == c->lane->queues[c->queue] && in_order(c->queue);
        if (follows && !(d->event && chance(c->choices, 20))) continue;
        cl_event event = event_of(d);
        CHECK(clRetainEvent(event));
        c->waits[c->count++] = event;
    }
    for (int i = 0; i < c->touched; i++) {
        if (c->objects[i] != whole) continue;
        c->writes[i] |= writes;
        return;
    }
    c->objects[c->touched] = whole, c->writes[c->touched++] = writes;
}

static cl_command_queue queue_of(command *c) { return c->lane->queues[c->queue]; }
static cl_uint waits(const command *c) { return (cl_uint)c->count; }
static const cl_event *list(const command *c) { return c->count ? c->waits : NULL; }
static cl_event *wanted(command *c) { return c->wants ? &c->event : NULL; }

// One event for all that an object has.
static void join_dependencies(lane *l, object *o) {
    cl_event all[DEPENDENCIES], one;
    int writes = 0;
    for (int i = 0; i < o->count; i++) all[i] = event_of(&o->dependencies[i]), writes |= o->dependencies[i].writes;
    CHECK(clEnqueueMarkerWithWaitList(l->queues[0], (cl_uint)o->count, all, &one));
    for (int i = 0; i < o->count; i++) CHECK(clReleaseEvent(all[i]));
    o->dependencies[0] = (dependency){l->queues[0], writes, one}, o->count = 1;
}

static void drop_dependencies(object *o) {
    for (int i = 0; i < o->count; i++)
        if (o->dependencies[i].event) CHECK(clReleaseEvent(o->dependencies[i].event));
    o->count = 0;
}

static void note(command *c, object *o, int writes) {
    if (writes) drop_dependencies(o);
    if (o->count == DEPENDENCIES) join_dependencies(c->lane, o);
    if (c->event) CHECK(clRetainEvent(c->event));
    o->dependencies[o->count++] = (dependency){queue_of(c), writes, c->event};
}

static void CL_CALLBACK told(cl_event event, cl_int status, void *data) {
    (void)event;
    REQUIRE(status >= CL_COMPLETE && status <= (cl_int)(size_t)data);
    atomic_fetch_add(&callbacks_told, 1);
}

// The command is enqueued; `reads` has what it reads into or writes from, if that is the program's for as long as it takes.
static void end(command *c, int blocking, check *reads) {
    lane *l = c->lane;
    for (int i = 0; i < c->touched; i++) note(c, c->objects[i], c->writes[i]);
    for (int i = 0; i < c->count; i++) CHECK(clReleaseEvent(c->waits[i]));
    if (c->event && chance(c->choices, 15)) {
        cl_int states[] = {CL_COMPLETE, CL_RUNNING, CL_SUBMITTED}, state = states[below(c->choices, 3)];
        atomic_fetch_add(&callbacks_due, 1);
        CHECK(clSetEventCallback(c->event, state, told, (void *)(size_t)state));
    }
    if (blocking && in_order(c->queue)) queue_ended(l, c->queue);
    if (reads && blocking) {
        look(reads);
        forget(l, reads);
    } else if (reads) {
        if (c->event) CHECK(clRetainEvent(c->event));
        reads->queue = c->queue, reads->event = c->event;
        reads->next = l->checks, l->checks = reads;
    }
    if (c->event) CHECK(clReleaseEvent(c->event));
}

// Which commands an object allows.

static int host_reads(const object *o) { return !(o->flags & (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS)); }
static int host_writes(const object *o) { return !(o->flags & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS)); }

// While a region is mapped for writing no command may have the object, and none may change it while one is mapped.
static int is_free(const object *o, int writes) { return writes ? !root(o)->mapped : !root(o)->written; }

// One of the lane's objects that a command may have, if the first look finds one.
static object *pick(lane *l, rng *r, int writes, unsigned forms) {
    for (int i = 0; i < 4; i++) {
        object *o = l->objects[below(r, POOL)];
        if (o && (forms & 1u << o->form) && is_free(o, writes)) return o;
    }
    return NULL;
}

enum { BUFFERS = 1 << BUFFER | 1 << PART, IMAGES = 1 << IMAGE, RUNS = BUFFERS | 1 << SVM };
