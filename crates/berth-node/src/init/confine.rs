//! The restrictions of a program: user, capabilities, system calls, and files at the plain level.

use berth_pod_runtime::Security;
use landlock::{ABI, Access, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::{Result, internal};
use crate::protocol::{LandlockRules, Program, WireError};

/// Default capabilities of containers: those of other container runtimes without MKNOD, because
/// Berth cannot restrict devices with version 2 of control groups.
const DEFAULT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Limit on open files of a container, as in other container runtimes.
const OPEN_FILES: u64 = 1 << 20;

/// Raises the limit on open files as far as the machine allows.
pub(super) fn limit_resources() {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), maximum: Some(maximum) });
}

/// Gives up every privilege that the program must not have.
pub(super) fn apply(security: &Security, program: &Program, is_isolated: bool) -> Result<()> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| internal(what, error);
    let allowed = if security.privileged { CapabilitySet::all() } else { capabilities(security)? };
    let is_root = rustix::process::geteuid().is_root();
    let may_gain = security.privileged || security.allow_privilege_escalation;
    if is_isolated && !security.privileged {
        drop_from_bounding_set(allowed)?;
    }
    if is_root {
        set_ids(program)?;
    } else if program.uid != rustix::process::geteuid().as_raw() {
        let message = format!("user {}: this isolation level cannot change the user", program.uid);
        return Err(WireError::Config(message));
    }
    if is_isolated && !security.privileged && program.uid == 0 {
        let sets = CapabilitySets { effective: allowed, permitted: allowed, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).map_err(failed("capabilities"))?;
    }
    if !may_gain {
        set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    }
    if let Some(rules) = &program.landlock {
        restrict_files(rules).map_err(|error| WireError::Internal(format!("Landlock: {error}")))?;
    }
    if !may_gain && !security.seccomp_unconfined {
        super::seccomp::apply()?;
    }
    Ok(())
}

/// Gives up all capabilities.
pub(super) fn drop_all_capabilities() -> Result<()> {
    drop_from_bounding_set(CapabilitySet::empty())?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(|error| internal("capabilities", error))
}

/// The capabilities of a container.
fn capabilities(security: &Security) -> Result<CapabilitySet> {
    let mut allowed = DEFAULT_CAPABILITIES;
    for name in &security.capabilities.drop {
        if name.eq_ignore_ascii_case("ALL") {
            allowed = CapabilitySet::empty();
        } else {
            allowed -= capability(name)?;
        }
    }
    for name in &security.capabilities.add {
        if name.eq_ignore_ascii_case("ALL") {
            allowed = CapabilitySet::all();
        } else {
            allowed |= capability(name)?;
        }
    }
    Ok(allowed)
}

fn capability(name: &str) -> Result<CapabilitySet> {
    let upper = name.to_ascii_uppercase();
    let known = CapabilitySet::from_name(upper.strip_prefix("CAP_").unwrap_or(&upper));
    known.ok_or_else(|| WireError::Config(format!("capability {name:?} does not exist: see capabilities(7)")))
}

/// Removes all other capabilities from the bounding set. A program that is executed later cannot
/// gain them.
fn drop_from_bounding_set(allowed: CapabilitySet) -> Result<()> {
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").ok().and_then(|text| text.trim().parse().ok());
    let last: u32 = last.unwrap_or(40);
    for number in 0..=last {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if allowed.intersects(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(internal("capability bounding set", error)),
        }
    }
    Ok(())
}

fn set_ids(program: &Program) -> Result<()> {
    let failed = |error: rustix::io::Errno| internal("user", error);
    let groups: Vec<Gid> = program.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    match set_thread_groups(&groups) {
        // An ordinary user's user namespace maps one group only.
        Err(rustix::io::Errno::PERM) if is_in_user_namespace() => {}
        result => result.map_err(failed)?,
    }
    let gid = Gid::from_raw(program.gid);
    set_thread_res_gid(gid, gid, gid).map_err(|error| unmapped(error, "group", program.gid))?;
    let uid = Uid::from_raw(program.uid);
    set_thread_res_uid(uid, uid, uid).map_err(|error| unmapped(error, "user", program.uid))
}

fn unmapped(error: rustix::io::Errno, kind: &str, id: u32) -> WireError {
    if error == rustix::io::Errno::INVAL {
        let message = format!("{kind} {id} does not exist at the isolation level rootless: only 0 does");
        return WireError::Config(message);
    }
    internal(kind, error)
}

fn is_in_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

/// Restricts the files that this process and its descendants can use. Does nothing on kernels
/// without Landlock.
fn restrict_files(rules: &LandlockRules) -> std::result::Result<(), RulesetError> {
    let abi = ABI::V3;
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(abi))?.create()?;
    for (paths, access) in [(&rules.read, AccessFs::from_read(abi)), (&rules.write, AccessFs::from_all(abi))] {
        for path in paths {
            let Ok(metadata) = std::fs::metadata(path) else { continue };
            let Ok(opened) = PathFd::new(path) else { continue };
            let access = if metadata.is_dir() { access } else { access & AccessFs::from_file(abi) };
            ruleset = ruleset.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    ruleset.restrict_self().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_pod_runtime::Capabilities;

    fn set(add: &[&str], drop: &[&str]) -> Result<CapabilitySet> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let capabilities = Capabilities { add: names(add), drop: names(drop) };
        super::capabilities(&Security { capabilities, ..Security::default() })
    }

    #[test]
    fn capabilities_are_added_and_dropped() {
        assert_eq!(set(&[], &[]).unwrap(), DEFAULT_CAPABILITIES);
        assert_eq!(set(&["NET_ADMIN"], &["ALL"]).unwrap(), CapabilitySet::NET_ADMIN);
        assert_eq!(set(&["cap_sys_time"], &[]).unwrap(), DEFAULT_CAPABILITIES | CapabilitySet::SYS_TIME);
        assert!(!set(&[], &["CHOWN"]).unwrap().contains(CapabilitySet::CHOWN));
        assert!(set(&["FLY"], &[]).is_err());
    }
}
