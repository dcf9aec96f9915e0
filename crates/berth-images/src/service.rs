//! The images of one node, for its runtime.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use berth_pod_runtime::{
    Image, ImagePullPolicy, ImageRequest, ImageRoot, Images, RegistryCredential, RuntimeError, UserSpec,
};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use crate::pull::{Pulled, pull};
use crate::{Config, Declared, Error, Name, Origin, Record, Store, Target};

/// Reason for a failed pull.
const PULL: &str = "ErrImagePull";
/// Reason for an image that does not exist locally and must not be pulled.
const NEVER: &str = "ErrImageNeverPull";
/// Reason for a reference that cannot be parsed.
const INVALID: &str = "InvalidImageName";

/// A pull that containers wait for.
type Pull = Shared<BoxFuture<'static, Result<Record, RuntimeError>>>;
/// Pulls with other credentials are separate: a pod must not get an image if the registry rejects
/// the pod's credentials.
type PullKey = (String, Vec<(String, String, String)>);

/// Location of an image.
enum Found {
    /// On this machine.
    Here(Image),
    /// In its registry, from which it must be pulled.
    InRegistry(Name),
}

/// The images of one node: mappings first, then the store, then [`Config::otherwise`].
pub struct NodeImages {
    store: Store,
    config: Config,
    pulls: Arc<Mutex<BTreeMap<PullKey, Pull>>>,
}

impl NodeImages {
    /// Serves the images of a store.
    pub fn new(store: Store, config: Config) -> Self {
        Self { store, config, pulls: Arc::default() }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Finds the image that a container can use without a pull, or the name of the image to pull.
    async fn find(&self, request: &ImageRequest) -> Result<Found, RuntimeError> {
        let name = Name::parse(&request.reference)
            .map_err(|error| RuntimeError::Image { reason: INVALID, message: error.to_string() })?;
        let mapping = self.config.mapping(&name);
        match mapping.map(|mapping| (&mapping.target, &mapping.declared)) {
            Some((Target::Host, declared)) => return Ok(Found::Here(mapped(&name, "host".into(), None, declared))),
            Some((Target::Folder(path), declared)) => return folder(&name, path, declared).map(Found::Here),
            _ => {}
        }
        let otherwise = mapping.map_or(&self.config.otherwise, |mapping| &mapping.target);
        let present = self.lookup(&name).await?;
        let must_ask = request.policy == ImagePullPolicy::Always && *otherwise == Target::Pull;
        match present {
            // An imported image is used without a request to the registry, which may not even have
            // it.
            Some(record) if record.origin == Origin::Imported || !must_ask => {
                return Ok(Found::Here(self.store.image(&name, &record)));
            }
            _ => {}
        }
        match otherwise {
            Target::Host => Ok(Found::Here(not_imported(&name))),
            Target::Folder(path) => folder(&name, path, &Declared::default()).map(Found::Here),
            Target::Pull if request.policy == ImagePullPolicy::Never => Err(never(&name)),
            Target::Pull => Ok(Found::InRegistry(name)),
            Target::Refuse if request.policy == ImagePullPolicy::Never => Err(never(&name)),
            Target::Refuse => Err(refused(&name)),
        }
    }

    async fn lookup(&self, name: &Name) -> Result<Option<Record>, RuntimeError> {
        let (store, name) = (self.store.clone(), name.clone());
        blocking(move || store.get(&name)).await
    }

    /// Pulls an image, or waits for the same pull if another container has started it.
    async fn pull(&self, name: &Name, credentials: &[RegistryCredential]) -> Result<Record, RuntimeError> {
        let secret = |c: &RegistryCredential| (c.registry.clone(), c.username.clone(), c.password.clone());
        let key: PullKey = (name.to_string(), credentials.iter().map(secret).collect());
        let pull = {
            let mut pulls = self.pulls.lock();
            pulls.entry(key.clone()).or_insert_with(|| self.start_pull(key, name, credentials)).clone()
        };
        pull.await
    }

    /// Starts a pull. It continues after the container that requested it is deleted, because other
    /// containers may need it.
    fn start_pull(&self, key: PullKey, name: &Name, credentials: &[RegistryCredential]) -> Pull {
        let (store, pulls) = (self.store.clone(), self.pulls.clone());
        let (name, credentials, plain_http) = (name.clone(), credentials.to_vec(), self.config.plain_http.clone());
        let task = tokio::spawn(async move {
            let pulled = pull(&store, &name, &credentials, &plain_http).await;
            pulls.lock().remove(&key);
            pulled
        });
        let pull = async move {
            match task.await {
                Ok(Ok(Pulled { record, .. })) => Ok(record),
                Ok(Err(error)) => Err(RuntimeError::Image { reason: PULL, message: error.to_string() }),
                Err(error) => Err(RuntimeError::Internal(format!("the pull of an image ended: {error}"))),
            }
        };
        pull.boxed().shared()
    }
}

impl Images for NodeImages {
    fn ensure<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Image, RuntimeError>> {
        let found = async {
            match self.find(request).await? {
                Found::Here(image) => Ok(image),
                Found::InRegistry(name) => {
                    let record = self.pull(&name, &request.credentials).await?;
                    Ok(self.store.image(&name, &record))
                }
            }
        };
        found.boxed()
    }

    fn needs_pull<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, bool> {
        async { matches!(self.find(request).await, Ok(Found::InRegistry(_))) }.boxed()
    }
}

/// Runs a function that reads files.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| RuntimeError::Internal(error.to_string())),
        Err(error) => Err(RuntimeError::Internal(format!("cannot read the image store: {error}"))),
    }
}

/// An image whose files are on the host.
fn mapped(name: &Name, id: String, root: Option<ImageRoot>, declared: &Declared) -> Image {
    Image {
        reference: name.written().to_owned(),
        id,
        root,
        entrypoint: declared.entrypoint.clone(),
        cmd: declared.cmd.clone(),
        env: declared.env.clone(),
        user: UserSpec(declared.user.clone()),
        working_dir: declared.working_dir.clone(),
        ..Image::default()
    }
}

fn folder(name: &Name, path: &Path, declared: &Declared) -> Result<Image, RuntimeError> {
    if !path.is_dir() {
        let message = format!(
            "image {:?} is mapped to {}, which is not a folder: create it, or change the mapping of the image",
            name.written(),
            path.display()
        );
        return Err(RuntimeError::Image { reason: PULL, message });
    }
    let root = ImageRoot::Folder { path: path.to_owned() };
    Ok(mapped(name, format!("folder:{}", path.display()), Some(root), declared))
}

fn not_imported(name: &Name) -> Image {
    let image = mapped(name, "host".into(), None, &Declared::default());
    let written = name.written();
    let notice = format!(
        "image {written:?} is not imported and has no mapping, so the container runs on the files of this machine. To \
         use the image's own files, run berth image import FILE --name {written}, or berth image pull {written}"
    );
    Image { notice: Some(notice), ..image }
}

fn refused(name: &Name) -> RuntimeError {
    let written = name.written();
    let message = format!(
        "image {written:?} is not imported and has no mapping, and this node does not pull images (strict). Run berth \
         image import FILE --name {written}, or berth image pull {written}"
    );
    RuntimeError::Image { reason: PULL, message }
}

fn never(name: &Name) -> RuntimeError {
    let written = name.written();
    let message = format!(
        "image {written:?} is not imported, and its pull policy is Never. Run berth image import FILE --name {written}, \
         or set another imagePullPolicy"
    );
    RuntimeError::Image { reason: NEVER, message }
}
