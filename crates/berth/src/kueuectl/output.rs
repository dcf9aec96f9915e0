//! `-o` and `--template`, which together choose the format of kueuectl's commands.

use std::str::FromStr;

use anyhow::{anyhow, bail};
use clap::{ArgAction, Args};

use crate::listing::Format;

/// The formats that need a template.
const WITH_TEMPLATE: [&str; 7] =
    ["go-template", "template", "go-template-file", "templatefile", "jsonpath", "jsonpath-as-json", "jsonpath-file"];

/// A format, or the name of one whose template is that of `--template`.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// A format.
    Whole(Format),
    /// One of [`WITH_TEMPLATE`].
    WithoutTemplate(&'static str),
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match WITH_TEMPLATE.into_iter().find(|name| *name == text) {
            Some(name) => Ok(Self::WithoutTemplate(name)),
            None => text.parse().map(Self::Whole),
        }
    }
}

/// Options of formats with templates.
#[derive(Args)]
pub struct TemplateOptions {
    /// Template of -o go-template, or its file for -o go-template-file. Without -o: a Go template.
    #[arg(long, value_name = "TEMPLATE")]
    template: Option<String>,
    /// Fields of Go templates that an object lacks are `<no value>`. If false, they are errors.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    allow_missing_template_keys: bool,
}

impl TemplateOptions {
    /// The format of the options; `None` if they choose none.
    ///
    /// # Errors
    /// The format and the template do not match, or the template is wrong.
    pub fn format(&self, asked: Option<&Asked>) -> anyhow::Result<Option<Format>> {
        let parsed = |name: &str, template: &str| {
            format!("{name}={template}").parse().map_err(|error| anyhow!("--template: {error}"))
        };
        let format = match (asked, &self.template) {
            (None, None) => return Ok(None),
            (None, Some(template)) => parsed(WITH_TEMPLATE[0], template)?,
            (Some(Asked::Whole(format)), None) => format.clone(),
            (Some(Asked::Whole(_)), Some(_)) => {
                bail!("--template needs one of -o {}, each without =TEMPLATE", WITH_TEMPLATE.join(", "))
            }
            (Some(Asked::WithoutTemplate(name)), Some(template)) => parsed(name, template)?,
            (Some(Asked::WithoutTemplate(name)), None) => {
                bail!("-o {name} needs a template: -o {name}=TEMPLATE, or --template TEMPLATE")
            }
        };
        Ok(Some(match format {
            Format::GoTemplate(template) if !self.allow_missing_template_keys => {
                Format::GoTemplate(template.needing_fields())
            }
            format => format,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(asked: Option<&str>, template: Option<&str>) -> Result<Option<Format>, String> {
        let options = TemplateOptions { template: template.map(str::to_owned), allow_missing_template_keys: true };
        let asked: Option<Asked> = asked.map(|text| text.parse()).transpose()?;
        options.format(asked.as_ref()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_is_part_of_the_format_or_an_option() {
        assert_eq!(format(None, None), Ok(None));
        assert_eq!(format(Some("json"), None), Ok(Some(Format::Json)));
        let whole = format(Some("go-template={{.kind}}"), None);
        assert!(matches!(whole, Ok(Some(Format::GoTemplate(_)))), "{whole:?}");
        for asked in [None, Some("go-template"), Some("template")] {
            assert_eq!(format(asked, Some("{{.kind}}")), whole, "{asked:?}");
        }
        assert!(matches!(format(Some("jsonpath"), Some("{.kind}")), Ok(Some(Format::JsonPath(_)))));
    }

    #[test]
    fn a_format_and_a_template_that_do_not_match_are_errors() {
        let error = |asked: Option<&str>, template: Option<&str>| format(asked, template).expect_err("an error");
        assert!(error(Some("go-template"), None).starts_with("-o go-template needs a template: "));
        assert!(error(Some("json"), Some("{{.kind}}")).starts_with("--template needs one of -o go-template, "));
        assert!(error(None, Some("{{range}")).starts_with("--template: "));
        assert!(error(Some("go-template-file"), Some("/none")).starts_with("--template: /none: "));
        assert!(error(Some("xml"), None).starts_with("expected table, wide, "));
    }
}
