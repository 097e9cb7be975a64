//! Declarations of the interface: types, methods and errors are written once, in the form of the
//! interface's description, and become structs of Rust. A test makes the description from the
//! declarations too.
//!
//! A field `name: Type` is always present, `name?: Type` may be missing, and `name: Option<Type>`
//! is null if there is no value. `as Word` gives a text the name of an enumeration.

/// Declares structs, with their items in a list of this name. Each struct gets the attributes.
macro_rules! structs {
    ($list:ident [$all:meta] $($(#[doc = $doc:expr])* $name:ident {
        $($(#[$meta:meta])* $field:ident $(?: $may:ty)? $(: $must:ty)? $(as $word:ident)?),* $(,)?
    })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
            #[$all]
            #[allow(missing_docs)]
            pub struct $name {$(
                $(#[$meta])*
                $(#[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$may>,)?
                $(pub $field: $must,)?
            )*}

            #[cfg(test)]
            impl Fields for $name {
                fn lines() -> Vec<String> {
                    lines! { $($field $(?: $may)? $(: $must)? $(as $word)?,)* }.into()
                }
            }

            #[cfg(test)]
            named! { $name }
        )*

        #[cfg(test)]
        pub(super) fn $list() -> String {
            [$(item(
                &[$($doc),*],
                &format!("type {} {}", stringify!($name), body(&$name::lines())),
            ),)*].concat()
        }
    };
}

/// Declares methods: the parameters of each method, and the name and fields of the answer. `admin`
/// or `capture` before a method names the group that may call the method; `more` marks an answer in
/// several parts.
macro_rules! methods {
    ($($(#[doc = $doc:literal])* $([$($flag:ident)*])? $name:ident { $($request:tt)* }
        -> $answer:ident { $($fields:tt)* })*) => {
        structs! { _requests [allow(missing_docs)] $($(#[doc = $doc])* $name { $($request)* })* }
        structs! {
            _answers [serde(default)]
            $(#[doc = concat!(" What ", stringify!($name), " answers.")] $answer { $($fields)* })*
        }

        /// A call, with its parameters.
        #[derive(Debug)]
        #[allow(missing_docs)]
        pub enum Request {
            $($name($name),)*
        }

        impl Request {
            /// Reads the parameters of a method.
            pub fn read(about: MethodInfo, parameters: Parameters) -> Result<Request, Fault> {
                match about.name {
                    $(stringify!($name) => read(parameters).map(Request::$name),)*
                    name => Err(Fault::method_not_found(name, None)),
                }
            }
        }

        $(impl Method for $name {
            type Answer = $answer;

            fn name(&self) -> String {
                stringify!($name).to_owned()
            }
        })*

        const DECLARED: &[MethodInfo] = &[$(
            MethodInfo { name: stringify!($name), flags: &[$($(stringify!($flag)),*)?] },
        )*];

        #[cfg(test)]
        pub(super) fn declared() -> String {
            [$(method(&[$($doc),*], stringify!($name), &$name::lines(), &$answer::lines()),)*]
                .concat()
        }
    };
}

/// Errors of one interface.
macro_rules! errors {
    ($list:ident $(#[doc = $about:literal])* $type:ident $($(#[doc = $doc:literal])* $name:ident {
        $($field:ident $(?: $may:ty)? $(: $must:ty)? $(as $word:ident)?),* $(,)?
    })*) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "error", content = "parameters")]
        #[allow(missing_docs)]
        pub enum $type {$(
            $(#[doc = $doc])*
            $name {$(
                $(
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    $field: Option<$may>,
                )?
                $($field: $must,)?
            )*},
        )*}

        #[cfg(test)]
        pub(super) fn $list() -> String {
            [$(item(
                &[$($doc),*],
                &format!("error {} {}", stringify!($name), body(&lines! {
                    $($field $(?: $may)? $(: $must)? $(as $word)?,)*
                })),
            ),)*].concat()
        }
    };
}

pub(super) use {errors, methods, structs};
