//! Every known table id: first those of served tables, by their index, then those of refused ones.

/// The 16 bytes of a table id, in memory order.
pub type Id = [u8; 16];

/// One known id. The name is that of public sources, or Katydid's own.
pub(crate) struct KnownId {
    pub(crate) id: u128,
    pub(crate) name: &'static str,
}

const fn entry(id: u128, name: &'static str) -> KnownId {
    KnownId { id, name }
}

/// Indices of the served tables in the catalogue; messages about unimplemented slots name tables by them.
pub(crate) const CUDART_INDEX: usize = 0;
pub(crate) const HOOKS_INDEX: usize = 1;
pub(crate) const THREAD_CONTEXT_INDEX: usize = 2;
pub(crate) const CHECKS_INDEX: usize = 4;
pub(crate) const INTEGRITY_INDEX: usize = 5;
pub(crate) const TOOLS_CONTEXT_INDEX: usize = 6;
pub(crate) const TOOLS_MODULE_INDEX: usize = 7;
pub(crate) const SM_MAP_INDEX: usize = 8;
pub(crate) const NVRTC_CACHE_INDEX: usize = 9;

/// The served tables are at their indices, the refused ones after them. Ids are written as one number whose most significant
/// byte is byte 0 of the id.
pub(crate) static KNOWN_TABLES: [KnownId; 24] = [
    entry(0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9, "CUDART"),
    entry(0xa094798c_2e74_2e74_93f2_0800200c0a66, "HOOKS"),
    entry(0x42d85a81_23f6_cb47_8298_f6e78a3aecdc, "TLS"),
    entry(0xc693336e_1121_df11_a8c3_68f355d89593, "CONTEXT_LOCAL_STORAGE"),
    entry(0x263e8860_7cd2_6143_92f6_bbd5006dfa7e, "CHECKS"),
    entry(0xd4082055_bde6_704b_8d34_ba123c66e1f2, "INTEGRITY"),
    entry(0x21318c60_9714_3248_8ca6_41ff7324c8f2, "TOOLS_CONTEXT"),
    entry(0x6e163fbe_b958_444d_835c_e182aff1991e, "TOOLS_MODULE"),
    entry(0x1734dc26_800d_4745_8726_c0f1e7dd8bca, "SM_MAP"),
    entry(0xda9151d3_3ae6_cc41_a5c0_4f26d533e328, "NVRTC_CACHE"),
    entry(0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9, "ERROR_LOG"),
    entry(0x69a28e9f_2449_8b47_b030_c5da330ea4e9, "NVML_SIDE"),
    entry(0xb10541e1_f7c7_c74a_9f64_f223be99f1e2, "DEVICE_EXTENDED_RT"),
    entry(0x195bcbf4_d67d_024a_acc5_1d29cea631ae, "HEAP_ACCESS"),
    entry(0x0ca50b8c_1004_929a_89a7_d0df10e77286, "CTX_CREATE_BYPASS"),
    entry(0xdd9e98a4_f410_4844_99b0_e2aeb7b432b5, "HYBRID_CUDART"),
    entry(0xbfdb432d_bf3c_5a4a_945e_b34029e81e75, "TOOLS_MEMORY"),
    entry(0xa6b1ff99_ecc4_c94f_92f9_1928663d5585, "TOOLS_PUSH_BUFFER"),
    entry(0xcc529e94_5c4e_9d46_837c_9625868334e4, "TOOLS_TRAP_HANDLER"),
    entry(0x7cb63f9b_9ca4_8e42_a484_beb66e6aed7f, "CUPTI"),
    entry(0x127d4831_ee33_5744_9742_b8447b7a2364, "TOOLS_127D4831"),
    entry(0x2c8e0ad8_0710_ab4e_90dd_54719fe5f74b, "TOOLS_2C8E0AD8"),
    entry(0xd7bd8af8_e7ac_ca4a_bdbc_fb1f1b3fcf33, "TOOLS_D7BD8AF8"),
    entry(0xa31746d1_5475_ef4e_aeb6_dfb1476add6c, "TOOLS_A31746D1"),
];

/// Returns the name of the table at an index of the catalogue, for messages.
pub(crate) fn named(index: usize) -> String {
    KNOWN_TABLES.get(index).map_or_else(String::new, |entry| {
        format!("the private table {} ({})", entry.name, spelled(&entry.id.to_be_bytes()))
    })
}

/// Returns the name of an id, if it has one.
pub(crate) fn name_of(id: &Id) -> &'static str {
    KNOWN_TABLES.iter().find(|entry| entry.id.to_be_bytes() == *id).map_or("of an unknown name", |entry| entry.name)
}

/// Returns the name of an id with its groups, for lists.
pub fn title(id: &Id) -> String {
    format!("{} ({})", name_of(id), spelled(id))
}

/// Returns the id in 8-4-4-4-12 groups.
pub(crate) fn spelled(id: &Id) -> String {
    let group = |range: std::ops::Range<usize>| id[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [group(0..4), group(4..6), group(6..8), group(8..10), group(10..16)].join("-")
}
