//! The name of a job on the command line: `NAME` or `NAMESPACE/NAME`.

use std::str::FromStr;

/// A job or its Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobName {
    /// The namespace, if the name has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl JobName {
    /// The namespace of the name, or else the one of the options, or else the default.
    pub fn namespace_or(&self, of_options: Option<&str>, default: &str) -> String {
        self.namespace.as_deref().or(of_options).unwrap_or(default).to_owned()
    }
}

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace == Some("") {
            return Err("expected NAME or NAMESPACE/NAME of a job or Workload, such as team-blue/train".to_owned());
        }
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_with_or_without_its_namespace() {
        let of = |text: &str| {
            text.parse::<JobName>().map(|job| job.namespace_or(Some("option"), "context") + "/" + &job.name)
        };
        assert_eq!(of("train"), Ok("option/train".to_owned()));
        assert_eq!(of("team/train"), Ok("team/train".to_owned()));
        let bare: JobName = "train".parse().expect("a name");
        assert_eq!(bare.namespace_or(None, "context"), "context");
        for wrong in ["", "/", "team/", "/train", "job/team/train"] {
            assert!(of(wrong).expect_err(wrong).starts_with("expected NAME or NAMESPACE/NAME"));
        }
    }
}
