//! Text to model. One line is one function; nothing spans lines, so that a line can be read, grepped and
//! moved alone.

use crate::check::check;
use crate::error::{LineError, SpecError};
use crate::model::{
    Alias, Api, ApiVersion, Body, Class, Context, Function, JournalRule, Object, Param, ParameterKind, Sort, Type,
    Types,
};

/// Parses and checks one spec file. `file` is its name as error messages show it.
///
/// # Errors
///
/// The first line that breaks the grammar or a rule of [`crate::LineError`].
pub fn parse(file: &str, text: &str) -> Result<Api, SpecError> {
    parse_with(file, text, &Types::default())
}

/// Parses and checks a spec file that uses the types of handles of another one, `known`.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_with(file: &str, text: &str, known: &Types) -> Result<Api, SpecError> {
    let (mut functions, mut types) = (Vec::new(), known.clone());
    for (index, line) in text.lines().enumerate() {
        let at = |fault| SpecError { file: file.to_owned(), line: index + 1, fault };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || declares(line, &mut types).map_err(at)? {
            continue;
        }
        functions.push(function(line, index + 1).map_err(at)?);
    }
    functions.iter_mut().for_each(|function| sort(function, &types));
    check(functions, types).map_err(|(line, fault)| SpecError { file: file.to_owned(), line, fault })
}

/// `handle type…`, `object type…` or `structure type…`; whether the line is one of these.
fn declares(line: &str, types: &mut Types) -> Result<bool, LineError> {
    let mut words = line.split_whitespace();
    let Some(what @ ("handle" | "object" | "structure")) = words.next() else { return Ok(false) };
    for word in words {
        let name = identifier(word)?;
        if types.sort(&name) != Sort::Value {
            return Err(LineError::TypeTwice(name));
        }
        match what {
            "structure" => types.structures.push(name),
            "object" => {
                types.objects.push(name.clone());
                types.handles.push(name);
            }
            _ => types.handles.push(name),
        }
    }
    Ok(true)
}

/// Fills in what the values of each type are: a line may stand before that of its types.
fn sort(function: &mut Function, types: &Types) {
    let params = function.params.iter_mut().filter_map(|param| param.kind.ty_mut());
    params.chain(&mut function.returns).for_each(|ty| ty.1 = types.sort(&ty.0));
}

fn function(text: &str, line: usize) -> Result<Function, LineError> {
    let (name, rest) = text.split_once(char::is_whitespace).ok_or(LineError::Shape)?;
    let name = identifier(name)?;
    let rest = rest.trim_start();
    match rest.strip_prefix('=') {
        Some(alias) => variant(name, alias.trim(), line),
        None => plain(name, rest, line),
    }
}

/// `ptsz of base version`; parameters and class are copied from the base when the file is checked.
fn variant(name: String, text: &str, line: usize) -> Result<Function, LineError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [suffix @ ("ptsz" | "ptds"), "of", base, version_word] = words[..] else { return Err(LineError::Shape) };
    let alias = Some(Alias { base: base.to_owned(), suffix: suffix.to_owned() });
    let version = version(version_word)?;
    Ok(Function {
        name,
        line,
        params: Vec::new(),
        returns: None,
        class: Class::Refused,
        context: Context::Current,
        body: Body::Generated,
        journal: JournalRule::None,
        version,
        alias,
    })
}

/// `(parameters) [-> type] class [in context | by|via path | always code] journal version`.
fn plain(name: String, text: &str, line: usize) -> Result<Function, LineError> {
    let inside = text.strip_prefix('(').ok_or(LineError::Shape)?;
    let (params, rest) = inside.split_once(") ").ok_or(LineError::Unclosed)?;
    let (returns, rest) = returns(rest)?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let mut context = Context::Current;
    let (class_word, body, journal_word, version_word) = match words[..] {
        [class, "in", word, journal, version] => {
            context = self::context(word)?;
            (class, Body::Generated, journal, version)
        }
        [class, "by", path, journal, version] => (class, Body::By(path.to_owned()), journal, version),
        [class, "via", path, journal, version] => (class, Body::Via(path.to_owned()), journal, version),
        [class, "always", code, journal, version] => {
            let code = code.parse().map_err(|_| LineError::Code(code.to_owned()))?;
            (class, Body::Always(code), journal, version)
        }
        [class, journal, version] => (class, Body::Generated, journal, version),
        _ => return Err(LineError::Shape),
    };
    Ok(Function {
        name,
        line,
        params: self::params(params)?,
        returns,
        class: class(class_word)?,
        context,
        body,
        journal: journal(journal_word)?,
        version: version(version_word)?,
        alias: None,
    })
}

fn context(word: &str) -> Result<Context, LineError> {
    Ok(match word {
        "any" => Context::Any,
        "none" => Context::None,
        param => Context::Of(identifier(param)?),
    })
}

/// What stands after the arrow, and the rest of the line.
fn returns(text: &str) -> Result<(Option<Type>, &str), LineError> {
    let Some(rest) = text.trim_start().strip_prefix("-> ") else { return Ok((None, text)) };
    let (word, rest) = rest.split_once(' ').ok_or(LineError::Shape)?;
    Ok((Some(ty(word)?), rest))
}

fn params(text: &str) -> Result<Vec<Param>, LineError> {
    text.split(',').map(str::trim).filter(|param| !param.is_empty()).map(param).collect()
}

fn param(text: &str) -> Result<Param, LineError> {
    let (name, kind) = text.split_once(':').ok_or_else(|| LineError::ParamWithoutKind(text.to_owned()))?;
    Ok(Param { name: identifier(name.trim())?, kind: self::kind(kind.trim())? })
}

fn kind(text: &str) -> Result<ParameterKind, LineError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["in", "bytes"] => Ok(ParameterKind::InBytes),
        ["out", "bytes"] => Ok(ParameterKind::OutBytes),
        ["out", "new", ty] => Ok(ParameterKind::OutNew(self::ty(ty)?)),
        ["out", ty] => Ok(ParameterKind::Out(self::ty(ty)?)),
        ["new", ty] => Ok(ParameterKind::New(self::ty(ty)?)),
        [value] if !value.starts_with('*') => Ok(ParameterKind::Value(ty(value)?)),
        [ref levels @ .., target] if !levels.is_empty() => pointer(levels, target),
        _ => Err(LineError::Kind(text.to_owned())),
    }
}

fn pointer(levels: &[&str], target: &str) -> Result<ParameterKind, LineError> {
    let levels = levels
        .iter()
        .map(|level| match *level {
            "*mut" => Ok(true),
            "*const" => Ok(false),
            other => Err(LineError::Kind(other.to_owned())),
        })
        .collect::<Result<_, _>>()?;
    Ok(ParameterKind::Pointer { levels, target: ty(target)? })
}

fn ty(text: &str) -> Result<Type, LineError> {
    identifier(text).map(|name| Type(name, Sort::Value)).map_err(|_| LineError::Kind(text.to_owned()))
}

/// Names become Rust identifiers unchanged, so a word that Rust reserves is refused here.
fn identifier(text: &str) -> Result<String, LineError> {
    const RESERVED: [&str; 9] = ["type", "ref", "in", "fn", "mod", "match", "move", "self", "impl"];
    let mut bytes = text.bytes();
    let starts = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    let goes_on = bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if starts && goes_on && !RESERVED.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(LineError::Name(text.to_owned()))
    }
}

fn class(word: &str) -> Result<Class, LineError> {
    Class::ALL.into_iter().find(|class| class.word() == word).ok_or_else(|| LineError::Class(word.to_owned()))
}

fn journal(word: &str) -> Result<JournalRule, LineError> {
    let bad = || LineError::Journal(word.to_owned());
    match word {
        "none" => return Ok(JournalRule::None),
        "data" => return Ok(JournalRule::Data),
        _ => {}
    }
    let (verb, rest) = word.split_once('(').ok_or_else(bad)?;
    let object = rest.strip_suffix(')').and_then(object).ok_or_else(bad)?;
    match verb {
        "create" => Ok(JournalRule::Create(object)),
        "destroy" => Ok(JournalRule::Destroy(object)),
        "set" => Ok(JournalRule::Set(object)),
        "answer" => Ok(JournalRule::Answer(object)),
        _ => Err(bad()),
    }
}

/// Parses `[kind:]parameter[|parameter][,selector]`.
fn object(text: &str) -> Option<Object> {
    let word = |text: &str| identifier(text).ok();
    let optional = |text: Option<&str>| text.map_or(Some(None), |text| word(text).map(Some));
    let (subject, selector) = text.split_once(',').map_or((text, None), |(subject, rest)| (subject, Some(rest)));
    let (kind, names) = subject.split_once(':').map_or((None, subject), |(kind, rest)| (Some(kind), rest));
    let (param, other) = names.split_once('|').map_or((names, None), |(param, rest)| (param, Some(rest)));
    Some(Object { kind: optional(kind)?, param: word(param)?, other: optional(other)?, selector: optional(selector)? })
}

fn version(word: &str) -> Result<Option<ApiVersion>, LineError> {
    let bad = || LineError::Version(word.to_owned());
    if word == "-" {
        return Ok(None);
    }
    let (major, minor) = word.split_once('.').ok_or_else(bad)?;
    let major = major.parse().map_err(|_| bad())?;
    let minor = minor.parse().ok().filter(|minor| *minor < 10).ok_or_else(bad)?;
    Ok(Some(ApiVersion { major, minor }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Function {
        parse("test.api", text).unwrap().functions.remove(0)
    }

    fn value(name: &str) -> Type {
        Type(name.to_owned(), Sort::Value)
    }

    fn fault(text: &str) -> LineError {
        parse("test.api", text).unwrap_err().fault
    }

    #[test]
    fn a_line_yields_every_column() {
        let f = only(
            "cuStreamCreate (phStream: out new CUstream, Flags: u32) enqueue via stream::create create(phStream) 2.0\n\
             handle CUstream",
        );
        assert_eq!(f.name, "cuStreamCreate");
        assert_eq!(f.class, Class::Enqueue);
        assert_eq!(f.body, Body::Via("stream::create".into()));
        assert_eq!(f.journal.to_string(), "create(phStream)");
        assert_eq!(f.version, Some(ApiVersion { major: 2, minor: 0 }));
        assert_eq!(f.params[0].kind, ParameterKind::OutNew(Type("CUstream".into(), Sort::Handle)));
        assert_eq!(f.params[1].kind, ParameterKind::Value(value("u32")));
    }

    #[test]
    fn a_journal_class_names_kind_object_and_property() {
        let f = only("f (a: u32, b: u32, c: u32) call set(block:a|b,c) -");
        let object = f.journal.object().unwrap();
        assert_eq!((object.kind.as_deref(), object.param.as_str()), (Some("block"), "a"));
        assert_eq!(object.params().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(f.journal.to_string(), "set(block:a|b,c)");
        assert_eq!(only("f (a: u32) call answer(current,a) -").journal.object().unwrap().params().count(), 1);
    }

    #[test]
    fn a_return_type_follows_an_arrow() {
        let f = only("clCreateUserEvent (c: cl_context, e: *mut i32) -> cl_event call by event::user none 1.1");
        assert_eq!((f.returns, f.class), (Some(value("cl_event")), Class::Call));
        assert_eq!(only("f (x: u32) call none 2.0").returns, None);
        assert_eq!(fault("f (x: u32) -> cl_event"), LineError::Shape);
    }

    #[test]
    fn types_are_declared_on_any_line_and_in_another_file() {
        let api = parse("t", "f (a: CUa, b: CUb, n: CUn) call none 2.0\nhandle CUa CUx\nobject CUb").unwrap();
        let sorts: Vec<_> = api.functions[0].params.clone().iter_mut().map(|it| it.kind.ty_mut().unwrap().1).collect();
        assert_eq!(sorts, [Sort::Handle, Sort::Object(1), Sort::Value]);
        assert_eq!(api.types.handles, ["CUa", "CUx", "CUb"]);
        let other = parse_with("u", "g (b: new CUb) call create(b) -", &api.types).unwrap();
        assert_eq!(other.functions[0].params[0].kind, ParameterKind::New(Type("CUb".into(), Sort::Object(1))));
        assert_eq!(fault("handle CUa\nobject CUa"), LineError::TypeTwice("CUa".into()));
        let structure_api = parse("t", "f (a: out CUdevprop) call none 2.0\nstructure CUdevprop").unwrap();
        assert_eq!(
            structure_api.functions[0].params[0].kind,
            ParameterKind::Out(Type("CUdevprop".into(), Sort::Structure))
        );
        assert_eq!(fault("f (a: CUdevprop) call none 2.0\nstructure CUdevprop"), LineError::NeedsHand("a".into()));
    }

    #[test]
    fn a_message_may_name_another_context() {
        assert_eq!(only("f (x: u32) call none 2.0").context, Context::Current);
        assert_eq!(only("f (x: u32) call in any none 2.0").context, Context::Any);
        assert_eq!(only("f (x: u32) call in none none 2.0").context, Context::None);
        assert_eq!(only("f (x: CUa) call in x none 2.0\nhandle CUa").context, Context::Of("x".into()));
        assert_eq!(fault("f (x: u32) call in x none 2.0"), LineError::NoContext("x".into()));
    }

    #[test]
    fn pointer_levels_are_kept_outermost_first() {
        let f = only("f (p: *mut *const char) local by error::name none 6.0");
        assert_eq!(f.params[0].kind, ParameterKind::Pointer { levels: vec![true, false], target: value("char") });
    }

    #[test]
    fn a_variant_takes_parameters_and_class_of_its_base() {
        let api = parse("t", "f_v2 (s: CUstream) enqueue none 3.2\nf_v2_ptsz = ptsz of f_v2 7.0").unwrap();
        assert_eq!(api.functions[1].params, api.functions[0].params);
        assert_eq!(api.functions[1].class, Class::Enqueue);
        assert_eq!(api.functions[1].lookup_name(), "f");
    }

    #[test]
    fn errors_name_file_and_line() {
        let error = parse("cuda.api", "# a comment\n\nf (x: u32) sometimes none 2.0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cuda.api:3: `sometimes` is not a class (local, enqueue, call, blocking, upcall, refused)"
        );
    }

    #[test]
    fn every_fault_is_found() {
        assert_eq!(fault("f"), LineError::Shape);
        assert_eq!(fault("f (x: u32"), LineError::Unclosed);
        assert_eq!(fault("f (x) call none 2.0"), LineError::ParamWithoutKind("x".into()));
        assert_eq!(fault("f (type: u32) call none 2.0"), LineError::Name("type".into()));
        assert_eq!(fault("f (x: in out u32) call none 2.0"), LineError::Kind("in".into()));
        assert_eq!(fault("f (x: u32) call maybe 2.0"), LineError::Journal("maybe".into()));
        assert_eq!(fault("f (x: u32) call set(y) 2.0"), LineError::JournalParam("y".into()));
        assert_eq!(fault("f (x: u32) call set(x,y) 2.0"), LineError::JournalParam("y".into()));
        assert_eq!(fault("f (x: u32) call set(x:) 2.0"), LineError::Journal("set(x:)".into()));
        assert_eq!(fault("f (x: u32) call none 2"), LineError::Version("2".into()));
        assert_eq!(fault("f (x: u32, x: u32) call none 2.0"), LineError::ParamTwice("x".into()));
        assert_eq!(fault("f () call none 2.0\nf () call none 2.0"), LineError::Twice { name: "f".into(), first: 1 });
        assert_eq!(fault("f_ptsz = ptsz of f 7.0"), LineError::Base("f".into()));
        assert_eq!(fault("f (x: *const void) call none 2.0"), LineError::NeedsHand("x".into()));
        let makes = "f (x: out new CUa) call create(x) 2.0";
        assert_eq!(fault(&format!("{makes}\nhandle CUa")), LineError::NeedsHand("x".into()));
        assert!(parse("t", &format!("{makes}\nobject CUa")).is_ok());
        assert_eq!(fault("f () local none 2.0"), LineError::NeedsPath(Class::Local));
        assert_eq!(fault("f (x: in bytes, y: u32) call none -"), LineError::BytesNotLast("x".into()));
    }

    /// Cuts and byte changes of a good file: each is a model or an error, never a panic.
    #[test]
    fn no_change_of_a_file_makes_the_parser_panic() {
        let text = "f_v2 (s: CUstream, p: *mut *const char) enqueue by a::b set(s) 3.2\nf_v2_ptsz = ptsz of f_v2 7.0\n";
        for at in 0..text.len() {
            let _ = parse("t", &text[..at]);
            for byte in [b' ', b'(', b')', b':', b',', b'*', b'=', b'.', b'x', b'\n'] {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                let _ = parse("t", &String::from_utf8_lossy(&bytes));
            }
        }
    }
}
