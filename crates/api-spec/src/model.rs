//! The model of an API: functions in the order of their lines, which is also the order of their opcodes.

use std::fmt;

/// The contents of one spec file, such as `spec/cuda.api`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// Functions in the order of their lines.
    pub functions: Vec<Function>,
    /// Types that are declared.
    pub types: Types,
}

/// The types that the lines of a file declare.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Types {
    /// Handle types, in the order of their lines.
    pub handles: Vec<String>,
    /// Those whose objects generated code keeps, in the order of their lines.
    pub objects: Vec<String>,
    /// Structures without pointers and handles, which travel as their bytes.
    pub structures: Vec<String>,
}

impl Types {
    pub(crate) fn sort(&self, name: &str) -> Sort {
        match self.objects.iter().position(|object| object == name) {
            Some(at) => Sort::Object(at + 1),
            None if self.handles.iter().any(|handle| handle == name) => Sort::Handle,
            None if self.structures.iter().any(|structure| structure == name) => Sort::Structure,
            None => Sort::Value,
        }
    }
}

/// A function of the API: one line of a spec file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The exported symbol, under the vendor's own name.
    pub name: String,
    /// Line number, from 1.
    pub line: usize,
    /// Parameters in the vendor's order, under the vendor's names.
    pub params: Vec<Param>,
    /// What the function returns, where that is not the API's code.
    pub returns: Option<Type>,
    /// How a call travels. A variant has the class of its base.
    pub class: Class,
    /// The context in which a generated body sends its message.
    pub context: Context,
    /// Where the shim's body comes from.
    pub body: Body,
    /// What the call leaves behind for a checkpoint.
    pub journal: JournalRule,
    /// First version at which `cuGetProcAddress` answers with this symbol.
    pub version: Option<ApiVersion>,
    /// Set when this line declares a per-thread-default-stream variant.
    pub alias: Option<Alias>,
}

/// A parameter of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name in the vendor's header.
    pub name: String,
    /// Type of the parameter, and which way it travels.
    pub kind: ParameterKind,
}

/// Where the shim's body of a function comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Generated: checks, message, reply.
    Generated,
    /// Hand-written at this path below `crate::`, around the generated message.
    Via(String),
    /// Hand-written at this path below `crate::`; the function has no message.
    By(String),
    /// None: the answer is always this code, as it is with the driver, and nothing is said about it.
    Always(u32),
}

/// The context that a message names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Context {
    /// The calling thread's, which must be there.
    Current,
    /// The calling thread's if it has one.
    Any,
    /// The message names no context.
    None,
    /// The context of the object that this parameter names.
    Of(String),
}

/// What a parameter is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterKind {
    /// A value that is passed to the function.
    Value(Type),
    /// A pointer to one value that the function writes.
    Out(Type),
    /// A pointer to a handle that the function creates and the shim mints.
    OutNew(Type),
    /// The id of a handle that the worker is to fill (session messages).
    New(Type),
    /// A pointer that only hand-written code understands: `*const` or `*mut` levels, outermost first.
    Pointer {
        /// One entry a level, outermost first; true for `*mut`.
        levels: Vec<bool>,
        /// What the innermost pointer points to.
        target: Type,
    },
    /// The rest of the frame.
    InBytes,
    /// Bytes of the reply.
    OutBytes,
}

/// The name of a type, and what its values are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Type(pub String, pub Sort);

/// What the values of a type are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sort {
    /// Numbers, enumerations, structures that only hand-written code understands.
    Value,
    /// A structure that travels as its bytes.
    Structure,
    /// Opaque pointers; hand-written code keeps what stands behind one. Each travels as an id.
    Handle,
    /// Opaque pointers whose objects generated code keeps: the number of the type, from 1.
    Object(usize),
}

impl Type {
    const SCALARS: [&'static str; 10] = ["u8", "u16", "u32", "u64", "usize", "i32", "i64", "isize", "f32", "f64"];

    /// A number that Rust knows by the same name.
    pub fn is_scalar(&self) -> bool {
        Self::SCALARS.contains(&self.0.as_str())
    }

    /// An opaque pointer: travels as an id.
    pub fn is_handle(&self) -> bool {
        matches!(self.1, Sort::Handle | Sort::Object(_))
    }

    /// The number of the type, if generated code keeps its objects.
    pub fn object(&self) -> Option<usize> {
        match self.1 {
            Sort::Object(number) => Some(number),
            Sort::Value | Sort::Structure | Sort::Handle => None,
        }
    }

    /// A small structure passed or pointed to, whose bytes the generator does not know.
    pub fn is_struct(&self) -> bool {
        self.1 == Sort::Structure
            || self.0.starts_with("CUDA_")
            || matches!(
                self.0.as_str(),
                "CUuuid" | "CUdevprop" | "CUmemLocation" | "CUipcMemHandle" | "CUipcEventHandle"
            )
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a call travels from program to worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Answered in the program's process.
    Local,
    /// Queued; the caller does not wait.
    Enqueue,
    /// Waits for the reply.
    Call,
    /// Waits for the reply, which may have to wait for the GPU.
    Blocking,
    /// Registers a function of the program.
    Upcall,
    /// Returns `CUDA_ERROR_NOT_SUPPORTED` and says its name once.
    Refused,
}

impl Class {
    /// All classes, in the order of the coverage page.
    pub const ALL: [Self; 6] = [Self::Local, Self::Enqueue, Self::Call, Self::Blocking, Self::Upcall, Self::Refused];

    /// The word of the grammar.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Enqueue => "enqueue",
            Self::Call => "call",
            Self::Blocking => "blocking",
            Self::Upcall => "upcall",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a call leaves behind for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalRule {
    /// The call leaves nothing behind.
    None,
    /// Makes the named parameter's object.
    Create(Object),
    /// Ends the named parameter's object.
    Destroy(Object),
    /// Changes a property of the named parameter's object; the last value is kept.
    Set(Object),
    /// Tells the program something about the object that the driver chose; it must be the same after a restore.
    Answer(Object),
    /// Its effect is in saved memory, or in what the driver is asked when the state is saved.
    Data,
}

/// The object that a journal class names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What kind of object, where the parameter's type does not say it.
    pub kind: Option<String>,
    /// The parameter; [`Object::CURRENT`] stands for the context of the call.
    pub param: String,
    /// The parameter that names the object when the first one is 0.
    pub other: Option<String>,
    /// The parameter that says which property: each has a last value of its own.
    pub selector: Option<String>,
}

impl Object {
    /// In the place of a parameter: the context of the call.
    pub const CURRENT: &'static str = "current";

    /// All parameters that the class names.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        let own = Some(self.param.as_str()).filter(|name| *name != Self::CURRENT);
        own.into_iter().chain(self.other.as_deref()).chain(self.selector.as_deref())
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = &self.kind {
            write!(f, "{kind}:")?;
        }
        f.write_str(&self.param)?;
        if let Some(other) = &self.other {
            write!(f, "|{other}")?;
        }
        self.selector.as_ref().map_or(Ok(()), |selector| write!(f, ",{selector}"))
    }
}

impl JournalRule {
    /// The object that the class names, if any.
    pub fn object(&self) -> Option<&Object> {
        match self {
            Self::Create(object) | Self::Destroy(object) | Self::Set(object) | Self::Answer(object) => Some(object),
            Self::None | Self::Data => None,
        }
    }
}

impl fmt::Display for JournalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Create(name) => write!(f, "create({name})"),
            Self::Destroy(name) => write!(f, "destroy({name})"),
            Self::Set(name) => write!(f, "set({name})"),
            Self::Answer(name) => write!(f, "answer({name})"),
            Self::Data => f.write_str("data"),
        }
    }
}

/// A version of CUDA, such as 12.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Major number, such as 12.
    pub major: u32,
    /// Minor number, 0 to 9.
    pub minor: u32,
}

impl ApiVersion {
    /// As `cuGetProcAddress` takes it: 12080 for 12.8.
    pub fn number(self) -> u32 {
        self.major * 1000 + self.minor * 10
    }
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A line that is the per-thread-default-stream variant of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The function it is a variant of.
    pub base: String,
    /// `ptsz` (has a stream parameter) or `ptds` (synchronous).
    pub suffix: String,
}

impl Function {
    /// The name that a program passes to `cuGetProcAddress`: no version, no per-thread suffix.
    pub fn lookup_name(&self) -> &str {
        let name = self.alias.as_ref().map_or(self.name.as_str(), |alias| &alias.base);
        match name.rsplit_once("_v") {
            Some((stem, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => stem,
            _ => name,
        }
    }

    /// True when a message of its own carries the call.
    pub fn has_message(&self) -> bool {
        matches!(self.class, Class::Enqueue | Class::Call | Class::Blocking)
            && self.alias.is_none()
            && !matches!(self.body, Body::By(_))
    }
}

impl ParameterKind {
    /// The type that it is about, if it is about one.
    pub(crate) fn ty_mut(&mut self) -> Option<&mut Type> {
        match self {
            Self::Value(ty) | Self::Out(ty) | Self::OutNew(ty) | Self::New(ty) | Self::Pointer { target: ty, .. } => {
                Some(ty)
            }
            Self::InBytes | Self::OutBytes => None,
        }
    }

    /// True for what the generator can put into a message.
    pub fn travels(&self) -> bool {
        match self {
            Self::Out(ty) if ty.1 == Sort::Structure => true,
            Self::Value(ty) | Self::Out(ty) => !ty.is_struct(),
            Self::OutNew(ty) | Self::New(ty) => ty.is_handle(),
            Self::Pointer { .. } => false,
            Self::InBytes | Self::OutBytes => true,
        }
    }
}
