//! Constant expressions as operands and initial values. The values are those that ptxas 13.0 puts into `.global .u64`.

use katydid_ptx::ast::{Initial, Item, Operand, Statement};

/// Returns the initial value of a variable.
fn initial(expression: &str) -> Result<Vec<Initial<'_>>, String> {
    let text = format!(".version 9.0 .target sm_90 .global .u64 a = {expression};").leak();
    let mut module = katydid_ptx::parse(text).map_err(|error| error.message)?;
    match module.items.pop() {
        Some(Item::Variable(variable)) => Ok(variable.initial),
        other => Err(format!("{other:?}")),
    }
}

/// Returns the operands of an instruction.
fn operands(instruction: &str) -> Result<Vec<Operand<'_>>, String> {
    let text = format!(".version 9.0 .target sm_90 .func f() {{ {instruction} }}").leak();
    let mut module = katydid_ptx::parse(text).map_err(|error| error.message)?;
    let body = match module.items.pop() {
        Some(Item::Function(function)) => function.body,
        _ => None,
    };
    match body.and_then(|mut body| body.pop()) {
        Some(Statement::Instruction(instruction)) => Ok(instruction.operands),
        other => Err(format!("{other:?}")),
    }
}

/// Expressions and their values.
const INTEGERS: &[(&str, i64)] = &[
    ("(3+4)*2-1", 13),
    ("1<<4|2", 18),
    ("5>3?7:8", 7),
    ("10 % 3", 1),
    ("10/3", 3),
    ("~5", -6),
    ("!0", 1),
    ("!7", 0),
    ("(.u64)5", 5),
    ("-7/2", -3),
    ("-7 % 2", 1),
    ("-7>>1", -4),
    ("(.u64)-7>>60", 15),
    ("-7/2U", 9_223_372_036_854_775_804),
    ("-7 % 5U", 4),
    ("7-10", -3),
    ("-1>0", 0),
    ("-1>0U", 1),
    ("-1>(.u64)0", 1),
    ("(.s64)0xffffffffffffffff>0", 0),
    ("0xffffffffffffffff>0", 1),
    ("0x7fffffffffffffff+1", i64::MIN),
    ("0xffffffffffffffff/2", i64::MAX),
    ("9223372036854775808/2", 4_611_686_018_427_387_904),
    ("1<<70", 64),
    ("1<<64", 1),
    ("1<<63", i64::MIN),
    ("1>>64", 1),
    ("-1>>64", -1),
    ("-1>>70", -1),
    ("1<<-1", i64::MIN),
    ("2+3*4", 14),
    ("2*3+4", 10),
    ("10-3-2", 5),
    ("100/10/2", 5),
    ("1|2^3&5", 3),
    ("1==1==1", 1),
    ("3>2>1", 0),
    ("1<2==1", 1),
    ("1<<2+1", 8),
    ("8>>1<<1", 8),
    ("5&3==3", 1),
    ("1||0&&0", 1),
    ("0?1:2?3:4", 3),
    ("1?2:0?3:4", 2),
    ("-2+3", 1),
    ("- -2", 2),
    ("-(2)", -2),
    ("!(3>2)", 0),
    ("~~5", 5),
    ("!!5", 1),
    ("-~5", 6),
    ("~-5", 4),
    ("(.s64)(.u64)-5/2", -2),
    ("2U-3", -1),
    ("(2U-3)/2", i64::MAX),
    ("(2U-3)>0", 1),
    ("(2-3U)>>1", i64::MAX),
    ("5-3*2", -1),
    ("0x10+010+0b11", 27),
    ("1&&2", 1),
    ("2&&0.5>0.25", 1),
    ("WARP_SZ*2", 64),
    ("!0U-2", -1),
    ("(!0U-2)<0", 1),
    ("(~0U)/2", i64::MAX),
    ("(~0)/2", i64::MAX),
    ("(1?-1:1U)/2", 0),
    ("(1?-1:1U)<0", 1),
    ("(-1<<1)/2", -1),
    ("(-1<<1U)/2", -1),
    ("(4U>>1)-3<0", 0),
    ("(4>>1U)-3<0", 1),
    ("(3U==3)-2<0", 1),
    ("(-5 & 7)", 3),
    ("(-1&-1)<0", 1),
    ("(-1|0)<0", 1),
    ("(-1^0)<0", 1),
    ("(-1&&1)-2<0", 1),
    ("+5", 5),
    ("-0", 0),
    ("-9223372036854775808/2", 4_611_686_018_427_387_904),
    ("(-7 % 2)-2<0", 0),
    ("(7 % 2)-2<0", 0),
    ("(1?1U:-1)-2<0", 0),
    ("(0?1U:-1)-2<0", 1),
    ("(1?1:1U)-2<0", 1),
    ("(0?1U:1)-2<0", 1),
    ("(-1&1U)-2<0", 0),
    ("(1U&1)-2<0", 0),
    ("(1&1U)-2<0", 0),
    ("(1|1U)-2<0", 0),
    ("(1U|1)-2<0", 0),
    ("(1U^0)-2<0", 0),
    ("(1^0U)-2<0", 0),
    ("(1U&&1)-2<0", 1),
    ("(!1U)-2<0", 1),
    ("(1U>0)-2<0", 1),
    ("(0x1)-2<0", 1),
    ("(0xffffffff)-0x1ffffffff<0", 1),
    ("-(1U)<0", 0),
    ("+(1U)-2<0", 0),
    ("(1U*1)-2<0", 0),
    ("(1*1U)-2<0", 0),
    ("(1/1U)-2<0", 0),
    ("(1U<<1)-3<0", 0),
    ("(1<<1U)-3<0", 1),
    ("WARP_SZ-33<0", 1),
    ("(1?2:3)?4:5", 4),
    ("1?1?2:3:4", 2),
    ("-9223372036854775807-1<0", 1),
    ("(.s64)9223372036854775808/2", -4_611_686_018_427_387_904),
    ("(-9223372036854775807-1) % -1", i64::MIN),
    ("8 % 3 % 2", 0),
    ("2*7 % 4", 2),
    ("7 % 4*2", 6),
    ("1<2U", 1),
    ("-1<2U", 0),
    ("-1==0xffffffffffffffff", 1),
    ("-1>>1U", -1),
    ("-1>>(1U)", -1),
    ("1 + 2", 3),
    ("0b11", 3),
    ("!-1", 0),
    ("1!=2", 1),
    ("1>=2", 0),
    ("1<=1", 1),
    ("1==1!=0", 1),
    ("4&6|1", 5),
    ("1&2==2", 1),
    ("3|4&&0", 0),
    ("0^1|2", 3),
    ("1<<1<2", 0),
];

#[test]
fn integers_have_the_values_that_ptxas_gives_them() {
    for (expression, value) in INTEGERS {
        assert_eq!(initial(expression), Ok(vec![Initial::Int(value.cast_unsigned())]), "{expression}");
    }
}

#[test]
fn floats_are_computed_in_64_bits() {
    for (expression, value) in [
        ("1.5*2.0", 3.0),
        ("1.5-2.0-3.0", -3.5),
        ("-(1.5)", -1.5),
        ("7.0/2.0", 3.5),
        ("0d3FF0000000000000*2.0", 2.0_f64),
    ] {
        assert_eq!(initial(expression), Ok(vec![Initial::F64(value.to_bits())]), "{expression}");
    }
    assert_eq!(initial("1.5==1.5"), Ok(vec![Initial::Int(1)]));
}

#[test]
fn what_is_no_constant_expression_is_refused() {
    for expression in [
        "1/0",
        "1 % 0",
        "1.0/0.0",
        "1.5*2",
        "1>0.5",
        "1.5?1:2",
        "1?1:2.5",
        "!1.5",
        "~1.5",
        "(.u64)1.5",
        "(.u32)5",
        "1=2",
        "1.5&&1.0",
        "1.5 % 1.0",
        "0f3F800000+1",
        "(1",
        "1+",
        "1?2",
        "(-9223372036854775807-1)/-1",
    ] {
        assert!(initial(expression).is_err(), "{expression}: {:?}", initial(expression));
    }
    assert_eq!(initial(&format!("{}1", "(".repeat(100_000))), Err("nested too deeply".to_owned()));
    assert_eq!(initial(&format!("{}1", "1?2:".repeat(100_000))), Err("nested too deeply".to_owned()));
    assert_eq!(initial(&"1+".repeat(10_000)), Err("expected a value".to_owned()));
}

#[test]
fn operands_and_offsets_are_expressions() {
    use Operand::{Address, F64, Int, List, Name, Offset, Pair, Vector};
    let of = |text| operands(text);
    assert_eq!(of("mov.u32 r, (3+4)*2-1;"), Ok(vec![Name("r"), Int(13)]));
    assert_eq!(of("mov.u32 r, !0;"), Ok(vec![Name("r"), Int(1)]));
    assert_eq!(of("mov.u32 r, WARP_SZ*2;"), Ok(vec![Name("r"), Int(64)]));
    assert_eq!(of("mov.f32 r, -(1.5);"), Ok(vec![Name("r"), F64((-1.5_f64).to_bits())]));
    assert_eq!(of("ld.u32 r, [a+4*2];"), Ok(vec![Name("r"), Address { base: Some("a"), offset: 8 }]));
    assert_eq!(of("ld.u32 r, [a+3+1];"), Ok(vec![Name("r"), Address { base: Some("a"), offset: 4 }]));
    assert_eq!(of("ld.u32 r, [a+-4];"), Ok(vec![Name("r"), Address { base: Some("a"), offset: -4 }]));
    assert_eq!(of("mov.u64 r, a+(3>2?4:8);"), Ok(vec![Name("r"), Offset("a", 4)]));
    assert_eq!(
        of("call (r), f, (5+1, (2)*2);"),
        Ok(vec![List(vec![Name("r")]), Name("f"), List(vec![Int(6), Int(4)])])
    );
    let pair = Pair(Box::new((Name("d"), Name("p"))));
    assert_eq!(of("lop3.or.b32 d|p, {1|2};"), Ok(vec![pair, Vector(vec![Int(3)])]));
}
