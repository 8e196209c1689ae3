//! Predicts the driver's answers about an image in given memory without gaps: the standard defines them all. If the first image
//! of a kind confirms them, later ones that cannot fail need no wait for the driver.

use std::collections::{HashMap, HashSet};

use katydid_opencl_sys::constant::{
    DEVICE_IMAGE_MAX_ARRAY_SIZE, DEVICE_IMAGE2D_MAX_HEIGHT, DEVICE_IMAGE2D_MAX_WIDTH, DEVICE_IMAGE3D_MAX_DEPTH,
    DEVICE_IMAGE3D_MAX_HEIGHT, DEVICE_IMAGE3D_MAX_WIDTH, DEVICE_MAX_MEM_ALLOC_SIZE, IMAGE_ARRAY_SIZE, IMAGE_DEPTH,
    IMAGE_ELEMENT_SIZE, IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_NUM_MIP_LEVELS, IMAGE_NUM_SAMPLES, IMAGE_ROW_PITCH,
    IMAGE_SLICE_PITCH, IMAGE_WIDTH, MEM_ALLOC_HOST_PTR, MEM_COPY_HOST_PTR, MEM_OBJECT_IMAGE1D,
    MEM_OBJECT_IMAGE1D_ARRAY, MEM_OBJECT_IMAGE2D, MEM_OBJECT_IMAGE2D_ARRAY, MEM_OBJECT_IMAGE3D, MEM_READ_ONLY,
    MEM_READ_WRITE, MEM_SIZE, MEM_USE_HOST_PTR, MEM_WRITE_ONLY,
};
use katydid_opencl_sys::{Code, cl_image_desc, cl_image_format};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::query;

use crate::objects::device::Device;

/// Kind, channel order, channel type, and the flags for the driver.
pub(crate) type ImageForm = (u32, u32, u32, u64);

/// The flags of kernel accesses to an image.
pub(crate) const KERNEL_ACCESS_FLAGS: u64 = MEM_READ_WRITE | MEM_READ_ONLY | MEM_WRITE_ONLY;

/// Kind, channel order, bytes of an element, and the flags for the driver without kernel accesses. The layout of an image depends
/// neither on the channel type, which says what its bytes mean, nor on how kernels access it.
type ImageLayout = (u32, u32, usize, u64);

/// Kinds of images that a worker's driver makes in place, and describes as the standard says.
#[derive(Debug, Default)]
pub(crate) struct KnownForms {
    /// The worker's number ([`crate::process::session::worker`]).
    worker: u32,
    forms: HashSet<ImageForm>,
    layouts: HashSet<ImageLayout>,
    /// Formats that the driver has listed, by flags and kind.
    lists: HashMap<(u64, u32), Vec<u8>>,
}

impl KnownForms {
    /// Returns whether a worker's driver makes images of this form, with `element` bytes each element, in a context of `devices`
    /// devices. It has made one, or it has made one of the same layout and lists the format. With several devices, a listed
    /// format may be one device's alone.
    pub(crate) fn has(&mut self, worker: u32, form: &ImageForm, element: usize, devices: usize) -> bool {
        if self.worker != worker {
            return false;
        }
        let may_be_listed = devices == 1 && self.layouts.contains(&layout(form, element));
        if may_be_listed && !self.forms.contains(form) && self.lists(form) {
            self.forms.insert(*form);
        }
        self.forms.contains(form)
    }

    /// Returns whether the driver has listed the format.
    fn lists(&self, &(kind, order, channel, flags): &ImageForm) -> bool {
        let format = [order, channel].map(u32::to_le_bytes).concat();
        let of_form = |of: &(u64, u32)| of.1 == kind && without_memory(of.0) == flags;
        self.lists.iter().any(|(of, list)| of_form(of) && list.chunks_exact(format.len()).any(|one| one == format))
    }

    /// Records that the driver makes images of a form.
    pub(crate) fn learn(&mut self, worker: u32, form: ImageForm, element: usize) {
        self.of_worker(worker);
        self.layouts.insert(layout(&form, element));
        self.forms.insert(form);
    }

    /// Returns the formats that a worker's driver has listed for flags and a kind.
    pub(crate) fn list(&self, worker: u32, flags: u64, kind: u32) -> Option<Vec<u8>> {
        self.lists.get(&(flags, kind)).filter(|_| self.worker == worker).cloned()
    }

    /// Records an encoded list of formats.
    pub(crate) fn learn_list(&mut self, worker: u32, flags: u64, kind: u32, list: Vec<u8>) {
        self.of_worker(worker);
        self.lists.insert((flags, kind), list);
    }

    /// Forgets what is known of another worker's driver.
    fn of_worker(&mut self, worker: u32) {
        if self.worker != worker {
            *self = Self { worker, ..Self::default() };
        }
    }
}

fn layout(&(kind, order, _, flags): &ImageForm, element: usize) -> ImageLayout {
    (kind, order, element, flags & !KERNEL_ACCESS_FLAGS)
}

/// Returns flags without those that say where an image's memory comes from.
pub(crate) fn without_memory(flags: u64) -> u64 {
    flags & !(MEM_ALLOC_HOST_PTR | MEM_COPY_HOST_PTR | MEM_USE_HOST_PTR)
}

/// Returns the sizes that an image's kind uses: width, height, depth, images.
fn sizes(shape: &cl_image_desc) -> [usize; 4] {
    let (width, height) = (shape.image_width, shape.image_height);
    match shape.image_type {
        MEM_OBJECT_IMAGE1D_ARRAY => [width, 0, 0, shape.image_array_size],
        MEM_OBJECT_IMAGE2D => [width, height, 0, 0],
        MEM_OBJECT_IMAGE2D_ARRAY => [width, height, 0, shape.image_array_size],
        MEM_OBJECT_IMAGE3D => [width, height, shape.image_depth, 0],
        _ => [width, 0, 0, 0],
    }
}

/// Returns the facts that a worker would report of an image with elements of `element` bytes.
pub(crate) fn expected(format: &cl_image_format, shape: &cl_image_desc, element: usize) -> Vec<u8> {
    let [width, height, depth, images] = sizes(shape);
    let row = width * element;
    let slice = match shape.image_type {
        MEM_OBJECT_IMAGE1D_ARRAY => row,
        MEM_OBJECT_IMAGE2D_ARRAY | MEM_OBJECT_IMAGE3D => row * height,
        _ => 0,
    };
    let bytes = row * height.max(1) * depth.max(1) * images.max(1);
    let number = |value: usize| (value as u64).to_le_bytes().to_vec();
    let channels = [format.image_channel_order, format.image_channel_data_type];
    let of_image = [
        (IMAGE_FORMAT, channels.into_iter().flat_map(u32::to_le_bytes).collect()),
        (IMAGE_ELEMENT_SIZE, number(element)),
        (IMAGE_ROW_PITCH, number(row)),
        (IMAGE_SLICE_PITCH, number(slice)),
        (IMAGE_WIDTH, number(width)),
        (IMAGE_HEIGHT, number(height)),
        (IMAGE_DEPTH, number(depth)),
        (IMAGE_ARRAY_SIZE, number(images)),
        (IMAGE_NUM_MIP_LEVELS, vec![0; 4]),
        (IMAGE_NUM_SAMPLES, vec![0; 4]),
    ];
    let mut facts = Vec::new();
    let answers = of_image.into_iter().map(|(parameter, value): (u32, Vec<u8>)| (query::IMAGE, parameter, value));
    for (query, parameter, value) in answers.chain([(query::MEMORY, MEM_SIZE, number(bytes))]) {
        query.put(&mut facts);
        parameter.put(&mut facts);
        value.put(&mut facts);
    }
    facts
}

/// Returns whether a device supports images of these sizes.
pub(crate) fn fits(device: &Device, shape: &cl_image_desc, bytes: usize) -> Result<bool, Code> {
    let [width, height, depth, images] = sizes(shape);
    let most: &[(u32, usize)] = match shape.image_type {
        MEM_OBJECT_IMAGE1D => &[(DEVICE_IMAGE2D_MAX_WIDTH, width)],
        MEM_OBJECT_IMAGE1D_ARRAY => &[(DEVICE_IMAGE2D_MAX_WIDTH, width), (DEVICE_IMAGE_MAX_ARRAY_SIZE, images)],
        MEM_OBJECT_IMAGE2D => &[(DEVICE_IMAGE2D_MAX_WIDTH, width), (DEVICE_IMAGE2D_MAX_HEIGHT, height)],
        MEM_OBJECT_IMAGE2D_ARRAY => &[
            (DEVICE_IMAGE2D_MAX_WIDTH, width),
            (DEVICE_IMAGE2D_MAX_HEIGHT, height),
            (DEVICE_IMAGE_MAX_ARRAY_SIZE, images),
        ],
        MEM_OBJECT_IMAGE3D => {
            &[(DEVICE_IMAGE3D_MAX_WIDTH, width), (DEVICE_IMAGE3D_MAX_HEIGHT, height), (DEVICE_IMAGE3D_MAX_DEPTH, depth)]
        }
        _ => return Ok(false),
    };
    for (parameter, size) in most.iter().copied().chain([(DEVICE_MAX_MEM_ALLOC_SIZE, bytes)]) {
        if size == 0 || size as u64 > device.number(parameter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::cl_mem;
    use katydid_opencl_sys::constant::MEM_HOST_NO_ACCESS;

    use super::*;

    const FORMAT: cl_image_format = cl_image_format { image_channel_order: 0x10b5, image_channel_data_type: 0x10de };

    fn shape(image_type: u32) -> cl_image_desc {
        cl_image_desc {
            image_type,
            image_width: 10,
            image_height: 6,
            image_depth: 5,
            image_array_size: 3,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            mem_object: cl_mem::NULL,
        }
    }

    /// Returns a value of eight bytes from a list of facts.
    fn find_fact(facts: &[u8], query: u32, parameter: u32) -> Option<u64> {
        let mut left = facts;
        while let (Some(of), Some(what), Some(value)) =
            (u32::take(&mut left), u32::take(&mut left), Vec::<u8>::take(&mut left))
        {
            if (of, what) == (query, parameter) {
                return u64::take(&mut &value[..]);
            }
        }
        None
    }

    #[test]
    fn sizes_and_pitches_are_those_of_the_kind() {
        let of = |kind| {
            let facts = expected(&FORMAT, &shape(kind), 16);
            let image = [IMAGE_ROW_PITCH, IMAGE_SLICE_PITCH, IMAGE_HEIGHT, IMAGE_DEPTH, IMAGE_ARRAY_SIZE];
            (
                image.map(|parameter| find_fact(&facts, query::IMAGE, parameter)),
                find_fact(&facts, query::MEMORY, MEM_SIZE),
            )
        };
        let some = |numbers: [u64; 5]| numbers.map(Some);
        assert_eq!(of(MEM_OBJECT_IMAGE1D), (some([160, 0, 0, 0, 0]), Some(160)));
        assert_eq!(of(MEM_OBJECT_IMAGE1D_ARRAY), (some([160, 160, 0, 0, 3]), Some(480)));
        assert_eq!(of(MEM_OBJECT_IMAGE2D), (some([160, 0, 6, 0, 0]), Some(960)));
        assert_eq!(of(MEM_OBJECT_IMAGE2D_ARRAY), (some([160, 960, 6, 0, 3]), Some(2880)));
        assert_eq!(of(MEM_OBJECT_IMAGE3D), (some([160, 960, 6, 5, 0]), Some(4800)));
    }

    #[test]
    fn image_formats_of_one_worker_do_not_apply_to_another() {
        let (mut forms, form) = (KnownForms::default(), (1, 2, 3, 4));
        forms.learn(0, form, 8);
        assert!(forms.has(0, &form, 8, 1) && !forms.has(1, &form, 8, 1) && !forms.has(0, &(1, 2, 3, 5), 8, 1));
        assert!(forms.has(0, &form, 8, 2), "what was made needs no list");
        forms.learn(1, (1, 2, 3, 5), 8);
        assert!(!forms.has(1, &form, 8, 1) && !forms.has(0, &form, 8, 1));
    }

    #[test]
    fn a_listed_format_is_made_where_another_of_its_layout_was() {
        let list = |channels: &[[u32; 2]]| channels.iter().flatten().copied().flat_map(u32::to_le_bytes).collect();
        let mut forms = KnownForms::default();
        forms.learn(0, (1, 2, 3, 4), 8);
        let other = (1, 2, 7, 4);
        assert!(!forms.has(0, &other, 8, 1), "the driver may not have it");
        forms.learn_list(0, 4 | MEM_COPY_HOST_PTR, 1, list(&[[2, 3], [2, 7], [9, 7]]));
        assert_eq!(forms.list(0, 4 | MEM_COPY_HOST_PTR, 1).map(|list| list.len()), Some(24));
        assert!(!forms.has(0, &other, 8, 2), "one of two devices may not have it");
        assert!(forms.has(0, &other, 8, 1) && !forms.has(0, &(1, 2, 8, 4), 8, 1) && !forms.has(0, &(1, 2, 7, 5), 8, 1));
        assert!(!forms.has(0, &(1, 9, 7, 4), 8, 1), "another order");
        assert!(!forms.has(0, &(1, 2, 7, MEM_WRITE_ONLY), 8, 1), "kernels may not write to the format");
        forms.learn_list(0, MEM_WRITE_ONLY, 1, list(&[[2, 7]]));
        assert!(forms.has(0, &(1, 2, 7, MEM_WRITE_ONLY), 8, 1), "other accesses of kernels");
        forms.learn_list(0, MEM_HOST_NO_ACCESS, 1, list(&[[2, 7]]));
        assert!(!forms.has(0, &(1, 2, 7, MEM_HOST_NO_ACCESS), 8, 1), "other accesses of the program");
        let mut wider = KnownForms::default();
        wider.learn(0, (1, 2, 3, 4), 8);
        wider.learn_list(0, 4, 1, list(&[[2, 7]]));
        assert!(!wider.has(0, &other, 16, 1), "larger elements");
        assert_eq!((wider.list(1, 4, 1), wider.list(0, 4, 2)), (None, None));
    }
}
