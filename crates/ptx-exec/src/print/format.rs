//! C's `printf`, for a format and an argument buffer that is packed as by the device compiler.
//!
//! Arguments have 4 or 8 bytes, each at a multiple of its size. Nothing here can fail: an invalid conversion is printed as it
//! stands.

/// Source of arguments and strings.
pub(crate) trait Arguments {
    /// Returns the next argument of 4 bytes.
    fn word(&mut self) -> u32;
    /// Returns the next argument of 8 bytes.
    fn double_word(&mut self) -> u64;
    /// Returns the string at a device address, without its NUL.
    fn string(&mut self, address: u64) -> Vec<u8>;
}

/// One conversion specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Whether the integer has 8 bytes (`l` or `ll`).
    long: bool,
    /// Number of bits that an integer is cut to.
    bits: u32,
    conversion: u8,
}

/// Limit of widths and precisions, so that one conversion cannot take all memory.
const MAX_WIDTH_CHARS: usize = 4096;

/// Formats `text` as `printf` does, with these arguments.
pub(crate) fn format(text: &[u8], arguments: &mut dyn Arguments) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 32);
    let mut remaining = text;
    while let Some(at) = remaining.iter().position(|byte| *byte == b'%') {
        let (plain, spec) = remaining.split_at(at);
        out.extend_from_slice(plain);
        remaining = conversion(spec, arguments, &mut out);
    }
    out.extend_from_slice(remaining);
    out
}

/// Formats the conversion at the start of `text`; returns the text behind it.
fn conversion<'a>(text: &'a [u8], arguments: &mut dyn Arguments, out: &mut Vec<u8>) -> &'a [u8] {
    let mut spec = Spec { bits: 32, ..Spec::default() };
    let mut at = flags(text, 1, &mut spec);
    let width = number(text, &mut at, arguments);
    spec.left |= width < 0;
    spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(0).min(MAX_WIDTH_CHARS);
    if text.get(at) == Some(&b'.') {
        at += 1;
        let precision = number(text, &mut at, arguments);
        spec.precision = usize::try_from(precision).ok().map(|precision| precision.min(MAX_WIDTH_CHARS));
    }
    at = length(text, at, &mut spec);
    let Some(conversion) = text.get(at) else {
        out.extend_from_slice(text);
        return &[];
    };
    spec.conversion = *conversion;
    let rest = text.get(at + 1..).unwrap_or_default();
    match spec.conversion {
        b'%' => out.push(b'%'),
        b'd' | b'i' | b'u' | b'o' | b'x' | b'X' => integer(spec, arguments, out),
        b'c' => pad(spec, vec![arguments.word() as u8], out),
        b's' => string(spec, arguments, out),
        b'p' => pointer(spec, arguments, out),
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => float(spec, arguments, out),
        _ => out.extend_from_slice(text.get(..=at).unwrap_or_default()),
    }
    rest
}

/// Reads flags in any order; returns the position behind them.
fn flags(text: &[u8], mut at: usize, spec: &mut Spec) -> usize {
    loop {
        match text.get(at) {
            Some(b'-') => spec.left = true,
            Some(b'+') => spec.plus = true,
            Some(b' ') => spec.space = true,
            Some(b'#') => spec.alternate = true,
            Some(b'0') => spec.zero = true,
            _ => return at,
        }
        at += 1;
    }
}

/// Reads a decimal number, or takes the next argument for `*`.
fn number(text: &[u8], at: &mut usize, arguments: &mut dyn Arguments) -> i64 {
    if text.get(*at) == Some(&b'*') {
        *at += 1;
        return i64::from(arguments.word().cast_signed());
    }
    let mut value = 0_i64;
    while let Some(digit) = text.get(*at).filter(|byte| byte.is_ascii_digit()) {
        value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        *at += 1;
    }
    value
}

/// Reads `hh h l ll j z t L`; returns the position behind them.
fn length(text: &[u8], mut at: usize, spec: &mut Spec) -> usize {
    loop {
        match text.get(at) {
            Some(b'h') => spec.bits /= 2,
            Some(b'l' | b'j' | b'z' | b't') => spec.long = true,
            Some(b'L') => {}
            _ => return at,
        }
        at += 1;
    }
}

/// Formats `d i u o x X`. A precision is a minimum number of digits, and turns the zero flag off.
fn integer(spec: Spec, arguments: &mut dyn Arguments, out: &mut Vec<u8>) {
    let raw = if spec.long { arguments.double_word() } else { u64::from(arguments.word()) };
    let unused = if spec.long { 0 } else { 64 - spec.bits.max(8) };
    let signed = (raw << unused).cast_signed() >> unused;
    let unsigned = raw << unused >> unused;
    let decimal = matches!(spec.conversion, b'd' | b'i');
    let digits = match spec.conversion {
        b'd' | b'i' => signed.unsigned_abs().to_string(),
        b'o' => format!("{unsigned:o}"),
        b'x' => format!("{unsigned:x}"),
        b'X' => format!("{unsigned:X}"),
        _ => unsigned.to_string(),
    };
    let digits = if spec.precision == Some(0) && unsigned == 0 { String::new() } else { digits };
    let prefix = match spec.conversion {
        b'x' if spec.alternate && unsigned != 0 => "0x",
        b'X' if spec.alternate && unsigned != 0 => "0X",
        b'o' if spec.alternate && !digits.starts_with('0') => "0",
        _ if decimal => sign(spec, signed < 0),
        _ => "",
    };
    let digits = format!("{digits:0>width$}", width = spec.precision.unwrap_or(0));
    number_field(Spec { zero: spec.zero && spec.precision.is_none(), ..spec }, prefix, &digits, out);
}

/// Returns the sign that stands before a number.
fn sign(spec: Spec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

/// Formats a number in its field; zeroes go between prefix and digits.
fn number_field(spec: Spec, prefix: &str, digits: &str, out: &mut Vec<u8>) {
    let length = prefix.len() + digits.len();
    let zeroes = if spec.zero && !spec.left { spec.width.saturating_sub(length) } else { 0 };
    pad(spec, format!("{prefix}{}{digits}", "0".repeat(zeroes)).into_bytes(), out);
}

/// Formats any text in its field.
fn pad(spec: Spec, text: Vec<u8>, out: &mut Vec<u8>) {
    let blanks = vec![b' '; spec.width.saturating_sub(text.len())];
    let (first, second) = if spec.left { (text, blanks) } else { (blanks, text) };
    out.extend(first);
    out.extend(second);
}

/// Formats `s`, cut to the precision. A null pointer is printed as by the C library.
fn string(spec: Spec, arguments: &mut dyn Arguments, out: &mut Vec<u8>) {
    let address = arguments.double_word();
    let mut text = if address == 0 { b"(null)".to_vec() } else { arguments.string(address) };
    text.truncate(spec.precision.unwrap_or(usize::MAX));
    pad(spec, text, out);
}

/// Formats `p`.
fn pointer(spec: Spec, arguments: &mut dyn Arguments, out: &mut Vec<u8>) {
    let address = arguments.double_word();
    let text = if address == 0 { "(nil)".to_owned() } else { format!("{address:#x}") };
    pad(spec, text.into_bytes(), out);
}

/// Formats `f e g a` in both cases. Infinities and NaN are never padded with zeroes.
fn float(spec: Spec, arguments: &mut dyn Arguments, out: &mut Vec<u8>) {
    let value = f64::from_bits(arguments.double_word());
    let magnitude = value.abs();
    let digits = if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        "inf".to_owned()
    } else {
        finite(spec, magnitude)
    };
    let upper = spec.conversion.is_ascii_uppercase();
    let digits = if upper { digits.to_ascii_uppercase() } else { digits };
    let prefix = sign(spec, value.is_sign_negative());
    number_field(Spec { zero: spec.zero && value.is_finite(), ..spec }, prefix, &digits, out);
}

/// Returns the digits of a finite magnitude.
fn finite(spec: Spec, value: f64) -> String {
    let precision = spec.precision.unwrap_or(6);
    match spec.conversion.to_ascii_lowercase() {
        b'f' => with_point(spec, format!("{value:.precision$}")),
        b'e' => scientific(spec, value, precision),
        b'g' => general(spec, value, precision.max(1)),
        _ => hexadecimal(spec, value),
    }
}

/// Appends the point that `#` asks for even if no digits follow.
fn with_point(spec: Spec, digits: String) -> String {
    if spec.alternate && !digits.contains('.') { digits + "." } else { digits }
}

/// Returns mantissa and decimal exponent of `value`, rounded to `precision` digits after the point.
fn decimal_parts(value: f64, precision: usize) -> (String, i32) {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (mantissa.to_owned(), exponent.parse().unwrap_or(0))
}

/// Returns a decimal exponent with at least two digits.
fn exponent_text(exponent: i32) -> String {
    format!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

/// Returns a number such as `1.5e+01`.
fn scientific(spec: Spec, value: f64, precision: usize) -> String {
    let (mantissa, exponent) = decimal_parts(value, precision);
    with_point(spec, mantissa) + &exponent_text(exponent)
}

/// Returns the notation of the two that C's rule chooses, without trailing zeroes.
fn general(spec: Spec, value: f64, precision: usize) -> String {
    let (mantissa, exponent) = decimal_parts(value, precision - 1);
    let strip = |digits: String| {
        if spec.alternate || !digits.contains('.') {
            return with_point(spec, digits);
        }
        digits.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let exponent_limit = i32::try_from(precision).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= exponent_limit {
        return strip(mantissa) + &exponent_text(exponent);
    }
    let digit_count = usize::try_from(exponent_limit - 1 - exponent).unwrap_or(0);
    strip(format!("{value:.digit_count$}"))
}

/// Returns a number such as `0x1.8p+1`; a precision cuts digits without rounding.
fn hexadecimal(spec: Spec, value: f64) -> String {
    let bits = value.to_bits();
    let biased = ((bits >> 52) & 0x7ff) as i32;
    let fraction = format!("{:013x}", bits & ((1 << 52) - 1));
    let (lead, exponent) = match (biased, bits) {
        (_, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, biased - 1023),
    };
    let digits = match spec.precision {
        Some(precision) => fraction.get(..precision.min(13)).unwrap_or_default(),
        None => fraction.trim_end_matches('0'),
    };
    let point = if digits.is_empty() && !spec.alternate { "" } else { "." };
    format!("0x{lead}{point}{digits}p{}{}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of arguments, in which every string is "text".
    struct List(Vec<u64>);

    impl Arguments for List {
        fn word(&mut self) -> u32 {
            self.0.remove(0) as u32
        }

        fn double_word(&mut self) -> u64 {
            self.0.remove(0)
        }

        fn string(&mut self, _: u64) -> Vec<u8> {
            b"text".to_vec()
        }
    }

    fn print(text: &str, arguments: &[u64]) -> String {
        String::from_utf8(format(text.as_bytes(), &mut List(arguments.to_vec()))).unwrap()
    }

    fn print_float(text: &str, value: f64) -> String {
        print(text, &[value.to_bits()])
    }

    #[test]
    fn integers_in_every_shape() {
        let minus_five = u64::from((-5_i32).cast_unsigned());
        assert_eq!(print("%d %5d|%-5d|%05d %+d", &[minus_five, 42, 42, minus_five, 7]), "-5    42|42   |-0005 +7");
        assert_eq!(print("%u %x %#X %o %#o", &[minus_five, 255, 255, 8, 8]), "4294967291 ff 0XFF 10 010");
        assert_eq!(
            print("%lld %llu %lx %hhd %hd", &[u64::MAX, u64::MAX, 1 << 40, 0xff, 0xffff]),
            "-1 18446744073709551615 10000000000 -1 -1"
        );
        assert_eq!(print("%.3d|%8.3d|%.0d|%*d|%-*d|", &[5, 5, 0, 4, 5, 4, 5]), "005|     005||   5|5   |");
    }

    #[test]
    fn floats_in_every_shape() {
        assert_eq!(print_float("%f", 1.5), "1.500000");
        assert_eq!(print_float("%.0f", 2.5), "2");
        assert_eq!(print_float("%8.2f", -3.24159), "   -3.24");
        assert_eq!(print_float("%08.2f", -3.24159), "-0003.24");
        assert_eq!(print_float("%e", 12345.678), "1.234568e+04");
        assert_eq!(print_float("%.2E", 0.000_123), "1.23E-04");
        for (value, text) in
            [(100_000.0, "100000"), (1e6, "1e+06"), (0.0001, "0.0001"), (0.00001, "1e-05"), (0.0, "0"), (1.25, "1.25")]
        {
            assert_eq!(print_float("%g", value), text);
        }
        assert_eq!(print_float("%#g|", 1.0), "1.00000|");
        assert_eq!(print_float("%f", f64::NAN), "nan");
        assert_eq!(print_float("%5.1F|", f64::NEG_INFINITY), " -INF|");
        assert_eq!(print_float("%a", 3.0), "0x1.8p+1");
    }

    #[test]
    fn the_rest() {
        assert_eq!(print("100%% %c|%3c %s|%.2s|%6s", &[65, 66, 1, 1, 1]), "100% A|  B text|te|  text");
        assert_eq!(print("%s %p %p", &[0, 0, 0xabc]), "(null) (nil) 0xabc");
        assert_eq!(print("50%! off %y %", &[]), "50%! off %y %");
    }
}
