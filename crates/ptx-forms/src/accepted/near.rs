//! Forms that are almost right: each seed with one thing changed.
//!
//! A seed is a line of `near/seeds.forms`, in which `(a;b)` gives alternatives; a line with `=` before it is no seed, but a form. A word of it is left out, written twice, or replaced
//! by another one of its kind; a type is replaced, with its registers or without them; a word is added; an operand is left out, added
//! or replaced by another kind. ptxas takes some of these forms and refuses most of them.

use std::collections::HashSet;

/// Types with the letters of their registers.
const TYPES: &[(&str, char)] = &[
    ("pred", 'p'),
    ("b8", 'h'),
    ("b16", 'h'),
    ("b32", 'r'),
    ("b64", 'l'),
    ("b128", 'q'),
    ("u8", 'h'),
    ("u16", 'h'),
    ("u32", 'r'),
    ("u64", 'l'),
    ("s8", 'h'),
    ("s16", 'h'),
    ("s32", 'r'),
    ("s64", 'l'),
    ("u16x2", 'r'),
    ("s16x2", 'r'),
    ("f16", 'h'),
    ("f16x2", 'r'),
    ("bf16", 'h'),
    ("bf16x2", 'r'),
    ("tf32", 'r'),
    ("f32", 'f'),
    ("f64", 'd'),
];
/// Types of the elements of matrices alone.
const ELEMENT_TYPES: &[(&str, char)] =
    &[("s4", 'r'), ("u4", 'r'), ("b1", 'r'), ("e4m3", 'r'), ("e5m2", 'r'), ("e4m3x2", 'h'), ("e5m2x2", 'h')];

/// Words of one kind.
const KINDS: &[&[&str]] = &[
    &["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "approx", "full"],
    &[
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
        "nan",
    ],
    &["and", "or", "xor", "add", "min", "max", "inc", "dec", "exch", "cas", "popc", "sub", "mul"],
    &["lo", "hi", "wide"],
    &["global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"],
    &["weak", "relaxed", "acquire", "release", "acq_rel", "sc", "volatile", "mmio"],
    &["cta", "cluster", "gpu", "sys", "gl"],
    &["ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc"],
    &["v2", "v4", "v8"],
    &["L1", "L2", "tensormap"],
    &["L1::evict_last", "L1::evict_first", "L1::evict_normal", "L1::evict_unchanged", "L1::no_allocate"],
    &["L2::evict_last", "L2::evict_first", "L2::evict_normal", "L2::evict_unchanged"],
    &["L2::64B", "L2::128B", "L2::256B"],
    &["1d", "2d", "3d", "4d", "5d", "a1d", "a2d", "cube", "acube", "2dms"],
    &["trap", "clamp", "zero", "wrap"],
    &["up", "down", "bfly", "idx"],
    &["all", "any", "uni", "ballot"],
    &["finite", "infinite", "number", "notanumber", "normal", "subnormal"],
    &[
        "m8n8k4",
        "m16n8k4",
        "m16n8k8",
        "m16n8k16",
        "m16n8k32",
        "m16n8k64",
        "m8n8k16",
        "m8n8k32",
        "m8n8k128",
        "m16n8k128",
        "m16n8k256",
        "m16n16k16",
        "m32n8k16",
        "m8n32k16",
        "m16n16k8",
    ],
    &["x1", "x2", "x4"],
    &["row", "col"],
    &["a", "b", "c", "d", "p", "r", "g"],
    &["width", "height", "depth", "channel_order", "array_size", "num_samples"],
    &["sync", "arrive", "wait", "red"],
    &["sat", "relu", "satfinite", "ftz", "NaN", "cc", "oob"],
    &["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"],
    &["inc", "dec"],
    &["tile", "im2col", "im2col_no_offs"],
    &["fractional", "range", "cvt"],
    &["commit_group", "wait_group", "wait_all"],
    &["alias", "async", "async::generic", "tensormap::generic"],
    &["base", "level", "grad"],
];

/// Words that most instructions do not have.
const ADDED: &[&str] = &[
    "rn",
    "rz",
    "approx",
    "ftz",
    "sat",
    "relu",
    "satfinite",
    "NaN",
    "cc",
    "lo",
    "wide",
    "and",
    "add",
    "eq",
    "sync",
    "aligned",
    "uni",
    "global",
    "shared",
    "local",
    "volatile",
    "relaxed",
    "acquire",
    "cta",
    "gpu",
    "ca",
    "nc",
    "wb",
    "v2",
    "v4",
    "L1::no_allocate",
    "L2::128B",
    "L2::cache_hint",
    "trap",
    "clamp",
    "noftz",
    "trans",
    "to",
    "x2",
    "s32",
    "b32",
];

/// What an operand is replaced by.
const OPERANDS: &[&str] = &[
    "r",
    "h",
    "f",
    "l",
    "d",
    "p",
    "q",
    "1",
    "-1",
    "1.0",
    "0f3F800000",
    "-r",
    "!p",
    "{r}",
    "{r, r}",
    "{f, f, f}",
    "[l]",
    "[r]",
    "[8]",
    "[l+1]",
    "%tid.x",
    "_",
];

/// A form, split into its words and operands.
#[derive(Clone)]
struct FormParts<'a> {
    words: Vec<&'a str>,
    operands: Vec<String>,
}

impl<'a> FormParts<'a> {
    fn of(form: &'a str) -> Self {
        let (name, operands) = form.split_once(' ').unwrap_or((form, ""));
        Self { words: name.split('.').collect(), operands: operands_of(operands) }
    }

    fn text(&self) -> String {
        format!("{} {}", self.words.join("."), self.operands.join(", ")).trim_end().to_owned()
    }

    /// The same with other words.
    fn with_words(&self, words: Vec<&str>) -> String {
        FormParts { words, operands: self.operands.clone() }.text()
    }
}

/// The operands of a text, split at the commas that stand in no braces or brackets.
fn operands_of(text: &str) -> Vec<String> {
    let (mut depth, mut operands) = (0, vec![String::new()]);
    for letter in text.chars() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                operands.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = operands.last_mut() {
            last.push(letter);
        }
    }
    operands.iter().map(|operand| operand.trim().to_owned()).filter(|operand| !operand.is_empty()).collect()
}

/// All readings of a line.
fn alternatives(line: &str) -> Vec<String> {
    let parts = line.split_once('(').and_then(|(before, rest)| Some((before, rest.split_once(')')?)));
    let Some((before, (choices, after))) = parts else { return vec![line.to_owned()] };
    let tails = alternatives(after);
    choices.split(';').flat_map(|choice| tails.iter().map(move |tail| format!("{before}{choice}{tail}"))).collect()
}

fn letter_of(word: &str) -> Option<char> {
    TYPES.iter().chain(ELEMENT_TYPES).find(|(name, _)| *name == word).map(|(_, letter)| *letter)
}

/// The operands with one letter for another.
fn relettered(operands: &[String], from: char, to: char) -> Vec<String> {
    let one = |operand: &String| operand.chars().map(|letter| if letter == from { to } else { letter }).collect();
    let alone = |operand: &&String| !operand.contains(['%', '.']);
    operands.iter().map(|operand| if alone(&operand) { one(operand) } else { operand.clone() }).collect()
}

/// The forms around the seeds, each once, in order.
pub(super) fn near_misses(seeds: &str) -> Vec<String> {
    let mut all = Collected::default();
    for line in seeds.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(form) = line.strip_prefix('=') {
            all.add(FormParts::of(form).text());
            continue;
        }
        for (index, form) in alternatives(line).iter().enumerate() {
            let parts = FormParts::of(form);
            all.add(parts.text());
            words_changed(&parts, &mut all);
            types_changed(&parts, &mut all);
            if index == 0 {
                words_added(&parts, &mut all);
                operands_changed(&parts, &mut all);
            }
        }
    }
    all.forms
}

#[derive(Default)]
struct Collected {
    forms: Vec<String>,
    known: HashSet<String>,
}

impl Collected {
    fn add(&mut self, form: String) {
        if self.known.insert(form.clone()) {
            self.forms.push(form);
        }
    }
}

fn words_changed(parts: &FormParts<'_>, all: &mut Collected) {
    for at in 1..parts.words.len() {
        let mut fewer = parts.words.clone();
        let word = fewer.remove(at);
        all.add(parts.with_words(fewer));
        let mut twice = parts.words.clone();
        twice.insert(at, word);
        all.add(parts.with_words(twice));
        for other in KINDS.iter().filter(|kind| kind.contains(&word)).flat_map(|kind| kind.iter()) {
            let mut changed = parts.words.clone();
            changed[at] = other;
            all.add(parts.with_words(changed));
        }
    }
}

fn types_changed(parts: &FormParts<'_>, all: &mut Collected) {
    let is_matrix = parts.words.first().is_some_and(|word| word.ends_with("mma") || *word == "cvt");
    for at in 1..parts.words.len() {
        let Some(from) = letter_of(parts.words[at]) else { continue };
        let elements = ELEMENT_TYPES.iter().filter(|_| is_matrix);
        for (ty, to) in TYPES.iter().chain(elements) {
            let mut changed = parts.clone();
            changed.words[at] = ty;
            all.add(changed.text());
            changed.operands = relettered(&parts.operands, from, *to);
            all.add(changed.text());
        }
    }
}

fn words_added(parts: &FormParts<'_>, all: &mut Collected) {
    for word in ADDED {
        let mut more = parts.words.clone();
        let at = more.iter().position(|word| letter_of(word).is_some()).unwrap_or(more.len());
        more.insert(at, word);
        all.add(parts.with_words(more));
    }
}

fn operands_changed(parts: &FormParts<'_>, all: &mut Collected) {
    let mut more = parts.clone();
    more.operands.push("r".to_owned());
    all.add(more.text());
    for at in 0..parts.operands.len() {
        let mut fewer = parts.clone();
        fewer.operands.remove(at);
        all.add(fewer.text());
        let mut changed = parts.clone();
        for other in OPERANDS {
            changed.operands[at] = (*other).to_owned();
            all.add(changed.text());
        }
        if let Some(inner) = parts.operands[at].strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            let first = inner.split(',').next().unwrap_or_default();
            changed.operands[at] = format!("{{{inner}, {first}}}");
            all.add(changed.text());
            changed.operands[at] = inner.rsplit_once(',').map_or(first.to_owned(), |(rest, _)| format!("{{{rest}}}"));
            all.add(changed.text());
        }
    }
}
