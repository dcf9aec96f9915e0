//! The position of a walk over a value. Each step points to the step above it, so descending
//! allocates nothing, and the text (`spec.containers[0].name`) is built only for a report.
//!
//! Differs from [`crate::field::Path`] in empty names: there an empty name is the node itself. Here
//! it is a field like any other and is shown (`spec.`), as the decoders and schema validation of
//! kube-apiserver show it.

use std::fmt;

/// A position in a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trail<'a> {
    above: Option<&'a Trail<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Start,
    Name(&'a str),
    Index(usize),
}

impl<'a> Trail<'a> {
    /// The root value; its text is empty.
    pub const fn start() -> Self {
        Trail { above: None, step: Step::Start }
    }

    /// The field or map entry `name` of this value.
    pub const fn name(&'a self, name: &'a str) -> Trail<'a> {
        Trail { above: Some(self), step: Step::Name(name) }
    }

    /// The list item at `index`.
    pub const fn index(&'a self, index: usize) -> Trail<'a> {
        Trail { above: Some(self), step: Step::Index(index) }
    }

    /// Writes the text. Returns true if it is not empty.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let written = match self.above {
            Some(above) => above.write(f)?,
            None => false,
        };
        match self.step {
            Step::Start => Ok(written),
            Step::Name(name) => {
                if written {
                    f.write_str(".")?;
                }
                f.write_str(name)?;
                Ok(written || !name.is_empty())
            }
            Step::Index(index) => {
                write!(f, "[{index}]")?;
                Ok(true)
            }
        }
    }
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_form_of_messages() {
        let start = Trail::start();
        let (spec, item) = (start.name("spec"), start.index(3));
        let list = spec.name("containers");
        let first = list.index(0);
        assert_eq!(start.to_string(), "");
        assert_eq!(first.name("name").to_string(), "spec.containers[0].name");
        assert_eq!(item.name("a.b").to_string(), "[3].a.b");
    }
}
