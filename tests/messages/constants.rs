//! The values of constants that messages name, such as `{CLIENT_CA}`.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    Expr, File, ItemConst, Lit,
    visit::{self, Visit},
};

/// Each constant of a string or a number, by its name and its file.
#[derive(Default)]
pub(crate) struct Constants {
    values: BTreeMap<String, BTreeMap<String, String>>,
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
                && let Some(value) = values.get(path).or_else(|| only(values))
            {
                text = text.replace(&placeholder, value);
            }
        }
        text
    }
}

fn only(values: &BTreeMap<String, String>) -> Option<&String> {
    let all: BTreeSet<&String> = values.values().collect();
    if all.len() == 1 { all.into_iter().next() } else { None }
}

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        if let Expr::Lit(literal) = &*item.expr {
            let value = match &literal.lit {
                Lit::Str(text) if !text.value().contains('{') => Some(text.value()),
                Lit::Int(number) => Some(number.base10_digits().to_owned()),
                _ => None,
            };
            if let Some(value) = value {
                self.values.entry(item.ident.to_string()).or_default().insert(self.file.clone(), value);
            }
        }
        visit::visit_item_const(self, item);
    }
}
