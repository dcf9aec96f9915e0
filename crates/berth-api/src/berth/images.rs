//! The section `images` of a `ClusterConfiguration`: the location of the files of each container
//! image, for pods that run as processes.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Problem;
use super::problem::join;

/// The location of the files of each image, by image name. Applies to pods that run as processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageConfiguration {
    /// Location of the files of images that no mapping matches and that are not imported.
    pub otherwise: ImageFiles,
    /// Mappings in order; the first that matches applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<ImageMapping>,
    /// Registries that are accessed over plain HTTP: `registry.lan:5000`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plain_http: Vec<String>,
}

/// The files of images whose names match a pattern, and the defaults of their containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageMapping {
    /// Pattern of names, with `*` and `?`. It is compared with the name as written and in full,
    /// with and without its tag.
    pub image: String,
    /// Location of the files.
    pub files: ImageFiles,
    /// Entrypoint, if the files are on the host and therefore no image declares one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Default arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Environment, `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// User: `user[:group]`, by number or name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Working directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
}

/// Location of an image's files: `host`, `pull`, `strict`, or the absolute path of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageFiles {
    /// The host's own files.
    #[default]
    Host,
    /// The imported or pulled image; pulled if it is neither.
    Pull,
    /// The imported or pulled image; an error if it is neither.
    Strict,
    /// A folder of the host.
    Folder(PathBuf),
}

impl std::str::FromStr for ImageFiles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => Ok(Self::Host),
            "pull" => Ok(Self::Pull),
            "strict" => Ok(Self::Strict),
            path if path.starts_with('/') => Ok(Self::Folder(path.into())),
            other => Err(format!("{other:?} is not host, pull, strict or the absolute path of a folder")),
        }
    }
}

impl Serialize for ImageFiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Host => serializer.serialize_str("host"),
            Self::Pull => serializer.serialize_str("pull"),
            Self::Strict => serializer.serialize_str("strict"),
            Self::Folder(path) => serializer.collect_str(&path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for ImageFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl ImageConfiguration {
    /// All errors of the section; `path` is its path in the document.
    pub(super) fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut problem = |field: String, message: String| problems.push(Problem::new(join(path, &field), message));
        for (i, mapping) in self.mappings.iter().enumerate() {
            let at = |field: &str| format!("mappings[{i}].{field}");
            if mapping.image.is_empty() {
                problem(at("image"), "required: a pattern of image names, such as \"pytorch/*\"".into());
            }
            let is_stored = matches!(mapping.files, ImageFiles::Pull | ImageFiles::Strict);
            let declares = [
                ("entrypoint", !mapping.entrypoint.is_empty()),
                ("cmd", !mapping.cmd.is_empty()),
                ("env", !mapping.env.is_empty()),
                ("user", !mapping.user.is_empty()),
                ("workingDir", !mapping.working_dir.is_empty()),
            ];
            for (field, _) in declares.iter().filter(|(_, given)| *given && is_stored) {
                problem(
                    at(field),
                    "may be set only if files is host or a folder, because a stored image declares its own value"
                        .into(),
                );
            }
            for (j, variable) in mapping.env.iter().enumerate() {
                if variable.split_once('=').is_none_or(|(name, _)| name.is_empty()) {
                    problem(at(&format!("env[{j}]")), format!("{variable:?} is not NAME=value"));
                }
            }
            if !mapping.working_dir.is_empty() && !mapping.working_dir.starts_with('/') {
                problem(at("workingDir"), format!("{:?} is not an absolute path", mapping.working_dir));
            }
        }
        problems
    }
}
