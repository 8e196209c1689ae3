// Operations on images of all kinds, whose shadows are their elements without gaps.
#pragma once
#include "buffers.h"

static cl_bool has_images;

static size_t elements_of(cl_channel_order order) { return order == CL_RGBA ? 4 : 1; }
static size_t bytes_of(cl_channel_type type) { return type == CL_UNSIGNED_INT8 ? 1 : type == CL_UNSIGNED_INT16 ? 2 : 4; }

static byte *texel(const object *o, size_t x, size_t y, size_t z) {
    return o->shadow + ((z * o->extent[1] + y) * o->extent[0] + x) * o->element;
}

// A box of an image; of arrays, their last number is which.
static void box_of(rng *r, const object *o, size_t *origin, size_t *region) {
    for (int i = 0; i < 3; i++) {
        region[i] = chance(r, 20) ? o->extent[i] : sized(r, o->extent[i]);
        origin[i] = below(r, o->extent[i] - region[i] + 1);
    }
}

static int is_supported(lane *l, const object *o) {
    cl_image_format all[256];
    cl_uint count = 0;
    CHECK(clGetSupportedImageFormats(l->context, CL_MEM_READ_WRITE, o->kind, 256, all, &count));
    for (cl_uint i = 0; i < count && i < 256; i++)
        if (!memcmp(&all[i], &o->format, sizeof o->format)) return 1;
    return 0;
}

// What an image is to be, all of it chosen before the driver is asked whether it has such.
static cl_image_desc shape_of(rng *r, object *o) {
    cl_mem_object_type kinds[] = {CL_MEM_OBJECT_IMAGE1D, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE3D, CL_MEM_OBJECT_IMAGE1D_ARRAY,
                                  CL_MEM_OBJECT_IMAGE2D_ARRAY, CL_MEM_OBJECT_IMAGE2D, CL_MEM_OBJECT_IMAGE1D_BUFFER};
    cl_image_format formats[] = {{CL_RGBA, CL_UNSIGNED_INT8}, {CL_RGBA, CL_UNSIGNED_INT32}, {CL_R, CL_UNSIGNED_INT32}, {CL_RGBA, CL_UNSIGNED_INT16}};
    o->kind = kinds[below(r, 7)], o->format = formats[below(r, 4)];
    o->element = elements_of(o->format.image_channel_order) * bytes_of(o->format.image_channel_data_type);
    size_t width = sized(r, 700), height = sized(r, 300), depth = sized(r, 20);
    int has_rows = o->kind != CL_MEM_OBJECT_IMAGE1D && o->kind != CL_MEM_OBJECT_IMAGE1D_BUFFER;
    int has_slices = o->kind == CL_MEM_OBJECT_IMAGE3D || o->kind == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    o->extent[0] = width, o->extent[1] = has_rows ? height : 1, o->extent[2] = has_slices ? depth : 1;
    cl_image_desc shape = {.image_type = o->kind, .image_width = width};
    if (o->kind == CL_MEM_OBJECT_IMAGE1D_ARRAY) shape.image_array_size = height;
    else if (has_rows) shape.image_height = height;
    if (o->kind == CL_MEM_OBJECT_IMAGE3D) shape.image_depth = depth;
    if (o->kind == CL_MEM_OBJECT_IMAGE2D_ARRAY) shape.image_array_size = depth;
    o->size = o->extent[0] * o->extent[1] * o->extent[2] * o->element;
    return shape;
}

// An image of a buffer is a part of it.
static int lies_in(lane *l, rng *r, object *o, cl_image_desc *shape) {
    object *of = l->objects[below(r, POOL)];
    if (!of || of->form != BUFFER || of->size < o->size) return 0;
    o->whole = of, o->shadow = of->shadow, o->flags = of->flags;
    shape->buffer = of->mem;
    of->parts++;
    return 1;
}

static void op_make_image(lane *l, rng *r) {
    object **place = &l->objects[below(r, POOL)], *o = calloc(1, sizeof *o);
    cl_image_desc shape = shape_of(r, o);
    o->form = IMAGE, o->flags = some_flags(r);
    int is_part = o->kind == CL_MEM_OBJECT_IMAGE1D_BUFFER;
    int fits = !*place && has_images && ALL - l->all > o->size && is_supported(l, o);
    if (!fits || (is_part && !lies_in(l, r, o, &shape))) {
        free(o);
        return;
    }
    cl_int code;
    byte *host = NULL;
    if (!is_part) {
        o->shadow = malloc(o->size), l->all += o->size;
        host = given(o, r);
    }
    o->mem = clCreateImage(l->context, is_part ? 0 : o->flags, &o->format, &shape, host, &code);
    CHECK(code);
    // PoCL does not tell of the end of an image of a buffer.
    if (!is_part) made(o, host);
    *place = o;
    if (host || is_part) return;
    command c = begin(l, r);
    cl_uint color[4] = {(cl_uint)below(r, 200), (cl_uint)below(r, 200), (cl_uint)below(r, 200), (cl_uint)below(r, 200)};
    size_t origin[3] = {0};
    for (size_t at = 0; at < o->size; at++) {
        size_t channel = at % o->element / bytes_of(o->format.image_channel_data_type);
        o->shadow[at] = at % bytes_of(o->format.image_channel_data_type) ? 0 : (byte)color[channel];
    }
    touch(&c, o, 1);
    CHECK(clEnqueueFillImage(queue_of(&c), o->mem, color, origin, o->extent, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

// How rows and slices of a box lie in the program's memory; pitches are given where there may be gaps.
static void pitches_of(rng *r, const object *o, const size_t *region, size_t *row, size_t *slice) {
    *row = *slice = 0;
    int has_slices = o->kind == CL_MEM_OBJECT_IMAGE3D || o->kind == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    if (!has_slices && o->kind != CL_MEM_OBJECT_IMAGE2D) return;
    if (chance(r, 50)) *row = region[0] * o->element + below(r, 3) * o->element;
    size_t least = (*row ? *row : region[0] * o->element) * region[1];
    if (has_slices && chance(r, 50)) *slice = least + (*row ? *row : region[0] * o->element) * below(r, 3);
}

static void op_image(lane *l, rng *r) {
    int writes = (int)below(r, 2), blocking = chance(r, 40);
    object *o = pick(l, r, writes, IMAGES);
    if (!o || !(writes ? host_writes(o) : host_reads(o))) return;
    size_t origin[3], region[3], row, slice;
    box_of(r, o, origin, region);
    pitches_of(r, o, region, &row, &slice);
    size_t line = region[0] * o->element, step = row ? row : line, layer = slice ? slice : step * region[1];
    check *host = expect(l, layer * (region[2] - 1) + step * (region[1] - 1) + line);
    byte *block = host->block + GUARD;
    scribble(block, host->size, next(r));
    memcpy(host->wanted, block, host->size);
    for (size_t z = 0; z < region[2]; z++) {
        for (size_t y = 0; y < region[1]; y++) {
            byte *shadow = texel(o, origin[0], origin[1] + y, origin[2] + z), *there = host->wanted + z * layer + y * step;
            memcpy(writes ? shadow : there, writes ? there : shadow, line);
        }
    }
    digest_of(l, host->wanted, host->size);
    command c = begin(l, r);
    touch(&c, o, writes);
    if (writes)
        CHECK(clEnqueueWriteImage(queue_of(&c), o->mem, (cl_bool)blocking, origin, region, row, slice, block, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueReadImage(queue_of(&c), o->mem, (cl_bool)blocking, origin, region, row, slice, block, waits(&c), list(&c), wanted(&c)));
    end(&c, blocking && !writes, host);
}

static void op_fill_image(lane *l, rng *r) {
    object *o = pick(l, r, 1, IMAGES);
    // PoCL ends the process that fills an image of a buffer.
    if (!o || o->whole) return;
    size_t origin[3], region[3], width = bytes_of(o->format.image_channel_data_type);
    cl_uint color[4];
    box_of(r, o, origin, region);
    for (int i = 0; i < 4; i++) color[i] = (cl_uint)(next(r) & (width == 4 ? ~0u : (1u << 8 * width) - 1));
    for (size_t z = 0; z < region[2]; z++)
        for (size_t y = 0; y < region[1]; y++)
            for (size_t x = 0; x < region[0]; x++) {
                byte *to = texel(o, origin[0] + x, origin[1] + y, origin[2] + z);
                for (size_t i = 0; i < o->element / width; i++) memcpy(to + i * width, &color[i], width);
            }
    command c = begin(l, r);
    touch(&c, o, 1);
    CHECK(clEnqueueFillImage(queue_of(&c), o->mem, color, origin, region, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

static void op_copy_image(lane *l, rng *r) {
    object *to = pick(l, r, 1, IMAGES), *from = pick(l, r, 0, IMAGES);
    // PoCL says of images of buffers that they are none.
    if (!to || !from || to->whole || from->whole || to == from || memcmp(&to->format, &from->format, sizeof to->format)) return;
    size_t origin[3], start[3], region[3];
    for (int i = 0; i < 3; i++) {
        region[i] = sized(r, to->extent[i] < from->extent[i] ? to->extent[i] : from->extent[i]);
        origin[i] = below(r, to->extent[i] - region[i] + 1), start[i] = below(r, from->extent[i] - region[i] + 1);
    }
    // A box of an array of lines has no counterpart in one of planes.
    int arrays = (to->kind == CL_MEM_OBJECT_IMAGE1D_ARRAY) + (from->kind == CL_MEM_OBJECT_IMAGE1D_ARRAY);
    if (arrays == 1 && region[1] > 1) return;
    if (arrays == 1 && (origin[1] || start[1])) return;
    for (size_t z = 0; z < region[2]; z++)
        for (size_t y = 0; y < region[1]; y++)
            memcpy(texel(to, origin[0], origin[1] + y, origin[2] + z), texel(from, start[0], start[1] + y, start[2] + z), region[0] * to->element);
    command c = begin(l, r);
    touch(&c, from, 0), touch(&c, to, 1);
    CHECK(clEnqueueCopyImage(queue_of(&c), from->mem, to->mem, start, origin, region, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}

// Between an image and a buffer, where the box lies without gaps.
static void op_image_and_buffer(lane *l, rng *r) {
    int into = (int)below(r, 2);
    // PoCL ends the process that does so with a part.
    object *image = pick(l, r, into, IMAGES), *buffer = pick(l, r, !into, 1 << BUFFER);
    if (!image || !buffer || root(image) == root(buffer)) return;
    size_t origin[3], region[3];
    box_of(r, image, origin, region);
    size_t line = region[0] * image->element, size = line * region[1] * region[2];
    if (buffer->size < size) return;
    size_t at = below(r, (buffer->size - size) / image->element + 1) * image->element;
    for (size_t z = 0; z < region[2]; z++) {
        for (size_t y = 0; y < region[1]; y++) {
            byte *there = texel(image, origin[0], origin[1] + y, origin[2] + z), *here = buffer->shadow + at + (z * region[1] + y) * line;
            memcpy(into ? there : here, into ? here : there, line);
        }
    }
    digest_of(l, buffer->shadow + at, size);
    command c = begin(l, r);
    touch(&c, image, into), touch(&c, buffer, !into);
    if (into)
        CHECK(clEnqueueCopyBufferToImage(queue_of(&c), buffer->mem, image->mem, at, origin, region, waits(&c), list(&c), wanted(&c)));
    else
        CHECK(clEnqueueCopyImageToBuffer(queue_of(&c), image->mem, buffer->mem, origin, region, at, waits(&c), list(&c), wanted(&c)));
    end(&c, 0, NULL);
}
