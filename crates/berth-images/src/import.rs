//! Import of images from files and folders.

use std::path::Path;

use crate::archive::Archive;
use crate::store::{NewImage, Origin};
use crate::{Error, Name, Result, Store};

/// An image that an import added to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Full name of the image.
    pub name: String,
    /// Its digest.
    pub digest: String,
}

/// Imports the images of an OCI image layout (folder or archive) or of a `docker save` file under
/// their own names, or the only image under `name`. An existing image of the same name is replaced.
///
/// # Errors
/// The file cannot be read, has no image for this machine, has an image without a name, or is
/// damaged. Images before the failed image remain imported.
pub fn import(store: &Store, path: &Path, name: Option<&Name>) -> Result<Vec<Imported>> {
    let session = store.begin()?;
    let archive = Archive::open(path, session.temporary())?;
    let mut images = archive.images()?;
    let shown = path.display().to_string();
    if let Some(name) = name {
        let [image] = images.as_mut_slice() else {
            let names: Vec<String> = images.iter().flat_map(|image| &image.names).map(Name::to_string).collect();
            let problem =
                format!("it contains {} images ({}), but --name can name only one", images.len(), names.join(", "));
            return Err(Error::invalid(&shown, problem));
        };
        image.names = vec![name.clone()];
    }
    if images.is_empty() {
        return Err(Error::invalid(&shown, "it contains no image"));
    }
    let mut imported = Vec::new();
    for image in images {
        if image.names.is_empty() {
            return Err(Error::invalid(&shown, format!("image {} has no name; set one with --name", image.digest)));
        }
        let names: Vec<String> = image.names.iter().map(Name::to_string).collect();
        let new = NewImage {
            shown: &shown,
            names: &names,
            digest: &image.digest,
            index_digest: None,
            config: &image.config,
            layers: image.layers,
            origin: Origin::Imported,
        };
        session.add(new)?;
        imported.extend(names.into_iter().map(|name| Imported { name, digest: image.digest.clone() }));
    }
    drop(archive);
    drop(session);
    store.collect_garbage()?;
    Ok(imported)
}
