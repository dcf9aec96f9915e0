//! The user, environment and command of a container, from its configuration, its image and the
//! image's `/etc/passwd` and `/etc/group`.

use std::path::{Path, PathBuf};

use berth_pod_runtime::ContainerConfig;

use super::Result;
use crate::protocol::{ContainerEntry, Program, WireError};

/// Maximum size of `/etc/passwd` and `/etc/group` in bytes. The image is not trusted to keep them
/// small.
const ACCOUNTS_BYTES_MAX: u64 = 4 << 20;

/// Search path of programs if neither the image nor the pod sets one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Command of an interactive container on the host's own files, as in images of distributions.
const SHELL: &str = "sh";

/// The command line of a container, by Kubernetes' rules for `command`, `args` and the image. The
/// host's files have no default command, so an interactive container (`kubectl debug -it`) gets a
/// shell.
pub(super) fn argv(config: &ContainerConfig) -> Vec<String> {
    if !config.command.is_empty() {
        return config.command.iter().chain(&config.args).cloned().collect();
    }
    let args = if config.args.is_empty() { &config.image.cmd } else { &config.args };
    let command: Vec<String> = config.image.entrypoint.iter().chain(args).cloned().collect();
    if command.is_empty() && config.stdin && config.image.root.is_none() {
        return vec![SHELL.to_owned()];
    }
    command
}

/// Resolves the user, environment and working directory of the program. `/` is the container's
/// root.
pub(super) fn resolve(entry: &ContainerEntry) -> Result<Program> {
    let accounts = Accounts::read(Path::new("/etc"));
    let config = &entry.config;
    let user = user(config, &accounts)?;
    if config.security.run_as_non_root && user.uid == 0 {
        let message = "container has runAsNonRoot but would run as root; set runAsUser to a user other than 0";
        return Err(WireError::Config(message.to_owned()));
    }
    let mut groups = user.groups;
    groups.extend(&config.security.supplemental_groups);
    groups.sort_unstable();
    groups.dedup();
    let working_dir = [&config.working_dir, &config.image.working_dir].into_iter().find(|dir| !dir.is_empty());
    Ok(Program {
        uid: user.uid,
        gid: user.gid,
        groups,
        env: environment(entry, &user.home),
        working_dir: PathBuf::from(working_dir.map_or("/", String::as_str)),
        landlock: None,
    })
}

/// The environment in order of increasing precedence.
pub(super) fn environment(entry: &ContainerEntry, home: &str) -> Vec<(String, String)> {
    let config = &entry.config;
    let mut env = vec![
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        ("HOME".to_owned(), home.to_owned()),
        ("HOSTNAME".to_owned(), entry.hostname.clone()),
    ];
    if config.tty {
        env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let split = |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    env.extend(config.image.env.iter().filter_map(split));
    env.extend(config.env.iter().cloned());
    env
}

struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
}

fn user(config: &ContainerConfig, accounts: &Accounts) -> Result<User> {
    let spec = config.image.user.0.as_str();
    let (user, group) = spec.split_once(':').map_or((spec, None), |(user, group)| (user, Some(group)));
    let account = match config.security.user {
        Some(uid) => accounts.by_uid(uid).unwrap_or_else(|| Account::without_entry(uid)),
        None if user.is_empty() => accounts.by_uid(0).unwrap_or_else(|| Account::without_entry(0)),
        None => match (user.parse::<u32>(), accounts.by_name(user)) {
            (_, Some(account)) => account,
            (Ok(uid), None) => accounts.by_uid(uid).unwrap_or_else(|| Account::without_entry(uid)),
            (Err(_), None) => {
                let message = format!("image {}: user {user:?} is not in its /etc/passwd", config.image.reference);
                return Err(WireError::Config(message));
            }
        },
    };
    let gid = match (config.security.group, group.filter(|group| !group.is_empty() && config.security.user.is_none())) {
        (Some(gid), _) => gid,
        (None, Some(group)) => accounts.group(group).or_else(|| group.parse().ok()).ok_or_else(|| {
            WireError::Config(format!("image {}: group {group:?} is not in its /etc/group", config.image.reference))
        })?,
        (None, None) => account.gid,
    };
    let groups = account.name.as_deref().map(|name| accounts.memberships(name)).unwrap_or_default();
    Ok(User { uid: account.uid, gid, groups, home: account.home })
}

/// A line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: Option<String>,
    uid: u32,
    gid: u32,
    home: String,
}

impl Account {
    fn without_entry(uid: u32) -> Self {
        Self { name: None, uid, gid: 0, home: "/".to_owned() }
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        Some(Self {
            name: Some((*fields.first()?).to_owned()),
            uid: fields.get(2)?.parse().ok()?,
            gid: fields.get(3)?.parse().ok()?,
            home: fields.get(5).filter(|home| !home.is_empty()).map_or("/", |home| home).to_owned(),
        })
    }
}

/// The accounts of an image.
struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    fn read(folder: &Path) -> Self {
        let read = |name: &str| {
            let path = folder.join(name);
            let is_usable =
                std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= ACCOUNTS_BYTES_MAX);
            if is_usable { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() }
        };
        Self { passwd: read("passwd"), group: read("group") }
    }

    fn by_uid(&self, uid: u32) -> Option<Account> {
        self.passwd.lines().filter_map(Account::parse).find(|account| account.uid == uid)
    }

    fn by_name(&self, name: &str) -> Option<Account> {
        self.passwd.lines().filter_map(Account::parse).find(|account| account.name.as_deref() == Some(name))
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.group.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.first() == Some(&name)).then(|| fields.get(2)?.parse().ok()).flatten()
        })
    }

    /// Groups that list the user as a member.
    fn memberships(&self, name: &str) -> Vec<u32> {
        let members = |line: &str| {
            let fields: Vec<&str> = line.split(':').collect();
            let is_member = fields.get(3)?.split(',').any(|member| member == name);
            if is_member { fields.get(2)?.parse().ok() } else { None }
        };
        self.group.lines().filter_map(members).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::tests::config;
    use berth_pod_runtime::UserSpec;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbroken\n".to_owned(),
            group: "root:x:0:\nteam:x:2000:app,other\nstaff:x:50:\n".to_owned(),
        }
    }

    fn ids(spec: &str, uid: Option<u32>, gid: Option<u32>) -> Result<(u32, u32, Vec<u32>, String)> {
        let mut config = config();
        config.image.user = UserSpec(spec.to_owned());
        config.security.user = uid;
        config.security.group = gid;
        user(&config, &accounts()).map(|user| (user.uid, user.gid, user.groups, user.home))
    }

    #[test]
    fn the_pods_user_wins_over_the_images() {
        assert_eq!(ids("", None, None).unwrap(), (0, 0, vec![], "/root".to_owned()));
        assert_eq!(ids("app", None, None).unwrap(), (1000, 1001, vec![2000], "/home/app".to_owned()));
        assert_eq!(ids("app:staff", None, None).unwrap().1, 50);
        assert_eq!(ids("7:8", None, None).unwrap(), (7, 8, vec![], "/".to_owned()));
        assert_eq!(ids("app:staff", Some(5), None).unwrap(), (5, 0, vec![], "/".to_owned()));
        assert_eq!(ids("app", Some(1000), Some(9)).unwrap(), (1000, 9, vec![2000], "/home/app".to_owned()));
    }

    #[test]
    fn a_name_that_the_image_lacks_is_rejected() {
        assert!(matches!(ids("nobody-here", None, None), Err(WireError::Config(_))));
        assert!(matches!(ids("app:none", None, None), Err(WireError::Config(_))));
    }

    #[test]
    fn the_command_follows_kubernetes_rules() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let check = |command: &str, args: &str, expected: &str| {
            let mut config = config();
            config.image.entrypoint = words("entry");
            config.image.cmd = words("cmd");
            config.command = words(command);
            config.args = words(args);
            assert_eq!(argv(&config), words(expected));
        };
        check("", "", "entry cmd");
        check("", "a b", "entry a b");
        check("c", "", "c");
        check("c", "a", "c a");
    }

    #[test]
    fn an_interactive_container_on_the_hosts_files_gets_a_shell() {
        let mut config = config();
        assert_eq!(argv(&config), Vec::<String>::new());
        config.stdin = true;
        assert_eq!(argv(&config), ["sh"]);
        config.image.root = Some(berth_pod_runtime::ImageRoot::Folder { path: "/images/x".into() });
        assert_eq!(argv(&config), Vec::<String>::new());
    }
}
