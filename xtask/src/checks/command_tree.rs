//! The subcommands and flags of a program, read from the types that clap derives them from.
//!
//! The sources are parsed, so pages can be checked without building the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Field, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Token, Type};

/// Programs: the name of each on pages, and the sources of its flags.
const PROGRAM_SOURCES: [(&str, &[&str]); 2] = [
    (
        "katydid",
        &["crates/cli/src/args/flags.rs", "crates/bench/src/flags.rs", "crates/cli-core/src/server/isolation.rs"],
    ),
    ("cargo xtask", &["xtask/src/main.rs", "xtask/src/gpu/frameworks.rs"]),
];
const ROOT_TYPE: &str = "Flags";
/// Flags that clap adds to every command.
const BUILT_IN_FLAGS: [&str; 2] = ["help", "version"];

/// Commands of all programs.
pub(crate) struct Commands {
    programs: Vec<(&'static str, Command)>,
}

/// A command: its long flags without their hyphens, and its subcommands.
#[derive(Debug, Default, Clone)]
struct Command {
    flags: BTreeSet<String>,
    subcommands: BTreeMap<String, Command>,
    /// Whether all words from its first argument on belong to a program that it starts.
    starts_program: bool,
}

/// Types that clap derives something from, by name.
type Types = BTreeMap<String, Item>;

impl Commands {
    /// Reads the commands from the sources below `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let read = |path: &&str| {
            let path = root.join(path);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let mut programs = Vec::new();
        for (name, sources) in PROGRAM_SOURCES {
            let sources = sources.iter().map(read).collect::<Result<Vec<String>>>()?;
            programs.push((name, Command::parse(&sources)?));
        }
        Ok(Self { programs })
    }

    /// Returns whether any command has this long flag, given without its hyphens.
    pub(crate) fn have_flag(&self, flag: &str) -> bool {
        self.programs.iter().any(|(_, command)| command.has_deep(flag))
    }

    /// Returns the fault of a command line of the project in `span`; `None` also if it holds none.
    pub(crate) fn fault(&self, span: &str) -> Option<String> {
        for (name, command) in &self.programs {
            if let Some(line) = after_name(span, name) {
                return command.fault(name, line);
            }
            // `serve --mps` is short for `katydid serve --mps`.
            let is_short = span.split(' ').next().is_some_and(|word| command.subcommands.contains_key(word));
            if is_short && span.contains(" --") {
                return command.fault(name, span);
            }
        }
        None
    }
}

/// Returns the text behind the program's name, if the name begins the span or follows assignments of variables.
fn after_name<'a>(span: &'a str, program: &str) -> Option<&'a str> {
    let mut rest = span;
    while let Some((_, words)) = rest.split_once(' ').filter(|(first, _)| first.contains('=')) {
        rest = words;
    }
    rest.strip_prefix(program)?.strip_prefix(' ')
}

impl Command {
    fn parse(sources: &[String]) -> Result<Self> {
        let mut types = Types::new();
        for source in sources {
            for item in syn::parse_file(source)?.items {
                let name = match &item {
                    Item::Struct(item) => item.ident.to_string(),
                    Item::Enum(item) => item.ident.to_string(),
                    _ => continue,
                };
                types.insert(name, item);
            }
        }
        let mut command = Self::default();
        command.add_type(ROOT_TYPE, &types);
        Ok(command)
    }

    /// Adds the declarations of a type of flags or of subcommands; a type from elsewhere adds nothing.
    fn add_type(&mut self, name: &str, types: &Types) {
        match types.get(name) {
            Some(Item::Struct(item)) => self.add_fields(&item.fields, types),
            Some(Item::Enum(item)) => {
                for variant in &item.variants {
                    let mut command = Self::default();
                    command.add_fields(&variant.fields, types);
                    self.subcommands.insert(kebab(&variant.ident.to_string()), command);
                }
            }
            _ => {}
        }
    }

    fn add_fields(&mut self, fields: &Fields, types: &Types) {
        for field in fields {
            self.starts_program |=
                arguments(&field.attrs, "arg").iter().any(|meta| meta.path().is_ident("trailing_var_arg"));
            match flag(field) {
                Some(flag) => drop(self.flags.insert(flag)),
                None if field.ident.is_none() || is_part(field) => {
                    type_names(&field.ty).iter().for_each(|name| self.add_type(name, types));
                }
                None => {}
            }
        }
    }

    fn has_deep(&self, flag: &str) -> bool {
        self.has(flag) || self.subcommands.values().any(|command| command.has_deep(flag))
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag) || BUILT_IN_FLAGS.contains(&flag)
    }

    /// Returns a fault for the first subcommand or flag of `line` that does not exist.
    fn fault(&self, program: &str, line: &str) -> Option<String> {
        let mut command = self;
        let mut name = program.to_owned();
        // A word behind a flag may be its value.
        let mut follows_flag = false;
        for word in line.split_whitespace().take_while(|word| *word != "--") {
            if let Some(flag) = long_flag(word) {
                if !command.has(flag) {
                    return Some(format!("`{name}` has no flag --{flag}"));
                }
            } else if !command.subcommands.is_empty() {
                let Some(subcommand) = command.subcommands.get(word) else {
                    // A placeholder such as `COMMAND` stands for any subcommand.
                    let is_name = word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
                    return is_name.then(|| format!("`{name}` has no subcommand {word}"));
                };
                command = subcommand;
                name = format!("{name} {word}");
            } else if command.starts_program && !follows_flag {
                break;
            }
            follows_flag = word.starts_with('-');
        }
        None
    }
}

/// Returns the name of a flag such as `--name` or `--name=value`.
pub(crate) fn long_flag(word: &str) -> Option<&str> {
    let rest = word.trim_start_matches(['(', '[']).strip_prefix("--")?;
    let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').unwrap_or(rest.len());
    let name = rest[..end].trim_end_matches('-');
    name.starts_with(|letter: char| letter.is_ascii_lowercase()).then_some(name)
}

/// Returns the long flag that a field declares.
fn flag(field: &Field) -> Option<String> {
    let own = kebab(&field.ident.as_ref()?.to_string());
    arguments(&field.attrs, "arg").into_iter().find_map(|meta| match meta {
        Meta::Path(path) if path.is_ident("long") => Some(own.clone()),
        Meta::NameValue(pair) if pair.path.is_ident("long") => match pair.value {
            Expr::Lit(literal) => match literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// Returns whether a field stands for the flags, or subcommands, of its type.
fn is_part(field: &Field) -> bool {
    let parts = arguments(&field.attrs, "command");
    parts.iter().any(|meta| meta.path().is_ident("flatten") || meta.path().is_ident("subcommand"))
}

/// Returns the arguments of attributes with the given name, such as `long` in `#[arg(long)]`.
fn arguments(attributes: &[Attribute], name: &str) -> Vec<Meta> {
    let named_attributes = attributes.iter().filter(|attribute| attribute.path().is_ident(name));
    let parsed = named_attributes
        .filter_map(|attribute| attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok());
    parsed.flatten().collect()
}

/// Returns the last names of a type and of the types in it: `Option` and `Flags` for `Option<args::Flags>`.
fn type_names(of: &Type) -> Vec<String> {
    let Type::Path(path) = of else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let mut names = vec![last.ident.to_string()];
    if let PathArguments::AngleBracketed(arguments) = &last.arguments {
        for argument in &arguments.args {
            if let GenericArgument::Type(inner) = argument {
                names.extend(type_names(inner));
            }
        }
    }
    names
}

/// Converts a name as clap does: `bench-body` for `BenchBody`, and `module-cache` for `module_cache`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(if letter == '_' { '-' } else { letter.to_ascii_lowercase() });
    }
    kebab
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        struct Flags { #[command(subcommand)] command: Kinds }
        enum Kinds { Run(RunFlags), BenchBody { #[arg(long)] quick: bool, names: Vec<String> }, Images(Images) }
        struct RunFlags { #[command(flatten)] link: Option<more::Link>, #[arg(long = "output", short)] place: String,
            #[arg(trailing_var_arg = true)] command: Vec<String> }
        struct Link { #[arg(value_name = "T", long)] link_timeout: u32 }
        struct Images { #[command(subcommand)] command: ImagesKinds }
        enum ImagesKinds { Verify }
    "#;

    fn commands() -> Commands {
        Commands { programs: vec![("katydid", Command::parse(&[SOURCE.to_owned()]).unwrap())] }
    }

    #[test]
    fn a_flag_or_subcommand_that_does_not_exist_is_named() {
        let commands = commands();
        let fault = |span| commands.fault(span).unwrap_or_default();
        assert_eq!(fault("katydid walk"), "`katydid` has no subcommand walk");
        assert_eq!(fault("A=1 katydid run --speed 3"), "`katydid run` has no flag --speed");
        assert_eq!(fault("run --quick"), "`katydid run` has no flag --quick");
        assert_eq!(fault("katydid images mend"), "`katydid images` has no subcommand mend");
    }

    #[test]
    fn existing_commands_and_flags_pass() {
        let commands = commands();
        for span in [
            "katydid run --link-timeout 3s --output=x -- ./program --speed",
            "katydid run -o x ./program --speed",
            "katydid bench-body --quick",
            "katydid COMMAND --help",
            "katydid images verify",
            "katydid",
            "runs --speed",
        ] {
            assert_eq!(commands.fault(span), None, "{span}");
        }
        assert!(commands.have_flag("quick") && !commands.have_flag("speed"));
    }

    #[test]
    fn the_programs_own_sources_are_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let commands = Commands::read(root).unwrap();
        for span in ["katydid serve --sandbox --mps", "katydid bench --quick", "cargo xtask pages --write"] {
            assert_eq!(commands.fault(span), None, "{span}");
        }
        assert!(commands.fault("katydid serve --write").is_some());
    }
}
