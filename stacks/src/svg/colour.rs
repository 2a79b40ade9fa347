//! The colour of a box, by whose code it is; the rules are those of xpu_timer's viewer, in their order.

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Torch,
    Cpp,
    Python,
    State,
    System,
}

impl Colour {
    pub(super) const ALL: [Self; 5] = [Self::Torch, Self::Cpp, Self::Python, Self::State, Self::System];

    /// The colour of `func@source@ranks`.
    pub(super) fn of(word: &str) -> Self {
        let lower = word.to_ascii_lowercase();
        if word.contains("/torch") || lower.contains("nccl") {
            Self::Torch
        } else if word.contains("::") {
            Self::Cpp
        } else if is_interpreter(&lower) || has_line(word, ".py:") {
            Self::Python
        } else if word.contains("State@") {
            Self::State
        } else {
            Self::System
        }
    }

    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Torch => "torch, NCCL",
            Self::Cpp => "C++",
            Self::Python => "Python",
            Self::State => "process state",
            Self::System => "other",
        }
    }

    /// The colour of the legend.
    pub(super) fn plain(self) -> String {
        self.mixed(128)
    }

    /// A shade of the colour: frames of one name have one shade, in every picture.
    pub(super) fn shade(self, token: &str) -> String {
        // FNV-1a: the hash of the standard library may change from one version to the next.
        let hash = token
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        self.mixed(hash >> 24)
    }

    /// Between the darkest shade, at 0, and the lightest, at 255.
    fn mixed(self, at: u32) -> String {
        let (dark, light) = match self {
            Self::Torch => ([98, 200, 98], [130, 228, 130]),
            Self::Cpp => ([206, 206, 74], [232, 232, 104]),
            Self::Python => ([84, 186, 190], [128, 218, 222]),
            Self::State => ([206, 122, 206], [234, 156, 234]),
            Self::System => ([226, 108, 100], [246, 144, 136]),
        };
        let [r, g, b] = [0, 1, 2].map(|one: usize| dark[one] + (light[one] - dark[one]) * at / 255);
        format!("rgb({r},{g},{b})")
    }
}

/// A source of the interpreter: `python` and then `.c:` or `.h:` with a line. The word is in lower case.
fn is_interpreter(word: &str) -> bool {
    let path = word.split_once("python").map(|(_, rest)| rest);
    path.is_some_and(|path| has_line(path, ".c:") || has_line(path, ".h:"))
}

fn has_line(word: &str, before: &str) -> bool {
    word.match_indices(before)
        .any(|(at, _)| word[at + before.len()..].starts_with(|character: char| character.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_rules_of_upstream() {
        for (word, expected) in [
            ("step@/opt/lib/python3.8/site-packages/torch/nn/modules/module.py:1@0|", Colour::Torch),
            ("x@/a/torchrun.py:3@0|", Colour::Torch),
            ("ncclAllReduce@libx.so@0|", Colour::Torch),
            ("f@/usr/lib/libNCCL.so@0|", Colour::Torch),
            ("Monitor::wait@/root/jdk/libjvm.so@0|", Colour::Cpp),
            ("PyEval_EvalFrameEx@/usr/local/src/conda/python-3.8.18/Python/ceval.c:741@0|", Colour::Python),
            ("f@/usr/include/python3.8/object.h:12@0|", Colour::Python),
            ("<module>@train.py:10@0-7|", Colour::Python),
            ("State@S (sleeping)@0-7|", Colour::State),
            ("clone@/usr/lib64/libc.so.6@0|", Colour::System),
            ("f@x.py:@0|", Colour::System),
        ] {
            assert_eq!(Colour::of(word), expected, "{word}");
        }
    }

    #[test]
    fn a_name_has_one_shade() {
        assert_eq!(Colour::Python.shade("f@a.py:1"), Colour::Python.shade("f@a.py:1"));
        assert_ne!(Colour::Python.shade("f@a.py:1"), Colour::Python.shade("g@a.py:1"));
    }
}
