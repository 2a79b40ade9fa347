//! The files that show the stacks of all ranks, under the names of xpu_timer's viewer.

use crate::{merged::Merged, model::RankDump, svg::flame_graph, trie::Trie};

/// The merged stacks as text and as flame graphs with the titles of xpu_timer: names and contents of
/// `py_stack`, `cpp_stack`, `py_stack.svg` and `cpp_stack.svg`, in this order.
#[must_use]
pub fn files(dumps: &[RankDump]) -> Vec<(String, String)> {
    let merged = Merged::of(dumps);
    let kinds: [(&str, &Trie); 2] = [("py", &merged.python), ("cpp", &merged.native)];
    let text = kinds.map(|(kind, trie)| (format!("{kind}_stack"), trie.text()));
    let pictures = kinds.map(|(kind, trie)| {
        (format!("{kind}_stack.svg"), flame_graph(trie, &format!("merge stack in {kind}")))
    });
    text.into_iter().chain(pictures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Frame, Thread};

    #[test]
    fn there_are_four_files_and_each_has_its_stacks() {
        let frame = |function: &str| Frame { function: function.to_owned(), ..Frame::default() };
        let thread = |function: &str| Thread { name: "MainThread".to_owned(), frames: vec![frame(function)] };
        let dump = RankDump {
            python: vec![thread("in_python")],
            native: vec![thread("in_native")],
            ..RankDump::new(0, 1)
        };
        let files = files(&[dump]);
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["py_stack", "cpp_stack", "py_stack.svg", "cpp_stack.svg"]);
        for (name, content) in &files {
            let (wanted, other) = match name.starts_with("py") {
                true => ("in_python", "in_native"),
                false => ("in_native", "in_python"),
            };
            assert!(content.contains(wanted) && !content.contains(other), "{name}");
        }
        assert!(files[3].1.contains("merge stack in cpp"));
    }
}
