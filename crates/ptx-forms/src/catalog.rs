//! The catalogue of forms: text files with one line a family of forms.
//!
//! `FORM : RESULTS = SOURCES | BODY ~ BOUND`, the last two if need be:
//!
//! - `{a,b}` in the form gives alternatives, of which one may be empty;
//! - ` @word` after the form makes another case of a form that has one;
//! - `$` among the types is the last type in the form, `$$` the one before it;
//! - a source may name its domain (`u32:shift`);
//! - the body, in which `d0`.. are results and `a0`.. sources, is `FORM d0, a0, ..;` unless given; `@form` is the form;
//! - `let NAME = TEXT` makes `@NAME` in the bodies below it stand for a text;
//! - the bound lies around a function of the sources, or around the kept result when it names none;
//! - a comment that stands right above lines is their heading.

use crate::exact::Bound;
use crate::form::{Form, OperandSource};
use crate::kind::OperandKind;
use crate::values::Domain;

/// A line of the catalogue that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the catalogue: {what}: {text}")]
pub struct CatalogError {
    /// Number of the line, from 1.
    line: usize,
    /// What is wrong.
    what: &'static str,
    /// The line itself.
    text: String,
}

/// A line: a family of forms.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Family {
    /// The comment above it, or above the lines before it.
    pub(crate) heading: String,
    /// The pattern, with its braces.
    pub(crate) pattern: String,
    /// The bound of approximations, as written.
    pub(crate) bound: String,
    /// Its forms, in the order of the pattern's alternatives.
    pub(crate) forms: Vec<Form>,
}

/// Parses a file of the catalogue.
pub(crate) fn parse(text: &str) -> Result<Vec<Family>, CatalogError> {
    let mut heading = String::new();
    let mut families = Vec::new();
    let mut texts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix('#') {
            heading = comment.trim().to_owned();
        } else if let Some((name, text)) = line.strip_prefix("let ").and_then(|line| line.split_once('=')) {
            texts.push((format!("@{}", name.trim()), text.trim().to_owned()));
        } else if !line.is_empty() {
            let line = texts.iter().fold(line.to_owned(), |line, (name, text)| line.replace(name, text));
            let family = family(&line, &heading);
            families.push(family.map_err(|what| CatalogError { line: index + 1, what, text: line.clone() })?);
        }
    }
    Ok(families)
}

/// Parses one line.
fn family(line: &str, heading: &str) -> Result<Family, &'static str> {
    let (line, bound) = line.split_once(" ~ ").unwrap_or((line, ""));
    let (line, body) = line.split_once(" | ").map_or((line, None), |(line, body)| (line, Some(body.trim())));
    let (pattern, operands) = line.split_once(" : ").ok_or("no ` : ` between form and types")?;
    let (results, sources) = operands.split_once('=').ok_or("no `=` between results and sources")?;
    let measured = Some(bound.trim()).filter(|bound| !bound.is_empty());
    let measured = match measured {
        Some(bound) => Some(Bound::parse(bound).ok_or("no bound")?),
        None => None,
    };
    let names = alternatives(pattern.trim()).ok_or("braces do not match")?;
    let form = |whole: String| {
        let name = whole.split(" @").next().unwrap_or_default().trim().to_owned();
        let results = results.split_whitespace().map(|word| kind(word, &name)).collect::<Result<Vec<_>, _>>()?;
        let sources = sources.split_whitespace().map(|word| source(word, &name)).collect::<Result<Vec<_>, _>>()?;
        let body =
            body.map_or_else(|| plain_body(&name, results.len(), sources.len()), |body| body.replace("@form", &name));
        Ok(Form { name: whole, results, sources, body, bound: measured })
    };
    let forms = names.into_iter().map(form).collect::<Result<Vec<_>, &'static str>>()?;
    Ok(Family {
        heading: heading.to_owned(),
        pattern: pattern.trim().to_owned(),
        bound: bound.trim().to_owned(),
        forms,
    })
}

/// Returns `FORM d0|d1, a0, a1;`.
fn plain_body(name: &str, results: usize, sources: usize) -> String {
    let destinations: Vec<String> = (0..results).map(|index| format!("d{index}")).collect();
    let operands = (0..sources).map(|index| format!(", a{index}")).collect::<String>();
    format!("{name} {}{operands};", destinations.join("|"))
}

/// Parses a type, or `$` for one that the form names.
fn kind(word: &str, form: &str) -> Result<OperandKind, &'static str> {
    let mut named = form.split('.').rev().filter_map(OperandKind::parse);
    match word {
        "$" => named.next(),
        "$$" => named.nth(1),
        name => OperandKind::parse(name),
    }
    .ok_or("no such type")
}

/// Parses a type with its domain.
fn source(word: &str, form: &str) -> Result<OperandSource, &'static str> {
    let (name, domain) = word.split_once(':').unwrap_or((word, "edge"));
    Ok(OperandSource { kind: kind(name, form)?, domain: Domain::parse(domain).ok_or("no such domain")? })
}

/// Returns all alternatives of a pattern with braces, in order. Braces do not nest.
pub(crate) fn alternatives(pattern: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return (!pattern.contains('}')).then(|| vec![pattern.to_owned()]);
    };
    let (choices, after) = rest.split_once('}')?;
    let tails = alternatives(after)?;
    let heads = choices.split(',').map(|choice| format!("{before}{}", choice.trim()));
    Some(heads.flat_map(|head| tails.iter().map(move |tail| format!("{head}{tail}"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_give_every_combination_in_order() {
        assert_eq!(alternatives("a{,.x,.y}.{b,c}").unwrap(), ["a.b", "a.c", "a.x.b", "a.x.c", "a.y.b", "a.y.c"]);
        assert_eq!((alternatives("a{b"), alternatives("a}b")), (None, None));
    }

    #[test]
    fn types_come_from_the_form() {
        let families = parse("# Conversions\ncvt.rn.{f32,f64}.s32 : $$ = $:small\n").unwrap();
        assert_eq!((families.len(), families[0].heading.as_str()), (1, "Conversions"));
        let form = &families[0].forms[1];
        assert_eq!((form.name.as_str(), form.results[0].name), ("cvt.rn.f64.s32", "f64"));
        assert_eq!(form.body, "cvt.rn.f64.s32 d0, a0;");
        assert_eq!(form.sources[0].domain, Domain::Small);
    }

    #[test]
    fn bodies_name_their_form() {
        let families = parse("setp.lt.and.f32 : pred pred = f32 f32 pred | @form d0|d1, a0, a1, !a2;\n").unwrap();
        assert_eq!(families[0].forms[0].body, "setp.lt.and.f32 d0|d1, a0, a1, !a2;");
    }

    #[test]
    fn names_stand_for_texts() {
        let families = parse("let zero = mov.b32 d0, 0;\nnot.b32 : b32 = b32 | @zero @form d0, a0;\n").unwrap();
        assert_eq!(families[0].forms[0].body, "mov.b32 d0, 0; not.b32 d0, a0;");
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let error = parse("\nadd.f32 : f32 = f33\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("no such type"), "{error}");
        assert!(parse("ex2 : f32 = f32 ~ rel far ex2").is_err(), "a bound is a number");
    }
}
