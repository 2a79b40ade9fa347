//! The values of constants that messages name, such as `{CLIENT_CA}`.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    Expr, File, ItemConst, Lit,
    visit::{self, Visit},
};

/// The value of each constant of a string or a number, by its name and its file; `None` when it is computed.
#[derive(Default)]
pub(crate) struct Constants {
    values: BTreeMap<String, BTreeMap<String, Option<String>>>,
    /// The file that is being read.
    file: String,
}

impl Constants {
    pub(crate) fn of(files: &BTreeMap<String, File>) -> Self {
        let mut constants = Self::default();
        for (path, file) in files {
            constants.file.clone_from(path);
            constants.visit_file(file);
        }
        constants
    }

    /// A text of a file, with the values of its constants in place of their names. A name that has several values is
    /// left, unless the file has it, and so is one whose value has a placeholder or is computed.
    pub(crate) fn filled(&self, text: &str, path: &str) -> String {
        let mut text = text.to_owned();
        for (name, values) in &self.values {
            let placeholder = format!("{{{name}}}");
            if text.contains(&placeholder)
                && let Some(value) = values.get(path).map_or_else(|| only(values), Option::as_ref)
            {
                text = text.replace(&placeholder, value);
            }
        }
        text
    }
}

fn only(values: &BTreeMap<String, Option<String>>) -> Option<&String> {
    let all: BTreeSet<Option<&String>> = values.values().map(Option::as_ref).collect();
    if all.len() == 1 { all.into_iter().next().flatten() } else { None }
}

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        let value = match &*item.expr {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) if !text.value().contains('{') => Some(text.value()),
                Lit::Int(number) => Some(number.base10_digits().to_owned()),
                _ => None,
            },
            _ => None,
        };
        self.values.entry(item.ident.to_string()).or_default().insert(self.file.clone(), value);
        visit::visit_item_const(self, item);
    }
}

#[test]
fn a_constant_is_filled_in_where_its_value_is_known() {
    let file = |text: &str| syn::parse_file(text).unwrap();
    let files = BTreeMap::from([
        ("a.rs".to_owned(), file("const MAX: u32 = 8; const NAME: &str = \"x\"; const SIZE: u32 = 4_096;")),
        ("b.rs".to_owned(), file("const MAX: u32 = 1 << 20;")),
        ("c.rs".to_owned(), file("")),
    ]);
    let constants = Constants::of(&files);
    let text = "{MAX} {NAME} {SIZE} {other}";
    assert_eq!(constants.filled(text, "a.rs"), "8 x 4096 {other}");
    assert_eq!(constants.filled(text, "b.rs"), "{MAX} x 4096 {other}", "computed there");
    assert_eq!(constants.filled(text, "c.rs"), "{MAX} x 4096 {other}", "one of two");
}
