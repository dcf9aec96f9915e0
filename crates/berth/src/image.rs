//! `berth image`: the images of this machine, for pods that run as processes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_api::berth::{ImageConfiguration, ImageFiles, ImageMapping};
use berth_foresight::command::progress;
use berth_images::{Declared, Mapping, Name, Origin, Removed, Store, Target};
use berth_pod_runtime::RegistryCredential;
use clap::{Args, Subcommand};

use crate::bound_server::default_data_dir;
use crate::process;

/// Folder of the images in the data folder.
pub const FOLDER: &str = "images";

/// The images of a cluster's configuration, for the node that runs processes.
pub fn configured(images: &ImageConfiguration) -> berth_images::Config {
    let target = |files: &ImageFiles| match files {
        ImageFiles::Host => Target::Host,
        ImageFiles::Pull => Target::Pull,
        ImageFiles::Strict => Target::Refuse,
        ImageFiles::Folder(path) => Target::Folder(path.clone()),
    };
    let mapping = |mapping: &ImageMapping| Mapping {
        image: mapping.image.clone(),
        target: target(&mapping.files),
        declared: Declared {
            entrypoint: mapping.entrypoint.clone(),
            cmd: mapping.cmd.clone(),
            env: mapping.env.clone(),
            user: mapping.user.clone(),
            working_dir: mapping.working_dir.clone(),
        },
    };
    berth_images::Config {
        mappings: images.mappings.iter().map(mapping).collect(),
        otherwise: target(&images.otherwise),
        plain_http: images.plain_http.clone(),
    }
}

/// Options of `berth image`.
#[derive(Args)]
pub struct Options {
    /// Data folder of `berth up`. Default: berth in the user's data folder.
    #[arg(long, value_name = "DIR", env = "BERTH_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Import images from an OCI image layout (folder or oci-archive) or a file of `docker save`.
    Import {
        /// The file or folder.
        #[arg(value_name = "FILE|DIR")]
        path: PathBuf,
        /// Name of the image, for a file that holds one image. Default: the names in the file.
        #[arg(long, value_name = "NAME[:TAG]")]
        name: Option<String>,
    },
    /// Pull an image from its registry.
    Pull {
        /// Name of the image.
        #[arg(value_name = "NAME[:TAG]")]
        name: String,
        /// Docker configuration file with the credentials of registries.
        #[arg(long, value_name = "FILE")]
        auth_file: Option<PathBuf>,
        /// Use plain HTTP. Registries on loopback addresses are always accessed over HTTP.
        #[arg(long)]
        plain_http: bool,
    },
    /// List the images.
    #[command(visible_alias = "ls")]
    List,
    /// Remove images, and the layers that no other image needs.
    #[command(name = "rm", visible_alias = "remove")]
    Remove {
        /// Names of the images.
        #[arg(required = true, value_name = "NAME[:TAG]")]
        names: Vec<String>,
    },
}

/// Runs the subcommand.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    let data = options.data_dir.clone().map_or_else(default_data_dir, Ok)?;
    // The folder must be private before it contains layers.
    process::private_folder(&data, crate::bound_server::is_ours).context("--data-dir, or the user's data folder")?;
    let store = Store::open(&data.join(FOLDER))?;
    match &options.command {
        Command::Import { path, name } => import(&store, path, name.as_deref()),
        Command::Pull { name, auth_file, plain_http } => pull(&store, name, auth_file.as_deref(), *plain_http),
        Command::List => list(&store),
        Command::Remove { names } => remove(&store, names),
    }
}

fn import(store: &Store, path: &Path, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let name = name.map(Name::parse).transpose().context("--name")?;
    let text = |passed: Duration| format!("importing {}, {} s", path.display(), passed.as_secs());
    for image in progress::during(&text, || berth_images::import(store, path, name.as_ref()))? {
        say!("imported {} ({})", image.name, image.digest);
    }
    Ok(ExitCode::SUCCESS)
}

fn pull(store: &Store, name: &str, auth_file: Option<&Path>, plain_http: bool) -> anyhow::Result<ExitCode> {
    let name = Name::parse(name)?;
    let credentials = auth_file.map_or_else(|| Ok(Vec::new()), credentials)?;
    let plain_http: Vec<String> =
        if plain_http { vec![name.reference().resolve_registry().to_owned()] } else { Vec::new() };
    process::run(async {
        let pulled = berth_images::pull(store, &name, &credentials, &plain_http).await?;
        let state = if pulled.was_present { "is up to date" } else { "pulled" };
        say!("{state}: {name} ({})", pulled.record.digest);
        Ok(ExitCode::SUCCESS)
    })
}

/// Credentials of a Docker configuration file: `{"auths": {REGISTRY: {"auth": BASE64}}}`.
fn credentials(path: &Path) -> anyhow::Result<Vec<RegistryCredential>> {
    use base64::Engine as _;
    let file = process::read(path)?;
    let Some(auths) = file.get("auths").and_then(serde_json::Value::as_object) else {
        bail!("{}: auths: missing, expected an object of registries", path.display());
    };
    let mut found = Vec::new();
    for (registry, entry) in auths {
        let field = |name: &str| entry.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        let pair = match field("auth").filter(|auth| !auth.is_empty()) {
            Some(auth) => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(auth).ok();
                let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
                text.and_then(|text| {
                    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
                })
            }
            None => field("username").zip(field("password")),
        };
        let Some((username, password)) = pair else {
            bail!(
                "{}: auths[{registry}]: expected auth (base64 of user:password), or username and password",
                path.display()
            );
        };
        found.push(RegistryCredential { registry: registry.clone(), username, password });
    }
    Ok(found)
}

fn list(store: &Store) -> anyhow::Result<ExitCode> {
    let rows: Vec<[String; 4]> = store
        .list()?
        .into_iter()
        .map(|(name, record)| {
            let origin = match record.origin {
                Origin::Imported => "imported",
                Origin::Pulled => "pulled",
            };
            let digest = record.digest.trim_start_matches("sha256:").chars().take(12).collect();
            [name, digest, mebibytes(record.size_bytes), origin.to_owned()]
        })
        .collect();
    let header = ["IMAGE", "DIGEST", "SIZE", "ORIGIN"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&header]).map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [name, digest, size, origin] in std::iter::once(&header).chain(&rows) {
        let [a, b, c] = widths;
        text.push_str(&format!("{name:a$}   {digest:b$}   {size:>c$}   {origin}\n"));
    }
    process::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{}Mi", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

fn remove(store: &Store, names: &[String]) -> anyhow::Result<ExitCode> {
    let names: Vec<Name> = names.iter().map(|name| Name::parse(name)).collect::<Result<_, _>>()?;
    let (Removed { bytes, layers_in_use, is_postponed }, unknown) = store.remove(&names)?;
    for name in names.iter().filter(|name| !unknown.contains(name)) {
        say!("removed {name}");
    }
    say!("freed {}", mebibytes(bytes));
    if layers_in_use > 0 {
        eprintln!(
            "berth: running pods use {layers_in_use} layers; run berth image rm again after the pods end to remove them"
        );
    }
    if is_postponed {
        eprintln!("berth: another process is adding an image; run berth image rm again to remove the layers");
    }
    for name in &unknown {
        eprintln!("berth: image {name} is not in the store; berth image list shows the names");
    }
    Ok(if unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_from_both_forms_of_a_docker_configuration() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.json");
        let check = |text: &str| {
            std::fs::write(&path, text).expect("written");
            credentials(&path)
        };
        let text = r#"{"auths":{"a":{"auth":"dXNlcjpwYTpzcw=="},"b":{"username":"u","password":"p"}}}"#;
        let found = check(text).expect("read");
        let shown: Vec<_> =
            found.iter().map(|c| (c.registry.as_str(), c.username.as_str(), c.password.as_str())).collect();
        assert_eq!(shown, [("a", "user", "pa:ss"), ("b", "u", "p")]);
        let error = check(r#"{"auths":{"a":{"auth":"%"}}}"#).expect_err("refused").to_string();
        assert!(error.contains("auths[a]: expected auth"), "{error}");
        assert!(check("{}").is_err());
    }

    #[test]
    fn the_configuration_selects_the_files_of_images() {
        let images = serde_json::json!({
            "otherwise": "strict", "plainHttp": ["r:5000"],
            "mappings": [{ "image": "a", "files": "/srv", "cmd": ["x"] }, { "image": "b", "files": "pull" }],
        });
        let config = configured(&serde_json::from_value(images).expect("a configuration"));
        assert_eq!((&config.otherwise, config.plain_http.len()), (&Target::Refuse, 1));
        let shown: Vec<_> =
            config.mappings.iter().map(|m| (m.image.as_str(), &m.target, m.declared.cmd.len())).collect();
        assert_eq!(shown, [("a", &Target::Folder("/srv".into()), 1), ("b", &Target::Pull, 0)]);
        assert_eq!(configured(&ImageConfiguration::default()).otherwise, Target::Host);
    }

    #[test]
    fn sizes_are_shown_in_mebibytes() {
        assert_eq!(mebibytes(0), "0.0Mi");
        assert_eq!(mebibytes((3 << 20) + (1 << 19)), "3.5Mi");
    }
}
