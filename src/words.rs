//! Enumerations of which each value has a word: for files, clients and people.

/// A type of whose values some have a word, or all.
pub trait Words: Copy + PartialEq + 'static {
    /// The words and their values.
    const WORDS: &'static [(&'static str, Self)];
}

/// Enumerations with the word of each value. The first value is the default.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident $word:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $value,)* }

        impl $crate::words::Words for $name {
            const WORDS: &'static [(&'static str, $name)] = &[$(($word, $name::$value)),*];
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$value),*];

            /// The word.
            pub const fn name(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::ALL[0]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}
