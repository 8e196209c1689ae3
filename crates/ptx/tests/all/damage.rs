//! Damaged texts: an error with its position, never a panic.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

const HEADER: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";

fn error(text: &str) -> katydid_ptx::ParseError {
    katydid_ptx::parse(&format!("{HEADER}{text}")).unwrap_err()
}

#[test]
fn errors_name_line_and_token() {
    let missing = error(".visible .entry k()\n{\n  add.u32 %r1, %r2 %r3;\n}");
    assert_eq!((missing.line, missing.token.as_str(), missing.message.as_str()), (6, "%r3", "expected ','"));
    assert_eq!(missing.to_string(), "line 6, column 20: expected ',' near '%r3'");
    assert_eq!(error(".entry k() { ").message, "expected a statement");
    assert_eq!(error(".entry k() { .weird x; }").message, "unknown directive");
    assert_eq!(error(".global .u32 x = ;").message, "expected a value");
    assert_eq!(katydid_ptx::parse("").unwrap_err().message, "a text without .version");
}

#[test]
fn deep_nesting_is_refused_instead_of_overflowing_the_stack() {
    for (open, around) in
        [("{", ".func f() {"), ("{", ".global .u8 x[] = {"), ("(", ".func f() { call f, ("), ("[", ".func f() { ld ")]
    {
        assert_eq!(error(&format!("{around}{}", open.repeat(100_000))).message, "nested too deeply");
    }
}

#[test]
fn every_prefix_and_many_mutations_of_a_text_are_survived() {
    let texts = [include_str!("../golden/module.ptx"), include_str!("../golden/body.ptx")];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for text in texts {
        for end in 0..text.len() {
            let _ = katydid_ptx::parse(text.get(..end).unwrap_or_default());
        }
        for _ in 0..3000 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = b"{}()[];:,.@|!<>=+-%_\"/*0x"[random(25)],
                    1 => drop(bytes.remove(at)),
                    _ => bytes.swap(at, random(text.len() - 8)),
                }
            }
            let _ = katydid_ptx::parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
